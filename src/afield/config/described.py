"""Options in words: what each does, which values it takes, and its default."""

from dataclasses import dataclass
from typing import Any

import tomli_w
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

Schema = dict[str, Any]
KINDS = {"integer": "a whole number", "number": "a number", "string": "text", "boolean": "true or false"}
PLURALS = {"integer": "whole numbers", "number": "numbers", "string": "texts"}
BOUNDS = {
    "minimum": "{} or more",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
}


@dataclass(frozen=True)
class Described:
    """One option. `schema` says in JSON Schema which values it takes; without a default, `default` is None."""

    name: str
    description: str
    default: Any
    schema: Schema

    def as_dict(self) -> dict[str, Any]:
        """What `afield methods NAME --json` prints about it: name, description, default, and its schema."""
        return {"name": self.name, "description": self.description, "default": self.default, **self.schema}

    @property
    def allowed(self) -> str:
        """The values it takes, in words; empty where any text will do."""
        return "" if self.schema.get("type") == "string" and "enum" not in self.schema else in_words(self.schema)

    def sentence(self, *remarks: str) -> str:
        """What it does, then in brackets the values it takes and remarks; empty ones are left out."""
        aside = "; ".join(filter(None, [self.allowed, *remarks]))
        return " ".join(filter(None, [self.description, f"[{aside}]" if aside else ""]))


def described(options: type[BaseModel]) -> list[Described]:
    """Every option of a class, in its order."""
    whole = options.model_json_schema(by_alias=False)
    found = []
    for name, field in options.model_fields.items():
        default = None if field.is_required() else to_jsonable_python(field.get_default(call_default_factory=True))
        schema = _alone(whole["properties"][name], whole.get("$defs", {}))
        schema = {key: value for key, value in schema.items() if key not in ("title", "description", "default")}
        # One line, of characters that a comment in TOML may have.
        text = "".join(letter for letter in " ".join((field.description or "").split()) if letter.isprintable())
        found.append(Described(name, text, default, schema))
    return found


def _alone(part: Any, definitions: Schema) -> Any:
    """A schema that needs no other, without the null that stands for no value: a config has no word for it."""
    if isinstance(part, list):
        return [_alone(each, definitions) for each in part]
    if not isinstance(part, dict):
        return part
    whole = {**definitions[part["$ref"].rpartition("/")[2]], **part} if "$ref" in part else part
    made = {key: _alone(value, definitions) for key, value in whole.items() if key not in ("$ref", "anyOf")}
    choices = [_alone(each, definitions) for each in whole.get("anyOf", ()) if each.get("type") != "null"]
    if len(choices) == 1:
        return {**made, **choices[0]}
    return {**made, "anyOf": choices} if choices else made


def in_words(schema: Schema) -> str:
    """The values that a schema allows.

    >>> in_words({"type": "number", "minimum": 0, "exclusiveMaximum": 1})
    'a number, 0 or more and below 1'
    """
    if "enum" in schema:
        return f"one of {', '.join(literal(value) for value in schema['enum'])}"
    if "const" in schema:
        return literal(schema["const"])
    if "anyOf" in schema:
        return " or ".join(in_words(each) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return _list_in_words(schema)
    kind = KINDS.get(schema.get("type", ""), "a value")
    return ", ".join([kind, *_range_in_words(schema)])


def _list_in_words(schema: Schema) -> str:
    inside: Schema = schema.get("items") or next(iter(schema.get("prefixItems", ())), {})
    least, most = schema.get("minItems"), schema.get("maxItems")
    count = f"{least} " if least is not None and least == most else ""
    what = PLURALS.get(inside.get("type", ""), "values")
    return ", each ".join([f"a list of {count}{what}", *_range_in_words(inside)])


def _range_in_words(schema: Schema) -> list[str]:
    """At most one text."""
    if {"minimum", "maximum"} <= schema.keys():
        return [f"{schema['minimum']} to {schema['maximum']}"]
    said = [text.format(schema[key]) for key, text in BOUNDS.items() if key in schema]
    return [" and ".join(said)] if said else []


def literal(value: Any) -> str:
    """A value as TOML writes it, on one line.

    >>> literal([1, {"a": "b"}])
    '[1, { a = "b" }]'
    """
    if isinstance(value, list | tuple):
        return f"[{', '.join(literal(each) for each in value)}]"
    if isinstance(value, dict):
        # Of a key TOML's own writer knows whether it needs quotes.
        pairs = [tomli_w.dumps({name: 0}).removesuffix("0\n") + literal(each) for name, each in value.items()]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").rstrip("\n")
