"""What the lines of a file of records must look like. Versions differ: a key may be missing, and others be there."""

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

MISSING: Any = None
"""A default, which is not checked and, unlike an empty list, not copied for every line of a long file."""


class Shape(BaseModel):
    """Strict types: no text in place of a number, and neither NaN nor infinity."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class DataShape(Shape):
    """What is read of the section `data`."""

    name: str = MISSING
    preset: str = MISSING


class MethodShape(Shape):
    """What is read of the section `method`."""

    name: str = MISSING


class TaskShape(Shape):
    """What is read of the section `task`."""

    kind: str = MISSING
    target: str | None = MISSING
    sources: list[str] = MISSING


class TrainingShape(Shape):
    """What is read of the section `training`."""

    seed: int = MISSING
    steps: int = MISSING


class NetworkShape(Shape):
    """What is read of the section `network`."""

    backbone: str = MISSING
    pool: str = MISSING


class ConfigShape(Shape):
    """A stored config; its options are checked by whoever wants all of them."""

    data: DataShape = MISSING
    method: MethodShape = MISSING
    task: TaskShape = MISSING
    training: TrainingShape = MISSING
    network: NetworkShape = MISSING


class ProtocolShape(Shape):
    """Which images, under which rules."""

    name: str = MISSING
    version: int = MISSING
    data: str = MISSING
    checksum: str = MISSING
    test_images: dict[str, int] = MISSING
    stand_ins: list[str] = MISSING


class ResultShape(Shape):
    """What was measured on one domain."""

    accuracy: float | None = MISSING
    n: int = MISSING
    views: dict[str, float] = MISSING
    gates: dict[str, float] = MISSING


class RunShape(Shape):
    """The first line of a run, or that of a failed one."""

    label: str = MISSING
    origin: str = MISSING
    seed: int = MISSING
    precision: str = MISSING
    device: str = MISSING
    config: ConfigShape = MISSING
    protocol: ProtocolShape = MISSING
    versions: dict[str, str] = MISSING


class EvaluationShape(Shape):
    """An evaluation. What is now `target` was once called `oracle`."""

    step: int = MISSING
    sources: dict[str, ResultShape] = MISSING
    target: dict[str, ResultShape] = MISSING
    oracle: dict[str, ResultShape] = MISSING
    unlabelled: dict[str, dict[str, float | str]] = MISSING
    losses: dict[str, float] = MISSING
    lr: float = MISSING
    adaptation_weight: float = MISSING


class EndShape(Shape):
    """The last line of a run."""

    step: int = MISSING
    seconds: float = MISSING


SHAPES: dict[str, type[Shape]] = {
    "run": RunShape, "failure": RunShape, "evaluation": EvaluationShape, "end": EndShape,
}  # fmt: skip


def fault_of(record: object) -> str | None:
    """What is wrong with a line; None if it is a record, or one of a kind that this version does not know."""
    if not isinstance(record, dict) or not isinstance(record.get("event"), str):
        return "it has no event"
    shape = SHAPES.get(record["event"])
    if shape is None:
        return None
    try:
        shape.model_validate(record)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}"
    return None
