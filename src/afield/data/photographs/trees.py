"""Trees of image files, DOMAIN/CLASS/*.jpg or DOMAIN/SPLIT/CLASS/*.jpg, in the words their authors have for these."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from afield.data.entries import Listing
from afield.data.folder import Location, list_folder
from afield.errors import AfieldError

BETWEEN = "images"
"""A folder of this name between a domain and its classes has no meaning: Office-31 comes so."""


@dataclass(frozen=True)
class Tree:
    """What the folders mean. Images in folders of other domains or splits are not part of the data set."""

    splits: Mapping[str, str] = field(default_factory=dict)
    """From the folders between domain and class to the names that `Domain` has for splits; none: no such folders."""
    classes: Mapping[str, str] = field(default_factory=dict)
    """The names of classes whose folders are called otherwise."""
    domains: Mapping[str, str] = field(default_factory=dict)
    """The names of domains whose folders are called otherwise, as `plain` gives them."""

    def list_images(self, folder: Path, domains: Sequence[str]) -> Listing:
        """The images in the folders of these domains, each of which has all splits."""

        def read(folders: Sequence[Sequence[str]], _root: str) -> list[Location | None]:
            return [self.meaning(path, domains) for path in folders]

        listing = list_folder(folder, read, f"the domains are {', '.join(domains)}")
        there = {(entry.domain, entry.split) for entry in listing.entries}
        for domain in domains:
            for word, split in self.splits.items():
                if (domain, split) not in there:
                    raise AfieldError(f"{domain} has no images in a folder {word}")
        return listing

    def meaning(self, path: Sequence[str], domains: Sequence[str]) -> Location | None:
        """Of one folder, given as the names on the way there; None for one that is not part of the data set."""
        first, *inside = path
        known = {plain(domain): domain for domain in domains} | dict(self.domains)
        domain = known.get(plain(first))
        if inside[:1] == [BETWEEN]:
            inside = inside[1:]
        split = None
        if self.splits:
            split, inside = self.splits.get(inside[0].lower()) if inside else None, inside[1:]
            if split is None:
                return None
        if domain is None or not inside:
            return None
        return Location(split, domain, self.classes.get(inside[0], inside[0]), inside[1:])


def plain(name: str) -> str:
    """A folder's name without what differs between copies: Real World, Real_World and RealWorld are one domain."""
    return name.lower().replace(" ", "").replace("_", "").replace("-", "")
