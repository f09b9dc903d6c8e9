"""Whole runs whose heads find their ranks: cut, stopped, resumed, opened, sampled, and started again."""

import shutil

import jax
import numpy as np
import pytest

from tests.training.examples import config, metrics_bytes, same, saved_steps
from tests.training.test_loop import stop_at
from wmresearch.config import ConfigError, parse_run, run_id
from wmresearch.model.cost import model_cost
from wmresearch.model.generation import Sampling
from wmresearch.reports.samples import sample
from wmresearch.reports.spectrum import read_spectrum
from wmresearch.reports.surgery import _loss_of, measure_surgery
from wmresearch.reports.trained_run import open_run
from wmresearch.training import loop, rank_cut
from wmresearch.training.loop import train
from wmresearch.training.run_directory import RunDirectory
from wmresearch.training.stage import Stages

HEADS = {"kind": "dynamic_rank", "rank": 8, "bucket": 2, "total_rank": 11, "fine_tune_steps": 8}


def finding(text, method="energy", **changes):
    compact_at = [6] if method in ("energy", "budgeted") else []
    output = HEADS | {"method": method, "compact_at": compact_at}
    shape = {"model__n_layers": 2, "model__dropout": 0.1, "training__evaluate_every": 10, "training__log_every": 1}
    return config(text, **shape | {"model__head_output": output} | changes)


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    """Saved every 5 steps, which no result depends on: those that are compared with it are saved otherwise."""
    path = tmp_path_factory.mktemp("ranks") / "whole"
    return finding(text), train(finding(text, training__checkpoint_every=5, training__keep=4), path), path


def test_a_run_says_what_ranks_it_found(finished):
    """After each cut a line with every rank, and what the model costs from then on; the summary has the last."""
    chosen, summary, path = finished
    lines = RunDirectory(path).ranks()
    assert [(line["step"], line["final"]) for line in lines] == [(6, False), (12, True)]
    assert lines[0]["total_rank"] > lines[1]["total_rank"] == 11 == sum(map(sum, lines[1]["ranks"]))
    vocab = open_run(path).corpus.tokenizer.vocab_size
    costs = [model_cost(chosen.model, vocab)]
    for line in lines:
        costs.append(model_cost(rank_cut.model_at(chosen.model, lines, line["step"]), vocab))
        assert line["parameters"] == costs[-1].parameters
    assert [summary[key] for key in ("total_rank", "parameters", "flops_per_token")] == [
        11, costs[-1].parameters, costs[-1].training_flops_per_token,
    ]  # fmt: skip
    per_token = [cost.training_flops_per_token for cost in costs]
    tokens = chosen.data.batch_size * chosen.model.context
    assert summary["training_flops"] == tokens * (6 * per_token[0] + 6 * per_token[1] + 8 * per_token[2])
    found = RunDirectory(path).diagnostics()
    assert [line["step"] for line in found] == [0, 10, 20]
    assert [sum(map(sum, line["rank"])) for line in found] == [32, lines[0]["total_rank"], 11]


def test_stopped_and_resumed_around_a_cut_is_as_never_stopped(finished, text, tmp_path):
    """Bit for bit: metrics, ranks, diagnostics, parameters, moments."""
    chosen, summary, whole = finished
    for stop in (2, 8):
        assert train(chosen, tmp_path / "run", report=stop_at(stop))["state"] == "preempted"
    again = train(chosen, tmp_path / "run")
    assert metrics_bytes(tmp_path / "run") == metrics_bytes(whole)
    for name in ("ranks.jsonl", "diagnostics.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (whole / name).read_bytes()
    keys = ("validation_loss", "test_loss", "total_rank", "training_flops")
    assert [again[key] for key in keys] == [summary[key] for key in keys]
    assert same(open_run(tmp_path / "run").params, open_run(whole).params)


def test_killed_between_a_cut_and_the_next_checkpoint_a_run_cuts_again(finished, text, tmp_path):
    """What it had written of the cut is written once."""
    chosen, _, whole = finished
    saving = finding(text, training__checkpoint_every=5, training__keep=9)
    train(saving, tmp_path / "run", report=stop_at(8))
    newest = max(saved_steps(tmp_path / "run"))
    assert newest > 6 and RunDirectory(tmp_path / "run").ranks()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / str(newest))
    train(saving, tmp_path / "run")
    assert run_id(saving, "0") == run_id(chosen, "0")
    for name in ("ranks.jsonl", "metrics.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize("method", ["hard_concrete", "budgeted"])
def test_gates_and_budgets_resume_too(method, text, tmp_path):
    chosen = finding(text, method, model__n_layers=1)
    train(chosen, tmp_path / "whole")
    assert train(chosen, tmp_path / "run", report=stop_at(7))["state"] == "preempted"
    train(chosen, tmp_path / "run")
    assert metrics_bytes(tmp_path / "run") == metrics_bytes(tmp_path / "whole")
    assert same(open_run(tmp_path / "run").params, open_run(tmp_path / "whole").params)


def test_a_stage_compiles_once_and_again_only_for_other_buckets(finished, text, tmp_path):
    """Ranks that are padded to the same widths are one program."""
    chosen, _, path = finished
    run = open_run(path)
    stages = Stages(chosen, run.corpus)
    some, same_buckets, other = (
        rank_cut.with_ranks(chosen.model, ranks, fixed=True)
        for ranks in (((4, 3), (2, 2)), ((3, 4), (1, 2)), ((4, 2), (2, 2)))
    )
    assert stages.of(some).dispatch is stages.of(same_buckets).dispatch
    assert stages.of(some).dispatch is not stages.of(other).dispatch
    assert len(stages.shared.stages) == 2


def test_a_checkpoint_of_each_step_opens_as_it_was(finished):
    for step, total in ((5, 32), (10, None), (15, 11), (20, 11)):
        run = open_run(finished[2], step)
        ranks = run.model.head_output.all_ranks(run.model)
        assert total in (None, sum(map(sum, ranks)))
        assert run.params["blocks"][0]["attention"]["head_output"]["factor_a"].shape[0] == 16


def test_a_cut_run_is_sampled_and_its_heads_are_dropped_and_truncated(finished, text, tmp_path):
    """A head that is gone too: the loss of the intact model stands beside that of the dense one that surgery makes."""
    chosen = finding(text, "random", model__n_heads=4, model__head_output=HEADS | {"method": "random", "total_rank": 6})
    train(chosen, tmp_path / "few")
    few = open_run(tmp_path / "few")
    assert 0 in few.model.head_output.ranks[0] + few.model.head_output.ranks[1]
    for path in (finished[2], tmp_path / "few"):
        run = open_run(path)
        spectrum = read_spectrum(path)
        ranks = np.array(run.model.head_output.ranks)
        counted = (spectrum.trained.singular_values > 1e-6).sum(axis=-1)
        assert (counted == ranks).all()
        assert spectrum.initial.singular_values.shape == spectrum.trained.singular_values.shape
        text_of_it = sample(path, "x", 20, Sampling(), 0, None, lambda _: None)
        assert text_of_it.tokens == 20
        assert text_of_it.cache_bytes == 4 * 16 * _kept_per_token(run)
        found = measure_surgery(run, [0, 1], [8])
        assert found.outcomes[0].loss == pytest.approx(found.intact, rel=1e-5)
        assert found.outcomes[1].loss == found.outcomes[1].loss


def _kept_per_token(run):
    layers = [block.attention for block in run.transformer.blocks]
    keys = sum(np.prod(layer.key_shape()) for layer in layers)
    return keys + sum(layer.head_output.layout.width for layer in layers)


def test_nested_ranks_are_truncated_in_their_order(text, tmp_path):
    """`--truncate m` keeps A's first m columns and B's first m rows; before the cut, that is what a step trained."""
    chosen = finding(text, "nested", model__bias=False, training__checkpoint_every=10, training__keep=3)
    train(chosen, tmp_path)
    run = open_run(tmp_path, 10)
    found = measure_surgery(run, [], [3])
    params = jax.tree.map(lambda leaf: leaf, run.params)
    for block in params["blocks"].values():
        output = block["attention"]["head_output"]
        output["gates"]["within"] = (output["origin"] < 3).astype("float32")
    assert found.outcomes[0].loss == pytest.approx(_loss_of(run, run.transformer)(params), rel=1e-5)


def test_a_run_starts_from_the_ranks_that_another_found(finished, text, tmp_path):
    """Filled in when the config is loaded: its id holds the ranks, not the place of the run."""
    _, _, path = finished
    ranks = RunDirectory(path).ranks()[-1]["ranks"]
    retrained = config(
        text, model__n_layers=2, model__head_output={"kind": "dynamic_rank", "bucket": 2, "ranks_from": str(path)}
    )
    assert list(map(list, retrained.model.head_output.ranks)) == ranks
    said = config(text, model__n_layers=2, model__head_output={"kind": "dynamic_rank", "bucket": 2, "ranks": ranks})
    assert run_id(retrained, "0") == run_id(said, "0")
    again = parse_run(retrained.model_dump(mode="json"), "test")
    assert again == retrained
    summary = train(retrained, tmp_path / "again")
    assert (summary["state"], summary["total_rank"]) == ("finished", 11)
    assert open_run(tmp_path / "again").transformer.blocks[0].attention.head_output.layout.width >= sum(ranks[0])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ranks_from": "nowhere"}, r"model.head_output.ranks_from(.|\n)*a run whose heads found their ranks"),
        ({"rank": 4, "method": "nested", "total_rank": 4, "fine_tune_steps": 20}, "less than training.steps = 20"),
        (
            {"rank": 4, "method": "energy", "total_rank": 4, "fine_tune_steps": 5, "compact_at": [15]},
            "steps before the cut, which is at step 15",
        ),
    ],
)
def test_what_does_not_fit_the_run_is_said(changes, said, text):
    with pytest.raises(ConfigError, match=said):
        config(text, model__head_output={"kind": "dynamic_rank"} | changes)


def test_ranks_of_another_model_are_refused(finished, text):
    with pytest.raises(ConfigError, match=r"ranks_from(.|\n)*a list for each of n_layers = 3"):
        config(text, model__n_layers=3, model__head_output={"kind": "dynamic_rank", "ranks_from": str(finished[2])})


def test_muon_takes_the_heads_as_one_matrix(text):
    muon = {"kind": "muon", "learning_rate": 1e-2, "heads": "per_head"}
    with pytest.raises(ConfigError, match=r"optimizer.heads(.|\n)*fused"):
        config(text, optimizer=muon, model__head_output={"kind": "dynamic_rank", "rank": 4})


@pytest.mark.parametrize("method", ["fixed", "hard_concrete"])
def test_a_layer_without_heads_trains_and_is_read(method, text, tmp_path):
    """Without biases it has no parameters of attention at all."""
    found = {} if method == "fixed" else {"total_rank": 5, "fine_tune_steps": 2}
    output = {"kind": "dynamic_rank", "ranks": [[0, 0], [4, 4]], "method": method, "bucket": 2} | found
    chosen = config(text, model__n_layers=2, model__bias=False, training__steps=6, model__head_output=output)
    summary = train(chosen, tmp_path)
    assert (summary["state"], summary["total_rank"]) == ("finished", 8 if method == "fixed" else 5)
    run = open_run(tmp_path)
    assert "attention" not in run.params["blocks"][0]
    measured = measure_surgery(run, [0], [])
    assert measured.outcomes[0].loss == pytest.approx(measured.intact, rel=1e-5)
    assert RunDirectory(tmp_path).diagnostics()[-1]["rank"][0] == [0, 0]


def test_a_cut_compiles_one_step_anew_and_no_other(text, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(loop, "Stages", lambda *given: made.append(Stages(*given)) or made[-1])
    output = {"kind": "dynamic_rank", "rank": 4, "method": "uniform", "total_rank": 5, "fine_tune_steps": 2}
    summary = train(config(text, training__steps=6, model__head_output=output), tmp_path)
    assert (summary["state"], summary["total_rank"]) == ("finished", 5)
    assert [stage.dispatch.function._cache_size() for stage in made[-1].shared.stages.values()] == [1, 1]
