"""One file per method. Importing this package registers them all."""

from importlib import import_module
from pkgutil import iter_modules

from afield.config.options import MethodOptions
from afield.methods.method import Inspection, Learning, Losses, Method, Shape
from afield.methods.registry import find_method, register_method, registered_methods

# Every file beside this one may register methods, so that adding a method is adding a file.
for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Inspection",
    "Learning",
    "Losses",
    "Method",
    "MethodOptions",
    "Shape",
    "find_method",
    "register_method",
    "registered_methods",
]
