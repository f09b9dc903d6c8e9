"""JSON schemas of run and sweep files, for editors that complete and check YAML.

    python -m wmresearch.config.schema configs/schema
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from wmresearch.config.run import RunConfig
from wmresearch.config.sweep import SweepConfig


def schemas() -> dict[str, dict[str, Any]]:
    """File name → JSON schema."""
    return {"run.json": _schema(RunConfig), "sweep.json": _schema(SweepConfig)}


def _schema(config_class: type[RunConfig] | type[SweepConfig]) -> dict[str, Any]:
    schema = _with_names(config_class.model_json_schema())
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
        node["anyOf"] = [*node.pop("oneOf"), {"enum": names}]
    return node


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, schema in schemas().items():
        (folder / name).write_text(json.dumps(schema, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
