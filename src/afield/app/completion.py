"""What a shell offers when Tab is pressed. The shell waits for the answer, so nothing here may import torch."""

from collections.abc import Callable, Iterable


def method_names(incomplete: str) -> list[str]:
    """Methods."""
    from afield.config.catalogue import list_methods

    return [name for name in list_methods() if name.startswith(incomplete)]


def several_methods(incomplete: str) -> list[str]:
    """Methods behind a comma: the last name is completed, and those before it stay."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in method_names(last) if name not in before.split(",")]


def data_names(incomplete: str) -> list[str]:
    """Data sets; where none fits, the shell goes on to offer folders and files."""
    from afield.data.registry import list_data

    return [name for name in list_data() if name.startswith(incomplete)]


def protocol_names(incomplete: str) -> list[str]:
    """Protocols."""
    from afield.config.protocols import protocols

    return [name for name in protocols() if name.startswith(incomplete)]


def one_of(words: Iterable[str]) -> Callable[[str], list[str]]:
    """Words that are always the same."""

    def fitting(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return fitting
