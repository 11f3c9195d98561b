"""Evaluations as metrics in MLflow."""

import os
import re
import time
from typing import Any

import mlflow
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from afield.errors import AfieldError
from afield.results.curves import curves_of
from afield.results.folder import RunFolder
from afield.results.records import Record
from afield.training.callbacks import Callback, RunStart

MOST_METRICS, MOST_PARAMS, LONGEST_PARAM = 1000, 100, 6000
"""What MLflow takes at once, and the characters of one value."""


class MlflowLogger(Callback):
    """A run of MLflow, of the folder's name; MLflow's own variables (MLFLOW_TRACKING_URI and so on) say where.

    A resumed run goes on in the same one. Steps that were logged before a kill are not logged again, because MLflow
    would draw both.
    """

    def on_start(self, run: RunStart) -> None:
        """Begin a run of MLflow, or go on in the one that this folder has begun."""
        # Not mlflow.start_run: the user may have a run of MLflow open, which is not ours.
        self.client, folder = mlflow.MlflowClient(), RunFolder(run.folder)
        self.run_id, self.logged_step = folder.logger_ids.get("mlflow", ""), 0
        if self.run_id:
            self._go_on(run)
            return
        name = run.folder.resolve().name
        self.run_id = self.client.create_run(self._experiment(), run_name=name).info.run_id
        folder.remember_logger("mlflow", self.run_id)
        params = [
            Param(f"{section}.{key}", str(value)[:LONGEST_PARAM])
            for section, values in run.config.items()
            for key, value in values.items()
        ]
        for start in range(0, len(params), MOST_PARAMS):
            self.client.log_batch(self.run_id, params=params[start : start + MOST_PARAMS])

    def _go_on(self, run: RunStart) -> None:
        try:
            self.client.update_run(self.run_id, status="RUNNING")
            logged = self.client.get_metric_history(self.run_id, "schedule/lr")
        except MlflowException as error:
            raise AfieldError(
                f"the store {mlflow.get_tracking_uri()} lacks the MLflow run of {run.folder}: "
                "set MLFLOW_TRACKING_URI to the one that it was begun in"
            ) from error
        self.logged_step = max((metric.step for metric in logged), default=0)

    def _experiment(self) -> str:
        if (known := os.environ.get("MLFLOW_EXPERIMENT_ID")) is not None:
            return known
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "afield")
        found = self.client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self.client.create_experiment(name))
            except MlflowException:  # another run may have made it in the meantime
                found = self.client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def on_evaluation(self, evaluation: Record) -> None:
        """Add one evaluation."""
        if evaluation["step"] <= self.logged_step:
            return
        now = int(time.time() * 1000)
        curves = {metric_name(name): value for name, value in curves_of(evaluation).items()}
        metrics: list[Any] = [Metric(name, value, now, evaluation["step"]) for name, value in curves.items()]
        for start in range(0, len(metrics), MOST_METRICS):
            self.client.log_batch(self.run_id, metrics=metrics[start : start + MOST_METRICS])

    def on_end(self, error: BaseException | None) -> None:
        """Say how it ended; a resumed run is running again."""
        if getattr(self, "run_id", ""):
            stopped = "FAILED" if isinstance(error, Exception) else "KILLED"
            self.client.set_terminated(self.run_id, "FINISHED" if error is None else stopped)


def metric_name(curve: str) -> str:
    """A curve's name as MLflow allows it: without a plus, and with few other signs.

    >>> metric_name("target-from/night/A+R+")
    'target-from/night/A plus R plus'
    """
    words = " ".join(curve.replace("+", " plus ").split())
    return re.sub(r"[^\w.\- :/]", "_", words)
