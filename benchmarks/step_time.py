"""How long a training step takes, method by method, beside the baseline's step in the same run.

    python benchmarks/step_time.py [--methods far,baseline] [--ways graph,compiled] [--precision bf16] [--json FILE]
                                   [--optimiser adam] [--neck 256,128] [--hidden 100] [--batch-norm apart]
                                   [--backbone tf_efficientnet_lite0 --size 224 --batch 32 --pool average]

The step is the whole of it: drawing and augmenting the batch, forward, backward and update, over images that live on
the device. Images are noise: what is in them does not change the time. Prints milliseconds per step (the median
of several repeats), images per second, and the ratio to the baseline's step done the same way. `images` says how many a
method's backbone sees in a step: in UDA the baseline and the DG methods leave the target's out, `far+` sees them twice.
`--kernels 10` adds where a GPU's time goes. A method that fails is named, and does not stop the others.
"""

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from lightning_fabric import Fabric

from afield import list_methods
from afield.config.network import NetworkOptions
from afield.config.training import OptimiserName, TrainingOptions
from afield.data.batches import BatchStream
from afield.data.domain import Domain, DomainSet, Split
from afield.data.preprocessing import Preprocessing
from afield.data.task import make_task
from afield.methods.create import create_method
from afield.training.backend import backend_settings
from afield.training.devices import PRECISIONS, best_device
from afield.training.step import TrainingStep

REPEATS = 5
NOT_SETTINGS = ("before", "json", "kernels", "methods", "show", "ways")
DOMAINS = ("a", "b", "c", "d", "target")


@dataclass(frozen=True)
class Timing:
    """One row of the table."""

    method: str
    way: str
    milliseconds: float
    images: int
    ratio: float
    """To the baseline's step, done the same way."""

    @property
    def images_per_second(self) -> float:
        """How many images training looks at per second."""
        return 1000 * self.images / self.milliseconds


def noise_domains(size: int) -> DomainSet:
    """Five domains of noise, of less than a gigabyte."""
    count = min(4000, 50_000_000 // size**2)
    rng = np.random.default_rng(0)

    def split(n: int) -> Split:
        return Split.of_array(rng.integers(0, 256, (n, size, size, 3), dtype=np.uint8), rng.integers(0, 10, n))

    classes = tuple(map(str, range(10)))
    return DomainSet("noise", classes, {n: Domain(n, split(count), split(1), "noise") for n in DOMAINS})


def make_step(method: str, way: str, data: DomainSet, arguments: argparse.Namespace) -> TrainingStep:
    """A training step over the noise, as a run would take it."""
    fabric = Fabric(accelerator=best_device().type, devices=1, precision=PRECISIONS[arguments.precision])
    device = fabric.device
    options = TrainingOptions(
        steps=100_000,
        batch_size=arguments.batch,
        precision=arguments.precision,
        execution=way,
        optimiser=arguments.optimiser,
        lr=1e-4,  # whatever it is, the time is the same, and noise does not make training diverge
    )
    task, _ = make_task(data, "uda", "target")
    network = {"backbone": arguments.backbone, "width": arguments.width, "pool": arguments.pool, "pretrained": False}
    for name in ("neck", "hidden", "batch_norm"):
        # What is left at its default may be another in a method's preset.
        if getattr(arguments, name) != NetworkOptions.model_fields[name].default:
            network[name] = getattr(arguments, name)
    shape = {"num_classes": 10, "num_sources": len(task.sources), "image_size": data.image_size}
    built = create_method(method, **shape, network=network)
    built = built.to(device).to(memory_format=torch.channels_last)
    half = (0.5, 0.5, 0.5)
    stream = BatchStream(task, options.batch_size, Preprocessing(data.image_size, half, half), device, seed=0)
    return TrainingStep(built, stream, options, fabric)


def milliseconds(step: TrainingStep, steps: int) -> float:
    """The median over repeats of so many steps, after a warm-up."""
    for _ in range(max(5, steps // 10)):
        step()
    times = []
    for _ in range(REPEATS):
        synchronise()
        started = time.perf_counter()
        for _ in range(steps):
            step()
        synchronise()
        times.append(1000 * (time.perf_counter() - started) / steps)
    if not bool(step.healthy):
        raise ArithmeticError("the losses are not finite: this step computes nothing, however fast")
    return statistics.median(times)


def kernels(step: TrainingStep, count: int) -> str:
    """The kernels a GPU spends most of a step on: microseconds per step, launches per step, name."""
    steps = 20
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            step()
        synchronise()
    found = sorted(profile.key_averages(), key=lambda event: -event.self_device_time_total)
    total, launches = sum(event.self_device_time_total for event in found), sum(event.count for event in found)
    lines = [f"{event.self_device_time_total / steps:10.1f} us {event.count / steps:6.1f}  {event.key[:100]}"
             for event in found[:count]]  # fmt: skip
    return "\n".join([*lines, f"{total / steps:10.1f} us {launches / steps:6.1f}  all {len(found)} kernels"])


def synchronise() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def recorded(path: Path, before: Path | None = None) -> str:
    """The rows of a file that `--json` wrote, in Markdown: a table for each set of settings."""
    old = {
        (described(row), row["method"], row["way"]): row["milliseconds"] for row in (rows_of(before) if before else [])
    }
    tables = ((what, list(alike)) for what, alike in groupby(rows_of(path), described))
    return "\n\n".join(f"{table(rows, old)}\n\n{what}." for what, rows in tables)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """What `--json` wrote."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def table(rows: list[dict[str, Any]], old: dict[tuple[str, str, str], float]) -> str:
    """Rows in Markdown, beside the milliseconds that the same steps took before, where these are known."""
    known = any((described(row), row["method"], row["way"]) in old for row in rows)
    lines = [
        "| method | step | ms per step | images | images per second | to the baseline |" + known * " ms before |",
        "| --- |" + " ---: |" * (5 + known),
    ]
    for row in rows:
        timing = Timing(**{field.name: row[field.name] for field in fields(Timing)})
        cells = (timing.method, timing.way, f"{timing.milliseconds:.2f}", str(timing.images),
                 f"{timing.images_per_second:,.0f}", f"{timing.ratio:.2f}")  # fmt: skip
        milliseconds_before = old.get((described(row), row["method"], row["way"]))
        if known:
            cells += (f"{milliseconds_before:.2f}" if milliseconds_before else "-",)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def described(row: dict[str, Any]) -> str:
    """What was timed, from a row's settings; rows of earlier versions have fewer, which then were the defaults."""
    layers = [f"{name} {', '.join(map(str, row[name]))}" for name in ("neck", "hidden") if row.get(name)]
    kind = row.get("batch_norm", "together")
    optimiser = row.get("optimiser", "sgd")
    parts = [
        f"{row['device']}, torch {row['torch']}, {row['precision']}",
        f"5 x {row['batch']} images of {row['size']} x {row['size']}",
        f"digit network of width {row['width']}" if row.get("backbone", "digit") == "digit" else row["backbone"],
        *layers,
        *([f"batch norm {kind}"] if kind != "together" else []),
        *([optimiser] if optimiser != "sgd" else []),
    ]
    return ", ".join(parts)


def widths(text: str) -> tuple[int, ...]:
    """Comma-separated widths of layers."""
    return tuple(int(width) for width in text.split(",") if width)


def main() -> None:
    """Time every method every way, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--methods", default=",".join(list_methods()), help="comma-separated; default: all")
    parser.add_argument("--ways", default="graph" if on_gpu else "eager", help="eager, graph, compiled")
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16" if on_gpu else "fp32")
    parser.add_argument("--batch", type=int, default=64, help="images per domain")
    parser.add_argument("--size", type=int, default=32, help="of an image")
    parser.add_argument("--backbone", default="digit", help="or a timm model, which gets random weights")
    parser.add_argument("--width", type=int, default=64, help="of the digit network")
    parser.add_argument(
        "--pool", choices=get_args(NetworkOptions.model_fields["pool"].annotation), default="average2x2"
    )
    parser.add_argument("--neck", type=widths, default=(), help="widths of its last layers, comma-separated")
    parser.add_argument("--hidden", type=widths, default=(), help="widths of layers in each classifier")
    parser.add_argument("--batch-norm", choices=("together", "apart", "each"), default="together")
    parser.add_argument("--optimiser", choices=get_args(OptimiserName), default="sgd")
    parser.add_argument("--steps", type=int, default=500 if on_gpu else 5, help="of one repeat")
    parser.add_argument("--kernels", type=int, default=0, help="so many of a GPU's kernels that take longest")
    parser.add_argument("--json", type=Path, help="append the rows to this file")
    parser.add_argument("--show", type=Path, help="time nothing; print the rows of such a file")
    parser.add_argument("--before", type=Path, help="with --show: another such file, to compare with")
    arguments = parser.parse_args()
    if arguments.show:
        try:
            print(recorded(arguments.show, arguments.before))
        except OSError as error:
            raise SystemExit(f"cannot read {arguments.show}: {error.strerror}") from error
        return
    data = noise_domains(arguments.size)
    methods = [m for m in arguments.methods.split(",") if m != "baseline"]
    device = torch.cuda.get_device_name() if on_gpu else f"cpu, {torch.get_num_threads()} threads"
    settings = {k: v for k, v in vars(arguments).items() if k not in NOT_SETTINGS}
    settings |= {"device": device, "torch": torch.__version__}
    print(described(settings))
    print(f"{'method':24}{'way':>10}{'ms/step':>10}{'images':>8}{'images/s':>12}{'/baseline':>11}")
    failed = []
    for way in arguments.ways.split(","):
        reference = None
        for method in ("baseline", *methods):
            try:
                step = make_step(method, way, data, arguments)
                seen = len(step.method.images(step.stream.next()))
                with backend_settings(step.options, step.method):
                    taken = milliseconds(step, arguments.steps)
                    longest = kernels(step, arguments.kernels) if arguments.kernels and on_gpu else ""
            except Exception as error:
                failed.append(f"{method}, {way}")
                print(
                    f"{method:24}{way:>10}  failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}",
                    flush=True,
                )
                continue
            reference = reference or taken
            row = Timing(method, way, taken, seen, taken / reference)
            print(
                f"{row.method:24}{row.way:>10}{row.milliseconds:>10.3f}{row.images:>8}{row.images_per_second:>12,.0f}{row.ratio:>11.2f}",
                flush=True,
            )
            if longest:
                print(longest, flush=True)
            if arguments.json:
                with arguments.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({**asdict(row), **settings}) + "\n")
    if failed:
        raise SystemExit(f"failed: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
