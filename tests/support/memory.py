"""What a process takes in memory."""

import subprocess
import sys

MEGABYTE = 2**20


def memory_of(imports, code, *words):
    """What a process that runs this code needs beyond what its imports take, in bytes; and what it prints."""
    peak = "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss"
    code = f"import resource, sys\n{imports}\nbefore = {peak}\n{code}\nprint({peak} - before, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=True)
    return 1024 * int(done.stderr.splitlines()[-1]), done.stdout
