"""The section `network` of a config."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

DIGIT_NETWORK = "digit"


class NetworkOptions(BaseModel):
    """A backbone by name and how its feature map becomes class scores."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    backbone: str = Field(DIGIT_NETWORK, description="'digit' (three 5x5 convolutions) or a timm convolutional model")
    width: int = Field(64, ge=8, description="channels of the digit network's first layer; its map has twice as many")
    pool: Literal["average", "average2x2", "flatten"] = Field(
        "average",
        description="feature map to vector: average over all positions, over each cell of a 2x2 grid, or flatten",
    )
    hidden: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (), description="widths of fully connected layers before the classifier"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout after each hidden layer")
    batch_norm: Literal["together", "apart"] = Field(
        "together",
        description="'together': one forward pass, shared statistics; 'apart': sources and target in separate passes",
    )
    pretrained: bool = Field(False, description="start a timm backbone from its ImageNet weights")

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.dropout and not self.hidden:
            raise ValueError("dropout acts after hidden layers, and there are none: set hidden too")
        if self.pretrained and self.backbone == DIGIT_NETWORK:
            raise ValueError("pretrained needs a timm backbone: there are no ImageNet weights for the digit network")
        return self
