"""A config as a file to read and to edit: every key, under a comment that says what it does and what it may be."""

import textwrap
from typing import Any

from afield.config.catalogue import Entry, find_entry
from afield.config.described import Described, described, literal
from afield.config.layers import SECTIONS, Config

WIDTH = 110
HEAD = """\
The settings of a run, all of them; `afield train --config FILE` reads this file. A key that is left out takes
its value from the presets of the data and the method, or else its default.
"""


def commented(config: Config) -> str:
    """The config as TOML with a comment above each key; read again, it resolves to the same config."""
    entry = find_entry(config.method_name)
    return "\n".join([*comment(HEAD), *(line for section in SECTIONS for line in _section(config, entry, section)), ""])


def _section(config: Config, entry: Entry, section: str) -> list[str]:
    options, values = getattr(config, section), config.as_dict()[section]
    fixed = entry.fixed.get("method", {}) if section == "method" else {}
    lines = ["", *comment(entry.summary if section == "method" else type(options).__doc__ or ""), f"[{section}]"]
    if section == "method":
        lines += ["", *comment("the method's name; see `afield methods`"), f"name = {literal(config.method_name)}"]
    for option in described(type(options)):
        lines += _key(option, values.get(option.name), f"fixed by {entry.name}" if option.name in fixed else "")
    return lines


def _key(option: Described, value: Any, remark: str) -> list[str]:
    """A key under its comment. What has no value cannot be written in TOML, so that it is a comment itself."""
    differs = option.default is not None and value != option.default
    text = option.sentence(f"default: {literal(option.default)}" if differs else "", remark)
    written = f"# {option.name} = ..." if value is None else f"{option.name} = {literal(value)}"
    return ["", *comment(text), written]


def comment(text: str) -> list[str]:
    """The lines of a comment."""
    return [f"# {line}" for line in textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)]
