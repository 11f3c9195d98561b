"""From bytes to what the network takes."""

import torch
from torch import Tensor, nn

from afield.data.preprocessing import Preprocessing


class Normalise(nn.Module):
    """Images to the network's input. A module, so that its constants move to the device once, not every step."""

    scale: Tensor
    shift: Tensor

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (preprocessing.mean, preprocessing.std))
        self.register_buffer("scale", 1 / std, persistent=False)
        self.register_buffer("shift", -mean / std, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) uint8, or float in 0..1, to normalised float32; channels last in memory, which is faster."""
        if images.dtype == torch.uint8:
            images = images.contiguous(memory_format=torch.channels_last).float() / 255
        # Reordered last: before, the same arithmetic takes several times as long on a CPU.
        return torch.addcmul(self.shift, images.float(), self.scale).contiguous(memory_format=torch.channels_last)

    def undo(self, images: Tensor) -> Tensor:
        """Normalised images back to float in 0..1."""
        return ((images - self.shift) / self.scale).clamp(0, 1)
