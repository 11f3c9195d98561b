"""The formats of an exported model, and the checks that need no torch."""

from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from afield.errors import AfieldError, unknown

Format = Literal["onnx", "torch", "safetensors"]
SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "torch": ".pt2", "safetensors": ".safetensors"}
EXTRA = ("onnx", "onnxruntime", "onnxscript")


def check_format(name: str, file: Path, int8: bool = False, images: bool = False) -> Format:
    """The format of that name, or the error in what was asked."""
    kind = next((known for known in get_args(Format) if known == name), None)
    if kind is None:
        raise unknown("format", name, get_args(Format))
    checked: Format = kind
    if file.suffix.lower() != SUFFIXES[checked]:
        raise AfieldError(f"a file of format {name} ends in {SUFFIXES[checked]}, not '{file.name}'")
    if file.is_dir():
        raise AfieldError(f"{file} is a folder, not a file for a model")
    if int8 and checked != "onnx":
        raise AfieldError(f"int8 is for format onnx, not {name}")
    if images and not int8:
        raise AfieldError("data is for int8, which takes images to calibrate by; other exports need none")
    missing = [package for package in EXTRA if checked == "onnx" and not _is_there(package)]
    if missing:
        raise AfieldError(f'format onnx needs the package {missing[0]}: pip install "afield[export]"')
    return checked


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ValueError:  # imported, by someone who says not from where
        return True
