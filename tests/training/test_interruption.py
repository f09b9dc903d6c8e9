"""A real process that is killed, held, told to stop, and started again, gives what one gives that was left alone."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.training.examples import config, final_state, last_step, metrics_bytes, same, saved_steps, wait_until
from wmresearch.config import yaml_text
from wmresearch.training.interruption import stop_on_signal
from wmresearch.training.loop import train
from wmresearch.training.run_directory import RunDirectory
from wmresearch.training.run_lock import RunBusyError

OPTIMIZED = True


@pytest.fixture
def start(tmp_path):
    """Starts `wm train` on a config, in a folder of its own."""
    processes = []

    def go(chosen, folder):
        (tmp_path / "config.yaml").write_text(yaml_text.write(chosen.model_dump(mode="json")), encoding="utf-8")
        command = [sys.executable, "-m", "wmresearch.cli", "train", str(tmp_path / "config.yaml"), "--dir", str(folder)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, cwd=tmp_path, **pipes))
        return processes[-1]

    yield go
    for process in processes:
        process.kill()
        process.communicate()


def test_killed_then_stopped_then_finished_is_as_never_interrupted(start, text, tmp_path):
    chosen = config(
        text, training__steps=600, training__evaluate_every=300, training__log_every=20,
        training__checkpoint_every=100, training__steps_per_dispatch=1,
    )  # fmt: skip
    path = tmp_path / "run"
    process = start(chosen, path)
    wait_until(lambda: saved_steps(path))
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert RunDirectory(path).state() == "running", "nobody could write how it ended"
    saved = saved_steps(path)
    assert saved[-1] < 600

    killed = (path / "metrics.jsonl").stat().st_ino
    process = start(chosen, path)  # it cuts the metrics back to what was saved: another file
    wait_until(lambda: (path / "metrics.jsonl").stat().st_ino != killed and last_step(path) > saved[-1])
    os.kill(process.pid, signal.SIGSTOP)  # it stands still in the middle, and holds its directory
    before = metrics_bytes(path)
    with pytest.raises(RunBusyError, match=f"{path}: process {process.pid} on .* wait for it or stop it"):
        train(chosen, path)
    assert metrics_bytes(path) == before
    os.kill(process.pid, signal.SIGCONT)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 75
    assert out.startswith(f"preempted: {path}\n  stopped by SIGTERM; start again to go on\n")
    assert "Traceback" not in err
    stopped = RunDirectory(path).summary()
    assert stopped["state"] == "preempted" and saved_steps(path)[-1] == stopped["step"] < 600

    assert train(chosen, path)["state"] == "finished"
    whole = train(chosen, tmp_path / "whole")
    assert metrics_bytes(path) == metrics_bytes(tmp_path / "whole")
    assert same(final_state(path, chosen), final_state(tmp_path / "whole", chosen))
    assert whole["validation_loss"] == RunDirectory(path).summary()["validation_loss"]


def test_the_first_signal_only_asks_and_a_second_ctrl_c_interrupts():
    old = signal.getsignal(signal.SIGINT)
    with stop_on_signal() as stop:
        assert stop.signal is None
        signal.raise_signal(signal.SIGINT)
        assert stop.signal == "SIGINT"
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is old


def test_outside_the_main_thread_signals_are_left_alone():
    old, seen = signal.getsignal(signal.SIGTERM), []

    def inside():
        with stop_on_signal() as stop:
            seen.append((signal.getsignal(signal.SIGTERM), stop.signal))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [(old, None)]
