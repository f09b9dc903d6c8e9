"""What makes two runs the same run."""

import copy
import json
import re
from typing import Annotated, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.config.examples import SWEEP, TINY
from wmresearch.config import RunConfig, load_sweep, parse_run, run_id, scientific, yaml_text
from wmresearch.config.base import Operational

BASE = RunConfig.model_validate(TINY)


def id_of(data, digest="digest"):
    return run_id(parse_run(data, "x"), digest)


def is_operational(field):
    return any(isinstance(item, Operational) for item in field.metadata)


def members(annotation):
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [member for option in get_args(annotation) for member in members(option)]


def fields_of(config_class, path=(), operational=False):
    """(path, annotation, whether it is operational) of every plain field below a config class, in every kind."""
    for name, field in config_class.model_fields.items():
        inside = operational or is_operational(field)
        found = members(field.annotation)
        for member in found:
            yield from fields_of(member, (*path, (name, member)), inside)
        if not found and name != "kind":
            yield (*path, (name, None)), field.annotation, inside


def bare(annotation):
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    options = [option for option in get_args(annotation) if option is not type(None)]
    return bare(options[0]) if type(None) in get_args(annotation) else annotation


def another(annotation, value):
    """A value that differs from the one given."""
    annotation = bare(annotation)
    if annotation is bool:
        return not value
    if get_origin(annotation) is Literal:
        return next(option for option in get_args(annotation) if option != value)
    if annotation is str:
        return f"{value}x"
    if annotation in (int, float):
        return (value or 0) + annotation(1)
    return {"other": repr(value)}


def changed(config, path, annotation):
    """Two configs that differ in one field only; where the field belongs to a kind, both have that kind."""
    (name, member), *rest = path
    if not rest:
        value = getattr(config, name)
        return config, config.model_copy(update={name: another(annotation, value)})
    inner = getattr(config, name)
    if type(inner) is not member:
        required = {
            key: {int: 8, float: 0.5}.get(bare(f.annotation), "x")
            for key, f in member.model_fields.items()
            if f.is_required()
        }
        inner = member.model_construct(**required)
    before, after = changed(inner, rest, annotation)
    return config.model_copy(update={name: before}), config.model_copy(update={name: after})


FIELDS = list(fields_of(RunConfig))
NAMES = [".".join(f"{name}[{member.__name__}]" if member else name for name, member in path) for path, _, _ in FIELDS]


@pytest.mark.parametrize(("path", "annotation", "operational"), FIELDS, ids=NAMES)
def test_every_field_either_changes_the_id_or_is_operational(path, annotation, operational):
    before, after = changed(BASE, path, annotation)
    assert before != after
    of_corpus = [name for name, _ in path[:2]] == ["data", "corpus"]
    assert (run_id(before, "digest") != run_id(after, "digest")) == (not operational and not of_corpus)


def test_the_marks_stand_where_the_design_says():
    marked = {".".join(name for name, _ in path) for path, _, operational in FIELDS if operational}
    assert marked == {
        "training.diagnostics", "training.tasks", "training.log_every", "training.steps_per_dispatch",
        "training.checkpoint_every", "training.keep", "training.keep_every", "training.keep_best",
        "parallel.mesh.data", "parallel.mesh.head", "parallel.mesh.run",
        "parallel.implementation", "parallel.shard_positions", "parallel.shard_optimizer",
        "tracking.wandb.mode", "tracking.wandb.project", "tracking.wandb.entity",
        "model.head_output.file", "model.head_output.ranks_from",
        "execution.remat", "execution.scan_layers", "execution.logits_block", "execution.cohort",
        "execution.accumulate",
    }  # fmt: skip


def test_each_kind_has_an_id_of_its_own():
    model = TINY["model"]
    optimizer = TINY["optimizer"]
    variants = [TINY]
    variants += [TINY | {"model": model | {"positions": kind}} for kind in ("rope", "none")]
    variants += [TINY | {"model": model | {"head_output": {"kind": "factorized", "rank": 32}}}]
    variants += [TINY | {"data": TINY["data"] | {"tokenizer": kind}} for kind in ("char", "bpe")]
    variants += [
        TINY | {"optimizer": optimizer | {"schedule": {"kind": kind, "warmup": 20}}} for kind in ("linear", "constant")
    ]
    assert len({id_of(data) for data in variants}) == len(variants)


def test_the_corpus_counts_by_its_digest_alone():
    elsewhere = TINY | {"data": TINY["data"] | {"corpus": {"kind": "text", "path": "a/b.txt"}}}
    assert id_of(TINY, "one") == id_of(elsewhere, "one")
    assert id_of(TINY, "one") != id_of(TINY, "two")


def shuffled(value, random):
    if not isinstance(value, dict):
        return value
    items = [(key, shuffled(item, random)) for key, item in value.items()]
    random.shuffle(items)
    return dict(items)


@given(st.randoms(use_true_random=False))
def test_neither_the_order_of_keys_nor_spelt_out_defaults_matter(random):
    full = json.loads(BASE.model_dump_json())
    assert id_of(shuffled(full, random)) == id_of(shuffled(copy.deepcopy(TINY), random)) == run_id(BASE, "digest")


def test_whole_numbers_and_floats_of_the_same_value_are_the_same():
    assert id_of(TINY | {"optimizer": TINY["optimizer"] | {"learning_rate": 1}}) == id_of(
        TINY | {"optimizer": TINY["optimizer"] | {"learning_rate": 1.0}}
    )


def test_what_an_arm_is_called_does_not_matter(tmp_path):
    (tmp_path / "base.yaml").write_text(yaml_text.write(TINY), encoding="utf-8")
    ids = []
    for name in ("rank 4", "another name"):
        sweep = SWEEP | {"arms": {"W_o": {}, name: SWEEP["arms"]["rank 4"]}}
        (tmp_path / "sweep.yaml").write_text(yaml_text.write(sweep), encoding="utf-8")
        ids.append([run_id(run.config, "digest") for run in load_sweep(tmp_path / "sweep.yaml")[1]])
    assert ids[0] == ids[1]


def test_an_id_is_twelve_hexadecimal_digits():
    assert re.fullmatch("[0-9a-f]{12}", run_id(BASE, "digest"))


def test_the_scientific_part_validates_to_the_same_science():
    again = parse_run(yaml_text.parse(yaml_text.write(json.loads(json.dumps(scientific(BASE)))), "x"), "x")
    assert scientific(again) == scientific(BASE)


def test_a_config_kept_as_yaml_is_read_back_the_same():
    data = BASE.model_dump(mode="json")
    assert parse_run(yaml_text.parse(yaml_text.write(data), "x"), "x") == BASE
