"""What a run and a sweep are: frozen, validated, hashable. Knows no JAX."""

from wmresearch.config.identity import run_id, scientific
from wmresearch.config.loading import ArmRun, load_run, load_sweep, parse_run
from wmresearch.config.problems import ConfigError, Problem
from wmresearch.config.run import RunConfig
from wmresearch.config.sweep import SweepConfig

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
