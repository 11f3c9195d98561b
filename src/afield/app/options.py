"""The options that several commands share, and how their values are parsed."""

from pathlib import Path
from typing import Annotated, Any

import typer

from afield.app.completion import data_names, method_names, one_of
from afield.config.selectors import LABEL_FREE
from afield.errors import AfieldError

Data = Annotated[
    str | None,
    typer.Option(help="Data set, folder or file; see `afield data`; default: digits.", autocompletion=data_names),
]
Task = Annotated[
    str | None,
    typer.Option(
        help="uda (trains on target images without labels; default) or dg (without them).",
        autocompletion=one_of(("uda", "dg")),
    ),
]
Target = Annotated[str | None, typer.Option(help="Domain to adapt to.")]
Sources = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME,NAME", help="Labelled domains; may be repeated; default: all but the target."),
]
MethodName = Annotated[
    str | None,
    typer.Option(
        help="Method; see `afield methods`; default: far. Your own: ./mine.py or package.module:Name.",
        autocompletion=method_names,
    ),
]
CheckpointFile = Annotated[Path, typer.Argument(help="A run's folder, such as runs/x, or a checkpoint of it.")]
MethodAgain = Annotated[
    str | None,
    typer.Option("--method", metavar="FILE", help="Where its method is, if not part of afield: ./mine.py or a.b:Name."),
]
Backbone = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="digit, or a timm model such as resnet50; default: what suits the images."),
]
Pretrained = Annotated[
    bool | None,
    typer.Option(
        "--pretrained/--no-pretrained", help="Start the backbone from weights that timm downloads, or do not."
    ),
]
Weights = Annotated[str | None, typer.Option(metavar="FILE", help="Start the backbone from the weights in this file.")]
Steps = Annotated[int | None, typer.Option(help="Optimiser steps; default: what suits the data set.")]
LearningRate = Annotated[float | None, typer.Option("--lr", help="Learning rate; default: what suits the data set.")]
BatchSize = Annotated[int | None, typer.Option(help="Images per domain in a batch; default: what suits the data set.")]
Device = Annotated[
    str | None, typer.Option(metavar="auto|cpu|cuda", help="Where to train; default: auto, a GPU where there is one.")
]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random; default: 0.")]
ConfigFile = Annotated[Path | None, typer.Option(help="TOML file of settings; options and --set override it.")]
ReportedBy = Annotated[
    str,
    typer.Option(
        "--selector",
        help=f"Which evaluation of a run counts: {', '.join(LABEL_FREE)}; see docs/choosing.md.",
        autocompletion=one_of(LABEL_FREE),
    ),
]
ChosenBy = Annotated[
    str | None,
    typer.Option(
        "--selector",
        help="Use the checkpoint that this selector chose, of a run's folder; default: last.",
        autocompletion=one_of(LABEL_FREE),
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Set one key of the config; may be repeated."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a run that is already in the output folder.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out unreadable images and count them.")]


def name_of_method(given: str | None) -> str | None:
    """The name of the method given; one from outside is imported now, so that a mistake in it is found before torch."""
    from afield.config.outside import import_method, is_reference

    return import_method(given) if given and is_reference(given) else given


def parsed_names(texts: list[str] | None, option: str = "--sources") -> list[str] | None:
    """The names in all of an option that may be repeated, and takes several with commas; None: not given."""
    names = [name.strip() for text in texts or () for name in text.split(",")]
    if "" in names:
        raise AfieldError(f"{option} takes names such as mnist,uci, not '{','.join(names)}'")
    return names or None


def parsed_settings(texts: list[str] | None, skip_bad: bool) -> dict[str, Any]:
    """The keys in all of --set, and what --skip-bad stands for."""
    from afield.config.layers import parse_assignment

    settings: dict[str, Any] = {"data.skip_bad": True} if skip_bad else {}
    for text in texts or ():
        settings |= parse_assignment(text)
    return settings
