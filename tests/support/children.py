"""The processes that a process has started, by way of /proc."""

from pathlib import Path


def children(pid):
    """The processes that a process has started itself."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid, word):
    """Those of its children, and of theirs, whose command line has a word."""
    found = []
    for child in children(pid):
        try:
            if word in Path(f"/proc/{child}/cmdline").read_text("utf-8", errors="replace"):
                found.append(child)
            found += descendants(child, word)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
    return found
