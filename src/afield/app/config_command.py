"""The command `afield config`."""

from pathlib import Path
from typing import Annotated

import typer

from afield.app.options import (
    Backbone,
    BatchSize,
    ConfigFile,
    Data,
    Device,
    LearningRate,
    MethodName,
    Pretrained,
    Seed,
    Settings,
    SkipBad,
    Sources,
    Steps,
    Target,
    Task,
    Weights,
    parsed_names,
    parsed_settings,
)


def config(
    data: Data = None,
    task: Task = None,
    target: Target = None,
    sources: Sources = None,
    method: MethodName = None,
    backbone: Backbone = None,
    pretrained: Pretrained = None,
    weights: Weights = None,
    steps: Steps = None,
    lr: LearningRate = None,
    batch_size: BatchSize = None,
    device: Device = None,
    seed: Seed = None,
    config: ConfigFile = None,
    settings: Settings = None,
    skip_bad: SkipBad = False,
    file: Annotated[Path | None, typer.Option("--out", help="File to write to; default: the screen.")] = None,
) -> None:
    """Print the config that `afield train` would use with the same options, every key with what it does."""
    from afield.app.asked import asked_layers, config_to_be
    from afield.config.written import commented
    from afield.files import write_whole

    layers = asked_layers(
        config, parsed_settings(settings, skip_bad), data=data, task=task, target=target,
        sources=parsed_names(sources), method=method, backbone=backbone, pretrained=pretrained, weights=weights,
        steps=steps, lr=lr, batch_size=batch_size, device=device, seed=seed,
    )  # fmt: skip
    text = commented(config_to_be(layers))
    if file is None:
        print(text, end="")
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, text)
