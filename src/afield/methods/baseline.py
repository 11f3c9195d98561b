"""Baseline: all sources pooled, cross-entropy only. What every other method has to beat."""

from torch import Tensor
from torch.nn.functional import cross_entropy

from afield import Batch, Losses, Method, register_method


@register_method("baseline", summary="pooled sources, cross-entropy only", reference="Jin et al. 2020, Table 1")
class Baseline(Method):
    """Supervised learning on the union of the sources. In UDA the target images of a batch are not looked at."""

    sees_target = False

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """Cross-entropy."""
        return {"classification": cross_entropy(self.classifier(self.pool(F)), batch.labels)}
