"""Where a model's parameters, memory and traffic lie when a run is divided over devices, for `wm count`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from wmresearch.config import ConfigError, Problem, RunConfig
from wmresearch.config.loading import COMMAND_LINE
from wmresearch.data import symbols_of
from wmresearch.head_output.weights import split
from wmresearch.model import Transformer
from wmresearch.parallel.arrangement import Arrangement
from wmresearch.parallel.collectives import Collective, read_collectives
from wmresearch.parallel.comparison import Compared, compared
from wmresearch.parallel.mesh import Sizes, mesh_sizes
from wmresearch.parallel.shares import DeviceShare, abstract_params, device_share, held, planned
from wmresearch.parallel.traffic import Exchange, exchanges
from wmresearch.reports.listings import aligned
from wmresearch.reports.numbers import memory
from wmresearch.training.optimizers import make_optimizer
from wmresearch.training.parameters import parameter_facts, trained
from wmresearch.training.program import make_program
from wmresearch.training.runtime import prepare_runtime
from wmresearch.training.step import TrainState

_AXIS = re.compile(r"\s*(?!run\b)([\w-]+)\s*=\s*([\w.+-]+)\s*")


def mesh_override(text: str) -> str:
    """`data=2,head=4` → the override of the config that asks for this mesh; axes that are not named have 1.

    Raises:
        ConfigError: it is no list of axes and sizes; whether these fit is for the config to say.
    """
    found = [_AXIS.fullmatch(part) for part in text.split(",")]
    given = {match[1]: match[2] for match in found if match}
    if len(given) < len(found):
        expected = "each axis once and its size, for example data=2,head=4"
        raise ConfigError([Problem(COMMAND_LINE, "--mesh", text or "''", expected)])
    sizes = {"data": "1", "head": "1", "run": "1"} | given
    return "parallel.mesh={" + ", ".join(f"{axis}: {size}" for axis, size in sizes.items()) + "}"


@dataclass(frozen=True)
class MeshReport:
    """A run on its mesh."""

    sizes: Sizes
    implementation: str
    batch_size: int
    context: int
    share: DeviceShare
    parameters: int
    """Of the whole model."""
    optimizer_bytes: int
    """Of what one device has of the optimizer's state."""
    predicted: tuple[Exchange, ...]
    compiled: tuple[Compared, ...] | None
    """None: the training step was not compiled."""
    not_compiled: str | None
    """Why."""


def mesh_report(config: RunConfig, compiling: Callable[[], None] | None) -> MeshReport:
    """Predicted from shapes, and read from the training step where there are so many devices; the config has a mesh.

    `compiling` is called before the step is compiled; without it none is.

    Raises:
        ConfigError: an axis is `auto`, and the other one needs more devices than there are.
    """
    mesh = config.parallel.mesh
    assert mesh is not None
    prepare_runtime(config)
    auto = "auto" in (mesh.data, mesh.head)
    sizes = mesh_sizes(config, jax.device_count()) if auto else Sizes(int(mesh.data), int(mesh.head))
    assert sizes is not None
    vocab_size = symbols_of(config.data)
    transformer = Transformer(config.model, vocab_size)
    here = planned(config.model, transformer, sizes, config.parallel.shard_optimizer)
    predicted = exchanges(config, here)
    missing, found = _not_compiled(sizes, compiling is not None), None
    if missing is None and compiling is not None:
        compiling()
        apart = config.parallel.implementation == "shard_map"
        found = compared(predicted, step_collectives(config, vocab_size), apart)
    return MeshReport(
        sizes,
        config.parallel.implementation,
        config.data.batch_size,
        config.model.context,
        device_share(config.model, here),
        sum(param.size for param in jax.tree.leaves(_own_params(transformer))),
        optimizer_bytes(config, here),
        predicted,
        found,
        missing,
    )


def _not_compiled(sizes: Sizes, asked: bool) -> str | None:
    """Why the training step is not compiled; None where it can be."""
    if sizes.devices == 1:
        return "one device exchanges nothing"
    if not asked:
        return "the training step was not compiled, as asked for"
    there = jax.device_count()
    if sizes.devices <= there:
        return None
    said = f"the training step was not compiled: it takes {sizes.devices} devices, and there "
    said += "is 1" if there == 1 else f"are {there}"
    if jax.default_backend() == "cpu":
        said += ". For a model small enough to compile here virtual ones will do:\n  "
        said += f"XLA_FLAGS=--xla_force_host_platform_device_count={sizes.devices} wm count …"
    return said


def _own_params(transformer: Transformer) -> Any:
    return split(abstract_params(transformer), trained(transformer))[0]


def optimizer_bytes(config: RunConfig, arrangement: Arrangement) -> int:
    """Of what one device has of the optimizer's state, as optax has it."""
    transformer = arrangement.transformer
    optimizer = make_optimizer(config.optimizer, config.training.steps, parameter_facts(transformer))
    state = jax.eval_shape(optimizer.init, _own_params(transformer))
    step: Any = jax.ShapeDtypeStruct((), jnp.int32)
    found = held(arrangement, TrainState({}, state, step, {})).optimizer
    return sum(array.bytes for array in jax.tree.leaves(found))


def step_collectives(config: RunConfig, vocab_size: int) -> tuple[Collective, ...]:
    """Those of one compiled training step, on the devices that are here; nothing is allocated."""
    program = make_program(config, vocab_size)
    here = program.arrangement
    assert here is not None
    state = jax.eval_shape(here.arrange, program.state_like())
    shardings = here.shardings(state)
    own = lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    rows = NamedSharding(here.mesh, PartitionSpec("data"))
    shape = (config.data.batch_size, config.model.context + 1)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=rows)
    step = jax.jit(program.step, donate_argnums=0, out_shardings=(shardings, here.everywhere))
    text = step.lower(jax.tree.map(own, state, shardings), tokens, program.given()).compile().as_text()
    return read_collectives(text or "", dict(here.mesh.shape))


def mesh_data(report: MeshReport) -> dict[str, Any]:
    """The report as plain data."""
    device = asdict(report.share)
    parts = {part.pop("name"): part for part in device.pop("parts")}
    return {
        "axes": {"data": report.sizes.data, "head": report.sizes.head},
        "devices": report.sizes.devices,
        "implementation": report.implementation,
        "device": {"parts": parts} | device | {"optimizer_bytes": report.optimizer_bytes},
        "predicted": [
            asdict(each)
            | {
                "numbers_per_token": each.numbers_per_token,
                "bytes_per_token": each.bytes_per_token,
                "numbers_per_step": each.numbers_per_step,
                "bytes_per_step": each.bytes_per_step,
            }
            for each in report.predicted
        ],
        "compiled": None if report.compiled is None else [_compared_data(each) for each in report.compiled],
        "not_compiled": report.not_compiled,
    }


def _compared_data(each: Compared) -> dict[str, Any]:
    found = asdict(each)
    del found["group"]
    return each.group._asdict() | found | {"ratio": each.ratio}


def mesh_listing(report: MeshReport) -> str:
    """The report for a terminal."""
    share, sizes = report.share, report.sizes
    parts = aligned(
        ("each device has", "places", "of all", "places empty", "devices that have the same"),
        [
            (
                part.name,
                f"{part.on_device:,}",
                f"{part.all:,}",
                part.empty or "",
                part.copies if part.copies > 1 else "",
            )
            for part in share.parts
        ],
        right=1,
    )
    lines = [
        f"mesh: data {sizes.data} × head {sizes.head} = {sizes.devices} device" + "s" * (sizes.devices > 1),
        "",
        parts,
    ]
    for weight in share.weights:
        shape, whole = (" × ".join(map(str, each)) for each in (weight.shape, weight.whole_shape))
        lines.append(f"  {weight.symbol:5} {shape} of {whole}")
    part_of_all = f"{share.parameters / report.parameters:.1%} of the model's"
    lines += [
        f"  parameters {share.parameters:,}, {part_of_all}: {memory(share.parameter_bytes)}",
        f"  optimizer's state {memory(report.optimizer_bytes)}",
        f"  cache {memory(share.cache_bytes_per_token)} a token",
        f"  work of the heads {share.imbalance:.2f} times an even share",
        "",
    ]
    if report.predicted:
        lines += [_predicted(report)]
    if report.compiled:
        lines += [_compiled(report, report.compiled)]
    if report.not_compiled:
        lines += [f"{report.not_compiled}\n"]
    return "\n".join(lines)


def _predicted(report: MeshReport) -> str:
    columns = (
        "exchanged", "in pass", "kind", "axis", "devices", "numbers/token", "bytes/token", "times a step", "numbers",
        "a step",
    )  # fmt: skip
    rows = [
        (
            each.what,
            each.when,
            each.kind,
            each.axis,
            each.devices,
            "" if each.numbers_per_token is None else f"{each.numbers_per_token:,.6g}",
            "" if each.bytes_per_token is None else memory(round(each.bytes_per_token)),
            f"{each.times:,}",
            f"{each.numbers_per_step:,}",
            memory(each.bytes_per_step),
        )
        for each in report.predicted
    ]
    tokens = f"{report.batch_size:,} × {report.context:,} tokens"
    told = (
        f"predicted for shard_map and a training step of {tokens}: what one device receives (of a token: in one layer)"
    )
    return f"{told}\n\n{aligned(columns, rows, right=4)}"


def _compiled(report: MeshReport, found: tuple[Compared, ...]) -> str:
    columns = ("part", "kind", "axis", "devices", "numbers a step", "predicted", "ratio", "bytes", "predicted bytes")
    rows = [
        (
            *each.group,
            f"{each.numbers:,}",
            f"{each.predicted_numbers:,}" if each.predicted_numbers else "",
            "" if each.ratio is None else f"{each.ratio:.2f}",
            memory(each.bytes),
            memory(each.predicted_bytes) if each.predicted_numbers else "",
        )
        for each in found
    ]
    told = f"in the compiled training step ({report.implementation}, {jax.default_backend()})"
    note = "single numbers are left out (the mean loss, norms)"
    if any(each.ratio and each.bytes * each.predicted_numbers > each.predicted_bytes * each.numbers for each in found):
        note += "; here XLA exchanges 16-bit numbers as 32-bit ones"
    return f"{told}\n\n{aligned(columns, rows, right=3)}{note}\n"
