"""M3SDA and M3SDA-beta: moment matching of several sources (Peng, Bai, Xia, Huang, Saenko, Wang: ICCV 2019,
arXiv 1812.01754).

A generator G and a classifier C_i for each of N sources; for M3SDA-beta a pair (C_i, C_i') for each.

    m3sda         min over G, C        mean_i L_i(C_i) + lambda MD^2                    L_i: on source i
    m3sda-beta    min over G, C, C'    mean_i L_i(C_i) + L_i(C_i') + lambda MD^2
                  min over C, C'       mean_i L_i(C_i) + L_i(C_i') - d(C_i, C_i')       d: on the target, as in MCD
                  min over G           mean_i d(C_i, C_i')                              n = 4 times
    inference                          mean of all predictions

MD^2 is `raw_moment_distance`: first and second raw moments, between each source and the target and each two sources,
of the vectors that the classifiers read.

Differences from the paper:
- It weighs the classifiers by the accuracy on the target of networks trained on source i alone. That looks at the
  target's labels; here all count alike, which is its other schema ("M3SDA*").
- Losses are means over the sources where the paper has sums, which its Adam hardly feels and SGD does.
- It gives no lambda. Ours weighs the distance against classification about as DASSL's does for m3sda-beta: 0.5 times
  the mean over both moments and all pairs, where ours is a sum of four such means (the authors' digit code: 0.0005
  times another distance). The same lambda weighs twice as much in m3sda, whose classification has half as many terms.
  DASSL's second moment is the variance; the paper's, and ours, is raw. The loop raises lambda from 0, as it does for
  all distances.
- For the updates of m3sda-beta, what MCD's file says holds too.
- The authors' code for digits has another distance. It compares centred features image by image in place of means, then
  central moments up to the fifth; it neither centres nor averages the fourth source, counts one pair of sources twice
  and another never; and one pair of classifiers serves all sources. Ours does not depend on the order of the sources.
"""

from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from afield import Batch, Losses, Method, MethodOptions, register_method
from afield.losses import classifier_discrepancy, raw_moment_distance
from afield.methods.mcd import MCD, MCDOptions
from afield.networks import Ensemble, mean_prediction


class M3SDAOptions(MethodOptions):
    """Options of M3SDA."""

    moment_weight: float = Field(0.125, ge=0, description="lambda, the weight of the moment distance")


class M3SDABetaOptions(MCDOptions):
    """Options of M3SDA-beta: those of MCD and of M3SDA."""

    moment_weight: float = Field(0.125, ge=0, description="lambda, the weight of the moment distance")


@register_method("m3sda", summary="raw moments of all domains matched", reference="Peng et al. 2019")
class M3SDA(Method):
    """Backbone G and a classifier for each source."""

    Options = M3SDAOptions
    options: M3SDAOptions
    needs_target = True
    ramped = frozenset({"moments"})

    def head(self, inputs: int) -> nn.Module:
        """A classifier for each source."""
        return Ensemble(self.shape.num_sources, inputs, self.shape.num_classes, self.shape.network)

    def scores_of(self, F: Tensor) -> Tensor:
        """Log-probabilities of the mean prediction."""
        return mean_prediction(self.classifier(self.pool(F)))

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """Each classifier on its source, and the moment distance of what the classifiers read."""
        vectors = self.pool(F)
        return {
            "classification": learned_by_each(self.classifier(vectors), batch),
            "moments": self.options.moment_weight * raw_moment_distance(batch.by_domain(vectors)),
        }


@register_method(
    "m3sda-beta", summary="m3sda, and a pair of classifiers per source as in mcd", reference="Peng et al. 2019"
)
class M3SDABeta(MCD):
    """MCD's three updates with a pair of classifiers for each source; moments are matched in the first."""

    Options = M3SDABetaOptions
    options: M3SDABetaOptions
    pools_target = False  # its moments are compared domain by domain
    ramped = frozenset({"moments"})

    def head(self, inputs: int) -> nn.Module:
        """A pair of classifiers for each source."""
        return Ensemble(2 * self.shape.num_sources, inputs, self.shape.num_classes, self.shape.network)

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """Step A."""
        vectors = self.pool(F)
        return {
            "classification": self.classification(self.classifier(vectors), batch),
            "moments": self.options.moment_weight * raw_moment_distance(batch.by_domain(vectors)),
        }

    def classification(self, scores: Tensor, batch: Batch) -> Tensor:
        """The mean of L_i(C_i) + L_i(C_i') from scores (2 N, B, classes): all C, then all C'."""
        first, second = scores.chunk(2)
        return learned_by_each(first, batch) + learned_by_each(second, batch)

    def discrepancy(self, scores: Tensor) -> Tensor:
        """The mean of d(C_i, C_i') from the target's scores."""
        first, second = scores.chunk(2)
        return classifier_discrepancy(first, second)


def learned_by_each(scores: Tensor, batch: Batch) -> Tensor:
    """The mean over i of L_i(C_i), from scores (N, B, classes): each classifier on its own source."""
    return cross_entropy(batch.own(scores), batch.labels)
