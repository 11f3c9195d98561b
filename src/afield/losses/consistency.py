"""Consistency: the shared classifier learns to say what the expert of the sample's domain says."""

from torch import Tensor, nn

from afield.precision import at_least_float32


def expert_consistency(student: Tensor, teacher: Tensor) -> Tensor:
    """L1 distance between softmax(student) and softmax(teacher), summed over classes and averaged over samples.

    The teacher is detached: the experts teach, they are not taught.

    >>> import torch
    >>> expert_consistency(torch.tensor([[0.0, 0.0]]), torch.tensor([[100.0, 0.0]]))
    tensor(1.)
    """
    difference = at_least_float32(student).softmax(dim=-1) - at_least_float32(teacher.detach()).softmax(dim=-1)
    return difference.abs().sum(dim=-1).mean()


class ExpertConsistency(nn.Module):
    """`expert_consistency` as a module."""

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """See `expert_consistency`."""
        return expert_consistency(student, teacher)
