"""Process-wide settings: XLA's flags for GPUs."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from wmresearch.training import runtime


@pytest.mark.parametrize("given", ["", "--xla_gpu_triton_gemm_any=false --xla_force_host_platform_device_count=2"])
def test_a_user_s_own_flags_stay(given, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", given)
    monkeypatch.setattr(
        runtime, "importlib", SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: "13" in name))
    )
    runtime._set_gpu_flags()
    runtime._set_gpu_flags()
    flags = os.environ["XLA_FLAGS"].split()
    assert flags[: len(given.split())] == given.split()
    assert sorted({flag.split("=")[0] for flag in flags} - {"--xla_force_host_platform_device_count"}) == sorted(
        f"--{name}" for name in runtime.GPU_FLAGS
    )
    assert len(flags) == len(set(flags)) == 2 + ("force" in given)


def test_deterministic_adds_what_gpus_need(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("WMRESEARCH_DETERMINISTIC", "1")
    found = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: "13" in name))
    monkeypatch.setattr(runtime, "importlib", found)
    runtime._set_gpu_flags()
    assert "--xla_gpu_deterministic_ops=true" in os.environ["XLA_FLAGS"].split()


def test_without_a_gpu_s_plugin_nothing_is_set(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(runtime, "importlib", SimpleNamespace(util=SimpleNamespace(find_spec=lambda _: None)))
    runtime._set_gpu_flags()
    assert os.environ["XLA_FLAGS"] == ""


def test_this_version_of_xla_knows_the_flags():
    """It ends the process at one that it does not know."""
    flags = " ".join(f"--{name}={value}" for name, value in (runtime.GPU_FLAGS | runtime.DETERMINISTIC_FLAGS).items())
    code = "import jax; print(jax.devices('cpu')[0].platform)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "cpu"), done.stderr


@pytest.mark.parametrize("given, threads", [("", 1), ("2", 2)])
def test_lapack_has_one_thread_unless_the_user_says_otherwise(given, threads):
    """In a process of its own, in which SciPy's library is not loaded before."""
    code = (
        "from wmresearch.training.runtime import prepare_runtime\n"
        "from wmresearch.config import load_run\n"
        "import threadpoolctl\n"
        "prepare_runtime(load_run('configs/base/tiny.yaml'))\n"
        "found = [each['num_threads'] for each in threadpoolctl.threadpool_info() if 'scipy' in each['prefix']]\n"
        "print(max(found))"
    )
    environment = {key: value for key, value in os.environ.items() if key != "OPENBLAS_NUM_THREADS"}
    environment |= {"OPENBLAS_NUM_THREADS": given} if given else {}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) == threads
