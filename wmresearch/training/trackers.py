"""Trackers: who is told about a run while it trains, besides its own directory.

The run directory is the truth and a tracker its mirror. So a tracker never stops a run and never makes it wait: it
works on a thread of its own, and where it fails it says so once and falls silent.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from wmresearch.config.training import WandbConfig

_LOGGER = logging.getLogger(__name__)

_TAG_LENGTH = 64
"""W&B refuses a run with a longer tag."""

NO_KEY = "no API key was found (`wandb login` stores one)"

_PATIENCE_SECONDS = 20.0
"""For the server's answer at the start, while the run trains, and for the last upload."""

_SET_UP = threading.Lock()

_ENVIRONMENT_MODES = {
    "online": "online",
    "run": "online",
    "offline": "offline",
    "dryrun": "offline",
    "disabled": "disabled",
}


class Tracker(Protocol):
    """Mirrors one run. Neither method raises because of the tracker's own troubles."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """The metrics at an optimizer step; several calls for one step, and steps out of order, are allowed."""

    def spectra(self, step: int, singular_values: np.ndarray) -> None:
        """The heads' singular values `[layers, heads, r]` at a step."""

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> None:
        """The run has ended with this summary (plain data, None allowed). Call it last, once, also after a failure."""


@dataclass(frozen=True)
class RunIdentity:
    """What a tracker is told about a run when it starts."""

    run_id: str
    name: str
    """For people: arm and seed."""
    group: str | None
    """The sweep."""
    job_type: str
    """What the run is for: its role in the sweep."""
    tags: tuple[str, ...]
    """Cut to 64 characters, W&B's limit."""
    notes: str
    config: dict[str, Any]
    """The whole run config, as nested plain data."""


class NoTracker:
    """Tells nobody."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        del step, metrics

    def spectra(self, step: int, singular_values: np.ndarray) -> None:
        del step, singular_values

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> None:
        del summary, exit_code


def make_tracker(
    config: WandbConfig,
    identity: RunIdentity,
    directory: Path,
    *,
    warn: Callable[[str], None] = _LOGGER.warning,
) -> Tracker:
    """The tracker that `config.mode` asks for.

    Who decides, first to last: a mode other than `auto` in the config; the environment's WANDB_MODE; the user's wandb
    settings file; then online where an API key or identity token is found (environment, netrc, settings; nobody is
    asked and no network is used), else offline.

    W&B's files go to `directory/wandb/`. Each call begins the run's records anew, so whoever resumes a run logs its
    earlier metrics again. One process may hold several trackers, at once or one after another.

    `warn` may be called from the tracker's thread: once if a run that should be online is recorded offline, once if W&B
    fails later.
    """
    mode = requested_mode(config.mode, os.environ)
    if mode == "disabled":
        return NoTracker()
    return WandbTracker(config, mode, identity, directory, warn)


def requested_mode(configured: str, environment: Mapping[str, str]) -> str:
    """`auto`, `online`, `offline` or `disabled`: the config's, or for `auto` WANDB_MODE's where that is one of them."""
    if configured != "auto":
        return configured
    return _ENVIRONMENT_MODES.get(environment.get("WANDB_MODE", ""), "auto")


def trouble_online(base_url: str) -> str | None:
    """Why W&B's server cannot be worked with; None where it takes this user's key. Nobody is asked for one."""
    import wandb
    from wandb.sdk.lib import wbauth  # the public wandb.login() would ask for a key at a terminal

    try:
        found = wbauth.authenticate_session(
            host=base_url, source="wmresearch", verify=True, prompt=False, update_session=False
        )
    except wandb.Error as error:
        return f"W&B cannot be reached or refuses the API key ({_one_line(error)})"
    return NO_KEY if found is None else None


class WandbTracker:
    """One wandb run, its metrics on the axis `step`, its work done in order by one thread."""

    def __init__(
        self,
        config: WandbConfig,
        mode: str,
        identity: RunIdentity,
        directory: Path,
        warn: Callable[[str], None],
    ) -> None:
        # Else wandb reports on itself to its server, offline too, and a process without network ends late.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        # Here and not on the thread: two threads that import at once may see half-imported modules.
        import wandb

        from wmresearch.training.spectrum_image import draw_spectra

        self._wandb, self._draw = wandb, draw_spectra
        self._config, self._identity = config, identity
        self._directory = directory.resolve()
        self._warn = warn
        self._run: Any = None
        self._failed = False
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wandb")
        self._submit("start", lambda: self._start(mode))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        row: dict[str, Any] = {key: float(value) for key, value in metrics.items()}
        row["step"] = int(step)
        self._submit("log", lambda: self._run.log(row))

    def spectra(self, step: int, singular_values: np.ndarray) -> None:
        """A picture, under `spectra`."""
        values = np.array(singular_values)

        def log() -> None:
            self._run.log({"spectra": self._wandb.Image(self._draw(values, step)), "step": int(step)})

        self._submit("log", log)

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> None:
        """Also waits for what is still to be written or uploaded, but no more than 20 seconds for a silent server."""
        plain = dict(summary)

        def end() -> None:
            self._run.summary.update(plain)
            self._run.finish(exit_code=exit_code)

        self._submit("finish", end)
        self._worker.shutdown()
        atexit.unregister(self._abandon)

    def _submit(self, action: str, job: Callable[[], Any]) -> None:
        self._worker.submit(self._guard, action, job)

    def _guard(self, action: str, job: Callable[[], Any]) -> None:
        """Do a job on the thread. A first failure is told, and whatever comes after it is left out.

        All that runs here is wandb's. It raises a dozen classes of its own without a common base; none may end a run.
        """
        if self._failed:
            return
        try:
            job()
        except Exception as error:
            self._failed = True
            self._warn(
                f"W&B run {self._identity.run_id}: {action} failed ({_one_line(error)}). The run goes on without W&B; "
                f"its own files in {self._directory} miss nothing, and {self._directory / 'wandb'} holds what was "
                "recorded for W&B until now."
            )

    def _start(self, mode: str) -> None:
        # wandb goes to the system's temporary folder, silently, where it cannot write.
        folder = self._directory / "wandb"
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"*run-*-{self._identity.run_id}"):  # of earlier starts, whose rows come again
            (folder / "earlier").mkdir(exist_ok=True)
            old.rename(folder / "earlier" / old.name)
        self._set_up()
        online, trouble = self._go_online(mode)
        self._run = self._init("online" if online else "offline")
        atexit.register(self._abandon)  # after wandb's own, so that it runs before
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        if trouble is not None:
            self._warn(
                f"W&B run {self._identity.run_id}: {trouble}. It is recorded offline; upload it later with "
                f"`wandb sync {self._run.settings.sync_dir}`."
            )

    def _set_up(self) -> None:
        """Start wandb's own process, which is shared by all runs of this one."""
        with _SET_UP:
            exit_function, exception_hook = sys.exit, sys.excepthook
            self._session = self._wandb.setup(self._wandb.Settings(**_QUIET))
            self._session.ensure_service()
            # wandb replaces both for good, and its hook prints a traceback that another library's prints again.
            sys.exit, sys.excepthook = exit_function, exception_hook

    def _go_online(self, mode: str) -> tuple[bool, str | None]:
        """Whether to; and if that was wanted and cannot be, why.

        The server is asked before the run is begun, since wandb does not let a run that failed to begin online begin
        again offline.
        """
        settings = self._session.settings
        if mode == "offline" or (mode == "auto" and settings.mode != "online"):
            return False, None
        trouble = trouble_online(settings.base_url)
        return trouble is None, None if mode == "auto" and trouble == NO_KEY else trouble

    def _init(self, mode: str) -> Any:
        identity = self._identity
        return self._wandb.init(
            mode=mode,  # type: ignore[arg-type]
            project=self._config.project,
            entity=self._config.entity,
            dir=self._directory,
            id=identity.run_id,
            name=identity.name,
            group=identity.group,
            job_type=identity.job_type,
            tags=[tag[:_TAG_LENGTH] for tag in identity.tags if tag],
            notes=identity.notes,
            config=identity.config,
            reinit="create_new",  # other runs of this process are left alone
            settings=self._wandb.Settings(
                **_QUIET,
                use_dot_wandb=False,
                init_timeout=_PATIENCE_SECONDS,
                finish_timeout=_PATIENCE_SECONDS,
                finish_timeout_raises=True,
                x_transaction_log_flush_interval=1.0,  # what a killed run loses
            ),
        )

    def _abandon(self) -> None:
        """The process ends and nobody called `finish`: W&B is told that the run failed."""
        if self._run is not None and not self._failed:
            self._guard("finish", lambda: self._run.finish(exit_code=1))


_QUIET: dict[str, Any] = {
    "silent": True,
    "console": "off",
    # What a run was made from is in its manifest: asking git and the machine again costs time, sampling costs cores.
    "disable_git": True,
    "disable_code": True,
    "save_code": False,
    "disable_job_creation": True,
    "label_disable": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
