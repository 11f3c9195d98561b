"""Does it pay to train several networks as one? Milliseconds per step of one network, in three ways, in one run.

    python benchmarks/stacking.py [--networks 1,3,8] [--neck] [--json FILE]
    python benchmarks/stacking.py --show FILE...

A benchmark trains the seeds of a row one beside the other; each is a small network that leaves part of a GPU idle. All
ways take the same steps of the same networks (the digit network's three convolutions, with `--neck` the fully connected
layers of 3,072 and 2,048; cross-entropy on 256 images of 32 x 32, SGD with momentum), on a GPU recorded as one graph:

    in turn      network after network
    streams      each network on a stream of its own, so that their kernels may run at the same time
    stacked      parameters stacked, one step of all by torch.func's vmap, which makes one grouped kernel of theirs

Images are noise, batch norm keeps no running statistics, which vmap cannot update, and all of a pass is in bf16, since
vmap knows no autocast of batch norm: for what a step costs, that matters little.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import cross_entropy

IMAGES, CLASSES, WIDTH, RATE, MOMENTUM = 256, 10, 64, 0.05, 0.9
WARM_UP, REPEATS = 3, 5
Parameters = dict[str, Tensor]


def network(neck: bool) -> nn.Sequential:
    """The digit network and a linear classifier."""

    def block(before: int, after: int, pool: bool) -> list[nn.Module]:
        norm = nn.BatchNorm2d(after, track_running_stats=False)
        return [nn.Conv2d(before, after, 5, padding=2, bias=False), norm, nn.ReLU(), *[nn.MaxPool2d(2)] * pool]

    def layer(before: int, after: int) -> list[nn.Module]:
        return [nn.Linear(before, after), nn.BatchNorm1d(after, track_running_stats=False), nn.ReLU()]

    body = [*block(3, WIDTH, True), *block(WIDTH, WIDTH, True), *block(WIDTH, 2 * WIDTH, False), nn.Flatten()]
    ends, width = ([*layer(128 * WIDTH, 3072), *layer(3072, 2048)], 2048) if neck else ([], 128 * WIDTH)
    return nn.Sequential(*body, *ends, nn.Linear(width, CLASSES))


def updated(parameters: Parameters, momenta: Parameters, gradients: Parameters) -> None:
    """SGD with momentum, in place."""
    names = list(parameters)
    moving, moved = [momenta[name] for name in names], [parameters[name] for name in names]
    torch._foreach_mul_(moving, MOMENTUM)
    torch._foreach_add_(moving, [gradients[name] for name in names])
    torch._foreach_add_(moved, moving, alpha=-RATE)


def step_of(models: list[nn.Sequential], device: torch.device, way: str) -> Callable[[], None]:
    """One step of all networks."""
    skeleton = models[0]
    images = torch.randn(len(models), IMAGES, 3, 32, 32, device=device)
    labels = torch.randint(CLASSES, (len(models), IMAGES), device=device)

    def loss(parameters: Parameters, images: Tensor, labels: Tensor) -> Tensor:
        half = {name: value.bfloat16() for name, value in parameters.items()}
        return cross_entropy(functional_call(skeleton, half, images.bfloat16()).float(), labels)

    if way == "stacked":
        stacked = {name: value.detach() for name, value in stack_module_state(models)[0].items()}
        momenta = {name: torch.zeros_like(value) for name, value in stacked.items()}
        return lambda: updated(stacked, momenta, vmap(grad(loss))(stacked, images, labels))

    own = [{name: value.detach().clone() for name, value in model.named_parameters()} for model in models]
    rest = [{name: torch.zeros_like(value) for name, value in one.items()} for one in own]
    streams = [torch.cuda.Stream() for _ in own] if way == "streams" else []

    def one(number: int) -> None:
        updated(own[number], rest[number], grad(loss)(own[number], images[number], labels[number]))

    def in_turn() -> None:
        for number in range(len(own)):
            one(number)

    def side_by_side() -> None:
        current = torch.cuda.current_stream()
        for number, stream in enumerate(streams):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                one(number)
        for stream in streams:
            current.wait_stream(stream)

    return side_by_side if streams else in_turn


def recorded(step: Callable[[], None]) -> Callable[[], None]:
    """The step as a CUDA graph."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def milliseconds(step: Callable[[], None], steps: int, gpu: bool) -> float:
    """Of one step: the median of several repeats."""
    found = []
    for _ in range(REPEATS + 1):  # the first one warms up
        if gpu:
            torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(steps):
            step()
        if gpu:
            torch.cuda.synchronize()
        found.append(1000 * (time.perf_counter() - begun) / steps)
    return statistics.median(found[1:])


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """All ways, for every number of networks."""
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    rows = []
    for count in map(int, arguments.networks.split(",")):
        torch.manual_seed(0)
        models = [network(arguments.neck).to(device) for _ in range(count)]
        for way in ("in turn", "streams", "stacked") if gpu else ("in turn", "stacked"):
            step = step_of(models, device, way)
            each = milliseconds(recorded(step) if gpu else step, arguments.steps, gpu) / count
            rows.append({"networks": count, "way": way, "ms": each})
            print(f"{count} networks, {way}: {each:.3f} ms per network and step", flush=True)
    name = torch.cuda.get_device_name() if gpu else f"{platform.machine()}, {torch.get_num_threads()} threads"
    return {"device": name, "torch": torch.__version__, "neck": arguments.neck, "rows": rows}


def table(found: dict[str, object]) -> str:
    """In Markdown."""
    rows: list[dict[str, object]] = found["rows"]  # type: ignore[assignment]
    ways = list(dict.fromkeys(str(row["way"]) for row in rows))
    counts = list(dict.fromkeys(row["networks"] for row in rows))
    cells = {(row["networks"], row["way"]): f"{row['ms']:.3f}" for row in rows}
    lines = [f"| networks | {' | '.join(ways)} |", f"| ---: |{' ---: |' * len(ways)}"]
    lines += [f"| {count} | {' | '.join(cells.get((count, way), '') for way in ways)} |" for count in counts]
    network = "with fully connected layers of 3,072 and 2,048" if found["neck"] else "without hidden layers"
    return "\n".join(lines) + f"\n\n{found['device']}, torch {found['torch']}, {network}; ms per network and step."


def main() -> None:
    """Measure, or show what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="1,3,8")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--neck", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.show:
        print("\n\n".join(table(json.loads(file.read_text())) for file in arguments.show))
        return
    found = measure(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
