"""What `afield methods` says about all methods, and with a NAME about one. Nothing here imports torch."""

import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from afield.config.catalogue import Entry
from afield.config.described import described, literal

RECIPE = "-paper"
"""The ending of a preset's name if it has the settings of a paper, or of its authors' code."""
NARROW = 40
"""The least width for a description beside its option; if there is less, it is put below."""


def as_list(entries: Sequence[dict[str, Any]]) -> str:
    """All methods, two lines each; then the presets, one line each: what they need is what their methods need."""
    width = max(len(entry["name"]) for entry in entries) + 2
    lines: list[str] = []
    presets: list[str] = []
    recipes: list[str] = []
    for entry in entries:
        line = f"{entry['name']:{width}}{entry['summary']}"
        if entry["sets"]:
            (recipes if entry["name"].endswith(RECIPE) else presets).append(line)
            continue
        needs = [f"{', '.join(entry['tasks'])}; {entry['min_sources']} or more sources"] if entry["tasks"] else []
        lines += [line, f"{'':{width}}{'; '.join([*needs, *filter(None, (entry['reference'], entry['file']))])}"]
    lines += ["", "Presets, each a method with some options set:", *presets]
    return "\n".join([*lines, "", "Recipes of papers and authors, which are presets too:", *recipes])


def as_values(entry: Entry) -> dict[str, Any]:
    """The method and its options, for JSON. An option that the method's preset fixes has no other value."""
    fixed = entry.fixed.get("method", {})
    options = [
        {**option.as_dict(), "default": fixed.get(option.name, option.default), "fixed": option.name in fixed}
        for option in described(entry.card.options)
    ]
    return {**entry.as_dict(), "options": options}


def as_text(entry: Entry, width: int | None) -> str:
    """The same to read, in lines of at most `width` characters; None: however long."""
    about = as_values(entry)
    facts = [
        ("reference", about["reference"]),
        ("file", about["file"]),
        ("tasks", ", ".join(about["tasks"])),
        ("sources", f"{about['min_sources']} or more"),
    ]
    if about["sets"]:
        facts.append(("sets", ", ".join(f"{key}={literal(value)}" for key, value in about["sets"].items())))
    options = [
        (
            " = ".join([value["name"], *([literal(value["default"])] if value["default"] is not None else [])]),
            option.sentence(f"fixed by {entry.name}" if value["fixed"] else ""),
        )
        for option, value in zip(described(entry.card.options), about["options"], strict=True)
    ]
    title = "options and defaults; --set method.NAME=VALUE sets one:" if options else "It has no options."
    lines = [f"{entry.name}: {entry.summary}", *columns(facts, width), "", title, *columns(options, width)]
    return "\n".join(lines)


def columns(rows: Sequence[tuple[str, str]], width: int | None) -> list[str]:
    """Lines of two columns, the second wrapped; below the first where the lines are too short for both."""
    indent = max((len(left) for left, _ in rows), default=0) + 4
    below = width is not None and width - indent < NARROW
    lines = []
    for left, right in rows:
        start = " " * 6 if below else f"  {left:{indent - 2}}"
        rest = " " * len(start)
        lines += [f"  {left}"] if below else []
        lines += textwrap.wrap(
            right, width or sys.maxsize, initial_indent=start, subsequent_indent=rest, break_on_hyphens=False
        ) or ([] if below else [start.rstrip()])
    return lines
