"""What a step does besides following the loss's gradient, for a state whose heads lie in the order of their devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from wmresearch.head_output.weights import Params, about, split
from wmresearch.parallel.arrangement import Arrangement
from wmresearch.training.parameters import ParameterFacts, facts_of, trained
from wmresearch.training.step import Metrics, Parts, Penalized, StepFacts

Change = Callable[[Params, StepFacts], tuple[Params, Metrics]]


def arranged_parts(parts: Parts, arrangement: Arrangement) -> Parts:
    """The same parts, of arranged parameters: each sees them in the order that it knows.

    What a part leaves as it is stays where it is: to restore and arrange it would be traffic for nothing.
    """
    arrange, restore = arrangement.arrange, arrangement.restore
    draw, penalties, decay, constrain = parts.draw, parts.penalties, parts.decay, parts.constrain

    def penalized(params: Params, step: Int[Array, ""], loss: Float[Array, ""], memory: dict[str, Any]) -> Penalized:
        assert penalties is not None
        found = penalties(restore(params), step, loss, restore(memory))
        return Penalized(arrange(found.added), arrange(found.memory), found.metrics)

    def changed(change: Change) -> Change:
        def after(params: Params, facts: StepFacts) -> tuple[Params, Metrics]:
            known = facts._replace(before=restore(facts.before), gradient=restore(facts.gradient))
            seen = restore(params)
            found, metrics = change(seen, known)
            return back(params, seen, found), metrics

        return after

    def back(params: Params, seen: Params, found: Params) -> Params:
        """What was found of parameters as they were seen, arranged as they were."""
        one = lambda old, was, new, arranged: old if new is was else arranged
        return jax.tree.map(one, params, seen, found, arrange(found))

    def drawn(params: Params, key: PRNGKeyArray) -> Params:
        assert draw is not None
        seen = restore(params)
        return back(params, seen, draw(seen, key))

    return Parts(
        draw=draw and drawn,
        penalties=penalties and penalized,
        decay=decay and (lambda params: arrange(decay(restore(params)))),
        constrain=constrain and (lambda params, gradient: arrange(constrain(restore(params), restore(gradient)))),
        after=tuple(map(changed, parts.after)),
        trained=parts.trained,
        skip=parts.skip,
    )


def arranged_facts(arrangement: Arrangement) -> Params:
    """The facts of arranged parameters: matrices are those of all heads, and seen in the arranged shape."""

    def facts(path: str, parameter: nnx.Variable) -> ParameterFacts:
        found, shape = facts_of(path, parameter), parameter.get_raw_value().shape
        if found.axes is None:
            return found
        view = found.axes.view and arrangement.shape(path, found.axes.view)
        return replace(found, axes=replace(found.axes, view=view, of=found.axes.of or found.axes.view or shape))

    return split(about(arrangement.transformer, facts), trained(arrangement.transformer))[0]
