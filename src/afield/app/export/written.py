"""One function per format: each writes a file, reads it again, and compares it with the network."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from afield.app.export.network import (
    INPUT,
    OUTPUT,
    Pixels,
    Probabilities,
    ProbabilityNetwork,
    check_same,
    refusal,
    silent,
    traced,
)
from afield.errors import AfieldError

MOST_BYTES = 2**31 - 2**20
"""Of weights in one ONNX file: protobuf ends at 2 GB."""
METADATA_FILE = "afield.json"
"""Where torch's program has the metadata: one of its extra files."""


class Session:
    """An ONNX file in onnxruntime, on the CPU."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        self._session: Any = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def __call__(self, images: Pixels) -> Probabilities:
        """Probabilities of images (N, 3, size, size)."""
        probabilities: Probabilities = self._session.run([OUTPUT], {INPUT: images})[0]
        return probabilities


def write_onnx(network: ProbabilityNetwork, path: Path, metadata: Mapping[str, str]) -> float:
    """By torch's exporter, compared in onnxruntime."""
    size = sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))
    if size > MOST_BYTES:
        raise AfieldError(f"its weights take {size / 2**30:.1f} GB, and an ONNX file holds 2; take format torch")
    program = traced(network)
    try:
        with silent():
            made: Any = torch.onnx.export(
                program, dynamo=True, input_names=[INPUT], output_names=[OUTPUT], verbose=False
            )
    except Exception as error:  # an operation that ONNX does not have
        raise refusal(network.model, error) from error
    if hasattr(made, "rename_axes"):  # which early releases of torch 2 do not have
        made.rename_axes({made.model.graph.inputs[0].shape[0]: "batch"})  # the tracer calls it s34 or the like
    for node in made.model.graph.all_nodes():
        node.metadata_props.clear()  # how it came to be made, which is as long as the rest of a small model
    made.model.metadata_props.update(metadata)
    made.save(str(path), external_data=False)
    return check_same(network, Session(path), "onnxruntime")


def write_torch(network: ProbabilityNetwork, path: Path, metadata: Mapping[str, str]) -> float:
    """By torch.export, and read again."""
    torch.export.save(traced(network), path, extra_files={METADATA_FILE: json.dumps(metadata)})
    again = torch.export.load(path).module()

    def run(images: Pixels) -> Probabilities:
        with torch.no_grad():
            probabilities: Probabilities = again(torch.from_numpy(images)).numpy()
        return probabilities

    return check_same(network, run, "the file's program")


def write_safetensors(network: ProbabilityNetwork, path: Path, metadata: Mapping[str, str]) -> float:
    """The method's weights by the names that its modules have, and read again."""
    method = network.model.method
    # Copies: safetensors refuses memory that two names share, and channels-last memory.
    tensors = {name: tensor.detach().contiguous().clone() for name, tensor in method.state_dict().items()}
    save_file(tensors, path, metadata=dict(metadata))
    again: dict[str, Tensor] = load_file(path)
    if again.keys() != tensors.keys() or not all(torch.equal(again[name], tensors[name]) for name in tensors):
        raise AfieldError("the weights in the file are not those of the model; no file was written")
    return 0.0
