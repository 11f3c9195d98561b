"""Which checkpoints stay in a run's folder: for each selector asked for, that of the evaluation it chooses."""

from collections.abc import Callable, Sequence
from pathlib import Path

from afield.files import link
from afield.results.folder import RunFolder
from afield.results.records import Record
from afield.results.selection import SCORES, scores, select


class Keeper:
    """Saves, at an evaluation, the checkpoints of the selectors that choose it.

    A new evaluation may make `ensemble`, which goes by ranks among all of them, choose an earlier one. So for it there
    are candidates while a run trains: a checkpoint for each evaluation that no other is as good as by every score.
    """

    def __init__(self, folder: RunFolder, selectors: Sequence[str], save: Callable[[Path], None]) -> None:
        self.folder, self.save = folder, save
        self.alone = [name for name in dict.fromkeys(selectors) if name not in ("last", "ensemble")]
        self.ensemble = "ensemble" in selectors

    def evaluated(self, history: Sequence[Record]) -> bool:
        """Save what chooses the newest evaluation, at which the run now stands; whether anything does.

        If so it is the last checkpoint, too. A run that went back to before it would evaluate this step anew, and with
        other processes or on a GPU perhaps choose otherwise than the files that are kept.
        """
        newest = history[-1]
        files = [self.folder.checkpoint(name) for name in self.alone if select(history, name) is newest]
        if self.ensemble and any(each is newest for each in undominated(history)):
            files.append(self.folder.candidate(newest["step"]))
        if files:
            self.save(files[0])
            for file in (*files[1:], self.folder.last):
                link(files[0], file)
        if self.ensemble:
            link(self.folder.candidate(select(history, "ensemble")["step"]), self.folder.checkpoint("ensemble"))
        return bool(files)

    def saved(self, history: Sequence[Record]) -> None:
        """Remove candidates that can no longer be chosen: a resumed run does not go back to before this step."""
        if self.ensemble and history:
            needed = {self.folder.candidate(evaluation["step"]) for evaluation in undominated(history)}
            self._remove(set(self.folder.candidates) - needed)

    def ended(self) -> None:
        """Remove all candidates."""
        self._remove(set(self.folder.candidates))

    def _remove(self, files: set[Path]) -> None:
        for file in files:
            file.unlink()


def undominated(history: Sequence[Record]) -> list[Record]:
    """The evaluations that no other equals or beats by every score of the ensemble; of equal ones, the earliest."""
    points = list(zip(*(scores(history, name) for name in SCORES), strict=True))
    return [
        evaluation
        for number, (evaluation, point) in enumerate(zip(history, points, strict=True))
        if not any(
            all(theirs >= ours for theirs, ours in zip(other, point, strict=True))
            and (other != point or place < number)
            for place, other in enumerate(points)
            if place != number
        )
    ]
