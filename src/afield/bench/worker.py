"""Training one job: in this process, or in a worker process that takes job after job."""

import gc
import os
import shutil
import threading
import traceback
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from afield.bench.outcome import Failed, Outcome
from afield.config.plan import Job
from afield.data.registry import load_data
from afield.errors import AfieldError
from afield.files import BusyFolderError
from afield.results.folder import RunFolder
from afield.results.records import Record, read_records
from afield.training.assemble import opened
from afield.training.heartbeat import heard_by
from afield.training.memory import is_out_of_memory
from afield.training.post_mortem import DivergedError
from afield.training.processes import Parcel, unpack


def attempt(job: Job, folder: Path) -> Outcome:
    """The records of a job's run, or why there are none. The folder of a run that failed by itself is removed.

    That of a training that diverged stays: the benchmark's folder keeps its post-mortem.
    """
    try:
        return train_job(job, folder)
    except BusyFolderError as error:
        return Failed(str(error))  # and what is there is another's
    except OSError as error:
        # A full disk is not the run's fault: it goes on from its checkpoint once there is room.
        return failure_of(error)
    except DivergedError as error:
        return Failed(error.reason)  # its checkpoints go with its folder
    except Exception as error:
        failed = failure_of(error)
    finally:
        _free_memory()
    if not failed.lacked_memory:  # otherwise as with a full disk
        shutil.rmtree(folder, ignore_errors=True)
    return failed


def _free_memory() -> None:
    """Give the memory of a run that is over back to the device, for this process and for others."""
    gc.collect()
    with suppress(RuntimeError):  # after some errors CUDA answers with them whatever it is asked
        torch.cuda.empty_cache()  # does nothing where CUDA was not used


def attempt_sent(parcel: Parcel, place: Path | None = None) -> Outcome:
    """The same for a job that has come from another process; a method that cannot be imported here is a failure.

    It trains in the folder that came with it, or in `place`.
    """
    try:
        job, folder = unpack(parcel)
    except Exception as error:
        return failure_of(error)
    return attempt(job, place or folder)


def failure_of(error: Exception) -> Failed:
    """An error as the reason of a failure."""
    if isinstance(error, AfieldError):
        return Failed(" ".join(str(error).split()), lacked_memory=lacked_memory(error))
    if isinstance(error, OSError) and error.filename:
        return Failed(f"{error.filename}: {error.strerror}")
    return Failed(" ".join(f"{type(error).__name__}: {error}".split()), traceback.format_exc())


def lacked_memory(error: AfieldError) -> bool:
    """Whether it was raised because memory did not suffice."""
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)


def train_job(job: Job, folder: Path) -> list[Record]:
    """Resume a run that was killed if possible, else start from the beginning."""
    files, data = RunFolder(folder), load_data(job.config.data.name)
    with ExitStack() as stack:
        try:
            resume = files.last.exists()
            loop = stack.enter_context(opened(job.config, data, folder, resume=resume, progress=False, place=job.place))
        except AfieldError as error:
            if isinstance(error, BusyFolderError) or lacked_memory(error) or not files.last.exists():
                raise
            loop = stack.enter_context(opened(job.config, data, folder, resume=False, progress=False, place=job.place))
        if not loop.ended:
            loop.run()
    return read_records(files.records)


def serve(connection: Connection) -> None:
    """Train the jobs that arrive, one after the other, until the other end closes the connection.

    What is sent back is the outcome of each, and before it None, now and then, as a sign of life.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with heard_by(partial(connection.send, None)):
        while True:
            try:
                parcel = connection.recv()
            except EOFError:
                return
            connection.send(attempt_sent(parcel))


def _end_with_parent() -> None:
    """Exit when the parent is killed: the next benchmark may write to the same folders."""
    parent = parent_process()
    if parent:
        parent.join()
        os._exit(1)
