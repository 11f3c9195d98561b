"""Files that are written whole or not at all."""

from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write text so that a kill leaves the old file or the new one, never half of one."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        # A file name that is no text, which a table of predictions may hold, is written escaped.
        temporary.write_text(text, "utf-8", errors="backslashreplace")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
