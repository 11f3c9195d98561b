"""Where commands print tables."""

import os
from typing import Any

from rich.console import Console

# Names of domains, classes and rows may contain brackets and colons, which must not be read as markup.
PLAIN: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
WIDE = 160
if os.environ.get("COLUMNS") == "0":  # which some terminals report for an unknown width; rich would then print nothing
    del os.environ["COLUMNS"]
out = Console(soft_wrap=True, **PLAIN)


def wide_screen() -> Console:
    """The terminal; or, of a pipe, which has no width, one on which no table is cut to 80 columns."""
    return out if out.is_terminal else Console(width=WIDE, **PLAIN)
