"""Balanced batches: as many images of every domain, one contiguous slice a domain, the target last.

The images of a task live on the training device as uint8 when they fit there; otherwise they stay in host memory and
each batch travels. Augmentation runs on the whole batch, on the device. With the images on the device a batch is drawn
without the host, so that a CUDA graph can hold the drawing too.
"""

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from afield.domains import Augmentation, Task

# Leaves room for the network, its gradients and its activations.
SHARE_OF_FREE_MEMORY = 0.5
# The host writes the picks of so many steps at a time; between two writes it has no part in drawing a batch.
STEPS_OF_PICKS = 256


@dataclass(frozen=True)
class Preprocessing:
    """What the network's input looks like. Stored in checkpoints, so that prediction does as training did."""

    image_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


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
        images = images.contiguous(memory_format=torch.channels_last)
        values = images.float() / 255 if images.dtype == torch.uint8 else images.float()
        return torch.addcmul(self.shift, values, self.scale)


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
    Where several processes train together, `share` is (which, of how many): their batches are parts of one.
    """

    def __init__(
        self,
        task: Task,
        per_domain: int,
        preprocessing: Preprocessing,
        device: torch.device,
        seed: int,
        augment: bool = True,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        self.per_domain = per_domain
        self.share, self.shares = share
        self.normalise = Normalise(preprocessing).to(device)
        self.device = device
        self.seed = seed
        self.augmentation = task.augmentation if augment else Augmentation()
        arrays = [view.images for view in task.sources] + ([task.target.images] if task.target else [])
        self.home = device if fits(sum(array.nbytes for array in arrays), device) else torch.device("cpu")
        # One pool, sources first, so that one index finds an image and, in the sources, its label.
        self.images = torch.cat([place(array, self.home) for array in arrays])
        self.labels = torch.cat([place(view.labels, self.home) for view in task.sources])
        self.num_sources = len(task.sources)
        self.sizes = [len(array) for array in arrays]
        self.step = 0
        self.noise = torch.Generator(device).manual_seed(_mix(seed, 0) + self.share)
        self._picks = torch.empty(STEPS_OF_PICKS, len(arrays) * per_domain, dtype=torch.int64, device=self.home)
        self._picked_from: int | None = None
        self._cursor = torch.zeros(1, dtype=torch.int64, device=self.home)
        self._orders: dict[int, tuple[int, Tensor]] = {}

    def next(self) -> Batch:
        """The batch of this step."""
        self.prepare()
        return self.draw()

    def prepare(self) -> None:
        """The host's part of a step: every so often, the picks of the next steps."""
        if self._picked_from is None or self.step == self._picked_from + STEPS_OF_PICKS:
            starts = [sum(self.sizes[:domain]) for domain in range(len(self.sizes))]
            picks = [start + self._pick(domain) for domain, start in enumerate(starts)]
            self._picks.copy_(torch.cat(picks, dim=1))
            self._cursor.zero_()
            self._picked_from = self.step
        self.step += 1

    def draw(self) -> Batch:
        """The device's part of a step. After `prepare`, and as often."""
        picks = self._picks.index_select(0, self._cursor).squeeze(0)
        self._cursor += 1
        labels = self.labels[picks[: self.num_sources * self.per_domain]]
        if self.home == self.device:
            images = augment(self.images, picks, self.augmentation, self.noise)
        else:
            whole = torch.arange(len(picks), device=self.device)
            images = augment(self.images[picks].to(self.device), whole, self.augmentation, self.noise)
        return Batch(self.normalise(images.permute(0, 3, 1, 2)), labels.to(self.device), self.num_sources)

    def still(self, per_domain: int) -> Batch:
        """Images of every domain, not augmented: so many, or as many as the smallest has; the same at every step."""
        count, starts = min(per_domain, *self.sizes), [sum(self.sizes[:domain]) for domain in range(len(self.sizes))]
        picks = torch.cat([start + self._order(domain, 0)[:count] for domain, start in enumerate(starts)]).to(self.home)
        images = self.images[picks].to(self.device).permute(0, 3, 1, 2)
        labels = self.labels[picks[: self.num_sources * count]].to(self.device)
        return Batch(self.normalise(images), labels, self.num_sources)

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed stream needs to go on exactly where this one stands."""
        return {"step": self.step, "noise": self.noise.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` stood."""
        self.step = state["step"]
        self._picked_from = None
        self.noise.set_state(state["noise"].cpu())

    def _pick(self, domain: int) -> Tensor:
        """The images of a domain in the next steps, (steps, b); a batch may span the end of an epoch."""
        together = self.shares * self.per_domain
        position, stop, parts = self.step * together, (self.step + STEPS_OF_PICKS) * together, []
        while position < stop:
            epoch, offset = divmod(position, self.sizes[domain])
            parts.append(self._order(domain, epoch)[offset : offset + stop - position])
            position += len(parts[-1])
        return torch.cat(parts).view(STEPS_OF_PICKS, self.shares, self.per_domain)[:, self.share]

    def _order(self, domain: int, epoch: int) -> Tensor:
        known = self._orders.get(domain)
        if known is None or known[0] != epoch:
            generator = torch.Generator().manual_seed(_mix(self.seed, 1 + domain, epoch))
            known = self._orders[domain] = (epoch, torch.randperm(self.sizes[domain], generator=generator))
        return known[1]


def augment(pool: Tensor, picks: Tensor, augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """The picked images of a pool (N, H, W, 3), each shifted by its own random offset and, if allowed, half mirrored.

    The edges of a shifted image repeat. Images are square.
    """
    device, count, side = pool.device, len(picks), pool.shape[1]
    if not (augmentation.shift or augmentation.flip):
        return pool[picks]
    places = torch.arange(side, device=device).expand(2, count, side)
    if augmentation.flip:
        mirrored = torch.rand(count, 1, generator=generator, device=device) < 0.5
        places = torch.stack((places[0], torch.where(mirrored, side - 1 - places[1], places[1])))
    if augmentation.shift:
        reach = augmentation.shift
        offsets = torch.randint(-reach, reach + 1, (2, count, 1), generator=generator, device=device)
        places = (places + offsets).clamp(0, side - 1)
    return pool[picks[:, None, None], places[0, :, :, None], places[1, :, None, :]]


_placed: dict[tuple[int, torch.device], Tensor] = {}


def place(array: NDArray[Any], device: torch.device) -> Tensor:
    """An array on a device, kept there for as long as the array lives: many runs upload a domain once."""
    key = id(array), device
    if key not in _placed:
        _placed[key] = torch.from_numpy(array).to(device)
        weakref.finalize(array, _placed.pop, key, None)
    return _placed[key]


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
