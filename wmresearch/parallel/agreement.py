"""What the processes of a run tell each other while it is prepared, trained, and ended.

Words go through the store of `jax.distributed`, which may wait as long as it takes. Only what is asked at each dispatch
goes through the devices, in turn with the programs that train, so that nobody waits for the answer.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.distributed import global_state  # the store has no public name; orbax takes it from here too
from jax.experimental.multihost_utils import broadcast_one_to_all
from jax.sharding import Mesh, NamedSharding, PartitionSpec

T = TypeVar("T")
Answer = Callable[[], int]

_LOGGER = logging.getLogger(__name__)
_NAMES = itertools.count()
"""Every word in the store has a name of its own: processes ask in the same order, and so count alike."""
_FAILED = "wmresearch/failed"
_WAIT_MS = 5_000
_LOOK_SECONDS = 1.0


def several() -> bool:
    """Whether other processes train with this one. Asking a process alone does not start JAX's backend."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def is_first() -> bool:
    """Whether this process is the one that decides and writes."""
    return not several() or jax.process_index() == 0


def gathered(value: T) -> list[T]:
    """What each process says, as JSON data, in their order. Returns when all have said it."""
    if not several():
        return [value]
    name = f"wmresearch/{next(_NAMES)}"
    _say(f"{name}/{jax.process_index()}", json.dumps(value))
    return [json.loads(_heard(f"{name}/{index}")) for index in range(jax.process_count())]


def agreed(value: T) -> T:
    """What process 0 says, as JSON data."""
    if not several():
        return value
    name = f"wmresearch/{next(_NAMES)}"
    if is_first():
        _say(name, json.dumps(value))
    found: T = json.loads(_heard(name))
    return found


def processes_said() -> list[int]:
    """How many processes each was told of. JAX's backend, which would wait for all of them, need not have started."""
    _say(f"wmresearch/of/{global_state.process_id}", str(global_state.num_processes))
    return [int(_heard(f"wmresearch/of/{index}")) for index in range(int(_heard("wmresearch/of/0")))]


def _store() -> Any:
    assert global_state.client is not None
    return global_state.client


def _say(name: str, text: str) -> None:
    _store().key_value_set(name, text)


def _heard(name: str) -> str:
    """A word in the store, once it is there. Who it is waited for may be preparing a corpus: that can take hours."""
    while True:
        try:
            found: str = _store().blocking_key_value_get(name, _WAIT_MS)
            return found
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise


def make_largest() -> Callable[[int], Answer]:
    """A function that every process calls with a number; what it returns gives the largest, the same to all."""
    if not several():
        return lambda number: lambda: number
    everyone = Mesh(np.array(jax.devices()), ("all",))
    own, whole = (NamedSharding(everyone, PartitionSpec(*axes)) for axes in (("all",), ()))
    largest = jax.jit(jnp.max, out_shardings=whole)

    def ask(number: int) -> Answer:
        said = np.array([number], np.int32)
        found = largest(jax.make_array_from_callback((everyone.size,), own, lambda _: said))
        return lambda: int(found)

    return ask


def from_first(arrays: list[np.ndarray] | None, like: list[jax.ShapeDtypeStruct]) -> list[np.ndarray]:
    """Arrays of process 0's host, bit by bit, on all hosts; their shapes and types are known to all."""
    sizes = [int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in like]
    if is_first():
        assert arrays is not None
        sent = np.frombuffer(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays), np.uint8)
    else:
        sent = np.zeros(sum(sizes), np.uint8)
    came = np.asarray(broadcast_one_to_all(sent)).tobytes() if several() else sent.tobytes()
    starts = np.cumsum([0, *sizes])
    return [
        np.frombuffer(came[start : start + size], leaf.dtype).reshape(leaf.shape).copy()
        for start, size, leaf in zip(starts, sizes, like, strict=False)
    ]


class FailedAmongOthersError(Exception):
    """A process failed, by its cause, and the others know: it has to end at once (`leave`)."""

    def __init__(self, elsewhere: str | None) -> None:
        super().__init__(elsewhere or "this process failed")
        self.elsewhere = elsewhere
        """What another process had said before of a failure of its own, which likely is the cause of this one."""


@contextmanager
def failing_together(write: Callable[[str], None]) -> Iterator[None]:
    """Within the block a process that fails takes the others with it.

    What waits for a device of a failed process waits forever, and cannot be interrupted. So each process looks every
    second whether another has failed: then process 0 writes why, and all end with exit code 1. One that dies without a
    word is missed by JAX, which aborts the others after its heartbeat timeout (100 s).

    Raises:
        FailedAmongOthersError: from whatever the block raised, where there are several processes.
    """
    if not several():
        yield
        return
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            reason = first_failure()
            if reason is not None and not over.is_set():
                _LOGGER.error("%s; process %d ends too", reason, jax.process_index())
                if is_first():
                    write(reason)
                _linger()
                leave(1)

    threading.Thread(target=look, name="failing together", daemon=True).start()
    try:
        yield
    except BaseException as error:
        over.set()
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:400].removesuffix(": ")
        said = f"process {jax.process_index()} failed: {reason}"
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # another was faster
            _say(_FAILED, said)
        first = first_failure()
        _linger()
        raise FailedAmongOthersError(None if first == said else first) from error
    finally:
        over.set()


def _linger() -> None:
    """Lets the others look once more before process 0 ends: the store is there, and JAX aborts those that lose it."""
    if is_first():
        time.sleep(2 * _LOOK_SECONDS)


def first_failure() -> str | None:
    """What the first process that failed said of it."""
    if not several():
        return None
    try:
        found: str = _store().key_value_try_get(_FAILED)
        return found
    except jax.errors.JaxRuntimeError:  # there is no such word
        return None


def leave(code: int) -> NoReturn:
    """Ends this process without waiting for the others, as an orderly end would wait for those that failed."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
