"""FAR+: FAR, and labels the target gives itself. What goes beyond the paper (Jin et al. 2020) stands here.

The network's own prediction on a target image, where it is confident, is the label of a strongly changed view of the
same image (FixMatch, Sohn et al. 2020, applied to the target). The labels come from C(f+), or from the average of the
experts, which read pool(F) and so know nothing of the gates.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from afield.batches import Batch
from afield.methods.far import FAR, FAROptions, Parts, Seen
from afield.methods.method import Losses
from afield.methods.registry import register_method
from afield.strong_views import strong_view


class FARPlusOptions(FAROptions):
    """Options of FAR+, beside those of FAR."""

    strong: Literal["none", "target", "all"] = Field("target", description="which images get a strong view")
    teacher: Literal["own", "experts"] = Field("own", description="who labels the target: C(f+), or the experts' mean")
    self_training_weight: float = Field(1.0, ge=0, description="weight of learning the target's own labels")
    threshold: float = Field(0.9, ge=0, lt=1, description="probability from which on a label is believed")
    class_align_weight: float = Field(0.0, ge=0, description="weight of the distance of the classes' means of A")


@register_method("far+", summary="FAR, and confident predictions as labels of the target", reference="this project")
class FARPlus(FAR):
    """FAR with self-training on strong views."""

    Options = FARPlusOptions
    needs_target = True
    ramped = FAR.ramped | {"self_training", "class_align"}
    options: FARPlusOptions

    def images(self, batch: Batch) -> Tensor:
        """All images, and strong views of some."""
        changed = {"none": batch.images[:0], "target": batch.images[batch.num_labelled :], "all": batch.images}
        views = changed[self.options.strong]
        return torch.cat((batch.images, strong_view(views))) if len(views) else batch.images

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """FAR's losses, and cross-entropy of strong views against the labels of the plain ones."""
        options, labelled, count = self.options, batch.num_labelled, len(batch.images)
        seen = self.see(F)
        plain = Seen(Parts(*(part[:count] for part in seen.parts)), *(value[:count] for value in seen[1:]))
        losses = self.losses_seen(plain, batch)
        beliefs = self._beliefs(plain, batch)
        confidence, labels = beliefs.max(dim=1)
        learner = seen.enhanced[-len(beliefs) :]
        chosen = (confidence >= options.threshold).float()
        learned = cross_entropy(learner, labels, reduction="none")
        losses["self_training"] = options.self_training_weight * (chosen * learned).mean()
        if options.strong == "all":
            losses["strong"] = cross_entropy(seen.enhanced[count : count + labelled], batch.labels)
        if options.class_align_weight:
            losses["class_align"] = options.class_align_weight * class_distance(plain.parts.A, beliefs, batch)
        return losses

    def _beliefs(self, seen: Seen, batch: Batch) -> Tensor:
        """The teacher's class probabilities of the target's images; no gradient."""
        if self.options.teacher == "own":
            return seen.enhanced[batch.num_labelled :].detach().softmax(dim=1)
        assert self.experts is not None
        whole = seen.whole[batch.num_labelled :].detach()
        with torch.no_grad():
            scores: Tensor = self.experts(whole.expand(len(self.experts), -1, -1))
        return scores.softmax(dim=2).mean(dim=0)


def class_distance(A: Tensor, beliefs: Tensor, batch: Batch) -> Tensor:
    """Mean over classes of the distance between the sources' and the target's mean of A, the target's classes believed.

    A class counts as much as the target is believed to hold of it.
    """
    vectors = A.mean(dim=(2, 3))
    sources = one_hot(batch.labels, beliefs.shape[1]).to(vectors.dtype)
    means = [
        weights.T @ values / weights.sum(dim=0).clamp_min(1e-3)[:, None]
        for weights, values in ((sources, vectors[: batch.num_labelled]), (beliefs, vectors[batch.num_labelled :]))
    ]
    share = beliefs.mean(dim=0) * (sources.sum(dim=0) > 0)
    distances: Tensor = torch.linalg.vector_norm(means[0] - means[1] + 1e-8, dim=1)
    return (share * distances).sum()
