"""Process-wide settings of JAX, in one place."""

from __future__ import annotations

import jax

from wmresearch.config import RunConfig
from wmresearch.data import cache_folder


def prepare_runtime(config: RunConfig) -> None:
    """Turns on the persistent compilation cache, and float64 where the config asks for it.

    With its minimum compile time at 0, a second process with the same program compiles in a fraction of a second.
    """
    jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_enable_x64", "float64" in (config.model.dtype, config.model.param_dtype))
