"""The command `afield demo`."""

from pathlib import Path
from typing import Annotated

import typer

from afield.app.completion import data_names
from afield.app.options import (
    Backbone,
    BatchSize,
    Device,
    Overwrite,
    Pretrained,
    Settings,
    SkipBad,
    Steps,
    Weights,
    parsed_settings,
)
from afield.app.screen import out


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the runs and the picture.")] = Path("runs/demo"),
    photos: Annotated[
        str | None,
        typer.Option(
            metavar="DATA", help="Your images: DOMAIN/CLASS/*.jpg; default: digits.", autocompletion=data_names
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Domain to adapt to; default: street; with --photos, one without labels or else the last."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method, with seeds 0, 1, ...")] = 1,
    backbone: Backbone = None,
    pretrained: Pretrained = None,
    weights: Weights = None,
    steps: Steps = None,
    batch_size: BatchSize = None,
    device: Device = None,
    settings: Settings = None,
    skip_bad: SkipBad = False,
    overwrite: Overwrite = False,
) -> None:
    """Train the baseline and FAR on embedded digits or on your photos, and compare them on a domain without labels."""
    from afield.app.demo import run_demo
    from afield.app.demo_picture import picture

    result = run_demo(
        folder, target, seeds, photos=photos, overwrite=overwrite, settings=parsed_settings(settings, skip_bad),
        backbone=backbone, pretrained=pretrained, weights=weights, steps=steps, batch_size=batch_size, device=device,
    )  # fmt: skip
    out.print(result.table())
    file = folder / "predictions.png"
    picture(result, file)
    out.print(f"checkpoints: {folder}/*/last.ckpt   picture: {file}")
