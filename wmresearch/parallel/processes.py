"""Several processes, often on several hosts, that train one run: who they are, and how they find each other."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import threading
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax

from wmresearch.config import ConfigError, Problem
from wmresearch.parallel.agreement import processes_said

WAIT_SECONDS = 300
"""For all processes to start, unless said otherwise: a scheduler may be slow with the last of many hosts."""

_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
_FLAGS = ("--coordinator", "--processes", "--process")
_METADATA_SECONDS = 2.0


@dataclass(frozen=True)
class Group:
    """The processes of a run, as one of them was told."""

    coordinator: str | None = None
    """HOST:PORT that process 0 listens at; None: JAX reads it from the cluster, like what else is None."""
    processes: int | None = None
    process: int | None = None
    cluster: Literal["slurm", "tpu"] | None = None
    """Whose environment says the rest; None: all is said here, and each process has all devices that it sees."""


def find_group(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Group | None:
    """The group that flags name, else the environment; None: this process trains alone.

    The environment is that of JAX (`JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES`, `JAX_PROCESS_ID`), of a SLURM job
    step with several tasks, or of a TPU with several hosts.

    Raises:
        ConfigError: they are given in part, or cannot be.
    """
    flags = tuple(None if value is None else str(value) for value in (coordinator, processes, process))
    if any(value is not None for value in flags):
        return _stated(dict(zip(_FLAGS, flags, strict=True)), "command line")
    cluster: Literal["slurm", "tpu"] | None = None
    if int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        cluster = "slurm"
    elif _tpu_hosts(environment) > 1:
        cluster = "tpu"
    given = {name: environment.get(name) or None for name in _VARIABLES}
    found = [value for value in given.values() if value is not None]
    if len(found) == len(given) or (found and cluster is None):
        return _stated(given, "environment")
    return None if cluster is None else Group(cluster=cluster)


def _stated(given: Mapping[str, str | None], source: str) -> Group | None:
    """The group of three values, under the names by which they were given."""
    coordinator, processes, process = given
    problems: list[Problem] = []
    missing = [name for name, value in given.items() if value is None]
    if missing:
        held = ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)
        expected = f"all of {', '.join(given)}: where process 0 listens, how many there are, and which this one is"
        problems.append(Problem(source, "", held, expected, f"give {' and '.join(missing)} too"))
    address, count, index = given.values()
    if address is not None and not _is_address(address):
        expected = "HOST:PORT of process 0, with a free port of 1 to 65535, for instance node001:8476"
        problems.append(Problem(source, coordinator, address, expected))
    if count is not None and not _is_number(count, 1):
        problems.append(Problem(source, processes, count, "the number of processes, 1 or more"))
    elif index is not None and not _is_number(index, 0, None if count is None else int(count)):
        which = "the first is 0" if count is None else f"0 to {int(count) - 1}, one of {count} processes"
        problems.append(Problem(source, process, index, f"this process's number: {which}"))
    if problems:
        raise ConfigError(problems)
    assert address is not None
    assert count is not None
    assert index is not None
    return Group(address, int(count), int(index)) if int(count) > 1 else None


def _is_address(text: str) -> bool:
    found = re.fullmatch(r"(?:[^\s:/\[\]]+|\[[0-9a-fA-F:.]+\]):(\d{1,5})", text)
    return found is not None and 0 < int(found[1]) < 2**16


def _is_number(text: str, least: int, end: int | None = None) -> bool:
    return text.isascii() and text.isdigit() and least <= int(text) and (end is None or int(text) < end)


def _tpu_hosts(environment: Mapping[str, str]) -> int:
    """Hosts whose TPU chips are one machine, as the environment says, or the metadata server of a Cloud TPU VM."""
    slices = int(environment.get("MEGASCALE_NUM_SLICES") or "1")
    listed = environment.get("TPU_PROCESS_ADDRESSES") or environment.get("TPU_WORKER_HOSTNAMES")
    if listed is not None:
        return len(listed.split(",")) * slices
    chips = any(Path("/dev").glob("accel*")) or Path("/dev/vfio/0").exists()
    if not chips or importlib.util.find_spec("libtpu") is None or "TPU_SKIP_MDS_QUERY" in environment:
        return slices
    server = environment.get("GCE_METADATA_IP", "metadata.google.internal")
    address = f"http://{server}/computeMetadata/v1/instance/attributes/worker-network-endpoints"
    request = urllib.request.Request(address, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=_METADATA_SECONDS) as answer:
            return len(answer.read().decode().split(",")) * slices
    except OSError:  # a machine with chips that is no such VM
        return slices


class NotConnectedError(ConfigError):
    """A process waited in vain, in a thread that cannot be ended: it has to end at once."""


def connect(group: Group, wait_seconds: float = WAIT_SECONDS) -> None:
    """Starts `jax.distributed`, and returns when all processes are there. JAX's backend must not have started.

    Raises:
        NotConnectedError: they were not all there in time.
        ConfigError: process 0 cannot listen; or they were not told of equally many, which all of them learn.
    """
    # Its own handler of SIGTERM would swallow those that come before a run listens for them.
    jax.config.update("jax_enable_preemption_service", False)
    failed: list[Exception] = []
    if group.process == 0 and (taken := _taken(group)) is not None:
        raise ConfigError([_not_connected(group, wait_seconds, [taken])])

    def start() -> None:
        try:
            # JAX's own timeout aborts the process without a word that a user could act on: it comes later than ours.
            jax.distributed.initialize(
                group.coordinator,
                group.processes,
                group.process,
                cluster_detection_method=_DETECTION[group.cluster],
                initialization_timeout=int(wait_seconds) + 3600,
            )
        except (RuntimeError, ValueError, OSError) as error:
            failed.append(error)

    thread = threading.Thread(target=start, name="jax.distributed", daemon=True)
    thread.start()
    thread.join(wait_seconds)
    if thread.is_alive() or failed:
        raise NotConnectedError([_not_connected(group, wait_seconds, failed)])
    said = processes_said()
    if set(said) != {said[0]}:
        found = ", ".join(f"{count} (process {index})" for index, count in enumerate(said))
        raise ConfigError([Problem("processes", "", found, "the same number for all")])


def _taken(group: Group) -> OSError | None:
    """Why process 0 cannot listen at its port, if so: JAX would crash."""
    assert group.coordinator is not None
    port = int(group.coordinator.rpartition(":")[2])
    family, everywhere = (socket.AF_INET6, "::") if socket.has_dualstack_ipv6() else (socket.AF_INET, "0.0.0.0")
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((everywhere, port))
        except OSError as error:
            return error
    return None


_DETECTION = {None: "deactivate", "slurm": "slurm", "tpu": None}
"""Clusters by the names that JAX knows; it finds out itself which kind of TPU this is."""


def _not_connected(group: Group, waited: float, failed: Iterable[Exception]) -> Problem:
    where = group.coordinator or f"the one that {str(group.cluster).upper()} names"
    told = "processes" if group.process is None else f"process {group.process} of {group.processes}"
    for error in failed:
        hint = " ".join(str(error).split())[:300]
        return Problem(told, "coordinator", where, "an address at which process 0 can listen", hint)
    hint = f"waited {waited:g} s; "
    if group.process == 0:
        hint += "start the others with the same --coordinator, each with its own --process, or wait longer (--wait)"
        return Problem(told, "coordinator", where, f"all {group.processes} processes to connect to it", hint)
    hint += "is process 0 started there, is the port free and open, did all others start? Or wait longer (--wait)"
    return Problem(told, "coordinator", where, "process 0 to answer, and all processes to come", hint)
