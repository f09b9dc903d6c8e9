"""Whole runs in this process: their files, their determinism, how they end."""

import json
import math
import os
import shutil
import signal

import jax
import numpy as np
import pytest

from tests.training.examples import config, final_state, metrics_bytes, same, saved_steps
from wmresearch.config import ConfigError, run_id, yaml_text
from wmresearch.config.training import MeshConfig
from wmresearch.data import load_corpus
from wmresearch.training.interruption import StopRequest
from wmresearch.training.loop import train
from wmresearch.training.run_directory import RunDirectory, RunLabels
from wmresearch.training.run_lock import RunBusyError

OPTIMIZED = True

SUMMARY = {
    "run_id", "sweep", "arm", "role", "settings", "seed", "state", "reason", "failure", "step", "train_loss",
    "validation_loss",
    "best_validation_loss", "test_loss", "bits_per_byte", "recall_accuracy", "induction_accuracy", "induction_gain",
    "learning_rate", "corpus_digest", "parameters", "head_output_parameters", "head_output_nonzeros", "total_rank",
    "masked_dense", "flops_per_token", "training_flops", "tokens_per_second", "wall_seconds",
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    """A finished run: its directory, its config, what `train` returned."""
    path = tmp_path_factory.mktemp("finished") / "run"
    chosen = config(text, training__checkpoint_every=5)
    return path, chosen, train(chosen, path)


def stop_at(*steps):
    """A report that sends this process SIGTERM as soon as a run has come to each of these steps."""
    left = list(steps)

    def report(progress):
        if left and progress.message == "training" and progress.step >= left[0]:
            left.pop(0)
            os.kill(os.getpid(), signal.SIGTERM)

    return report


def test_a_finished_run_has_all_its_files_and_they_agree(finished):
    path, chosen, summary = finished
    names = {item.name for item in path.iterdir()} - {".lock"}
    files = {"config.yaml", "metrics.jsonl", "timing.jsonl", "status.json", "summary.json", "manifest.json"}
    assert names == files | {"tasks.json", "checkpoints", "checkpoint_sums", "diagnostics.jsonl", "spectra"}
    assert summary == json.loads((path / "summary.json").read_text(encoding="utf-8"))
    assert summary.keys() == SUMMARY
    corpus = load_corpus(chosen.data)
    expected = {
        "run_id": run_id(chosen, corpus.digest), "sweep": None, "arm": None, "role": "report", "settings": {},
        "seed": 0, "state": "finished", "reason": None, "step": 20, "learning_rate": 1e-2,
        "corpus_digest": corpus.digest,
    }  # fmt: skip
    assert summary | expected == summary
    state = final_state(path, chosen)
    assert summary["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(state.params))
    head_output = state.params["blocks"][0]["attention"]["head_output"]
    assert summary["head_output_parameters"] == sum(leaf.size for leaf in jax.tree.leaves(head_output))
    assert summary["tokens_per_second"] > 0 and summary["wall_seconds"] > 0 and summary["flops_per_token"] > 0
    assert yaml_text.read(path / "config.yaml") == chosen.model_dump(mode="json")
    status, manifest = (json.loads((path / name).read_text()) for name in ("status.json", "manifest.json"))
    assert (status["state"], status["step"], status["steps"]) == ("finished", 20, 20)
    assert manifest["corpus_digest"] == corpus.digest and manifest["run_id"] == summary["run_id"]
    assert saved_steps(path) == [15, 20], "the newest two"


def test_logs_and_evaluations_stand_at_their_exact_steps_and_the_summary_is_the_last_of_them(finished):
    path, _, summary = finished
    lines = RunDirectory(path).metrics()
    training = [line for line in lines if "train_loss" in line]
    evaluated = [line for line in lines if "validation_loss" in line]
    assert [line["step"] for line in training] == [1, 6, 12, 18, 20]
    assert [line["step"] for line in evaluated] == [8, 16, 20]
    assert len(lines) == 8 and [line["step"] for line in lines] == sorted(line["step"] for line in lines)
    assert all(line.keys() == {"step", "train_loss", "gradient_norm", "learning_rate"} for line in training)
    assert all(line.keys() == {"step", "validation_loss", "bits_per_byte"} for line in evaluated)
    assert summary["train_loss"] == training[-1]["train_loss"]
    assert summary["validation_loss"] == evaluated[-1]["validation_loss"]
    assert summary["bits_per_byte"] == evaluated[-1]["bits_per_byte"]
    assert summary["best_validation_loss"] == min(line["validation_loss"] for line in evaluated)
    assert summary["best_validation_loss"] < math.log(256) - 0.5, "it has learned something"
    assert summary["test_loss"] not in (None, summary["validation_loss"])


@pytest.mark.parametrize("per_dispatch", [1, 7])
def test_a_result_does_not_depend_on_how_many_steps_a_dispatch_makes(per_dispatch, finished, text, tmp_path):
    path, chosen, summary = finished
    again = train(config(text, training__steps_per_dispatch=per_dispatch), tmp_path)
    assert metrics_bytes(tmp_path) == metrics_bytes(path)
    assert same(final_state(tmp_path, chosen), final_state(path, chosen))
    times = {"tokens_per_second", "wall_seconds"}
    assert {key: again[key] for key in SUMMARY - times} == {key: summary[key] for key in SUMMARY - times}


def test_a_finished_run_is_not_run_again(finished):
    path, chosen, summary = finished
    before = {item: item.stat().st_mtime_ns for item in path.rglob("*")}
    assert train(chosen, path) == summary
    assert {item: item.stat().st_mtime_ns for item in path.rglob("*")} == before


def test_the_directory_of_another_run_is_refused_with_what_differs(finished, text):
    path, _, summary = finished
    before = {item: item.stat().st_mtime_ns for item in path.rglob("*")}
    other = config(text, optimizer__learning_rate=0.5, seed=7, training__log_every=3, model__head_output={
        "kind": "factorized", "rank": 3,
    })  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        train(other, path)
    first, *keys = caught.value.problems
    assert first.source == str(path) and summary["run_id"] in first.value and "--dir" in first.hint
    assert {(problem.path, problem.value, problem.expected) for problem in keys} == {
        ("model.head_output.kind", "standard", "factorized for this run"),
        ("model.head_output.rank", "null", "3 for this run"),
        ("optimizer.learning_rate", "0.01", "0.5 for this run"),
        ("seed", "0", "7 for this run"),
    }
    assert {item: item.stat().st_mtime_ns for item in path.rglob("*")} == before


def test_fresh_moves_the_old_folder_aside_and_starts_anew(finished, tmp_path):
    old, chosen, _ = finished
    path = tmp_path / "run"
    shutil.copytree(old, path)
    (path / "mine.txt").write_text("notes", encoding="utf-8")
    assert train(chosen, path, fresh=True)["state"] == "finished"
    assert metrics_bytes(path) == metrics_bytes(old)
    assert not (path / "mine.txt").exists()
    assert (tmp_path / "run.old-1" / "mine.txt").exists()
    assert not RunDirectory(tmp_path / "nothing there").set_aside()


def test_a_fresh_start_that_is_refused_moves_nothing(finished, tmp_path):
    old, chosen, _ = finished
    path = tmp_path / "run"
    shutil.copytree(old, path)
    parallel = chosen.parallel.model_copy(update={"mesh": MeshConfig(data=64)})
    with pytest.raises(ConfigError, match="data 64 × head 1"):
        train(chosen.model_copy(update={"parallel": parallel}), path, fresh=True)
    with RunDirectory(path).locked(), pytest.raises(RunBusyError):
        train(chosen, path, fresh=True)
    assert [folder.name for folder in tmp_path.iterdir()] == ["run"]
    assert metrics_bytes(path) == metrics_bytes(old)


def test_another_text_is_another_run(finished, tmp_path):
    path, _, _ = finished
    (tmp_path / "text.txt").write_text("something else " * 100, encoding="utf-8")
    with pytest.raises(ConfigError, match="the corpus has changed since"):
        train(config(tmp_path / "text.txt"), path)


def test_a_run_that_was_stopped_twice_ends_as_one_that_was_not(finished, text, tmp_path):
    """Bit for bit, dropout included, with nothing saved but what the stops saved."""
    chosen = config(text, model__dropout=0.2)
    whole = train(chosen, tmp_path / "whole")
    stopped = train(chosen, tmp_path / "stopped", report=stop_at(4))
    assert (stopped["state"], stopped["test_loss"]) == ("preempted", None)
    assert stopped["reason"] == "stopped by SIGTERM; start again to go on"
    assert saved_steps(tmp_path / "stopped") == [stopped["step"]] and 4 <= stopped["step"] < 12
    again = train(chosen, tmp_path / "stopped", report=stop_at(stopped["step"] + 1))
    assert again["state"] == "preempted" and stopped["step"] < again["step"] < 20
    assert again["wall_seconds"] > stopped["wall_seconds"]
    last = train(chosen, tmp_path / "stopped")
    assert last["state"] == "finished"
    assert metrics_bytes(tmp_path / "stopped") == metrics_bytes(tmp_path / "whole")
    assert same(final_state(tmp_path / "stopped", chosen), final_state(tmp_path / "whole", chosen))
    for key in ("validation_loss", "best_validation_loss", "test_loss", "train_loss", "bits_per_byte", "step"):
        assert last[key] == whole[key], key
    assert whole["validation_loss"] != finished[2]["validation_loss"], "dropout has no effect"


def test_a_stop_that_was_asked_for_before_the_first_step_is_heeded(text, tmp_path):
    summary = train(config(text), tmp_path, stop=StopRequest("SIGINT"))
    assert (summary["state"], summary["step"]) == ("preempted", None)
    assert not (tmp_path / "metrics.jsonl").exists() or not metrics_bytes(tmp_path)


def test_handlers_of_signals_are_left_as_they_were(finished):
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_that_diverges_says_so_and_where_and_is_over(text, tmp_path):
    chosen = config(text, optimizer__learning_rate=1e25, optimizer__clip_norm=None)
    summary = train(chosen, tmp_path)
    assert summary["state"] == "diverged"
    assert summary["reason"].startswith(f"not finite at step {summary['step']}: ")
    assert summary["step"] < 20 and summary["test_loss"] is None
    last = RunDirectory(tmp_path).metrics()[-1]
    assert last["step"] == summary["step"] and None in last.values()
    before = (tmp_path / "summary.json").stat().st_mtime_ns
    assert train(chosen, tmp_path)["state"] == "diverged"
    assert (tmp_path / "summary.json").stat().st_mtime_ns == before


def test_a_run_that_breaks_off_says_why_and_can_be_started_again(finished, text, tmp_path):
    path, chosen, _ = finished
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(IsADirectoryError):
        train(chosen, tmp_path)
    summary = RunDirectory(tmp_path).summary()
    assert summary["state"] == "failed" and summary.keys() == SUMMARY
    assert summary["reason"].startswith("IsADirectoryError: [Errno 21]") and "metrics.jsonl" in summary["reason"]
    assert RunDirectory(tmp_path).status()["state"] == "failed"
    error = (tmp_path / "error.txt").read_text(encoding="utf-8")
    assert error.startswith("Traceback") and "IsADirectoryError" in error
    (tmp_path / "metrics.jsonl").rmdir()
    assert train(chosen, tmp_path)["state"] == "finished"
    assert not (tmp_path / "error.txt").exists()
    assert metrics_bytes(tmp_path) == metrics_bytes(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data__corpus": {"kind": "text", "path": "no/such/file"}}, "no/such/file"),
        ({"model__context": 100_000}, "since the train split has"),
    ],
    ids=["no corpus", "context"],
)
def test_a_wrong_request_leaves_nothing_behind(changes, words, text, tmp_path):
    with pytest.raises(ConfigError, match=words):
        train(config(text, **changes), tmp_path / "runs" / "run")
    assert not (tmp_path / "runs").exists()


def test_a_planned_run_whose_text_has_changed_is_refused(text, tmp_path):
    with pytest.raises(ConfigError, match="has changed since the sweep was planned"):
        train(config(text), tmp_path / "run", RunLabels("0123456789ab"))
    assert not (tmp_path / "run").exists()


def test_a_float64_run_is_float64_throughout(finished, text, tmp_path):
    _, _, single = finished
    chosen = config(text, model__dtype="float64", model__param_dtype="float64")
    summary = train(chosen, tmp_path)
    state = final_state(tmp_path, chosen)
    for leaf in jax.tree.leaves((state.params, state.optimizer)):
        if np.issubdtype(leaf.dtype, np.floating):
            assert leaf.dtype == np.float64
            if leaf.size > 16:  # and it has digits that float32 does not have
                assert (np.asarray(leaf) != np.asarray(leaf).astype(np.float32)).any()
    assert summary["train_loss"] != float(np.float32(summary["train_loss"]))
    assert summary["validation_loss"] != single["validation_loss"]
    assert summary["train_loss"] == pytest.approx(single["train_loss"], abs=0.5)


LLAMA = {
    "model__norm": "rmsnorm", "model__positions": {"kind": "rope"}, "model__mlp": "swiglu", "model__bias": False,
    "model__tie_embeddings": False, "model__n_heads": 4, "model__n_kv_heads": 2,
}  # fmt: skip


def test_the_other_style_of_model_trains_in_half_precision(text, tmp_path):
    """Rotary positions, grouped heads, factorized maps, bfloat16, a linear schedule, a seed beyond 31 bits."""
    factorized = {"kind": "factorized", "rank": 3}
    chosen = config(
        text, **LLAMA, model__dtype="bfloat16", model__head_output=factorized, seed=2**31,
        optimizer__schedule={"kind": "linear"}, training={"steps": 4, "log_every": 1, "steps_per_dispatch": 4},
    )  # fmt: skip
    summary = train(chosen, tmp_path)
    assert summary["state"] == "finished"
    lines = RunDirectory(tmp_path).metrics()
    losses = [line["train_loss"] for line in lines if "train_loss" in line]
    assert len(losses) == 4 and losses[0] > losses[-1] > 0
    assert 0 < summary["validation_loss"] < losses[0]


def test_seeds_make_different_runs(finished, text, tmp_path):
    _, _, summary = finished
    other = train(config(text, seed=2**32 - 1), tmp_path)
    assert other["run_id"] != summary["run_id"]
    assert other["validation_loss"] != summary["validation_loss"]
