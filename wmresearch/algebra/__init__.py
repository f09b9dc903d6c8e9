"""Matrices kept as factors. Knows no Flax."""

from wmresearch.algebra.factored_matrix import FactoredMatrix

__all__ = ["FactoredMatrix"]
