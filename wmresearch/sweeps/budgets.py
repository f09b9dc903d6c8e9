"""What a run spends, counted from shapes, and arms made to spend what the baseline does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wmresearch.config import ConfigError, RunConfig
from wmresearch.config.dynamic_rank import DynamicRankConfig
from wmresearch.config.model import ModelConfig
from wmresearch.data import symbols_of
from wmresearch.model.cost import Cost, model_cost
from wmresearch.sweeps.algebra import changed
from wmresearch.training.rank_cut import with_ranks

TOLERANCE = 0.005
"""Largest share by which a matched arm's budget may be off."""
_FARTHEST = 64
"""Times its own value that a key is raised at most."""


@dataclass(frozen=True)
class Adjustment:
    """What was changed in an arm so that it spends what the baseline does."""

    key: str
    before: int
    after: int
    budget: str
    off: float
    """Share by which the budget is off afterwards."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class CannotMatchError(Exception):
    """No key can bring an arm to the baseline's budget; says what was tried."""


class Budgets:
    """Costs of configs, each model counted once."""

    def __init__(self) -> None:
        self._symbols: dict[str, int] = {}
        self._costs: dict[tuple[str, int], Cost] = {}

    def cost(self, config: RunConfig, model: ModelConfig | None = None) -> Cost:
        """Of a run's model at its start, or of another model over the same text."""
        data = config.data.model_dump_json(include={"corpus", "split", "tokenizer"})
        if data not in self._symbols:
            self._symbols[data] = symbols_of(config.data)
        model = model or config.model
        key = model.model_dump_json(), self._symbols[data]
        if key not in self._costs:
            self._costs[key] = model_cost(model, self._symbols[data])
        return self._costs[key]

    def spent(self, config: RunConfig, budget: str) -> float:
        """Parameters of the model at the end, or training FLOPs of the whole run.

        Where heads find their ranks, the end is counted with `total_rank` spread evenly over them.
        """
        steps, end = config.training.steps, self.cost(config, final_model(config.model))
        if budget == "parameters":
            return end.parameters
        chosen = config.model.head_output
        cut = chosen.cut_step(steps) if isinstance(chosen, DynamicRankConfig) else steps
        per_token = cut * self.cost(config).training_flops_per_token + (steps - cut) * end.training_flops_per_token
        return per_token * config.data.batch_size * config.model.context

    def matched(
        self, config: RunConfig, baseline: RunConfig, budget: str, by: Sequence[str], own: frozenset[str]
    ) -> tuple[RunConfig, Adjustment | None]:
        """The config with the first key of `by` that can set to what brings its budget nearest to the baseline's.

        A config that is within half a percent already stays as it is. Keys in `own` are left alone.

        Raises:
            CannotMatchError: no key brings it within half a percent.
        """
        target = self.spent(baseline, budget)
        if abs(self.spent(config, budget) / target - 1) <= TOLERANCE:
            return config, None
        tried = []
        for key in by:
            before = _current(config, key)
            if before is None:
                tried.append(f"{key}: its head output has no rank that stays")
            elif key in own:
                tried.append(f"{key}: the arm sets it")
            else:
                value, off = self._nearest(config, key, before, budget, target)
                if abs(off) <= TOLERANCE:
                    return changed(config, {key: value}), Adjustment(key, before, value, budget, off)
                tried.append(f"{key} = {value} comes nearest, and is off by {off:+.2%}")
        raise CannotMatchError("; ".join(tried))

    def _nearest(self, config: RunConfig, key: str, before: int, budget: str, target: float) -> tuple[int, float]:
        """The value that brings the budget nearest, and the share that it is off: what is spent rises with each key."""

        def off(value: int) -> float:
            try:
                return self.spent(changed(config, {key: value}), budget) / target - 1
            except ConfigError:
                return math.inf if value > before else -math.inf  # more than the model takes, or less than the warm-up

        low, high = before, before
        while off(low) > 0 and low > 1:
            low = max(1, low // 2)
        while off(high) < 0 and high < _FARTHEST * before:
            high *= 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if off(middle) <= 0 else (low, middle)
        best = min((low, high), key=lambda value: abs(off(value)))
        return best, off(best)


def final_model(model: ModelConfig) -> ModelConfig:
    """The model that a run ends with: where heads find their ranks, with their sum spread evenly."""
    chosen = model.head_output
    if not isinstance(chosen, DynamicRankConfig) or chosen.total_rank is None:
        return model
    heads = model.kv_heads
    each, over = divmod(chosen.total_rank, model.n_layers * heads)
    flat = [each + (place < over) for place in range(model.n_layers * heads)]
    ranks = tuple(tuple(flat[layer * heads : (layer + 1) * heads]) for layer in range(model.n_layers))
    return with_ranks(model, ranks, fixed=True)


def _current(config: RunConfig, key: str) -> int | None:
    if key == "training.steps":
        return config.training.steps
    if key == "model.d_mlp":
        return config.model.mlp_width
    chosen = config.model.head_output
    if isinstance(chosen, DynamicRankConfig) and chosen.total_rank is not None:
        return None
    rank: int | None = getattr(chosen, "rank", None)
    return rank
