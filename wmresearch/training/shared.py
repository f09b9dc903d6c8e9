"""What the runs of a cohort share: their compiled functions, each made once, whichever run comes to it first.

A cohort's runs differ only in seed and numbers, which their programs take as arguments (`config.traced`). Each is
trained by the ordinary loop, on a thread of its own. By `map` a run's dispatches are calls of the program that it would
compile alone, so its results are the same to the last bit. By `vmap` the dispatches of all runs are one call of a
batched program, which rounds otherwise.

Where runs are side by side, a thread compiles what they call later while they start: else they wait for one another's
compiling, a core each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from wmresearch.config import RunConfig
from wmresearch.training.interruption import UNWAITED
from wmresearch.training.step import Given, Metrics, Step, TrainState, make_steps

if TYPE_CHECKING:
    from wmresearch.training.stage import Stage

Batching = Literal["map", "vmap"]
T = TypeVar("T")


class Shared:
    """The stages of a cohort's runs, by what they are compiled from."""

    def __init__(self, runs: int = 1, side_by_side: int = 1, batching: Batching = "map") -> None:
        self.runs, self.side_by_side, self.batching = runs, side_by_side, batching
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._over = threading.Event()
        self.stages: dict[Any, Stage] = {}
        self._abreast: list[Abreast] = []
        self._left = 0

    def stated(self) -> dict[str, Any]:
        """What a run's manifest says of its cohort."""
        return {"runs": self.runs, "side_by_side": self.side_by_side, "batching": self.batching}

    def stage(self, key: Any, config: RunConfig, make: Callable[[], Stage]) -> Stage:
        """The stage of a key, as a run of this config has it; made where it is not there."""
        with self._lock:
            if key not in self.stages:
                self.stages[key] = self._abreast_where_batched(make())
                if self.side_by_side > 1:
                    self.compile_ahead(self.stages[key])
        found = self.stages[key]
        return replace(found, program=replace(found.program, config=config))

    def read(self, load: Callable[[], T]) -> T:
        """What is loaded, by one run at a time.

        TFDS replaces Python's import while it is imported: what another thread imports then may be of no use to it.
        """
        with self._reading:
            return load()

    def leave(self) -> None:
        """A run has ended: no other waits for it."""
        with self._lock:
            self._left += 1
            for abreast in self._abreast:
                abreast.leave()

    def close(self) -> None:
        """No run is trained any more: nothing more is compiled ahead."""
        self._over.set()

    def compile_ahead(self, stage: Stage) -> None:
        """Begins to compile what runs will call, one after another, on a thread of its own."""
        device = jax.config.jax_default_device  # type: ignore[attr-defined]  # of this thread: a program is made for it

        def work() -> None:
            with jax.default_device(device), suppress(Exception):  # which the call that needs it raises
                for compile_one in stage.ahead():
                    if self._over.is_set():
                        return
                    compile_one()

        threading.Thread(target=work, name=UNWAITED).start()

    def _abreast_where_batched(self, stage: Stage) -> Stage:
        if self.batching == "map":
            return stage
        dispatch = Abreast(stage.program.step, stage.room, self.side_by_side, self._left)
        self._abreast.append(dispatch)
        return replace(stage, dispatch=dispatch)


class Abreast:
    """The dispatches of runs on their own threads as one call of one batched program.

    A run waits until all that are still trained have asked. Places of runs that have ended are filled with a copy of
    another, which takes no step, so that the program stays the same.
    """

    def __init__(self, step: Step, room: int, runs: int, ended: int = 0) -> None:
        self._call = make_batched(step, room)
        self._runs, self._training = runs, runs - ended
        self._changed = threading.Condition()
        self._asked: list[_Request] = []

    def __call__(
        self, state: TrainState, tokens: Int[Array, "k b t1"], n: int, given: Given
    ) -> tuple[TrainState, Metrics]:
        own = _Request((state, tokens, n, given))
        with self._changed:
            self._asked.append(own)
            self._answer_all()
            while own.answer is None:
                self._changed.wait()
        if isinstance(own.answer, BaseException):
            raise own.answer
        return own.answer

    def leave(self) -> None:
        """A run has ended."""
        with self._changed:
            self._training -= 1
            self._answer_all()

    def _answer_all(self) -> None:
        """Where all that are still trained have asked."""
        if not self._asked or len(self._asked) < self._training:
            return
        asked, self._asked = self._asked, []
        state, tokens, _, given = asked[0].arguments
        filled = [request.arguments for request in asked]
        filled += [(state, tokens, 0, given)] * (self._runs - len(asked))
        try:
            answers: list[Any] = self._call(*map(list, zip(*filled, strict=True)))
        except BaseException as error:  # each run fails of it
            answers = [error] * len(asked)
        for request, answer in zip(asked, answers, strict=False):
            request.answer = answer
        self._changed.notify_all()


class _Request:
    def __init__(self, arguments: tuple[TrainState, Array, int, Given]) -> None:
        self.arguments = arguments
        self.answer: tuple[TrainState, Metrics] | BaseException | None = None


def make_batched(step: Step, room: int) -> Callable[..., list[tuple[TrainState, Metrics]]]:
    """Lists of states, batches, numbers of steps and what is given → the new states and metrics."""
    several = jax.vmap(make_steps(step, room))

    def call(states: list[Any], tokens: list[Any], n: list[Any], given: list[Any]) -> list[tuple[TrainState, Metrics]]:
        stacked = (jax.tree.map(lambda *leaves: jnp.stack(leaves), *items) for items in (states, tokens, n, given))
        found = several(*stacked)
        return [jax.tree.map(lambda leaf, index=index: leaf[index], found) for index in range(len(states))]

    return jax.jit(call)
