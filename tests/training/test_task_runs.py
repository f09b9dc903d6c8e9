"""Runs that are asked for tasks at their end, and runs that train on them."""

import json

import pytest

from tests.parallel.test_training import train_until
from tests.training.examples import config, final_state, metrics_bytes, same
from wmresearch.config import run_id
from wmresearch.data import load_corpus
from wmresearch.training.loop import train
from wmresearch.training.program import make_program
from wmresearch.training.task_evaluation import make_task_evaluator

OPTIMIZED = True

MIXED = {"data__mixture": {"recall": 0.3, "induction": 0.3}, "training__checkpoint_every": 8}
FIGURES = ("recall_accuracy", "induction_accuracy", "induction_gain")


def scores(path):
    return json.loads((path / "tasks.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def mixed(text, tmp_path_factory):
    path = tmp_path_factory.mktemp("mixed") / "run"
    return path, train(config(text, **MIXED), path)


def test_a_finished_run_has_the_scores_of_its_last_parameters(mixed, text):
    path, summary = mixed
    chosen, found = config(text, **MIXED), scores(path)
    corpus = load_corpus(chosen.data)
    apply = make_program(chosen, corpus.tokenizer.vocab_size).apply
    again = make_task_evaluator(apply, corpus.splits["train"].tokens, 16)(final_state(path, chosen).params, 0)
    assert found == json.loads(json.dumps(again.to_dict()))
    assert [score["pairs"] for score in found["recall"]] == [2, 4] and found["induction"]["symbols"] == 8
    assert {name: summary[name] for name in FIGURES} == {name: found[name] for name in FIGURES}
    assert found["recall_accuracy"] == sum(score["accuracy"] for score in found["recall"]) / 2
    assert found["induction_gain"] == pytest.approx(
        found["induction"]["first_loss"] - found["induction"]["second_loss"]
    )


def test_a_stopped_run_on_a_mixture_goes_on_to_the_same_end(mixed, text, tmp_path):
    path, _ = mixed
    chosen = config(text, **MIXED)
    train_until(chosen, tmp_path, 12)
    assert not (tmp_path / "tasks.json").exists()
    train(chosen, tmp_path)
    assert metrics_bytes(tmp_path) == metrics_bytes(path) and scores(tmp_path) == scores(path)
    assert same(final_state(tmp_path, chosen), final_state(path, chosen))


def test_not_to_be_asked_changes_nothing_else(mixed, text, tmp_path):
    path, summary = mixed
    silent = train(config(text, **MIXED, training__tasks=False), tmp_path)
    assert metrics_bytes(tmp_path) == metrics_bytes(path) and silent["run_id"] == summary["run_id"]
    assert not (tmp_path / "tasks.json").exists() and {silent[name] for name in FIGURES} == {None}


def test_a_mixture_is_another_run_and_no_mixture_the_same(text):
    ids = [run_id(config(text, **more), "digest") for more in ({}, {"data__mixture": None}, MIXED)]
    assert ids[0] == ids[1] != ids[2]
