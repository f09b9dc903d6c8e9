"""Research on attention heads through their value-output maps W_M = W_V W_O.

A layer of multi-head attention is y = Σ_i P_i X M_i with M_i = W_V_i W_O_i. This package parameterizes the M_i
directly, trains small language models with each parameterization, and compares them in tables with uncertainty.
"""

__version__ = "0.1.0"
