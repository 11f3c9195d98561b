"""What must not grow with a long run, or with many of them: memory over steps, and the time of a table over records.

    python benchmarks/growth.py memory --steps 100000     resident memory of a training, every thousandth of it
    python benchmarks/growth.py table --runs 100000       seconds of `afield table` over so many recorded runs
    python benchmarks/growth.py show --json FILE          the tables of what was measured

The training is that of a tiny network on small images, so that it is the loop that is measured. The records are made
up: runs of ten methods on five targets, each with ten evaluations.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

METHODS = ("baseline", "coral", "dan", "dann", "jan", "m3sda", "m3sda-beta", "mcd", "mme", "far")
TARGETS = ("mm", "mt", "up", "sv", "syn")
TINY = {"network.width": 8, "training.batch_size": 2, "training.device": "cpu"}


def main() -> None:
    """Measure what is asked for; one JSON object per line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["memory", "table", "show"])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--json", type=Path, help="append the rows to this file; for show, read them from it")
    arguments = parser.parse_args()
    if arguments.what == "show":
        print(tables([json.loads(line) for line in arguments.json.read_text("utf-8").splitlines()]))
        return
    row = memory(arguments.steps) if arguments.what == "memory" else table(arguments.runs)
    row |= {"machine": f"{platform.machine()}, {os.cpu_count()} processors"}
    print(json.dumps(row))
    if arguments.json:
        with arguments.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def resident() -> float:
    """The memory of this process now, in megabytes."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory(steps: int) -> dict[str, object]:
    """Train, and look at the memory a thousand times."""
    import afield
    from afield.training.heartbeat import heard_by

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (120, 8, 8, 3), np.uint8)
    data = afield.from_arrays(images, [n % 2 for n in range(120)], [f"d{n % 3}" for n in range(120)])
    seen: list[float] = []
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, heard_by(lambda: seen.append(resident())):
        settings = TINY | {"data.image_size": 8, "training.evaluate_every": 1000, "training.checkpoint_every": 1000}
        afield.train(data, "uda", "d2", "baseline", steps, 0, Path(folder) / "run", settings=settings, progress=False)
    seconds = time.perf_counter() - started
    tenth = max(1, len(seen) // 10)
    parts = [max(seen[start : start + tenth]) for start in range(0, len(seen), tenth)][:10]
    return {
        "what": "memory",
        "steps": steps,
        "seconds": round(seconds),
        "megabytes": [round(part, 1) for part in parts],
    }


def header(method: str, target: str, seed: int) -> dict[str, object]:
    """The first line of a made-up run under a protocol of afield's."""
    from afield.config.layers import resolve

    key = method, target
    if key not in _configs:
        layers = {"data": {"name": "digit5"}, "task": {"target": target}, "method": {"name": method}}
        _configs[key] = resolve(layers).as_dict()
    config = _configs[key]
    config = {**config, "training": {**config["training"], "seed": seed}}
    protocol = {"name": "digit5/paper", "version": 1, "data": "digit5", "checksum": "made up"}
    return {"event": "run", "label": method, "config": config, "protocol": protocol, "seed": seed}


_configs: dict[tuple[str, str], dict[str, dict[str, object]]] = {}


def write_records(file: Path, runs: int) -> None:
    """So many runs, with accuracies that a generator draws."""
    rng = np.random.default_rng(0)
    pairs = [(method, target) for method in METHODS for target in TARGETS]
    with file.open("w", encoding="utf-8") as lines:
        for number in range(runs):
            method, target = pairs[number % len(pairs)]
            lines.write(json.dumps(header(method, target, number // len(pairs))) + "\n")
            for step, of_step in enumerate(rng.uniform(0.5, 0.9, (10, 5)).round(4).tolist(), 1):
                results = {name: {"accuracy": value, "n": 9000} for name, value in zip(TARGETS, of_step, strict=True)}
                measured = {
                    "sources": {n: r for n, r in results.items() if n != target},
                    "target": {target: results[target]},
                }
                lines.write(json.dumps({"event": "evaluation", "step": 1170 * step, **measured}) + "\n")
            lines.write(json.dumps({"event": "end", "step": 11_700, "seconds": 60.0}) + "\n")


def table(runs: int) -> dict[str, object]:
    """Time the command, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "records.jsonl"
        write_records(file, runs)
        command = [sys.executable, "-m", "afield", "table", str(file), "--markdown"]
        started = time.perf_counter()
        before = os.times()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        return {
            "what": "table", "runs": runs, "megabytes": round(file.stat().st_size / 2**20),
            "seconds": round(time.perf_counter() - started, 1),
            "processor_seconds": round(after.children_user - before.children_user, 1),
        }  # fmt: skip


def tables(rows: list[dict[str, object]]) -> str:
    """What was measured, in Markdown."""
    found = {what: [row for row in rows if row["what"] == what] for what in ("memory", "table")}
    lines = ["| steps | tenths of the run: resident memory in MB |", "| ---: | --- |"]
    lines += [f"| {row['steps']:,} | {', '.join(map(str, row['megabytes']))} |" for row in found["memory"]]
    lines += ["", "| recorded runs | file in MB | seconds | processor seconds |", "| ---: | ---: | ---: | ---: |"]
    lines += [
        f"| {row['runs']:,} | {row['megabytes']} | {row['seconds']} | {row['processor_seconds']} |"
        for row in found["table"]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
