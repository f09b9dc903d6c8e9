"""What a run's curves are drawn of, made of the lines of its logs. No JAX, so that a reader starts at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

ARRAYS = ("singular_values", "cosines")
"""What diagnostics hold that is larger than a number for each head."""


def layer_means(found: Mapping[str, Any]) -> dict[str, float]:
    """heads/NAME/layerN → the mean over a layer's heads, heads/NAME/mean → the mean over layers."""
    means: dict[str, float] = {}
    for name, values in found.items():
        if name not in ("step", *ARRAYS):
            layers = [float(np.mean(np.asarray(row, float))) for row in values]
            means |= {f"heads/{name}/layer{layer}": mean for layer, mean in enumerate(layers)}
            means[f"heads/{name}/mean"] = float(np.mean(layers))
    return means


def ranks_row(line: Mapping[str, Any]) -> dict[str, float]:
    """rank/total, and rank/layerN of each layer, after a cut."""
    layers = {f"rank/layer{layer}": float(sum(row)) for layer, row in enumerate(line["ranks"])}
    return {"rank/total": float(line["total_rank"]), **layers}
