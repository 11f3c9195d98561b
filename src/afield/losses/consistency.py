"""Consistency: the shared classifier learns to say what the expert of the sample's domain says."""

from torch import Tensor

from afield.precision import at_least_float32


def expert_consistency(student: Tensor, teacher: Tensor) -> Tensor:
    r"""FAR's L_consist: the L1 distance of two predictions, summed over classes and averaged over samples.

    .. math::
        \frac1n \sum_{i=1}^{n} \sum_{k=1}^{K} |\mathrm{softmax}(s_i)_k - \mathrm{softmax}(t_i)_k|

    The teacher is detached: the experts teach, they are not taught.

    Args:
        student: s, the shared classifier's logits (n, K).
        teacher: t, the experts' logits (n, K).

    >>> import torch
    >>> expert_consistency(torch.tensor([[0.0, 0.0]]), torch.tensor([[100.0, 0.0]]))
    tensor(1.)
    """
    difference = at_least_float32(student).softmax(dim=-1) - at_least_float32(teacher.detach()).softmax(dim=-1)
    return difference.abs().sum(dim=-1).mean()
