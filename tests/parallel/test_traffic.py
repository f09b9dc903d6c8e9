"""What a mesh's devices have and exchange, predicted from shapes: beside placed arrays, compiled steps and by hand."""

import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.examples import config
from wmresearch.config import load_run
from wmresearch.config.model import ModelConfig
from wmresearch.model import Transformer
from wmresearch.model.cost import model_cost
from wmresearch.parallel.collectives import ArrayShape, Collective
from wmresearch.parallel.comparison import compared, sources
from wmresearch.parallel.mesh import Sizes
from wmresearch.parallel.shares import device_share, planned
from wmresearch.parallel.traffic import Exchange, exchanges
from wmresearch.reports.mesh import mesh_data, mesh_report, optimizer_bytes
from wmresearch.training.program import make_program


def run(data=1, head=1, model=None, execution=None, batch=4, optimizer=None, **parallel):
    """The smallest run on a mesh; it reads no text."""
    changes = {f"model__{key}": value for key, value in ({"context": 8} | (model or {})).items()}
    changes |= {f"execution__{key}": value for key, value in (execution or {}).items()}
    changes |= {f"optimizer__{key}": value for key, value in (optimizer or {}).items()}
    changes |= {f"parallel__{key}": value for key, value in parallel.items()}
    return config(Path("no text"), parallel__mesh={"data": data, "head": head}, data__batch_size=batch, **changes)


def reported(config):
    return mesh_report(config, lambda: None)


BARE = {"bias": False, "norm": "rmsnorm", "positions": "rope", "mlp": "swiglu", "tie_embeddings": False}
GROUPED = {"n_heads": 4, "n_kv_heads": 2}
UNEQUAL = {"kind": "dynamic_rank", "bucket": 1}
HEADLESS = {"n_layers": 2, "n_heads": 4, "bias": False, "head_output": UNEQUAL | {"ranks": ((5, 2, 1, 0), (0,) * 4)}}
AGAIN = {"remat": "layers", "logits_block": 12}
BASIS = {"kind": "shared_basis", "rank": 3}
CASES = {
    "8 devices of heads": run(1, 8, {"n_heads": 8}),
    "both axes": run(2, 4, {"n_heads": 4}),
    "no biases, untied, 16 bits": run(2, 2, BARE | {"dtype": "bfloat16"}),
    "moments divided, and 3 devices, which divide nothing": run(2, 3, {"n_heads": 4}, shard_optimizer=True),
    "six heads on four devices, accumulated": run(2, 4, {"n_heads": 6, "d_head": 2}, {"accumulate": 2}),
    "shared key/value heads": run(1, 4, GROUPED),
    "mixed first": run(1, 4, GROUPED | {"head_output": {"kind": "standard", "order": "mix_first"}}),
    "positions": run(2, 4, GROUPED, shard_positions=True),
    "shared basis": run(2, 4, GROUPED | {"head_output": BASIS}),
    "basis of all layers": run(1, 2, {"n_layers": 2, "head_output": BASIS | {"share": "model"}}),
    "none": run(1, 4, {"n_heads": 6, "d_head": 2, "d_model": 12, "head_output": "none"}),
    "none, positions": run(1, 4, {"n_heads": 4, "head_output": "none"}, shard_positions=True),
    "unequal ranks": run(1, 4, HEADLESS),
    "once more": run(1, 2, None, AGAIN, shard_positions=True),
}


@pytest.mark.parametrize("name", CASES)
def test_the_compiled_step_exchanges_what_is_predicted(name):
    found = reported(CASES[name]).compiled
    assert found
    assert [(each.group, each.numbers) for each in found] == [(each.group, each.predicted_numbers) for each in found]
    if "16 bits" not in name:  # which XLA adds up as 32 on CPUs
        assert all(each.bytes == each.predicted_bytes for each in found)


def test_gates_of_shared_heads_are_exchanged_by_rows_of_b_and_what_xla_finds_stands_apart():
    method = {"kind": "hard_concrete", "heads": True}
    output = UNEQUAL | {"rank": 3, "total_rank": 4, "fine_tune_steps": 2, "method": method}
    found = reported(run(1, 4, GROUPED | {"head_output": output})).compiled
    model = [each for each in found if each.group.part == "model"]
    assert model and all(each.ratio == 1 for each in model)
    assert all(each.ratio is None and each.predicted_numbers == 0 for each in found if each.group.part == "update")


def test_jit_exchanges_no_less_and_is_not_told_apart():
    found = reported(run(2, 2, implementation="jit")).compiled
    assert {each.group.part for each in found} == {"step"}
    assert all(each.ratio >= 1 for each in found)


# By hand


def test_llama3_70b_on_eight_devices_is_the_example_of_the_tensor_parallel_scheme():
    """d 8192, 80 layers, 64 query heads of width 128 over 8 key/value heads, MLP 28672, 128256 symbols."""
    loaded = load_run("llama3-70b", ["parallel.mesh={head: 8}"])
    report = mesh_report(loaded, None)
    norms = 80 * 2 * 8192 + 8192
    layer = 8192 * (64 * 128) + 2 * 8192 * (8 * 128) + (64 * 128) * 8192 + 3 * 8192 * 28672
    assert report.parameters == 2 * 128256 * 8192 + 80 * layer + norms == 70_553_706_496
    parts = {part.name: part for part in report.share.parts}
    assert [parts[name].on_device for name in ("query heads", "key/value heads")] == [64 // 8, 8 // 8]
    assert [parts[name].on_device for name in ("hidden units", "symbols")] == [28672 // 8, 128256 // 8]
    assert all(part.empty == 0 and part.copies == 1 for part in report.share.parts)
    weights = {weight.symbol: weight for weight in report.share.weights}
    assert weights["W_O"].shape == (64 * 128 // 8, 8192) == (1024, 8192)
    assert weights["W_V"].shape == (8192, 1, 128)
    assert report.share.imbalance == 1
    assert report.share.parameters == (70_553_706_496 - norms) // 8 + norms
    assert report.share.parameter_bytes == 4 * report.share.parameters
    assert report.optimizer_bytes == 2 * 4 * report.share.parameters + 2 * 4  # and two counts
    assert report.share.cache_bytes_per_token == 80 * 2 * (1 * 128) * 2
    assert report.share.parameters / report.parameters == pytest.approx(1 / 8, rel=1e-3)

    of = {(each.what, each.when): each for each in report.predicted}
    for what in ("attention", "MLP"):  # of each token 16 KiB a layer and pass
        for when in ("forward", "backward"):
            each = of[what, when]
            assert (each.kind, each.axis, each.devices, each.times) == ("all-reduce", "head", 8, 80)
            assert (each.numbers_per_token, each.bytes_per_token) == (8192, 16 * 1024)
    per_token = sum(each.bytes_per_token * each.times for (what, when), each in of.items() if when == "forward")
    assert per_token == 80 * 2 * 16 * 1024 + 16 * 1024 + 3 * 4  # and the embedding, and 3 numbers of 32 bits
    assert {each.axis for each in report.predicted} == {"head"}
    assert report.compiled is None and "8 devices" not in report.not_compiled


def test_gradients_over_the_data_axis_are_a_devices_own_parameters():
    loaded = load_run("llama3-8b", ["parallel.mesh={data: 64, head: 16}", "execution.accumulate=2"])
    report = mesh_report(loaded, lambda: None)
    assert "1024 devices" in report.not_compiled and report.compiled is None
    found = {(each.what, each.when): each for each in report.predicted}
    over_data = found["parameters", "gradient"]
    assert (over_data.axis, over_data.devices, over_data.times) == ("data", 64, 2)
    assert over_data.numbers == report.share.parameters
    # 8 key/value heads of 128 on 16 devices: 2 devices have each
    shared = found["shared key/value heads", "gradient"]
    assert (shared.axis, shared.devices, shared.numbers) == ("head", 2, 32 * 2 * 4096 * 128)
    parts = {part.name: part for part in report.share.parts}
    assert (parts["key/value heads"].on_device, parts["key/value heads"].copies) == (1, 2)
    tokens = 512 // 64 // 2 * 8192
    assert found["MLP", "forward"].tokens == tokens and found["MLP", "forward"].times == 2 * 32


def test_the_work_of_heads_of_unequal_rank():
    """Heads of 5 and 2 directions beside heads of 4 and 3: two rounds, of width 5 and 3, on both devices."""
    output = UNEQUAL | {"ranks": ((5, 3, 4, 2),)}
    model = ModelConfig.model_validate(
        {"d_model": 16, "n_layers": 1, "n_heads": 4, "context": 8, "head_output": output}
    )
    share = device_share(model, planned(model, Transformer(model, 31), Sizes(1, 2)))
    assert share.imbalance == 2 * (5 + 3) / (5 + 4 + 3 + 2)
    assert {weight.symbol: weight.shape for weight in share.weights}["A"] == (16, 5 + 3)
    uneven = run(1, 4, {"n_heads": 6, "d_head": 2}).model
    share = device_share(uneven, planned(uneven, Transformer(uneven, 31), Sizes(1, 4)))
    assert share.imbalance == 8 / 6
    assert [(part.on_device, part.empty) for part in share.parts] == [(2, 2), (2, 2), (16, 0), (8, 1)]


# Laws


@settings(max_examples=25)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 16), st.integers(1, 4))
def test_all_places_of_all_devices_are_the_parts_and_the_empty_ones(key_heads, group, devices, data):
    heads = key_heads * group
    devices = min(devices, heads)
    sizes = {"d_model": 8, "n_layers": 1, "context": 8, "n_heads": heads, "n_kv_heads": key_heads, "d_head": 2}
    model = ModelConfig.model_validate(sizes)
    share = device_share(model, planned(model, Transformer(model, 31), Sizes(data, devices)))
    for part in share.parts:
        assert part.on_device * devices == (part.all + part.empty) * part.copies
    assert share.imbalance >= 1


KINDS = ["standard", "dense", "none", "shared_basis", "identity_value"]
ORDERS = ["attend_then_write", "modify_then_attend", "mix_first"]


@pytest.mark.parametrize(("kind", "order"), [*itertools.product(KINDS, ORDERS), ("dynamic_rank", "attend_then_write")])
def test_one_device_has_everything_and_says_nothing(kind, order):
    rank = {"rank": 3} if kind in ("shared_basis", "dynamic_rank") else {}
    output = {"kind": kind, "order": order} | rank
    one = run(1, 1, GROUPED | {"head_output": output})
    transformer = Transformer(one.model, 256)
    here = planned(one.model, transformer, Sizes())
    share, cost = device_share(one.model, here), model_cost(one.model, 256)
    assert exchanges(one, here) == ()
    assert share.parameters == cost.parameters and share.imbalance == 1
    assert share.cache_bytes_per_token == 4 * sum(part.cache_numbers_per_token for part in cost.parts)
    # where each device has one of the heads, what is not of heads is on all of them
    two = device_share(one.model, planned(one.model, transformer, Sizes(1, 2)))
    assert share.cache_bytes_per_token / 2 <= two.cache_bytes_per_token <= share.cache_bytes_per_token


@pytest.mark.parametrize(
    "placed",
    [
        run(2, 4, GROUPED, optimizer={"momentum_dtype": "bfloat16"}, shard_optimizer=True),
        run(2, 3, {"n_heads": 4}, optimizer={"kind": "muon"}, shard_optimizer=True),
        run(1, 4, GROUPED | {"head_output": {"kind": "sparse", "density": 0.5}}),
    ],
    ids=["adamw", "muon", "masks"],
)
def test_a_device_holds_as_many_bytes_as_are_predicted(placed):
    program = make_program(placed, 31)
    state = program.placed(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), program.state_like()))

    def on_first(tree):
        return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))

    sizes = Sizes(placed.parallel.mesh.data, placed.parallel.mesh.head)
    here = planned(placed.model, program.transformer, sizes, placed.parallel.shard_optimizer)
    assert device_share(placed.model, here).parameter_bytes == on_first(state.params)
    assert optimizer_bytes(placed, here) == on_first(state.optimizer)
    assert exchanges(placed, here) == exchanges(placed, program.arrangement)


def test_arrays_that_xla_combined_are_told_apart_by_their_sources():
    source = "jit(f)/(transpose(jvp())/shard_map/psum:reduce_sum:vmap(jit(norm))/reduce_sum)"
    arrays = (ArrayShape("f32", (2, 3)), ArrayShape("f32", ()), ArrayShape("f32", (5,)))
    groups = ((0, 1), (2, 3))
    one = Collective("all-reduce", arrays, groups, ("head", "copy"), 2, source)
    assert sources(one) == [
        "jit(f)/transpose(jvp())/shard_map/psum", "jit(f)/reduce_sum", "jit(f)/vmap(jit(norm))/reduce_sum"
    ]  # fmt: skip
    predicted = Exchange("attention", "forward", "all-reduce", "head", 2, 6, 2, "bfloat16")
    model, update = compared([predicted], [one], apart=True)
    assert (model.group, model.numbers, model.predicted_numbers, model.ratio) == (
        ("model", "all-reduce", "head", 2), 12, 12, 1
    )  # fmt: skip
    assert (model.bytes, model.predicted_bytes) == (48, 24)
    assert (update.group.part, update.numbers, update.ratio) == ("update", 10, None)
    (step,) = compared([predicted], [one], apart=False)
    assert (step.group.part, step.numbers) == ("step", 22)
    whole = Collective("all-reduce", arrays, groups, None, None, "jit(f)/while(a)/psum")
    assert sources(whole) == ["jit(f)/while(a)/psum"] * 3
    assert [each.group.axis for each in compared([], [whole], apart=False)] == ["?"]


def test_the_report_as_data_has_the_same_keys_whatever_the_mesh():
    small, large = (mesh_data(mesh_report(run(1, head), None)) for head in (1, 2))
    assert small.keys() == large.keys()
    assert small["device"].keys() == large["device"].keys()
    assert large["axes"] == {"data": 1, "head": 2} and small["predicted"] == []
