"""A card says what a method is and what it needs: name, tasks, sources, options.

The cards of the package's own methods are read from the text of their files, because importing a method imports torch,
which takes seconds. Of such a file only the classes of options are executed: they are plain pydantic. A method that is
registered at run time adds its card then.
"""

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Any

from afield.config.options import MethodOptions

# What a class of options may import; anything else might import torch.
LIGHT = ("typing", "collections", "enum", "math", "functools", "pydantic", "afield.config")
FILE_MODULE = "afield_file_"
"""The beginning of the module names under which files given by path are executed."""
MAIN = ("__main__", "__mp_main__")
"""A script or a notebook, here and in the processes that it starts."""


@dataclass(frozen=True)
class Origin:
    """Where the class of a method that is not part of afield is defined."""

    module: str
    name: str
    """The class's name in that module."""
    file: str = ""
    """The module's file; empty for a notebook."""

    @property
    def is_file(self) -> bool:
        """Whether the user named the file itself."""
        return self.module.startswith(FILE_MODULE)

    @property
    def place(self) -> str:
        """The file or, where there is none, the module: only from there may the same name be registered again."""
        return str(Path(self.file).resolve()) if self.file else self.module

    @property
    def shown(self) -> str:
        """The file's or module's name, without folders: a record is read on other machines."""
        return PurePath(self.file).name if self.file and (self.is_file or self.module in MAIN) else self.module

    def __str__(self) -> str:
        return self.shown if self.shown != self.module else f"{self.module}:{self.name}"


@dataclass(frozen=True)
class Card:
    """What a table and a config need to know about a method."""

    name: str
    summary: str
    reference: str
    file: str
    needs_target: bool
    min_sources: int
    options: type[MethodOptions]
    origin: Origin | None = None
    """None: the method is part of afield."""


_registered: dict[str, Card] = {}


def add_card(card: Card) -> None:
    """Make a method known to configs and listings."""
    _registered[card.name] = card


def remove_card(name: str) -> None:
    """Forget a method that was registered at run time."""
    _registered.pop(name, None)


def cards() -> dict[str, Card]:
    """All methods by name: the package's own, and those registered at run time."""
    return {card.name: card for card in _own_cards()} | _registered


def outside_cards() -> dict[str, Card]:
    """The methods by name that were registered from outside the package."""
    return {name: card for name, card in _registered.items() if card.origin}


def own_names() -> set[str]:
    """The names of the package's own methods."""
    return {card.name for card in _own_cards()}


@cache
def _own_cards() -> tuple[Card, ...]:
    texts = {
        item.name.removesuffix(".py"): item.read_text("utf-8")
        for item in (files("afield") / "methods").iterdir()
        if item.name.endswith(".py") and not item.name.startswith("_")
    }
    reader = _Reader({name: ast.parse(text) for name, text in texts.items()})
    return tuple(card for module in sorted(texts) for card in reader.cards_of(module))


class _Reader:
    """Reads cards from the syntax trees of the method files."""

    def __init__(self, trees: dict[str, ast.Module]) -> None:
        self.trees = trees
        self.classes = {node.name: (module, node) for module, tree in trees.items() for node in _classes(tree)}
        self.options: dict[str, type[MethodOptions]] = {"MethodOptions": MethodOptions}

    def cards_of(self, module: str) -> Iterator[Card]:
        for node in _classes(self.trees[module]):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and _name(decorator.func) == "register_method":
                    said = {str(word.arg): ast.literal_eval(word.value) for word in decorator.keywords}
                    yield Card(
                        ast.literal_eval(decorator.args[0]),
                        said["summary"],
                        said["reference"],
                        f"afield/methods/{module}.py",
                        self._attribute(node, "needs_target", False),
                        self._attribute(node, "min_sources", 1),
                        self._options_class(self._attribute(node, "Options", "MethodOptions")),
                    )

    def _attribute(self, node: ast.ClassDef, name: str, default: Any) -> Any:
        """A class attribute, its own or inherited: a plain value, or the name of a class."""
        for statement in node.body:
            value = _assigned(statement, name)
            if value is not None:
                named = _name(value)
                return named if named else ast.literal_eval(value)
        for base in filter(None, map(_name, node.bases)):
            if base in self.classes and base != "Method":
                return self._attribute(self.classes[base][1], name, default)
        return default

    def _options_class(self, name: str) -> type[MethodOptions]:
        """A class of options, made from its text."""
        if name not in self.options:
            module, node = self.classes[name]
            # Pydantic looks up a class's module for the names in its annotations.
            scope: dict[str, Any] = {"__name__": f"afield.methods.{module}"}
            self._execute(node, module, scope)
            self.options[name] = scope[name]
        return self.options[name]

    def _execute(self, node: ast.stmt, module: str, scope: dict[str, Any]) -> None:
        """Execute one statement of a method file, after those that define the names it uses."""
        used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}
        for name in sorted(used - scope.keys() - vars(builtins).keys()):
            self._define(name, module, scope)
        exec(compile(ast.Module([node], []), f"<{module}>", "exec"), scope)

    def _define(self, name: str, module: str, scope: dict[str, Any]) -> None:
        """Put one name into the scope: another class of options, an import, or a constant of the file."""
        for statement in self.trees[module].body:
            if isinstance(statement, ast.ImportFrom) and _is_light(statement.module):
                for alias in statement.names:
                    if (alias.asname or alias.name) == name:
                        scope[name] = getattr(import_module(str(statement.module)), alias.name)
                        return
            if _assigned(statement, name) is not None:
                self._execute(statement, module, scope)
                return
        if name in self.classes or name in self.options:
            scope[name] = self._options_class(name)


def _classes(tree: ast.Module) -> list[ast.ClassDef]:
    return [node for node in tree.body if isinstance(node, ast.ClassDef)]


def _assigned(statement: ast.stmt, name: str) -> ast.expr | None:
    """The value of `name = value` or `name: type = value`, if the statement is one."""
    if isinstance(statement, ast.Assign) and _name(statement.targets[0]) == name:
        return statement.value
    if isinstance(statement, ast.AnnAssign) and _name(statement.target) == name:
        return statement.value
    return None


def _is_light(module: str | None) -> bool:
    return any(f"{module}.".startswith(f"{light}.") for light in LIGHT)


def _name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else None
