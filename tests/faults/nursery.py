"""Run as a script: forks a process for each line of standard input, so that none has to import everything.

Each line is `{"argv": the arguments of wm, "output": a file, "environment": …, "fault": …}`; the answer is the
process's id, and when it has ended `{"pid", "code"}`. A process that is killed has its signal's number, negative, as
its code. Nothing of JAX has been started before a fork.

A fault is `{"before": "log" | "save" | "end", "step": from which on, "command": for the shell}`.
"""

import json
import os
import subprocess
import sys
import traceback


def main():
    from wmresearch.cli import main as wm
    from wmresearch.training import loop  # noqa: F401, all that a run imports

    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                output = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.environ |= asked["environment"]
                if asked["fault"]:
                    prepare(**asked["fault"])
                sys.argv = ["wm", *asked["argv"]]
                wm()
            except SystemExit as ended:
                code = ended.code
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        answer(pid)
        _, status = os.waitpid(pid, 0)
        answer({"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def prepare(before, step, command):
    """Lets the command be run once, at this instant of the run."""
    from wmresearch.training.checkpoints import Checkpoints
    from wmresearch.training.run_directory import RunDirectory

    owner, name = {
        "log": (RunDirectory, "append_metrics"), "save": (Checkpoints, "save"), "end": (RunDirectory, "write_summary")
    }[before]  # fmt: skip
    original, done = getattr(owner, name), []

    def come(self, *args, **more):
        if before == "save":
            self._manager.wait_until_finished()
        at = {"log": lambda: args[0], "save": lambda: args[1], "end": lambda: step if args[2] == "finished" else -1}
        if not done and at[before]() >= step:
            done.append(subprocess.run(command, shell=True, stderr=subprocess.DEVNULL))
        return original(self, *args, **more)

    setattr(owner, name, come)


def answer(value):
    os.write(ANSWERS, (json.dumps(value) + "\n").encode())


if __name__ == "__main__":
    ANSWERS = os.dup(1)
    main()
