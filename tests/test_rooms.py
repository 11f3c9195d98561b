"""The arrows between rooms: every import in the package, wherever it stands, goes from a later room to an earlier."""

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

import afield

PACKAGE = Path(afield.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
FACE = PACKAGE / "__init__.py"
LONGEST = 400

# From the first room, which knows no other, to the last, which nobody knows. A new room finds its place here.
ORDER = (
    "errors", "files", "options", "precision", "domains", "batches", "strong_views", "networks", "losses",
    "closed_form", "methods", "records", "selection", "summary", "catalogue", "training", "config", "run", "bench",
    "inference", "evaluate", "predict", "demo", "cli",
)  # fmt: skip
NEVER = {
    "domains": {"torch", "lightning"},
    "networks": {"afield.losses", "afield.batches", "afield.domains"},
    "losses": {"afield.networks", "afield.batches", "afield.domains"},
    "closed_form": {"torch", "lightning"},
    "methods": {"afield.training", "afield.records", "afield.config", "afield.run", "lightning"},
    "records": {"torch", "lightning"},
    "selection": {"torch", "lightning"},
    "summary": {"torch", "lightning"},
    "training": {"afield.catalogue", "afield.config"},
}
FILE_MODULES = {"os", "io", "pathlib", "shutil", "tempfile", "glob", "fileinput"}


class Import(NamedTuple):
    """One imported name: `from a.b import c` is (a.b, c), `import a.b` is (a.b, None)."""

    line: int
    module: str
    name: str | None


def imports_in(source: str, package: str = "afield") -> list[Import]:
    """All imports of a file of this package: at the top, in functions, and for the type checker only."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [Import(node.lineno, alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            found += [Import(node.lineno, module, alias.name) for alias in node.names]
    return found


def imports_of(file: Path) -> list[Import]:
    package = ".".join(("afield", *file.relative_to(PACKAGE).parent.parts))
    return imports_in(file.read_text("utf-8"), package)


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def room_named(found: Import) -> str | None:
    """The room an import reaches into, or None if it leaves the package or asks only for the version."""
    parts = found.module.split(".")
    if parts[0] != "afield" or (len(parts) == 1 and found.name == "__version__"):
        return None
    return parts[1] if len(parts) > 1 else found.name or "the public face"


def reaches(found: Import, forbidden: str) -> bool:
    full = f"{found.module}.{found.name}"
    return f"{full}.".startswith(f"{forbidden}.") or f"{found.module}.".startswith(f"{forbidden}.")


def path_in_package(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("file", [f for f in FILES if f != FACE], ids=path_in_package)
def test_a_file_imports_only_from_its_own_room_and_earlier_ones(file):
    own = ORDER.index(room_of(file))
    for found in imports_of(file):
        room = room_named(found)
        if room is not None:
            assert room in ORDER, f"line {found.line} imports from '{room}', which is no room"
            assert ORDER.index(room) <= own, f"line {found.line}: {ORDER[own]} must not know {room}"


@pytest.mark.parametrize("room", NEVER)
def test_a_room_never_imports_what_it_must_not_touch(room):
    for file in (f for f in FILES if room_of(f) == room):
        for found in imports_of(file):
            broken = [forbidden for forbidden in NEVER[room] if reaches(found, forbidden)]
            assert not broken, f"line {found.line} of {path_in_package(file)} imports {broken[0]}"


@pytest.mark.parametrize("room", ["domains", "records", "selection"])
def test_no_way_through_other_rooms_leads_to_torch(room):
    rooms, waiting = set(), {room}
    while waiting:
        rooms |= waiting
        found = [i for f in FILES if room_of(f) in waiting and f != FACE for i in imports_of(f)]
        torch = [i for i in found if reaches(i, "torch") or reaches(i, "lightning")]
        assert not torch, f"{room} comes to {torch[0].module} by way of {', '.join(sorted(rooms))}"
        waiting = {r for r in map(room_named, found) if r is not None} - rooms


def test_methods_open_no_files():
    for file in (f for f in FILES if room_of(f) == "methods"):
        for found in imports_of(file):
            if (found.module, found.name) == ("pathlib", "PurePath"):
                continue  # a path that cannot touch a disk
            assert found.module.split(".")[0] not in FILE_MODULES, f"{path_in_package(file)} imports {found.module}"
        calls = [node.func for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Call)]
        assert not [c for c in calls if isinstance(c, ast.Name) and c.id == "open"], path_in_package(file)


def test_training_knows_methods_only_by_their_rooms_door():
    inside = {f.stem for f in FILES if room_of(f) == "methods"}
    for file in (f for f in FILES if room_of(f) == "training"):
        for found in imports_of(file):
            if reaches(found, "afield.methods"):
                assert found.module == "afield.methods", f"{path_in_package(file)} imports {found.module}"
                assert found.name not in inside, f"{path_in_package(file)} imports the file {found.name}"


def test_only_the_face_and_the_methods_room_import_by_a_computed_name():
    allowed = {"__init__.py", "methods/__init__.py"}
    for file in FILES:
        computed = {"importlib.import_module", "importlib.__import__"}
        names = {f"{i.module}.{i.name}" for i in imports_of(file)}
        assert path_in_package(file) in allowed or not names & computed, path_in_package(file)


def test_every_room_has_its_place_in_the_order_and_exists():
    assert {room_of(f) for f in FILES if f != FACE} == set(ORDER)


@pytest.mark.parametrize("file", FILES, ids=path_in_package)
def test_a_file_is_short_enough_to_read(file):
    assert len(file.read_text("utf-8").splitlines()) <= LONGEST


@pytest.mark.parametrize("file", sorted((PACKAGE / "methods").glob("*.py")), ids=path_in_package)
def test_a_method_file_says_what_it_is(file):
    assert (ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").strip()


def test_imports_are_found_wherever_they_stand():
    source = """
import afield.training.run as r
from afield.config import layers as config
from . import gates
from ..losses.moments import moment_distance
if TYPE_CHECKING:
    from afield.app.cli import app
def late():
    import torch.nn, os
"""
    found = imports_in(source, "afield.networks")
    assert [room_named(i) for i in found] == ["run", "config", "networks", "losses", "cli", None, None]
    assert reaches(found[-2], "torch")
    assert reaches(found[1], "afield.config")
    assert not reaches(Import(1, "torchvision", None), "torch")
    assert room_named(Import(1, "afield", "__version__")) is None
