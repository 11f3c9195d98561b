"""The training loop, on Lightning Fabric: it steps, evaluates, records and saves, and does not know the method."""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w
import torch
from lightning_fabric import Fabric

from afield.config.data import DataOptions
from afield.config.training import TrainingOptions
from afield.data.batches import BatchStream
from afield.data.preprocessing import Preprocessing
from afield.data.task import EvaluationViews, Task
from afield.errors import AfieldError
from afield.files import write_whole
from afield.methods import Method
from afield.networks.rows import from_all
from afield.results.folder import RunFolder
from afield.results.records import Record, append_record, end_of, evaluations, read_records, rewrite_records
from afield.results.selection import evaluations_since_best
from afield.training.averaging import WeightAverage
from afield.training.backend import backend_settings
from afield.training.callbacks import Callback, Listeners, RunStart
from afield.training.checkpoint import (
    Checkpoint,
    generator_states,
    optimiser_state,
    restore_generators,
    save_checkpoint,
)
from afield.training.devices import make_fabric
from afield.training.evaluation import Evaluator
from afield.training.heartbeat import beat
from afield.training.keeping import Keeper
from afield.training.loggers import make_loggers
from afield.training.memory import is_out_of_memory
from afield.training.post_mortem import DivergedError, Standing, save_post_mortem
from afield.training.processes import starter
from afield.training.progress import STEPS_BETWEEN_UPDATES, RunProgress
from afield.training.resuming import to_go_on_from
from afield.training.schedules import adaptation_weight, learning_rate
from afield.training.step import TrainingStep
from afield.training.stopping import HeldSignals

# Fabric announces the precision of every run, which the config says already. Which logger it uses depends on what was
# imported.
for name in ("lightning_fabric", "lightning_utilities"):
    logging.getLogger(name).setLevel(logging.WARNING)
# On a GPU, asking whether a loss is finite waits for it; so ask now and then, and always before saving anything.
STEPS_BETWEEN_HEALTH_CHECKS = 25


@dataclass(frozen=True)
class Setup:
    """What to train and how: everything a loop needs but the folder it writes to."""

    title: str
    method: Method
    task: Task
    views: EvaluationViews
    preprocessing: Preprocessing
    data: DataOptions
    options: TrainingOptions
    config: dict[str, dict[str, Any]]
    pretrained: bool
    """Whether the backbone started from weights that someone has trained; those of a checkpoint do not count."""
    origin: str = ""
    """Where the method is, if it is not part of afield."""
    target_batches: int = 1
    """Batches of target images for each batch of a source."""


class Loop:
    """One run in a folder, from its start or from its last checkpoint."""

    def __init__(
        self,
        setup: Setup,
        folder: RunFolder,
        shown: bool = True,
        fabric: Fabric | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.setup, self.folder, self.options, self.shown = setup, folder, setup.options, shown
        options = setup.options
        self.fabric = fabric or make_fabric(options)
        self.device = self.fabric.device
        self.listeners = Listeners([*make_loggers(options.loggers), *callbacks], heard=self.leads)
        self.method = setup.method.to(self.device).to(memory_format=torch.channels_last)
        self.stream = BatchStream(
            setup.task,
            options.batch_size,
            setup.preprocessing,
            self.device,
            options.seed,
            setup.data.augmentation,
            setup.data.placement,
            (self.fabric.global_rank, self.fabric.world_size),
            partial(from_all, processes=self.fabric.world_size),
            setup.target_batches,
        )
        self.training = TrainingStep(self.method, self.stream, options, self.fabric, setup.pretrained)
        self.average = WeightAverage(self.method, options)
        placement = setup.data.placement if self.stream.resident else "streamed"
        self.evaluator = Evaluator(setup.task, setup.views, setup.preprocessing, self.device, placement)
        stopping = [options.stop_by] if options.patience else []  # what it stops after is what is wanted of it
        self.keeper = Keeper(folder, [*options.keep, *stopping], self._save)
        self.well = Standing(self.stream, self.device)
        self.saved_step = 0
        self.parent = starter()
        self.seconds = 0.0

    @property
    def step(self) -> int:
        """How many steps have been taken."""
        return self.training.taken

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to do."""
        end = end_of(read_records(self.folder.records))
        return end is not None and end["step"] == self.step

    @property
    def leads(self) -> bool:
        """Whether this is the first process: it alone evaluates, records, saves and shows."""
        return self.fabric.global_rank == 0

    def run(self) -> None:
        """Train to the end, in a folder that `start` or `resume` has opened."""
        try:
            with backend_settings(self.options, self.method), HeldSignals() as signals, self._listened():
                self._run(signals)
        finally:
            self.stream.close()

    @contextmanager
    def _listened(self) -> Iterator[None]:
        """Tell callbacks when training begins and when it ends, for whatever reason."""
        config = deepcopy(self.setup.config)
        self.listeners.started(RunStart(self.folder.path, config, self.step, self.options.steps, self.shown))
        try:
            self._heed_callbacks()
            yield
        except BaseException as error:
            self.listeners.ended(error)
            raise
        self.listeners.ended(None)
        self._heed_callbacks()

    def _heed_callbacks(self) -> None:
        """If a callback has raised, end the run in all processes, with a checkpoint of this step."""
        failure = self.listeners.failure
        if self.fabric.world_size > 1:
            failure = self.fabric.broadcast(failure)
        if failure:
            self._save_here()
            raise failure

    def _run(self, signals: HeldSignals) -> None:
        history = evaluations(read_records(self.folder.records))
        started = time.perf_counter() - self.seconds
        self.well = Standing(self.stream, self.device)
        progress = RunProgress(self.setup.title, self.options.steps, self.step, self.shown and self.leads)
        with progress:
            stopped = self._stops(history)
            while self.step < self.options.steps and not stopped:
                self._train_step()
                if self._at(STEPS_BETWEEN_HEALTH_CHECKS) or self.device.type == "cpu":
                    self._check_health()
                if progress.watched and self._at(STEPS_BETWEEN_UPDATES):
                    progress.update(self.step, self.training.losses)
                self.seconds = time.perf_counter() - started
                listening = self.listeners.want_losses and self._at(STEPS_BETWEEN_UPDATES)
                if listening:
                    self.listeners.stepped(self.step, self.training.losses)
                due = self._at(self.options.evaluate_every), self._at(self.options.checkpoint_every)
                if any(due):
                    self._check_health(deep=True)
                    losses = self._prepare_evaluation() if due[0] else {}
                if due[0] and self.leads:
                    history.append(self._evaluate(losses))
                    progress.evaluated(history[-1])
                    if self.keeper.evaluated(history):
                        self.saved_step = self.step
                    self.listeners.evaluated(history[-1])
                    stopped = self._stops(history)
                    if stopped:
                        progress.say(self._why_stopped())
                if due[0] and self.options.patience:
                    stopped = self.fabric.broadcast(stopped)
                if (due[1] or stopped) and self.saved_step != self.step:
                    self._save(self.folder.last)
                if self.leads and self.saved_step == self.step:
                    self.keeper.saved(history)
                if due[0] or listening:
                    self._heed_callbacks()
                beat()
                if self.step < self.options.steps and not stopped and self._asked_to_stop(signals):
                    self._stop(signals)
        self.seconds = time.perf_counter() - started
        if self.leads:
            self.keeper.ended()
            append_record(self.folder.records, {"event": "end", "step": self.step, "seconds": round(self.seconds, 3)})
        self.fabric.barrier()

    def _asked_to_stop(self, signals: HeldSignals) -> bool:
        """Whether a signal has come. Several processes ask each other now and then: all must stop at one step.

        They also stop when the process is gone that has started them.
        """
        asked = signals.came is not None
        if self.fabric.world_size == 1:
            return asked
        asked |= os.getppid() != self.parent
        if not (self._at(STEPS_BETWEEN_HEALTH_CHECKS) or self.device.type == "cpu"):
            return False
        return bool(self.fabric.all_reduce(torch.tensor(float(asked), device=self.device), reduce_op="max"))

    def _stop(self, signals: HeldSignals) -> None:
        """Save where the run stands, and let the signal act."""
        self._save_here()
        if self.fabric.world_size > 1:
            self.fabric.barrier()
            raise KeyboardInterrupt  # in all processes, whichever of them got the signal
        signals.deliver()

    def _save_here(self) -> None:
        """Save a checkpoint of this step, unless there is one."""
        if self.saved_step != self.step or self.fabric.world_size > 1:  # only the first process knows what is saved
            self._check_health(deep=True)
            self._save(self.folder.last)

    def _at(self, every: int) -> bool:
        """Whether something that is done every so many steps is due now; at the last step it always is."""
        return self.step % every == 0 or self.step == self.options.steps

    def _stops(self, history: list[Record]) -> bool:
        """Whether to end before the last step: the last `patience` evaluations were not better than an earlier one."""
        patience, selector = self.options.patience, self.options.stop_by
        return bool(patience and history) and evaluations_since_best(history, selector) >= patience

    def _why_stopped(self) -> str:
        options = self.options
        count = f"{options.patience} evaluation{'s' if options.patience > 1 else ''}"
        return f"{self.setup.title} stops: {count} without a better one by {options.stop_by}"

    def _train_step(self) -> None:
        self.training()
        self.average.update(self.step)

    def _check_health(self, deep: bool = False) -> None:
        """Stop on a loss, or (deep) a parameter, that is not a finite number, before anything of it is saved."""
        healthy = self.fabric.all_reduce(self.training.healthy.float(), reduce_op="min")
        if bool(healthy) and not (deep and _broken(self.method)):
            if not deep:
                self.well = Standing(self.stream, self.device)
            return
        culprits = ", ".join(name for name, value in self.training.losses.items() if not value.isfinite())
        raise self._diverged(culprits or "the weights")

    def _diverged(self, culprits: str) -> AfieldError:
        step, folder = self.step, self.folder
        if self.leads:
            accumulate = self.options.accumulate
            save_post_mortem(folder.diverged, self._checkpoint(), self.well, self.training.losses, accumulate)
        return DivergedError(
            f"training diverged: NaN or infinity by step {step} in {culprits}",
            f"{folder.last} keeps the good weights of step {self.saved_step}, {folder.diverged} the batch; try again "
            "with a smaller training.lr, or with training.clip_norm=1",
        )

    def _prepare_evaluation(self) -> dict[str, float]:
        """The part of all processes: average the losses since the last time, and solve for what is not trained."""
        losses = self.training.take_mean_losses()
        with self.average.in_place():
            self.method.before_evaluation(self.stream.still)
        return losses

    def _evaluate(self, losses: dict[str, float]) -> Record:
        generators = generator_states(self.device)
        with self.average.in_place():
            measured = self.evaluator(self.method)
        if self.fabric.world_size > 1:  # all go on with the same numbers, though one has looked
            restore_generators(generators, self.device)
        record = {
            "event": "evaluation",
            "step": self.step,
            **measured,
            "losses": losses,
            "lr": learning_rate(self.options, self.step - 1, self.method.phases),
            "adaptation_weight": adaptation_weight(self.options, self.step - 1, self.method.phases),
        }
        try:
            append_record(self.folder.records, record)
        except ValueError as error:
            raise self._diverged("an evaluation") from error
        return record

    def start(self, header: Record) -> None:
        """Open a fresh folder; `header` is the records' first line. A run that stood there is gone."""
        if self.leads:
            if self.folder.holds_run:
                self.folder.clear()
            self.folder.path.mkdir(parents=True, exist_ok=True)
            rewrite_records(self.folder.records, [header])  # first, because a run is recognised by its records
            write_whole(self.folder.config, tomli_w.dumps(self.setup.config))
            self._save(self.folder.last)
        self.fabric.barrier()

    def resume(self, header: Record) -> None:
        """Go back to where the folder's last checkpoint stands; a run killed before its first one starts anew."""
        records = read_records(self.folder.records) if self.folder.records.exists() else []
        checkpoint = to_go_on_from(self.folder, records, self.setup.config, header, self.device)
        if checkpoint is None:
            self.start(header)
            return
        try:
            self._restore(checkpoint)
        except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
            if is_out_of_memory(error):
                raise
            raise AfieldError(f"{self.folder.last} is damaged: its state does not fit its config") from error
        self.fabric.barrier()  # until all have read
        if self.leads:
            self.folder.sweep()
            self.folder.upgrade()
            if self.folder.diverged.exists():
                self.folder.diverged.unlink()  # this run may do better
            rewrite_records(self.folder.records, [r for r in records if r.get("step", 0) <= self.step])
        self.fabric.barrier()

    def _save(self, path: Path) -> None:
        """Write a checkpoint. All processes stand where the first does, so that any number can go on from it."""
        if not self.leads:
            return
        with self.average.in_place():  # a state dict has the tensors themselves
            save_checkpoint(path, self._checkpoint())
        if path == self.folder.last:
            self.saved_step = self.step

    def _checkpoint(self) -> Checkpoint:
        setup = self.setup
        state = {
            "model": self.method.state_dict(),
            **self.average.state_dict(),
            "optimiser": self.training.optimisers.state_dict(),
            "stream": self.stream.state_dict(),
            "generators": generator_states(self.device),
            "loss_sums": self.training.sums,
            "loss_names": self.training.names,
            "seconds": self.seconds,
        }
        sources = tuple(view.name for view in setup.task.sources)
        preprocessing = asdict(setup.preprocessing)
        return Checkpoint(setup.config, setup.task.classes, sources, preprocessing, self.step, state, setup.origin)

    def _restore(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.state
        if not 0 <= checkpoint.step <= self.options.steps:
            raise ValueError(f"the checkpoint is of step {checkpoint.step} of {self.options.steps}")
        self.saved_step, self.seconds = checkpoint.step, max(0.0, float(state["seconds"]))
        self.method.load_state_dict(state["model"])
        self.average.load_state_dict(state, checkpoint.step)
        self.stream.load_state_dict(state["stream"])
        if self.stream.step != checkpoint.step * self.options.accumulate:
            raise ValueError(f"the stream stands at batch {self.stream.step}, the checkpoint at step {checkpoint.step}")
        optimisers = optimiser_state(state["optimiser"], dict(self.method.named_parameters()))
        self.training.restore(optimisers, state["loss_names"], state["loss_sums"])
        restore_generators(state["generators"], self.device)


def _broken(method: Method) -> bool:
    values = [v for v in method.state_dict().values() if v.is_floating_point()]
    return not bool(torch.stack([v.isfinite().all() for v in values]).all())
