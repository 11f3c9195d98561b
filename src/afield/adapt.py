"""Adapting a trained network to a target without training it again."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from afield.batches import BatchStream
from afield.config import Values, resolve
from afield.domains import load_data, make_task
from afield.errors import AfieldError
from afield.inference import load
from afield.methods.meda import MEDA
from afield.records import Record
from afield.run import Place, build_method, make_header
from afield.training import Evaluator, best_device, load_checkpoint


def adapt_with_meda(
    checkpoint: Path, target: str | None = None, *, place: Place | None = None, **options: Any
) -> tuple[MEDA, list[Record]]:
    """MEDA on the features of a baseline's checkpoint, and records as of a run of `meda` whose one evaluation this is.

    The target is the checkpoint's own unless another is named; `options` are those of MEDA; `place` is where the
    records are to stand in a benchmark's table.
    """
    started, trained, model = time.perf_counter(), load_checkpoint(checkpoint), load(checkpoint)
    if model.config.method_name != "baseline":
        raise AfieldError(f"{checkpoint} is of method '{model.config.method_name}'; MEDA takes a baseline's features")
    task_values: Values = {"task": {"kind": "uda", **({"target": target} if target else {})}}
    config = resolve(trained.config, task_values, {"method": {"name": "meda", **options}})
    data, device = load_data(config.data.name), best_device()
    task, views = make_task(data, "uda", config.task.target, trained.sources)

    shape = model.preprocessing.image_size, len(model.classes), len(trained.sources)
    method = build_method(replace(config, network=model.config.network), *shape)
    assert isinstance(method, MEDA)
    method.load_state_dict(method.state_dict() | model.method.state_dict())
    method.to(device)
    stream = BatchStream(task, config.training.batch_size, model.preprocessing, device, config.training.seed)
    method.fit(stream.still(method.images_to_fit))
    evaluation = Evaluator(views, model.preprocessing, device)(method)

    seconds = trained.state["seconds"] + time.perf_counter() - started
    return method, [
        make_header(config, data, device, place),
        {"event": "evaluation", "step": trained.step, **evaluation, "losses": {}},
        {"event": "end", "step": trained.step, "seconds": round(seconds, 3)},
    ]
