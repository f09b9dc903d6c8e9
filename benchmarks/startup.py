"""How long a run takes from the start of its process to the end of its first step, and where the time goes.

    python benchmarks/startup.py [--rounds N] [--out benchmarks/results/startup.md]

Each start is a process of its own. The first has an empty cache folder (no compiled programs, no tokenized text), the
others find what the first left there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PARTS = ("imports", "config and text", "program and first parameters", "first step")
CASES = {
    "d 128, 4 layers": ["model.n_layers=4"],
    "d 128, 4 layers, scan_layers": ["model.n_layers=4", "execution.scan_layers=true"],
    "d 128, 12 layers": ["model.n_layers=12"],
    "d 128, 12 layers, scan_layers": ["model.n_layers=12", "execution.scan_layers=true"],
}
RUN = """
model: {d_model: 128, n_layers: 4, n_heads: 4, context: 64, mlp: gelu_tanh}
data: {corpus: stdlib/small, tokenizer: byte, batch_size: 12}
optimizer: {learning_rate: 1.0e-3}
training: {steps: 1000}
"""


def first_step(config: str, overrides: list[str], started: float) -> dict[str, float]:
    """Seconds of each part, in this process; `started` is when it was asked for."""
    import jax
    import numpy as np

    from wmresearch.config import load_run
    from wmresearch.data import Stream, load_corpus
    from wmresearch.training import loop  # noqa: F401, all that a run imports
    from wmresearch.training.program import make_program
    from wmresearch.training.runtime import prepare_runtime
    from wmresearch.training.step import make_dispatch

    marks = [time.time()]
    run = load_run(config, overrides)
    prepare_runtime(run)
    corpus = load_corpus(run.data, lambda _: None)
    marks.append(time.time())
    program = make_program(run, corpus.tokenizer.vocab_size)
    state = jax.block_until_ready(program.initial_state())
    marks.append(time.time())
    room = run.training.steps_per_dispatch
    tokens = np.zeros((room, run.data.batch_size, run.model.context + 1), np.int32)
    stream = Stream(corpus.splits["train"].tokens, run.data.batch_size, run.model.context, run.seed)
    tokens[:1] = stream.batches(0, 1)
    jax.block_until_ready(make_dispatch(program.step, room)(state, tokens, 1, program.given()))
    marks.append(time.time())
    return dict(zip(PARTS, (b - a for a, b in zip([started, *marks], marks, strict=False)), strict=True))


def start(config: Path, overrides: list[str], cache: Path) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--child", str(config), str(time.time()), *overrides]
    environment = os.environ | {"WMRESEARCH_CACHE": str(cache)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="starts with a filled cache")
    parser.add_argument("--out", type=Path, help="also write the Markdown to this file")
    options = parser.parse_args()
    from page import load, measured_by, put_out

    page = ["# Start of a run", "", f"{measured_by('startup.py')}, medians of {options.rounds} starts.", load(), ""]
    page += [
        "Seconds from the start of the process to the end of the first step.",
        "",
        "| run | start | " + " | ".join(PARTS) + " | in all |",
        "| --- | --- |" + " ---: |" * (len(PARTS) + 1),
    ]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "run.yaml"
        config.write_text(RUN, encoding="utf-8")
        for name, overrides in CASES.items():
            cache = Path(folder) / name
            starts = [start(config, overrides, cache) for _ in range(1 + options.rounds)]
            for label, found in (("first, cache empty", starts[:1]), ("later", starts[1:])):
                cells = [f"{statistics.median(each[part] for each in found):.1f}" for part in PARTS]
                totals = sorted(sum(each.values()) for each in found)
                spread = f" ({totals[0]:.1f}–{totals[-1]:.1f})" if len(totals) > 1 else ""
                cells.append(f"{statistics.median(totals):.1f}{spread}")
                page.append(f"| {name} | {label} | " + " | ".join(cells) + " |")
    put_out(page, options.out)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(first_step(sys.argv[2], sys.argv[4:], float(sys.argv[3]))))
    else:
        main()
