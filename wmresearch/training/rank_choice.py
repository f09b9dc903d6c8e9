"""Which directions a method keeps: their scores, and the factors in which directions are scored. On the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from wmresearch.config.dynamic_rank import DynamicRankConfig
from wmresearch.config.rank_method import Energy
from wmresearch.head_output.rank_layout import RankLayout
from wmresearch.head_output.weights import PADDING
from wmresearch.training.randomness import Purpose, purpose_key


@dataclass(frozen=True)
class Layer:
    """What is asked of a layer, in float64."""

    layout: RankLayout
    origin: Int[np.ndarray, " w"]
    factor_a: Float[np.ndarray, "d w"]
    factor_b: Float[np.ndarray, "gw d"]
    gates: Float[np.ndarray, " w"] | None
    scores: Float[np.ndarray, " w"] | None
    """Of methods with gates."""
    inputs: Callable[[], Float[np.ndarray, "d d"]]
    """R with RᵀR = E[x xᵀ] of what the heads read of; diag(γ) of the norm's gain where x is only normed."""


@dataclass(frozen=True)
class Basis:
    """Other factors A' = A G, B' = H B of the same maps, and what that does to a gradient: ∂A' = ∂A Hᵀ, ∂B' = Gᵀ ∂B.

    One matrix `[r, r]` for each head, in the order of the layout. With gates M = A diag(g) B, G = I and H = diag(g);
    the gradient of B' is that of B divided by g.
    """

    a: tuple[Float[np.ndarray, "r r"], ...]
    b: tuple[Float[np.ndarray, "r r"], ...]
    a_slope: tuple[Float[np.ndarray, "r r"], ...]
    b_slope: tuple[Float[np.ndarray, "r r"], ...]
    sigma: Float[np.ndarray, " w"] | None = None
    """Singular values, the largest of each head first; None where directions are not singular ones."""


def with_gates_folded(layer: Layer) -> Basis:
    """B' = diag(g) B."""
    assert layer.gates is not None
    rows = [layer.gates[places] for _, places in layer.layout.places()]
    identity = tuple(np.eye(row.size) for row in rows)
    inverse = tuple(np.diag(np.divide(1, row, out=np.zeros_like(row), where=row != 0)) for row in rows)
    return Basis(identity, tuple(map(np.diag, rows)), identity, inverse)


def singular(layer: Layer) -> Basis:
    """The balanced singular factors of R M, R the inputs': A' = A G with R A' = U √S, B' = √S Wᵀ Q_Bᵀ.

    With R A = Q_A R_A, Bᵀ = Q_B R_B and R_A R_Bᵀ = U S Wᵀ: G = R_Bᵀ W S^-½, H = S^-½ Uᵀ R_A. The query heads that share
    A are one map [M_1 … M_g].
    """
    root = layer.inputs()
    rows = layer.layout.rows_of_places()
    gs, hs, sigmas = [], [], []
    for _, places in layer.layout.places():
        a, b = layer.factor_a[:, places], layer.factor_b[rows[places]]
        r_a, r_b = (np.linalg.qr(x).R for x in (root @ a, b.reshape(b.shape[0], -1).T))
        u, s, wt = np.linalg.svd(r_a @ r_b.T)
        u, s, wt = u[:, : s.size], s, wt[: s.size]
        held = s > np.finfo(np.float32).eps * max(s.max(initial=0), np.finfo(float).tiny)
        shrink = np.divide(1, np.sqrt(s), out=np.zeros_like(s), where=held)
        r = a.shape[1]
        g, h = np.zeros((r, r)), np.zeros((r, r))
        g[:, : s.size] = r_b.T @ wt.T * shrink
        h[: s.size] = shrink[:, None] * (u.T @ r_a)
        gs.append(g)
        hs.append(h)
        sigmas.append(np.pad(np.where(held, s, 0), (0, r - s.size)))
    sigma = np.concatenate(sigmas) if sigmas else np.zeros(0)
    return Basis(tuple(gs), tuple(hs), tuple(h.T for h in hs), tuple(g.T for g in gs), sigma)


def places_in_basis(layer: Layer, basis: Basis | None) -> Bool[np.ndarray, " w"]:
    """The places that hold a direction; singular ones come first in each head, as many as it has directions."""
    if basis is None or basis.sigma is None:
        return layer.origin != PADDING
    held = np.zeros(layer.layout.width, bool)
    for _, places in layer.layout.places():
        held[places] = np.arange(places.stop - places.start) < (layer.origin[places] != PADDING).sum()
    return held


def scores(
    config: DynamicRankConfig, layers: Mapping[int, Layer], bases: Mapping[int, Basis | None], seed: int
) -> dict[int, np.ndarray]:
    """What a method keeps directions by, of each layer's places: the largest over all layers."""
    kind = config.method.kind
    if kind in ("hard_concrete", "budgeted", "nested"):
        return {index: np.asarray(layer.scores, float) for index, layer in layers.items()}
    found = {}
    wanted = _random_ranks(config, layers, seed) if kind == "random" else {}
    for index, layer in layers.items():
        basis = bases[index]
        assert basis is not None
        assert basis.sigma is not None
        if kind == "energy":
            squares = basis.sigma**2
            found[index] = squares / max(squares.sum(), np.finfo(float).tiny)
            continue
        order = np.concatenate([np.arange(p.stop - p.start, dtype=float) for _, p in layer.layout.places()])
        if kind == "random":
            limits = np.concatenate(
                [np.full(p.stop - p.start, wanted[index, head]) for head, p in layer.layout.places()]
            )
            found[index] = np.where(order < limits, 1.0, 0.0)
        else:
            found[index] = -order
    return found


def largest(
    layers: Mapping[int, Layer], held: Mapping[int, np.ndarray], score: Mapping[int, np.ndarray], count: int
) -> dict[int, np.ndarray]:
    """Exactly so many of the places held, of the largest scores; of equals the first by layer, head and number."""
    keys = [
        (-float(score[index][place]), index, int(head), int(layer.origin[place]) % (1 << 30), place)
        for index, layer in layers.items()
        for place, head in enumerate(layer.layout.head_of_place())
        if held[index][place]
    ]
    keep = {index: np.zeros(layer.layout.width, bool) for index, layer in layers.items()}
    for _, index, _, _, place in sorted(keys)[:count]:
        keep[index][place] = True
    return keep


def still_open(
    config: DynamicRankConfig,
    layers: Mapping[int, Layer],
    held: Mapping[int, np.ndarray],
    sigma: Mapping[int, np.ndarray],
) -> dict[int, np.ndarray]:
    """The places that a method keeps before the cut: open gates, s ≠ 0, or the share of the layer's Σ σ²."""
    if not isinstance(config.method, Energy):
        return {index: held[index] & (np.asarray(layer.gates) != 0) for index, layer in layers.items()}
    keep = {}
    for index in layers:
        squares = np.where(held[index], sigma[index] ** 2, 0)
        order = np.argsort(-squares, kind="stable")
        before = np.cumsum(squares[order]) - squares[order]
        keep[index] = np.zeros(squares.size, bool)
        keep[index][order] = before < config.method.share * squares.sum()
        keep[index] &= held[index]
    return keep


def _random_ranks(config: DynamicRankConfig, layers: Mapping[int, Layer], seed: int) -> dict[tuple[int, int], int]:
    """Ranks in proportion to exponential draws (so evenly over all of a sum), none above what a head has."""
    limits = {
        (index, head): int((layer.origin[places] != PADDING).sum())
        for index, layer in layers.items()
        for head, places in layer.layout.places()
    }
    names: Sequence[tuple[int, int]] = sorted(limits)
    drawn = np.asarray(jax.random.exponential(purpose_key(seed, Purpose.RANKS), (len(names),)), float)
    most = np.array([limits[name] for name in names], float)
    total = min(float(config.total_rank or 0), most.sum())
    low, high = 0.0, most.max() / max(drawn.min(), np.finfo(float).tiny)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(most, middle * drawn).sum() < total else (low, middle)
    shares = np.minimum(most, high * drawn)
    ranks = np.floor(shares)
    missing = round(total - ranks.sum())
    room = np.where(ranks < most, shares - ranks, -1)
    ranks[np.argsort(-room, kind="stable")[:missing]] += 1
    return {name: int(rank) for name, rank in zip(names, ranks, strict=True)}
