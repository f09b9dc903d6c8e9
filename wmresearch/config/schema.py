"""JSON schemas of run and sweep files, for editors that complete and check YAML.

python -m wmresearch.config.schema configs/schema
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from pydantic.json_schema import models_json_schema

from wmresearch.config.run import RunConfig
from wmresearch.config.sweep import SweepConfig
from wmresearch.config.variation import ArmOptions

_REF = "#/$defs/"
_SHORT_START_KEYS: dict[str, dict[str, Any]] = {
    "gauge": {"gauge": {"type": "number", "minimum": 1}},
    "from": {"from": {"type": "string"}, "step": {"type": "integer", "minimum": 0}},
}
_SHORT_STARTS = [
    {"type": "object", "properties": properties, "required": [key], "additionalProperties": False}
    for key, properties in _SHORT_START_KEYS.items()
]


def schemas() -> dict[str, dict[str, Any]]:
    """File name → JSON schema."""
    return {"run.json": run_schema(), "sweep.json": sweep_schema()}


def run_schema() -> dict[str, Any]:
    """The JSON schema of a run config."""
    return _headed(_with_names(RunConfig.model_json_schema()))


def sweep_schema() -> dict[str, Any]:
    """The JSON schema of a sweep, in which the keys of arms and of what varies are the dotted paths of a run config."""
    _, both = models_json_schema([(each, "validation") for each in (RunConfig, SweepConfig, ArmOptions)])
    definitions = _with_names(both)["$defs"]
    sweep = definitions.pop("SweepConfig")
    keys = _dotted(definitions["RunConfig"], definitions)
    free = _free(keys)
    closed = {"type": "object", "additionalProperties": False}
    definitions["Lists"] = closed | {"properties": _lists(keys), "patternProperties": _lists(free), "minProperties": 1}
    lists = {"$ref": _REF + "Lists"}
    drawn = definitions["RandomDraws"]["properties"]["keys"]
    drawn |= closed | {"properties": dict.fromkeys(keys, drawn["additionalProperties"])}
    definitions["TuneConfig"]["properties"]["keys"] |= lists
    options = definitions.pop("ArmOptions")["properties"]
    for properties in (sweep["properties"], options):
        for name in ("grid", "zip", *(["tune"] if properties is options else [])):
            properties[name] |= {"anyOf": [lists, {"type": "null"}]}
        budgets = definitions["MatchConfig"]["properties"]["budget"]["enum"]
        properties["match"] = {"anyOf": [{"$ref": _REF + "MatchConfig"}, {"enum": budgets}]}
        properties["list"]["anyOf"][0]["items"] = {"$ref": _REF + "Arm"}
    definitions["Arm"] = closed | {"properties": keys | options, "patternProperties": free}
    sweep["properties"]["arms"]["additionalProperties"] = {"$ref": _REF + "Arm"}
    used = _used(sweep, definitions)
    return _headed(sweep | {"$defs": {name: schema for name, schema in definitions.items() if name in used}})


def _headed(schema: dict[str, Any]) -> dict[str, Any]:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


def _with_names(node: Any) -> Any:
    """Lets the name of a kind stand for a mapping with that kind, as the loader does."""
    if isinstance(node, list):
        return [_with_names(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: _with_names(value) for key, value in node.items()}
    if "oneOf" in node and "discriminator" in node:
        names = sorted(node.pop("discriminator")["mapping"])
        if "stdlib" in names:
            names += ["stdlib/full", "stdlib/small"]
        node["anyOf"] = [*node.pop("oneOf"), {"enum": names}, *(_SHORT_STARTS if "gauge" in names else [])]
    return node


def _dotted(schema: dict[str, Any], definitions: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted path → schema, for every entry of a config. What several kinds share is the first one's.

    A mapping without a `kind` is merged into what the base has, so nothing in it is required.
    """
    out: dict[str, Any] = {}
    for name, entry in schema.get("properties", {}).items():
        path = prefix + name
        members = [definitions[option["$ref"].removeprefix(_REF)] for option in _options(entry) if "$ref" in option]
        inner: dict[str, Any] = {}
        for member in members:
            inner = _dotted(member, definitions, path + ".") | inner
        kinds = [member["properties"]["kind"]["const"] for member in members if "kind" in member.get("properties", {})]
        if kinds:
            inner[path + ".kind"] = {"enum": kinds}
        if "gauge" in kinds:
            inner |= {f"{path}.{key}": properties[key] for key, properties in _SHORT_START_KEYS.items()}
        merged = bool(members) and len(members) == len(_options(entry)) and "kind" not in members[0]["properties"]
        out[path] = {"type": "object", "description": members[0].get("description", "")} if merged else entry
        out |= inner
    return out


def _free(keys: dict[str, Any]) -> dict[str, Any]:
    """Pattern → schema, for the keys in mappings whose keys are the user's own."""
    inner = {re.escape(path): entry.get("additionalProperties") for path, entry in keys.items()}
    return {rf"^{path}\.": schema for path, schema in inner.items() if isinstance(schema, dict)}


def _lists(schemas_of: dict[str, Any]) -> dict[str, Any]:
    return {key: {"type": "array", "items": schema, "minItems": 1} for key, schema in schemas_of.items()}


def _options(entry: dict[str, Any]) -> list[dict[str, Any]]:
    return list(entry.get("anyOf", [entry]))


def _used(node: Any, definitions: dict[str, Any]) -> set[str]:
    """Names of the definitions that a schema refers to, also through others."""
    names: set[str] = set()
    waiting = [node]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += item
        elif isinstance(item, dict):
            name = str(item.get("$ref", "")).removeprefix(_REF)
            if name and name not in names:
                names.add(name)
                waiting.append(definitions[name])
            waiting += item.values()
    return names


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, schema in schemas().items():
        (folder / name).write_text(json.dumps(schema, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
