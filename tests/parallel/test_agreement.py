"""A model on several devices is the same function, with the same gradients, in both implementations."""

import re

import jax
import pytest

from tests.head_output.own_kind import CODE, write_example
from tests.head_output.test_orders import SETTINGS
from tests.parallel.examples import Example, model
from tests.training.programs import program
from wmresearch.config import ConfigError
from wmresearch.parallel.mesh import Sizes
from wmresearch.parallel.shares import planned

BOTH = ("shard_map", "jit")


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def test_on_every_mesh():
    """More hidden units and symbols than divide evenly."""
    example = Example(model(n_heads=8, d_mlp=18, tie_embeddings=False))
    for data, head in ((1, 8), (2, 4), (4, 2), (8, 1)):
        for implementation in BOTH:
            example.agrees(data, head, implementation)


ONE_OF_EACH = [(kind, setting) for kind, (setting, *_) in SETTINGS.items()]
ONE_OF_EACH += [("sparse", setting) for setting in SETTINGS["sparse"][1:3]]  # each of its forms


@pytest.mark.parametrize(("kind", "setting"), ONE_OF_EACH)
def test_of_every_kind(kind, setting):
    """Query heads share key/value heads, which three devices do not divide evenly and four have to copy."""
    example = Example(model({"kind": kind, **setting}, n_kv_heads=2, bias=True))
    assert example.agrees(2, 3).moves
    assert example.agrees(2, 4, "jit").placement.shards == (2, 2)


@pytest.mark.parametrize("kind", ["none", "fixed_orthogonal", "identity_value", "dense"])
def test_in_every_order(kind):
    """Where heads write to places of their own, or read from them, and have to know which heads they are."""
    for order in ("attend_then_write", "modify_then_attend", "mix_first"):
        example = Example(model({"kind": kind, "order": order}))
        example.agrees(1, 3)


RANKS = {"kind": "dynamic_rank", "bucket": 1}


@pytest.mark.parametrize(
    ("ranks", "heads"),
    [
        ([[4, 1, 3, 0, 2, 4, 0, 2], [0, 0, 0, 0, 1, 0, 0, 0], [0] * 8], {"n_heads": 8}),
        ([[4, 2, 3]], {"n_heads": 6, "n_kv_heads": 3, "d_model": 18}),
        ([[4, 2]], {"n_heads": 8, "n_kv_heads": 2}),
    ],
    ids=["some heads gone", "groups dealt", "groups copied"],
)
def test_of_unequal_ranks(ranks, heads):
    """With dropout, which is drawn by a head's own number."""
    config = model(RANKS | {"ranks": ranks}, n_layers=len(ranks), dropout=0.2, bias=True, **heads)
    example = Example(config)
    for implementation in BOTH:
        assert example.agrees(2, 4, implementation).moves


@pytest.mark.parametrize("method", ["hard_concrete", "budgeted", "nested"])
def test_of_gates(method):
    setting = {"rank": 4, "total_rank": 12, "fine_tune_steps": 2, "method": method}
    example = Example(model(RANKS | setting, n_heads=6, d_model=18))
    for implementation in BOTH:
        example.agrees(1, 4, implementation)


@pytest.mark.parametrize("implementation", BOTH)
def test_with_positions_divided_too(implementation):
    """And dropout, whose draws follow from row and position; positions of both kinds."""
    for positions in ("learned", "rope"):
        example = Example(model(dropout=0.3, positions=positions))
        example.agrees(2, 4, implementation, shard_positions=True)
    Example(model({"kind": "none"})).agrees(1, 4, implementation, shard_positions=True)


def test_of_a_kind_of_the_users_own(tmp_path):
    """The README's, whose parameters say along which axes heads lie; and one that does not, which is refused."""
    path = write_example(tmp_path)
    setting = {"kind": "custom", "settings": {"rank": 3}}
    Example(model(setting | {"file": str(path)}, n_kv_heads=2)).agrees(2, 4)
    silent = tmp_path / "silent.py"
    silent.write_text(re.sub(r", along=along\w+\(\d\)", "", CODE), encoding="utf-8")
    changes = {"model__head_output": setting | {"file": str(silent)}, "data__batch_size": 8}
    program(**changes, parallel__mesh={"data": 2})
    with pytest.raises(ConfigError, match="symmetric does not say along which axes its heads lie"):
        program(**changes, parallel__mesh={"head": 2})
    of_silent = program(**changes)
    with pytest.raises(ConfigError, match="symmetric does not say along which axes its heads lie"):
        planned(of_silent.config.model, of_silent.transformer, Sizes(1, 2))
