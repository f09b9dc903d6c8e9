"""A text with characters of one, two and three bytes, the smallest run over it, and what runs leave behind."""

import random
import time
from collections.abc import Callable
from pathlib import Path

from wmresearch.config import RunConfig, parse_run
from wmresearch.training.checkpoints import Checkpoints
from wmresearch.training.run_directory import RunDirectory

_WORDS = ["def", "return", "naïve", "für", "→", "x", "self", "yield", "日本", "import"]
_DRAW = random.Random(0)
TEXT = "".join(_DRAW.choice(_WORDS) + _DRAW.choice(" \n") for _ in range(2500))


def tiny(text: Path, steps: int = 20) -> dict:
    return {
        "model": {"d_model": 16, "n_layers": 1, "n_heads": 2, "context": 16},
        "data": {"corpus": {"kind": "text", "path": str(text)}, "tokenizer": {"kind": "byte"}, "batch_size": 4},
        "optimizer": {"learning_rate": 1e-2, "schedule": {"kind": "cosine", "warmup": 3}},
        "training": {"steps": steps, "evaluate_every": 8, "log_every": 6, "steps_per_dispatch": 4},
        "tracking": {"wandb": {"mode": "disabled"}},
    }


def config(text: Path, /, **changes) -> RunConfig:
    """The smallest run, with changes by dotted key (`__` for the dot)."""
    data = tiny(text)
    for key, value in changes.items():
        *folders, last = key.split("__")
        at = data
        for folder in folders:
            at = at.setdefault(folder, {})
        at[last] = value
    return parse_run(data, "test")


def metrics_bytes(path: Path) -> bytes:
    return (path / "metrics.jsonl").read_bytes()


def saved_steps(path: Path) -> list[int]:
    return sorted(int(folder.name) for folder in path.glob("checkpoints/*") if folder.name.isdigit())


def final_state(path: Path, config: RunConfig):
    """The newest checkpoint of a run."""
    from wmresearch.data import load_corpus
    from wmresearch.training.program import make_program

    like = make_program(config, load_corpus(config.data).tokenizer.vocab_size).state_like()
    checkpoints = Checkpoints(path / "checkpoints")
    state = checkpoints.restore(like)
    checkpoints.close()
    return state


def same(one, other) -> bool:
    """Whether two trees hold the same bits."""
    import jax
    import numpy as np

    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return jax.tree.structure(one) == jax.tree.structure(other) and all(
        a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs
    )


def last_step(path: Path) -> int:
    """The last step that a run has logged; 0 where there is none."""
    lines = RunDirectory(path).metrics()
    return lines[-1]["step"] if lines else 0


def wait_until(true: Callable[[], object], seconds: float = 300.0) -> None:
    """Until what another process does is seen."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.005)
