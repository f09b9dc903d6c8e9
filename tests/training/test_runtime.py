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


def test_without_a_gpu_s_plugin_nothing_is_set(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(runtime, "importlib", SimpleNamespace(util=SimpleNamespace(find_spec=lambda _: None)))
    runtime._set_gpu_flags()
    assert os.environ["XLA_FLAGS"] == ""


def test_this_version_of_xla_knows_the_flags():
    """It ends the process at one that it does not know."""
    flags = " ".join(f"--{name}={value}" for name, value in runtime.GPU_FLAGS.items())
    code = "import jax; print(jax.devices('cpu')[0].platform)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "cpu"), done.stderr
