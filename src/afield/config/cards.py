"""A card says what a method is and what it needs: name, tasks, sources, options.

The cards of the package's own methods are read from the text of their files, because importing a method imports torch,
which takes seconds. Of such a file only the classes of options are run: they are plain pydantic. A method that
registers itself at run time hands in its card then.
"""

import ast
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import pydantic

from afield.config.options import MethodOptions


@dataclass(frozen=True)
class Card:
    """What a reader of a table, and a config, must know of a method."""

    name: str
    summary: str
    reference: str
    file: str
    needs_target: bool
    min_sources: int
    options: type[MethodOptions]


_registered: dict[str, Card] = {}


def add_card(card: Card) -> None:
    """Make a method known to configs and listings."""
    _registered[card.name] = card


def cards() -> dict[str, Card]:
    """All methods by name: the package's own, and those registered since."""
    return {card.name: card for card in _own_cards()} | _registered


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
        self.classes = {node.name: node for tree in trees.values() for node in _classes(tree)}
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
            if isinstance(statement, ast.Assign) and _name(statement.targets[0]) == name:
                named = _name(statement.value)
                return named if named else ast.literal_eval(statement.value)
        for base in filter(None, map(_name, node.bases)):
            if base in self.classes and base != "Method":
                return self._attribute(self.classes[base], name, default)
        return default

    def _options_class(self, name: str) -> type[MethodOptions]:
        """A class of options, made from its text after those it builds on."""
        if name not in self.options:
            node = self.classes[name]
            known = {base: self._options_class(base) for base in filter(None, map(_name, node.bases))}
            scope = {**vars(typing), **vars(pydantic), **known}
            exec(compile(ast.Module([node], []), f"<options {name}>", "exec"), scope)
            self.options[name] = scope[name]
        return self.options[name]


def _classes(tree: ast.Module) -> list[ast.ClassDef]:
    return [node for node in tree.body if isinstance(node, ast.ClassDef)]


def _name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else None
