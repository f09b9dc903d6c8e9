"""`wm bench`: figures that belong together, and a program that needs no second copy of its state."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.sweeps.mini import wm
from tests.training.examples import TEXT, config, tiny
from wmresearch.model.cost import model_cost
from wmresearch.reports.bench import bench, bench_listing, model_flops_per_step
from wmresearch.training.program import make_program
from wmresearch.training.step import make_dispatch

KEYS = {
    "step_ms", "tokens_per_second", "matmul_gflops", "model_flops_per_step", "share_of_matmul_rate", "compile_seconds",
    "peak_memory_bytes", "device",
}  # fmt: skip


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_the_command_writes_figures_that_belong_together(text, tmp_path, capfd):
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(tiny(text)), encoding="utf-8")  # JSON is YAML
    code, out, _ = wm(capfd, "bench", path, "model.n_layers=2", "--rounds", 2, "--json")
    found = json.loads(out)
    assert code == 0
    assert found.keys() == KEYS
    tokens = 4 * 16
    assert found["tokens_per_second"] == pytest.approx(tokens / found["step_ms"] * 1e3)
    rate = found["matmul_gflops"] * 1e9
    assert found["share_of_matmul_rate"] == pytest.approx(found["model_flops_per_step"] / found["step_ms"] * 1e3 / rate)
    assert found["compile_seconds"] > 0 and found["peak_memory_bytes"] > 0 and "cpu" in found["device"].lower()
    assert "tokens/s" in bench_listing(found, 1234) and "1,234" in bench_listing(found, 1234)


def test_model_flops_are_six_a_parameter_and_token_and_causal_attention_at_half(text):
    chosen = config(text, model__bias=False, model__context=16)
    d, t, vocab = 16, 16, 256
    in_products = 4 * d * d + 8 * d * d + d * vocab  # of one layer, and of the logits
    attention = 2 * d * t / 2 * 2
    assert model_flops_per_step(chosen, vocab) == 3 * 4 * t * (2 * in_products + attention)
    assert model_cost(chosen.model, vocab).training_flops_per_token > 6 * in_products


def test_a_dispatch_holds_its_state_once(text):
    """Donated: every array of the state lies where it lay before."""
    program = make_program(config(text), 256)
    state, tokens = program.initial_state(), jnp.zeros((4, 4, 17), jnp.int32)
    compiled = make_dispatch(program.step, 4).lower(state, tokens, 4, program.given()).compile()
    own = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert compiled.memory_analysis().alias_size_in_bytes == own
    places = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state) if leaf.ndim}
    after, _ = compiled(state, tokens, 4, program.given())
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(after) if leaf.ndim} == places
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.params))


def test_rounds_are_reported(text):
    said = []
    bench(config(text), 1, said.append)
    assert said[0] == "compiling" and said[-1] == "round 1 of 1"
