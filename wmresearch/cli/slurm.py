"""The options of `wm sweep --launcher slurm`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from wmresearch.sweeps.slurm import SlurmLauncher, SlurmOptions

_PANEL = "With --launcher slurm: what each job asks for"

Partition = Annotated[str | None, typer.Option(help="Queue of the cluster.", rich_help_panel=_PANEL)]
Account = Annotated[str | None, typer.Option(help="Who pays.", rich_help_panel=_PANEL)]
Gres = Annotated[str | None, typer.Option(help="Devices, for instance gpu:1.", rich_help_panel=_PANEL)]
Minutes = Annotated[
    int | None,
    typer.Option(
        "--time", min=1, metavar="MINUTES", help="Limit, 60 unless given; what takes longer goes on in a new job.",
        rich_help_panel=_PANEL,
    ),
]  # fmt: skip
Cpus = Annotated[int | None, typer.Option(min=1, help="Processors.", rich_help_panel=_PANEL)]
Memory = Annotated[str | None, typer.Option(help="For instance 16G.", rich_help_panel=_PANEL)]
More = Annotated[
    list[str] | None,
    typer.Option("--slurm", metavar="KEY=VALUE", help="Any other parameter; may be repeated.", rich_help_panel=_PANEL),
]


def slurm_options(
    partition: str | None,
    account: str | None,
    gres: str | None,
    minutes: int | None,
    cpus: int | None,
    memory: str | None,
    jobs: int | None,
    more: list[str] | None,
) -> SlurmOptions:
    """What was given on the command line."""
    from wmresearch.sweeps.slurm import SlurmOptions, options_of

    return SlurmOptions(partition, account, gres, minutes or 60, cpus, memory, jobs, options_of(more or []))


def parting(launcher: SlurmLauncher, directory: str) -> str:
    """What to say when the watcher goes and jobs stay."""
    status = shlex.join(["wm", "status", directory])
    jobs = launcher.jobs()
    return f"jobs go on; look: {status}; cancel: scancel {' '.join(jobs)}" if jobs else "no jobs are queued"
