"""From plain values to typed options, with errors that name the key, the allowed values and the nearest spelling."""

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from afield.errors import AfieldError, unknown

Model = TypeVar("Model", bound=BaseModel)


class MethodOptions(BaseModel):
    """Base class of a method's options: typed, strict, each with a description."""

    # Defaults too: a run with an impossible one could be trained, and not be loaded.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True)


def validated(model: type[Model], section: str, values: dict[str, Any]) -> Model:
    """Values as the section's typed options. Strict: an unknown key or a wrong type is an error."""
    for key in values:
        if key not in model.model_fields:
            raise unknown("config key", f"{section}.{key}", [f"{section}.{name}" for name in model.model_fields])
    try:
        # Through JSON: strict mode then accepts a list for a tuple, and still refuses "3" for 3.
        return model.model_validate_json(json.dumps(values, default=_plain))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in (section, *first["loc"]))
        reason = first["msg"].removeprefix("Value error, ")
        reason = reason[:1].lower() + reason[1:]
        named = first["loc"] and first["type"] != "missing"
        got = f", not {json.dumps(first['input'], default=str)}" if named else ""
        raise AfieldError(f"config key '{key}': {reason}{got}") from error


def _plain(value: Any) -> Any:
    """Numbers of NumPy and torch as Python numbers; anything else as text, which strict mode then refuses."""
    return value.item() if hasattr(value, "item") else str(value)
