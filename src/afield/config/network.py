"""The section `network` of a config."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

DIGIT_NETWORK = "digit"
Width = Annotated[int, Field(ge=1)]
BatchNorm = Literal["together", "apart", "each", "frozen", "none"]


class NetworkOptions(BaseModel):
    """A backbone by name, and how its feature map becomes class scores."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    backbone: str = Field(DIGIT_NETWORK, description="'digit' (three 5x5 convolutions) or the name of a timm model")
    width: int = Field(64, ge=8, description="channels of the digit network's first layer; its map has twice as many")
    pretrained: bool = Field(False, description="start a timm backbone from the weights timm downloads for it")
    weights: str = Field(
        "", description="start the backbone from this file: safetensors, or tensors that torch.save wrote"
    )
    pool: Literal["average", "average2x2", "flatten"] = Field(
        "average",
        description="feature map to vector: average over all positions, over each cell of a 2x2 grid, or flatten",
    )
    neck: tuple[Width, ...] = Field(
        (), description="widths of fully connected layers that end the feature extractor; methods act on the last one"
    )
    hidden: tuple[Width, ...] = Field(
        (), description="widths of fully connected layers inside each classifier, before its scores"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout after hidden layers and between the layers of neck")
    neck_dropout: float = Field(0.0, ge=0, lt=1, description="dropout after the last layer of neck")
    batch_norm: BatchNorm = Field(
        "together",
        description="whose statistics batch norm takes in training: of all domains 'together', of sources and target "
        "'apart', of 'each' domain alone; 'frozen': a pretrained backbone keeps its own; 'none': the digit network and "
        "fully connected layers have no batch norm",
    )

    @property
    def starts_trained(self) -> bool:
        """Whether the backbone starts from weights that someone has trained."""
        return self.pretrained or bool(self.weights)

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.dropout and not (self.hidden or len(self.neck) > 1):
            raise ValueError(
                "dropout acts after hidden layers and between those of a neck: set hidden, or several layers in neck"
            )
        if self.neck_dropout and not self.neck:
            raise ValueError("neck_dropout acts after a neck's last layer: set neck")
        if self.pretrained and self.backbone == DIGIT_NETWORK:
            raise ValueError("pretrained needs a timm backbone: there are no ImageNet weights for the digit network")
        if self.pretrained and self.weights:
            raise ValueError(
                "pretrained and weights are two ways to start the backbone: choose one; "
                "pretrained = false (--no-pretrained) leaves the weights"
            )
        if self.batch_norm == "frozen" and not self.starts_trained:
            raise ValueError("batch_norm 'frozen' keeps pretrained statistics: set pretrained or weights")
        if self.batch_norm == "none" and self.backbone != DIGIT_NETWORK:
            raise ValueError(
                "batch_norm 'none' is for the digit network: the batch norm of a timm model cannot be left out"
            )
        return self
