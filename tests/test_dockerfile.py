"""The Dockerfile, as far as it can be held to account without Docker."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INSTRUCTIONS = [
    tuple(line.split(maxsplit=1))
    for line in re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text("utf-8")).splitlines()
    if line and not line.startswith("#")
]


def of(kind):
    return [rest for name, rest in INSTRUCTIONS if name == kind]


def copied():
    return [word.removeprefix("./") for rest in of("COPY") for word in rest.split()[:-1]]


def test_it_is_the_command_under_a_user_without_privileges():
    assert json.loads(of("ENTRYPOINT")[-1]) == ["afield"]
    assert of("USER")[-1] not in ("root", "0")
    (base,) = of("FROM")
    assert re.fullmatch(r"python:3\.\d+-slim", base)


def test_it_installs_tested_versions_and_extras_that_exist():
    (install,) = [rest for rest in of("RUN") if "pip install" in rest]
    assert "--constraint constraints.txt" in install
    extras = re.search(r"'\.\[([\w,]+)\]'", install)[1].split(",")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(extras) <= set(project["optional-dependencies"])


def test_docker_is_given_what_is_copied_and_nothing_else():
    lines = [line for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == set(copied())


def test_what_is_copied_is_enough_to_know_the_package(tmp_path):
    pytest.importorskip("setuptools")
    for name in copied():
        given = ROOT / name
        (shutil.copytree if given.is_dir() else shutil.copy)(given, tmp_path / name)
    code = "from setuptools.build_meta import prepare_metadata_for_build_wheel as p; print(p('.'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    metadata = next(tmp_path.glob("*.dist-info/METADATA")).read_text("utf-8")
    assert "Name: afield" in metadata
