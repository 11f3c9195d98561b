"""`afield.train`: one run, from what the user asked for to its result."""

import logging
import pickle
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch.multiprocessing.spawn import ProcessExitedException

from afield.app.asked import asked_layers, check_early, choose_config, data_options, read_stored
from afield.config.data import OWN_PRESETS, DataOptions
from afield.config.layers import Config, keeping, merge
from afield.config.selectors import check_selector
from afield.config.torchrun import leads, torchrun
from afield.data.domain import DomainSet
from afield.data.entries import some_of
from afield.data.open import open_data, open_own
from afield.data.registry import builders
from afield.data.task import notes_on_task
from afield.errors import AfieldError
from afield.files import check_unlocked
from afield.methods.registry import AnyMethod, name_of
from afield.networks import check_backbone
from afield.results.folder import WHO, RunFolder
from afield.results.run import Run, read_run
from afield.training.assemble import opened
from afield.training.callbacks import Callback, check_callbacks
from afield.training.devices import check_devices, make_fabric, meet_anew
from afield.training.loggers import check_loggers
from afield.training.loop import Loop
from afield.training.processes import (
    GUARD,
    Parcel,
    check_guarded,
    children_told,
    is_loss_of_another,
    pack,
    packed_callbacks,
    place_to_meet,
    unpack,
    without_nameless_script,
)
from afield.training.progress import Display

CarryOut = Callable[[Config, Sequence[Callback], Fabric], None]
STOPPED = "stopped"
"""The answer of a process whose run was stopped by a signal."""
GO_ON = "resuming the run goes on from its last checkpoint"
LOST = f"another process of the run has ended, or does not answer; {GO_ON}"
MOST_NAMED = 8
"""Of more sources than these, only the number is shown."""


def train(
    data: "str | Path | DomainSet | None" = None,
    task: str | None = None,
    target: str | None = None,
    method: AnyMethod | None = None,
    steps: int | None = None,
    seed: int | None = None,
    out: str | Path = "",
    *,
    sources: list[str] | None = None,
    backbone: str | None = None,
    pretrained: bool | None = None,
    weights: str | Path | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    config: str | Path | None = None,
    settings: dict[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    selector: str = "last",
    progress: bool = True,
    show_config: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train a method on a task and return its result.

    `data` is the name of a data set, a folder DOMAIN/CLASS/*.jpg, a manifest (.csv, .parquet), `hf:NAME`, or a
    `DomainSet`, such as `afield.from_arrays` makes. `method` is a name or, for one that is not part of afield, a file
    (`./mine.py`), `package.module:Name`, or the class itself. What is not given comes from `config` (a TOML file), then
    from the presets of the data and the method. `pretrained` starts the backbone from the weights that timm downloads,
    `weights` from those in a file. `settings` sets single keys, such as {"method.align_weight": 0.3}, and overrides
    everything else. `out` is the run's folder; if it holds a run already, `resume` continues it, `overwrite` replaces
    it, and without either it is an error. `selector` says which evaluation is the result, and its checkpoint is kept.
    On standard error `progress` shows what is trained, notes about the data and a bar; `show_config` shows the resolved
    config. `callbacks` are told how the run goes (`afield.Callback`).
    """
    check_guarded()
    check_callbacks(callbacks)
    if str(out) in ("", "."):
        raise AfieldError("a run needs a folder of its own to write to: out")
    check_selector(selector)
    folder, world = RunFolder(Path(out)), torchrun()
    if world and world.restarts and folder.config.exists():
        resume, overwrite = True, False
    if leads():  # which may have locked it already when others come so far
        check_unlocked(folder.path, WHO)
    folder.check(resume, overwrite)
    name = data.name if isinstance(data, DomainSet) else (None if data is None else str(data))
    layers = asked_layers(
        config, settings, data=name, task=task, target=target, sources=sources, backbone=backbone,
        method=None if method is None else name_of(method), pretrained=pretrained, weights=weights, steps=steps, lr=lr,
        batch_size=batch_size, device=device, seed=seed,
    )  # fmt: skip
    if selector != "last" and (kept := merge(*layers)["training"].get("keep")):
        layers.append({"training": {"keep": list(dict.fromkeys([*kept, selector]))}})
    if world:
        layers.append(world.layer(layers))
    stored = [read_stored(folder)] if resume else []
    early = check_early(layers, stored)
    check_backbone(early.network.backbone)
    check_loggers(early.training.loggers)
    check_devices(early.training)
    source: DomainSet | DataOptions = data if isinstance(data, DomainSet) else data_options(*stored, *layers)
    if isinstance(source, DataOptions) and source.name in builders() and source.name not in OWN_PRESETS:
        source = open_data(source)  # registered in this process, so that others could not open it by its name
    resolved = choose_config(_opened_again(source) if resume else _opened(source), layers, stored)
    if not resume:
        resolved = keeping(resolved, selector)
    elif selector != "last" and selector not in resolved.training.keep:
        kept = ", ".join(resolved.training.keep)
        raise AfieldError(f"cannot resume with selector '{selector}': the run keeps checkpoints of {kept}")
    carry_out = partial(_carry_out, source, Path(out), resume, overwrite, progress, show_config)
    if resolved.training.devices * resolved.training.nodes == 1:
        carry_out(resolved, callbacks, None)
    elif world:
        _among_others(resolved, callbacks, carry_out)
    elif failure := _in_processes(resolved, callbacks, carry_out):
        raise AfieldError(failure)
    return read_run(Path(out), selector)


def _carry_out(
    source: DomainSet | DataOptions,
    out: Path,
    resume: bool,
    overwrite: bool,
    progress: bool,
    show_config: bool,
    config: Config,
    callbacks: Sequence[Callback],
    fabric: Fabric | None,
) -> None:
    data = _opened(source)
    with opened(
        config, data, out, resume=resume, overwrite=overwrite, progress=progress, fabric=fabric, callbacks=callbacks
    ) as loop:
        if not loop.ended:
            if show_config and loop.leads:
                print(config.as_toml(), file=sys.stderr)
            display = Display(progress and loop.leads)
            notes = (*data.notes, *notes_on_task(loop.setup.task), *notes_on_sizes(loop))
            for line in (describe(config, loop), *(f"note: {note}" for note in notes)):
                display.say(line)
            loop.run()


def notes_on_sizes(loop: Loop) -> list[str]:
    """The domains that a batch holds more than once."""
    seen = zip(loop.setup.task.seen, loop.stream.order.counts, strict=True)
    small = [f"{view.name} ({len(view.images)} of {count})" for view, count in seen if len(view.images) < count]
    return (
        [f"fewer training images than a batch has of them, so that some come twice: {some_of(small, MOST_NAMED)}"]
        if small
        else []
    )


def describe(config: Config, loop: Loop) -> str:
    """What is about to be trained, in one line."""
    names = [view.name for view in loop.setup.task.sources]
    sources = ", ".join(names) if len(names) <= MOST_NAMED else f"{len(names)} sources"
    size, training, counts = config.data.image_size, config.training, loop.stream.order.counts
    images = " + ".join(f"{len(list(equal))} x {count}" for count, equal in groupby(counts))
    batches = f"{training.accumulate} x " * (training.accumulate > 1)
    device = torch.cuda.get_device_name(loop.device) if loop.device.type == "cuda" else loop.device.type
    where = "memory" if loop.device.type == "cpu" else "its memory"
    parts = [
        f"{config.method_name}, {config.task.kind}: {sources} -> {config.task.target or 'unseen domains'}",
        f"backbone {config.network.backbone}, images of {size} x {size}",
        f"{training.steps} step{'s' * (training.steps > 1)} of {batches}{images} images",
        f"on {device}" + (f" x {loop.fabric.world_size}" if loop.fabric.world_size > 1 else ""),
        f"images all in {where}" if loop.stream.resident else "images streamed",
        *([f"resumed at step {loop.step}"] if loop.step else []),
    ]
    return "; ".join(parts)


def _opened(source: DomainSet | DataOptions) -> DomainSet:
    """The data set. Several processes open it by its options each, because sending the images would be slow."""
    return source if isinstance(source, DomainSet) else open_data(source)


def _opened_again(source: DomainSet | DataOptions) -> DomainSet:
    """The data set of a run that goes on."""
    hint = "to resume, put them back where they were; images that came from Python are given again (data=)"
    return source if isinstance(source, DomainSet) else open_own(source, hint)


def _in_processes(config: Config, callbacks: Sequence[Callback], carry_out: CarryOut) -> str | None:
    """Start the processes of a run, and say why it has failed, if it has."""
    take_part = partial(_take_part, carry_out, pack(config, config.method_name), packed_callbacks(callbacks))
    # Which says of every process that it ends it, when one is lost.
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)
    try:
        with without_nameless_script(), place_to_meet(), children_told():
            failure: str | None = make_fabric(config.training).launch(take_part)
    except ProcessExitedException as error:
        if error.signal_name:
            return f"one of the run's processes was killed by {error.signal_name}; {GO_ON}"
        return f"one of the run's processes has ended with code {error.exit_code}; {GUARD}"
    if failure == STOPPED:
        raise KeyboardInterrupt
    return failure


def _among_others(config: Config, callbacks: Sequence[Callback], carry_out: CarryOut) -> None:
    """This process's part of a run whose processes torchrun has started."""
    try:
        meet_anew(config.training)
        make_fabric(config.training).launch(partial(carry_out, config, callbacks))
    except Exception as error:
        if is_loss_of_another(error):
            raise AfieldError(LOST) from error
        raise


def _take_part(carry_out: CarryOut, config: Parcel, callbacks: bytes, fabric: Fabric) -> str | None:
    """One process's part of a run. Errors are returned: raised, they would reach the user as a stack of tracebacks."""
    try:
        carry_out(unpack(config), pickle.loads(callbacks), fabric)
    except AfieldError as error:
        if torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
            _leave_group()  # NCCL's may wait for the other processes
        return str(error)
    except KeyboardInterrupt:
        return STOPPED
    except Exception as error:
        if is_loss_of_another(error):
            return LOST
        raise
    _leave_group()
    return None


def _leave_group() -> None:
    """In good order, while Python still runs: threads of the group that live on at its end may abort the process."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
