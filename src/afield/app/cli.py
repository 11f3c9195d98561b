"""The command line. Errors a user can cause exit with 2 and one line on standard error; a bug shows its traceback."""

import errno
import json
import os
import sys
import warnings
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from afield import __version__
from afield.app.bench_command import bench as bench_command
from afield.app.compare_command import compare as compare_command
from afield.app.completion import data_names, method_names
from afield.app.config_command import config as config_command
from afield.app.demo_command import demo as demo_command
from afield.app.export_command import export as export_command
from afield.app.model_commands import evaluate as evaluate_command
from afield.app.model_commands import predict as predict_command
from afield.app.options import (
    Backbone,
    BatchSize,
    ConfigFile,
    Data,
    Device,
    LearningRate,
    MethodName,
    Overwrite,
    Pretrained,
    ReportedBy,
    Seed,
    Settings,
    SkipBad,
    Sources,
    Steps,
    Target,
    Task,
    Weights,
    name_of_method,
    parsed_names,
    parsed_settings,
)
from afield.app.report_commands import figure as figure_command
from afield.app.report_commands import report as report_command
from afield.app.screen import out
from afield.app.stopped import INTERRUPTED, Terminated, say_stopped, termination_raised
from afield.app.table_command import table as table_command
from afield.config.torchrun import leads, torchrun
from afield.errors import AfieldError, MissingMethodError, printable, unknown

# Commands import what they need when they run: torch takes seconds, and most commands do not need it.

app = typer.Typer(
    help="Train at home, work far afield: domain adaptation and generalization for image classification.",
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(
    help="Data sets: list them, look at them, download them.", invoke_without_command=True, rich_markup_mode=None
)
app.add_typer(data_app, name="data", epilog="Example: afield data show digits")

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The system's errors for a full disk; if the output was redirected to a file, they do not name it."""


def print_version(asked: bool) -> None:
    """What --version does."""
    if asked:
        print(f"afield {__version__}")
        raise typer.Exit()


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Show the help where no command is named."""
    if context.invoked_subcommand is None:
        print(context.get_help())


app.command("demo", epilog="Example: afield demo --out runs/demo")(demo_command)


@app.command(
    epilog="Example: afield train --data digits --task uda --target street --method far --steps 400 --out runs/x"
)
def train(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the run.")],
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
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped.")] = False,
    overwrite: Overwrite = False,
    selector: ReportedBy = "last",
    skip_bad: SkipBad = False,
    show_config: Annotated[bool, typer.Option("--show-config", help="Print all settings of the run first.")] = False,
) -> None:
    """Train a method on a task. The folder gets config, records, checkpoints and TensorBoard files."""
    method = name_of_method(method)
    from afield.app.show import run_table
    from afield.app.train import train as run_training

    run = run_training(
        data, task, target, method, steps, seed, folder, sources=parsed_names(sources), backbone=backbone,
        pretrained=pretrained, weights=weights, lr=lr, batch_size=batch_size, device=device, config=config,
        settings=parsed_settings(settings, skip_bad), resume=resume, overwrite=overwrite, selector=selector,
        show_config=show_config,
    )  # fmt: skip
    if leads():
        out.print(run_table(run))
        out.print(f"checkpoint: {run.checkpoint}")


app.command("compare", epilog="Example: afield compare photos/ --target camera4 --out runs/c")(compare_command)
app.command("config", epilog="Example: afield config --method far --data photos/ --out mine.toml")(config_command)
app.command("evaluate", epilog="Example: afield evaluate runs/x --domain street")(evaluate_command)
app.command("predict", epilog="Example: afield predict runs/x photos/ --out predictions.csv")(predict_command)
app.command("export", epilog="Example: afield export runs/x --format onnx --out model.onnx")(export_command)
app.command("report", epilog="Example: afield report runs/x --out page.html")(report_command)
app.command("figure", epilog="Example: afield figure tsne runs/x --out tsne.pdf")(figure_command)
app.command("bench", epilog="Example: afield bench plans/digits.toml --out runs/digits")(bench_command)
app.command("table", epilog="Example: afield table runs/digits --plan plans/digits.toml --compare far,baseline")(
    table_command
)


@app.command(epilog="Example: afield methods far")
def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Describe this method, with all its options.", show_default=False, autocompletion=method_names
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the methods: what each is and needs, its reference and file; or describe one, with all its options."""
    from afield.config.catalogue import describe_methods, find_entry

    if name is not None:
        from afield.app.method_page import as_text, as_values

        one = find_entry(str(name_of_method(name)))
        # A pipe has no width: there each option is one line, however long.
        print(json.dumps(as_values(one), indent=2) if as_json else as_text(one, out.width if out.is_terminal else None))
        return
    entries = describe_methods()
    if as_json:
        print(json.dumps(entries, indent=2))
        return
    from afield.app.method_page import as_list

    print(as_list(entries))


@data_app.callback()
def data(context: typer.Context) -> None:
    """List the data sets; `afield data show NAME` describes one.

    Data sets that are not part of afield are read from the folder in AFIELD_DATA (default: data).
    """
    from afield.data.registry import list_data

    if context.invoked_subcommand is None:
        for name in list_data():
            print(f"{name}    (domains and examples: afield data show {name})")


@data_app.command(epilog="Example: afield data show digits --out digits.png")
def show(
    name: Annotated[str, typer.Argument(help="Data set, folder or file.", autocompletion=data_names)],
    file: Annotated[
        Path | None, typer.Option("--out", help="Also write a contact sheet (PNG): 20 images per domain.")
    ] = None,
    skip_bad: SkipBad = False,
    settings: Settings = None,
) -> None:
    """Describe a data set: images per domain, split and class, image sizes, origin, and notes."""
    from afield.app.show import data_tables
    from afield.config.data import DataOptions
    from afield.config.layers import by_section, merge, parse_assignment
    from afield.config.options import validated
    from afield.data.contact_sheet import check_sheet, contact_sheet, save_sheet
    from afield.data.open import open_data

    if file:
        check_sheet(file)
    given = merge(*(by_section(parse_assignment(text)) for text in settings or []))["data"]
    opened = open_data(validated(DataOptions, "data", {"skip_bad": skip_bad, **given, "name": name}))
    if file:
        save_sheet(contact_sheet(opened), file)
    for table in data_tables(opened):
        out.print(table)
    for note in opened.notes:
        out.print(f"note: {printable(note)}")
    if file:
        out.print(f"contact sheet: {file}")


@data_app.command(epilog="Example: afield data download digit5")
def download(name: Annotated[str, typer.Argument(help="Data set.", autocompletion=data_names)]) -> None:
    """Download a data set into the folder in AFIELD_DATA (default: data), and say what must be added by hand."""
    from afield.data.digit5.download import download_digit5
    from afield.data.digit5.m3sda import LAYOUT, PAGE
    from afield.data.photographs.sets import SETS
    from afield.data.registry import check_data

    check_data(name)
    # These are all read from its files.
    if name not in ("digit5", "digit5-padded", "rotated-mnist", "rotated-mnist-1000"):
        by_hand = {each.name: (each.page, each.place) for each in SETS.values()} | {"digit5-m3sda": (PAGE, LAYOUT)}
        if name in by_hand:
            page, place = by_hand[name]
            raise AfieldError(f"'{name}' is to be downloaded by hand: see {page}; it is read from {place}")
        raise AfieldError(f"'{name}' needs no download; only digit5 does")
    for line in download_digit5():
        print(line)


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file name that is not text, or an ASCII terminal
    warnings.formatwarning = one_line
    try:
        if torchrun() and sys.argv[1:2] != ["train"]:
            raise AfieldError("torchrun starts several processes, which only `afield train` can use")
        with termination_raised():
            # With this name, completion and help of `python -m afield` are those of `afield`.
            code = app(prog_name="afield", standalone_mode=False) or 0
            sys.stdout.flush()  # here, where a disk that is full can still be named
        if code == INTERRUPTED:
            say_stopped("interrupted")
        sys.exit(code)
    except Terminated:
        say_stopped("terminated")
        raise
    except MissingMethodError as error:
        fail(error.for_command)
    except AfieldError as error:
        fail(str(error))
    except OSError as error:
        if error.filename is None and error.errno not in FULL:
            raise
        fail(f"{error.filename or 'cannot write'}: {error.strerror}")
    except Exception as error:
        message = usage_error(error)
        if message is None:
            raise
        fail(message)


def one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning without the place in the code that gave it, which says nothing to a user."""
    return f"afield: warning: {printable(' '.join(str(message).split()))}\n"


def usage_error(error: Exception) -> str | None:
    """The message for a wrong option or argument; None for other errors. Typer's own classes are not public."""
    if not hasattr(error, "format_message"):
        return None
    possibilities = getattr(error, "possibilities", None)
    if possibilities:
        return str(unknown("option", getattr(error, "option_name", ""), possibilities))
    return str(error.format_message())


def fail(message: str) -> None:
    """One line on standard error, and exit code 2."""
    which = "" if leads() else f" (process {os.environ['RANK']})"
    print(f"afield{which}: " + printable(" ".join(message.split())), file=sys.stderr)
    sys.exit(2)
