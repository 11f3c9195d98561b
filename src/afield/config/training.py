"""The section `training` of a config."""

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from afield.config.selectors import ScoredSelector, Selector

LoggerName = Literal["tensorboard", "wandb", "mlflow"]
OptimiserName = Literal["sgd", "adam", "adamw"]
Beta = Annotated[float, Field(ge=0, lt=1)]


class TrainingOptions(BaseModel):
    """How to train, whatever the method."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    steps: int = Field(1000, ge=1, description="optimiser steps")
    batch_size: int = Field(64, ge=2, le=100_000, description="images per domain in a batch")
    target_batches: int = Field(
        1,
        ge=0,
        le=1000,
        description="batches of target images for each batch of a source, for methods that pool the sources; 0: as "
        "many as there are sources, as in Dassl, and 1 for other methods",
    )
    accumulate: int = Field(1, ge=1, description="batches per step, over which gradients are averaged")
    optimiser: OptimiserName = Field("sgd", description="the optimiser; a method may declare another for a part of it")
    lr: float = Field(0.05, gt=0, description="learning rate")
    pretrained_rate: float = Field(
        0.1, ge=0, description="learning rate of a pretrained backbone, as a multiple of lr; 0: it is frozen"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of sgd")
    nesterov: bool = Field(False, description="whether sgd uses Nesterov momentum")
    betas: tuple[Beta, Beta] = Field((0.9, 0.999), description="of adam and adamw: decay of both running averages")
    weight_decay: float = Field(
        5e-4, ge=0, description="weight decay, added to the gradient; with adamw, decoupled from it"
    )
    schedule: Literal["cosine", "constant", "inverse", "steps"] = Field(
        "cosine",
        description="the learning rate after warm-up, in each phase: half a cosine to 0, constant, DANN's "
        "(1 + 10 p)^-0.75 with p the share done, or multiplied by gamma at each of milestones",
    )
    milestones: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (), description="steps, counted per phase, at which schedule 'steps' multiplies the learning rate by gamma"
    )
    gamma: float = Field(0.1, gt=0, le=1, description="factor of schedule 'steps'")
    warmup_steps: int = Field(
        0, ge=0, description="steps in which the learning rate rises to lr, at the start of each phase"
    )
    ramp: Literal["dann", "constant"] = Field(
        "dann", description="adaptation weights rise from 0 by DANN's schedule, or are constant"
    )
    clip_norm: float = Field(0.0, ge=0, description="largest norm of the gradient; 0: no clipping")
    average: Literal["none", "moving", "uniform"] = Field(
        "none", description="average of the weights over steps, for evaluations and predictions"
    )
    average_decay: float = Field(
        0.999, ge=0, lt=1, description="of average 'moving': factor by which each later step multiplies a step's share"
    )
    average_from: float = Field(0.0, ge=0, lt=1, description="share of training after which averaging begins")
    precision: Literal["fp32", "bf16", "auto"] = Field(
        "fp32", description="precision of the network's arithmetic; auto: bf16 on a GPU that has it, else fp32"
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where to train; auto: a GPU where there is one")
    devices: int = Field(
        1, ge=1, description="processes on a machine, each with its own device and its share of every batch"
    )
    nodes: int = Field(1, ge=1, description="machines, on each of which torchrun starts as many processes as devices")
    sync_batch_norm: bool = Field(
        True, description="batch norm takes the statistics of the whole batch, not of each process's share: slower"
    )
    execution: Literal["auto", "eager", "graph", "compiled"] = Field(
        "auto",
        description="how steps run: 'eager', 'graph' (a CUDA graph) or 'compiled'; auto: graph on one GPU, else eager",
    )
    evaluate_every: int = Field(
        100, ge=1, description="steps between evaluations; there is always one at the last step"
    )
    checkpoint_every: int = Field(
        100, ge=1, description="steps between checkpoints; there is always one at the last step"
    )
    keep: tuple[Selector, ...] = Field(
        ("last", "source-val"),
        description="selectors whose checkpoints a run keeps, as SELECTOR.ckpt; last is always kept",
    )
    patience: int = Field(
        0, ge=0, description="stop after so many evaluations in a row that are not better by stop_by; 0: never"
    )
    stop_by: ScoredSelector = Field("source-val", description="the selector by which patience compares evaluations")
    loggers: tuple[LoggerName, ...] = Field(
        ("tensorboard",), description="where evaluations are drawn as curves, beside the records"
    )
    seed: int = Field(0, ge=0, lt=2**31, description="seed of everything random")

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps ({self.warmup_steps}) must be smaller than steps ({self.steps})")
        if self.nesterov and not (self.optimiser == "sgd" and self.momentum):
            raise ValueError("nesterov is a kind of momentum of sgd: it needs optimiser 'sgd' and momentum above 0")
        if (self.schedule == "steps") != bool(self.milestones):
            raise ValueError("schedule 'steps' and milestones need each other")
        if any(later <= earlier for earlier, later in pairwise(self.milestones)):
            raise ValueError(f"milestones must ascend, not {list(self.milestones)}")
        if self.milestones and self.milestones[-1] >= self.steps:
            raise ValueError(f"milestone {self.milestones[-1]} does not come within {self.steps} steps")
        if self.batch_size % (processes := self.devices * self.nodes):
            raise ValueError(
                f"batch_size ({self.batch_size}) cannot be divided among {processes} processes (devices x nodes)"
            )
        if self.average_from and self.average == "none":
            raise ValueError("average_from needs an average, 'moving' or 'uniform'")
        return self
