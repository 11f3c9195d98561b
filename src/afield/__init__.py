"""afield: train at home, work far afield.

Domain adaptation and generalization for image classification, with Feature Alignment and Restoration at its heart.

The public face is the names in `__all__`; everything else is internal.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from afield.catalogue import create_method, list_methods
    from afield.domains import list_data
    from afield.errors import AfieldError
    from afield.inference import Model, load
    from afield.run import Run, train

__version__ = "0.1.0"
__all__ = ["AfieldError", "Model", "Run", "create_method", "list_data", "list_methods", "load", "train"]

_HOMES = {
    "AfieldError": "errors",
    "Model": "inference",
    "Run": "run",
    "create_method": "catalogue",
    "list_data": "domains",
    "list_methods": "catalogue",
    "load": "inference",
    "train": "run",
}


def __getattr__(name: str) -> Any:
    # On first use: torch takes seconds to import, and `afield --help` should not.
    if name not in _HOMES:
        raise AttributeError(f"module 'afield' has no attribute '{name}'")
    return getattr(import_module(f"afield.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
