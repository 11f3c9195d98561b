"""What `afield methods` reads from the text of the method files is what the classes say."""

import ast
import subprocess
import sys

import pytest

from afield.config import cards as module
from afield.config.cards import _own_cards, _Reader
from afield.methods import find_method, registered_methods

CARDS = {card.name: card for card in _own_cards()}


def test_every_method_of_the_package_has_a_card_and_no_other():
    own = {name for name, method in registered_methods().items() if method.__module__.startswith("afield.methods.")}
    assert set(CARDS) == own


def fields(options):
    """All that pydantic knows about the fields of a class of options."""
    return {
        name: (field.annotation, field.default, field.description, field.metadata)
        for name, field in options.model_fields.items()
    }


@pytest.mark.parametrize("name", CARDS)
def test_a_card_read_from_text_equals_the_class(name):
    card, method = CARDS[name], find_method(name)
    assert card.needs_target == method.needs_target
    assert card.min_sources == method.min_sources
    assert fields(card.options) == fields(method.Options)
    assert card.options.__name__ == method.Options.__name__
    assert method.__module__ == card.file.removesuffix(".py").replace("/", ".")
    assert all(field.description for field in card.options.model_fields.values()), "each option says what it does"
    assert card.options().model_dump() == method.Options().model_dump()


def test_the_cards_are_read_whatever_was_imported_before():
    # Pydantic imports its names on first use, so a process that has used none of them is a case of its own.
    code = "from afield.config.cards import cards; print(len(cards()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) >= len(CARDS)


def test_constants_annotations_and_inherited_options_are_read():
    text = """
import torch
from typing import Annotated, ClassVar, Literal
from pydantic import Field, model_validator
from afield.config.options import MethodOptions
LARGEST: int = 2 * 4
Kind = Literal["a", "b"]
class BaseOptions(MethodOptions):
    kind: Kind = Field("a", description="one of two")
class Options(BaseOptions):
    count: Annotated[int, Field(ge=1, le=LARGEST)] = Field(LARGEST, description="how many")
class Parent(torch.nn.Module):
    Options: ClassVar[type[MethodOptions]] = Options
    needs_target: ClassVar[bool] = True
@register_method("child", summary="s", reference="r")
class Child(Parent):
    min_sources = 3
"""
    (card,) = _Reader({"mine": ast.parse(text)}).cards_of("mine")
    assert (card.name, card.needs_target, card.min_sources) == ("child", True, 3)
    assert card.options().model_dump() == {"kind": "a", "count": 8}
    with pytest.raises(ValueError, match="less than or equal to 8"):
        card.options(count=9)


def test_only_light_modules_are_imported_for_the_options():
    assert module._is_light("pydantic")
    assert module._is_light("collections.abc")
    assert not module._is_light("torch")
    assert not module._is_light("typing_torch")
    assert not module._is_light("afield.methods.far")
