"""A run's spectra against numpy's SVD of the whole maps."""

import csv
import io
import json

import numpy as np
import pytest

from tests.training.examples import TEXT, config, final_state
from wmresearch.config import ConfigError
from wmresearch.reports.spectrum import read_spectrum, render


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from wmresearch.training.loop import train

    folder = tmp_path_factory.mktemp("spectrum")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    chosen = config(
        folder / "text.txt", model__n_layers=2, model__head_output={"kind": "factorized", "rank": 5},
        training__steps=12, training__checkpoint_every=6,
    )  # fmt: skip
    train(chosen, folder / "run")
    return folder / "run", chosen


def test_figures_are_those_of_the_whole_maps(run):
    path, chosen = run
    params = final_state(path, chosen).params
    found = read_spectrum(path)
    assert found.step == 12
    for layer in range(2):
        block = params["blocks"][layer]
        own = block["attention"]["head_output"]
        for head in range(2):
            a = np.asarray(block["attention_norm"]["gain"], float)[:, None] * np.asarray(
                own["factor_a"][:, head], float
            )
            s = np.linalg.svd(a @ np.asarray(own["factor_b"][head], float), compute_uv=False)
            p = s[s > 1e-9] / s.sum()
            at = (layer, head)
            np.testing.assert_allclose(found.trained.singular_values[at], s[:5], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(found.trained.effective_rank[at], np.exp(-(p * np.log(p)).sum()), rtol=1e-4)
            assert found.trained.r95[at] == 1 + np.argmax(np.cumsum(s**2) >= 0.95 * (s**2).sum())
            np.testing.assert_allclose(found.trained.frobenius_norm[at], np.sqrt((s**2).sum()), rtol=1e-5)
    assert not np.allclose(found.initial.singular_values, found.trained.singular_values)


def test_forms_tell_the_same(run):
    path, _ = run
    found = read_spectrum(path)
    heads = json.loads(render(found, "json"))["heads"]
    rows = list(csv.DictReader(io.StringIO(render(found, "csv"))))
    lines = render(found, "md").splitlines()[2:6]
    assert [(row["layer"], row["head"]) for row in rows] == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    for row, head, line in zip(rows, heads, lines, strict=True):
        assert float(row["effective rank"]) == pytest.approx(head["effective_rank"], abs=0.006)
        assert float(row["‖M‖_* at start"]) == pytest.approx(head["initial"]["nuclear_norm"], rel=1e-3)
        assert [cell.strip() for cell in line.strip("| ").split("|")] == list(row.values())
        assert len(head["singular_values"]) == 5


def test_an_earlier_checkpoint_and_one_that_is_not_there(run, tmp_path):
    path, _ = run
    earlier, last = read_spectrum(path, 6), read_spectrum(path)
    assert (earlier.step, last.step) == (6, 12)
    assert not np.allclose(earlier.trained.singular_values, last.trained.singular_values)
    with pytest.raises(ConfigError, match=r"(?s)step 7.*a step with a checkpoint: 6, 12"):
        read_spectrum(path, 7)
    with pytest.raises(ConfigError, match="the directory of a run"):
        read_spectrum(tmp_path)
