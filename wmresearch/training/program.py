"""From a run's config to the functions that train it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import optax

from wmresearch.config import RunConfig
from wmresearch.config.dynamic_rank import DynamicRankConfig
from wmresearch.config.head_output import FactorizedConfig, SparseConfig
from wmresearch.config.optimizer import MuonConfig
from wmresearch.config.penalty import ProximalPenaltyConfig
from wmresearch.head_output.weights import Params, declared, initialize
from wmresearch.model import Transformer, make_apply, make_nats
from wmresearch.model.maps import make_maps
from wmresearch.model.transformer import Apply, Nats
from wmresearch.training.optimizers import make_optimizer, make_schedule, muon_shape_factors
from wmresearch.training.parameters import head_outputs, parameter_facts, trained
from wmresearch.training.penalties import Penalties, make_map_decay
from wmresearch.training.proximal import Change, make_proximal_step, make_rebalancing
from wmresearch.training.randomness import Purpose, purpose_key
from wmresearch.training.rank_training import ExpectedRank, make_budget, make_draw, make_expected_rank
from wmresearch.training.sparsity import Sparsity, constrain
from wmresearch.training.step import Keys, Parts, Step, TrainState, make_loss, make_state, make_step, together
from wmresearch.training.warm_start import warm_start


@dataclass(frozen=True)
class Program:
    """A model, how it is trained, and how a run's state starts."""

    config: RunConfig
    transformer: Transformer
    vocab_size: int
    apply: Apply
    nats: Nats
    optimizer: optax.GradientTransformationExtraArgs
    parts: Parts
    penalties: tuple[Penalties | ExpectedRank, ...]
    step: Step

    def initial_params(self) -> Params:
        """The parameters before the first step.

        Raises:
            ConfigError: they come from a run that is not usable.
        """
        drawn = initialize(self.transformer, purpose_key(self.config.seed, Purpose.INITIALIZATION))
        return warm_start(self.config, self.vocab_size, drawn)

    def initial_state(self) -> TrainState:
        """The state before the first step.

        Raises:
            ConfigError: it comes from a run that is not usable.
        """
        return self.state_at(self.initial_params())

    def state_like(self) -> TrainState:
        """Shapes and types of a state, by which one is restored."""
        key = jax.random.key(0)
        return jax.eval_shape(lambda: self.state_at(initialize(self.transformer, key)))

    def state_at(self, params: Params) -> TrainState:
        """The state of a run that starts at these parameters."""
        memory = {name: kept for penalty in self.penalties for name, kept in penalty.start(params).items()}
        return make_state(params, self.optimizer, self.parts.trained, memory)

    def stated(self) -> dict[str, Any]:
        """What a run's manifest says of how it is trained, beyond its config."""
        chosen = self.config.optimizer
        if not isinstance(chosen, MuonConfig):
            return {}
        return {"muon_shape_factors": muon_shape_factors(chosen, declared(self.transformer))}

    def keys(self) -> Keys:
        """The keys of what is random in the run's steps."""
        seed, model = self.config.seed, self.config.model
        return Keys(
            dropout=purpose_key(seed, Purpose.DROPOUT) if model.dropout else None,
            masks=purpose_key(seed, Purpose.MASKS) if isinstance(model.head_output, SparseConfig) else None,
            ranks=purpose_key(seed, Purpose.RANKS) if self.parts.draw else None,
        )


def make_program(config: RunConfig, vocab_size: int) -> Program:
    """The functions of a run; nothing is computed yet."""
    steps, chosen = config.training.steps, config.optimizer
    transformer = Transformer(config.model, vocab_size, config.execution)
    nats, apply = make_nats(transformer, config.model.dtype), make_apply(transformer, config.model.dtype)
    maps, own = make_maps(transformer), head_outputs(transformer)
    by_step = [
        penalty
        for penalty in config.penalties
        if isinstance(penalty, ProximalPenaltyConfig) and penalty.step == "proximal"
    ]
    by_gradient = [penalty for penalty in config.penalties if penalty not in by_step]
    group = config.model.n_heads // config.model.kv_heads
    penalties: list[Penalties | ExpectedRank] = []
    if by_gradient:
        penalties.append(Penalties(by_gradient, maps, steps, group, own))
    after: list[Change] = [make_proximal_step(penalty, transformer, steps) for penalty in by_step]
    output = config.model.head_output
    if isinstance(output, FactorizedConfig) and output.rebalance_every is not None:
        after.append(make_rebalancing(output.rebalance_every, transformer))
    sparsity = None
    if isinstance(output, SparseConfig):
        sparsity = Sparsity(output, steps, config.model.d_model)
        after.append(sparsity)
    draw = None
    if isinstance(output, DynamicRankConfig):
        draw = make_draw(output, transformer)
        expected_rank, budget = make_expected_rank(output, transformer, steps), make_budget(output, transformer, steps)
        penalties += [expected_rank] if expected_rank else []
        after += [budget] if budget else []
    optimizer = make_optimizer(chosen, steps, parameter_facts(transformer))
    parts = Parts(
        draw=draw,
        penalties=together(*penalties),
        decay=make_map_decay(chosen.frobenius_decay, maps, own) if chosen.frobenius_decay else None,
        constrain=constrain if sparsity is not None and sparsity.follows_mask else None,
        after=tuple(after),
        trained=trained(transformer),
    )
    schedule = make_schedule(chosen.schedule, chosen.learning_rate, steps)
    step = make_step(make_loss(nats), optimizer, schedule, parts)
    return Program(config, transformer, vocab_size, apply, nats, optimizer, parts, tuple(penalties), step)
