"""From a resolved config and a data set to a loop that stands ready in its folder."""

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch
from lightning_fabric import Fabric

from afield import __version__
from afield.config.catalogue import check_sources, find_entry
from afield.config.layers import Config
from afield.config.plan import Place
from afield.data.domain import DomainSet
from afield.data.open import ready_to_train
from afield.data.preprocessing import Preprocessing
from afield.data.task import make_task
from afield.errors import AfieldError
from afield.files import locked, sha256_of
from afield.methods import Method
from afield.methods.create import method_of
from afield.networks import check_backbone, normalisation
from afield.results.folder import WHO, RunFolder
from afield.results.records import Record
from afield.training.backend import isolated_generators
from afield.training.callbacks import Callback
from afield.training.devices import precision_of
from afield.training.loop import Loop, Setup
from afield.training.memory import is_out_of_memory, memory_explained

RECORDED_VERSIONS = ("timm", "lightning-fabric", "numpy")


@contextmanager
def opened(
    config: Config,
    data: DomainSet,
    out: Path,
    *,
    resume: bool,
    progress: bool,
    overwrite: bool = False,
    place: Place | None = None,
    fabric: Fabric | None = None,
    callbacks: Sequence[Callback] = (),
) -> Iterator[Loop]:
    """A loop that stands ready in its folder, begun anew or gone back to its last checkpoint.

    While the context lasts, nobody else trains in that folder. A benchmark's run (`place`) replaces what is there.
    """
    folder = RunFolder(out)
    with isolated_generators(config.training), ExitStack() as stack:
        check = partial(folder.check, resume, overwrite) if place is None else None
        _claim(stack, folder, check, fabric)
        stack.enter_context(memory_explained(config))
        goes_on = resume and folder.last.exists()  # what was killed before its first checkpoint starts anew
        loop = Loop(make_setup(config, data, fill_later=goes_on), folder, progress, fabric, callbacks)
        header = make_header(config, data, loop.device, place, begins=not goes_on)
        # Everything has been checked: only now is anything written.
        try:
            (loop.resume if resume else loop.start)(header)
            if not folder.records.exists():
                raise AfieldError(f"{folder.path} is not the same folder on all machines: they must share its disk")
            yield loop
        except Exception as error:
            if is_out_of_memory(error) and loop.leads and not (resume or loop.step):
                folder.clear()  # the run has not begun: with other settings it is to begin here
            raise


def _claim(stack: ExitStack, folder: RunFolder, check: Callable[[], None] | None, fabric: Fabric | None) -> None:
    """Lock the folder and only then look into it. Of several processes the first does, and tells the others."""
    refusal: AfieldError | None = None
    if fabric is None or fabric.global_rank == 0:
        try:
            stack.enter_context(locked(folder.path, WHO))
            if check:
                check()
        except AfieldError as error:
            refusal = error
    if fabric is not None and fabric.world_size > 1:
        refusal = fabric.broadcast(refusal)
    if refusal:
        raise refusal


def make_setup(config: Config, data: DomainSet, *, fill_later: bool = False) -> Setup:
    """The task, the method as it starts training, and what else a loop needs.

    With `fill_later` a checkpoint will fill the method, so that no pretrained weights are looked for.
    """
    check_backbone(config.network.backbone)
    ready = ready_to_train(data, config.data)
    task, views = make_task(ready, config.task.kind, config.task.target, config.task.sources)
    entry = find_entry(config.method_name)
    check_sources(entry, len(task.sources))
    method = method_of(config, config.data.image_size, len(data.classes), len(task.sources), fill_later=fill_later)
    mean, std = normalisation(config.network)
    preprocessing = Preprocessing(config.data.image_size, mean, std, config.data.oblong)
    return Setup(
        config.method_name, method, task, views, preprocessing, config.data, config.training, config.as_dict(),
        pretrained=config.network.starts_trained, origin=entry.origin,
        target_batches=target_batches(config, method, len(task.sources)),
    )  # fmt: skip


def target_batches(config: Config, method: Method, num_sources: int) -> int:
    """How many batches of target images a batch has, for each of a source."""
    asked = config.training.target_batches
    if asked > 1 and not method.pools_target:
        raise AfieldError(
            f"method '{config.method_name}' needs as many images of the target as of each source: "
            f"training.target_batches is 1, not {asked}"
        )
    return asked or (num_sources if method.pools_target else 1)


def make_header(
    config: Config, data: DomainSet, device: torch.device, place: Place | None = None, *, begins: bool = True
) -> Record:
    """The first line of a run's records. Only a benchmark's runs have a label and a protocol by name.

    Of a run that goes on (not `begins`) the line is there already, and the file of its weights may be gone.
    """
    file = Path(config.network.weights).expanduser() if config.network.weights and begins else None
    weights = {"weights_sha256": sha256_of(file)} if file else {}
    label = {"label": place.label} if place else {}
    protocol = {"name": place.protocol, "version": place.version} if place else {}
    origin = find_entry(config.method_name).origin
    stand_ins = [name for name, domain in data.domains.items() if domain.stand_in]
    return {
        "event": "run",
        **label,
        **({"origin": origin} if origin else {}),
        "config": config.as_dict(),
        **weights,
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
        **({"precision": precision_of(config.training)} if config.training.precision == "auto" else {}),
    }
