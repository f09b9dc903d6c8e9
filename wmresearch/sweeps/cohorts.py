"""Cohorts: runs that differ in seed and numbers alone, trained by one compiled program in one process."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wmresearch.config import RunConfig
from wmresearch.config.traced import program_key as cohort_key
from wmresearch.data.tokenizers import vocab_size

if TYPE_CHECKING:
    from wmresearch.training.shared import Batching

__all__ = ["Unit", "batching_of", "bytes_of_run", "cohort_key", "side_by_side", "units"]

_SHARE_OF_MEMORY = 0.8
_LARGE_ALPHABET = 4096
"""Symbols of a text whose tokenizer depends on it, for an estimate."""


@dataclass(frozen=True)
class Unit:
    """Runs of one cohort, as `sweep.json` has them, for one worker."""

    runs: tuple[dict[str, Any], ...]
    alone: bool = False
    """One run with the worker for itself: what it was trained beside took too much, or the process died."""


def units(runs: Sequence[dict[str, Any]], workers: int) -> list[Unit]:
    """The runs by cohort, in order; none so large that another worker would have nothing to do. `alone`: by itself."""
    cohorts: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        cohorts[run["run_id"] if run.get("alone") else run.get("cohort", run["run_id"])].append(run)
    most = max(1, len(runs) // workers)
    return [Unit(tuple(cohort[i : i + most])) for cohort in cohorts.values() for i in range(0, len(cohort), most)]


def side_by_side(config: RunConfig, runs: int, workers: int) -> int:
    """How many of a cohort's runs this process trains at a time, of `workers` that share the machine."""
    import jax

    mesh, first = config.parallel.mesh, jax.local_devices()[0]
    if mesh is not None and mesh.divides:
        return 1
    on_cpu, batched = first.platform == "cpu", batching_of(config) == "vmap"
    if batched:
        wanted = runs
    elif mesh is not None and mesh.run != "auto":
        wanted = mesh.run
    else:
        wanted = _cores() // workers if on_cpu else jax.local_device_count()
    memory = _free_memory() / workers if on_cpu else (first.memory_stats() or {}).get("bytes_limit", math.inf)
    devices = 1 if on_cpu or batched else jax.local_device_count()
    fitting = memory * _SHARE_OF_MEMORY * devices / bytes_of_run(config)
    return int(max(1, min(runs, wanted, fitting)))


def batching_of(config: RunConfig) -> Batching:
    """How the dispatches of a cohort's runs are made: batched only those of one shape, on one device."""
    from wmresearch.training.stage import cut_steps

    mesh = config.parallel.mesh
    return "map" if (mesh is not None and mesh.divides) or cut_steps(config) else config.execution.cohort


def bytes_of_run(config: RunConfig) -> float:
    """What training one run is estimated to take: parameters with gradients and two moments, activations, logits."""
    from wmresearch.model.cost import bytes_of, model_cost

    vocabulary = vocab_size(config.data.tokenizer) or _LARGE_ALPHABET
    model, tokens = config.model, config.data.batch_size * config.model.context / config.execution.accumulate
    layer = 16 * model.d_model + 2 * model.n_heads * min(model.context, 64) + 3 * model.mlp_width
    logits = 3 * min(tokens, config.execution.logits_block or tokens) * vocabulary
    numbers = 4 * model_cost(model, vocabulary).parameters + tokens * model.n_layers * layer + logits
    return numbers * max(4, bytes_of(model.dtype))


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_memory() -> float:
    """Bytes that can be had without swapping, where the system says."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return float(dict(line.split(":", 1) for line in lines)["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return math.inf
