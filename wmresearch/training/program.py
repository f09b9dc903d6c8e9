"""From a run's config to the functions that train it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int

from wmresearch.config import RunConfig
from wmresearch.config.dynamic_rank import DynamicRankConfig
from wmresearch.config.head_output import FactorizedConfig, SparseConfig
from wmresearch.config.optimizer import MuonConfig
from wmresearch.config.penalty import ProximalPenaltyConfig
from wmresearch.config.traced import numbers, with_numbers
from wmresearch.data import Stream
from wmresearch.head_output.weights import Params, abstract_params, declared, initialize
from wmresearch.model import Transformer, make_apply, make_nats
from wmresearch.model.maps import make_maps
from wmresearch.model.transformer import Apply, Nats
from wmresearch.parallel.arrangement import Arrangement
from wmresearch.parallel.mesh import make_mesh, mesh_sizes
from wmresearch.parallel.nats import make_divided_nats
from wmresearch.parallel.placement import make_placement
from wmresearch.training.arranged_parts import arranged_facts, arranged_parts
from wmresearch.training.checkpoints import Checkpoints
from wmresearch.training.optimizers import is_zero, make_optimizer, make_schedule, muon_shape_factors
from wmresearch.training.parameters import head_outputs, parameter_facts, trained
from wmresearch.training.penalties import Penalties, make_map_decay
from wmresearch.training.proximal import Change, make_proximal_step, make_rebalancing
from wmresearch.training.randomness import Purpose, purpose_key
from wmresearch.training.rank_training import ExpectedRank, make_budget, make_draw, make_expected_rank
from wmresearch.training.sparsity import Sparsity, constrain
from wmresearch.training.spikes import SkipSpikes
from wmresearch.training.step import (
    Dispatch,
    Evaluate,
    Given,
    Metrics,
    Parts,
    Step,
    TrainState,
    make_dispatch,
    make_evaluate,
    make_loss,
    make_state,
    make_step,
    together,
)
from wmresearch.training.warm_start import warm_start

Tree = TypeVar("Tree")


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
    arrangement: Arrangement | None
    """How the state lies on several devices; None: on one."""

    def initial_params(self) -> Params:
        """The parameters before the first step.

        Raises:
            ConfigError: they come from a run that is not usable.
        """
        drawn = initialize(self.transformer, purpose_key(self.config.seed, Purpose.INITIALIZATION))
        return warm_start(self.config, self.vocab_size, drawn)

    def initial_state(self) -> TrainState:
        """The state before the first step, not arranged.

        Raises:
            ConfigError: it comes from a run that is not usable.
        """
        return self.state_at(self.initial_params())

    def state_like(self) -> TrainState:
        """Shapes and types of a state, by which one is restored."""
        return jax.eval_shape(self.state_at, abstract_params(self.transformer))

    def state_at(self, params: Params) -> TrainState:
        """The state of a run that starts at these parameters."""
        memory = {name: kept for penalty in self.penalties for name, kept in penalty.start(params).items()}
        memory |= self.parts.skip.start() if self.parts.skip else {}
        return make_state(params, self.optimizer, self.parts.trained, memory)

    def placed(self, state: TrainState) -> TrainState:
        """A state where its devices have it, as `step` takes it."""
        return state if self.arrangement is None else self.arrangement.put(state)

    def start(self) -> TrainState:
        """The state before the first step, placed.

        Raises:
            ConfigError: it comes from a run that is not usable.
        """
        return self.placed(self.initial_state())

    def resume(self, checkpoints: Checkpoints, step: int) -> TrainState:
        """The state that was saved after a step, placed. Each process reads all of it, and its devices take theirs."""
        state = checkpoints.restore(self.state_like(), step, on_host=self.arrangement is not None)
        assert state is not None
        return self.placed(state)

    def restored(self, state: TrainState) -> TrainState:
        """What was placed, in the order in which it is saved, still on its devices."""
        return state if self.arrangement is None else self.arrangement.restored(state)

    def gathered(self, tree: Tree) -> Tree:
        """What was placed (a state, or parts of it), in the order that all other code knows, on the host."""
        return tree if self.arrangement is None else self.arrangement.gathered(tree)

    def batches(self, stream: Stream, first: int, count: int, room: int) -> Array:
        """The batches of `count` steps, and room for more, as a dispatch takes them."""
        width = stream.context + 1

        def read(rows: slice) -> np.ndarray:
            tokens = np.zeros((room, len(range(stream.batch_size)[rows]), width), np.int32)
            for index in range(count):
                tokens[index] = stream.batch(first + index, rows)
            return tokens

        if self.arrangement is None:
            return jnp.asarray(read(slice(None)))
        return self.arrangement.batches(room, stream.batch_size, width, read)

    @property
    def parts_of_batch(self) -> int:
        """Devices that divide a batch."""
        return 1 if self.arrangement is None else self.arrangement.mesh.shape["data"]

    def dispatch(self, room: int) -> Dispatch:
        """The compiled function of up to so many steps."""
        here = self.arrangement
        if here is None:
            return make_dispatch(self.step, room)
        shardings = here.shardings(jax.eval_shape(here.arrange, self.state_like()))
        return make_dispatch(self.step, room, shardings, here.everywhere)

    def evaluate(self) -> Evaluate:
        """The compiled function of a split's batches."""
        return make_evaluate(self.nats, None if self.arrangement is None else self.arrangement.everywhere)

    def stated(self) -> dict[str, Any]:
        """What a run's manifest says of how it is trained, beyond its config."""
        chosen = self.config.optimizer
        if not isinstance(chosen, MuonConfig):
            return {}
        return {"muon_shape_factors": muon_shape_factors(chosen, declared(self.transformer))}

    def given(self) -> Given:
        """What the run gives its steps: the keys of what is random in them, and its numbers."""
        seed, model = self.config.seed, self.config.model
        found = Given(
            dropout=purpose_key(seed, Purpose.DROPOUT) if model.dropout else None,
            masks=purpose_key(seed, Purpose.MASKS) if isinstance(model.head_output, SparseConfig) else None,
            ranks=purpose_key(seed, Purpose.RANKS) if self.parts.draw else None,
            numbers={key: np.asarray(number, float) for key, number in numbers(self.config).items()},
        )
        return found if self.arrangement is None else self.arrangement.whole(found)


def make_program(config: RunConfig, vocab_size: int) -> Program:
    """The functions of a run; nothing is computed yet."""
    transformer = Transformer(config.model, vocab_size, config.execution)
    nats, apply = make_nats(transformer, config.model.dtype), make_apply(transformer, config.model.dtype)
    arrangement = _arrangement(config, transformer)
    if arrangement is not None:
        how = config.parallel
        nats = make_divided_nats(config.model, arrangement, how.implementation, how.shard_positions)
    parts, penalties = _parts(config, transformer)
    optimizer = make_optimizer(config.optimizer, config.training.steps, parameter_facts(transformer))

    def step(state: TrainState, tokens: Int[Array, "b t1"], given: Given) -> tuple[TrainState, Metrics]:
        here = with_numbers(config, given.numbers)
        return _make_step(here, transformer, nats, arrangement)(state, tokens, given)

    return Program(config, transformer, vocab_size, apply, nats, optimizer, parts, penalties, step, arrangement)


def _make_step(config: RunConfig, transformer: Transformer, nats: Nats, arrangement: Arrangement | None) -> Step:
    """The step of a config, whose numbers may be arguments of the program that is being made."""
    steps, chosen = config.training.steps, config.optimizer
    parts, facts = _parts(config, transformer)[0], parameter_facts(transformer)
    if arrangement is not None and arrangement.moves:
        parts, facts = arranged_parts(parts, arrangement), arranged_facts(arrangement)
    schedule = make_schedule(chosen.schedule, chosen.learning_rate, steps)
    optimizer = make_optimizer(chosen, steps, facts)
    return make_step(make_loss(nats), optimizer, schedule, parts, config.execution.accumulate)


def _parts(config: RunConfig, transformer: Transformer) -> tuple[Parts, tuple[Penalties | ExpectedRank, ...]]:
    """What the run's steps do besides following the gradient, and those of them that add to it."""
    steps, chosen = config.training.steps, config.optimizer
    maps, own = make_maps(transformer), head_outputs(transformer)
    proximal = lambda penalty: isinstance(penalty, ProximalPenaltyConfig) and penalty.step == "proximal"
    by_gradient = [penalty for penalty in config.penalties if not proximal(penalty)]
    group = config.model.n_heads // config.model.kv_heads
    penalties: list[Penalties | ExpectedRank] = []
    if by_gradient:
        penalties.append(Penalties(by_gradient, maps, steps, group, own))
    after: list[Change] = [
        make_proximal_step(penalty, transformer, steps)
        for penalty in config.penalties
        if isinstance(penalty, ProximalPenaltyConfig) and penalty.step == "proximal"
    ]
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
    parts = Parts(
        draw=draw,
        penalties=together(*penalties),
        decay=None if is_zero(chosen.frobenius_decay) else make_map_decay(chosen.frobenius_decay, maps, own),
        constrain=constrain if sparsity is not None and sparsity.follows_mask else None,
        after=tuple(after),
        trained=trained(transformer),
        skip=SkipSpikes(chosen.skip_spikes) if chosen.skip_spikes else None,
    )
    return parts, tuple(penalties)


def _arrangement(config: RunConfig, transformer: Transformer) -> Arrangement | None:
    """How the state lies on the devices that the config asks for; None: on one device.

    Raises:
        ConfigError: there are not so many, they do not fit, or the heads cannot be divided.
    """
    sizes = mesh_sizes(config, jax.device_count(), jax.process_count())
    if sizes is None:
        return None
    placement = make_placement(config.model, transformer, sizes.head)
    mesh = make_mesh(sizes, placement.shards[1])
    return Arrangement(transformer, placement, mesh, config.parallel.shard_optimizer)
