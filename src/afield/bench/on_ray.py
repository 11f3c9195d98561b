"""The engine of a Ray cluster: every job is a task, which Ray places where there is room, and retries if it is lost."""

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from afield.bench.engines import SECONDS_TO_STOP, Assignment, Outcomes, Patience, Watcher
from afield.bench.machine import wants_gpu
from afield.bench.outcome import Failed, Outcome
from afield.bench.processes import parcel
from afield.bench.worker import attempt_sent
from afield.errors import AfieldError
from afield.files import BusyFolderError, check_unlocked, write_whole
from afield.results.folder import WHO
from afield.training.heartbeat import heard_by
from afield.training.processes import Parcel
from afield.training.stopping import HeldSignals

USUAL_GPU_SHARE = 0.5  # because one run alone leaves a GPU idle at times
SECONDS_BETWEEN_LOOKS = 1.0
MISSING = "the engine ray needs Ray: pip install 'afield[ray]'"
MARK = "driver"  # the file by which a node sees that the driver's folder is its own
WATCH = """
import os, select, signal, sys
seconds, process = float(sys.argv[1]), int(sys.argv[2])
while select.select([0], [], [], seconds)[0]:
    if not os.read(0, 4096):
        sys.exit()
os.kill(process, signal.SIGKILL)
"""
"""The watchdog's program: each byte it reads is a sign of life, and it ends when its input is closed."""


@dataclass(frozen=True)
class Cluster:
    """Which cluster, and what each run gets of it."""

    address: str | None = None
    """Ray's own rules without one: RAY_ADDRESS, else a cluster started on this machine, else a new one."""
    gpus_per_run: float | None = None
    """None: half a GPU for runs that train on one, if the cluster has any."""
    cpus_per_run: float = 1

    def __post_init__(self) -> None:
        gpus = self.gpus_per_run or 0.0
        if not (math.isfinite(gpus) and gpus >= 0 and math.isfinite(self.cpus_per_run) and self.cpus_per_run > 0):
            raise AfieldError("a run gets more than 0 processors, and 0 GPUs or more: cpus_per_run, gpus_per_run")
        if gpus > 1 and gpus % 1:
            raise AfieldError(f"a run gets a part of one GPU or several whole ones, not {gpus:g}: gpus_per_run")


@dataclass(frozen=True)
class Driver:
    """What a task knows of the process that waits for it."""

    folder: Path
    mark: str
    stall_seconds: float

    def shares(self) -> bool:
        """Whether the driver's folder is seen from here, and not another of the same name."""
        with suppress(OSError):
            return (self.folder / MARK).read_text("utf-8") == self.mark
        return False


def work_on_ray(assignments: Sequence[Assignment], watcher: Watcher, cluster: Cluster, patience: Patience) -> Outcomes:
    """All jobs at once: those for which there is no room wait, and nodes that join later get some of them."""
    if not assignments:
        return
    folder = assignments[0][1].parent.parent.absolute()
    with connected(cluster) as ray, marked(folder) as mark:
        driver = Driver(folder, mark, patience.stall_seconds)
        tasks = {}
        for job, place in assignments:
            options = {**resources(ray, cluster, (job, place)), "max_retries": patience.retries, "name": str(job)}
            task = ray.remote(train_there).options(**options)
            tasks[task.remote(parcel(job, place), place.absolute(), driver)] = job, place
        waiting, begun = list(tasks), set[Path]()
        check_room(ray, resources(ray, cluster, assignments[0]))
        try:
            while waiting:
                # Ray would turn every signal into a KeyboardInterrupt of its own.
                with HeldSignals():
                    ready, waiting = ray.wait(waiting, timeout=SECONDS_BETWEEN_LOOKS)
                for ref in [*ready, *waiting]:
                    job, place = tasks[ref]
                    # A task says nothing when it starts, but where the folder is shared its run can be seen.
                    if place not in begun and (ref in ready or place.exists()):
                        begun.add(place)
                        watcher.begun(job)
                for ref in ready:
                    yield tasks[ref][0], outcome_of(ray, ref)
        finally:
            for ref in waiting:
                ray.cancel(ref)  # as Ctrl-C would: a run saves where it stands
            if waiting:
                ray.wait(waiting, num_returns=len(waiting), timeout=SECONDS_TO_STOP)


def check_room(ray: Any, wanted: dict[str, float]) -> None:
    """Warn if no node that is there now has what a run gets: all runs wait then, in silence, for one that has."""
    names = {"num_cpus": "CPU", "num_gpus": "GPU"}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(of.get(names[name], 0) >= value for name, value in wanted.items()) for of in nodes):
        asked = " and ".join(f"{value:g} {names[name]}" for name, value in wanted.items() if value)
        warnings.warn(f"no node of the cluster has {asked} for a run; runs wait until one joins", stacklevel=2)


def outcome_of(ray: Any, ref: Any) -> Outcome:
    """What a task has returned, or why it was lost for good."""
    try:
        outcome: Outcome = ray.get(ref)
    except ray.exceptions.RayError as error:
        return Failed(f"lost on the cluster: {type(error).__name__}: {str(error).strip().splitlines()[0]}", str(error))
    return outcome


def resources(ray: Any, cluster: Cluster, assignment: Assignment) -> dict[str, float]:
    """What one run gets, in Ray's words."""
    gpus = cluster.gpus_per_run
    if gpus is None:
        gpus = USUAL_GPU_SHARE if wants_gpu(assignment) and ray.cluster_resources().get("GPU") else 0
    return {"num_cpus": cluster.cpus_per_run, "num_gpus": gpus}


@contextmanager
def connected(cluster: Cluster) -> Iterator[Any]:
    """Ray, connected to a cluster; a connection that was there before stays."""
    try:
        import ray
    except ImportError as error:
        raise AfieldError(MISSING) from error
    if ray.is_initialized():
        yield ray
        return
    # Where data and caches are is said by these; the nodes' own paths may be given to Ray itself.
    variables = {name: value for name, value in os.environ.items() if name.startswith("AFIELD_")}
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(cluster.address, log_to_driver=False, runtime_env={"env_vars": variables} if variables else None)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"at {cluster.address}" if cluster.address else "to be found or started"
        raise AfieldError(f"no Ray cluster {where}: {str(error).strip().splitlines()[0]}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray's would end this process with a code of its own
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def marked(folder: Path) -> Iterator[str]:
    """A mark in the driver's folder, by which other nodes can tell whether they see this very folder."""
    mark = uuid4().hex
    write_whole(folder / MARK, mark)
    try:
        yield mark
    finally:
        (folder / MARK).unlink(missing_ok=True)


def train_there(parcel: Parcel, folder: Path, driver: Driver) -> Outcome:
    """Train a job on a node: in its folder where that is shared, else in a temporary one of the node."""
    HeldSignals.insistent = False  # Ray repeats a cancellation until it is heard
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a driver in the background of a script hands it down
        signal.signal(signal.SIGINT, signal.default_int_handler)
    shared = driver.shares()
    # The same again if the job is retried on this node: then it goes on from its checkpoint.
    place = folder if shared else Path(tempfile.gettempdir()) / f"afield-bench-{os.getuid()}" / folder.name
    wait_until_free(place)
    with Watchdog(driver.stall_seconds) as watchdog, heard_by(watchdog):
        outcome = attempt_sent(parcel, place)
    if not shared:
        shutil.rmtree(place, ignore_errors=True)
    return outcome


def wait_until_free(folder: Path) -> None:
    """Wait for a task of a driver that was killed to leave a folder: Ray takes a moment to end such tasks."""
    deadline = time.monotonic() + SECONDS_TO_STOP
    while time.monotonic() < deadline:
        try:
            check_unlocked(folder, WHO)
        except BusyFolderError:
            time.sleep(SECONDS_BETWEEN_LOOKS)
        else:
            return


class Watchdog:
    """Kills this process if it is not called for so many seconds while the context lasts; Ray then retries the task.

    It is a process of its own: a thread would not run in a process that is stopped, or that waits inside a library.
    """

    def __init__(self, seconds: float) -> None:
        words = [sys.executable, "-S", "-c", WATCH, str(seconds), str(os.getpid())]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):
            self.process.communicate()  # closes the pipe, by which it knows that it is not needed any more

    def __call__(self) -> None:
        """Take note that the run has got on."""
        pipe = self.process.stdin
        assert pipe is not None
        with suppress(BrokenPipeError):
            pipe.write(b".")
            pipe.flush()
