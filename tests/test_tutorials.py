"""The tutorials' code runs as written, block after block, with fewer steps and on small images.

A block with a title is a file. A `console` block has commands, after `$`, and what they print; `...` stands for what
differs.
"""

import re
import shlex
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

import afield
from support.images import write_folder

TUTORIALS = Path(__file__).parents[1] / "docs/tutorials"
INFO = re.compile(r'(?P<language>\w+)(?: title="(?P<title>[^"]+)")?$\n', re.MULTILINE)
# What is made smaller, as it stands in commands, in Python and in plans.
SMALLER = {
    "--steps 400": "--steps 2",
    "steps=400": "steps=2",
    "training.steps = 400": "training.steps = 1\nnetwork.width = 8\ntraining.batch_size = 4",
    "seeds = [0, 1, 2]": "seeds = [0]",
    "seeds = [0, 1]": "seeds = [0]",
}
CAMERAS = {f"camera{number}": {"bus": 6, "car": 6} for number in (1, 2, 3)} | {"camera4": 8}


def smaller(text):
    for written, small in SMALLER.items():
        text = text.replace(written, small)
    return text


class Blocks:
    """What is done with a block of each kind."""

    def __init__(self, call):
        self.call = call
        self.lexer = RawFencedCodeBlockLexer(INFO)

    def __call__(self, document):
        kinds = {"python": PythonEvaluator(), "console": self.run_commands}
        for region in self.lexer(document):
            source = region.lexemes["source"]
            region.parsed = type(source)(smaller(source.text), source.offset, source.line_offset)
            region.evaluator = self.write_file if region.lexemes["title"] else kinds[region.lexemes["language"]]
            yield region

    def write_file(self, block):
        Path(block.region.lexemes["title"]).write_text(block.parsed, "utf-8")

    def run_commands(self, block):
        for part in re.split(r"^\$ ", block.parsed, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            command, _, file = command.partition(" > ")
            program, *words = shlex.split(command)
            assert program == "afield"
            code, printed, errors = self.call(*words)
            assert code == 0, (command, errors)
            if file:
                Path(file).write_text(printed, "utf-8")
                printed = ""
            if not OutputChecker().check_output(expected, printed, ELLIPSIS | NORMALIZE_WHITESPACE):
                return f"{command}\nshould print\n{expected}\nand prints\n{printed}"
        return None


@pytest.mark.usefixtures("own_methods")
@pytest.mark.parametrize("name", ["own-images", "choosing", "deployment", "new-method", "paper-table"])
def test_every_block_of_a_tutorial_runs(name, tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    write_folder(Path("photos"), CAMERAS, suffix=".jpg")
    if name == "deployment":  # which goes on with what a user has trained
        afield.train(data="photos", target="camera4", method="baseline", steps=2, out="runs/a", progress=False)
    blocks = list(Sybil(parsers=[Blocks(call)]).parse(TUTORIALS / f"{name}.md"))
    assert len(blocks) > 3
    for block in blocks:
        block.evaluate()


def test_all_tutorials_are_run():
    (marked,) = [mark for mark in test_every_block_of_a_tutorial_runs.pytestmark if mark.name == "parametrize"]
    assert {page.stem for page in TUTORIALS.glob("*.md")} - {"index"} == set(marked.args[1])
