"""What the tests of reports and figures share: the command in this process, where the toy data is known."""

import sys

import pytest

from afield.app.cli import main


def call(*words):
    """Run the command line here; the exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["afield", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
    return stopped.value.code or 0
