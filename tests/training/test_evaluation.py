"""The loss over a whole split against a loop over its tokens, and bits per byte against the text's true bytes."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.examples import TEXT, config
from tests.training.test_step import log_softmax, real_model
from wmresearch.data import SplitTokens, load_corpus
from wmresearch.training import evaluation
from wmresearch.training.evaluation import make_evaluator
from wmresearch.training.step import make_evaluate

OPTIMIZED = True


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


CONTEXT, ROWS, CALL = 5, 4, 3
WHOLE = CONTEXT * ROWS * CALL
"""Tokens to predict that fill one call of the compiled program exactly."""


@pytest.mark.parametrize("predicted", [1, CONTEXT - 1, CONTEXT, WHOLE, WHOLE + 1, 2 * WHOLE + 2 * CONTEXT + 3])
def test_every_token_but_the_first_is_predicted_once_from_its_own_window(predicted, monkeypatch):
    monkeypatch.setattr(evaluation, "TOKENS_PER_BATCH", CONTEXT * ROWS)
    monkeypatch.setattr(evaluation, "BATCHES_PER_CALL", CALL)
    model = real_model()
    tokens = np.random.default_rng(predicted).integers(0, 19, predicted + 1).astype(np.uint8)
    split = SplitTokens(tokens, n_bytes=1000, predicted_bytes=999, n_characters=1000)
    result = make_evaluator(model.evaluate, split, CONTEXT)(model.params)

    nats = 0.0
    for place in range(1, len(tokens)):
        start = (place - 1) // CONTEXT * CONTEXT
        logits = np.asarray(model.apply(model.params, jnp.asarray(tokens[None, start:place], jnp.int32), None))
        nats -= log_softmax(logits[0, -1])[tokens[place]]
    np.testing.assert_allclose(result.loss, nats / predicted, rtol=1e-12)
    np.testing.assert_allclose(result.bits_per_byte, nats / math.log(2) / 999, rtol=1e-12)


@pytest.mark.parametrize("tokenizer", [{"kind": "byte"}, {"kind": "char"}, {"kind": "bpe", "vocab_size": 280}])
def test_bits_per_byte_count_the_bytes_of_the_text(tokenizer, text):
    """A model without knowledge spends log2 V bits on each token; over bytes that is 8 bits a byte."""
    corpus = load_corpus(config(text, data__tokenizer=tokenizer, data__split=[0.9, 0.1]).data)
    size, split = corpus.tokenizer.vocab_size, corpus.splits["validation"]

    def knows_nothing(params, tokens, targets, key):
        return jnp.full(tokens.shape, math.log(size))

    result = make_evaluator(make_evaluate(knows_nothing), split, 16)({})

    part = TEXT[-split.n_characters :]
    assert corpus.tokenizer.decode(split.tokens) == part
    first = corpus.tokenizer.n_bytes(int(split.tokens[0]))
    assert len(part) < len(part.encode()), "the text has to hold characters of several bytes"
    np.testing.assert_allclose(result.loss, math.log(size), rtol=1e-12)
    bits = (len(split.tokens) - 1) * math.log2(size)
    np.testing.assert_allclose(result.bits_per_byte, bits / (len(part.encode()) - first), rtol=1e-12)
    if tokenizer["kind"] == "byte":
        np.testing.assert_allclose(result.bits_per_byte, 8.0, rtol=1e-12)
