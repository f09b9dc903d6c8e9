"""Scores of models that are known: one that copies, one that guesses, one whose logits are looked at by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.test_step import log_softmax, real_model
from wmresearch.data.tasks import Induction, Recall, Symbols
from wmresearch.training import task_evaluation
from wmresearch.training.task_evaluation import make_task_evaluator

VOCAB = 90
TOKENS = np.random.default_rng(0).integers(0, VOCAB, 20000)


def copying(params, tokens, key=None):
    """Whatever followed the newest earlier place of the same token: what an induction head does."""
    t = tokens.shape[1]
    earlier = (tokens[:, :, None] == tokens[:, None, :]) & jnp.tri(t, k=-1, dtype=bool)[None]
    newest = jnp.where(earlier, jnp.arange(t)[None, None], -1).max(axis=2)
    follower = jnp.take_along_axis(tokens, newest + 1, axis=1)
    return 30.0 * jax.nn.one_hot(follower, VOCAB) * (newest >= 0)[..., None]


def guessing(params, tokens, key=None):
    """By the token and its place alone."""
    logits = np.random.default_rng(1).standard_normal((64, VOCAB, VOCAB), np.float32)
    return jnp.asarray(logits)[jnp.arange(tokens.shape[1])[None], tokens]


def scores(apply, context=64, seed=0, params=()):
    return make_task_evaluator(apply, TOKENS, context)(params, seed)


def test_a_model_that_copies_makes_no_mistake():
    found = scores(copying)
    assert [score.pairs for score in found.recall] == [2, 4, 8, 16]
    assert [score.accuracy for score in found.recall] == [1.0] * 4
    assert max(score.loss for score in found.recall) < 1e-9
    assert found.induction.symbols == 32 and found.induction.accuracy == 1.0
    assert found.induction.first_loss == pytest.approx(math.log(VOCAB))
    assert found.induction.gain == pytest.approx(math.log(VOCAB))
    assert found.figures() == {
        "recall_accuracy": 1.0, "induction_accuracy": 1.0, "induction_gain": found.induction.gain
    }  # fmt: skip


def test_a_model_that_guesses_is_at_chance():
    found = scores(guessing)
    for score in (*found.recall, found.induction):
        asked = task_evaluation.ROWS * getattr(score, "pairs", 31)
        assert abs(score.accuracy - 1 / VOCAB) < 4 * math.sqrt(1 / VOCAB / asked)
    assert abs(found.induction.gain) < 0.1


def test_scores_are_those_of_the_logits_at_the_places_that_are_asked(monkeypatch):
    monkeypatch.setattr(task_evaluation, "ROWS", 3)
    monkeypatch.setattr(task_evaluation, "TOKENS_PER_BATCH", 40)
    tokens, seed = np.arange(19).repeat(2), 4
    with jax.enable_x64(True):
        model = real_model()
        found = make_task_evaluator(model.apply, tokens, 8)(model.params, seed)

        def mean(task, size, places):
            judged = []
            for row in (task.row(size, "evaluation", i) for i in range(3)):
                logits = np.asarray(model.apply(model.params, jnp.asarray(row[None, :-1]), None))[0]
                judged += [(logits[at].argmax() == row[at + 1], -log_softmax(logits[at])[row[at + 1]]) for at in places]
            return np.mean(judged, axis=0)

        recall, induction = (kind(Symbols.of(tokens, 8, seed), 9, seed) for kind in (Recall, Induction))
        (score,) = found.recall
        np.testing.assert_allclose((score.accuracy, score.loss), mean(recall, 2, (4, 6)), rtol=1e-12)
        second = mean(induction, 4, (4, 5, 6))
        np.testing.assert_allclose((found.induction.accuracy, found.induction.second_loss), second, rtol=1e-12)
        np.testing.assert_allclose(found.induction.first_loss, mean(induction, 4, (0, 1, 2))[1], rtol=1e-12)


@pytest.mark.parametrize(("context", "pairs", "symbols"), [(1, [], None), (3, [], 2), (6, [], 3), (7, [2], 4)])
def test_a_context_that_is_too_short_has_no_score(context, pairs, symbols):
    found = scores(copying, context)
    assert [score.pairs for score in found.recall] == pairs
    assert (found.induction and found.induction.symbols) == symbols
    assert (found.figures()["recall_accuracy"] is None) == (not pairs)
    assert (found.figures()["induction_gain"] is None) == (symbols is None)


def test_a_long_context_is_used_in_part():
    seen = set()

    def watched(params, tokens, key=None):
        seen.add(tokens.shape[1])
        return copying(params, tokens)

    found = scores(watched, 1000)
    assert seen == {256}
    assert [score.pairs for score in found.recall] == [2, 4, 8, 16, 32] and found.induction.symbols == VOCAB
    assert found.recall[-1].accuracy == found.induction.accuracy == 1.0
