"""Digit-Five: digits of five kinds, at the sizes Dassl uses; read from what its users have.

Two data sets of the same images, which differ in how MNIST (28 x 28) and USPS (16 x 16) come to 32 x 32 pixels:

- `digit5` resizes them, as the authors of most methods do. Arrays in .npz files have 32 x 32 pixels already: where all
  images of `mt` or of `up` there have a black frame of 2 pixels, they are padded digits of 28 x 28, and what is inside
  the frame is resized; otherwise they are left as they are. A domain's `origin` says what was done.
- `digit5-padded` puts them on a black ground, USPS enlarged to 28 x 28 before: what version 0.1.0 called `digit5`, and
  what the recorded tables are about.

The files lie in the folder `digit5` of the folder that the environment variable AFIELD_DATA names (default: `data` in
the current folder); `published.py` says which. Where SYN is missing, digits that afield renders stand in for it.
"""

from collections.abc import Mapping

from afield.data.digit5.fitting import Fitting
from afield.data.digit5.load import SIZES, digit5_folder, load_published
from afield.data.digit5.rendered import rendered_digits
from afield.data.domain import Domain, DomainSet
from afield.data.registry import register_data

CLASSES = tuple("0123456789")


@register_data("digit5")
def digit5(sizes: Mapping[str, int] = SIZES) -> DomainSet:
    """Digit-Five with MNIST and USPS resized, each domain drawn down to these sizes."""
    return _load("digit5", "resized", sizes)


@register_data("digit5-padded")
def digit5_padded(sizes: Mapping[str, int] = SIZES) -> DomainSet:
    """Digit-Five with MNIST and USPS padded, each domain drawn down to these sizes."""
    return _load("digit5-padded", "padded", sizes)


def _load(name: str, how: Fitting, sizes: Mapping[str, int]) -> DomainSet:
    """Read the published domains, and render `syn` where it is not there."""
    domains = load_published(digit5_folder(), how, sizes)
    if "syn" not in domains:
        origin = "rendered by afield from matplotlib's fonts, to stand in for SYN, which was not found"
        parts = rendered_digits(sizes)
        domains["syn"] = Domain("syn", parts["train"], parts["test"], origin, stand_in=True)
    return DomainSet(name, CLASSES, domains, preset="digit5")
