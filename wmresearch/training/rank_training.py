"""What the methods of `dynamic_rank` do within a training step: chance in the gates, the expected rank, the budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from wmresearch.config.dynamic_rank import DynamicRankConfig
from wmresearch.config.rank_method import Budgeted, HardConcrete
from wmresearch.head_output.dynamic_rank import DynamicRank
from wmresearch.head_output.rank_gates import HardConcreteGates, with_chance
from wmresearch.head_output.weights import PADDING, Params, about, join, split
from wmresearch.model.transformer import Transformer
from wmresearch.training.penalties import Memory, steered_strength
from wmresearch.training.step import Metrics, Penalized, StepFacts

Draw: TypeAlias = Callable[[Params, PRNGKeyArray], Params]
"""(parameters, key of the step) → those by which the loss is taken at this step."""

_LEAST_U = 1e-6
_PROPORTIONAL = 20.0
"""Of the controller of the expected rank: gates answer late, so that its integral has to be slow."""
MEMORY = "expected_rank"


def outputs_of(transformer: Transformer) -> dict[int, DynamicRank]:
    """Layer → its head output, of the layers that have heads left."""
    outputs = {}
    for layer, block in enumerate(transformer.blocks):
        output = block.attention.head_output
        assert isinstance(output, DynamicRank)
        if output.layout.width:
            outputs[layer] = output
    return outputs


def change_outputs(params: Params, of: Callable[[int, Params], Params]) -> Params:
    """The parameters with those of each layer's head output changed."""

    def changed(layer: int, block: Params) -> Params:
        if "attention" not in block:  # no head is left, and no bias
            return block
        attention = block["attention"]
        return block | {"attention": attention | {"head_output": of(layer, attention["head_output"])}}

    return params | {"blocks": {layer: changed(layer, block) for layer, block in params["blocks"].items()}}


def make_draw(config: DynamicRankConfig, transformer: Transformer) -> Draw | None:
    """The chance of a method, None where it has none.

    Draws belong to a direction by its layer and its original numbers: they are the same whichever others are there.
    """
    outputs, method, full = outputs_of(transformer), config.method, config.full_rank()

    def uniform(key: PRNGKeyArray, layer: int, output: DynamicRank, origin: Int[Array, " w"]) -> Params:
        heads = output.original_heads // output.layout.group
        of_layer = jax.random.fold_in(key, layer)
        drawn = jax.random.uniform(of_layer, (heads * full,), minval=_LEAST_U, maxval=1 - _LEAST_U)
        of_heads = jax.random.fold_in(of_layer, 0)
        drawn_heads = jax.random.uniform(of_heads, (heads,), minval=_LEAST_U, maxval=1 - _LEAST_U)
        places = output.layout.head_of_place() * full + jnp.maximum(origin, 0)
        return {"slow": drawn[places], "slow_of_head": drawn_heads[np.array(output.layout.heads)]}

    def gates(params: Params, key: PRNGKeyArray) -> Params:
        def of(layer: int, output: Params) -> Params:
            if layer not in outputs:
                return output
            own = outputs[layer]
            assert isinstance(own.gates, HardConcreteGates)
            drawn = uniform(key, layer, own, output["origin"])
            return output | {"gates": with_chance(output["gates"], own.gates.speed, drawn)}

        return change_outputs(params, of)

    def prefix(params: Params, key: PRNGKeyArray) -> Params:
        m = jax.random.randint(key, (), 1, full + 1)

        def of(layer: int, output: Params) -> Params:
            if layer not in outputs:
                return output
            within = (output["origin"] < m).astype(output["gates"]["within"].dtype)
            return output | {"gates": {"within": within}}

        return change_outputs(params, of)

    return {"hard_concrete": gates, "nested": prefix}.get(method.kind)


@dataclass(frozen=True, eq=False)
class ExpectedRank:
    """The gradient of λ Σ P(g > 0) over all directions: the expected total rank, of which λ is a price in nats.

    λ is `strength`, or a PI controller keeps the expected total rank at the number wanted, which falls linearly from
    all directions to `total_rank`. Metrics: `rank/expected`; `rank/open`, directions whose gate is above 0 without
    chance; `rank/strength`, λ.
    """

    config: DynamicRankConfig
    method: HardConcrete
    transformer: Transformer
    cut: int
    """The step of the cut."""

    @property
    def chosen(self) -> Params:
        return about(self.transformer, lambda path, param: param.trainable and "/gates/" in path)

    def start(self, params: Params) -> Memory:
        """What is kept from step to step, before the first."""
        if self.method.strength is not None:
            return {}
        held = [jnp.sum(params_of(params, layer)["origin"] != PADDING) for layer in outputs_of(self.transformer)]
        log_strength = jnp.log(jnp.asarray(self.method.initial, float))
        return {MEMORY: {"log_strength": log_strength, "all": jnp.sum(jnp.stack(held)).astype(float)}}

    def __call__(self, params: Params, step: Int[Array, ""], loss: Float[Array, ""], memory: Memory) -> Penalized:
        del loss
        graph, _ = nnx.split(self.transformer)
        gates, rest = split(params, self.chosen)

        def expected(gates: Params) -> tuple[Float[Array, ""], Float[Array, ""]]:
            likely, open_ = [], []
            for output in outputs_of(nnx.merge(graph, join(rest, gates))).values():
                assert output.gates is not None
                held = output.origin[...] != PADDING
                likely.append(jnp.sum(jnp.where(held, output.gates.scores(output.origin[...]), 0)))
                open_.append(jnp.sum(held & (output.gates() > 0)))
            return jnp.sum(jnp.stack(likely)).astype(float), jnp.sum(jnp.stack(open_)).astype(float)

        (value, open_), gradient = jax.value_and_grad(expected, has_aux=True)(gates)
        kept = memory.get(MEMORY, {})
        if self.method.strength is None:
            total = float(self.config.total_rank or 0)
            done = jnp.minimum(step / (self.method.end * self.cut), 1)
            error = jnp.log(value / (kept["all"] - (kept["all"] - total) * done))
            gain, initial = self.method.gain, self.method.initial
            factor, integral = steered_strength(error, kept["log_strength"], _PROPORTIONAL, gain, initial)
            kept = kept | {"log_strength": integral.astype(float)}
        else:
            factor = jnp.asarray(self.method.strength, float)
        added = jax.tree.map(lambda leaf: (factor * leaf).astype(leaf.dtype), gradient)
        metrics: Metrics = {"rank/expected": value, "rank/open": open_, "rank/strength": factor}
        return Penalized(added, {MEMORY: kept} if kept else {}, metrics)


def params_of(params: Params, layer: int) -> Params:
    """The parameters of a layer's head output."""
    return params["blocks"][layer]["attention"]["head_output"]


@dataclass(frozen=True, eq=False)
class Budget:
    """Smooths the importance of directions after each step, and now and then sets s = 0 for those beyond the budget.

    I = |s ∂s| + mean |A_j ∘ ∂A_j| + mean |B_j ∘ ∂B_j| of direction j; Ī and Ū are moving averages of I and |I − Ī|; the
    budget's directions are those of the largest Ī Ū over all layers. Metric: `rank/budget`.
    """

    config: DynamicRankConfig
    method: Budgeted
    transformer: Transformer
    cut: int

    def __call__(self, params: Params, facts: StepFacts) -> tuple[Params, Metrics]:
        outputs = outputs_of(self.transformer)
        found = {layer: self._smoothed(layer, output, params, facts) for layer, output in outputs.items()}
        held = {layer: params_of(params, layer)["origin"] != PADDING for layer in outputs}
        allowed = self.budget(facts.step, jnp.sum(jnp.stack([jnp.sum(row) for row in held.values()])))
        due = ((facts.step + 1) % self.method.every == 0) & (facts.step + 1 >= self.method.begin * self.cut)

        def closed() -> dict[int, Array]:
            importance = {i: g["sensitivity"] * g["uncertainty"] for i, g in found.items()}
            score = jnp.concatenate([jnp.where(held[i], row, -1) for i, row in importance.items()])
            place = jnp.argsort(jnp.argsort(-score, stable=True), stable=True)
            rows = jnp.split(place < allowed, np.cumsum([row.size for row in held.values()])[:-1])
            return {i: jnp.where(row, g["scale"], 0) for (i, g), row in zip(found.items(), rows, strict=True)}

        scales = jax.lax.cond(due, closed, lambda: {i: g["scale"] for i, g in found.items()})

        def of(layer: int, output: Params) -> Params:
            if layer not in found:
                return output
            return output | {"gates": found[layer] | {"scale": scales[layer]}}

        return change_outputs(params, of), {"rank/budget": allowed.astype(float)}

    def budget(self, step: Int[Array, ""], all_of_them: Int[Array, ""]) -> Int[Array, ""]:
        """Directions with s ≠ 0 after a step: b = k + (n − k) (1 − u)³, u from 0 at `begin` to 1 at `end`."""
        begin, end = self.method.begin * self.cut, self.method.end * self.cut
        u = jnp.clip((step + 1 - begin) / (end - begin), 0, 1)
        total = self.config.total_rank or 0
        return total + jnp.round((all_of_them - total) * (1 - u) ** 3).astype(jnp.int32)

    def _smoothed(self, layer: int, output: DynamicRank, params: Params, facts: StepFacts) -> Params:
        before, slope, now = (params_of(tree, layer) for tree in (facts.before, facts.gradient, params))
        of_a, of_b = (jnp.abs(before[name] * slope[name]) for name in ("factor_a", "factor_b"))
        of_s = jnp.abs(before["gates"]["scale"] * slope["gates"]["scale"])
        rows = output.layout.rows_of_places()
        found = of_s + of_a.mean(axis=0) + of_b.mean(axis=1)[rows].mean(axis=1)
        beta, gates = self.method.smoothing, now["gates"]
        sensitivity = beta * gates["sensitivity"] + (1 - beta) * found
        uncertainty = beta * gates["uncertainty"] + (1 - beta) * jnp.abs(found - sensitivity)
        return gates | {
            "sensitivity": sensitivity.astype(found.dtype),
            "uncertainty": uncertainty.astype(found.dtype),
        }


def make_expected_rank(config: DynamicRankConfig, transformer: Transformer, steps: int) -> ExpectedRank | None:
    """Of hard-concrete gates, else None."""
    method = config.method
    if not isinstance(method, HardConcrete):
        return None
    return ExpectedRank(config, method, transformer, config.cut_step(steps))


def make_budget(config: DynamicRankConfig, transformer: Transformer, steps: int) -> Budget | None:
    """Of the method `budgeted`, else None."""
    method = config.method
    return Budget(config, method, transformer, config.cut_step(steps)) if isinstance(method, Budgeted) else None
