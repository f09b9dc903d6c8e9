"""Settings of the whole suite, set in the environment before anything is imported: subprocesses have them too."""

import gc
import os
import shutil
import signal
import sys
import tempfile
import threading

import pytest
from hypothesis import settings

_IN_WORKER = "PYTEST_XDIST_WORKER" in os.environ

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# XLA's older code for what is fused on CPUs takes half the time to compile, and a program in one piece a tenth less.
_SOONER = ("--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1")
# Eight virtual devices, for runs that several divide; all others use the first.
_EIGHT = "--xla_force_host_platform_device_count=8"
_OTHERS = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if flag not in (*_SOONER, _EIGHT)]
_USERS = " ".join([*_OTHERS, _EIGHT])
os.environ["XLA_FLAGS"] = _QUICK = " ".join([_USERS, *_SOONER])
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ |= {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_ERROR_REPORTING": "false",
}
os.environ.pop("WANDB_API_KEY", None)
if not _IN_WORKER:
    # One cache for all workers of this session, so that a corpus is prepared once; never the user's own.
    os.environ["WMRESEARCH_CACHE"] = tempfile.mkdtemp(prefix="wmresearch-tests-")

# What runs do (`training.runtime`): a program that one test or worker has compiled is read by all others.
os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{os.environ['WMRESEARCH_CACHE']}/compiled"
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

if threading.current_thread() is threading.main_thread():
    # A shell ignores SIGINT for what it puts in the background, and tests and their processes would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.set_threshold(100_000, 50, 100)  # what tests trace is many small objects, and looking through them took a tenth

settings.register_profile("suite", deadline=None)  # the first example pays for imports and compilation
settings.load_profile("suite")


@pytest.fixture(autouse=True, scope="module")
def quick_compilation(request):
    """Small programs are compiled much faster than they are optimized: here, and in processes that tests start.

    A module of tests that asks whether two programs give the same bits says `OPTIMIZED = True`: users' are optimized.
    With "processes" those that it starts have users' flags too, which no process can change once JAX has begun.
    """
    optimized = getattr(request.module, "OPTIMIZED", False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "0" if optimized else "1")
        patch.setenv("XLA_FLAGS", _USERS if optimized == "processes" else _QUICK)
        patch.delenv("WANDB_SERVICE", raising=False)  # of a run in this process: others start their own
        if "jax" in sys.modules:
            import jax

            if optimized:
                jax.clear_caches()  # what other modules left is not optimized
            jax.config.update("jax_disable_most_optimizations", not optimized)
        yield


def pytest_unconfigure():
    if not _IN_WORKER:
        shutil.rmtree(os.environ["WMRESEARCH_CACHE"], ignore_errors=True)
