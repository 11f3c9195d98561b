"""MEDA on the baseline's features: manifold embedded distribution alignment (Wang, Feng, Chen, Yu, Huang, Yu: ACM
Multimedia 2018, arXiv 1807.07258).

The network is trained exactly as the baseline. Then a classifier of its pooled vectors is solved for in closed form,
from labelled vectors of the sources and unlabelled ones of the target: a sum of kernels whose coefficients weigh the
loss on the sources, the distance of the domains' distributions and smoothness over neighbours. `closed_form/meda.py`
has the formulas, and how the solution differs from the paper's and the authors' code.

The classifier is for the target: whatever image it is shown, it standardises with the target's mean and deviation. So
it does worse on the sources than it could; what the network itself says of them is the view `network`.

Differences from the paper:
- Several sources are pooled, and standardised as one.
- The target's first labels are the network's own; the authors' code takes those of the nearest source features.
- The authors' code classifies the very target images it was solved for. Here, as with every other method, those are the
  training images, and the sum of kernels is evaluated at the test images.
- The system has as many unknowns per class as images, so it is solved for a sample of each domain's images only, the
  same in each run of a seed, and anew before every evaluation. Before the first the baseline's classifier answers.
"""

from collections.abc import Callable

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from afield import Batch, MethodOptions, Shape, register_method
from afield.methods.baseline import Baseline
from afield.methods.method import Inspection

CHUNK = 500
SMALLEST = 1e-6  # probability


class MEDAOptions(MethodOptions):
    """Options of MEDA."""

    samples: int = Field(1000, ge=2, description="images of each domain that the classifier is solved for (paper: all)")
    dimension: int = Field(20, ge=1, description="dimension of the two principal subspaces (paper: 20 to 40)")
    neighbours: int = Field(10, ge=1, description="p, neighbours of each image in the graph (paper: 10)")
    ridge: float = Field(0.1, gt=0, description="eta, the weight of the classifier's norm (paper: 0.1)")
    alignment: float = Field(10.0, ge=0, description="lambda, the weight of the domains' distance (paper: 10)")
    smoothness: float = Field(1.0, ge=0, description="rho, the weight of differences between neighbours (paper: 1)")
    iterations: int = Field(10, ge=1, description="T, how often to solve anew, from the labels just found (paper: 10)")


@register_method("meda", summary="closed-form alignment of the baseline's features", reference="Wang et al. 2018")
class MEDA(Baseline):
    """The baseline, and in buffers, so that checkpoints have it, the classifier that was solved for."""

    Options = MEDAOptions
    options: MEDAOptions
    needs_target = True
    solved: Tensor
    centre: Tensor
    projection: Tensor
    anchors: Tensor
    coefficients: Tensor

    def __init__(self, shape: Shape, options: MEDAOptions) -> None:
        super().__init__(shape, options)
        width, most = self.pool.width, (shape.num_sources + 1) * options.samples
        rank = 2 * min(options.dimension, width // 2)
        self.register_buffer("solved", torch.tensor(False))
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("projection", torch.zeros(width, rank))
        self.register_buffer("anchors", torch.zeros(most, rank))
        self.register_buffer("coefficients", torch.zeros(most, shape.num_classes))

    def before_evaluation(self, sample: Callable[[int], Batch]) -> None:
        """Solve for the classifier, from images of the sources and the target."""
        from afield.closed_form import solve_meda  # scikit-learn takes a moment, and no other method needs it

        batch = sample(self.options.samples)
        training, labelled = self.training, batch.num_labelled
        self.eval()
        with torch.no_grad():
            starts = range(0, len(batch.images), CHUNK)
            seen = torch.cat([self.pool(self.backbone(batch.images[start : start + CHUNK])) for start in starts])
            first = self.classifier(seen[labelled:]).argmax(dim=1)
        self.train(training)
        vectors = seen.double().cpu().numpy()
        solution = solve_meda(
            vectors[:labelled],
            batch.labels.cpu().numpy(),
            vectors[labelled:],
            self.coefficients.shape[1],
            first=first.cpu().numpy(),
            **self.options.model_dump(exclude={"samples"}),
        )
        for name in ("centre", "projection", "anchors", "coefficients"):
            values, buffer = torch.from_numpy(getattr(solution, name)), getattr(self, name)
            # Fewer images than asked for leave zeros: kernels that count for nothing.
            buffer.zero_()[tuple(map(slice, values.shape))] = values
        self.solved.fill_(True)

    def kernels(self, vectors: Tensor) -> Tensor:
        """f: the solved classifier of the target's pooled vectors, near 1 for the class and 0 for the others."""
        z = normalize((vectors - self.centre) @ self.projection)
        return (z @ self.anchors.T - 1).exp() @ self.coefficients

    def scores_of(self, F: Tensor) -> Tensor:
        """Scores of the solved classifier, which takes all images for the target's; before that, the network's."""
        vectors = self.pool(F)
        # Least squares make f an estimate of probabilities, whose logarithms are scores.
        solved = self.kernels(vectors).clamp_min(SMALLEST).log()
        return torch.where(self.solved, solved, self.classifier(vectors))

    def inspect(self, images: Tensor) -> Inspection:
        """The scores of the solved classifier and, beside them, of the network's own."""
        F = self.backbone(images)
        return Inspection(self.scores_of(F), {"network": super().scores_of(F)})
