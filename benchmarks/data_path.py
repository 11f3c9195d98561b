"""How fast images reach the device, and what that takes in memory: every path of afield beside torchvision's.

    python benchmarks/data_path.py speed     images per second: ImageFolder with DataLoader, streamed, packed, resident
    python benchmarks/data_path.py waiting   what a step of EfficientNet-Lite0 waits for data: 4 x 32 images, 224 pixels
    python benchmarks/data_path.py memory    resident memory of `afield train` on 100,000 files
    python benchmarks/data_path.py show --json FILE    the tables of what was measured

All paths read the same JPEG files (500 x 375, hard links of some hundred different ones) with the same number of
processes, in one run. The transforms are the recipe `photos`: random resized crop, flip, colour, greyscale.
"""

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    import torch

    from afield.data.batches import BatchStream

DOMAINS, CLASSES, SIZE = 4, 10, (500, 375)
SIDE = 224
SECONDS = 20.0


def main() -> None:
    """Measure what is asked for; one JSON object per line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "waiting", "memory", "show"])
    parser.add_argument("--json", type=Path, help="append the rows to this file; for show, read them from it")
    parser.add_argument("--files", type=int, default=0, help="how many; default: 4,000, or 100,000 for memory")
    parser.add_argument("--different", type=int, default=800, help="how many of them are no links of another")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="that decode")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--folder", type=Path, help="where to put the files; default: a temporary folder")
    parser.add_argument("--per-domain", type=int, default=32, help="images of each of the four domains in a batch")
    parser.add_argument("--steps", type=int, default=0, help="default: what takes some 20 seconds; for memory 40")
    arguments = parser.parse_args()
    if arguments.what == "show":
        print(tables([json.loads(line) for line in arguments.json.read_text("utf-8").splitlines()]))
        return
    count = arguments.files or (100_000 if arguments.what == "memory" else 4_000)
    with working_folder(arguments.folder) as folder:
        os.environ["AFIELD_CACHE"] = str(folder / "cache")
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as importing afield sets it; here torch comes first
        photos = folder / f"photos-{count}"
        if not photos.exists():
            make_files(photos, count, min(arguments.different, count))
        {"speed": speed, "waiting": waiting, "memory": memory}[arguments.what](photos, arguments)


@contextmanager
def working_folder(given: Path | None) -> Iterator[Path]:
    """The given folder, or a temporary one that is removed."""
    if given:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="afield-data-path-") as made:
        yield Path(made)


def make_files(folder: Path, count: int, different: int) -> None:
    """DOMAIN/CLASS/NUMBER.jpg: parts of scikit-learn's two photographs, in turn for each domain and class."""
    different -= different % (DOMAINS * CLASSES)  # then a link is of its own domain and class
    from sklearn.datasets import load_sample_images

    photographs = [Image.fromarray(image).resize((1000, 700)) for image in load_sample_images().images]
    rng = np.random.default_rng(0)
    first: list[Path] = []
    for number in range(count):
        place = folder / f"domain{number % DOMAINS}" / f"class{number // DOMAINS % CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        file = place / f"{number}.jpg"
        if number < different:
            photograph = photographs[number % len(photographs)]
            left, top = rng.integers(0, photograph.width - SIZE[0]), rng.integers(0, photograph.height - SIZE[1])
            photograph.crop((left, top, left + SIZE[0], top + SIZE[1])).save(file, quality=90)
            first.append(file)
        else:
            os.link(first[number % different], file)


def report(row: dict[str, object], arguments: argparse.Namespace) -> None:
    """A row to the screen and, if asked for, to a file."""
    print(json.dumps(row), flush=True)
    if arguments.json:
        with arguments.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def tables(rows: list[dict[str, object]]) -> str:
    """Rows of each kind as a table in Markdown."""
    kinds = {
        "images_per_second": ("path", "images_per_second", "ratio", "memory_mb"),
        "step_ms": ("path", "step_ms", "waits", "memory_mb"),
        "peak_memory_mb": ("files", "peak_memory_mb", "seconds"),
    }
    found = []
    for key, columns in kinds.items():
        chosen = [row for row in rows if key in row]
        columns = (*columns, "device", "processes", "cores") if chosen else ()
        lines = [columns, ["---"] * len(columns), *([str(row[name]) for name in columns] for row in chosen)]
        if chosen:
            found.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(found)


def device_of(arguments: argparse.Namespace) -> "torch.device":
    """The device to measure on."""
    import torch

    name = arguments.device
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def speed(photos: Path, arguments: argparse.Namespace) -> None:
    """Images per second of each path, and how often that is the DataLoader's."""
    device = device_of(arguments)
    rates, measured = {}, paths(photos, device, arguments)
    while found := next(measured, None):
        name, batches = found
        rates[name], steps = rate_of(batches, device, arguments.steps, DOMAINS * arguments.per_domain)
        row = {"path": name, "images_per_second": round(rates[name], 1), "steps": steps}
        row["ratio"] = round(rates[name] / rates["dataloader"], 2)
        report(row | {"memory_mb": round(memory_mb()), **machine(device, arguments)}, arguments)
        del found, batches  # with the processes behind them, or they would count as the next path's
        gc.collect()


def paths(
    photos: Path, device: "torch.device", arguments: argparse.Namespace
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each path by name, as a function that gives the next batch on the device."""
    yield "dataloader", dataloader(photos, device, arguments)
    for placement, cache in (("streamed", 0.0), ("packed", 100.0), ("resident", 100.0)):
        stream = stream_of(photos, device, arguments, "streamed" if placement == "packed" else placement, cache)
        yield placement, lambda stream=stream: stream.next().images
        stream.close()


def stream_of(
    photos: Path, device: "torch.device", arguments: argparse.Namespace, placement: str, cache: float
) -> "BatchStream":
    """Our batches: all domains as sources. A packed cache is filled before."""
    from afield.config.data import DataOptions
    from afield.data.batches import BatchStream
    from afield.data.open import open_data, ready_to_train
    from afield.data.preprocessing import Preprocessing
    from afield.data.task import make_task

    options = DataOptions(name=str(photos), image_size=SIDE, cache_gb=cache, workers=arguments.processes)
    task, _ = make_task(ready_to_train(open_data(options), options), "dg", None)
    if cache:
        for view in task.sources:
            for start in range(0, len(view.images), 256):
                view.images.read(np.arange(start, min(start + 256, len(view.images))))
    preprocessing = Preprocessing(SIDE, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    return BatchStream(task, arguments.per_domain, preprocessing, device, 0, "photos", placement)


def dataloader(photos: Path, device: "torch.device", arguments: argparse.Namespace) -> Callable[[], object]:
    """torchvision's way: a folder of classes, transforms per image in the loader's processes."""
    from torch.utils.data import ConcatDataset, DataLoader
    from torchvision import datasets, transforms

    transform = transforms.Compose([
        transforms.RandomResizedCrop(SIDE, scale=(0.7, 1.0)), transforms.RandomHorizontalFlip(),
        transforms.ColorJitter(0.3, 0.3, 0.3, 0.3), transforms.RandomGrayscale(0.1), transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ])  # fmt: skip
    data = ConcatDataset([datasets.ImageFolder(str(domain), transform) for domain in sorted(photos.iterdir())])
    loader = DataLoader(
        data, DOMAINS * arguments.per_domain, shuffle=True, num_workers=arguments.processes, drop_last=True,
        persistent_workers=True, pin_memory=device.type == "cuda",
    )  # fmt: skip
    batches = iter(())

    def next_batch() -> object:
        nonlocal batches
        images, _ = next(batches, (None, None))
        if images is None:
            batches = iter(loader)
            images, _ = next(batches)
        return images.to(device, non_blocking=True)

    return next_batch


def rate_of(next_batch: Callable[[], object], device: "torch.device", steps: int, images: int) -> tuple[float, int]:
    """Images per second over so many steps, or some 20 seconds, after a few to warm up."""
    for _ in range(12):  # more than are read ahead, so that these are not counted as fast
        next_batch()
    synchronise(device)
    started, done = time.perf_counter(), 0
    while done < steps or (not steps and time.perf_counter() - started < SECONDS):
        next_batch()
        done += 1
    synchronise(device)
    return done * images / (time.perf_counter() - started), done


def synchronise(device: "torch.device") -> None:
    """Wait for the device."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def waiting(photos: Path, arguments: argparse.Namespace) -> None:
    """Milliseconds of a training step by path; what is above the resident path's is waiting for data."""
    import torch
    from lightning_fabric import Fabric

    from afield.config.training import TrainingOptions
    from afield.methods.create import create_method
    from afield.training.step import TrainingStep

    device = device_of(arguments)
    fast = device.type == "cuda"
    torch.manual_seed(0)
    steps = arguments.steps or (200 if fast else 5)
    milliseconds = {}
    for placement, cache in (("resident", 100.0), ("packed", 100.0), ("streamed", 0.0)):
        stream = stream_of(photos, device, arguments, "streamed" if placement == "packed" else placement, cache)
        method = create_method("baseline", backbone="tf_efficientnet_lite0", num_classes=CLASSES, num_sources=DOMAINS)
        method = method.to(device).to(memory_format=torch.channels_last)
        options = TrainingOptions(steps=10**6, precision="bf16" if fast else "fp32", lr=1e-4)
        fabric = Fabric(accelerator=device.type, devices=1, precision="bf16-mixed" if fast else "32-true")
        step = TrainingStep(method, stream, options, fabric)
        for _ in range(12 if fast else 1):
            step()
        synchronise(device)
        started = time.perf_counter()
        for _ in range(steps):
            step()
        synchronise(device)
        milliseconds[placement] = 1000 * (time.perf_counter() - started) / steps
        share = 1 - milliseconds["resident"] / milliseconds[placement]
        row = {"path": placement, "step_ms": round(milliseconds[placement], 2), "waits": round(max(share, 0.0), 3)}
        report(row | {"memory_mb": round(memory_mb()), **machine(device, arguments)}, arguments)
        stream.close()


def memory(photos: Path, arguments: argparse.Namespace) -> None:
    """The largest resident memory, of all its processes together, while `afield train` runs."""
    out = photos.parent / "run"
    shutil.rmtree(out, ignore_errors=True)
    command = [
        sys.executable, "-m", "afield", "train", "--data", str(photos), "--target",
        "domain3", "--method", "far", "--steps", str(arguments.steps or 40), "--out", str(out),
        "--set", "network.backbone=mobilenetv3_small_050", "--set", "network.pretrained=false",
        "--set", "training.batch_size=8", "--set", "training.evaluate_every=1000000",
        "--set", f"data.workers={arguments.processes}",
    ]  # fmt: skip
    started = time.perf_counter()
    process = subprocess.Popen(command)
    largest, done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal largest
        while not done.wait(0.2):
            largest = max(largest, memory_mb(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    done.set()
    watcher.join()
    row = {"files": sum(1 for _ in photos.rglob("*.jpg")), "exit": code, "peak_memory_mb": round(largest)}
    report(row | {"seconds": round(time.perf_counter() - started), **machine(None, arguments)}, arguments)


def memory_mb(pid: int | None = None) -> float:
    """Resident memory of a process and of all it has started, in megabytes; pages two share are counted twice."""
    waiting_for, total = [pid or os.getpid()], 0
    while waiting_for:
        process = Path("/proc", str(waiting_for.pop()))
        try:
            status = (process / "status").read_text()
            total += next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")), 0)
            for thread in (process / "task").iterdir():
                waiting_for += map(int, (thread / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total / 1024


def machine(device: "torch.device | None", arguments: argparse.Namespace) -> dict[str, object]:
    """What was measured on."""
    import torch

    name = torch.cuda.get_device_name(device) if device is not None and device.type == "cuda" else "cpu"
    return {"device": name, "processes": arguments.processes, "cores": os.cpu_count(), "torch": torch.__version__}


if __name__ == "__main__":
    main()
