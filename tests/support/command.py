"""The installed command, as a user runs it."""

import sys
from pathlib import Path

COMMAND = [str(Path(sys.executable).parent / "afield")]
