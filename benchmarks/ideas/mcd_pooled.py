"""MCD with as many target images in a step as of all sources together, as Dassl trains it; see docs/research-log.md.

    afield train --data digit5 --target sv --out runs/mcd --method ./benchmarks/ideas/mcd_pooled.py \
        --set data.preset=digit5-paper --set training.batch_size=256

Of the batch drawn for n sources, each gives its first nth part.
"""

from collections.abc import Iterator

import torch

from afield import Batch, Losses, register_method
from afield.methods.mcd import MCD


@register_method("mcd-pooled", summary="MCD with a larger share of target images", reference="this project")
class MCDPooled(MCD):
    """MCD on a part of every source's images, and on all of the target's."""

    def updates(self, batch: Batch) -> Iterator[Losses]:
        """MCD's, of sources that count as one."""
        fewer = pooled(batch)
        self.layout.note(fewer.num_sources, fewer.per_domain, fewer.has_target)
        yield from super().updates(fewer)


def pooled(batch: Batch) -> Batch:
    """The first part of each source, which together are as many images as the target's."""
    share = batch.per_domain // batch.num_sources
    source, target = batch.split(batch.images)
    images = batch.by_domain(source)[:, :share].flatten(0, 1)
    labels = batch.by_domain(batch.labels)[:, :share].flatten()
    return Batch(torch.cat((images, target[: len(images)])), labels, 1, batch.strong_view)
