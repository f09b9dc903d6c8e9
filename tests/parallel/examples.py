"""Small models on virtual devices, and their losses and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import TypeAdapter

from wmresearch.config.head_output import HeadOutput
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.weights import about, initialize, join, split
from wmresearch.model import Transformer, make_nats
from wmresearch.parallel.arrangement import Arrangement
from wmresearch.parallel.mesh import Sizes, make_mesh
from wmresearch.parallel.nats import make_divided_nats
from wmresearch.parallel.placement import make_placement

VOCAB = 29
"""Divided by no number of devices."""
BATCH = 8


def model(head_output=None, **changes):
    shape = {"d_model": 16, "n_layers": 1, "n_heads": 4, "context": 8, "dtype": "float64", "param_dtype": "float64"}
    output = TypeAdapter(HeadOutput).validate_python(head_output or {"kind": "standard"})
    return ModelConfig(**shape | changes, head_output=output)


def transformer_of(config):
    return Transformer(config, VOCAB)


def arrangement_of(transformer, config, data, head, **options):
    placement = make_placement(config, transformer, head)
    return Arrangement(transformer, placement, make_mesh(Sizes(data, head), placement.shards[1]), **options)


def drawn(transformer, seed=0):
    """Parameters that are all random; masks and places as they are made."""
    draw = np.random.default_rng(seed)
    made = initialize(transformer, jax.random.key(seed))
    trained = about(transformer, lambda _, param: param.trainable)
    return jax.tree.map(
        lambda leaf, own: jnp.asarray(0.4 * draw.standard_normal(leaf.shape), leaf.dtype) if own else leaf,
        made,
        trained,
    )


class Example:
    """A model, and what one device finds of it."""

    def __init__(self, config):
        self.config, self.transformer = config, transformer_of(config)
        self.params = drawn(self.transformer)
        draw = np.random.default_rng(1)
        self.tokens = jnp.asarray(draw.integers(0, VOCAB, (BATCH, config.context + 1)))
        self.weights = jnp.asarray(draw.standard_normal((BATCH, config.context)))
        self.key = jax.random.key(2) if config.dropout else None
        self.alone = self.found(make_nats(self.transformer, config.dtype), lambda params: params)

    def found(self, nats, prepare):
        """The weighted sum of the cross-entropy of each token, and its gradient."""
        own, fixed = split(self.params, about(self.transformer, lambda _, param: param.trainable))

        def loss(own):
            params = prepare(join(own, fixed))
            return (nats(params, self.tokens[:, :-1], self.tokens[:, 1:], self.key) * self.weights).sum()

        return jax.jit(jax.value_and_grad(loss))(own)

    def agrees(self, data, head, implementation="shard_map", shard_positions=False):
        """What so many devices find is the same."""
        arrangement = arrangement_of(self.transformer, self.config, data, head)

        def prepare(params):
            arranged = arrangement.arrange(params)
            return jax.lax.with_sharding_constraint(arranged, arrangement.shardings(arranged))

        nats = make_divided_nats(self.config, arrangement, implementation, shard_positions)
        for want, got in zip(*map(jax.tree.leaves, (self.alone, self.found(nats, prepare))), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10 * max(1, np.abs(want).max()))
        return arrangement
