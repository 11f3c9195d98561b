"""How to train: the part of a config that this room understands."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class TrainingOptions(BaseModel):
    """Everything the loop does, none of it about any one method."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    steps: int = Field(1000, ge=1, description="optimiser steps")
    batch_size: int = Field(64, ge=2, description="images of each domain in a batch")
    lr: float = Field(0.05, gt=0, description="learning rate of SGD")
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(5e-4, ge=0)
    schedule: Literal["cosine", "constant"] = Field("cosine", description="of a phase's rate after warm-up")
    warmup_steps: int = Field(0, ge=0, description="steps over which a phase's rate rises to lr")
    ramp: Literal["dann", "constant"] = Field(
        "dann", description="adaptation weights rise from 0 by DANN's schedule, or stand from the first step"
    )
    clip_norm: float = Field(0.0, ge=0, description="largest norm of the gradient; 0 does not clip")
    precision: Literal["fp32", "bf16"] = "fp32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    devices: int = Field(
        1, ge=1, description="processes, each on a device of its own with batches of its own; gradients are averaged"
    )
    execution: Literal["auto", "eager", "graph", "compiled"] = Field(
        "auto",
        description="how a step runs: 'graph' replays a recording, 'compiled' fuses first; auto: graph on one GPU",
    )
    evaluate_every: int = Field(100, ge=1, description="steps between evaluations; the last step is always one")
    checkpoint_every: int = Field(100, ge=1, description="steps between checkpoints; the last step is always one")
    seed: int = Field(0, ge=0, lt=2**31)

    @model_validator(mode="after")
    def _warmup_ends(self) -> Self:
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps ({self.warmup_steps}) must be smaller than steps ({self.steps})")
        return self
