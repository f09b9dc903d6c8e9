"""Cuts a run's heads to the directions that their method keeps, and takes the others out of the whole state.

On the host, between two dispatches. A cut changes the function: other factors of the same maps, in which directions are
scored; then zeros for what is not kept. Compaction does not: the arrays lose what is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from wmresearch.config.dynamic_rank import DynamicRankConfig, Ranks
from wmresearch.config.model import ModelConfig
from wmresearch.config.rank_method import Energy, FixedRanks
from wmresearch.head_output.compact import Move, alive, closed, kept_ranks, make_move
from wmresearch.head_output.weights import Params
from wmresearch.model.transformer import Transformer
from wmresearch.training import rank_choice
from wmresearch.training.rank_choice import Basis, Layer
from wmresearch.training.rank_training import outputs_of
from wmresearch.training.step import TrainState

Keep: TypeAlias = dict[int, np.ndarray]
"""Layer → its places that are kept."""
Role: TypeAlias = Literal["value", "slope", "square"]
"""What an array shaped like a parameter is: the parameter, (a mean of) its gradient, (a mean of) that squared."""
Change: TypeAlias = Callable[[int, str, Role, np.ndarray], np.ndarray]
"""(layer, name of an attention layer's parameter, role, array) → what becomes of it."""
Like: TypeAlias = Callable[[ModelConfig], TrainState]
"""A model → shapes and types of its state."""


def with_ranks(model: ModelConfig, ranks: Ranks, *, fixed: bool) -> ModelConfig:
    """The model whose heads have these ranks; `fixed`: and go on without their method."""
    chosen = model.head_output
    assert isinstance(chosen, DynamicRankConfig)
    changes: dict[str, Any] = {"ranks": ranks, "rank": chosen.full_rank()}
    if fixed:
        changes |= {"method": FixedRanks(), "total_rank": None, "fine_tune_steps": None, "compact_at": ()}
    return model.model_copy(update={"head_output": chosen.model_copy(update=changes)})


def model_at(model: ModelConfig, history: Sequence[Mapping[str, Any]], step: int) -> ModelConfig:
    """The model as a run's cuts had left it after a step; `history` are the lines of ranks.jsonl."""
    for line in history:
        if line["step"] <= step:
            model = with_ranks(model, tuple(map(tuple, line["ranks"])), fixed=line["final"])
    return model


def cut(
    build: Callable[[ModelConfig], Any],
    model: ModelConfig,
    state: TrainState,
    like: Like,
    tokens: Int[np.ndarray, "b t"],
    *,
    final: bool,
    seed: int,
) -> tuple[ModelConfig, TrainState]:
    """The model and the state after a cut: the final one keeps exactly `total_rank` directions, others at least that.

    `build` makes the module of a model, a `Transformer`; `tokens` are what whitened maps are measured on.
    """
    transformer = build(model)
    chosen = model.head_output
    assert isinstance(chosen, DynamicRankConfig)
    assert chosen.total_rank is not None
    layers = _read(transformer, state.params, tokens, whitened=_whitened(chosen))
    of_maps = chosen.method.kind in ("energy", "random", "uniform")
    bases: dict[int, Basis | None] = dict.fromkeys(layers)
    if of_maps:
        bases = {index: rank_choice.singular(layer) for index, layer in layers.items()}
    elif final and chosen.method.kind != "nested":
        bases = {index: rank_choice.with_gates_folded(layer) for index, layer in layers.items()}
    held = {index: rank_choice.places_in_basis(layer, bases[index]) for index, layer in layers.items()}
    score = rank_choice.scores(chosen, layers, bases, seed)
    keep = rank_choice.largest(layers, held, score, chosen.total_rank)
    if not final:
        sigma = {index: basis.sigma for index, basis in bases.items() if basis is not None and basis.sigma is not None}
        open_ = rank_choice.still_open(chosen, layers, held, sigma)
        if sum(row.sum() for row in open_.values()) >= chosen.total_rank:
            keep = open_
    fixed = with_ranks(model, chosen.all_ranks(model), fixed=final)
    state = _rebased(state, like(fixed), layers, bases)
    in_use = build(fixed)
    return compact(in_use, fixed, close(in_use, state, keep), like, keep)


def close(transformer: Transformer, state: TrainState, keep: Keep) -> TrainState:
    """Zeros for directions that are not kept, in parameters and moments, and for heads without any.

    What they wrote of their value biases stays, in the output bias: attention rows sum to one but for dropout.
    """
    outputs = outputs_of(nnx.merge(nnx.split(transformer)[0], state.params))
    written: dict[int, np.ndarray] = {}
    for index, output in outputs.items():
        if output.value_bias is not None:
            gone = np.where(keep[index], 0, np.asarray(output.value_bias[...], float))
            written[index] = gone[output.layout.place_of_row()] @ np.asarray(output.gated_b(), float)

    def change(layer: int, name: str, role: Role, leaf: np.ndarray) -> np.ndarray:
        if layer not in outputs:
            return leaf
        if name == "output_bias" and role == "value" and layer in written:
            return (leaf + written[layer]).astype(leaf.dtype)
        return closed(name, leaf, outputs[layer].layout, keep[layer])

    return carry(state, state, change)


def compact(
    transformer: Transformer, model: ModelConfig, state: TrainState, like: Like, keep: Keep | None = None
) -> tuple[ModelConfig, TrainState]:
    """The same function without the directions that are zero, or without those not in `keep`, which have to be zero.

    Once more changes nothing.
    """
    chosen = model.head_output
    assert isinstance(chosen, DynamicRankConfig)
    outputs = outputs_of(transformer)
    if keep is None:
        attention = {index: state.params["blocks"][index]["attention"] for index in outputs}
        keep = {index: alive(attention[index], output.layout) for index, output in outputs.items()}
    moves: dict[int, Move] = {}
    ranks = [(0,) * model.kv_heads] * model.n_layers
    for index, output in outputs.items():
        moves[index] = make_move(output.layout, keep[index], chosen.bucket, model.kv_heads)
        ranks[index] = kept_ranks(output.layout, keep[index], model.kv_heads)
    fixed = chosen.method.kind == "fixed"
    new = with_ranks(model, tuple(ranks), fixed=fixed)

    def change(layer: int, name: str, role: Role, leaf: np.ndarray) -> np.ndarray:
        del role
        return moves[layer](name, leaf) if layer in moves else leaf

    return new, carry(state, like(new), change)


def carry(old: TrainState, like: TrainState, change: Change) -> TrainState:
    """A state of the structure of `like`, from the arrays of an old one that stand at the same paths, changed.

    Whatever is shaped like a parameter stands at the parameter's path within moments, cached gradients and so on.
    """
    held = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(old)}

    def new(path: tuple[Any, ...], spec: Any) -> Array:
        leaf = held[jax.tree_util.keystr(path)]
        place = _place(path)
        if place is None:
            return jnp.array(leaf)
        changed = change(*place, _role(path), np.asarray(leaf))
        assert changed.shape == spec.shape, (path, changed.shape, spec.shape)
        return jnp.asarray(changed, spec.dtype)

    return jax.tree_util.tree_map_with_path(new, like)


def _place(path: tuple[Any, ...]) -> tuple[int, str] | None:
    """Layer and name of what belongs to an attention layer; None of anything else."""
    keys = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
    if "blocks" not in keys or "attention" not in keys:
        return None
    return keys[keys.index("blocks") + 1], keys[-1]


def _role(path: tuple[Any, ...]) -> Role:
    names = [key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey)]
    return "value" if names[0] == "params" else "square" if "nu" in names else "slope"


def _rebased(
    state: TrainState, like: TrainState, layers: dict[int, Layer], bases: dict[int, Basis | None]
) -> TrainState:
    """The state in other factors of the same maps; what its new model does not have is left behind.

    Mean gradients change as gradients do. Of mean squares only those of the entries are known, not their products, so
    they change as if entries were not correlated: by the squares of the coefficients.
    """

    def change(index: int, name: str, role: Role, leaf: np.ndarray) -> np.ndarray:
        basis = bases.get(index)
        if basis is None or name not in ("factor_a", "factor_b", "value_bias"):
            return leaf
        layout = layers[index].layout
        rows = layout.rows_of_places()
        of_b = name == "factor_b"
        matrices = (basis.b if of_b else basis.a) if role == "value" else basis.b_slope if of_b else basis.a_slope
        out = leaf.astype(float)
        for matrix, (_, places) in zip(matrices, layout.places(), strict=True):
            factor = matrix**2 if role == "square" else matrix
            if of_b:
                out[rows[places]] = np.einsum("rs,sgd->rgd", factor, leaf[rows[places]].astype(float))
            else:
                out[..., places] = leaf[..., places].astype(float) @ factor
        return out.astype(leaf.dtype)

    return carry(state, like, change)


def _whitened(config: DynamicRankConfig) -> bool:
    return isinstance(config.method, Energy) and config.method.whitened


def _read(
    transformer: Transformer, params: Params, tokens: Int[np.ndarray, "b t"], *, whitened: bool
) -> dict[int, Layer]:
    model = nnx.merge(nnx.split(transformer)[0], params)
    moments = (
        np.asarray(jax.jit(make_input_moments(transformer))(params, jnp.asarray(tokens)), float) if whitened else None
    )
    found = {}
    for index, output in outputs_of(model).items():
        gates = output.gates
        gain = np.asarray(model.blocks[index].attention_norm.gain[...], float)

        def inputs(index: int = index, gain: np.ndarray = gain) -> Float[np.ndarray, "d d"]:
            return np.diag(gain) if moments is None else _root(moments[index])

        found[index] = Layer(
            output.layout,
            np.asarray(output.origin[...]),
            np.asarray(output.factor_a[...], float),
            np.asarray(output.factor_b[...], float),
            None if gates is None else np.asarray(gates(), float),
            None if gates is None else np.asarray(gates.scores(output.origin[...]), float),
            inputs,
        )
    return found


def make_input_moments(transformer: Transformer) -> Callable[[Params, Int[Array, "b t"]], Float[Array, "l d d"]]:
    """Parameters, tokens → E[x xᵀ] of what each layer's heads read of, over the tokens."""
    graph, _ = nnx.split(transformer)

    def moments(params: Params, tokens: Int[Array, "b t"]) -> Float[Array, "l d d"]:
        inputs = nnx.merge(graph, params).attention_inputs(tokens)
        flat = [x.reshape(-1, x.shape[-1]).astype(jnp.promote_types(x.dtype, jnp.float32)) for x in inputs]
        return jnp.stack([x.T @ x / x.shape[0] for x in flat])

    return moments


def _root(moment: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    values, vectors = np.linalg.eigh(moment)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
