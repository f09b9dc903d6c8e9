"""A real SLURM cluster on this machine: munged, slurmctld and one slurmd for each node, all in one folder.

    python -m tests.slurm.cluster

starts one, says how to use it, and stops it at Ctrl-C. Any user can: what it runs, it runs as that user.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

NODES = ("n1", "n2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
FIRST = "first"
"""The partition whose jobs come before those of the other, which have to go after their grace time."""
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

CONFIG = """\
ClusterName=virtual
SlurmctldHost=localhost
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=2
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SchedulerParameters=batch_sched_delay=0,sched_interval=1
KillWait=20
MinJobAge=300
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName={first} Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""


def what_is_missing():
    """The programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]


@contextmanager
def cluster():
    """Two nodes of one processor each, idle; the folder. Within the block SLURM's commands find it."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short, since a socket's path is
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        old = os.environ.copy()
        stack.callback(lambda: (os.environ.clear(), os.environ.update(old)))
        os.environ |= {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH}
        for name in ("state", "munge", *NODES):
            (folder / name).mkdir(mode=0o700)
        (folder / "munge" / "key").write_bytes(os.urandom(1024))
        (folder / "munge" / "key").chmod(0o600)
        port, *ports = free_ports(1 + len(NODES))
        lines = [CONFIG.format(folder=folder, port=port, user=getpass.getuser(), first=FIRST)]
        lines += [
            f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={number} CPUs=1 RealMemory=1000\n"
            for name, number in zip(NODES, ports, strict=True)
        ]
        (folder / "slurm.conf").write_text("".join(lines))

        parts = {"socket": "socket", "key-file": "key", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}
        start(
            stack,
            folder / "munged.log",
            "munged",
            "-F",
            "-f",
            *(f"--{key}={folder}/munge/{name}" for key, name in parts.items()),
        )
        wait_until(folder, (folder / "munge" / "socket").exists)
        start(stack, folder / "slurmctld.log", "slurmctld", "-D")
        for name in NODES:
            start(stack, folder / f"{name}.log", "slurmd", "-D", "-N", name)
        wait_until(folder, lambda: asked("sinfo", "--noheader", "--format=%T %D") == f"idle {len(NODES)}")
        stack.callback(end_jobs, folder)
        yield folder


def start(stack, log, *command):
    file = stack.enter_context(log.open("w"))
    process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)

    def stop():
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(stop)


def end_jobs(folder):
    user = getpass.getuser()
    asked("scancel", f"--user={user}", "--signal=KILL", "--full")
    asked("scancel", f"--user={user}")
    wait_until(folder, lambda: not asked("squeue", "--noheader", f"--user={user}"))


def asked(*command):
    """What a command of SLURM's answers; nothing where it fails."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def free_ports(count):
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_until(folder, true, seconds=60.0):
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            logs = "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in folder.glob("*.log"))
            raise TimeoutError(f"no cluster within {seconds} s\n{logs}")
        time.sleep(0.05)


if __name__ == "__main__":
    if missing := what_is_missing():
        sys.exit(f"not installed: {', '.join(missing)}")
    with cluster() as at:
        sys.stdout.write(f"export SLURM_CONF={at}/slurm.conf\n")
        sys.stdout.flush()
        signal.sigwait([signal.SIGINT, signal.SIGTERM])
