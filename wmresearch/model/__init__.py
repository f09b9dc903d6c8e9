"""The transformer and what it costs."""

from wmresearch.model.transformer import Transformer, make_apply, make_nats

__all__ = ["Transformer", "make_apply", "make_nats"]
