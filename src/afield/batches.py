"""Balanced batches: as many images of every domain, one contiguous slice a domain, the target last.

The images of a task live on the training device as uint8 when they fit there; otherwise they stay in host memory and
each batch travels. Augmentation runs on the whole batch, on the device.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from afield.domains import Augmentation, Task

# Leaves room for the network, its gradients and its activations.
SHARE_OF_FREE_MEMORY = 0.5


@dataclass(frozen=True)
class Preprocessing:
    """What the network's input looks like. Stored in checkpoints, so that prediction does as training did."""

    image_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class Normalise(nn.Module):
    """Images to the network's input. A module, so that its constants move to the device once, not every step."""

    mean: Tensor
    std: Tensor

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(getattr(preprocessing, name)).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) uint8, or float in 0..1, to normalised float32; channels last in memory, which is faster."""
        values = images.float() / 255 if images.dtype == torch.uint8 else images.float()
        return ((values - self.mean) / self.std).contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True)
class Batch:
    """`images` (n_domains * b, 3, H, W), `labels` (n_sources * b): domains in task order, target last and unlabelled.

    A method reshapes with `by_domain`; it never needs to sort or mask.
    """

    images: Tensor
    labels: Tensor
    num_sources: int

    @property
    def num_labelled(self) -> int:
        """How many images, from the front, have labels: those of the sources."""
        return len(self.labels)

    @property
    def per_domain(self) -> int:
        """b: images of each domain."""
        return len(self.labels) // self.num_sources

    @property
    def has_target(self) -> bool:
        """Whether the last slice is the target's."""
        return len(self.images) > len(self.labels)

    def by_domain(self, values: Tensor) -> Tensor:
        """(n * b, ...) to (n, b, ...)."""
        return values.reshape(-1, self.per_domain, *values.shape[1:])


class BatchStream:
    """An endless stream of batches over a task, reproducible from a seed and resumable at any step.

    Every domain is walked in its own shuffled order, reshuffled when it ends, so that each image of a domain is seen
    once before any is seen twice. The order is a function of (seed, domain, epoch) and needs no state but the step.
    """

    def __init__(
        self,
        task: Task,
        per_domain: int,
        preprocessing: Preprocessing,
        device: torch.device,
        seed: int,
        augment: bool = True,
    ) -> None:
        self.per_domain = per_domain
        self.normalise = Normalise(preprocessing).to(device)
        self.device = device
        self.seed = seed
        self.augmentation = task.augmentation if augment else Augmentation()
        arrays = [view.images for view in task.sources] + ([task.target.images] if task.target else [])
        images = [torch.from_numpy(array).permute(0, 3, 1, 2).contiguous() for array in arrays]
        home = device if fits(sum(i.nbytes for i in images), device) else torch.device("cpu")
        self.images = [i.to(home) for i in images]
        self.labels = [torch.from_numpy(view.labels).to(home) for view in task.sources]
        self.step = 0
        self.noise = torch.Generator(device).manual_seed(_mix(seed, 0))
        self._orders: dict[int, tuple[int, Tensor]] = {}

    def next(self) -> Batch:
        """The batch of this step."""
        picks = [self._pick(domain) for domain in range(len(self.images))]
        images = torch.cat([pool[pick] for pool, pick in zip(self.images, picks, strict=True)])
        labels = torch.cat([pool[pick] for pool, pick in zip(self.labels, picks, strict=False)])
        images = augment(images.to(self.device, non_blocking=True), self.augmentation, self.noise)
        self.step += 1
        return Batch(self.normalise(images), labels.to(self.device, non_blocking=True), len(self.labels))

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed stream needs to go on exactly where this one stands."""
        return {"step": self.step, "noise": self.noise.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` stood."""
        self.step = state["step"]
        self.noise.set_state(state["noise"].cpu())

    def _pick(self, domain: int) -> Tensor:
        """Indices of this step's images of a domain; a batch may span the end of an epoch and the start of the next."""
        size = len(self.images[domain])
        position, parts, missing = self.step * self.per_domain, [], self.per_domain
        while missing:
            epoch, offset = divmod(position, size)
            part = self._order(domain, epoch)[offset : offset + missing]
            parts.append(part)
            position, missing = position + len(part), missing - len(part)
        return torch.cat(parts)

    def _order(self, domain: int, epoch: int) -> Tensor:
        known = self._orders.get(domain)
        if known is None or known[0] != epoch:
            generator = torch.Generator().manual_seed(_mix(self.seed, 1 + domain, epoch))
            order = torch.randperm(len(self.images[domain]), generator=generator).to(self.images[domain].device)
            known = self._orders[domain] = (epoch, order)
        return known[1]


def augment(images: Tensor, augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """Shift every image by its own random offset (edges repeat), and mirror half of them if flips are allowed."""
    count, _, height, width = images.shape
    device = images.device
    rows = torch.arange(height, device=device).expand(count, -1)
    columns = torch.arange(width, device=device).expand(count, -1)
    if augmentation.flip:
        mirrored = torch.rand(count, 1, generator=generator, device=device) < 0.5
        columns = torch.where(mirrored, width - 1 - columns, columns)
    if augmentation.shift:
        reach = augmentation.shift
        offsets = torch.randint(-reach, reach + 1, (2, count, 1), generator=generator, device=device)
        rows, columns = (rows + offsets[0]).clamp(0, height - 1), (columns + offsets[1]).clamp(0, width - 1)
    elif not augmentation.flip:
        return images
    image = torch.arange(count, device=device).view(-1, 1, 1, 1)
    channel = torch.arange(3, device=device).view(1, -1, 1, 1)
    return images[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def fits(size: int, device: torch.device) -> bool:
    """Whether so many bytes of images may live on the device."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return size < SHARE_OF_FREE_MEMORY * free


def _mix(*numbers: int) -> int:
    """One 63-bit seed from several small numbers, so that streams of neighbouring seeds do not overlap."""
    seed = 0
    for number in numbers:
        seed = (seed * 1_000_003 + number + 0x9E3779B9) % (2**63 - 1)
    return seed
