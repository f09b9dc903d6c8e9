"""Process-wide settings of JAX, in one place."""

from __future__ import annotations

import importlib.util
import os

import jax
import scipy.linalg.cython_lapack  # noqa: F401, the library that is to be limited: JAX loads it later
from threadpoolctl import threadpool_limits

from wmresearch.config import RunConfig
from wmresearch.data import cache_folder
from wmresearch.training.compiled_cache import remove_damaged

GPU_FLAGS = {"xla_gpu_triton_gemm_any": "true", "xla_gpu_enable_latency_hiding_scheduler": "true"}
"""Of XLA, as JAX's GPU performance tips recommend. What the user has set in XLA_FLAGS stays as it is."""

DETERMINISTIC_FLAGS = {"xla_gpu_deterministic_ops": "true"}
"""Of XLA, for sums in one order and kernels that are not chosen by time: slower, and the same bits at every start."""
DETERMINISTIC = "WMRESEARCH_DETERMINISTIC"
"""Environment variable that asks for them by `1`, in this process and those that it starts."""


def prepare_runtime(config: RunConfig) -> None:
    """Turns on the persistent compilation cache, float64 where the config asks for it, and XLA's flags for GPUs.

    With its minimum compile time at 0, a second process with the same program compiles in a fraction of a second.

    LAPACK, which XLA on CPUs calls for one small matrix at a time, gets one thread unless the user says otherwise:
    OpenBLAS's own threads wait for those of XLA, and a step with a nuclear norm took a fifth longer.
    """
    if "OPENBLAS_NUM_THREADS" not in os.environ:
        threadpool_limits(1, user_api="blas")
    _set_gpu_flags()
    compiled = cache_folder() / "compiled"
    remove_damaged(compiled)
    jax.config.update("jax_compilation_cache_dir", str(compiled))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_enable_x64", "float64" in (config.model.dtype, config.model.param_dtype))


def _set_gpu_flags() -> None:
    """Read by XLA as its backend starts, which nothing before this has done."""
    if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        return
    given = os.environ.get("XLA_FLAGS", "")
    wanted = GPU_FLAGS | (DETERMINISTIC_FLAGS if os.environ.get(DETERMINISTIC) == "1" else {})
    flags = [f"--{name}={value}" for name, value in wanted.items() if f"--{name}=" not in given]
    os.environ["XLA_FLAGS"] = " ".join([*given.split(), *flags])
