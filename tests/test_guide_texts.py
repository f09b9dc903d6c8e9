"""The guides explain every kind and key there is, their tables are what is counted, and their links lead somewhere."""

import re
from typing import get_args

import pytest

from tests.guides import PAGES, ROOT
from wmresearch.config import load_run, yaml_text
from wmresearch.config.head_output import HeadOutput
from wmresearch.config.head_output_base import HeadOutputConfig
from wmresearch.config.penalty import Penalty, PenaltyConfig, ProximalPenaltyConfig
from wmresearch.config.training import MeshConfig, ParallelConfig
from wmresearch.config.types import kinds
from wmresearch.head_output import KINDS, make_head_output
from wmresearch.model.cost import model_cost


def kind_in(chosen):
    return chosen if isinstance(chosen, str) else chosen["kind"]


def section(page, heading):
    return re.split(r"^#{2,3} ", page.partition(f"\n{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def test_every_kind_of_head_output_has_a_section_with_formula_keys_and_yaml():
    page = PAGES["head_outputs"]
    listed = page.partition("\n## The kinds\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^### (\w+)$", listed, re.MULTILINE)) == set(kinds(HeadOutput)) == {*KINDS, "custom"}
    for config in get_args(get_args(HeadOutput)[0]):
        kind = config.model_fields["kind"].default
        text = section(page, f"### {kind}")
        own = set(config.model_fields) - set(HeadOutputConfig.model_fields)
        assert not [key for key in own if f"`{key}`" not in text], kind
        assert kind == "custom" or re.search(r"^    W_M_i ", text, re.MULTILINE), kind
        (block,) = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        chosen = yaml_text.parse(block, kind)["model.head_output"]
        assert kind_in(chosen) == kind


def test_the_costs_of_head_outputs_are_those_that_are_counted():
    rows = re.findall(r"^\| `([^|]+)` \| ([\d,]+) \| ([\d,]+) \| `(\w+)` \| ([\d.]+) \| ([\d,]+) \|$",
                      PAGES["head_outputs"], re.MULTILINE)  # fmt: skip
    assert {kind_in(yaml_text.parse(row[0], "table")) for row in rows} == set(KINDS)
    for chosen, parameters, kept, order, operations, cached in rows:
        model = load_run("gpt2", ["model.bias=false", f"model.head_output={chosen}"]).model
        cost = model_cost(model, 50257)
        (part,) = (part for part in cost.parts if part.name.startswith("head outputs"))
        found = (part.parameters, cost.head_output_nonzeros, part.cache_numbers_per_token)
        assert tuple(f"{number:,}" for number in found) == (parameters, kept, cached), chosen
        assert f"{part.forward_flops_per_token / 1e6:.1f}" == operations and make_head_output(model).order == order


def test_every_penalty_and_every_key_of_a_penalty_and_a_mesh_is_explained():
    page = PAGES["head_outputs"].partition("\n## Penalties\n")[2]
    keys = set(PenaltyConfig.model_fields) | set(ProximalPenaltyConfig.model_fields)
    for config in get_args(get_args(Penalty)[0]):
        keys |= {*config.model_fields, config.model_fields["kind"].default}
    assert not [key for key in keys if f"`{key}`" not in page]
    keys = set(MeshConfig.model_fields) | set(ParallelConfig.model_fields) - {"mesh"}
    assert not [key for key in keys if f"| `{key}` |" not in PAGES["sharding"]]


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    base = ROOT if page == "README" else ROOT / "docs"
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$", "", PAGES[page], flags=re.M | re.S)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (base / name).resolve() if name else None
        assert path is None or path.exists(), target
        text = PAGES[page] if path is None else PAGES.get(path.stem, "")
        assert not anchor or anchor in anchors(text), target


def anchors(text):
    found = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}
