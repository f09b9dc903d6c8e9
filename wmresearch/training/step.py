"""One training step and many in one dispatch, as pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Sharding
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from wmresearch.head_output.weights import Params, join, split
from wmresearch.model.transformer import Nats
from wmresearch.training.randomness import step_key

Tree = TypeVar("Tree")
Metrics: TypeAlias = dict[str, Array]
Loss: TypeAlias = Callable[
    [Params, Int[Array, "b t1"], PRNGKeyArray | None, Int[Array, " b"]], tuple[Float[Array, ""], Metrics]
]
"""(parameters, tokens, dropout key, the rows' numbers in the batch) → loss, metrics.

A row of tokens has context + 1: inputs, and targets.
"""


class TrainState(NamedTuple):
    """Everything that a step changes, and so everything that a checkpoint holds."""

    params: Params
    optimizer: Any
    step: Int[Array, ""]
    memory: dict[str, Any]
    """What penalties keep from step to step."""


class Given(NamedTuple):
    """What a run gives its steps, besides state and batches: keys of what is random (None where nothing is), numbers.

    Runs that differ in nothing else share one compiled program.
    """

    dropout: PRNGKeyArray | None = None
    masks: PRNGKeyArray | None = None
    ranks: PRNGKeyArray | None = None
    numbers: Mapping[str, Any] = {}
    """Dotted key of the config → its number there, in place of the one that a step was made with."""


Step: TypeAlias = Callable[[TrainState, Int[Array, "b t1"], Given], tuple[TrainState, Metrics]]
"""(state, tokens, what the run gives) → state after one update, metrics."""

Dispatch: TypeAlias = Callable[[TrainState, Int[Array, "k b t1"], int, Given], tuple[TrainState, Metrics]]
"""(state, token batches, how many of them to use, what the run gives) → state after so many steps, metrics of each
`[k]`."""


def make_loss(nats: Nats) -> Loss:
    """Mean cross-entropy in nats per token over a batch."""

    def loss(
        params: Params, tokens: Int[Array, "b t1"], key: PRNGKeyArray | None, rows: Int[Array, " b"] | None = None
    ) -> tuple[Array, Metrics]:
        value = nats(params, tokens[:, :-1], tokens[:, 1:], key, rows).mean()
        return value, {"train_loss": value}

    return loss


class Penalized(NamedTuple):
    """What penalties say at a step."""

    added: Params
    """Gradient of their sum, of the parameters that it has one of."""
    memory: dict[str, Any]
    metrics: Metrics


Penalize: TypeAlias = Callable[[Params, Int[Array, ""], Float[Array, ""], dict[str, Any]], Penalized]
"""(parameters, step, loss, memory) → what is added to the clipped gradient."""


class StepFacts(NamedTuple):
    """What is known after the optimizer's step."""

    step: Int[Array, ""]
    learning_rate: Float[Array, ""]
    before: Params
    """The parameters before the step."""
    gradient: Params
    """Of the loss, as it came: not clipped, of masked entries too."""
    key: PRNGKeyArray | None


class Skip(Protocol):
    """Leaves out updates."""

    def start(self) -> dict[str, Any]:
        """What it keeps in a state's memory, before the first step."""

    def __call__(
        self, old: TrainState, new: TrainState, loss: Float[Array, ""], norm: Float[Array, ""]
    ) -> tuple[TrainState, Metrics]:
        """The state to go on with, of those before and after a step; `norm` is the gradient's."""


class Parts(NamedTuple):
    """What a step does besides following the loss's gradient."""

    draw: Callable[[Params, PRNGKeyArray], Params] | None = None
    """(parameters, key) → those by which the loss is taken at this step."""
    penalties: Penalize | None = None
    decay: Callable[[Params], Params] | None = None
    """Parameters → what is added as decoupled weight decay is."""
    constrain: Callable[[Params, Params], Params] | None = None
    """(parameters, gradient) → the gradient that is followed."""
    after: tuple[Callable[[Params, StepFacts], tuple[Params, Metrics]], ...] = ()
    """Changes of the parameters after the optimizer's step, one after another."""
    trained: Params | None = None
    """For each parameter whether it has a gradient; None: all have."""
    skip: Skip | None = None
    """Leaves out updates."""


def together(*penalties: Penalize) -> Penalize | None:
    """What several penalties add; None of none."""

    def added(params: Params, step: Int[Array, ""], loss: Float[Array, ""], memory: dict[str, Any]) -> Penalized:
        sums: Params = {}
        kept: dict[str, Any] = {}
        metrics: Metrics = {}
        for penalize in penalties:
            found = penalize(params, step, loss, memory)
            sums = join(sums, found.added, both=jnp.add)
            kept |= found.memory
            metrics |= found.metrics
        return Penalized(sums, kept, metrics)

    return added if len(penalties) > 1 else next(iter(penalties), None)


def make_state(
    params: Params,
    optimizer: optax.GradientTransformation,
    trained: Params | None = None,
    memory: dict[str, Any] | None = None,
) -> TrainState:
    """The state before the first step."""
    own = params if trained is None else split(params, trained)[0]
    return TrainState(params, optimizer.init(own), jnp.zeros((), jnp.int32), memory or {})


def make_step(
    loss: Loss,
    optimizer: optax.GradientTransformationExtraArgs,
    schedule: optax.Schedule,
    parts: Parts = Parts(),  # noqa: B008, immutable
    accumulate: int = 1,
) -> Step:
    """One update. Metrics are those of the loss, the gradient's norm before clipping, and the learning rate.

    `accumulate`: parts of a batch, of equal size, whose losses and gradients are found one after another.
    """

    def step(state: TrainState, tokens: Int[Array, "b t1"], given: Given) -> tuple[TrainState, Metrics]:
        keys = given.dropout, given.masks, given.ranks
        dropout_key, mask_key, rank_key = (None if key is None else step_key(key, state.step) for key in keys)
        own, fixed = (state.params, {}) if parts.trained is None else split(state.params, parts.trained)

        def of_own(own: Params, tokens: Array, rows: Array) -> tuple[Float[Array, ""], Metrics]:
            params = join(own, fixed)
            if parts.draw is not None and rank_key is not None:
                params = parts.draw(params, rank_key)
            return loss(params, tokens, dropout_key, rows)

        of_part = jax.value_and_grad(of_own, has_aux=True)
        (value, metrics), found = _mean_over_parts(lambda *part: of_part(own, *part), tokens, accumulate)
        gradient = found if parts.constrain is None else parts.constrain(state.params, found)
        added, memory = None, state.memory
        if parts.penalties is not None:
            added, memory, about = parts.penalties(state.params, state.step, value, memory)
            metrics |= about
        decayed = None if parts.decay is None else parts.decay(state.params)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer, own, added=added, decayed=decayed)
        params = join(optax.apply_updates(own, updates), fixed)
        facts = StepFacts(state.step, schedule(state.step), state.params, found, mask_key)
        for change in parts.after:
            params, about = change(params, facts)
            metrics |= about
        metrics |= {"gradient_norm": optax.tree.norm(gradient), "learning_rate": facts.learning_rate}
        after = TrainState(params, optimizer_state, state.step + 1, memory)
        if parts.skip is not None:
            after, about = parts.skip(state, after, value, metrics["gradient_norm"])
            metrics |= about
        return after, metrics

    return step


def _mean_over_parts(
    of_part: Callable[[Int[Array, "b t1"], Int[Array, " b"]], Tree], tokens: Int[Array, "b t1"], parts: int
) -> Tree:
    """The mean of what is found of parts of a batch, and of their rows' numbers, one part at a time."""
    rows = jnp.arange(tokens.shape[0])
    if parts == 1:
        return of_part(tokens, rows)
    # Every `parts`-th row, so that devices which divide the batch among them divide each part.
    apart = tuple(jnp.swapaxes(x.reshape(-1, parts, *x.shape[1:]), 0, 1) for x in (tokens, rows))
    zeros = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(of_part, *(x[0] for x in apart))
    )
    add = lambda total, part: (jax.tree.map(jnp.add, total, of_part(*part)), None)
    total, _ = jax.lax.scan(add, zeros, apart)
    return jax.tree.map(lambda leaf: (leaf / parts).astype(leaf.dtype), total)


def make_dispatch(
    step: Step, size: int, shardings: TrainState | None = None, everywhere: Sharding | None = None
) -> Dispatch:
    """Up to `size` steps in one call of one compiled program; the state's buffers are reused (donated).

    `shardings` are those of a state that several devices divide; `everywhere` is that of what each of them has.
    """
    out = None if shardings is None else (shardings, everywhere)
    return jax.jit(make_steps(step, size, shardings), donate_argnums=0, out_shardings=out)


def make_steps(step: Step, size: int, shardings: TrainState | None = None) -> Dispatch:
    """Up to `size` steps, to be compiled as one program.

    Their number is an argument, so that a dispatch cut short by an evaluation needs no second compilation.
    """

    def dispatch(state: TrainState, tokens: Int[Array, "k b t1"], n: int, given: Given) -> tuple[TrainState, Metrics]:
        shapes = jax.eval_shape(step, state, tokens[0], given)[1]
        empty = {name: jnp.zeros((size,), shape.dtype) for name, shape in shapes.items()}

        def body(index: Array, carry: tuple[TrainState, Metrics]) -> tuple[TrainState, Metrics]:
            state, history = carry
            state, metrics = step(state, tokens[index], given)
            if shardings is not None:
                state = jax.lax.with_sharding_constraint(state, shardings)
            return state, {name: history[name].at[index].set(metrics[name]) for name in history}

        return jax.lax.fori_loop(0, n, body, (state, empty))

    return dispatch


Evaluate: TypeAlias = Callable[
    [Params, Int[Array, "k b t"], Int[Array, "k b t"], Bool[Array, "k b t"]], Float[Array, " k"]
]
"""(parameters, inputs, targets, mask) → summed cross-entropy of each batch in nats."""


def make_evaluate(nats: Nats, everywhere: Sharding | None = None) -> Evaluate:
    """Summed cross-entropy over the unmasked targets of several batches, one after another, without dropout.

    Where several devices take part, `everywhere` is the sharding of what each of them has.
    """

    def evaluate(params: Params, inputs: Array, targets: Array, mask: Array) -> Float[Array, " k"]:
        def batch(arrays: tuple[Array, Array, Array]) -> Float[Array, ""]:
            inputs, targets, mask = arrays
            return jnp.where(mask, nats(params, inputs, targets, None), 0).sum()

        return jax.lax.map(batch, (inputs, targets, mask))

    return jax.jit(evaluate, out_shardings=everywhere)
