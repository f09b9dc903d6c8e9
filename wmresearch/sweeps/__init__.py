"""From a sweep file to finished runs; and the algebra of sweeps for Python."""

from wmresearch.sweeps.algebra import changed, drawn, grid, product, runs, zipped

__all__ = ["changed", "drawn", "grid", "product", "runs", "zipped"]
