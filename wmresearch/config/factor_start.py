"""How the factors A and B of a head's map start."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from wmresearch.config.base import Config, NameAsKind, wrong


class MatchedStart(Config):
    """Gaussian factors; the entries of A B start with the standard product's standard deviation, whatever the rank."""

    kind: Literal["matched"] = "matched"


class SpectralStart(Config):
    """The balanced factors U √S, √S Vᵀ of a Gaussian d × d map, cut to the rank and scaled back to its ‖M‖_F."""

    kind: Literal["spectral"] = "spectral"


class GaugeStart(Config):
    """The matched factors as A G, G⁻¹ B: the same function at step 0, other factors. Short form: `{gauge: κ}`."""

    kind: Literal["gauge"] = "gauge"
    condition: float = Field(ge=1)
    """κ, the condition number of G; its singular values are spaced evenly in their logarithm about 1."""


class RunStart(Config):
    """A trained run, its heads' maps cut to the rank by their SVD; all else as it was. Short form: `{from: RUN}`."""

    kind: Literal["from"] = "from"
    run: str
    """The run's directory; relative to the folder that `wm` is called in."""
    step: int | None = Field(default=None, ge=0)
    """Of the checkpoint at this step; null means the newest."""


def _short_start(value: Any) -> Any:
    """`{gauge: κ}` and `{from: RUN}`, also `{from: RUN, step: N}`, as mappings with a kind."""
    if not isinstance(value, dict) or "kind" in value or len(value.keys() & {"gauge", "from"}) != 1:
        return value
    if "gauge" in value:
        number = value["gauge"]
        if isinstance(number, bool) or not isinstance(number, int | float) or not 1 <= number < math.inf:
            raise wrong("{gauge: κ} with a condition number κ of at least 1")
        return {"kind": "gauge", "condition": number} | {key: item for key, item in value.items() if key != "gauge"}
    if not isinstance(value["from"], str):
        raise wrong("{from: RUN} with the directory of a run")
    return {"kind": "from", "run": value["from"]} | {key: item for key, item in value.items() if key != "from"}


FactorStart = Annotated[
    MatchedStart | SpectralStart | GaugeStart | RunStart,
    Field(discriminator="kind"),
    BeforeValidator(_short_start),
    NameAsKind,
]
