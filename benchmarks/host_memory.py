"""What it gives to keep freed memory between steps on a CPU: milliseconds per step and memory, with and without.

    python benchmarks/host_memory.py [--json FILE]
    python benchmarks/host_memory.py --show FILE

Steps of the baseline and of FAR on the digit network and on an EfficientNet-Lite0, as `benchmarks/step_time.py` makes
them. Every measurement is a process of its own, since an allocator does not forget; the two kinds take turns, three
times each, and the median counts. `memory` is the most that a process had.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

NETWORKS = {
    "digit network, 4 x 64 images of 32 x 32": {"backbone": "digit", "size": 32, "batch": 64, "pool": "average2x2"},
    "EfficientNet-Lite0, 4 x 8 images of 224 x 224": {
        "backbone": "tf_efficientnet_lite0", "size": 224, "batch": 8, "pool": "average",
    },
}  # fmt: skip
METHODS = ("baseline", "far")
TURNS, STEPS = 3, 2
# What benchmarks/step_time.py has as options.
OTHERS = {"width": 64, "precision": "fp32", "optimiser": "sgd", "neck": (), "hidden": (), "batch_norm": "together"}


def measure(network: str, method: str, kept: bool) -> tuple[float, float]:
    """Milliseconds per step and megabytes, in this process."""
    from contextlib import nullcontext

    from step_time import make_step, milliseconds, noise_domains

    from afield.training.host_memory import memory_kept

    settings = argparse.Namespace(**OTHERS, **NETWORKS[network])
    step = make_step(method, "eager", noise_domains(settings.size), settings)
    with memory_kept("cpu") if kept else nullcontext():
        taken = milliseconds(step, STEPS)
    peak = next(line for line in Path("/proc/self/status").read_text("ascii").splitlines() if line.startswith("VmHWM"))
    return taken, int(peak.split()[1]) / 1024


def compare(network: str, method: str) -> dict[str, object]:
    """Both kinds in turn."""
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for _ in range(TURNS):
        for kept in found:
            words = [sys.executable, __file__, "--one", network, method, "kept" if kept else "plain"]
            done = subprocess.run(words, check=True, capture_output=True, text=True)
            found[kept].append(tuple(json.loads(done.stdout.splitlines()[-1])))
    row: dict[str, object] = {"network": network, "method": method, "processors": os.cpu_count()}
    for name, kept in (("plain", False), ("kept", True)):
        row[f"{name}_ms"] = round(median(taken for taken, _ in found[kept]), 1)
        row[f"{name}_mb"] = round(median(memory for _, memory in found[kept]))
    return row


def table(rows: list[dict[str, object]]) -> str:
    """What was measured, in Markdown."""
    lines = [
        "| network | method | ms per step | ms, memory kept | ratio | MB | MB, memory kept |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        ratio = row["plain_ms"] / row["kept_ms"]
        cells = (
            row["network"],
            row["method"],
            row["plain_ms"],
            row["kept_ms"],
            f"{ratio:.2f}",
            row["plain_mb"],
            row["kept_mb"],
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, or show what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="append the rows to this file")
    parser.add_argument("--show", type=Path, help="measure nothing; print the rows of such a file")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        network, method, kind = arguments.one
        print(json.dumps(measure(network, method, kind == "kept")))
        return
    if arguments.show:
        print(table([json.loads(line) for line in arguments.show.read_text("utf-8").splitlines()]))
        return
    rows = []
    for network in NETWORKS:
        for method in METHODS:
            rows.append(compare(network, method))
            if arguments.json:
                with arguments.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
