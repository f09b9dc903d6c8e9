"""Groups of devices as HLO text writes them, and the axes of a mesh that they belong to.

Devices are numbered by their places in the mesh, row-major, as programs of `jit` and `shard_map` number them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import combinations, pairwise

import numpy as np

Groups = tuple[tuple[int, ...], ...]


def read_groups(attributes: str, devices: int) -> Groups:
    """Those that communicate among themselves, in any of the forms; none where the form is not known.

    `{{0,1},{2,3}}` lists them, and `{}` is everyone; `[4,2]<=[2,4]T(1,0)` is 0, 1, … in a 2 × 4 array, transposed and
    cut into 4 groups of 2; `mesh['a'=2,'b'=4] {'a'}` are those that differ in their places along a only.
    """
    start = re.search(r"\breplica_groups=", attributes)
    text = attributes[start.end() :] if start else "{}"
    if listed := _LIST.match(text):
        return tuple(filter(None, _rows(listed[1]))) or (tuple(range(devices)),)
    rows: np.ndarray | None = None
    if iota := _IOTA.match(text):
        rows = _shaped(_counted(_ints(iota["sizes"]), _ints(iota["order"])), _ints(iota["rows"]))
    elif by_axes := _MESH.match(text):
        rows = _rows_of_axes(by_axes["sizes"], by_axes["ids"], by_axes["axes"])
    return tuple(tuple(row) for row in rows.tolist()) if rows is not None and rows.ndim == 2 else ()


def read_pairs(attributes: str) -> Groups | None:
    """The pairs (from, to) of a permutation; None where their form is not known."""
    found = re.search(r"\bsource_target_pairs=" + _LIST.pattern, attributes)
    pairs = tuple(_rows(found[1])) if found else None
    return pairs if pairs is not None and all(len(pair) == 2 for pair in pairs) else None


def axes_by_groups(mesh: Mapping[str, int]) -> dict[frozenset[frozenset[int]], tuple[str, ...]]:
    """For each set of axes the groups of devices whose places differ along these only: from the groups to the axes."""
    sizes = tuple(mesh.values())
    places = np.arange(math.prod(sizes)).reshape(sizes)
    wider = [i for i, size in enumerate(sizes) if size > 1]
    chosen = [axes for count in range(len(wider) + 1) for axes in combinations(wider, count)]
    names = tuple(mesh)
    return {frozenset(map(frozenset, _along(places, axes).tolist())): tuple(names[i] for i in axes) for axes in chosen}


def axes_of_pairs(pairs: Groups, mesh: Mapping[str, int]) -> tuple[str, ...] | None:
    """The axes along which any device's place differs from the place of the one it sends to."""
    sizes = tuple(mesh.values())
    ends = np.array(pairs, int).reshape(-1, 2)
    if (ends >= math.prod(sizes)).any():
        return None
    places = np.unravel_index(ends, sizes) if sizes else ()
    return tuple(name for name, place in zip(mesh, places, strict=True) if (place[:, 0] != place[:, 1]).any())


_LIST = re.compile(r"\{((?:\s*\{[\d,\s]*\}\s*,?)*)\s*\}")
_IOTA = re.compile(r"\[(?P<rows>[\d,\s]+)\]\s*<=\s*\[(?P<sizes>[\d,\s]+)\](?:T\((?P<order>[\d,\s]+)\))?")
_MESH = re.compile(
    r"@?mesh[\[<](?P<sizes>[^\]>]*)[\]>](?:(?:,\s*device_ids=)?\((?P<ids>[^{}]*)\))?\s*\{(?P<axes>[^{}]*)\}"
)
_MESH_IDS = re.compile(r"\[(?P<sizes>[\d,\s]+)\](?:T\((?P<order>[\d,\s]+)\))?")
_SIZED_AXIS = re.compile(r"'?(?P<name>[^',:=]+)'?=(?P<size>\d+)")
_AXIS_PART = re.compile(r"'?(?P<name>[^',:=]+)'?(?::\((?P<before>\d+)\)(?P<size>\d+))?")


def _rows_of_axes(sizes_text: str, ids: str | None, axes_text: str) -> np.ndarray | None:
    """The groups along some axes of a mesh, or along parts of axes.

    Of an axis of 16, `'b':(2)4` is the part that has 2 before it and 4 itself: b seen as 2 × 4 × 2. Where the mesh
    does not hold its devices in their order, `ids` says which: `[4,4]T(1,0)`, or `0,8,1,9,…`.
    """
    sizes = {axis["name"].strip(): int(axis["size"]) for axis in map(_SIZED_AXIS.match, sizes_text.split(",")) if axis}
    wanted = list[tuple[str, int, int]]()  # the axis, and the sizes that it has up to the part and through it
    for axis in map(_AXIS_PART.fullmatch, filter(None, map(str.strip, axes_text.split(",")))):
        if not axis or axis["name"] not in sizes:
            return None
        before = int(axis["before"] or 1)
        wanted.append((axis["name"], before, before * int(axis["size"]) if axis["size"] else sizes[axis["name"]]))
    parts = list[tuple[str, int, int]]()
    for name, size in sizes.items():
        cuts = sorted({1, size} | {cut for axis, *ends in wanted if axis == name for cut in ends})
        parts += [(name, start, end) for start, end in pairwise(cuts)]
    wanted = [part for part in wanted if part[1] != part[2]]  # a part of size 1 parts nothing
    if not set(wanted) <= set(parts) or any(not start or end % start for _, start, end in parts):
        return None
    order = _MESH_IDS.fullmatch((ids or "").strip())
    if order:
        devices = _counted(_ints(order["sizes"]), _ints(order["order"]))
    else:
        devices = np.arange(math.prod(sizes.values())) if ids is None else np.array(_ints(ids), int)
    shaped = _shaped(devices, tuple(end // start for _, start, end in parts))
    return None if shaped is None else _along(shaped, tuple(map(parts.index, wanted)))


def _along(places: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """The devices that differ along these axes only, a row each group."""
    apart = [i for i in range(places.ndim) if i not in axes]
    return places.transpose(*apart, *axes).reshape(-1, math.prod(places.shape[i] for i in axes))


def _counted(sizes: tuple[int, ...], order: tuple[int, ...]) -> np.ndarray | None:
    """0, 1, … in an array of these sizes, read with its dimensions in another order; None where it is no order."""
    order = order or tuple(range(len(sizes)))
    if sorted(order) != list(range(len(sizes))):
        return None
    return np.arange(math.prod(sizes)).reshape(sizes).transpose(order).reshape(-1)


def _shaped(devices: np.ndarray | None, sizes: tuple[int, ...]) -> np.ndarray | None:
    return None if devices is None or devices.size != math.prod(sizes) else devices.reshape(sizes)


def _rows(text: str) -> list[tuple[int, ...]]:
    return [_ints(row) for row in re.findall(r"\{([\d,\s]*)\}", text)]


def _ints(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text or "")))
