"""The transformer and what it costs."""

from wmresearch.model.transformer import Transformer, make_apply

__all__ = ["Transformer", "make_apply"]
