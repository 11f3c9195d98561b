"""Where images come from: domains, the data sets they form, and the tasks over them."""

from afield.domains import digit5 as _digit5  # noqa: F401  (registers itself)
from afield.domains import digits as _digits  # noqa: F401  (registers itself)
from afield.domains.domain import Augmentation, Domain, DomainSet, Split
from afield.domains.registry import check_data, list_data, load_data, register_data
from afield.domains.task import EvaluationViews, LabelledView, Task, TaskKind, UnlabelledView, make_task

__all__ = [
    "Augmentation",
    "Domain",
    "DomainSet",
    "EvaluationViews",
    "LabelledView",
    "Split",
    "Task",
    "TaskKind",
    "UnlabelledView",
    "check_data",
    "list_data",
    "load_data",
    "make_task",
    "register_data",
]
