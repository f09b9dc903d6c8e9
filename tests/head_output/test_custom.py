"""A head output of the user's own keeps the laws of every kind; what is wrong with its file or settings is said."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.config.examples import SWEEP, TINY, has, problems_of
from tests.head_output import test_orders as laws
from tests.head_output.own_kind import CODE, write_example
from wmresearch.config import ConfigError, load_run, load_sweep, parse_run, yaml_text
from wmresearch.config.head_output import CustomConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output import KINDS, kind_of, make_head_output
from wmresearch.head_output.custom import load_kind
from wmresearch.head_output.orders import ORDERS
from wmresearch.head_output.weights import initialize
from wmresearch.model import Transformer
from wmresearch.training.custom_kind import ask_custom


@pytest.fixture
def example(tmp_path):
    return write_example(tmp_path)


def custom(path, **settings):
    return {"file": str(path), "settings": settings}


def model_of(path, settings, **changes):
    chosen = CustomConfig(file=str(path), settings=settings, order=changes.pop("order", "auto"))
    return ModelConfig(**{"d_model": 64, "n_layers": 1, "n_heads": 4, "context": 8, "head_output": chosen} | changes)


@pytest.mark.parametrize("rank", [3, 16])
def test_the_example_keeps_the_laws_of_all_kinds(example, rank):
    setting = custom(example, rank=rank)
    with jax.enable_x64(True):
        laws.test_orders_agree_in_value_and_gradient("custom", setting)
        laws.test_the_layer_is_the_sum_of_attention_times_maps("custom", setting)
        laws.test_auto_is_the_order_with_the_least_predicted_time("custom", setting, 12)
        for order in ORDERS:
            laws.test_operations_are_those_of_the_program("custom", setting, order)


def test_the_examples_maps_are_symmetric_and_start_as_large_as_the_standard_ones(example):
    model = model_of(example, {"rank": 16}, n_kv_heads=2)
    module = make_head_output(model)
    made = nnx.merge(nnx.split(module)[0], initialize(module, jax.random.key(0)))
    maps = np.asarray(made.factors().dense())
    np.testing.assert_allclose(maps, np.swapaxes(maps, 1, 2), atol=1e-6)
    assert np.sqrt(np.square(maps).sum() / 4) == pytest.approx(64 * model.product_std, rel=0.15)


def test_it_is_called_by_its_own_name_and_stands_in_no_list(example):
    before = dict(KINDS)
    module = make_head_output(model_of(example, {"rank": 2}))
    assert (module.kind, module.symbol("scale")) == ("symmetric", "s")
    assert kind_of(CustomConfig(file=str(example))) == "symmetric"
    assert before == KINDS and not {"custom", "symmetric"} & KINDS.keys()


def test_bias_and_order_stand_beside_the_settings(example):
    for order in ORDERS:
        assert make_head_output(model_of(example, {"rank": 2}, order=order)).order == order
    chosen = CustomConfig(file=str(example), settings={"rank": 2}, bias=True)
    model = model_of(example, {}, bias=False).model_copy(update={"head_output": chosen})
    assert make_head_output(model).value_bias is not None


def test_a_file_is_run_once_for_each_content(tmp_path):
    counted = CODE + f"\nwith open({str(tmp_path / 'log')!r}, 'a') as file:\n    file.write('one')\n"
    path = write_example(tmp_path, counted)
    Transformer(model_of(path, {"rank": 2}, n_layers=3), 10)
    Transformer(model_of(path, {"rank": 3}, n_layers=2), 10)
    assert (tmp_path / "log").read_text() == "one"
    write_example(tmp_path, counted.replace("'one'", "'two'"))  # of equal length, and within the same second
    Transformer(model_of(path, {"rank": 2}, n_layers=3), 10)
    assert (tmp_path / "log").read_text() == "onetwo"
    assert {item.name for item in tmp_path.iterdir()} == {path.name, "log"}, "and nothing is left beside it"


def test_an_edited_file_is_not_taken_for_the_one_that_was_hashed(tmp_path):
    path = write_example(tmp_path)
    chosen = CustomConfig(file=str(path), settings={"rank": 2})
    data = TINY | {"model": TINY["model"] | {"head_output": chosen.model_dump()}}
    hashed = parse_run(data, "x").model.head_output
    write_example(tmp_path, CODE + "# edited\n")
    with pytest.raises(ConfigError, match="has changed since"):
        load_kind(hashed)
    assert load_kind(chosen).name == "symmetric"  # nobody hashed this one


SETTINGS_CODE = """
from typing import Annotated, Literal

from wmresearch.config.base import AllowList, Check
from wmresearch.config.head_output import HeadOutputConfig
from wmresearch.head_output.base import WholeReading, full_rank
from wmresearch.head_output.weights import Normal, weight


class MineConfig(HeadOutputConfig):
    kind: Literal["mine"] = "mine"
    order: Literal["mix_first", "attend_then_write"] = "mix_first"
    blocks: int = 2
    std: float = 0.5
    names: Annotated[tuple[str, ...], AllowList] = ()

    def checks(self):
        if len(self.names) > self.blocks:
            yield Check("names", "at most as many names as blocks", ("blocks",))

    def checks_in(self, model):
        yield from super().checks_in(model)
        if model.d_model % self.blocks:
            yield Check("head_output.blocks", f"a divisor of {model.d_model}", ("d_model",), "try 2")


class Mine(WholeReading):
    kind = "mine"

    def __init__(self, config, model, layer, first):
        self.settings = config
        self.map = weight((model.n_heads, model.d_model, model.d_model), Normal(config.std), model.param_dtype)
        super().__init__(config, model, layer, first)

    def write(self, z):
        return self.write_each(z).sum(axis=2)

    def write_each(self, z):
        raise NotImplementedError

    def path_cost(self):
        h, d, _ = self.map.shape
        return self.whole_cost(d, h, 2.0 * h * d * d)

    def factors(self):
        return full_rank(self.map[...])
"""


@pytest.fixture
def told(tmp_path):
    """What `wm` says of a run with this file and these overrides: (source, path, value, text)."""
    (tmp_path / "kind.py").write_text(SETTINGS_CODE, encoding="utf-8")
    chosen = {"kind": "custom", "file": "kind.py", "settings": {"blocks": 4}}
    data = TINY | {"model": TINY["model"] | {"head_output": chosen}}
    (tmp_path / "run.yaml").write_text(yaml_text.write(data), encoding="utf-8")
    return lambda *overrides: problems_of(load_run, tmp_path / "run.yaml", overrides, ask_custom)


def test_settings_reach_the_file_as_its_config_class_says(tmp_path):
    (tmp_path / "kind.py").write_text(SETTINGS_CODE, encoding="utf-8")
    settings = {"blocks": 4, "std": 1, "names": ["a", "b"]}
    made = make_head_output(model_of(tmp_path / "kind.py", settings)).settings
    assert (made.blocks, made.std, made.names, made.order) == (4, 1.0, ("a", "b"), "mix_first")
    assert make_head_output(model_of(tmp_path / "kind.py", {}, order="attend_then_write")).settings.blocks == 2


@pytest.mark.parametrize(
    ("override", "key", "value", "words"),
    [
        ("settings.blokcs=3", "settings.blokcs", "3", ["a setting of mine", "did you mean 'blocks'?"]),
        ("settings.zzz=[1]", "settings.zzz", "[1]", ["a setting of mine", "valid names: blocks, std, names"]),
        ("settings.order=mix_first", "settings.order", "mix_first", ["order stands beside settings"]),
        ("settings.kind=mine", "settings.kind", "mine", ["kind stands beside settings"]),
        ("settings.blocks=many", "settings.blocks", "many", ["a whole number"]),
        ("settings.names=[a, 1]", "settings.names.1", "1", ["text"]),
        ("settings.names=[a, b, c, d, e]", "settings.names", '["a", "b", "c", "d", "e"]', ["as many names as blocks"]),
        ("settings.blocks=3", "settings.blocks", "3", ["a divisor of 128", "try 2"]),
        ("order=modify_then_attend", "order", "modify_then_attend", ["one of mix_first, attend_then_write"]),
    ],
)
def test_a_wrong_setting_is_told_at_its_place(told, override, key, value, words):
    assert told() == []
    problems = told(f"model.head_output.{override}")
    assert len(problems) == 1 and has(problems, f"model.head_output.{key}", value, *words), problems
    assert problems[0][0] == "command line"


def test_wrong_settings_are_told_beside_all_else(told):
    problems = told("model.head_output.settings={blocks: x, stdd: 1}", "training.steps=0")
    assert [path.removeprefix("model.head_output.settings.") for _, path, _, _ in problems] == [
        "training.steps", "stdd", "blocks",
    ]  # fmt: skip


def test_a_mistake_in_one_arm_is_told_at_the_arm(tmp_path):
    write_example(tmp_path)
    (tmp_path / "base.yaml").write_text(yaml_text.write(TINY), encoding="utf-8")
    chosen = {"kind": "custom", "file": "symmetric.py", "settings": {"rank": 0}}
    sweep = SWEEP | {"arms": {"W_o": {}, "mine": {"model.head_output": chosen}}, "seeds": [0, 1]}
    (tmp_path / "sweep.yaml").write_text(yaml_text.write(sweep), encoding="utf-8")
    ((source, path, value, said),) = problems_of(load_sweep, tmp_path / "sweep.yaml", [], ask_custom)
    assert (source, value) == (str(tmp_path / "sweep.yaml"), "0")
    assert path == "arms.mine.model.head_output.settings.rank" and "at least 1" in said


ANOTHER = "\n\nclass Another(SymmetricHeadOutput):\n    kind = 'another'\n"
IMPORTED = "from wmresearch.head_output.dense import DenseHeadOutput\n"


@pytest.mark.parametrize(
    ("code", "line", "words"),
    [
        ("x = (\n", 1, ["Python code that runs, found SyntaxError: '(' was never closed"]),
        ("x = 1\ny = x / 0\n", 2, ["Python code that runs, found ZeroDivisionError: division by zero"]),
        ("x = '\0'", None, ["Python code that runs, found"]),
        ("x = 1\nimport helper_of_mine\n", 2, ["ModuleNotFoundError", "helper_of_mine", "a kind is one file"]),
        ("", None, ["one class derived from HeadOutput, with all of its methods, found none"]),
        (IMPORTED, None, ["one class derived from HeadOutput, with all of its methods, found none"]),
        (CODE + ANOTHER, None, ["one class derived from HeadOutput", "found SymmetricHeadOutput, Another"]),
        (CODE.replace("def path_cost", "def path_costs"), None, ["found none", "SymmetricHeadOutput lacks path_cost"]),
        (CODE.replace('    kind = "symmetric"\n', ""), None, ["`kind = …` in SymmetricHeadOutput", "found none"]),
        (CODE.replace('"symmetric"', '"dense"'), None, ["a name of its own, found 'dense'"]),
        (
            CODE.replace('    kind = "symmetric"', '    kind = "other"'), None,
            ['derived from HeadOutputConfig with `kind: Literal["other"]', "found SymmetricConfig of kind 'symmetric'"],
        ),
        (
            CODE.replace("config.rank\n", "config.rnk\n"), 1 + CODE[: CODE.index("config.rank\n")].count("\n"),
            ["a SymmetricHeadOutput that can be made, found AttributeError", "rnk"],
        ),
    ],
)  # fmt: skip
def test_a_file_that_makes_no_kind_is_named_with_what_is_wrong(tmp_path, code, line, words):
    path = write_example(tmp_path, code)
    chosen = {"kind": "custom", "file": "symmetric.py", "settings": {"rank": 2}}
    data = TINY | {"model": TINY["model"] | {"head_output": chosen}}
    (tmp_path / "run.yaml").write_text(yaml_text.write(data), encoding="utf-8")
    ((source, key, value, said),) = problems_of(load_run, tmp_path / "run.yaml", [], ask_custom)
    assert (source, key, value) == (f"{path}, line {line}" if line else str(path), "", "")
    assert all(word in said for word in words), said


def test_a_model_that_is_wrong_itself_is_not_blamed_on_the_file(tmp_path):
    code = CODE.replace("config.rank\n", "config.rank\n        assert d % h == 0\n")
    write_example(tmp_path, code)
    chosen = {"kind": "custom", "file": "symmetric.py", "settings": {"rank": 2}}
    data = TINY | {"model": TINY["model"] | {"head_output": chosen, "n_heads": 7}}
    (tmp_path / "run.yaml").write_text(yaml_text.write(data), encoding="utf-8")
    problems = problems_of(load_run, tmp_path / "run.yaml", [], ask_custom)
    assert [path for _, path, _, _ in problems] == ["model.d_model"]


def test_gradients_reach_every_parameter_of_the_example(example):
    module = make_head_output(model_of(example, {"rank": 2}, n_kv_heads=2))
    graph, _ = nnx.split(module)
    params = initialize(module, jax.random.key(0))
    loss = lambda params: jnp.sum(jnp.square(nnx.merge(graph, params).factors().dense()))
    assert all(bool(jnp.any(leaf != 0)) for name, leaf in jax.grad(loss)(params).items() if "bias" not in name)
