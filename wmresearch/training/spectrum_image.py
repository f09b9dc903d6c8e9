"""Heads' spectra as one small picture, drawn cell by cell: tens of milliseconds, at most 80 kB."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from PIL import Image, ImageDraw

_DECADES = 4
_WIDTH, _HEIGHT = 480, 400
"""Of the cells, in pixels, at most."""
_LEFT, _TOP, _BOTTOM, _GAP, _BAR = 62, 22, 18, 3, 70
_COLORS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""Dark to bright, also in grey and to the colour-blind."""


def draw_spectra(singular_values: Float[np.ndarray, "layers heads r"], step: int) -> Image.Image:
    """Log₁₀(σ_j / the largest of all) from −4 to 0: a row a head, layers from the top, j from the left.

    Where there are more rows or columns than fit, every second or third (…) is shown.
    """
    layers, heads, rank = singular_values.shape
    every, stride = -(-layers * heads // _HEIGHT), -(-rank // _WIDTH)
    shown = singular_values[:, ::every, ::stride].astype(float)
    largest = float(shown.max(initial=0.0))
    with np.errstate(divide="ignore"):
        bright = np.clip(1 + np.log10(shown / (largest or 1.0)) / _DECADES, 0, 1)
    height = max(1, min(14, _HEIGHT // (layers * shown.shape[1])))
    width = max(1, min(24, _WIDTH // shown.shape[2]))
    bands = [np.kron(_color(layer), np.ones((height, width, 1), np.uint8)) for layer in bright]
    band, across = bands[0].shape[:2]
    gap = _GAP if (band + _GAP) * layers <= 2 * _HEIGHT else 0
    bottom = _TOP + layers * (band + gap)
    picture = Image.new("RGB", (_LEFT + max(across, 260) + _BAR, max(bottom, _TOP + 90) + _BOTTOM), "white")
    pen, labelled = ImageDraw.Draw(picture), -100
    for layer, cells in enumerate(bands):
        top = _TOP + layer * (band + gap)
        picture.paste(Image.fromarray(cells), (_LEFT, top))
        if top - labelled >= 12:
            pen.text((4, top + band // 2 - 6), f"layer {layer}", "black")
            labelled = top
    pen.text((4, 4), f"singular values of W_M after step {step}, largest {largest:.3g}", "black")
    pen.text((_LEFT, bottom), f"1 ... {rank}", "black")
    _scale(picture, pen)
    return picture


def _scale(picture: Image.Image, pen: ImageDraw.ImageDraw) -> None:
    left, long = picture.width - _BAR + 12, 80
    column = _color(np.linspace(1, 0, long)[:, None])
    picture.paste(Image.fromarray(np.repeat(column, 12, axis=1)), (left, _TOP))
    for decade in range(0, _DECADES + 1, 2):
        pen.text((left + 16, _TOP + decade * long // _DECADES - 6), f"1e-{decade}" if decade else "1", "black")


def _color(bright: Float[np.ndarray, "rows columns"]) -> np.ndarray:
    places = np.linspace(0, 1, len(_COLORS))
    channels = [np.interp(bright, places, channel) for channel in zip(*_COLORS, strict=True)]
    return np.stack(channels, axis=-1).astype(np.uint8)
