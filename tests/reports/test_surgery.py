"""What `wm spectrum --drop-heads` and `--truncate` say, against training's loss and models changed by hand."""

import csv
import io
import json

import numpy as np
import pytest

from tests.sweeps.mini import wm
from wmresearch.head_output.weights import Params
from wmresearch.model import make_nats
from wmresearch.reports.spectrum import read_spectrum
from wmresearch.reports.surgery import measure_surgery, render_surgery
from wmresearch.reports.trained_run import open_run
from wmresearch.training.evaluation import make_evaluator
from wmresearch.training.run_directory import RunDirectory
from wmresearch.training.step import make_evaluate


@pytest.fixture(scope="module")
def opened(run_of_four_heads):
    return open_run(run_of_four_heads)


@pytest.fixture(scope="module")
def surgery(opened):
    return measure_surgery(opened, [0, 1, 3], [16, 2])


def loss_of(run, params: Params) -> float:
    evaluate = make_evaluate(make_nats(run.transformer, "float32"))
    return make_evaluator(evaluate, run.corpus.splits["validation"], run.config.model.context)(params).loss


def outcome(surgery, dropped, rank):
    (found,) = [o for o in surgery.outcomes if (o.dropped, o.rank) == (dropped, rank)]
    return found.loss


def test_the_intact_model_has_the_loss_of_training(surgery, run_of_four_heads):
    trained = RunDirectory(run_of_four_heads).summary()["validation_loss"]
    assert surgery.intact == pytest.approx(trained, rel=1e-6)
    assert outcome(surgery, 0, 16) == pytest.approx(trained, rel=1e-6), "nothing dropped, nothing cut"
    assert surgery.step == 8


def test_every_number_of_heads_is_met_with_every_rank(surgery):
    settings = [(o.dropped, o.rank, o.setting) for o in surgery.outcomes]
    assert settings == [
        (0, 16, "rank 16"), (0, 2, "rank 2"),
        (1, 16, "1 head dropped, rank 16"), (1, 2, "1 head dropped, rank 2"),
        (3, 16, "3 heads dropped, rank 16"), (3, 2, "3 heads dropped, rank 2"),
    ]  # fmt: skip
    losses = [o.loss for o in surgery.outcomes]
    assert len({round(loss, 6) for loss in losses}) == 6


def test_the_heads_of_the_least_norm_go_first(surgery, run_of_four_heads):
    norms = read_spectrum(run_of_four_heads).trained.frobenius_norm
    order = np.argsort(norms, axis=None)[:3]
    assert [(head.layer, head.head) for head in surgery.weakest] == [(int(i) // 4, int(i) % 4) for i in order]
    np.testing.assert_allclose([head.norm for head in surgery.weakest], norms.ravel()[order], rtol=1e-5)


def test_dropped_heads_cost_what_zero_weights_cost(opened, surgery):
    """W_O's rows of a head set to zero: it writes neither its values nor their bias."""
    params = dict(opened.params)
    blocks = dict(params["blocks"])
    for weak in surgery.weakest:
        block = blocks[weak.layer]
        own = block["attention"]["head_output"]
        assert np.any(own["value_bias"])
        output = own["output"].at[4 * weak.head : 4 * (weak.head + 1)].set(0.0)  # d_head is 4
        blocks[weak.layer] = block | {"attention": block["attention"] | {"head_output": own | {"output": output}}}
    expected = loss_of(opened, params | {"blocks": blocks})
    assert outcome(surgery, 3, 16) == pytest.approx(expected, rel=1e-6)
    assert abs(expected - surgery.intact) > 1e-4


def test_cut_maps_cost_what_cut_weights_cost(opened, surgery):
    """By numpy: diag(γ) A_i B_i cut to rank 2, unfolded by division, as factors of a value head for each query head."""
    from wmresearch.config.head_output import FactorizedConfig
    from wmresearch.model import Transformer

    blocks = {}
    for layer, block in opened.params["blocks"].items():
        own = {name: np.asarray(leaf, float) for name, leaf in block["attention"]["head_output"].items()}
        gain = np.asarray(block["attention_norm"]["gain"], float)
        a, b = np.zeros((16, 4, 2)), np.zeros((4, 2, 16))
        bias = own["output_bias"].copy()
        for head in range(4):
            write = own["output"][4 * head : 4 * (head + 1)]
            u, s, vt = np.linalg.svd(gain[:, None] * (own["value"][:, head // 2] @ write))
            a[:, head], b[head] = u[:, :2] * s[:2] / gain[:, None], vt[:2]
            bias += own["value_bias"][head // 2] @ write
        output = {"factor_a": a, "factor_b": b, "output_bias": bias, "value_bias": np.zeros((4, 2))}
        output = {name: array.astype(np.float32) for name, array in output.items()}
        blocks[layer] = block | {"attention": block["attention"] | {"head_output": output}}
    model = opened.config.model
    keys = {"n_kv_heads": 4, "head_output": FactorizedConfig(rank=2)}
    for block in blocks.values():  # each of the two keys for two query heads
        attention = block["attention"]
        attention["key"] = np.repeat(np.asarray(attention["key"]), 2, axis=1)
        attention["key_bias"] = np.repeat(np.asarray(attention["key_bias"]), 2, axis=0)
    transformer = Transformer(model.model_copy(update=keys), opened.corpus.tokenizer.vocab_size)
    evaluate = make_evaluate(make_nats(transformer, "float32"))
    evaluator = make_evaluator(evaluate, opened.corpus.splits["validation"], model.context)
    expected = evaluator(opened.params | {"blocks": blocks}).loss
    assert outcome(surgery, 0, 2) == pytest.approx(expected, rel=1e-6)


def test_forms_tell_the_same(surgery):
    data = json.loads(render_surgery(surgery, "json"))
    intact, *rows = csv.DictReader(io.StringIO(render_surgery(surgery, "csv")))
    text = render_surgery(surgery, "md")
    lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines()]
    assert float(intact["validation loss"]) == data["intact"]["validation_loss"] == surgery.intact
    assert lines[2] == ["intact", f"{surgery.intact:.4f}", "–"]
    for o, told, row, line in zip(surgery.outcomes, data["outcomes"], rows, lines[3:9], strict=True):
        assert told["setting"] == row["setting"] == line[0] == o.setting
        assert told["validation_loss"] == float(row["validation loss"]) == o.loss
        assert told["difference"] == float(row["difference"]) == pytest.approx(o.loss - surgery.intact)
        assert (told["rank"], len(told["dropped"])) == (int(row["rank"]), int(row["heads dropped"]))
        assert float(line[1]) == pytest.approx(o.loss, abs=5e-5)
        assert float(line[2].replace("−", "-")) == pytest.approx(told["difference"], abs=5e-5)
        assert row["dropped"].count("layer") == o.dropped
    listed = data["outcomes"][-1]["dropped"]
    assert [[str(n), str(d["layer"]), str(d["head"])] for n, d in enumerate(listed, start=1)] == [
        line[:3] for line in lines[12:15]
    ]
    assert [d["frobenius_norm"] for d in listed] == [head.norm for head in surgery.weakest]


def test_the_command_prints_the_table_and_takes_a_step(run, capfd):
    code, out, err = wm(capfd, "spectrum", run[0], "--step", "6", "--drop-heads", "4", "--format", "json")
    assert code == 0 and "evaluating 1 of 2: intact" in err
    data = json.loads(out)
    assert (data["step"], [o["setting"] for o in data["outcomes"]]) == (6, ["4 heads dropped"])
    assert {(d["layer"], d["head"]) for d in data["outcomes"][0]["dropped"]} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    norms = [d["frobenius_norm"] for d in data["outcomes"][0]["dropped"]]
    assert norms == sorted(norms)
    code, out, _ = wm(capfd, "spectrum", run[0], "--truncate", " 5, 5 ,1")
    assert code == 0
    rows = [line.strip("| ").split(" ")[:2] for line in out.splitlines()[3:5]]
    assert rows == [["rank", "5"], ["rank", "1"]] and "dropped as" not in out
