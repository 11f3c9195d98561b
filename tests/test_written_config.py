"""A config in words: the commented TOML of `afield config`, and the page of `afield methods NAME`."""

import tomllib
from enum import Enum
from typing import Literal

import pytest
from pydantic import Field

from afield import list_methods
from afield.app.asked import asked_layers, check_early, choose_config, config_to_be
from afield.app.method_page import as_text, as_values
from afield.config import cards
from afield.config.catalogue import find_entry
from afield.config.data import DataOptions
from afield.config.described import described
from afield.config.layers import SECTIONS, merge, resolve
from afield.config.options import MethodOptions
from afield.config.written import commented
from afield.data.open import open_data
from support.images import write_folder


@pytest.fixture(scope="module")
def own_images(tmp_path_factory):
    """Two folders of images, by the preset that suits them."""
    classes, sizes = {"bus": 3, "car": 3}, {"small": (48, 40), "photos": (90, 80)}
    cameras = {"camera1": classes, "camera2": classes, "camera3": classes, "camera4": 3}
    home = tmp_path_factory.mktemp("own")
    return {preset: write_folder(home / preset, cameras, size) for preset, size in sizes.items()}


def of_train(layers):
    """The config that `afield.train` makes of these layers, which always looks at the images."""
    check_early(layers, [])
    name = merge(*layers)["data"].get("name", "digits")
    return choose_config(open_data(DataOptions(name=name)), layers, [])


@pytest.mark.parametrize("name", list_methods())
@pytest.mark.parametrize("data", ["digits", "small", "photos"])
def test_a_written_config_is_that_of_train_and_survives_being_read(data, name, own_images, tmp_path):
    asked = {"method": name, "target": "camera4", "lr": 0.123, "data": str(own_images.get(data, data))}
    config = config_to_be(asked_layers(None, {"network.hidden": [16, 8]}, **asked))
    assert config.data.preset == data
    assert config == of_train(asked_layers(None, {"network.hidden": [16, 8]}, **asked))
    file = tmp_path / "mine.toml"
    file.write_text(commented(config), "utf-8")
    assert config_to_be(asked_layers(file, None)) == config == of_train(asked_layers(file, None))
    assert commented(config_to_be(asked_layers(file, None))) == file.read_text("utf-8")


def test_a_written_config_has_every_key_under_what_it_does():
    text = commented(resolve({"method": {"name": "far-without-dre"}}))
    values, config = tomllib.loads(text), resolve({"method": {"name": "far-without-dre"}})
    assert values == config.as_dict()
    assert list(values) == list(SECTIONS)
    above = dict(zip(text.splitlines()[1:], text.splitlines(), strict=False))
    assert above["steps = 600"] == "# optimiser steps [a whole number, 1 or more; default: 1000]"
    assert above["momentum = 0.9"] == "# momentum of sgd [a number, 0 or more and below 1]"
    assert above["# target = ..."] == "# the domain to adapt to"
    assert above['kind = "uda"'].endswith('[one of "uda", "dg"]')
    assert above["betas = [0.9, 0.999]"].endswith("[a list of 2 numbers, each 0 or more and below 1]")
    assert "\n# FAR without the dual ranking entropy\n[method]\n" in text
    assert above['dre = "none"'].endswith('default: "dual"; fixed by far-without-dre]')
    flat = " ".join(text.replace("\n# ", " ").split())
    for section in SECTIONS:
        for option in described(type(getattr(config, section))):
            assert option.description in flat, option.name
    assert max(map(len, text.splitlines())) <= 120


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class StrangeOptions(MethodOptions):
    """Options of kinds that the package's own methods do not have."""

    needed: int = Field(ge=1, description="has no default")
    bare: str = "x"
    count: int | None = Field(None, gt=0, description="a\nline\tand another\x07")
    colour: Colour = Field(Colour.RED, description="an enumeration")
    either: float | Literal["auto"] = Field("auto", description="two kinds")
    table: dict[str, float] = Field(default_factory=lambda: {"a b": 1.0, "c": 2.0}, description="a table")
    colours: tuple[Colour, ...] = Field((), description="several")


@pytest.fixture
def strange(monkeypatch):
    """A method with these options, known for one test."""
    monkeypatch.setattr(cards, "_registered", dict(cards._registered))
    cards.add_card(cards.Card("strange", "odd", "none", "strange.py", False, 1, StrangeOptions))


def test_options_of_any_kind_are_described_and_written(strange):
    said = {option.name: option.as_dict() for option in described(StrangeOptions)}
    assert said["needed"] == {
        "name": "needed", "description": "has no default", "default": None, "type": "integer", "minimum": 1,
    }  # fmt: skip
    assert (said["count"]["description"], said["count"]["type"]) == ("a line and another", "integer")
    assert said["colour"]["enum"] == said["colours"]["items"]["enum"] == ["red", "blue"]
    config = resolve({"method": {"name": "strange", "needed": 3}})
    text = commented(config)
    assert tomllib.loads(text)["method"] == config.as_dict()["method"]
    assert resolve(tomllib.loads(text)) == config
    assert '# an enumeration [one of "red", "blue"]\ncolour = "red"\n' in text
    assert '# two kinds [a number or "auto"]\neither = "auto"\n' in text
    assert "# a line and another [a whole number, above 0]\n# count = ...\n" in text
    for width in (None, 100, 30):
        page = as_text(find_entry("strange"), width)
        assert all(option in page for option in StrangeOptions.model_fields)


@pytest.mark.parametrize("name", list_methods())
def test_a_methods_page_has_every_option_with_default_and_sentence(name):
    entry = find_entry(name)
    values, lines = as_values(entry), as_text(entry, None).splitlines()
    assert lines[0] == f"{name}: {entry.summary}"
    assert all(any(fact in line for line in lines) for fact in (entry.card.reference, entry.card.file))
    assert [option["name"] for option in values["options"]] == list(entry.card.options.model_fields)
    resolved = resolve({"method": {"name": name}}).as_dict()["method"]
    for option in values["options"]:
        assert option["type"]
        assert option["default"] == resolved.get(option["name"])
        (line,) = [line for line in lines if line.startswith(f"  {option['name']} ")]
        assert line.startswith(f"  {option['name']} = ") == (option["default"] is not None)
        assert option["description"] in line
        assert option["fixed"] == (f"fixed by {name}" in line) == (f"method.{option['name']}" in values["sets"])
    for width in (60, 80, 120):
        wrapped = as_text(entry, width)
        assert max(map(len, wrapped.splitlines()[1:])) <= width
        assert " ".join(wrapped.split()) == " ".join(" ".join(lines).split())
