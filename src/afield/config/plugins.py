"""Methods of installed packages: their names are known without importing anything, by the entry points of a group.

In a package's pyproject.toml:

    [project.entry-points."afield.methods"]
    mean-matching = "package.module:MeanMatching"
"""

import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions

from afield.config.outside import import_from_module, is_reference
from afield.errors import AfieldError

GROUP = "afield.methods"


@dataclass(frozen=True)
class Plugin:
    """A method of an installed package, not imported yet."""

    name: str
    value: str
    """Where it is, such as package.module:Name."""
    package: str


def plugins() -> dict[str, Plugin]:
    """The methods of installed packages by name; of packages with the same name for a method, the first on the path."""
    found = _on_path(tuple(sys.path))
    return {plugin.name: plugin for plugin in reversed(found)}


@cache
def _on_path(path: tuple[str, ...]) -> tuple[Plugin, ...]:
    found: dict[str, list[Plugin]] = {}
    for distribution in distributions(path=list(path)):
        try:
            everything = distribution.entry_points
            entries = [entry for entry in everything if entry.group == GROUP and not is_reference(entry.name)]
            if entries:
                package = distribution.metadata["Name"]
                found.setdefault(package, [Plugin(entry.name, entry.value, package) for entry in entries])
        except Exception:
            continue  # one package whose description is broken does not break the others
    return tuple(plugin for of_package in found.values() for plugin in of_package)


def import_plugin(plugin: Plugin) -> None:
    """Import an installed package's method, so that it registers itself under the name that the package promised."""
    packages = sorted(other.package for other in _on_path(tuple(sys.path)) if other.name == plugin.name)
    if len(packages) > 1:
        raise AfieldError(
            f"method '{plugin.name}' is in several packages: {', '.join(packages)}; name one, such as {plugin.value}"
        )
    module, _, attribute = plugin.value.partition("[")[0].partition(":")
    try:
        name = import_from_module(module.strip(), attribute.strip())
    except AfieldError as error:
        raise AfieldError(f"method '{plugin.name}' of the package {plugin.package}: {error}") from error
    if name != plugin.name:
        raise AfieldError(
            f"the package {plugin.package} names its method '{plugin.name}', but registers it as '{name}'"
        )
