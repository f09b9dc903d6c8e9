"""Saves and restores a run's state with orbax: parameters, optimizer state, step. Nothing else is needed to go on."""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from wmresearch.head_output.weights import Params
from wmresearch.parallel.agreement import several
from wmresearch.training.checkpoint_sums import record
from wmresearch.training.files import writing
from wmresearch.training.step import TrainState

_LOSS = "validation_loss"
_STARTING = threading.Lock()
"""orbax numbers the saves of a process, and takes the newest number to be its own: one begins at a time."""


@dataclass(frozen=True)
class Keep:
    """Which checkpoints stay when newer ones are saved."""

    newest: int
    """So many."""
    every: int | None = None
    """And those of every n-th step."""
    best: bool = False
    """And the one of the least validation loss."""


class Checkpoints:
    """The checkpoints of one run, written in the background. Without `keep` they are only read.

    Where several processes train it, each of them has to open, save, restore and close alike: it writes what its
    devices hold, and reads everything.
    """

    def __init__(self, folder: Path, keep: Keep | None = None) -> None:
        logging.getLogger("absl").setLevel(logging.CRITICAL)  # orbax says there what it raises, with tracebacks
        self._folder = folder
        self._begun: tuple[int, Mapping[str, int]] = 0, {}
        options = ocp.CheckpointManagerOptions(read_only=True, create=False, save_interval_steps=0)
        if keep is not None:
            options = ocp.CheckpointManagerOptions(
                preservation_policy=_policy(keep),
                best_fn=lambda metrics: metrics[_LOSS],  # without which metrics are not written
                best_mode="min",
                cleanup_tmp_directories=True,  # halves that killed processes left
                async_options=ocp.AsyncOptions(
                    create_directories_asynchronously=False,  # else one that cannot be made is waited for
                    post_finalization_callback=self._record,
                ),
            )
        with _storing(folder):
            self._manager = ocp.CheckpointManager(folder, options=options)

    def save(
        self,
        state: TrainState,
        step: int,
        lines: Mapping[str, int] | None = None,
        validation_loss: float | None = None,
    ) -> None:
        """Starts to write; the state may be donated as soon as this returns.

        `lines`: how many each log of the run has. `validation_loss`: of this state, where it is known.

        Raises:
            OSError: this or what was begun before cannot be written.
        """
        if self._manager.latest_step() == step:
            return
        with _storing(self._folder / str(self._begun[0])):
            self._manager.wait_until_finished()
        self._begun = step, lines or {}
        items = {"params": state.params, "rest": (state.optimizer, state.step, state.memory)}
        args = ocp.args.Composite(**{name: ocp.args.StandardSave(item) for name, item in items.items()})
        metrics = None if validation_loss is None else {_LOSS: validation_loss}
        with _storing(self._folder / str(step)), _STARTING:
            self._manager.save(step, args=args, metrics=metrics)

    def _record(self) -> None:
        """Called in the background by process 0 when all is written, and before the folder gets its name."""
        record(self._folder, *self._begun)

    def steps(self) -> list[int]:
        """The steps that have a checkpoint."""
        return sorted(self._manager.all_steps())

    def restore(self, like: TrainState, step: int | None = None, *, on_host: bool = False) -> TrainState | None:
        """The state of a step, or the newest; None where there is no checkpoint.

        Arrays lie as those of `like` do. Where it has only shapes and types they lie on one device, or `on_host`.
        """
        step = self._manager.latest_step() if step is None else step
        if step is None:
            return None
        found = self._restore(step, params=like.params, rest=(like.optimizer, like.step, like.memory))
        state = TrainState(found["params"], *found["rest"])
        return state if on_host else _on_device(state)

    def restore_params(self, like: Params, step: int) -> Params:
        """The parameters alone, of the checkpoint at a step, laid out as `restore` does."""
        return _on_device(self._restore(step, params=like)["params"])

    def _restore(self, step: int, **like: Any) -> Any:
        args = {name: ocp.args.StandardRestore(_abstract(item)) for name, item in like.items()}
        return self._manager.restore(step, args=ocp.args.Composite(**args))

    def close(self) -> None:
        """Waits until what was started is written.

        Raises:
            OSError: it cannot be. Half of it is removed, which makes room for the run's other files.
        """
        try:
            with _storing(self._folder / str(self._begun[0])):
                self._manager.close()
        except OSError:
            if not several():
                for half in self._folder.glob(f"*{ocp.utils.TMP_DIR_SUFFIX}*"):
                    shutil.rmtree(half, ignore_errors=True)
            raise


def _policy(keep: Keep) -> policies.PreservationPolicy:
    kept: list[policies.PreservationPolicy] = [policies.LatestN(keep.newest)]
    if keep.every is not None:
        kept.append(policies.EveryNSteps(keep.every))
    if keep.best:
        loss = lambda metrics: metrics[_LOSS]
        best = policies.BestN(get_metric_fn=loss, reverse=True, n=1, keep_checkpoints_without_metrics=False)
        kept.append(best)
    return policies.AnyPreservationPolicy(kept)


@contextmanager
def _storing(path: Path) -> Iterator[None]:
    """Within the block an error of the file system is an OSError that names the path. tensorstore's are of no class."""
    with writing(path):
        try:
            yield
        except ValueError as error:
            found = re.search(r"os_error_code='(\d+)'", str(error))
            if found is None:
                raise
            raise OSError(int(found[1]), os.strerror(int(found[1]))) from error


def _abstract(tree: Any) -> Any:
    """What orbax restores by: an array's place, or the host, where it would otherwise ask for the devices of then."""

    def of(leaf: Any) -> Any:
        if getattr(leaf, "sharding", None) is None:
            return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
        return ocp.utils.to_shape_dtype_struct(leaf)

    return jax.tree.map(of, tree)


def _on_device(tree: Any) -> Any:
    # Copied: a program may reuse the memory of its arguments, and this may be the host's.
    return jax.tree.map(lambda leaf: jnp.array(leaf) if isinstance(leaf, np.ndarray) else leaf, tree)


@contextmanager
def open_checkpoints(
    folder: Path, keep: Keep | None = None, alike: tuple[type[BaseException], ...] = ()
) -> Iterator[Checkpoints]:
    """Checkpoints that are complete when the block ends.

    `alike` is what several processes raise together. After anything else one of them must not wait for what is being
    saved: the others may never come to their part of it.
    """
    checkpoints = Checkpoints(folder, keep)
    try:
        yield checkpoints
    except BaseException as error:
        if not several() or isinstance(error, alike):
            checkpoints.close()
        raise
    checkpoints.close()
