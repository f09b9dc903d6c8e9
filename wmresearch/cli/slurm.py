"""The options of `wm sweep --launcher slurm`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from wmresearch.sweeps.launchers import LocalLauncher
    from wmresearch.sweeps.slurm import SlurmLauncher, SlurmOptions

_PANEL = "With --launcher slurm: what each job asks for"

Partition = Annotated[str | None, typer.Option(help="Queue of the cluster.", rich_help_panel=_PANEL)]
Account = Annotated[str | None, typer.Option(help="Who pays.", rich_help_panel=_PANEL)]
Gres = Annotated[str | None, typer.Option(help="Devices, for instance gpu:1.", rich_help_panel=_PANEL)]
Minutes = Annotated[
    int | None,
    typer.Option(
        "--time", min=1, metavar="MINUTES", help="Limit, 60 unless given; what takes longer is queued again.",
        rich_help_panel=_PANEL,
    ),
]  # fmt: skip
Cpus = Annotated[int | None, typer.Option(min=1, help="Processors.", rich_help_panel=_PANEL)]
Memory = Annotated[str | None, typer.Option(help="For instance 16G.", rich_help_panel=_PANEL)]
More = Annotated[
    list[str] | None,
    typer.Option("--slurm", metavar="KEY=VALUE", help="Any other parameter; may be repeated.", rich_help_panel=_PANEL),
]


@dataclass(frozen=True)
class Asked:
    """What was given on the command line."""

    partition: str | None
    account: str | None
    gres: str | None
    time: int | None
    cpus: int | None
    memory: str | None
    slurm: list[str] | None

    def flags(self) -> list[str]:
        """The same again."""
        values = [(f"--{name}", value) for name, value in vars(self).items() if value is not None]
        return [
            text
            for flag, value in values
            for each in (value if isinstance(value, list) else [value])
            for text in (flag, str(each))
        ]

    def options(self, launcher: str, jobs: int | None) -> SlurmOptions | None:
        """What each job asks for; None with another launcher.

        Raises:
            ConfigError: nothing can ask for that.
        """
        from wmresearch.config import ConfigError, Problem
        from wmresearch.sweeps.slurm import SlurmOptions, parameters_of

        if launcher != "slurm":
            if flags := self.flags():
                raise ConfigError([Problem("command line", flags[0], flags[1], "--launcher slurm beside it")])
            return None
        more = parameters_of(self.slurm or [])
        asked = (self.partition, self.account, self.gres, self.time or 60, self.cpus, self.memory)
        return SlurmOptions(*asked, jobs, more)


def note(engine: LocalLauncher | SlurmLauncher) -> str:
    """What SLURM has of the sweep, to stand behind its progress."""
    text = getattr(engine, "note", "")
    return f" · {text}" if text else ""


def parting(launcher: SlurmLauncher, directory: Path) -> str:
    """What to say when the watcher goes and jobs stay."""
    status = shlex.join(["wm", "status", str(directory)])
    jobs = " ".join(launcher.jobs())
    return f"jobs go on; see them: {status}; cancel them: scancel {jobs}" if jobs else "no jobs are queued"
