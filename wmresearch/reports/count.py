"""What `wm count` says of a config: what its model costs and, on a mesh, where that lies."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from wmresearch.config import load_run
from wmresearch.reports.listings import cost_data, cost_listing
from wmresearch.training.custom_kind import ask_custom


def count(
    config: str, overrides: Sequence[str], mesh: str | None, compiling: Callable[[], None] | None, as_json: bool
) -> str:
    """`mesh` as `data=2,head=4`, None for that of the config, if any; `compiling` as in `mesh_report`.

    Raises:
        ConfigError: with every problem in config, overrides and mesh.
    """
    changes = list(overrides)
    if mesh is not None:
        from wmresearch.reports.mesh import mesh_override

        changes.append(mesh_override(mesh))
    loaded = load_run(config, changes, ask_custom)
    report = None
    if loaded.parallel.mesh is not None:  # it imports what trains, which costs alone need not wait for
        from wmresearch.reports.mesh import mesh_data, mesh_listing, mesh_report

        report = mesh_report(loaded, compiling)
    if as_json:
        found = cost_data(loaded) | {"mesh": report and mesh_data(report)}
        return json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    return cost_listing(loaded) + (f"\n{mesh_listing(report)}" if report else "")
