"""The command `afield table`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from afield.app.completion import protocol_names
from afield.app.options import ReportedBy
from afield.app.screen import wide_screen
from afield.errors import AfieldError


def table(
    records: Annotated[list[Path], typer.Argument(help="Files of records, or folders with one.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX, with the best figures marked.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, one line per figure.")] = False,
    selector: ReportedBy = "last",
    protocol: Annotated[
        str | None,
        typer.Option(help="The protocol, where the records have several.", autocompletion=protocol_names),
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="Show only the runs of this plan, with its caption.")] = None,
    row: Annotated[
        list[str] | None, typer.Option(metavar="ROW", help="Show only this row; may be repeated; default: all.")
    ] = None,
    compare: Annotated[
        list[str] | None, typer.Option(metavar="ROW,ROW", help="Compare two rows, seed by seed; may be repeated.")
    ] = None,
    test: Annotated[
        bool, typer.Option("--test", help="Test whether the compared rows may differ by chance alone.")
    ] = False,
) -> None:
    """Show mean, standard deviation and number of runs per method and target, beside the published figures."""
    from afield.results.comparison import compare as compare_rows
    from afield.results.comparison import comparison_values, remarks_on
    from afield.results.latex import as_latex
    from afield.results.long_form import as_csv
    from afield.results.show import as_markdown, as_text, as_values
    from afield.results.table import make_table

    check_forms({"--json": as_json, "--markdown": markdown, "--latex": latex, "--csv": csv}, compare, test)
    whole = make_table(records, selector, protocol, plan)
    made = whole.only(row) if row else whole
    pairs = [pair_of_rows(text, [each.name for each in whole.rows]) for text in compare or ()]
    comparisons = [compare_rows(whole, *pair) for pair in pairs]
    if as_json:
        compared = {"comparisons": [comparison_values(one, test) for one in comparisons]} if compare else {}
        print(json.dumps({**as_values(made), **compared}))
        return
    remarks = remarks_on(whole, comparisons, test)
    if csv:
        print(as_csv(made), end="")
    elif markdown or latex:
        print((as_markdown if markdown else as_latex)(made, remarks))
    else:
        screen = wide_screen()
        screen.print(as_text(made))
        for remark in (*remarks, *made.notes):
            screen.print(remark)


def check_forms(forms: dict[str, bool], compare: list[str] | None, test: bool) -> None:
    """Raise if the options contradict each other."""
    asked = [name for name, wanted in forms.items() if wanted]
    if len(asked) > 1:
        raise AfieldError(f"{' and '.join(asked)} cannot be combined: a table is printed in one form")
    if compare and "--csv" in asked:
        raise AfieldError("--csv cannot show what --compare computes; --json can")
    if test and not compare:
        raise AfieldError("--test tests what --compare compares, such as --compare far,baseline --test")


def pair_of_rows(text: str, rows: list[str]) -> tuple[str, str]:
    """The two rows in one --compare; a row's name may contain a comma."""
    words = text.split(",")
    pairs = [(",".join(words[:i]).strip(), ",".join(words[i:]).strip()) for i in range(1, len(words))]
    if not pairs:
        raise AfieldError(f"--compare takes two rows, such as far,baseline, not '{text}'")
    return next((pair for pair in pairs if set(pair) <= set(rows)), pairs[0])
