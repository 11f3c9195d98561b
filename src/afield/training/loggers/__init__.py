"""Loggers: callbacks that a config names. They draw every evaluation as curves."""

from collections.abc import Sequence
from importlib.util import find_spec

from afield.config.training import LoggerName
from afield.errors import AfieldError
from afield.training.callbacks import Callback


def check_loggers(names: Sequence[LoggerName]) -> None:
    """Raise if a logger's package is not installed; nothing is imported."""
    for name in names:
        try:
            missing = find_spec(name) is None
        except ValueError:  # imported, by someone who says not from where
            missing = False
        if missing:
            raise AfieldError(f'the logger {name} needs the package {name}: pip install "afield[{name}]"')


def make_loggers(names: Sequence[LoggerName]) -> list[Callback]:
    """The loggers of these names, each once."""
    check_loggers(names)
    return [_make(name) for name in dict.fromkeys(names)]


def _make(name: LoggerName) -> Callback:
    if name == "wandb":
        from afield.training.loggers.wandb import WandbLogger

        return WandbLogger()
    if name == "mlflow":
        from afield.training.loggers.mlflow import MlflowLogger

        return MlflowLogger()
    from afield.training.loggers.tensorboard import TensorBoardLogger

    return TensorBoardLogger()
