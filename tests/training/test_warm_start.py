"""Runs that start from a trained run: the same function, or the nearest of a lower rank; and what is refused."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.examples import TEXT, config, final_state, metrics_bytes, saved_steps
from tests.training.programs import head_output
from wmresearch.config import ConfigError
from wmresearch.data import load_corpus
from wmresearch.reports.spectrum import read_spectrum
from wmresearch.training.evaluation import make_evaluator
from wmresearch.training.interruption import StopRequest
from wmresearch.training.loop import train
from wmresearch.training.program import make_program
from wmresearch.training.step import make_evaluate

WIDTH = 8
SHAPE = {"training": {"steps": 10, "diagnostics": False}, "optimizer__learning_rate": 0.03}


@pytest.fixture(scope="module", params=[2, 1], ids=["a value head for each", "a shared value head"])
def source(request, text, tmp_path_factory):
    """A trained standard run with biases: its folder, its config, its last parameters, what makes another like it."""
    shape = {"model__n_kv_heads": request.param}
    chosen = config(text, **SHAPE, **shape)
    path = tmp_path_factory.mktemp("source") / "run"
    train(chosen, path)
    return path, chosen, final_state(path, chosen).params, shape


def from_run(text, path, rank=WIDTH, **changes):
    output = {"kind": "factorized", "init": {"from": str(path)}}
    output |= {"ranks": rank} if isinstance(rank, list) else {"rank": rank}
    return config(text, **SHAPE, model__head_output=output, **changes)


def started(chosen):
    """The program of a config and the parameters that it starts from."""
    program = make_program(chosen, load_corpus(chosen.data).tokenizer.vocab_size)
    return program, program.initial_params()


def stacked(own):
    """A_k and [B_1 … B_g] of each key/value head."""
    a = own.get("factor_a", own.get("value"))
    b = own.get("factor_b", own.get("output")).reshape(2, a.shape[2], -1)
    group = 2 // a.shape[1]
    return [(a[:, k], np.concatenate(b[k * group : (k + 1) * group], axis=1)) for k in range(a.shape[1])]


def test_at_full_rank_it_is_the_same_function(source, text):
    path, of, trained, shape = source
    assert np.abs(head_output(trained)["value_bias"]).max() > 1e-3, "biases of what heads read have to be seen"
    program, params = started(from_run(text, path, **shape))
    given = make_program(of, 256)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 256, (3, 16)))
    one, other = (jax.jit(each.apply)(p, tokens, None) for each, p in ((program, params), (given, trained)))
    np.testing.assert_allclose(one, other, atol=1e-5)
    split = load_corpus(of.data).splits["validation"]
    losses = [
        make_evaluator(make_evaluate(each.nats), split, 16)(p).loss for each, p in ((program, params), (given, trained))
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    summary = json.loads((path / "summary.json").read_text())
    assert losses[0] == pytest.approx(summary["validation_loss"], abs=1e-6)


def test_at_a_lower_rank_the_maps_are_the_nearest_ones_and_all_else_is_as_it_was(source, text):
    path, of, trained, shape = source
    ranks = [3, 5][: of.model.kv_heads]
    _, params = started(from_run(text, path, [ranks], **shape))
    pairs = zip(stacked(head_output(trained)), stacked(head_output(params)), ranks, strict=True)
    for (a, b), (new_a, new_b), rank in pairs:
        u, s, vt = np.linalg.svd(a @ b, full_matrices=False)
        np.testing.assert_allclose(new_a @ new_b, u[:, :rank] * s[:rank] @ vt[:rank], atol=1e-6)
        np.testing.assert_allclose(new_a.T @ new_a, new_b @ new_b.T, atol=1e-6)
        assert not new_a[:, rank:].any() and not new_b[rank:].any()
    without = [jax.tree.map(lambda leaf: leaf, each) for each in (params, trained)]
    for each in without:
        each["blocks"][0]["attention"].pop("head_output")
    for one, other in zip(*map(jax.tree.leaves, without), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_run_of_another_type_starts_in_its_own(source, text):
    path, _, trained, shape = source
    single = stacked(head_output(trained))
    for dtype, tolerance in (("float64", 1e-6), ("bfloat16", 2e-2)):
        with jax.enable_x64(dtype == "float64"):
            _, params = started(from_run(text, path, model__param_dtype=dtype, **shape))
            assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(dtype)}
            for (a, b), (new_a, new_b) in zip(single, stacked(head_output(params)), strict=True):
                product = new_a.astype(np.float64) @ new_b.astype(np.float64)
                np.testing.assert_allclose(product, a @ b, atol=tolerance * np.abs(a @ b).max())


def another(text, path, shape, tmp_path):
    """Changes of a run that starts from `path` → words of the problem."""
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(path / "config.yaml", bare)
    other = tmp_path / "other.txt"
    other.write_text(TEXT.replace("x", "y"), encoding="utf-8")
    here = from_run
    return [
        (here(text, tmp_path / "none", **shape), ["init.run", "none", "config.yaml"]),
        (here(text, bare, **shape), ["init.run", "a run with a checkpoint", "it has none"]),
        (here(text, path, data__tokenizer={"kind": "char"}, **shape), ["data.tokenizer", "char"]),
        (here(text, path, model__d_model=32, **shape), ["d_model is 16 there and 32 here", "d_head"]),
        (here(text, path, model__mlp="relu", **shape), ["mlp is gelu there and relu here"]),
        (here(text, path, model__n_layers=2, **shape), ["n_layers is 1 there and 2 here"]),
        (here(text, path, model__n_heads=4, **shape), ["n_heads is 2 there and 4 here"]),
        (here(text, path, 9, **shape), ["rank 9", "ranks of at most 8"]),
        (here(text, path, **shape, model__bias=False), ["bias is true there and false here"]),
    ]


def test_a_run_that_does_not_fit_is_refused_before_anything_is_written(source, text, tmp_path):
    path, _, _, shape = source
    before = {item: item.stat().st_mtime_ns for item in path.rglob("*")}
    for chosen, words in another(text, path, shape, tmp_path):
        with pytest.raises(ConfigError) as caught:
            train(chosen, tmp_path / "runs" / "run")
        assert all(word in str(caught.value) for word in words), (words, str(caught.value))
        assert not (tmp_path / "runs").exists()
    output = {"kind": "factorized", "rank": 3, "init": {"from": str(path), "step": 7}}
    with pytest.raises(ConfigError, match=r"a run with a checkpoint at step 7(.|\n)*it has 10"):
        train(config(text, **SHAPE, model__head_output=output, **shape), tmp_path / "runs" / "run")
    output = {"kind": "factorized", "rank": 3, "bias": False, "init": {"from": str(path)}}
    with pytest.raises(ConfigError, match="a run without biases in its head output"):
        train(config(text, **SHAPE, model__head_output=output, **shape), tmp_path / "runs" / "run")
    assert not (tmp_path / "runs").exists() and not (tmp_path / "bare" / "checkpoints").exists()
    assert {item: item.stat().st_mtime_ns for item in path.rglob("*")} == before


def test_a_started_run_goes_on_without_the_run_that_it_came_from(text, tmp_path):
    """Characters are numbered by the corpus: another one is refused."""
    characters = {"data__tokenizer": {"kind": "char"}}
    given = tmp_path / "given"
    train(config(text, **SHAPE, **characters), given)
    (tmp_path / "other.txt").write_text(TEXT.replace("def", "fed"), encoding="utf-8")
    with pytest.raises(ConfigError, match="a run on the same corpus"):
        train(from_run(tmp_path / "other.txt", given, **characters), tmp_path / "run")
    chosen = from_run(text, given, 3, **characters, training__steps_per_dispatch=4)
    train(chosen, tmp_path / "whole")
    of_given, at_start = (read_spectrum(tmp_path / name) for name in ("given", "whole"))
    begun = at_start.initial.singular_values
    np.testing.assert_allclose(begun, of_given.trained.singular_values[..., :3], rtol=1e-2)
    stop = StopRequest()

    def report(progress):
        if progress.message == "training" and progress.step == 4:
            stop.signal = "SIGTERM"

    assert train(chosen, tmp_path / "run", report=report, stop=stop)["state"] == "preempted"
    assert 0 < saved_steps(tmp_path / "run")[-1] < 10
    shutil.rmtree(given)
    assert train(chosen, tmp_path / "run")["state"] == "finished"
    assert metrics_bytes(tmp_path / "run") == metrics_bytes(tmp_path / "whole")
