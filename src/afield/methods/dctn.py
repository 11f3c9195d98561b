"""DCTN: deep cocktail network (Xu, Chen, Zuo, Yan, Lin: CVPR 2018, arXiv 1803.00830).

A discriminator D_j (source j against target) and a classifier C_j for each source, on one feature f:

    S_j(x) = -log(1 - D_j(f)) + a_j        perplexity of a target image: large where it looks like source j
    p(x)   = sum_j S_j / sum_k S_k  softmax(C_j(f))                    weighted vote

a_j, the concentration, is the mean loss -log D_j over source j: here a running average, kept as a buffer. The paper
alternates between

    multi-way adversarial adaptation        min over D_j     -E_j log D_j - E_t log(1 - D_j)
                                            min over f       sum_j L(C_j) + confusion by the D_j whose loss is largest
    target-discriminative adaptation        min over f, C    sum_j L(C_j) + L(C_j, label of p) where p >= 0.9

with the confusion -(log D + log(1 - D)) / 2 of that source's features and the target's: least where D is undecided.

As in the paper, the C_j and the features are first trained on the sources: here for half of the steps, in which the
D_j learn too, without the features answering, and the target's images pass the backbone's batch norm. Without that,
features of 0, which leave every D_j undecided, are what confusion finds.

Differences from the paper:
- Both stages are one descent, in which each loss reaches only the parts that its stage trains. The paper alternates
  between them for epochs, over stored labels. Here labels belong to the images of the batch, and only in the second
  half.
- The labels' loss is a mean over all target images, so that it weighs little while few are believed. As a mean over the
  believed ones it let the first few classes take all.
- The loop raises the weights of confusion and labels from 0.
- The losses of the C_j are averaged over the N sources, not added, so that classification weighs as much as in other
  methods. Confusion, which is of one source, is divided by N with them; it is a mean over the images of both domains,
  half of the sum of two means.
- The optimiser is the loop's (authors: Adam).
- All sources know all classes: there is no category shift.
- The authors' code weighs the vote by one number per source, and its D_j give no probability: their loss is a square,
  and so is the confusion. Here, as in the paper, both are logarithms, and each image has its own weights, so inference
  keeps the discriminators.
"""

import math

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from afield import Batch, Losses, Method, MethodOptions, Shape, register_method
from afield.networks import Discriminator, run_aside
from afield.precision import at_least_float32

BATCHES_AVERAGED = 100


class DCTNOptions(MethodOptions):
    """Options of DCTN."""

    threshold: float = Field(0.9, ge=0, lt=1, description="probability from which on a vote is believed (paper: 0.9)")
    confusion_weight: float | None = Field(
        None,
        ge=0,
        description="weight of the hardest source's confusion; without one, 1 / number of sources (authors)",
    )
    pseudo_label_weight: float = Field(1.0, ge=0, description="weight of learning the vote's labels (paper: 1)")
    discriminator_width: int = Field(256, ge=1, description="units of the hidden layers of each D_j")


@register_method("dctn", summary="sources vote, weighted by likeness to the target", reference="Xu et al. 2018")
class DCTN(Method):
    """One backbone; for each source a classifier that votes and a discriminator that says how much its vote counts."""

    Options = DCTNOptions
    options: DCTNOptions
    needs_target = True
    min_sources = 2
    phases = (0.5,)
    ramped = frozenset({"confusion", "pseudo_labels"})
    classifier: nn.ModuleList
    concentration: Tensor

    def __init__(self, shape: Shape, options: DCTNOptions) -> None:
        super().__init__(shape, options)
        width, count = self.pool.width, shape.num_sources
        self.discriminators = nn.ModuleList(Discriminator(width, options.discriminator_width) for _ in range(count))
        self.register_buffer("concentration", torch.full((count, 1), math.log(2)))  # a_j, of a D_j that knows nothing

    def head(self, inputs: int) -> nn.Module:
        """One classifier for each source."""
        return nn.ModuleList(super(DCTN, self).head(inputs) for _ in range(self.shape.num_sources))

    def weights(self, told: Tensor) -> Tensor:
        """S_j / sum_k S_k from the logits (n_sources, B) of "source j"; they sum to 1 for each image."""
        perplexity = softplus(told) + self.concentration
        return perplexity / perplexity.sum(dim=0)

    def vote(self, told: Tensor, scores: Tensor) -> Tensor:
        """Log-probabilities (B, classes) from the logits (n_sources, B) and the scores (n_sources, B, classes)."""
        log_p = at_least_float32(scores).log_softmax(dim=-1)
        return (self.weights(told).log()[..., None] + log_p).logsumexp(dim=0)

    def scores_of(self, F: Tensor) -> Tensor:
        """The weighted vote's log-probabilities."""
        vectors = self.pool(F)
        told = torch.stack([D(vectors).squeeze(1) for D in self.discriminators])
        return self.vote(told, torch.stack([C(vectors) for C in self.classifier]))

    def losses_of(self, F: Tensor, batch: Batch) -> Losses:
        """Of each source with the target: classes, D_j's loss, confusion by the hardest D_j, and the vote's labels.

        In phase 0 the classes of the sources, and what each D_j can tell of features that do not answer it.
        """
        vectors, b = batch.by_domain(self.pool(F)), batch.per_domain
        pairs = [torch.cat((source, vectors[-1])) for source in vectors[:-1]]
        read = [(b, False), (b, True)][: 1 + self.phase]
        with self.layout.of(*read):
            rows = b * len(read)
            scores = torch.stack([C(pair[:rows]) for C, pair in zip(self.classifier, pairs, strict=True)])
        # D_j's score is the logit of "source j": -log D = softplus(-score), -log(1 - D) = softplus(score).
        told = torch.stack([D(pair.detach()).squeeze(1) for D, pair in zip(self.discriminators, pairs, strict=True)])
        on_source, on_target = softplus(-told[:, :b]).mean(dim=1), softplus(told[:, b:]).mean(dim=1)
        with torch.no_grad():
            self.concentration.lerp_(on_source[:, None].to(self.concentration.dtype), 1 / BATCHES_AVERAGED)
        losses = {
            "classification": cross_entropy(scores[:, :b].flatten(0, 1), batch.labels),
            "discriminators": (on_source + on_target).sum(),
        }
        if self.phase == 0:
            return losses

        undecided = torch.stack(
            [run_aside(D, p, frozen=True).squeeze(1) for D, p in zip(self.discriminators, pairs, strict=True)]
        )
        confusion = (softplus(-undecided) + softplus(undecided)).mean(dim=1) / 2
        hardest = (on_source + on_target).argmax(dim=0, keepdim=True)
        with torch.no_grad():
            confidence, labels = self.vote(told[:, b:], scores[:, b:]).exp().max(dim=1)
            believed = (confidence >= self.options.threshold).to(confidence.dtype)
        given = self.options.confusion_weight
        weight = 1 / batch.num_sources if given is None else given
        learned = torch.stack([cross_entropy(s, labels, reduction="none") for s in scores[:, b:]]).mean(dim=0)
        return losses | {
            "confusion": weight * confusion.gather(0, hardest).sum(),
            "pseudo_labels": self.options.pseudo_label_weight * (believed * learned).mean(),
        }
