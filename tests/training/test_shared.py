"""Runs trained together by one program: each is what it is alone."""

import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import jax
import pytest

from tests.training.examples import config, final_state, same
from wmresearch.config.traced import numbers, program_key, with_numbers
from wmresearch.data import load_corpus, training_stream
from wmresearch.training import loop
from wmresearch.training.interruption import UNWAITED, StopRequest
from wmresearch.training.loop import train
from wmresearch.training.shared import Shared
from wmresearch.training.stage import Stages

PENALIZED = {
    "model__head_output": {"kind": "factorized", "rank": 3},
    "model__dropout": 0.1,
    "optimizer__frobenius_decay": 0.01,
    "optimizer__decay_of": {"mlp": 0.3},
    "penalties": [
        {"kind": "nuclear", "strength": 0.1, "step": "proximal"},
        {"kind": "head_overlap", "strength": 0.2, "every": 2},
        {"kind": "frobenius", "target": {"value": 2.0}},
    ],
}
CASES = {
    "AdamW": {},
    "penalties": PENALIZED,
    "Muon": {"optimizer__kind": "muon", "optimizer__adam_learning_rate": 3e-3},
    "found ranks": {
        "model__head_output": {
            "kind": "dynamic_rank", "rank": 4, "total_rank": 5, "compact_at": [8], "fine_tune_steps": 6,
            "method": {"kind": "hard_concrete"},
        }
    },
    "exchanged masks": {
        "model__head_output": {"kind": "sparse", "density": 0.4, "method": {"kind": "rigl", "every": 3}},
    },
}  # fmt: skip


def members(text, **changes):
    """Runs that differ in seed, learning rate, decay, and schedule."""
    rates = [(0, 1e-2, 0.1, 3), (1, 3e-3, 0.1, 5), (2, 1e-2, 0.5, 3), (3, 3e-2, 0.2, 2)]
    return [
        config(
            text, **changes, seed=seed, optimizer__learning_rate=rate, optimizer__weight_decay=decay,
            optimizer__schedule={"kind": "cosine", "warmup": warmup, "final": 0.1 * (seed + 1)},
        )
        for seed, rate, decay, warmup in rates
    ]  # fmt: skip


def train_side_by_side(runs, folder, shared):
    """Trains runs on a thread each, with common programs; returns their summaries."""
    found = {}

    def work(index, run):
        try:
            found[index] = train(run, folder / str(index), stop=StopRequest(), programs=shared)
        finally:
            shared.leave()

    threads = [threading.Thread(target=work, args=item) for item in enumerate(runs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[index] for index in range(len(runs))]


@pytest.mark.parametrize("case", CASES)
def test_a_member_has_the_bits_of_the_run_alone(case, text, tmp_path):
    runs = members(text, **CASES[case])
    shared = Shared(4, 4)
    together = train_side_by_side(runs, tmp_path / "together", shared)
    for index in (1, 3):
        folder = tmp_path / "together" / str(index)
        alone = train(runs[index], tmp_path / "alone" / str(index))
        timing = ("wall_seconds", "tokens_per_second")
        assert {k: v for k, v in together[index].items() if k not in timing} == {
            k: v for k, v in alone.items() if k not in timing
        }
        for name in ("metrics.jsonl", "diagnostics.jsonl"):
            assert (folder / name).read_bytes() == (tmp_path / "alone" / str(index) / name).read_bytes(), name
        if case != "found ranks":  # of a shape that the config does not say
            assert same(final_state(folder, runs[index]), final_state(tmp_path / "alone" / str(index), runs[index]))
    losses = [summary["validation_loss"] for summary in together]
    assert len(set(losses)) == 4, "the numbers and seeds are the members' own"
    manifest = json.loads((tmp_path / "together" / "0" / "manifest.json").read_text())
    assert manifest["cohort"] == {"runs": 4, "side_by_side": 4, "batching": "map"}


def test_a_batched_cohort_rounds_otherwise_and_no_more(text, tmp_path):
    for precision, steps, tolerance in (("float32", 10, 1e-5), ("float64", 60, 1e-9)):
        types = {"model__dtype": precision, "model__param_dtype": precision}
        runs = members(text, **types, training__steps=steps, training__log_every=1)
        folder = tmp_path / precision
        together = train_side_by_side(runs, folder, Shared(4, 4, "vmap"))
        assert [summary["state"] for summary in together] == ["finished"] * 4
        for index in (1, 3):
            train(runs[index], folder / "alone" / str(index))
            want, got = (
                [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
                for path in (folder / "alone" / str(index), folder / str(index))
            )
            assert len(got) == len(want)
            for one, other in zip(got, want, strict=True):
                assert one == pytest.approx(other, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("batching", ["map", "vmap"])
def test_a_member_that_diverges_or_is_done_takes_no_other_with_it(batching, text, tmp_path):
    runs = members(text, optimizer__clip_norm=None)
    runs[1] = config(text, optimizer__clip_norm=None, seed=1, optimizer__learning_rate=1e25)
    assert program_key(runs[1]) == program_key(runs[0])
    train(runs[2], tmp_path / "2")
    together = train_side_by_side(runs, tmp_path, Shared(4, 4, batching))
    assert [summary["state"] for summary in together] == ["finished", "diverged", "finished", "finished"]
    assert together[1]["failure"] == "diverged"


@pytest.mark.parametrize("case", ["AdamW", "penalties", "found ranks", "exchanged masks"])
def test_what_is_compiled_ahead_is_what_is_called(case, text):
    run = config(text, **CASES[case], training__tasks=True, training__diagnostics=True)
    corpus = load_corpus(run.data)
    stage = Stages(run, corpus).of(run.model)
    ahead = list(stage.ahead())
    assert len(ahead) == 5 + (stage.test is not None)
    for compile_one in ahead:
        compile_one()
    program = stage.program
    given, tokens = program.given(), program.batches(training_stream(run, corpus), 0, 2, stage.room)
    compiled = []

    def listen(event, _, fun_name="", **about):
        if event.endswith("backend_compile_duration"):
            compiled.append(fun_name)

    def noticed(x):
        return x + 1

    jax.monitoring.register_event_duration_secs_listener(listen)
    state, _ = stage.dispatch(program.start(), tokens, 2, given)
    for score in (stage.measure, stage.validate, stage.test):
        assert score is None or score(state.params)
    stage.decay(state, given.numbers)
    stage.tasks(state.params, 0)
    jax.jit(noticed)(state.step)
    jax.monitoring.unregister_event_duration_listener(listen)
    assert "jit(noticed)" in compiled
    assert not [name for name in compiled if re.search(r"dispatch|measure|evaluate|batches", name)]


@pytest.mark.parametrize("side_by_side", [1, 2])
def test_a_stage_is_compiled_ahead_once_and_only_where_runs_are_side_by_side(side_by_side, text, monkeypatch):
    begun = []
    monkeypatch.setattr(Shared, "compile_ahead", lambda _, stage: begun.append(stage))
    run = config(text)
    stages = Stages(run, load_corpus(run.data), Shared(4, side_by_side))
    for _ in range(2):
        stages.of(run.model)
    assert len(begun) == side_by_side - 1


def test_a_cohort_that_is_over_compiles_no_more_ahead():
    shared, done, go_on = Shared(2, 2), [], threading.Event()

    def first():
        done.append("first")
        go_on.wait()

    stage = SimpleNamespace(ahead=lambda: iter([first, lambda: done.append("second")]))
    shared.compile_ahead(stage)
    shared.close()
    go_on.set()
    for thread in threading.enumerate():
        if thread.name == UNWAITED:
            thread.join()
    assert done == ["first"]


def test_numbers_are_what_programs_are_given(text):
    one, *others = members(text, **PENALIZED)
    assert with_numbers(one, numbers(one)) == one
    assert set(numbers(one)) == {
        "optimizer.learning_rate", "optimizer.weight_decay", "optimizer.frobenius_decay", "optimizer.decay_of.mlp",
        "optimizer.schedule.warmup", "optimizer.schedule.final", "penalties.0.strength", "penalties.1.strength",
        "penalties.2.target.value", "penalties.2.target.gain",
    }  # fmt: skip
    assert {program_key(other) for other in others} == {program_key(one)}
    changes = [
        {"optimizer__weight_decay": 0.0},  # the program lacks the decay
        {"optimizer__schedule": {"kind": "cosine", "warmup": 0}},
        {"training__steps": 21},
        {"optimizer__schedule": "linear"},
        {"model__d_model": 32},
        {"execution": {"cohort": "vmap"}},
    ]
    keys = {program_key(config(text, **(PENALIZED | change))) for change in changes}
    assert len(keys) == len(changes) and program_key(one) not in keys


def test_runs_read_their_texts_one_at_a_time(text, tmp_path, monkeypatch):
    shared, inside, most = Shared(3, 3), [], []

    def load(*given):
        inside.append(given)
        time.sleep(0.01)
        most.append(len(inside))
        inside.remove(given)
        raise InterruptedError("read")

    def start(name):
        with pytest.raises(InterruptedError, match="read"):
            train(config(text), tmp_path / name, programs=shared)

    monkeypatch.setattr(loop, "load_corpus", load)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(start, "abc"))
    assert most == [1, 1, 1]
