"""A run's identity: a hash of the config's scientific part, that is of the fields that change its result."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel

from wmresearch.config.base import Operational
from wmresearch.config.run import RunConfig

SCHEMA_VERSION = 1
"""Raised when a config field changes its meaning, so that old runs are not taken for new ones."""


def scientific(config: BaseModel) -> dict[str, Any]:
    """The fields that change the result and differ from their defaults, as plain data; `kind` is always there."""
    out: dict[str, Any] = {}
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if any(isinstance(item, Operational) for item in field.metadata):
            continue
        if name != "kind" and not field.is_required() and value == field.get_default(call_default_factory=True):
            continue
        out[name] = _plain(value)
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return scientific(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def run_id(config: RunConfig, corpus_digest: str) -> str:
    """Twelve hexadecimal digits of sha256 over the scientific config, the schema version and the corpus digest.

    The corpus stands in the hash by its digest, not by the path or name it was read from. So does the file of a head
    output of the user's own: its path is operational, and its sha256, filled in by loading, a field of the config.
    """
    content = scientific(config)
    content.get("data", {}).pop("corpus", None)
    content |= {"schema": SCHEMA_VERSION, "corpus_digest": corpus_digest}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
