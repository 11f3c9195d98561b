"""The section `training` of a config."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class TrainingOptions(BaseModel):
    """How to train, whatever the method."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    steps: int = Field(1000, ge=1, description="optimiser steps")
    batch_size: int = Field(64, ge=2, description="images per domain in a batch")
    lr: float = Field(0.05, gt=0, description="learning rate of SGD")
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(5e-4, ge=0)
    schedule: Literal["cosine", "constant"] = Field(
        "cosine", description="of the learning rate after warm-up, per phase"
    )
    warmup_steps: int = Field(
        0, ge=0, description="steps in which the learning rate rises to lr, at the start of each phase"
    )
    ramp: Literal["dann", "constant"] = Field(
        "dann", description="adaptation weights rise from 0 by DANN's schedule, or are constant"
    )
    clip_norm: float = Field(0.0, ge=0, description="largest norm of the gradient; 0: no clipping")
    precision: Literal["fp32", "bf16"] = "fp32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    devices: int = Field(
        1, ge=1, description="processes, each with its own device and its own batches; gradients are averaged"
    )
    execution: Literal["auto", "eager", "graph", "compiled"] = Field(
        "auto",
        description="how a step runs: 'graph' replays a CUDA graph, 'compiled' compiles it; auto: graph on one GPU",
    )
    evaluate_every: int = Field(100, ge=1, description="steps between evaluations; the last step is always one")
    checkpoint_every: int = Field(100, ge=1, description="steps between checkpoints; the last step is always one")
    seed: int = Field(0, ge=0, lt=2**31)

    @model_validator(mode="after")
    def _warmup_ends(self) -> Self:
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps ({self.warmup_steps}) must be smaller than steps ({self.steps})")
        return self
