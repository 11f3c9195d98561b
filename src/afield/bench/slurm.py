"""The engine of a Slurm cluster: a script for an array of tasks, each of which takes one shard of the plans."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from afield.config.plan import jobs_of, read_plan_file
from afield.errors import AfieldError
from afield.files import write_whole
from afield.results.folder import RunFolder

SECONDS_BEFORE_THE_END = 120
"""How long before its time is up a task is told to stop, so that its runs can save checkpoints."""


@dataclass(frozen=True)
class Array:
    """What `afield bench --engine slurm` is asked for."""

    plans: Sequence[Path]
    out: Path
    shards: int
    options: Sequence[str] = ()
    """Options of sbatch, such as --time=04:00:00: a line of the script each."""
    words: Sequence[str] = ()
    """Options of `afield bench` that every task has, such as --workers 2."""

    def write(self) -> Path:
        """Write the script into the benchmark's folder, once the plans have been looked at."""
        jobs = jobs_of([read_plan_file(plan) for plan in self.plans])
        if not 1 <= self.shards <= len(jobs):
            raise AfieldError(f"there are {len(jobs)} runs: they can have 1 to {len(jobs)} shards, not {self.shards}")
        for option in self.options:
            if not re.match(r"--?[A-Za-z]", option) or "\n" in option:
                raise AfieldError(f"an option of sbatch is one line, such as --time=04:00:00 or -p gpu, not '{option}'")
        if RunFolder(self.out).config.exists():
            raise AfieldError(f"{self.out} holds a run of `afield train`; a benchmark needs a folder of its own")
        self.out.mkdir(parents=True, exist_ok=True)
        script = self.out / "slurm.sh"
        write_whole(script, self.text())
        return script

    def text(self) -> str:
        """The script. Its options come before the user's, which win."""
        out = self.out.absolute()
        options = [
            f"--job-name=afield-{'-'.join(plan.stem for plan in self.plans)}",
            f"--array=1-{self.shards}",
            f"--output={out}/slurm-%A_%a.log",
            f"--signal=B:TERM@{SECONDS_BEFORE_THE_END}",
        ]
        plans = [str(plan.absolute()) for plan in self.plans]
        words = [sys.executable, "-m", "afield", "bench", *plans, "--out", str(out), *self.words]
        return "\n".join(
            [
                "#!/bin/bash",
                *(f"#SBATCH {option}" for option in (*map(shlex.quote, options), *self.options)),
                "# Written by `afield bench --engine slurm`. Submitted again, it goes on with what is not recorded.",
                f"cd {shlex.quote(str(Path.cwd()))}",
                # In place of the shell, so that Slurm's signal reaches it.
                f'exec {shlex.join(words)} --shard "$SLURM_ARRAY_TASK_ID/{self.shards}"',
                "",
            ]
        )


def submit(script: Path) -> str:
    """Hand the script to sbatch; what sbatch says."""
    if shutil.which("sbatch") is None:
        raise AfieldError(f"there is no sbatch here; {script} can be submitted where there is one")
    done = subprocess.run(["sbatch", str(script)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AfieldError(f"sbatch refused {script}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout.strip()
