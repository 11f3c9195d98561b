"""Killing a run at a chosen moment, and comparing what it left with a run that was never killed."""

import json
from pathlib import Path

import pytest
import torch

from afield.training import checkpoint, loop
from afield.training.checkpoint import load_checkpoint
from afield.training.loop import Loop

DROPOUT = {"network.hidden": [16], "network.dropout": 0.5}


class Killed(BaseException):
    """Not an Exception: nothing may catch it, as nothing catches a kill."""


def every(evaluate, checkpoint):
    return {"training.evaluate_every": evaluate, "training.checkpoint_every": checkpoint}


def kill_before_step(patch, step):
    plain = Loop._train_step

    def dying(self):
        if self.step == step:
            raise Killed
        return plain(self)

    patch.setattr(Loop, "_train_step", dying)


def killed_run(train, folder, settings):
    """The folder of a run of three steps that was killed before the last, by a function that trains."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_before_step(patch, 2)
        train(folder, "baseline", 3, settings=settings)
    return folder


def kill_after_record(patch, step):
    plain = loop.append_record

    def dying(path, record):
        plain(path, record)
        if record["step"] == step:
            raise Killed

    patch.setattr(loop, "append_record", dying)


def kill_while_saving(patch, name, step):
    plain = checkpoint.save_file

    def dying(tensors, path, metadata):
        plain(tensors, path, metadata=metadata)
        if Path(path).name.startswith(name) and json.loads(metadata[checkpoint.KEY])["step"] == step:
            Path(path).write_bytes(Path(path).read_bytes()[:1000])
            raise Killed

    patch.setattr(checkpoint, "save_file", dying)


def flat(tree, path=""):
    """The leaves of a tree by path."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else None
    if pairs is None:
        return {path: tree}
    return {name: leaf for key, value in pairs for name, leaf in flat(value, f"{path}/{key}").items()}


def assert_equal_checkpoints(one, other):
    first, second = load_checkpoint(one), load_checkpoint(other)
    for name in ("config", "classes", "sources", "preprocessing", "step"):
        assert getattr(first, name) == getattr(second, name)
    assert_equal_states(first.state, second.state)


def assert_equal_states(state, other):
    """Bit for bit, but for the time it took."""
    leaves, others = flat(state), flat(other)
    assert leaves.keys() == others.keys()
    assert {"/stream/noise", "/generators/cpu"} <= leaves.keys()
    assert any(name.startswith("/optimiser/") for name in leaves)
    for name, leaf in leaves.items():
        if isinstance(leaf, torch.Tensor):
            assert torch.equal(leaf, others[name]), name
        elif name != "/seconds":
            assert leaf == others[name], name


def assert_equal_runs(resumed, unbroken):
    for name in ("last.ckpt", "source-val.ckpt"):
        assert_equal_checkpoints(resumed.folder / name, unbroken.folder / name)
    lines, others = ((run.folder / "records.jsonl").read_text().splitlines() for run in (resumed, unbroken))
    assert lines[:-1] == others[:-1]
    ends = [{**json.loads(last[-1]), "seconds": 0} for last in (lines, others)]
    assert ends[0] == ends[1]
    assert (resumed.folder / "config.toml").read_text() == (unbroken.folder / "config.toml").read_text()
    assert {path.name for path in resumed.folder.iterdir()} == {path.name for path in unbroken.folder.iterdir()}
