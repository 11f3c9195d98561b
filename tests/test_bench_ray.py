"""The engine of a Ray cluster, on one that the tests start: what is killed goes on, and a node that joins gets work."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from afield.bench import on_ray
from afield.bench.engines import Patience
from afield.bench.processes import interrupts_ignored
from afield.bench.run import read_plans, run_bench
from afield.files import locked
from afield.results.folder import WHO
from support.benching import recorded, saved_step, step_of, wait_for, wait_until_further, write_digits_plan
from support.children import alive, descendants
from support.command import COMMAND
from support.hanging import write_methods

pytest.importorskip("ray", reason="Ray is not installed")


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    before = signal.getsignal(signal.SIGTERM)
    # So that a node that is killed is missed after a second, and not after a quarter of a minute.
    health = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 2}
    with interrupts_ignored():  # as Ray's processes do that a script has started in the background
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0, "_system_config": health})
    signal.signal(signal.SIGTERM, before)  # Ray has one of its own
    yield started
    started.shutdown()


def wait_for_waiting_tasks(cluster, driver, count):
    """Wait until so many tasks that want a part of a GPU have been submitted, and no task is at work any more."""
    from ray._raylet import GcsClient
    from ray.autoscaler.v2.sdk import get_cluster_resource_state

    client = GcsClient(address=cluster.address)

    def submitted():
        assert driver.poll() is None, "the driver has ended"
        wanted = get_cluster_resource_state(client).pending_resource_requests
        return sum(each.count for each in wanted if each.request.resources_bundle.get("GPU")) == count

    wait_for(lambda: submitted() and not descendants(os.getpid(), "ray::baseline"))


def tasks_of(node):
    """The processes of a node that train."""
    return descendants(node.all_processes["raylet"][0].process.pid, "ray::baseline")


def test_killed_tasks_drivers_and_nodes_change_nothing_and_a_late_node_gets_work(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_digits_plan("plan.toml", [0, 1], **{"training.steps": 800})  # enough for all that happens to them
    words = [*COMMAND, "bench", "plan.toml", "--out", "out", "--engine", "ray", "--address", cluster.address]
    driver = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    wait_for(lambda: step_of("out") >= 50)
    # A task that is killed is retried, from its checkpoint.
    (task,) = descendants(os.getpid(), "ray::baseline")
    os.kill(task, signal.SIGKILL)
    wait_until_further("out")
    driver.kill()
    assert driver.wait() == -signal.SIGKILL

    # No node has a GPU yet, so nothing trains; of one that joins, each run gets half.
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    driver = subprocess.Popen([*words, "--gpus-per-run", "0.5"], **pipes)
    wait_for_waiting_tasks(cluster, driver, 2)
    begun, fresh = (Path("out/runs") / job.slug for job in read_plans([Path("plan.toml")]))
    reached = saved_step(begun)
    with locked(begun, WHO):  # as by a task of the first driver that Ray has not ended yet: the next one waits for it
        lost = cluster.add_node(num_cpus=2, num_gpus=1)
        wait_for(lambda: len(tasks_of(lost)) == 2)
        wait_for(lambda: saved_step(fresh) >= 400)  # so that the other task, which began with it, has found the lock
    assert saved_step(begun) == reached
    wait_for(lambda: saved_step(begun) > reached)

    # A node that is lost takes its tasks along, and another goes on with them.
    tasks = tasks_of(lost)
    cluster.remove_node(lost, allow_graceful=False)
    wait_for(lambda: not any(map(alive, tasks)))
    assert tasks
    other = cluster.add_node(num_cpus=2, num_gpus=1)
    wait_for(lambda: tasks_of(other))
    wait_until_further("out")
    said, warned = driver.communicate()
    assert driver.returncode == 0, warned
    assert "2 of 2 runs are recorded" in said
    assert "no node of the cluster has 1 CPU and 0.5 GPU for a run; runs wait until one joins" in warned
    assert run_bench("plan.toml", "unbroken", 1, progress=False).recorded == 2
    assert recorded() == recorded("unbroken"), "bit for bit the runs that were never killed"
    assert [path.name for path in Path("out").iterdir()] == ["records.jsonl"]


class Interrupted:
    """A watcher during whose work somebody presses Ctrl-C, once the run has been evaluated."""

    def begun(self, job):
        records = Path("out/runs") / job.slug / "records.jsonl"
        wait_for(lambda: records.exists() and '"evaluation"' in records.read_text("utf-8"))
        raise KeyboardInterrupt


def test_a_cancelled_task_hears_of_it_and_saves_where_it_stands(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Neither a checkpoint nor the end comes in time.
    never = {"training.steps": 10**6, "training.checkpoint_every": 10**6}
    write_digits_plan("plan.toml", [0], **never, **{"training.evaluate_every": 20})
    (job,) = read_plans([Path("plan.toml")])
    Path("out").mkdir()
    assignments = [(job, Path("out/runs") / job.slug)]
    with pytest.raises(KeyboardInterrupt):
        list(on_ray.work_on_ray(assignments, Interrupted(), on_ray.Cluster(cluster.address), Patience()))
    assert step_of("out") >= 20


def test_a_task_that_hangs_is_killed_by_its_watchdog_and_goes_on(cluster, tmp_path, monkeypatch, own_methods):
    monkeypatch.chdir(tmp_path)
    steps, seconds = 20, 3.0
    hung = write_methods("methods.py", 20 * seconds, steps)
    settings = {"training.steps": steps, "training.evaluate_every": steps, "training.checkpoint_every": 2}
    write_digits_plan("plan.toml", [0], "methods.py:hangs-once", **settings)
    asked = {"engine": "ray", "address": cluster.address, "stall_minutes": seconds / 60, "progress": False}
    # More retries than one: a busy machine may take longer than the limit to begin, and then begins once more.
    assert run_bench("plan.toml", "out", retries=5, **asked).failures == {}
    assert hung.exists()
    assert run_bench("plan.toml", "unbroken", 1, progress=False).recorded == 1
    assert recorded() == recorded("unbroken"), "bit for bit the run that never hung"
