"""`digit5`: Digit-Five, real digits of five kinds, at the sizes Dassl uses; read from what its users have.

The files lie in the folder `digit5` of the folder that the environment variable AFIELD_DATA names (default: `data` in
the current folder); `published.py` says which. Where SYN is missing, digits that afield renders stand in for it.
"""

from collections.abc import Mapping

from afield.data.digit5.load import SIZES, digit5_folder, load_published
from afield.data.digit5.published import PUBLISHED
from afield.data.digit5.rendered import rendered_digits
from afield.data.domain import Domain, DomainSet
from afield.data.registry import register_data

CLASSES = tuple("0123456789")


@register_data("digit5")
def digit5(sizes: Mapping[str, int] = SIZES) -> DomainSet:
    """Read the published domains, each drawn down to these sizes, and render `syn` where it is not there."""
    splits = load_published(digit5_folder(), sizes)
    domains = {
        name: Domain(name, parts["train"], parts["test"], PUBLISHED[name].origin) for name, parts in splits.items()
    }
    if "syn" not in domains:
        origin = "rendered by afield from matplotlib's fonts, to stand in for SYN, which was not found"
        parts = rendered_digits(sizes)
        domains["syn"] = Domain("syn", parts["train"], parts["test"], origin, stand_in=True)
    return DomainSet("digit5", CLASSES, domains, preset="digit5")
