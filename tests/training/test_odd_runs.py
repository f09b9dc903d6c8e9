"""Runs at the edges of what a config allows: they end, and every number that they write is finite."""

import jax
import pytest

from tests.training.examples import config
from wmresearch.training.loop import train
from wmresearch.training.run_directory import RunDirectory

SHORT = {"steps": 4, "log_every": 1, "evaluate_every": 2, "steps_per_dispatch": 4}
ALL = [
    {"kind": kind, "strength": 0.1, **more}
    for kind, more in (
        ("nuclear", {"step": "proximal"}), ("frobenius", {"strength": 0.0}), ("spectral", {"every": 100}),
        ("schatten", {"p": 0.5}), ("l1", {}), ("group_lasso", {"groups": "blocks", "block": 1}),
        ("head_overlap", {}), ("factor_decay", {"every": 2}), ("orthogonal_factors", {}),
    )
]  # fmt: skip
NARROW = {"model__param_dtype": "bfloat16", "model__dtype": "bfloat16"}
WIDE = {"model__param_dtype": "float64", "model__dtype": "float64"}


@pytest.mark.parametrize(
    "changes",
    [
        {
            **NARROW, "model__n_heads": 1, "penalties": ALL,
            "model__head_output": {"kind": "factorized", "rank": 1, "init": {"gauge": 10}, "rebalance_every": 2},
        },
        {
            **WIDE, "model__n_layers": 2, "model__head_output": {"kind": "factorized", "ranks": [[1, 0], [0, 2]]},
            "optimizer__kind": "muon", "optimizer__heads": "per_head", "optimizer__frobenius_decay": 0.1,
            "penalties": [{"kind": "nuclear", "target": {"value": 0.01, "norm": "nuclear"}, "every": 3}],
        },
        {"model__d_head": 20, "penalties": [{"kind": "frobenius", "strength": 0.1}]},
    ],
    ids=["bfloat16, one head of rank 1, everything", "float64, heads of rank 0", "heads wider than the model"],
)  # fmt: skip
def test_an_odd_run_ends_and_is_finite(changes, text, tmp_path):
    with jax.enable_x64(changes.get("model__param_dtype") == "float64"):
        chosen = config(text, training=SHORT, **changes)
        assert train(chosen, tmp_path)["state"] == "finished"
    directory = RunDirectory(tmp_path)
    for line in directory.metrics() + directory.diagnostics():
        assert None not in jax.tree.leaves(line, is_leaf=lambda leaf: leaf is None), line
    assert len(directory.diagnostics()) == 3
