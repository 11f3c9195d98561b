"""From a resolved config and a data set to a loop that stands ready in its folder."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import torch
from lightning.fabric import Fabric

from afield import __version__
from afield.config.catalogue import check_sources, find_entry
from afield.config.layers import Config
from afield.config.plan import Place
from afield.data.domain import DomainSet
from afield.data.open import ready_to_train
from afield.data.preprocessing import Preprocessing
from afield.data.task import make_task
from afield.methods.create import method_of
from afield.networks import check_backbone, normalisation
from afield.results.folder import RunFolder
from afield.results.records import Record
from afield.training.loop import Loop, Setup, isolated_generators

RECORDED_VERSIONS = ("timm", "lightning", "numpy")


@contextmanager
def opened(
    config: Config,
    data: DomainSet,
    out: Path,
    *,
    resume: bool,
    progress: bool,
    place: Place | None = None,
    fabric: Fabric | None = None,
) -> Iterator[Loop]:
    """A loop that stands ready in its folder, begun anew or gone back to its last checkpoint."""
    with isolated_generators(config.training):
        loop = Loop(make_setup(config, data), RunFolder(out), progress, fabric)
        header = make_header(config, data, loop.device, place)
        # Everything has been checked: only now is anything written.
        (loop.resume if resume else loop.start)(header)
        yield loop


def make_setup(config: Config, data: DomainSet) -> Setup:
    """The task, the method with fresh weights, and what else a loop needs."""
    check_backbone(config.network.backbone)
    ready = ready_to_train(data, config.data)
    task, views = make_task(ready, config.task.kind, config.task.target, config.task.sources)
    check_sources(find_entry(config.method_name), len(task.sources))
    method = method_of(config, config.data.image_size, len(data.classes), len(task.sources))
    mean, std = normalisation(config.network)
    preprocessing = Preprocessing(config.data.image_size, mean, std, config.data.oblong)
    return Setup(config.method_name, method, task, views, preprocessing, config.data, config.training, config.as_dict())


def make_header(config: Config, data: DomainSet, device: torch.device, place: Place | None = None) -> Record:
    """The first line of a run's records. Only a benchmark's runs have a label and a protocol by name."""
    label = {"label": place.label} if place else {}
    protocol = {"name": place.protocol, "version": place.version} if place else {}
    stand_ins = [name for name, domain in data.domains.items() if domain.stand_in]
    return {
        "event": "run",
        **label,
        "config": config.as_dict(),
        "protocol": {
            **protocol,
            "data": data.name,
            "checksum": data.checksum(),
            "test_images": {name: len(domain.test) for name, domain in data.domains.items()},
            **({"stand_ins": stand_ins} if stand_ins else {}),
        },
        "versions": {
            "afield": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            **{name: version(name) for name in RECORDED_VERSIONS},
        },
        "seed": config.training.seed,
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"cpu, {torch.get_num_threads()} threads",
    }
