"""Tables of a report: cells as they are shown, with the numbers to sort by."""

from dataclasses import dataclass, field

from afield.analysis.history import History
from afield.analysis.palette import short
from afield.analysis.predictions import most_confused
from afield.analysis.study import Learned
from afield.results.rows import Table
from afield.results.show import beside, cells, headers
from afield.results.summary import percent

MOST_PAIRS = 10


@dataclass(frozen=True)
class Grid:
    """A table on the page. A cell has the text to show and, if it is a number, the number to sort by."""

    columns: list[str]
    rows: list[list[tuple[str, float | None]]]
    notes: list[str] = field(default_factory=list)

    @property
    def numeric(self) -> list[bool]:
        """By column, whether any of its cells is a number."""
        return [any(row[place][1] is not None for row in self.rows) for place in range(len(self.columns))]


def result_grid(history: History) -> Grid | None:
    """Accuracies by domain at the evaluation that each selector chooses."""
    if not history.chosen:
        return None
    columns = ["domain", "role", *(f"{name} (step {history.steps[at]})" for name, at in history.chosen.items())]
    rows = [
        [word(domain), word("target" if domain == history.target else "source"), *map(share, values)]
        for domain, curve in history.accuracy.items()
        for values in [[curve[at] for at in history.chosen.values()]]
    ]
    return Grid(columns, rows)


def view_grid(history: History) -> Grid | None:
    """Accuracies from each feature at the last evaluation."""
    if not history.views:
        return None
    names = list(dict.fromkeys(name for views in history.views.values() for name in views))
    rows = [
        [word(domain), *(share(views[name][-1] if name in views else None) for name in names)]
        for domain, views in history.views.items()
    ]
    return Grid(["domain", *names], rows)


def class_grid(learned: Learned) -> Grid | None:
    """Accuracy of each class by domain; None where no domain has labels."""
    known = [each for each in learned.predictions if each.labels is not None]
    if not known:
        return None
    of_domains = [each.class_accuracy for each in known]
    rows = [
        [word(name), *(share(accuracies[number]) for accuracies in of_domains)]
        for number, name in enumerate(learned.classes)
    ]
    return Grid(["class", *(each.domain for each in known)], rows)


def confused_grid(learned: Learned) -> Grid | None:
    """The pairs of classes that are confused most, on the target or, where it has no labels, on all sources."""
    known = [each for each in learned.predictions if each.labels is not None]
    known = [each for each in known if each.domain == learned.target] or known
    if not known:
        return None
    matrices = [matrix for each in known if (matrix := each.confusion) is not None]
    pairs = most_confused(sum(matrices[1:], matrices[0]), MOST_PAIRS)
    where = ", ".join(each.domain for each in known)
    rows = [[word(learned.classes[a]), word(learned.classes[b]), (str(n), float(n))] for a, b, n in pairs]
    return Grid(["true class", "taken for", "images"], rows, [f"On {where}."])


def divergence_grid(learned: Learned) -> Grid | None:
    """The divergence of every two domains, by map."""
    divergence = learned.divergence
    if divergence is None:
        return None
    names, maps = divergence.domains, divergence.between
    rows = [
        [word(f"{names[i]}, {names[j]}"), *((f"{of_map[i, j]:.3g}", float(of_map[i, j])) for of_map in maps.values())]
        for i, j in divergence.pairs
    ]
    return Grid(["domains", *maps], rows)


def complexity_grid(learned: Learned) -> Grid:
    """Parameters and multiply-adds by part of the network."""
    whole = learned.complexity
    parts = [(part.name, part.parameters, part.multiply_adds) for part in whole.parts]
    rows = [
        [word(name), (f"{parameters:,}", float(parameters)), (short(products), float(products))]
        for name, parameters, products in (*parts, ("all", whole.parameters, whole.multiply_adds))
    ]
    return Grid(["part", "parameters", "multiply-adds"], rows)


def table_grid(table: Table) -> Grid:
    """A table of `afield table`, sorted by its means; published figures are rows of their own."""
    rows = []
    for row in table.rows:
        means = [*(row.targets[name].mean for name in table.columns), *([row.average.mean] if table.averaged else [])]
        rows.append([word(row.name), *zip(cells(table, row), means, strict=True)])
        rows += [[word(f"{row.name}: {name}"), *map(published_figure, others)] for name, others in beside(table, row)]
    return Grid(headers(table), rows, table.notes)


def published_figure(shown: str) -> tuple[str, float | None]:
    """A cell with what others have reported: a number, or two, or a dash."""
    try:
        return shown, float(shown)
    except ValueError:
        return shown, None


def word(text: str) -> tuple[str, None]:
    """A cell of text."""
    return text, None


def share(value: float | None) -> tuple[str, float | None]:
    """A cell with an accuracy from 0 to 1."""
    return percent(value), value
