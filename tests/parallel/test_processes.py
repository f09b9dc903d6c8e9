"""Real processes that train one run over loopback: the same as one process, together to the end, whatever ends them."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.training.examples import TEXT, config, final_state, last_step, same, saved_steps, wait_until
from wmresearch.config import ConfigError, yaml_text
from wmresearch.parallel.agreement import agreed, from_first, gathered, make_largest
from wmresearch.parallel.mesh import mesh_sizes
from wmresearch.parallel.processes import Group, NotConnectedError, connect, find_group
from wmresearch.training.interruption import StopRequest
from wmresearch.training.loop import train
from wmresearch.training.rank_cut import model_at
from wmresearch.training.run_directory import RunDirectory

SECONDS = 150
"""After which a process that has not ended is killed, and its test fails."""
RANKS = {
    "kind": "dynamic_rank", "rank": 4, "bucket": 2, "total_rank": 5, "fine_tune_steps": 4,
    "method": {"kind": "uniform"},
}  # fmt: skip
TWO_BY_TWO = {"data": 2, "head": 2}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def start(tmp_path):
    """Starts two processes with two devices each on a run; one may fail."""
    begun = []

    def go(chosen, folder, failing=None):
        file = tmp_path / "config.yaml"
        file.write_text(yaml_text.write(chosen.model_dump(mode="json")), encoding="utf-8")
        with socket.socket() as free:
            free.bind(("", 0))
            address = f"localhost:{free.getsockname()[1]}"
        script = Path(__file__).parent / "one_process.py"
        command = [sys.executable, script, "train", file, "--dir", folder, "--coordinator", address]
        own = {"PYTHONPATH": str(Path.cwd()), "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("count=8", "count=2")}
        for process in (0, 1):
            environment = os.environ | own | {"ROWS": str(tmp_path / f"rows{process}")}
            environment |= {"FAILS": "yes"} if process == failing else {}
            arguments = map(str, [*command, "--processes", 2, "--process", process])
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            begun.append(subprocess.Popen(arguments, env=environment, cwd=tmp_path, **pipes))
        return begun

    yield go
    for process in begun:
        process.kill()
        process.communicate()


def ended(processes):
    """Exit code, standard output and standard error of each."""
    outcomes = []
    for process in processes:
        out, err = process.communicate(timeout=SECONDS)
        outcomes.append((process.returncode, out, err))
    return outcomes


def begin(chosen, path, step):
    """Trains in this process until a step is done."""
    stop = StopRequest()

    def report(progress):
        if progress.step >= step:
            stop.signal = "SIGTERM"

    assert train(chosen, path, report=report, stop=stop)["state"] == "preempted"


def test_two_processes_end_what_one_began_with_the_same_bits(start, text, tmp_path):
    chosen = config(
        text, model__dropout=0.1, model__head_output=RANKS, parallel__mesh=TWO_BY_TWO,
        parallel__shard_optimizer=True, training__steps=12, training__evaluate_every=12,
        training__steps_per_dispatch=2, training__diagnostics=False,
    )  # fmt: skip
    whole, path = tmp_path / "whole", tmp_path / "run"
    assert train(chosen, whole)["state"] == "finished"
    begin(chosen, path, 1)
    (begun,) = saved_steps(path)
    assert begun < 8, "the heads are yet to be cut"
    first, other = ended(start(chosen, path))
    assert (first[0], other[0]) == (0, 0), first[2] + other[2]
    assert first[1].startswith(f"finished: {path}\n") and other[1] == ""
    assert not [line for line in other[2].splitlines() if "step" in line], "one process reports"
    for name in ("metrics.jsonl", "ranks.jsonl"):
        assert (path / name).read_bytes() == (whole / name).read_bytes(), name
    assert {file.name for file in path.iterdir()} == {file.name for file in whole.iterdir()}
    model = model_at(chosen.model, RunDirectory(path).ranks(), 12)
    cut = chosen.model_copy(update={"model": model})
    assert same(final_state(path, cut), final_state(whole, cut))
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    assert (manifest["processes"], manifest["mesh"]) == (2, TWO_BY_TWO)
    assert manifest["device"].startswith("4 × ")

    read = [defaultdict(set), defaultdict(set)]
    for process, rows in enumerate(read):
        for line in (tmp_path / f"rows{process}").read_text(encoding="utf-8").splitlines():
            step, *found = json.loads(line)
            if len(found) < 4:  # a cut looks at a whole batch
                rows[step] |= set(found)
    assert read[0] == {step: {0, 1} for step in range(begun, 12)}
    assert read[1] == {step: {2, 3} for step in range(begun, 12)}


def test_a_signal_to_one_stops_both_and_one_process_goes_on(start, text, tmp_path):
    chosen = config(
        text, parallel__mesh={"data": 4}, training__steps=90, training__evaluate_every=45, training__log_every=3,
        training__steps_per_dispatch=3,
    )  # fmt: skip
    whole, path = tmp_path / "whole", tmp_path / "run"
    train(chosen, whole)
    processes = start(chosen, path)
    wait_until(lambda: last_step(path) >= 6 or processes[0].poll() is not None, SECONDS)
    processes[1].send_signal(signal.SIGTERM)
    first, other = ended(processes)
    assert (first[0], other[0]) == (75, 75), first[2] + other[2]
    assert "stopped by SIGTERM; start again to go on" in first[1]
    stopped = RunDirectory(path).summary()
    assert stopped["state"] == "preempted" and saved_steps(path) == [stopped["step"]] and stopped["step"] < 90

    assert train(chosen, path)["state"] == "finished"
    # four summands are added in another order between processes than within one
    lines = [RunDirectory(folder).metrics() for folder in (path, whole)]
    assert [line.keys() for line in lines[0]] == [line.keys() for line in lines[1]]
    for one, another in zip(*lines, strict=True):
        assert one == pytest.approx(another, rel=1e-3)
    measured = [RunDirectory(folder).diagnostics() for folder in (path, whole)]
    assert [line["step"] for line in measured[0]] == [0, 45, 90]
    for one, another in zip(*measured, strict=True):
        np.testing.assert_allclose(one["effective_rank"], another["effective_rank"], rtol=1e-2)
    assert lines[0][0] == pytest.approx(lines[1][0], rel=1e-6)
    states = [jax.tree.leaves(final_state(folder, chosen)) for folder in (path, whole)]
    for one, another in zip(*states, strict=True):
        np.testing.assert_allclose(one, another, rtol=0.05, atol=2e-3)


def test_where_process_0_may_not_train_both_end(start, text, tmp_path):
    path = tmp_path / "run"
    with RunDirectory(path).locked():
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        first, other = ended(start(config(text, parallel__mesh=TWO_BY_TWO), path))
    assert (first[0], other[0]) == (1, 1), first[2] + other[2]
    busy = f"{path}: {holder} is working on this run; wait for it or stop it"
    assert f"wm: {busy}" in first[2].splitlines()
    assert f"wm: process 0 refused: {busy}" in other[2].splitlines()
    assert "Traceback" not in first[2] + other[2]


def test_one_that_fails_takes_the_other_with_it(start, text, tmp_path):
    path = tmp_path / "run"
    chosen = config(text, parallel__mesh=TWO_BY_TWO, training__diagnostics=False)
    first, other = ended(start(chosen, path, failing=1))
    assert (first[0], other[0]) == (1, 1), first[2] + other[2]
    assert other[2].rstrip().endswith("OSError: the disk is gone")
    summary = RunDirectory(path).summary()
    assert (summary["state"], summary["reason"]) == ("failed", "process 1 failed: OSError: the disk is gone")


def test_one_waits_for_the_others_only_so_long(monkeypatch):
    came = threading.Event()
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **__: came.wait(SECONDS))
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    said = r"process 1 of 2: coordinator = node1:8476\n    expected process 0 to answer, .*\n    waited 0.01 s; is "
    with pytest.raises(NotConnectedError, match=said):
        connect(Group("node1:8476", 2, 1), 0.01)
    came.set()


def test_process_0_listens_at_a_port_that_is_free():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        address = f"localhost:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"process 0 of 2: coordinator = .*\n.*can listen\n.*in use"):
            connect(Group(address, 2, 0), 0.01)


@pytest.mark.parametrize(("mesh", "said"), [(None, "sizes, or auto"), ({"data": 2}, "4 in 2 processes, all of them")])
def test_processes_use_all_of_their_devices(text, mesh, said):
    with pytest.raises(ConfigError, match=said):
        mesh_sizes(config(text, parallel__mesh=mesh), 4, 2)


JAX = {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
TASK = {"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "3"}


@pytest.mark.parametrize(
    ("flags", "environment", "group"),
    [
        ((None, None, None), {}, None),
        (("node1:8476", 4, 0), {}, Group("node1:8476", 4, 0)),
        (("[::1]:8476", 4, 3), JAX | TASK, Group("[::1]:8476", 4, 3)),
        (("node1:8476", 1, 0), TASK, None),
        ((None, None, None), JAX, Group("a:1", 2, 1)),
        ((None, None, None), TASK, Group(cluster="slurm")),
        ((None, None, None), TASK | JAX, Group("a:1", 2, 1)),
        ((None, None, None), TASK | {"JAX_COORDINATOR_ADDRESS": "a:1"}, Group(cluster="slurm")),
        ((None, None, None), TASK | {"SLURM_STEP_NUM_TASKS": "1"}, None),
        ((None, None, None), {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8"}, None),
        ((None, None, None), {"TPU_WORKER_HOSTNAMES": "a"}, None),
        ((None, None, None), {"TPU_WORKER_HOSTNAMES": "a,b"}, Group(cluster="tpu")),
        ((None, None, None), {"TPU_WORKER_HOSTNAMES": "a", "MEGASCALE_NUM_SLICES": "2"}, Group(cluster="tpu")),
    ],
)
def test_a_group_is_named_by_flags_or_by_the_environment(flags, environment, group):
    assert find_group(*flags, environment=environment) == group


@pytest.mark.parametrize(
    ("flags", "environment", "said"),
    [
        (("a:1", None, None), {}, ["command line = --coordinator a:1\n", "give --processes and --process too"]),
        ((None, 2, 1), {}, ["command line = --processes 2, --process 1\n", "give --coordinator too"]),
        (("a", 2, 1), {}, ["command line: --coordinator = a\n", "expected HOST:PORT of process 0"]),
        (("a:0", 2, 1), {}, ["--coordinator = a:0"]),
        (("a:65536", 2, 1), {}, ["--coordinator = a:65536"]),
        (("a:1", 2, 2), {}, ["command line: --process = 2\n", "0 to 1, one of 2 processes"]),
        (("a:1", 2, -1), {}, ["--process = -1"]),
        (("a:1", 0, 0), {}, ["command line: --processes = 0\n", "1 or more"]),
        (("a", 2, 7), {}, ["--coordinator = a\n", "--process = 7\n"]),
        (
            (None,) * 3,
            {"JAX_NUM_PROCESSES": "2"},
            ["environment = JAX_NUM_PROCESSES 2\n", "give JAX_COORDINATOR_ADDRESS"],
        ),
        ((None,) * 3, JAX | {"JAX_PROCESS_ID": "two"}, ["environment: JAX_PROCESS_ID = two\n", "0 to 1"]),
    ],
)
def test_what_is_half_given_or_cannot_be_is_refused(flags, environment, said):
    with pytest.raises(ConfigError) as refused:
        find_group(*flags, environment=environment)
    assert [part for part in said if part not in f"{refused.value}\n"] == []


def test_a_process_alone_agrees_with_itself():
    assert gathered({"a": 1}) == [{"a": 1}] and agreed([2]) == [2] and make_largest()(3)() == 3
    arrays = [np.float32([[1.5, -0.0]]), np.int32(7), np.zeros((0, 2), np.float16)]
    like = [jax.ShapeDtypeStruct(np.shape(array), array.dtype) for array in arrays]
    assert same(from_first(arrays, like), [np.asarray(array) for array in arrays])
