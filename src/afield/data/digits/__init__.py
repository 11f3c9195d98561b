"""`digits`: five domains of 32 x 32 digits made from what the dependencies carry, so that nothing is downloaded."""

from afield.data.cache import load_or_build
from afield.data.digits.build import BUILDER_VERSION, CLASSES, ORIGINS, build_digits
from afield.data.domain import Domain, DomainSet, Split
from afield.data.registry import register_data


@register_data("digits")
def digits(seed: int = 0) -> DomainSet:
    """Load the digits from the cache, or build them there in a few seconds.

    The seed decides which real digits go where and how the others are rendered; the same seed gives the same bits.
    """
    arrays = load_or_build(f"digits-v{BUILDER_VERSION}-seed{seed}", lambda: build_digits(seed))

    def split(domain: str, part: str) -> Split:
        return Split.of_array(arrays[f"{domain}/{part}/images"], arrays[f"{domain}/{part}/labels"])

    domains = {
        name: Domain(name=name, train=split(name, "train"), test=split(name, "test"), origin=origin)
        for name, origin in ORIGINS.items()
    }
    return DomainSet("digits", CLASSES, domains, preset="digits")
