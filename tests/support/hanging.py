"""Methods that dawdle: one whose steps are slow, and one of whose steps does not end, the first time."""

from pathlib import Path

METHODS = """
import time
from pathlib import Path

from torch.nn.functional import cross_entropy

import afield


class Plain(afield.Method):
    taken = 0

    def losses_of(self, F, batch):
        self.taken += 1
        self.dawdle()
        return {{"classification": cross_entropy(self.scores_of(F[: batch.num_labelled]), batch.labels)}}


@afield.register_method("slow", summary="all steps together take longer than the limit", reference="-")
class Slow(Plain):
    def dawdle(self):
        time.sleep({slowness})


@afield.register_method("hangs-once", summary="the first time, a step does not end in time", reference="-")
class HangsOnce(Plain):
    def dawdle(self):
        hung = Path({hung!r})
        if self.taken == {steps} // 2 and not hung.exists():
            hung.touch()
            time.sleep({long})
"""


def write_methods(path, stall_seconds, steps):
    """Write them for runs of so many steps, and return the file that is there once a step has hung.

    Its path is whole, because a process elsewhere may have another folder to work in.
    """
    hung = Path("hung").absolute()
    given = {"hung": str(hung), "steps": steps, "slowness": 1.5 * stall_seconds / steps, "long": 20 * stall_seconds}
    Path(path).write_text(METHODS.format(**given), "utf-8")
    return hung
