"""A value for a field of a config class that is known only when its file is loaded."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema

from wmresearch.config.base import wrong


def _setting(value: Any) -> Any:
    for item in value if isinstance(value, list) else [value]:
        number = math.isfinite(item) if isinstance(item, float) else isinstance(item, int)
        if not (number or item is None or isinstance(item, str)):
            raise wrong("a number, text, true, false or null, or a list of these")
    return value


_SCALAR: dict[str, Any] = {"type": ["number", "string", "boolean", "null"]}
_SETTING_SCHEMA = {"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR}]}
Setting = Annotated[Any, AfterValidator(_setting), WithJsonSchema(_SETTING_SCHEMA)]
