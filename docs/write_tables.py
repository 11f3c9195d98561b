"""Write the tables of README and docs anew, each by the command that stands above it.

    python docs/write_tables.py

A table stands between `<!-- written by: COMMAND -->` and `<!-- end -->`. The tests hold each to its command.
"""

import contextlib
import io
import os
import re
import runpy
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
WRITTEN = re.compile(r"<!-- written by: ([^\n]*) -->\n(.*?)\n?<!-- end -->", re.DOTALL)


def output_of(command: str) -> str:
    """What a command prints, `afield ...` or `python FILE ...`, run in this process from the repository's root."""
    program, *arguments = shlex.split(command)
    before, path, folder, printed = sys.argv, list(sys.path), Path.cwd(), io.StringIO()
    os.chdir(ROOT)
    try:
        with contextlib.redirect_stdout(printed):
            if program == "python":
                sys.argv = arguments
                sys.path.insert(0, str(ROOT / Path(arguments[0]).parent))  # as python does, and run_path does not
                runpy.run_path(arguments[0], run_name="__main__")
            else:
                from afield.app.cli import main

                sys.argv = [program, *arguments]
                main()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{command}: {end.code}") from end
    finally:
        sys.argv = before
        sys.path[:] = path
        os.chdir(folder)
    return printed.getvalue().strip()


def rewritten(text: str) -> str:
    """A document with its tables as their commands print them now."""
    return WRITTEN.sub(lambda found: f"<!-- written by: {found[1]} -->\n{output_of(found[1])}\n<!-- end -->", text)


if __name__ == "__main__":
    for file in FILES:
        text = file.read_text("utf-8")
        file.write_text(rewritten(text), "utf-8")
        print(f"{file.relative_to(ROOT)}: {len(WRITTEN.findall(text))} tables")
