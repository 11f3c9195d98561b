"""The command line. Errors a user can cause exit with 2 and one line on standard error; a bug shows its traceback."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from afield import __version__
from afield.errors import AfieldError, unknown

if TYPE_CHECKING:
    from afield.results.run import Run

# Commands import what they need when they run: torch takes seconds, and help should not wait for it.

app = typer.Typer(
    help="Train at home, work far afield: domain adaptation and generalization for image classification.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(
    help="Data sets: list them, look at them, download them.", invoke_without_command=True, rich_markup_mode=None
)
app.add_typer(data_app, name="data", epilog="Example: afield data show digits")
out = Console(soft_wrap=True)
INTERRUPTED = 130
WIDE = 160
INTERRUPTED_HINTS = {
    "train": "--resume continues the run",
    "bench": "what is recorded stays, and the same command goes on",
}

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a run that is already in the output folder.")]
Seed = Annotated[int | None, typer.Option(help="Everything random follows from it; default: 0.")]
CheckpointFile = Annotated[Path, typer.Argument(help="A run's folder, such as runs/x, or a checkpoint of it.")]


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


@app.command(epilog="Example: afield demo --out runs/demo")
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the runs and the picture.")] = Path("runs/demo"),
    target: Annotated[str, typer.Option(help="The domain to adapt to.")] = "street",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method, with seeds 0, 1, ...")] = 1,
    overwrite: Overwrite = False,
) -> None:
    """Train the baseline and FAR on the embedded digits and compare them on a domain without labels."""
    from afield.app.demo import picture, run_demo

    result = run_demo(folder, target, seeds, overwrite=overwrite)
    out.print(result.table())
    picture(result, folder / "predictions.png")
    out.print(f"checkpoints: {folder}/*/last.ckpt   picture: {folder / 'predictions.png'}", highlight=False)


@app.command(
    epilog="Example: afield train --data digits --task uda --target street --method far --steps 400 --out runs/x"
)
def train(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the run.")],
    data: Annotated[str | None, typer.Option(help="Data set; see `afield data`; default: digits.")] = None,
    task: Annotated[str | None, typer.Option(help="uda (target images without labels; default) or dg (none).")] = None,
    target: Annotated[str | None, typer.Option(help="Domain to work in.")] = None,
    sources: Annotated[str | None, typer.Option(help="Labelled domains, comma-separated; default: all others.")] = None,
    method: Annotated[str | None, typer.Option(help="Method; see `afield methods`; default: far.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps; default: what suits the data set.")] = None,
    seed: Seed = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings; options and --set rank above it.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Set one key of the config.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a killed run stopped.")] = False,
    overwrite: Overwrite = False,
    selector: Annotated[str, typer.Option(help="Which evaluation to report: last or source-val.")] = "last",
) -> None:
    """Train a method on a task. The folder gets config, records, checkpoints and TensorBoard files."""
    from afield.app.train import train as run_training
    from afield.config.layers import parse_assignment

    names = [name.strip() for name in sources.split(",")] if sources is not None else None
    assignments: dict[str, Any] = {}
    for text in settings or []:
        assignments |= parse_assignment(text)
    run = run_training(
        data, task, target, method, steps, seed, folder, sources=names, config=config, settings=assignments,
        resume=resume, overwrite=overwrite, selector=selector, show_config=True,
    )  # fmt: skip
    show_run(run)


def show_run(run: "Run") -> None:
    """The result of one run as a table."""
    table = Table(title=f"{run.folder}: step {run.step}, {run.seconds:.0f} s, selector {run.selector}")
    for column in ("domain", "role", "accuracy", "test images"):
        table.add_column(column, justify="left" if column in ("domain", "role") else "right")
    for role, results in (("source", run.evaluation["sources"]), ("target", run.evaluation["target"])):
        for domain, result in results.items():
            table.add_row(domain, role, percent(result["accuracy"]), str(result["n"]))
    out.print(table)
    out.print(f"checkpoint: {run.checkpoint}", highlight=False)


def percent(accuracy: float | None) -> str:
    """An accuracy as tables show it; a domain without labels has none."""
    return "-" if accuracy is None else f"{accuracy:.1%}"


@app.command(epilog="Example: afield evaluate runs/x --domain street")
def evaluate(
    checkpoint: CheckpointFile,
    data: Annotated[str | None, typer.Option(help="Data set; default: the one it was trained on.")] = None,
    domain: Annotated[list[str] | None, typer.Option(help="Domain, may be repeated; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a checkpoint's accuracy on the test images of domains."""
    from afield.app.evaluate import evaluate_checkpoint

    results = evaluate_checkpoint(checkpoint, data, domain)
    if as_json:
        print(json.dumps(results))
        return
    table = Table(title=f"{checkpoint} on {data}" if data else str(checkpoint))
    for column in ("domain", "accuracy", "test images"):
        table.add_column(column, justify="left" if column == "domain" else "right")
    for name, result in results.items():
        table.add_row(name, percent(result["accuracy"]), str(result["n"]))
    out.print(table)


@app.command(epilog="Example: afield predict runs/x photos/ --out predictions.csv")
def predict(
    checkpoint: CheckpointFile,
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders to search for them.")],
    file: Annotated[
        Path | None, typer.Option("--out", help="A .csv or .json file; default: CSV to the screen.")
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out unreadable images and count them.")] = False,
) -> None:
    """Classify images: file, class and probability, as CSV or JSON."""
    from afield.app.predict import check_output, predict_files, write_predictions

    check_output(file)
    predictions, skipped = predict_files(checkpoint, images, skip_bad)
    write_predictions(predictions, file)
    if skipped:
        print(f"skipped {len(skipped)} unreadable: {', '.join(map(str, skipped))}", file=sys.stderr)


@app.command(epilog="Example: afield bench plans/digits-dg.toml --out results/digits")
def bench(
    plan: Annotated[Path, typer.Argument(help="A TOML file: protocol, methods, seeds.")],
    folder: Annotated[Path, typer.Option("--out", help="Folder for the records; several plans may share one.")],
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; default: 2 for each GPU, or 1 without one.")
    ] = None,
) -> None:
    """Run the methods, targets and seeds of a plan that are not recorded yet, and record them."""
    from afield.bench.run import run_bench

    result = run_bench(plan, folder, workers)
    print(f"{result.recorded} of {result.total} runs are recorded; afield table {folder} --plan {plan} shows them")
    for run, reason in result.failures.items():
        print(f"failed: {run}: {reason}", file=sys.stderr)
    if result.failures:
        raise typer.Exit(1)


@app.command(epilog="Example: afield table results/digits --plan plans/digits-dg.toml --compare far,baseline")
def table(
    records: Annotated[list[Path], typer.Argument(help="Files of records, or folders that hold one.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    selector: Annotated[str, typer.Option(help="Which evaluation of a run counts: last or source-val.")] = "last",
    protocol: Annotated[str | None, typer.Option(help="The protocol, where the records have several.")] = None,
    plan: Annotated[Path | None, typer.Option(help="Show the runs of this plan alone, with its caption.")] = None,
    compare: Annotated[
        list[str] | None, typer.Option(metavar="ROW,ROW", help="Set two rows against each other, seed by seed.")
    ] = None,
) -> None:
    """Show mean, standard deviation and number of runs by method and target, beside the published figures."""
    from afield.results.show import as_markdown, as_text, as_values, remarks
    from afield.results.table import make_table

    if as_json and (markdown or compare):
        raise AfieldError("--json goes with neither --markdown nor --compare")
    made = make_table(records, selector, protocol, plan)
    if as_json:
        print(json.dumps(as_values(made)))
        return
    comparisons = [made.compare(*pair_of_rows(text, [row.name for row in made.rows])) for text in compare or []]
    if markdown:
        print(as_markdown(made, comparisons))
        return
    # A pipe has no width; a table cut to fit one would be of no use.
    screen = out if out.is_terminal else Console(width=WIDE)
    screen.print(as_text(made))
    for remark in remarks(made, comparisons):
        screen.print(remark, highlight=False, markup=False)


def pair_of_rows(text: str, rows: list[str]) -> tuple[str, str]:
    """The two rows of one --compare; a comma may also be part of a row's name."""
    words = text.split(",")
    pairs = [(",".join(words[:i]).strip(), ",".join(words[i:]).strip()) for i in range(1, len(words))]
    if not pairs:
        raise AfieldError(f"--compare takes two rows, such as far,baseline, not '{text}'")
    return next((pair for pair in pairs if set(pair) <= set(rows)), pairs[0])


@app.command(epilog="Example: afield methods --json")
def methods(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the methods: what each is, what it needs, where it comes from."""
    from afield.config.catalogue import find_entry, list_methods

    entries = [find_entry(name).as_dict() for name in list_methods()]
    if as_json:
        print(json.dumps(entries, indent=2))
        return
    width = max(len(entry["name"]) for entry in entries) + 2
    for entry in entries:
        needs = f"{', '.join(entry['tasks'])}; {entry['min_sources']} or more sources"
        print(f"{entry['name']:{width}}{entry['summary']}")
        print(f"{'':{width}}{needs}; {entry['reference']}; {entry['file']}")


@data_app.callback()
def data(context: typer.Context) -> None:
    """List the data sets; `afield data show NAME` looks at one.

    Those that are not embedded are read from the folder that AFIELD_DATA names (default: data).
    """
    from afield.data.registry import list_data

    if context.invoked_subcommand is None:
        for name in list_data():
            print(f"{name}    (domains and examples: afield data show {name})")


@data_app.command(epilog="Example: afield data show digits --out digits.png")
def show(
    name: Annotated[str, typer.Argument(help="Data set.")],
    file: Annotated[Path | None, typer.Option("--out", help="The PNG to write; default: NAME.png.")] = None,
) -> None:
    """Write a contact sheet (20 images a domain) and print counts, classes and origin of each domain."""
    from afield.data.contact_sheet import contact_sheet
    from afield.data.registry import load_data

    path = file or Path(f"{name}.png")
    if path.suffix.lower() != ".png":
        raise AfieldError(f"a contact sheet is a .png file, not {path}")
    domains = load_data(name)
    table = Table(title=f"{name}: {len(domains.classes)} classes ({', '.join(domains.classes)})")
    for column in ("domain", "train", "test", "origin"):
        table.add_column(column, justify="right" if column in ("train", "test") else "left")
    for domain in domains.domains.values():
        table.add_row(domain.name, str(len(domain.train)), str(len(domain.test)), domain.origin)
    contact_sheet(domains).save(path)
    out.print(table)
    out.print(f"contact sheet: {path}", highlight=False)


@data_app.command(epilog="Example: afield data download digit5")
def download(name: Annotated[str, typer.Argument(help="Data set.")]) -> None:
    """Fetch what can be fetched into the folder that AFIELD_DATA names (default: data), and say what is missing."""
    from afield.data.digit5.download import download_digit5
    from afield.data.registry import check_data

    check_data(name)
    if name != "digit5":
        raise AfieldError(f"'{name}' needs no download; digit5 does")
    for line in download_digit5():
        print(line)


def main() -> None:
    """Run the command line."""
    # Before torch is loaded: on a busy machine, threads that wait by spinning make each other six times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        code = app(standalone_mode=False) or 0
        if code == INTERRUPTED:
            hints = [hint for command, hint in INTERRUPTED_HINTS.items() if sys.argv[1:2] == [command]]
            print("; ".join(["afield: interrupted", *hints]), file=sys.stderr)
        sys.exit(code)
    except AfieldError as error:
        fail(str(error))
    except OSError as error:
        if error.filename is None:
            raise
        fail(f"{error.filename}: {error.strerror}")
    except Exception as error:
        message = usage_error(error)
        if message is None:
            raise
        fail(message)


def usage_error(error: Exception) -> str | None:
    """The line for a wrong option or argument, which typer raises in a class of its own; None for anything else."""
    if not hasattr(error, "format_message"):
        return None
    possibilities = getattr(error, "possibilities", None)
    if possibilities:
        return str(unknown("option", getattr(error, "option_name", ""), possibilities))
    return str(error.format_message())


def fail(message: str) -> None:
    """One line on standard error, and exit code 2."""
    print("afield: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(2)
