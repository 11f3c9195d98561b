"""Which images, and which domains are learned from: the parts of a config that are about data."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

TaskKind = Literal["uda", "dg"]
Oblong = Literal["squash", "crop", "pad"]
Augmentation = Literal["digits", "photos", "none"]
Placement = Literal["auto", "resident", "streamed"]


OWN_PRESETS = {"digits": "digits", "digit5": "digit5", "digit5-padded": "digit5"}
"""The presets of data sets that have one of their own; for others the size of their images decides."""


class DataOptions(BaseModel):
    """Which images, at what size, and how they reach the device."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str = Field("digits", description="a data set's name, a folder, a manifest, or hf:NAME; see `afield data`")
    preset: str = Field("", description="the settings that suit the images: digits, digit5, small or photos")
    image_size: int = Field(32, ge=8, le=2048, description="height and width in pixels of what the network sees")
    oblong: Oblong = Field(
        "squash", description="how an oblong image becomes square: squashed, cropped to its middle, or padded in black"
    )
    augmentation: Augmentation = Field(
        "digits",
        description="of training images: 'digits' shifts them; 'photos' crops, mirrors and recolours them; or 'none'",
    )
    domain_column: str = Field("", description="of a manifest or a Hugging Face data set; none: a column named domain")
    label_column: str = Field("", description="of a manifest or a Hugging Face data set; none: a column named label")
    skip_bad: bool = Field(False, description="leave out files that are no readable image, and count them")
    placement: Placement = Field(
        "auto", description="where images lie in training: all on the device, or streamed to it; auto: by their size"
    )
    cache_gb: float = Field(20.0, ge=0, description="disk space for decoded images of all data sets; 0 keeps none")
    workers: int = Field(0, ge=0, le=256, description="processes that decode image files; 0: one for each processor")


class TaskOptions(BaseModel):
    """Which domains are learned from, and which is the target."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: TaskKind = Field("uda", description="'uda' sees the target's images without labels, 'dg' never sees them")
    target: str | None = Field(None, description="the domain to work in")
    sources: tuple[str, ...] = Field((), description="labelled domains; none named means all but the target")
