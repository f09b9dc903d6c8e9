"""What a run measures of its heads' maps: against numpy on its checkpoints, and that it changes nothing else."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.head_output.test_orders import CASES, NAMES
from tests.training.examples import config, final_state, metrics_bytes
from tests.training.programs import DOUBLE, drawn, program
from wmresearch.training.checkpoints import open_checkpoints
from wmresearch.training.diagnostics import effective_decay, make_diagnostics, make_measure
from wmresearch.training.interruption import StopRequest
from wmresearch.training.loop import train
from wmresearch.training.program import make_program
from wmresearch.training.run_directory import RunDirectory

STATISTICS = {
    "effective_rank", "stable_rank", "r95", "nuclear_norm", "frobenius_norm", "spectral_norm", "imbalance", "overlap",
    "copying",
}  # fmt: skip
SHAPE = {
    "model__n_layers": 2, "model__n_kv_heads": 1, "model__head_output": {"kind": "factorized", "rank": 3},
    "training__steps": 12, "training__evaluate_every": 5, "training__checkpoint_every": 5, "training__keep": 9,
    "optimizer__weight_decay": 0.1, "optimizer__decay_of": {"head_output": 0.3},
}  # fmt: skip


@pytest.fixture(scope="module")
def run(text, tmp_path_factory):
    path = tmp_path_factory.mktemp("diagnostics") / "run"
    chosen = config(text, **SHAPE)
    train(chosen, path)
    return path, chosen


def by_hand(params, layer):
    """The maps of a layer's two heads as whole matrices, and the factors with the norm's gain."""
    block = params["blocks"][layer]
    own = jax.tree.map(lambda leaf: np.asarray(leaf, float), block["attention"]["head_output"])
    gain = np.asarray(block["attention_norm"]["gain"], float)[:, None]
    factors = [(gain * own["factor_a"][:, 0], own["factor_b"][head]) for head in range(2)]
    return [a @ b for a, b in factors], factors


def parameters_at(path, chosen, step):
    like = make_program(chosen, 256).state_like().params
    with open_checkpoints(path / "checkpoints") as checkpoints:
        return checkpoints.restore_params(like, step)


def test_there_is_a_line_before_the_first_step_and_one_for_each_evaluation(run):
    path, _ = run
    lines = RunDirectory(path).diagnostics()
    assert [line["step"] for line in lines] == [0, 5, 10, 12]
    assert {name.name for name in (path / "spectra").iterdir()} == {f"{step:08d}.npz" for step in (0, 5, 10, 12)}
    for line in lines:
        assert line.keys() == STATISTICS | {"step"} | ({"lambda_eff"} if line["step"] else set())
        assert all(np.shape(line[name]) == (2, 2) for name in STATISTICS)


@pytest.mark.parametrize("step", [5, 12])
def test_statistics_are_those_of_the_checkpoints_maps(run, step):
    path, chosen = run
    params = parameters_at(path, chosen, step)
    line = next(line for line in RunDirectory(path).diagnostics() if line["step"] == step)
    arrays = np.load(path / "spectra" / f"{step:08d}.npz")
    spectra, cosines = arrays["singular_values"], arrays["cosines"]
    embedding = np.asarray(params["embedding"], float)
    for layer in range(2):
        maps, factors = by_hand(params, layer)
        inner = np.sum(maps[0] * maps[1]) / np.linalg.norm(maps[0]) / np.linalg.norm(maps[1])
        np.testing.assert_allclose(cosines[layer], [[1, inner], [inner, 1]], rtol=2e-3, atol=1e-5)
        for head, (whole, (a, b)) in enumerate(zip(maps, factors, strict=True)):
            found = {name: line[name][layer][head] for name in STATISTICS}
            s = np.linalg.svd(whole, compute_uv=False)[:3]
            np.testing.assert_allclose(spectra[layer, head], s, rtol=1e-4, atol=1e-7)
            p = s / s.sum()
            grams = a.T @ a, b @ b.T
            values = np.linalg.eigvals(embedding @ whole @ embedding.T)
            expected = {
                "effective_rank": np.exp(-np.sum(p * np.log(p))),
                "stable_rank": np.sum(s**2) / s[0] ** 2,
                "r95": 1 + np.argmax(np.cumsum(s**2) >= 0.95 * np.sum(s**2)),
                "nuclear_norm": s.sum(), "frobenius_norm": np.linalg.norm(whole), "spectral_norm": s[0],
                "imbalance": np.linalg.norm(grams[0] - grams[1]) / sum(map(np.linalg.norm, grams)),
                "overlap": abs(inner), "copying": values.real.sum() / np.abs(values).sum(),
            }  # fmt: skip
            assert found == pytest.approx(expected, rel=2e-3, abs=1e-5)


def test_the_effective_decay_is_wd_times_the_root_of_the_corrected_second_moment(run):
    path, chosen = run
    state = final_state(path, chosen)
    moments = state.optimizer[2].nu["blocks"]
    for layer in range(2):
        own = moments[layer]["attention"]["head_output"]
        entries = np.concatenate([np.asarray(own[name], float).ravel() for name in ("factor_a", "factor_b")])
        expected = 0.3 * np.sqrt(entries / (1 - 0.95**12)).mean()
        assert RunDirectory(path).diagnostics()[-1]["lambda_eff"][layer] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    "changes", [{"optimizer__decay": "gradient"}, {"optimizer__kind": "muon"}, {"optimizer__weight_decay": 0.0}]
)
def test_there_is_an_effective_decay_only_of_decoupled_decay_under_adam(changes):
    chosen = program(**changes)
    measure = effective_decay(chosen.config, chosen.transformer)
    found = measure(jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), chosen.state_like()), {})
    assert jax.tree.map(list, found) == ({"lambda_eff": [0.0]} if "optimizer__weight_decay" in changes else {})


def test_without_diagnostics_all_else_is_the_same(run, text, tmp_path):
    """And what is measured does not depend on how many steps a dispatch makes."""
    path, _ = run
    train(config(text, **SHAPE, training__diagnostics=False), tmp_path / "off")
    assert metrics_bytes(tmp_path / "off") == metrics_bytes(path)
    assert not (tmp_path / "off" / "diagnostics.jsonl").exists() and not (tmp_path / "off" / "spectra").exists()
    train(config(text, **SHAPE, training__steps_per_dispatch=1), tmp_path / "one")
    files = ["diagnostics.jsonl", *(f"spectra/{step:08d}.npz" for step in (0, 5, 10, 12))]
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (path / name).read_bytes(), name


class BrokenOffError(Exception):
    pass


def test_a_run_that_goes_on_writes_each_line_once(run, text, tmp_path):
    """Broken off before its first checkpoint, and between an evaluation and the end."""
    path, _ = run
    chosen = config(text, **SHAPE | {"training__checkpoint_every": 9})

    def break_off(progress):
        if progress.message == "training":
            raise BrokenOffError

    with pytest.raises(BrokenOffError):
        train(chosen, tmp_path, report=break_off)
    assert [line["step"] for line in RunDirectory(tmp_path).diagnostics()] == [0]

    def after_the_last_checkpoint(progress):
        if progress.message == "evaluated" and progress.step == 10:
            (tmp_path / "spectra" / "00000011.npz").touch()
        if progress.message == "training" and progress.step == 12:
            raise BrokenOffError

    with pytest.raises(BrokenOffError):
        train(chosen, tmp_path, report=after_the_last_checkpoint)
    assert [line["step"] for line in RunDirectory(tmp_path).diagnostics()] == [0, 5, 10]
    assert train(chosen, tmp_path, stop=StopRequest())["state"] == "finished"
    assert (tmp_path / "diagnostics.jsonl").read_bytes() == (path / "diagnostics.jsonl").read_bytes()
    assert {item.name for item in (tmp_path / "spectra").iterdir()} == {
        item.name for item in (path / "spectra").iterdir()
    }
    assert metrics_bytes(tmp_path) == metrics_bytes(path)


@pytest.mark.parametrize(("kind", "setting"), CASES, ids=NAMES)
def test_every_kind_of_head_output_can_be_measured(kind, setting):
    chosen = program(
        model__d_model=16, model__n_heads=4, model__n_kv_heads=2, model__n_layers=2,
        model__head_output={"kind": kind, **setting},
    )  # fmt: skip
    found = jax.eval_shape(make_measure(chosen.transformer), chosen.state_like().params)  # compiling is slow
    of_gates = {"rank", "gate"} if kind == "dynamic_rank" else set()
    assert found.keys() == STATISTICS | {"singular_values", "cosines"} | of_gates
    assert all(values.shape[:2] == (2, 4) for values in found.values())


def test_maps_of_unequal_rank_are_measured_as_they_are():
    """Another rank in each layer and head: the singular values beyond it are zeros."""
    with jax.enable_x64(True):
        chosen = program(
            **DOUBLE, model__n_layers=2, model__head_output={"kind": "factorized", "ranks": [[3, 1], [1, 1]]}
        )
        params = drawn(chosen)
        first = params["blocks"][0]["attention"]["head_output"]
        first["factor_a"] = first["factor_a"].at[:, 1, 1:].set(0)
        found = make_diagnostics(chosen.transformer)(params)
        assert found["singular_values"].shape == (2, 2, 3)
        ranks = (found["singular_values"] > 1e-12).sum(axis=-1)
        assert ranks.tolist() == [[3, 1], [1, 1]]
        assert all(np.isfinite(values).all() for values in found.values())
        json.dumps({name: values.tolist() for name, values in found.items()})
