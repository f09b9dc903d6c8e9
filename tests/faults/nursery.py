"""Run as a script: forks a training process for each line of standard input, so that none has to import everything.

Each line is `{"config": …, "path": …}`; the answer is the process's id, and when it has ended `{"pid", "code"}`. A
process that is killed has its signal's number, negative, as its code. Nothing of JAX has been started before a fork.
"""

import json
import os
import sys
import traceback
from pathlib import Path


def main():
    from wmresearch.config import parse_run
    from wmresearch.training.loop import train

    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                summary = train(parse_run(asked["config"], "test"), Path(asked["path"]))
                code = {"finished": 0, "preempted": 75}.get(summary["state"], 1)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        answer(pid)
        _, status = os.waitpid(pid, 0)
        answer({"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def answer(value):
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
