"""A table for a paper: LaTeX with booktabs, the best figure of each column bold and the second underlined."""

from collections.abc import Iterable, Sequence

from afield.results.rows import Table
from afield.results.show import average_of, beside, headers
from afield.results.summary import Summary

SPECIAL = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "±": r"$\pm$", "→": r"$\rightarrow$", "<": r"$<$", ">": r"$>$",
}  # fmt: skip
MARKS = (r"\textbf{{{}}}", r"\underline{{{}}}")
DASH = "--"
LEGEND = "Bold: the best of our figures in a column; underlined: the second best."


def as_latex(table: Table, remarks: Sequence[str] = ()) -> str:
    """A float with the notes as its caption; others' figures are in italics and take no part in the ranking."""
    columns = [[row.targets[name] for row in table.rows] for name in table.columns]
    columns += [[row.average for row in table.rows] for _ in average_of(table)]
    lines = [r"\toprule", line_of(map(escaped, headers(table))), r"\midrule"]
    for row, *own in zip(table.rows, *map(column_cells, columns), strict=True):
        lines.append(line_of([protected(row.name), *own]))
        lines += [line_of([rf"\quad {italic(name)}", *map(italic, others)]) for name, others in beside(table, row)]
    body = "\n".join(f"    {line}" for line in [*lines, r"\bottomrule"])
    return rf"""% needs \usepackage{{booktabs}}
\begin{{table}}
  \centering
  \caption{{{" ".join(map(escaped, [*remarks, *table.notes, LEGEND]))}}}
  \begin{{tabular}}{{l{"r" * len(columns)}}}
{body}
  \end{{tabular}}
\end{{table}}"""


def line_of(cells: Iterable[str]) -> str:
    """One line of a tabular."""
    return " & ".join(cells) + r" \\"


def column_cells(column: Sequence[Summary]) -> list[str]:
    """Mean, deviation and number of runs. Means are ranked as they are printed, so that equal ones look alike."""
    means = [None if summary.mean is None else f"{summary.mean:.1f}" for summary in column]
    there = [mean for mean in means if mean is not None]
    best = sorted(set(there), key=float, reverse=True) if len(there) > 1 else []
    marks = dict(zip(best, MARKS, strict=False))
    return [
        DASH if mean is None else marks.get(mean, "{}").format(mean) + escaped(str(summary).removeprefix(mean))
        for mean, summary in zip(means, column, strict=True)
    ]


def italic(text: str) -> str:
    """A figure of others, in italics."""
    return DASH if text == "-" else rf"\textit{{{escaped(text)}}}"


def protected(name: str) -> str:
    """A row's name: a bracket or a star at its beginning would belong to the end of the line before."""
    return f"{{{escaped(name)}}}" if name[:1] in ("[", "*") else escaped(name)


def escaped(text: str) -> str:
    """Text with LaTeX's own characters escaped, and what stands between backticks in typewriter type."""
    parts = ["".join(SPECIAL.get(letter, letter) for letter in part) for part in text.split("`")]
    if len(parts) % 2 == 0:  # a backtick without a partner
        return "`".join(parts)
    return "".join(rf"\texttt{{{part}}}" if number % 2 else part for number, part in enumerate(parts))
