"""Saves and restores a run's state with orbax: parameters, optimizer state, step. Nothing else is needed to go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from wmresearch.head_output.weights import Params
from wmresearch.parallel.agreement import is_first, several
from wmresearch.training.checkpoint_sums import record
from wmresearch.training.step import TrainState

_STARTING = threading.Lock()
"""orbax numbers the saves of a process, and takes the newest number to be its own: one begins at a time."""


class Checkpoints:
    """The checkpoints of one run, written in the background, the newest `keep` kept.

    Where several processes train it, each of them has to open, save, restore and close alike: it writes what its
    devices hold, and reads everything.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            async_options=ocp.AsyncOptions(create_directories_asynchronously=False),  # orders by the number below
        )
        self._manager = ocp.CheckpointManager(folder, options=options)
        self._folder = folder
        self._last: tuple[int, Mapping[str, int]] | None = None
        self._recording = threading.Thread()

    def save(self, state: TrainState, step: int, lines: Mapping[str, int] | None = None) -> None:
        """Starts to write; the state may be donated as soon as this returns.

        `lines`: how many each log of the run has.
        """
        if self._manager.latest_step() != step:
            self._record_last()
            self._last = step, lines or {}
            items = {"params": state.params, "rest": (state.optimizer, state.step, state.memory)}
            args = ocp.args.Composite(**{name: ocp.args.StandardSave(item) for name, item in items.items()})
            with _STARTING:
                self._manager.save(step, args=args)

    def _record_last(self, *, wait: bool = False) -> None:
        """Writes the sums of what was saved last, which is there by then; in the background, unless told to wait."""
        if self._recording.ident is not None:
            self._recording.join()
        self._manager.wait_until_finished()
        if self._last is not None and is_first():
            self._recording = threading.Thread(target=record, args=(self._folder, *self._last), daemon=True)
            self._recording.start()
            if wait:
                self._recording.join()
        self._last = None

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
        """Waits until what was started is written."""
        self._record_last(wait=True)
        self._manager.close()


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
def open_checkpoints(folder: Path, keep: int, alike: tuple[type[BaseException], ...] = ()) -> Iterator[Checkpoints]:
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
