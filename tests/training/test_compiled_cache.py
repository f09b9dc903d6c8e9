"""Entries of the folder of compiled programs that were cut off are removed, others stay."""

import os
import subprocess
import sys

from wmresearch.training.compiled_cache import remove_damaged

PROGRAM = """
import sys, jax
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.jit(lambda x: x * 2 + 1)(1.0)
"""


def run(folder):
    """What a process says that compiles a program, or reads it."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    return done.stderr


def test_a_cut_off_entry_is_removed_and_made_again(tmp_path):
    assert "Error reading" not in run(tmp_path)
    assert remove_damaged(tmp_path) == []
    entries = sorted(tmp_path.glob("*-cache"))
    largest = max(entries, key=lambda entry: entry.stat().st_size)
    whole = largest.read_bytes()
    largest.write_bytes(whole[: len(whole) // 2])
    assert "Error reading" in run(tmp_path)
    assert remove_damaged(tmp_path) == [largest]
    assert "Error reading" not in run(tmp_path)
    assert largest.stat().st_size > len(whole) // 2
    assert remove_damaged(tmp_path) == []


def test_only_what_is_new_is_read(tmp_path):
    (tmp_path / "old-cache").write_bytes(b"no program")
    os.utime(tmp_path / "old-cache", (1, 1))
    (tmp_path / ".checked").touch()
    assert remove_damaged(tmp_path) == []
    assert remove_damaged(tmp_path / "no such folder") == []
