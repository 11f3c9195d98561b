"""afield: train at home, work far afield.

Domain adaptation and generalization for image classification, with Feature Alignment and Restoration at its heart.

The public face is the names in `__all__`; everything else is internal.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from afield.app.estimator import Classifier
    from afield.app.model import Model, load
    from afield.app.train import train
    from afield.bench.run import run_bench
    from afield.config.catalogue import list_methods
    from afield.config.options import MethodOptions
    from afield.data.arrays import from_arrays
    from afield.data.batches import Batch
    from afield.data.domain import Domain, DomainSet, Split
    from afield.data.registry import list_data, register_data
    from afield.errors import AfieldError
    from afield.methods.create import create_method
    from afield.methods.method import Learning, Losses, Method, Shape
    from afield.methods.registry import register_method
    from afield.results.run import Run
    from afield.training.callbacks import Callback

# OpenMP reads it when torch is first imported. On a busy machine, threads that wait by spinning slow each other down
# several times; so afield is best imported before torch.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

__version__ = "0.2.0"
__all__ = [
    "AfieldError",
    "Batch",
    "Callback",
    "Classifier",
    "Domain",
    "DomainSet",
    "Learning",
    "Losses",
    "Method",
    "MethodOptions",
    "Model",
    "Run",
    "Shape",
    "Split",
    "create_method",
    "from_arrays",
    "list_data",
    "list_methods",
    "load",
    "register_data",
    "register_method",
    "run_bench",
    "train",
]

_HOMES = {
    "AfieldError": "errors",
    "Batch": "data.batches",
    "Callback": "training.callbacks",
    "Classifier": "app.estimator",
    "Domain": "data.domain",
    "DomainSet": "data.domain",
    "Learning": "methods.method",
    "Losses": "methods.method",
    "Method": "methods.method",
    "MethodOptions": "config.options",
    "Model": "app.model",
    "Run": "results.run",
    "Shape": "methods.method",
    "Split": "data.domain",
    "create_method": "methods.create",
    "from_arrays": "data.arrays",
    "list_data": "data.registry",
    "list_methods": "config.catalogue",
    "load": "app.model",
    "register_data": "data.registry",
    "register_method": "methods.registry",
    "run_bench": "bench.run",
    "train": "app.train",
}


def __getattr__(name: str) -> Any:
    # On first use: torch takes seconds to import, and `afield --help` should not.
    if name not in _HOMES:
        raise AttributeError(f"module 'afield' has no attribute '{name}'")
    return getattr(import_module(f"afield.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
