"""What is measured of the heads' maps at each evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array

from wmresearch.algebra.diagnostics import SpectrumStatistics, copying_score, head_overlap, spectrum_statistics
from wmresearch.config import RunConfig
from wmresearch.config.optimizer import AdamWConfig
from wmresearch.config.traced import with_numbers
from wmresearch.head_output.dynamic_rank import DynamicRank
from wmresearch.head_output.weights import Params, quickly
from wmresearch.model.maps import make_maps
from wmresearch.model.transformer import Transformer
from wmresearch.training.ahead import Compiling, compile_for
from wmresearch.training.optimizers import decay_rates, is_zero
from wmresearch.training.parameters import parameter_facts
from wmresearch.training.step import TrainState

Diagnostics = dict[str, np.ndarray]
"""Name → values `[layers, heads]`; `singular_values` `[layers, heads, r]`, `cosines` `[layers, heads, heads]`."""


def make_diagnostics(transformer: Transformer) -> Compiling[[Params], Diagnostics]:
    """`make_measure`, compiled, its results on the host."""
    compiled = jax.jit(make_measure(transformer), compiler_options=quickly())
    measured = lambda params: jax.tree.map(np.asarray, compiled(params))
    return Compiling(measured, lambda params: compile_for(compiled, params))


def make_measure(transformer: Transformer) -> Callable[[Params], dict[str, Array]]:
    """A function from parameters to the statistics of each head's map, the norm's gain folded in.

    Those of `SpectrumStatistics`; `cosines` between the heads of a layer, and `overlap`, the largest |cosine| with
    another of them; `copying`, the copying score through the model's embeddings. Of `dynamic_rank` also `rank`, the
    directions that are open, and `gate`, the mean size of the gates.
    """
    maps, (graph, _) = make_maps(transformer), nnx.split(transformer)

    def measure(params: Params) -> dict[str, Array]:
        found = maps(params)
        statistics = spectrum_statistics(found)
        out = {field.name: getattr(statistics, field.name) for field in fields(SpectrumStatistics)}
        embedding = params["embedding"]
        unembedding = params["logits"] if "logits" in params else embedding.T  # noqa: SIM401, not for every model
        out["copying"] = copying_score(found, embedding, unembedding)
        out["cosines"] = head_overlap(found)
        cosines = jnp.abs(out["cosines"])
        heads = cosines.shape[-1]
        others = 1 - jnp.eye(heads, dtype=cosines.dtype)
        model = nnx.merge(graph, params)
        outputs = [block.attention.head_output for block in model.blocks]
        gates = [output.gates_of_heads() for output in outputs if isinstance(output, DynamicRank)]
        if gates:
            out |= jax.tree.map(lambda *layers: jnp.stack(layers), *gates)
        out["overlap"] = jnp.max(cosines * jnp.broadcast_to(others, cosines.shape), axis=-1)
        return out

    return measure


def effective_decay(
    config: RunConfig, transformer: Transformer
) -> Compiling[[TrainState, Mapping[str, Any]], Diagnostics]:
    """`lambda_eff` `[layers]`, wd · √v̂ of each layer's head output, the mean over its decayed entries; of AdamW alone.

    Decoupled decay of entry p acts as a penalty of gradient λ_eff · p would in Adam, whose steps are divided by √v̂: so
    it differs by layer, batch size and time (SCIENCE: traps). The function is given a run's numbers, as its steps are.
    """
    chosen = config.optimizer
    if not isinstance(chosen, AdamWConfig) or chosen.decay != "decoupled":
        return Compiling(lambda *_: {})
    facts = parameter_facts(transformer)

    def measure(state: TrainState, numbers: Mapping[str, Any]) -> dict[str, Array]:
        """After at least one step."""
        rates = decay_rates(with_numbers(config, numbers).optimizer, facts)
        moments = optax.tree.get(state.optimizer, "nu")
        correction = 1 - chosen.betas[1] ** state.step.astype(float)
        layers = []
        for layer in sorted(moments["blocks"]):
            pairs = zip(_leaves(moments, layer), _leaves(rates, layer), strict=True)
            found = [(rate * jnp.sqrt(leaf / correction), leaf.size) for leaf, rate in pairs if not is_zero(rate)]
            total = sum((jnp.sum(values) for values, _ in found), jnp.zeros(()))
            layers.append(total / max(1, sum(size for _, size in found)))
        return {"lambda_eff": jnp.stack(layers)}

    compiled = jax.jit(measure)
    return Compiling(
        lambda state, numbers: jax.tree.map(np.asarray, compiled(state, numbers)),
        lambda state, numbers: compile_for(compiled, state, numbers),
    )


def _leaves(tree: Any, layer: int) -> list[Any]:
    """Of a layer's head output; none where no head is left, and no bias."""
    return jax.tree.leaves(tree["blocks"][layer].get("attention", {}).get("head_output", {}))
