"""The devices of a run as a grid: how many along each axis, and whether these sizes fit."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jax.sharding import AxisType, Mesh

from wmresearch.config import ConfigError, Problem, RunConfig

AXES = ("data", "head", "copy")
"""`head` and `copy` together are the config's head axis: devices that have key/value heads of their own, and those that
share each one's (`Placement.shards`)."""
HEADS = ("head", "copy")


@dataclass(frozen=True)
class Sizes:
    """Devices along the axes of the config's mesh."""

    data: int = 1
    head: int = 1

    @property
    def devices(self) -> int:
        return self.data * self.head


def mesh_sizes(config: RunConfig, devices: int, processes: int = 1) -> Sizes | None:
    """The sizes that the config asks for, on so many devices; None: one device.

    `auto` of an axis is the largest size that fits: a divisor of the batch's rows, or of the heads; data comes first.

    Raises:
        ConfigError: there are not so many devices, or several processes would not use all.
    """
    mesh, model = config.parallel.mesh, config.model
    if mesh is None:
        if processes > 1:
            hint = "several processes train one run: divide it over their devices"
            raise ConfigError([Problem("config", "parallel.mesh", "null", "sizes, or auto", hint)])
        return None
    if mesh.run != 1 and not mesh.divides and processes == 1:  # runs side by side, on a device each
        return None
    rows = config.data.batch_size // config.execution.accumulate
    head = 1 if mesh.head == "auto" else mesh.head
    data = _largest(rows, devices // head) if mesh.data == "auto" else mesh.data
    if mesh.head == "auto":
        head = _largest(model.n_heads, devices // data, model.context if config.parallel.shard_positions else None)
    sizes = Sizes(data, head)
    if sizes.devices > devices or (processes > 1 and sizes.devices != devices):
        raise ConfigError([_does_not_fit(sizes, devices, processes, rows, model.n_heads)])
    return sizes


def _largest(number: int, limit: int, other: int | None = None) -> int:
    """The largest divisor (also of another number) up to a limit; 1 where there is none."""
    fitting = (n for n in range(min(number, limit), 1, -1) if number % n == 0 and (other is None or other % n == 0))
    return next(fitting, 1)


def _does_not_fit(sizes: Sizes, devices: int, processes: int, rows: int, heads: int) -> Problem:
    given = f"data {sizes.data} × head {sizes.head} = {sizes.devices} devices"
    there = f"{devices} in {processes} processes, all of them" if processes > 1 else f"at most {devices}"
    fitting = [
        (data, head)
        for data in range(1, devices + 1)
        for head in range(1, devices // data + 1)
        if rows % data == 0 and heads % head == 0 and (processes == 1 or data * head == devices)
    ]
    most = sorted(fitting, key=lambda size: -size[0] * size[1])[:6]
    listed = ", ".join(f"{data} × {head}" for data, head in most) or "none"
    hint = f"data × head that fit, where data divides {rows} rows and head {heads} heads: {listed}"
    if devices == 1 and jax.default_backend() == "cpu":
        hint += f"; for {sizes.devices} virtual devices set XLA_FLAGS=--xla_force_host_platform_device_count="
        hint += f"{sizes.devices}"
    return Problem("config", "parallel.mesh", given, there, hint)


def make_mesh(sizes: Sizes, copies: int) -> Mesh:
    """The first devices as a grid over `AXES`; `copies` divides the head axis."""
    shape = (sizes.data, sizes.head // copies, copies)
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[: sizes.devices])
