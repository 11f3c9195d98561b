"""The sections `data` and `task` of a config: which images, which domains are sources, which is the target."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

TaskKind = Literal["uda", "dg"]
Oblong = Literal["squash", "crop", "pad"]
Augmentation = Literal["digits", "photos", "none"]
Placement = Literal["auto", "resident", "streamed"]


OWN_PRESETS = {
    "digits": "digits", "digit5": "digit5", "digit5-padded": "digit5", "digit5-m3sda": "digit5",
    "rotated-mnist": "rotated-mnist", "rotated-mnist-1000": "rotated-mnist-1000", "pacs": "pacs",
    "office-home": "office-home", "office-home-original": "office-home",
    "domainnet": "domainnet", "mini-domainnet": "mini-domainnet", "office-31": "office-31", "vlcs": "vlcs",
    "vlcs-original": "vlcs",
}  # fmt: skip
"""Data sets that have a preset of their own; for others it is chosen by the size of their images."""


class DataOptions(BaseModel):
    """Which images to use, at what size, and how they reach the device."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str = Field("digits", description="a data set's name, a folder, a manifest, or hf:NAME; see `afield data`")
    preset: str = Field("", description="settings that suit the images: digits, digit5, pacs, small, photos and more")
    image_size: int = Field(32, ge=8, le=2048, description="height and width in pixels of what the network sees")
    oblong: Oblong = Field(
        "squash",
        description="how an oblong image is made square: squashed, cropped to its centre, or padded with black",
    )
    augmentation: Augmentation = Field(
        "digits",
        description="changes of training images: 'digits' shifts, 'photos' crops, mirrors and recolours; or 'none'",
    )
    image_column: str = Field(
        "",
        description="column of a manifest that has the files, or of a Hugging Face data set that has the images; "
        "empty: path, or the first column of images",
    )
    domain_column: str = Field(
        "", description="column of a manifest or a Hugging Face data set that has the domain; empty: found by its name"
    )
    label_column: str = Field(
        "", description="column of a manifest or a Hugging Face data set that has the class; empty: found by its name"
    )
    skip_bad: bool = Field(False, description="leave out files that cannot be read as images, and report how many")
    placement: Placement = Field(
        "auto",
        description="where training images are kept: all on the device, or streamed to it; auto: by their total size",
    )
    cache_gb: float = Field(
        20.0, ge=0, description="disk space for caching decoded images of all data sets; 0: no cache"
    )
    workers: int = Field(0, ge=0, le=256, description="processes that decode image files; 0: one per processor")


class TaskOptions(BaseModel):
    """Which domains are sources, and which is the target."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: TaskKind = Field("uda", description="'uda' trains on target images without labels, 'dg' on no target images")
    target: str | None = Field(None, description="the domain to adapt to")
    sources: tuple[str, ...] = Field(
        (), description="labelled domains to train on; empty: all labelled domains but the target"
    )
