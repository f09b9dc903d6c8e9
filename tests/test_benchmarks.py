"""That benchmarks run and their pages are whole; what tiny models measure means nothing."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jax.errors import JaxRuntimeError

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def run(script, out, *options):
    """The page's text."""
    command = [sys.executable, str(BENCHMARKS / script), "--rounds", "2", "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"})
    assert done.returncode == 0, done.stderr
    text = out.read_text(encoding="utf-8")
    assert done.stdout == text
    return text


def rows(text, columns):
    """The cells of tables that have so many columns, by the first one, headings left out."""
    lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if "|" in line]
    ruled = [index for index, cells in enumerate(lines) if set("".join(cells)) <= set("-: ")]
    headings = {number for index in ruled for number in (index - 1, index)}
    return {
        cells[0]: cells[1:] for number, cells in enumerate(lines) if number not in headings and len(cells) == columns
    }


def numbers(cells):
    return [float(number.replace(",", "")) for cell in cells for number in re.findall(r"\d[\d,]*\.?\d*|nan|inf", cell)]


@pytest.fixture
def accelerator(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import accelerator

    return accelerator


@pytest.fixture
def growth(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import growth

    return growth


def test_accelerator_has_finite_numbers_for_every_contestant(tmp_path):
    text = run("accelerator.py", tmp_path / "page.md", "--size", "tiny", "--batch", "2")
    found = rows(text, 8)
    assert list(found) == ["standard", "factorized, rank 32 = d/H", "factorized, rank 16 = d/(2H)"]
    for cells in found.values():
        assert cells[4] == "–", "a CPU has no published peak here"
        given = numbers(cells)
        assert len(given) == 8  # the time has three
        assert all(math.isfinite(number) for number in given) and min(given[:6]) > 0
    assert found["standard"][0] == found["factorized, rank 32 = d/H"][0], "as many parameters"
    assert "Batch 2 × 64 tokens.\n" in text


def test_growth_has_finite_numbers_for_every_point_and_its_plot(tmp_path):
    text = run("growth.py", tmp_path / "page.md", "--only", "rank", "--size", "tiny")
    found = rows(text, 5)
    points = {name: cells for name, cells in found.items() if name != "rank"}
    assert list(points) == ["8", "16"]
    for cells in points.values():
        given = numbers(cells)
        assert len(given) == 6
        assert all(math.isfinite(number) and number > 0 for number in given)
    slopes = numbers(found["rank"][2:])
    assert len(slopes) == 3 and all(map(math.isfinite, slopes))
    assert "![rank](page_rank.png)" in text
    assert (tmp_path / "page_rank.png").read_bytes().startswith(b"\x89PNG")


def test_the_slope_of_a_power_law_is_its_exponent(growth):
    values, pace = np.array([1.0, 2.0, 8.0, 10.0]), np.array([[1.0], [1.1], [1.5]])
    found = growth.Growth(values, 0.003 * pace * values**1.5, 7e9 * values**2)
    assert found.fit[0] == pytest.approx(1.5)
    assert found.error == pytest.approx(0, abs=1e-9), "a slow round is slow for all points"
    assert found.expected == pytest.approx(2)


def test_noise_makes_a_slope_uncertain_by_as_much_as_it_varies(growth):
    draw, values = np.random.default_rng(0), np.array([1.0, 2.0, 4.0, 8.0])
    noisy = [values * np.exp(0.1 * draw.standard_normal((15, 4))) for _ in range(60)]
    found = [growth.Growth(values, seconds, values) for seconds in noisy]
    assert np.mean([each.error for each in found]) == pytest.approx(np.std([each.fit[0] for each in found]), rel=0.4)


def test_a_batch_is_halved_until_it_fits(accelerator):
    def make(batch):
        if batch > 3:
            raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4 bytes.")
        return f"{batch} fit"

    assert accelerator.fitting(16, make) == (2, "2 fit")


@pytest.mark.parametrize("batch, message", [(1, "RESOURCE_EXHAUSTED: Out of memory."), (16, "INTERNAL: other")])
def test_other_errors_and_a_batch_of_one_that_does_not_fit_are_errors(accelerator, batch, message):
    def make(batch):
        raise JaxRuntimeError(message)

    with pytest.raises(JaxRuntimeError, match=message):
        accelerator.fitting(batch, make)


@pytest.mark.parametrize(
    "kind, peak",
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100-PCIE-40GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("TPU v4", 275e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5", 459e12),
        ("TPU v6 lite", 918e12),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA L40S", None),
        ("NVIDIA GH200 480GB", None),
        ("cpu", None),
    ],
)
def test_a_peak_is_that_of_the_card(accelerator, kind, peak):
    assert accelerator.peak_rate(kind) == peak


def test_parallel_exchanges_no_more_than_it_must(tmp_path):
    found = rows(run("parallel.py", tmp_path / "page.md", "--size", "tiny"), 6)
    ratios = {way: cells[4] for way, cells in found.items()}
    assert ratios["data 2, shard_map"] == ratios["head 2, shard_map"] == "1.00"
    assert len(found) == 5  # one device exchanges nothing


def test_the_made_up_sweep_of_the_reports_benchmark_is_one_that_reports_read(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import reports

    from wmresearch.reports.evidence import read_evidence

    reports.write_sweep(tmp_path, runs=60, points=40)
    evidence = read_evidence(tmp_path)
    assert [group.row.n for group in evidence.groups] == [10, 10, 10, 10, 10, 10]
    for _, run in evidence.runs():
        assert len(run.curves["train_loss"].steps) == 40
        assert run.heads.values["effective_rank"].shape == (21, 4, 8)
    assert evidence.groups[0].band("validation_loss").n == 10
