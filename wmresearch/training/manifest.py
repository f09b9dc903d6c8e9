"""What a result was made from."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from wmresearch.config import RunConfig
from wmresearch.config.identity import SCHEMA_VERSION
from wmresearch.parallel.mesh import mesh_sizes

_PACKAGES = (
    "wmresearch", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "grain", "tensorflow-datasets",
    "tokenizers", "wandb",
)  # fmt: skip


def make_manifest(run_id: str, config: RunConfig, corpus: str, corpus_digest: str) -> dict[str, Any]:
    """Versions, commit, devices and how they are divided, corpus digest, config hash, command."""
    commit, dirty = _commit()
    mesh = mesh_sizes(config, jax.device_count(), jax.process_count())
    return {
        "run_id": run_id,
        "config_hash": run_id,
        "schema_version": SCHEMA_VERSION,
        "commit": commit,
        "dirty": dirty,
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in _PACKAGES},
        "device": f"{jax.device_count()} × {device_name()}",
        "processes": jax.process_count(),
        "mesh": None if mesh is None else asdict(mesh),
        "corpus": corpus,
        "corpus_digest": corpus_digest,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "xla_flags": os.environ.get("XLA_FLAGS"),
    }


def device_name() -> str:
    """The kind of device that programs run on."""
    kind = jax.devices()[0].device_kind
    if kind != "cpu":
        return kind
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"CPU {model or platform.processor() or platform.machine()} ({os.cpu_count()} cores)"


def _commit() -> tuple[str | None, bool | None]:
    """The commit that this package's code is at, and whether the tree differs from it; None outside a clone."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True)
        changed = subprocess.run(
            [*git, "diff", "--stat", "HEAD"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None, None
    return head.stdout.strip(), bool(changed.stdout.strip())
