"""Learning strong views: what `far+` adds to FAR, and `baseline+` to the baseline.

With a target (UDA), the network's own prediction on a target image, where it is confident, is the label of a strongly
changed view of the same image (FixMatch, Sohn et al. 2020, arXiv 2001.07685, eq. 4, applied to the target). Without one
(DG), the views are of the sources' images, and have their labels.

Differences from FixMatch:
- The loop raises the weight of pseudo-labels from 0, where FixMatch's is constant.
- In `far+` they are believed from a probability of 0.7 on, not 0.95.
- A step sees as many target images as of one source, if `training.target_batches` does not give `baseline+` more;
  FixMatch sees seven without a label for each with one.
- Evaluation is by the weights as they are, unless `training.average` says otherwise; FixMatch's are a moving average.
- Pseudo-labels are of target images with the usual augmentation, which for photographs changes colours, too; FixMatch's
  weak views are only shifted and mirrored. Images without labels are the target's alone; FixMatch's include those with
  labels.
- Strong views are RandAugment as DAEL's authors have it, without Cutout (`afield.data.strong_views`), made of the
  augmented images.
"""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from afield import Batch, Losses, MethodOptions

RAMPED = frozenset({"self_training"})


class ViewOptions(MethodOptions):
    """Options of methods that learn strong views."""

    self_training_weight: float = Field(
        1.0, ge=0, description="weight of learning strong views by pseudo-labels of the target's images"
    )
    strong_views_weight: float = Field(
        1.0, ge=0, description="without a target (DG): weight of learning strong views of the sources' images"
    )
    threshold: float = Field(
        0.7, ge=0, lt=1, description="probability from which on a pseudo-label is believed (FixMatch: 0.95)"
    )


def with_views(batch: Batch) -> Tensor:
    """All images, and strong views of the target's or, where there is none, of all."""
    changed = batch.split(batch.images)[1] if batch.has_target else batch.images
    return torch.cat((batch.images, batch.strong_view(changed)))


def view_losses(scores: Tensor, batch: Batch, options: ViewOptions) -> Losses:
    """What is learned of the views, from the scores of `with_views`."""
    plain, views = scores[: len(batch.images)], scores[len(batch.images) :]
    if not batch.has_target:
        return {"strong_views": options.strong_views_weight * cross_entropy(views, batch.labels)}
    confidence, labels = batch.split(plain)[1].detach().softmax(dim=1).max(dim=1)
    learned = cross_entropy(views, labels, reduction="none")
    believed = (confidence >= options.threshold).to(learned.dtype)
    return {"self_training": options.self_training_weight * (believed * learned).mean()}
