"""One training step and many in one dispatch, as pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from wmresearch.head_output.weights import Params
from wmresearch.model.transformer import Apply
from wmresearch.training.randomness import step_key

Metrics: TypeAlias = dict[str, Array]
Loss: TypeAlias = Callable[[Params, Int[Array, "b t1"], PRNGKeyArray | None], tuple[Float[Array, ""], Metrics]]
"""(parameters, tokens, dropout key) → loss, metrics. A row of tokens has context + 1: inputs, and targets."""


class TrainState(NamedTuple):
    """Everything that a step changes, and so everything that a checkpoint holds."""

    params: Params
    optimizer: Any
    step: Int[Array, ""]


Step: TypeAlias = Callable[[TrainState, Int[Array, "b t1"], PRNGKeyArray | None], tuple[TrainState, Metrics]]
"""(state, tokens, the run's dropout key) → state after one update, metrics."""

Dispatch: TypeAlias = Callable[[TrainState, Int[Array, "k b t1"], int, PRNGKeyArray | None], tuple[TrainState, Metrics]]
"""(state, token batches, how many of them to use, dropout key) → state after so many steps, metrics of each `[k]`."""


def make_loss(apply: Apply) -> Loss:
    """Mean cross-entropy in nats per token over a batch."""

    def loss(params: Params, tokens: Int[Array, "b t1"], key: PRNGKeyArray | None) -> tuple[Array, Metrics]:
        logits = apply(params, tokens[:, :-1], key)
        value = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()
        return value, {"train_loss": value}

    return loss


def make_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step."""
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))


PenaltyGradient: TypeAlias = Callable[[Params, Int[Array, ""]], tuple[Params, Metrics]]
"""(parameters, step) → gradient of the penalties, their metrics."""


def make_step(
    loss: Loss,
    optimizer: optax.GradientTransformationExtraArgs,
    schedule: optax.Schedule,
    penalties: PenaltyGradient | None = None,
) -> Step:
    """One update. Metrics are those of the loss, the gradient's norm before clipping, and the learning rate."""

    def step(state: TrainState, tokens: Int[Array, "b t1"], key: PRNGKeyArray | None) -> tuple[TrainState, Metrics]:
        dropout_key = None if key is None else step_key(key, state.step)
        (_, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(state.params, tokens, dropout_key)
        added = None
        if penalties is not None:
            added, about_penalties = penalties(state.params, state.step)
            metrics |= about_penalties
        updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.params, added=added)
        params = optax.apply_updates(state.params, updates)
        metrics |= {"gradient_norm": optax.tree.norm(gradient), "learning_rate": schedule(state.step)}
        return TrainState(params, optimizer_state, state.step + 1), metrics

    return step


def make_dispatch(step: Step, size: int) -> Dispatch:
    """Up to `size` steps in one call of one compiled program; the state's buffers are reused (donated).

    The number of steps is an argument, so that a dispatch cut short by an evaluation needs no second compilation.
    """

    def dispatch(
        state: TrainState, tokens: Int[Array, "k b t1"], n: int, key: PRNGKeyArray | None
    ) -> tuple[TrainState, Metrics]:
        shapes = jax.eval_shape(step, state, tokens[0], key)[1]
        empty = {name: jnp.zeros((size,), shape.dtype) for name, shape in shapes.items()}

        def body(index: Array, carry: tuple[TrainState, Metrics]) -> tuple[TrainState, Metrics]:
            state, history = carry
            state, metrics = step(state, tokens[index], key)
            return state, {name: history[name].at[index].set(metrics[name]) for name in history}

        return jax.lax.fori_loop(0, n, body, (state, empty))

    return jax.jit(dispatch, donate_argnums=0)


Evaluate: TypeAlias = Callable[
    [Params, Int[Array, "k b t"], Int[Array, "k b t"], Bool[Array, "k b t"]], Float[Array, " k"]
]
"""(parameters, inputs, targets, mask) → summed cross-entropy of each batch in nats."""


def make_evaluate(apply: Apply) -> Evaluate:
    """Summed cross-entropy over the unmasked targets of several batches, one after another, without dropout."""

    def evaluate(params: Params, inputs: Array, targets: Array, mask: Array) -> Float[Array, " k"]:
        def batch(arrays: tuple[Array, Array, Array]) -> Float[Array, ""]:
            inputs, targets, mask = arrays
            nats = optax.softmax_cross_entropy_with_integer_labels(apply(params, inputs, None), targets)
            return jnp.where(mask, nats, 0).sum()

        return jax.lax.map(batch, (inputs, targets, mask))

    return jax.jit(evaluate)
