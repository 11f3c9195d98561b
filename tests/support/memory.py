"""What a process takes in memory."""

import subprocess
import sys

MEGABYTE = 2**20


def memory_of(imports, code, *words):
    """What a process that runs this code needs beyond what its imports take, in bytes; and what it prints."""
    # Not ru_maxrss, which a process has from the one that started it: it would begin at all that this one has needed.
    peak = "int(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    imports = f"import sys\nfrom pathlib import Path\n{imports}"
    code = f"{imports}\nbefore = {peak}\n{code}\nprint({peak} - before, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=True)
    return 1024 * int(done.stderr.splitlines()[-1]), done.stdout
