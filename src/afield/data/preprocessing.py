"""How images are prepared for the network."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from afield.config.data import Oblong


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes the network's input. Stored in checkpoints, so that prediction does as training did."""

    image_size: Annotated[int, Field(ge=1, le=4096)]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    oblong: Oblong = "squash"
