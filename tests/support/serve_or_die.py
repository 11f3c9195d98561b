"""A stand-in for a worker that trains, in a file of its own: a process that runs it need not import torch."""

import os
import signal
import sys
import time

from afield.bench.outcome import Failed


def serve_or_die(connection):
    """Answer each job with the number of this process; die of the job `fatal`, be killed by `killed`, hang in `hung`.

    The job `poisoned` fails as those do that a GPU takes ill; `large` lacks memory where a `slow` one is at work, and
    `too large` always.

    Those of `once` come to it only once, which a file in the job's folder remembers. A `slow` job gives signs of life.
    """
    while True:
        try:
            job, folder = connection.recv()
        except EOFError:
            return
        if job == "fatal":
            os._exit(7)
        if job == "poisoned":
            connection.send(Failed("AcceleratorError: CUDA error: device-side assert triggered", str(os.getpid())))
            continue
        if job == "too large" or (job == "large" and (folder / "slow is at work").exists()):
            connection.send(Failed("out of memory", lacked_memory=True))
            continue
        first = not (folder / job).exists()
        (folder / job).touch()
        if job == "killed" or (job == "killed once" and first):
            os.kill(os.getpid(), signal.SIGKILL)
        if job == "hung once" and first:
            os.kill(os.getpid(), signal.SIGSTOP)  # not even a thread of it goes on
        if job == "slow":
            (folder / "slow is at work").touch()
            for _ in range(12):
                time.sleep(0.25)
                connection.send(None)
            (folder / "slow is at work").unlink()
        connection.send({"process": os.getpid(), "forked": "torch" in sys.modules, "environment": dict(os.environ)})
