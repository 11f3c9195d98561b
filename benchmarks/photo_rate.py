"""Images per second of training on photographs: afield's path beside the usual one, in one run.

    python benchmarks/photo_rate.py data/pacs --out results/speed/photo-rate.json
    python benchmarks/photo_rate.py --show results/speed/photo-rate.json

DATA is a folder DOMAIN/CLASS/*.jpg. All rows train the same timm network with the same SGD, in the same precision, on
files of that folder (ours without the fifth of each class that is held out), with as many images per batch and as long:

    recorded     all images on the device as bytes, a step recorded as a CUDA graph: what `afield train` does on a GPU
    eager        the same, operation by operation
    dataloader   torchvision's ImageFolder, a DataLoader with processes, the same random changes made to one image after
                 the other; the step is written by hand, and eager
    dataloader, crop and mirror   the same without changes of colour, which take longest; about what Dassl does to
                 photographs. Ratios are to this row, though our rows change colours too
    dataloader, crop and mirror, 4 processes   the same with Dassl's default instead of one process per core

A row is timed three times; the rate is the median, and the lowest and the highest stand beside it.

`seconds before` is what comes before the first step. For our first row that is decoding all files once, unless the
cache has them, and putting them on the device; the second finds them there. Without a GPU nothing can be recorded.
"""

import argparse
import gc
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import ConcatDataset, DataLoader, RandomSampler
from torchvision import datasets, transforms

from afield.config.data import DataOptions
from afield.config.network import NetworkOptions
from afield.config.training import TrainingOptions
from afield.data.augmentation import CROP, GREY, HUE, JITTER, RATIO
from afield.data.batches import BatchStream
from afield.data.domain import DomainSet
from afield.data.open import open_data, ready_to_train
from afield.data.preprocessing import Preprocessing
from afield.data.task import make_task
from afield.errors import AfieldError
from afield.files import making_folder, write_whole
from afield.methods.create import create_method
from afield.networks.backbones import check_backbone, normalisation
from afield.training.backend import backend_settings, has_few_convolutions
from afield.training.devices import make_fabric
from afield.training.step import TrainingStep

WARM_UP = 12
"""Steps that do not count: a graph is recorded in them, and a loader's queue fills."""
LEAST_DOMAINS = 2
TIMES = 3
PLAIN = "dataloader, crop and mirror"
DASSL_WORKERS = 4
ENDLESS = 10**9
"""Images of a loader: at the end of an epoch its processes would stand idle until the first batch of the next."""
Step = Callable[[], object]


def main() -> None:
    """Measure every path, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_gpu = torch.cuda.is_available()
    parser.add_argument("data", nargs="?", metavar="DATA", help="a folder DOMAIN/CLASS/*.jpg")
    parser.add_argument("--out", type=Path, help="write the record to this .json file")
    parser.add_argument("--show", type=Path, help="measure nothing; print the table of such a file")
    parser.add_argument("--target", help="the domain that is left out; default: the last")
    parser.add_argument("--backbone", default="tf_efficientnet_lite0", help="a timm model")
    parser.add_argument("--size", type=int, default=224, help="of an image")
    parser.add_argument("--batch", type=int, default=32, help="images per source")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="the loader's processes")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16" if on_gpu else "fp32")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seconds", type=float, default=20.0, help="per timing, of which a row has three")
    parser.add_argument("--steps", type=int, default=0, help="per timing, instead of seconds")
    arguments = parser.parse_args()
    if arguments.show:
        print(table(json.loads(arguments.show.read_text("utf-8"))))
        return
    if not (arguments.data and arguments.out):
        parser.error("DATA and --out are needed, or --show")
    record = measured(arguments)
    with making_folder(arguments.out):
        write_whole(arguments.out, json.dumps(record, indent=2) + "\n")
    print(table(record))


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every row, and what was measured on."""
    check_backbone(arguments.backbone)
    options = TrainingOptions(
        steps=10**6, batch_size=arguments.batch, precision=arguments.precision, device=arguments.device, lr=1e-4
    )
    device = make_fabric(options).device
    rows: list[dict[str, Any]] = []
    for name, make in paths(arguments, options, device).items():
        torch.manual_seed(0)
        started = time.perf_counter()
        with backend_settings(options):
            step, images = make()
            synchronise(device)
            before = time.perf_counter() - started
            warm_up(step, device, arguments)
            timed = [rate_of(step, images, device, arguments) for _ in range(TIMES)]
        rates = sorted(round(rate, 1) for rate, _ in timed)
        row = {"path": name, "images_per_second": rates[TIMES // 2], "lowest": rates[0], "highest": rates[-1]}
        row["steps"] = sum(steps for _, steps in timed)
        rows.append(row | {"seconds_before": round(before, 1)})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        del step  # with the processes behind it, which would slow down the next
        gc.collect()
    usual = next(row["images_per_second"] for row in rows if row["path"] == PLAIN)
    return {
        "rows": [row | {"ratio": round(row["images_per_second"] / usual, 2)} for row in rows],
        "backbone": arguments.backbone,
        "image_size": arguments.size,
        "images_per_source": arguments.batch,
        "precision": arguments.precision,
        "workers": arguments.workers,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "cores": os.cpu_count(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "timm": timm.__version__},
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def paths(
    arguments: argparse.Namespace, options: TrainingOptions, device: torch.device
) -> dict[str, Callable[[], tuple[Step, int]]]:
    """Each row by name, as a function that makes its step and says how many images that looks at."""
    data_options = DataOptions(name=arguments.data, image_size=arguments.size, preset="photos")
    data = open_data(data_options)
    if arguments.target:
        data[arguments.target]
    target = arguments.target or list(data.domains)[-1]
    sources = [name for name, domain in data.domains.items() if domain.labelled and name != target]
    if len(sources) < LEAST_DOMAINS:
        raise AfieldError(f"{arguments.data} has fewer than {LEAST_DOMAINS} labelled domains beside '{target}'")

    def ours(execution: str) -> tuple[Step, int]:
        return our_step(data, data_options, target, options.model_copy(update={"execution": execution}), arguments)

    def theirs(recolour: bool, workers: int) -> tuple[Step, int]:
        return loader_step(sources, len(data.classes), options, device, arguments, recolour, workers)

    found: dict[str, Callable[[], tuple[Step, int]]] = {
        "dataloader": lambda: theirs(True, arguments.workers),
        PLAIN: lambda: theirs(False, arguments.workers),
    }
    if arguments.workers > DASSL_WORKERS:
        found[f"{PLAIN}, {DASSL_WORKERS} processes"] = lambda: theirs(False, DASSL_WORKERS)
    found["eager"] = lambda: ours("eager")
    return found | ({"recorded": lambda: ours("graph")} if device.type == "cuda" else {})


def our_step(
    data: DomainSet, data_options: DataOptions, target: str, options: TrainingOptions, arguments: argparse.Namespace
) -> tuple[Step, int]:
    """A step of the baseline as `afield train` takes it, over images that all lie on the device."""
    fabric = make_fabric(options)
    task, _ = make_task(ready_to_train(data, data_options), "dg", target)
    method = create_method(
        "baseline", backbone=arguments.backbone, image_size=arguments.size, num_classes=len(data.classes),
        num_sources=len(task.sources),
    )  # fmt: skip
    method = method.to(fabric.device).to(memory_format=torch.channels_last)
    mean, std = normalisation(NetworkOptions(backbone=arguments.backbone))
    preprocessing = Preprocessing(arguments.size, mean, std)
    stream = BatchStream(task, arguments.batch, preprocessing, fabric.device, 0, "photos", "resident")
    torch.backends.cudnn.benchmark = has_few_convolutions(method)  # as `afield train` has it
    return TrainingStep(method, stream, options, fabric), len(task.sources) * arguments.batch


def loader_step(
    sources: list[str],
    num_classes: int,
    options: TrainingOptions,
    device: torch.device,
    arguments: argparse.Namespace,
    recolour: bool,
    workers: int,
) -> tuple[Step, int]:
    """A step as it is usually written: the next batch of a DataLoader, forward, backward, update."""
    network = timm.create_model(arguments.backbone, num_classes=num_classes)
    network = network.to(device).to(memory_format=torch.channels_last).train()
    optimiser = torch.optim.SGD(
        network.parameters(), lr=options.lr, momentum=options.momentum, weight_decay=options.weight_decay
    )
    images = len(sources) * arguments.batch
    batches = loaded(sources, images, device, arguments, recolour, workers)

    def step() -> None:
        pictures, labels = next(batches)
        with torch.autocast(device.type, torch.bfloat16, enabled=arguments.precision == "bf16"):
            loss = cross_entropy(network(pictures), labels)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()

    return step, images


def loaded(
    sources: list[str],
    count: int,
    device: torch.device,
    arguments: argparse.Namespace,
    recolour: bool,
    workers: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches on the device without end, changed image by image in the loader's processes."""
    jitter = transforms.ColorJitter(JITTER, JITTER, JITTER, HUE / (2 * math.pi))
    colours = [jitter, transforms.RandomGrayscale(GREY)] if recolour else []
    transform = transforms.Compose([
        transforms.RandomResizedCrop(arguments.size, scale=CROP, ratio=RATIO), transforms.RandomHorizontalFlip(),
        *colours, transforms.ToTensor(),
        transforms.Normalize(*normalisation(NetworkOptions(backbone=arguments.backbone))),
    ])  # fmt: skip
    data = ConcatDataset([datasets.ImageFolder(str(Path(arguments.data) / name), transform) for name in sources])
    loader = DataLoader(
        data, count, sampler=RandomSampler(data, num_samples=ENDLESS), num_workers=workers,
        pin_memory=device.type == "cuda",
    )  # fmt: skip
    for pictures, labels in loader:
        on_device = pictures.to(device, non_blocking=True, memory_format=torch.channels_last)
        yield on_device, labels.to(device, non_blocking=True)


def warm_up(step: Step, device: torch.device, arguments: argparse.Namespace) -> None:
    """Take the first few steps."""
    for _ in range(min(WARM_UP, arguments.steps or WARM_UP)):
        step()
    synchronise(device)


def rate_of(step: Step, images: int, device: torch.device, arguments: argparse.Namespace) -> tuple[float, int]:
    """Images per second over so many steps or seconds, and the steps."""
    started, done = time.perf_counter(), 0
    while done < arguments.steps or (not arguments.steps and time.perf_counter() - started < arguments.seconds):
        step()
        done += 1
        if not arguments.steps and done % 20 == 0:
            synchronise(device)  # or the host would queue many more steps than the time allows
    synchronise(device)
    return done * images / (time.perf_counter() - started), done


def synchronise(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def table(record: dict[str, Any]) -> str:
    """The record as a table in Markdown."""
    lines = [
        "| path | images per second | of three timings | ratio | seconds before |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in record["rows"]:
        spread = f"{row['lowest']:,.0f} to {row['highest']:,.0f}"
        rate, before = f"{row['images_per_second']:,.0f}", f"{row['seconds_before']:.0f}"
        cells = row["path"], rate, spread, f"{row['ratio']:.2f}", before
        lines.append(f"| {' | '.join(cells)} |")
    side = record["image_size"]
    parts = [
        f"{record['device']}, {record['cores']} cores, {record['workers']} loader processes",
        f"torch {record['versions']['torch']}, {record['precision']}, {record['backbone']}",
        f"{record['images_per_source']} images of {side} x {side} per source",
    ]
    return "\n".join([*lines, "", f"{', '.join(parts)}."])


if __name__ == "__main__":
    try:
        main()
    except AfieldError as error:
        sys.exit(f"photo_rate: {' '.join(str(error).split())}")
