"""Whether a run can go on: its checkpoint, its records and this machine must fit each other."""

from typing import Any

import torch

from afield.config.layers import among_any, completed
from afield.errors import AfieldError
from afield.results.folder import RunFolder
from afield.results.records import Record, evaluations
from afield.training.checkpoint import Checkpoint, load_checkpoint

Config = dict[str, dict[str, Any]]


def to_go_on_from(
    folder: RunFolder, records: list[Record], config: Config, header: Record, device: torch.device
) -> Checkpoint | None:
    """The checkpoint that a run of a config goes on from; None for a run that was killed before its first one.

    `header` is what the records of a run that begins here and now would begin with.
    """
    if not folder.last.exists():
        if evaluations(records) or any(file.exists() for file in folder.checkpoints):
            raise AfieldError(f"{folder.last} is gone, so there is nothing to go on from; overwrite starts anew")
        return None
    checkpoint = load_checkpoint(folder.last)
    if not _is_of(checkpoint, config):
        raise AfieldError(f"{folder.config} and {folder.last} are not of one run: their configs differ")
    cannot = f"cannot resume {folder.path}"
    if checkpoint.state.get("others"):
        raise AfieldError(f"{cannot}: an older version began it in several processes with a batch each")
    if not records or records[0].get("protocol") != header["protocol"]:
        raise AfieldError(f"{cannot}: its records are of other data than there is now")
    if not isinstance(generators := checkpoint.state.get("generators", {}), dict):
        raise AfieldError(f"{cannot}: {folder.last} is damaged: generators")
    begun_on = "cuda" if "cuda" in generators else "cpu"
    if begun_on != device.type:
        raise AfieldError(f"{cannot} on {device.type}: it was begun on {begun_on}")
    if (begun_in := records[0].get("precision")) != (here := header.get("precision")):
        raise AfieldError(f"{cannot}: it was begun in {begun_in}, and here precision 'auto' is {here}")
    return checkpoint


def _is_of(checkpoint: Checkpoint, config: Config) -> bool:
    """Whether a checkpoint has a config; options that did not exist when it was stored are defaults."""
    try:
        return among_any(completed(checkpoint.config)) == among_any(config)
    except (AfieldError, AttributeError, TypeError):  # a damaged one
        return False
