"""Saves and restores a run's state with orbax: parameters, optimizer state, step. Nothing else is needed to go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from wmresearch.head_output.weights import Params
from wmresearch.training.step import TrainState


class Checkpoints:
    """The checkpoints of one run, written in the background, the newest `keep` kept."""

    def __init__(self, folder: Path, keep: int) -> None:
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=True)
        self._manager = ocp.CheckpointManager(folder, options=options)

    def save(self, state: TrainState, step: int) -> None:
        """Starts to write; the state may be donated as soon as this returns."""
        if self._manager.latest_step() != step:
            items = {"params": state.params, "rest": (state.optimizer, state.step, state.memory)}
            args = ocp.args.Composite(**{name: ocp.args.StandardSave(item) for name, item in items.items()})
            self._manager.save(step, args=args)

    def steps(self) -> list[int]:
        """The steps that have a checkpoint."""
        return sorted(self._manager.all_steps())

    def restore(self, like: TrainState) -> TrainState | None:
        """The newest state, laid out as `like` (shapes and types will do); None where there is no checkpoint."""
        step = self._manager.latest_step()
        if step is None:
            return None
        found = self._restore(step, params=like.params, rest=(like.optimizer, like.step, like.memory))
        return TrainState(found["params"], *found["rest"])

    def restore_params(self, like: Params, step: int) -> Params:
        """The parameters alone, of the checkpoint at a step, laid out as `like`."""
        return self._restore(step, params=like)["params"]

    def _restore(self, step: int, **like: Any) -> Any:
        args = {name: ocp.args.StandardRestore(_abstract(item)) for name, item in like.items()}
        return self._manager.restore(step, args=ocp.args.Composite(**args))

    def close(self) -> None:
        """Waits until what was started is written."""
        self._manager.wait_until_finished()
        self._manager.close()


def _abstract(tree: Any) -> Any:
    return jax.tree.map(ocp.utils.to_shape_dtype_struct, tree)


@contextmanager
def open_checkpoints(folder: Path, keep: int) -> Iterator[Checkpoints]:
    """Checkpoints that are complete when the block ends."""
    checkpoints = Checkpoints(folder, keep)
    try:
        yield checkpoints
    finally:
        checkpoints.close()
