"""A valid run config and a valid sweep over it, as plain data."""

TINY = {
    "model": {"d_model": 128, "n_layers": 2, "n_heads": 4, "context": 64},
    "data": {"corpus": "stdlib/small", "tokenizer": "byte", "batch_size": 16},
    "optimizer": {"kind": "adamw", "learning_rate": 3e-3, "schedule": {"kind": "cosine", "warmup": 20}},
    "training": {"steps": 300},
}
SWEEP = {
    "name": "s",
    "base": "base.yaml",
    "baseline": "W_o",
    "arms": {"W_o": {}, "rank 4": {"model.head_output": {"kind": "factorized", "rank": 4}}},
    "grid": {"optimizer.learning_rate": [1e-3, 2e-3]},
    "seeds": [0, 1],
}


def problems_of(function, *arguments):
    """(source, path, value, expected and hint) of every problem; [] where there is none."""
    from wmresearch.config import ConfigError

    try:
        function(*arguments)
    except ConfigError as error:
        assert str(error)
        return [(p.source, p.path, p.value, f"{p.expected}; {p.hint}") for p in error.problems]
    return []


def has(problems, path, value, *words):
    """Whether one problem has this path, this value and all of these words."""
    return any(p[1] == path and p[2] == value and all(word in p[3] for word in words) for p in problems)
