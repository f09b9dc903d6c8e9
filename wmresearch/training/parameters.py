"""What an optimizer has to know of a model's parameters: their part of the model, decay, matrices, what is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flax import nnx

from wmresearch.head_output.weights import MatrixAxes, Params, about, split

Part = Literal["head_output", "queries_keys", "mlp", "embeddings"]


@dataclass(frozen=True)
class ParameterFacts:
    """Of one parameter."""

    part: Part
    decays: bool
    """Matrices yes; biases and gains no."""
    axes: MatrixAxes | None = None


def trained(module: nnx.Module) -> Params:
    """For each parameter, whether it is trained: masks and places are not."""
    return about(module, lambda _, param: param.trainable)


def head_outputs(module: nnx.Module) -> Params:
    """For each parameter, whether it is a trained one of the head outputs."""
    return about(module, lambda path, param: param.trainable and part_of(path) == "head_output")


def parameter_facts(module: nnx.Module) -> Params:
    """The facts of each parameter that is trained."""
    return split(about(module, facts_of), trained(module))[0]


def facts_of(path: str, parameter: nnx.Variable) -> ParameterFacts:
    """The facts of one parameter."""
    return ParameterFacts(part_of(path), parameter.decay, parameter.axes)


def part_of(path: str) -> Part:
    """The part of the model that a parameter belongs to, by its path. Norms count to the embeddings."""
    names = path.split("/")
    if "head_output" in names:
        return "head_output"
    if "attention" in names:
        return "queries_keys"
    return "mlp" if "mlp" in names else "embeddings"
