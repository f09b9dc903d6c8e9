"""What a run and a sweep are: frozen, validated, hashable. Knows no JAX."""

from wmresearch.config.identity import run_id, scientific
from wmresearch.config.loading import load_run, parse_run
from wmresearch.config.problems import ConfigError, Problem
from wmresearch.config.run import RunConfig
from wmresearch.config.sweep import SweepConfig
from wmresearch.config.sweep_loading import ArmRun, load_sweep

__all__ = [
    "ArmRun",
    "ConfigError",
    "Problem",
    "RunConfig",
    "SweepConfig",
    "load_run",
    "load_sweep",
    "parse_run",
    "run_id",
    "scientific",
]
