"""How parameters start: equal across arms where shared, and with the same scale of the product."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from pydantic import TypeAdapter

from tests.head_output.test_orders import CASES
from wmresearch.config.head_output import FactorizedConfig, HeadOutput, StandardConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output import make_head_output, weights
from wmresearch.head_output.weights import about, initialize
from wmresearch.model import Transformer


def config(**changes):
    return ModelConfig(**({"d_model": 64, "n_layers": 2, "n_heads": 4, "context": 16} | changes))


def flat(params):
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(params)}


def start(model, seed=3):
    return flat(initialize(Transformer(model, 31), jax.random.key(seed)))


@pytest.mark.parametrize(
    "other",
    [
        config(head_output=FactorizedConfig(rank=5)),
        config(n_layers=3, head_output=FactorizedConfig(rank=64)),
        config(mlp="swiglu", d_mlp=256),
        config(tie_embeddings=False),
    ],
)
def test_arms_share_what_they_have_in_common(other):
    """Equal start for every parameter of equal name and shape (and scale: depth changes that of residual maps)."""
    ours, theirs = start(config()), start(other)
    shared = [name for name in ours if name in theirs and ours[name].shape == theirs[name].shape]
    assert len(shared) > 20
    for name in shared:
        residual = "output" in name or "down" in name
        if not (residual and other.n_layers != 2):
            assert jnp.array_equal(ours[name], theirs[name]), name


def test_compiling_quickly_changes_no_bit_of_the_start():
    """A run's first parameters are part of its result, so they are those that XLA makes with all its optimizations."""
    wholly = {"xla_cpu_use_fusion_emitters": True, "xla_backend_optimization_level": 3}
    plain = jax.jit(weights._drawn, static_argnums=(3, 4, 5), compiler_options=wholly)
    starts = {}
    for kind, setting in CASES:
        chosen = TypeAdapter(HeadOutput).validate_python({"kind": kind, **setting})
        about(
            Transformer(config(d_model=32, head_output=chosen), 31),
            lambda _, param: starts.setdefault(
                (type(param.init), param.get_raw_value().ndim),  # one of each sort
                (param.init, param.get_raw_value().shape, param.get_raw_value().dtype),
            ),
        )
    assert len(starts) >= 9
    for start in starts.values():
        given = jax.random.key(3), np.uint32(17), np.uint32(91), *start
        assert np.array_equal(weights._compiled_drawn()(*given), plain(*given)), start


def test_no_two_parameters_start_alike_and_seeds_differ():
    ours, others = start(config(), seed=0), start(config(), seed=1)
    random = [name for name, leaf in ours.items() if float(jnp.std(leaf)) > 0]
    for index, name in enumerate(random):
        assert not jnp.array_equal(ours[name], others[name])
        for other in random[:index]:
            if ours[name].shape == ours[other].shape:
                assert abs(np.corrcoef(ours[name].ravel(), ours[other].ravel())[0, 1]) < 0.2


@pytest.mark.parametrize("rank", [1, 4, 16, 48, 64])
def test_the_product_starts_at_the_standard_scale_whatever_the_rank(rank):
    """Standard deviation of the entries of A_i B_i against σ_V σ_O √d_head."""
    expected = 0.02 * 0.02 / 2 * np.sqrt(16)
    for head_output in (StandardConfig(), FactorizedConfig(rank=rank)):
        module = make_head_output(config(bias=False, head_output=head_output))
        made = nnx.merge(nnx.split(module)[0], initialize(module, jax.random.key(0)))
        spread = float(jnp.sqrt(jnp.mean(jnp.square(made.factors().dense()))))
        assert spread == pytest.approx(expected, rel=0.2 if rank == 1 else 0.06)


def test_decay_acts_on_matrices_only():
    model = config(head_output=FactorizedConfig(rank=4))
    mask = flat(about(Transformer(model, 31), lambda _, param: param.decay))
    matrices = ("embedding", "positions", "query'", "key'", "factor_a", "factor_b", "up'", "down'")
    for name, decays in mask.items():
        assert decays == any(matrix in name for matrix in matrices), name
