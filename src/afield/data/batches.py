"""Balanced batches: as many images of every source, one contiguous slice per domain, the target last.

Of the target there are as many, or a multiple of that.

The images of a task live on the training device as uint8 when they fit there; otherwise they are read ahead, in
threads, and each batch travels. Both ways give the same batches for a seed. Augmentation runs on the whole batch, on
the device. After `prepare`, which is the host's part, `draw` is operations on the device alone, so that a CUDA graph
can hold them.

Where several processes train together, each draws the same whole batch; images that do not lie on the device are read
by one of them each, and sent to the others.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from afield.config.data import Augmentation, Placement
from afield.data.augmentation import augment
from afield.data.normalise import Normalise
from afield.data.prefetch import THREADS, Prefetcher
from afield.data.preprocessing import Preprocessing
from afield.data.residence import make_resident, stays_resident
from afield.data.strong_views import StrongView
from afield.data.task import Task

# The host writes the picks of so many batches at a time; between two writes it has no part in drawing a resident one.
BATCHES_OF_PICKS = 256
BATCHES_AHEAD = 6
Gather = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Batch:
    """`images` (n_domains * b, 3, H, W), `labels` (n_sources * b): domains in task order, target last and unlabelled.

    A method reshapes with `by_domain`; it never needs to sort or mask. Only methods that say so (`pools_target`) may
    get several times b images of the target.
    """

    images: Tensor
    labels: Tensor
    num_sources: int
    strong_view: Callable[[Tensor], Tensor] = field(default_factory=StrongView)
    """Changes such images as far as their class allows."""

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

    @property
    def target_batches(self) -> int:
        """How many times b images the target has; 0 where there is none."""
        return (len(self.images) - len(self.labels)) // self.per_domain

    def split(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The sources' rows, which have labels, and the rest: the target's, in UDA."""
        return values[: self.num_labelled], values[self.num_labelled :]

    def own(self, values: Tensor) -> Tensor:
        """What each source's own classifier says of its source: (n_sources, n * b, ...) to (n_sources * b, ...)."""
        return torch.cat([self.by_domain(of_one)[source] for source, of_one in enumerate(values)])

    def by_domain(self, values: Tensor) -> Tensor:
        """(n * b, ...) to (n, b, ...)."""
        return values.reshape(-1, self.per_domain, *values.shape[1:])


class Order:
    """The order in which the images of each domain are seen: a function of seed, domain and step, without state.

    Every domain is walked in its own shuffled order, reshuffled when it ends, so that each image of a domain is seen
    once before any is seen twice.
    """

    def __init__(self, sizes: list[int], counts: list[int], seed: int) -> None:
        self.sizes, self.counts, self.seed = sizes, counts, seed
        self._known: dict[int, tuple[int, Tensor]] = {}

    def picks(self, domain: int, step: int, steps: int = 1) -> Tensor:
        """The images of a domain in some steps, (steps, count); a batch may span the end of an epoch."""
        count, found = self.counts[domain], []
        position, stop = step * count, (step + steps) * count
        while position < stop:
            epoch, offset = divmod(position, self.sizes[domain])
            found.append(self.epoch(domain, epoch)[offset : offset + stop - position])
            position += len(found[-1])
        return torch.cat(found).view(steps, count)

    def epoch(self, domain: int, epoch: int) -> Tensor:
        """One walk through a domain."""
        known = self._known.get(domain)
        if known is None or known[0] != epoch:
            generator = torch.Generator().manual_seed(mix_seed(self.seed, 1 + domain, epoch))
            known = self._known[domain] = (epoch, torch.randperm(self.sizes[domain], generator=generator))
        return known[1]


class BatchStream:
    """An endless stream of batches over a task, reproducible from a seed and resumable after any of them.

    `step` counts the batches. `part` is the number of this process, and how many share each batch; `gather` then gets
    what all of them have, (processes, ...).
    """

    def __init__(
        self,
        task: Task,
        per_domain: int,
        preprocessing: Preprocessing,
        device: torch.device,
        seed: int,
        augmentation: Augmentation = "none",
        placement: Placement = "auto",
        part: tuple[int, int] = (0, 1),
        gather: Gather | None = None,
        target_batches: int = 1,
    ) -> None:
        self.per_domain = per_domain
        self.normalise = Normalise(preprocessing).to(device)
        self.strong_view = StrongView(self.normalise)
        self.device = device
        self.augmentation = augmentation
        self.splits = [view.images for view in task.seen]
        self.num_sources = len(task.sources)
        self.labels = torch.from_numpy(np.concatenate([view.labels for view in task.sources])).to(device)
        self.part, self.gather = part, gather
        counts = [per_domain] * self.num_sources + [target_batches * per_domain] * (task.target is not None)
        self.order = Order([len(images) for images in self.splits], counts, seed)
        self.step = 0
        self.noise = torch.Generator(device).manual_seed(mix_seed(seed, 0))
        self.resident = stays_resident(self.splits, device, placement)
        self.arrivals: Arrivals = (ResidentArrivals if self.resident else StreamedArrivals)(self)

    def next(self) -> Batch:
        """The next batch."""
        self.prepare()
        return self.draw()

    def prepare(self, batches: int = 1) -> None:
        """The host's part of the next batch, or of the next few that are then drawn one after the other."""
        self.arrivals.prepare(self.step, batches)
        self.step += batches

    def draw(self) -> Batch:
        """The device's part of a batch. Call it as often after `prepare` as that was told."""
        images, label_picks = self.arrivals.draw()
        return self._batch(self.normalise(images.permute(0, 3, 1, 2)), self.labels[label_picks])

    def still(self, per_domain: int) -> Batch:
        """`per_domain` images of each domain, or as many as the smallest has, not augmented; the same at every step."""
        count = min(per_domain, *self.order.sizes)
        picks = [self.order.epoch(domain, 0)[:count] for domain in range(len(self.splits))]
        pixels = [images.read(pick.numpy()) for images, pick in zip(self.splits, picks, strict=True)]
        images = torch.from_numpy(np.concatenate(pixels)).to(self.device).permute(0, 3, 1, 2)
        picked = torch.cat([start + pick for start, pick in zip(self.label_starts, picks, strict=False)])
        return self._batch(self.normalise(images), self.labels[picked.to(self.device)])

    @property
    def label_starts(self) -> list[int]:
        """Where the labels of each source begin."""
        return [sum(self.order.sizes[:source]) for source in range(self.num_sources)]

    def _batch(self, images: Tensor, labels: Tensor) -> Batch:
        return Batch(images, labels, self.num_sources, self.strong_view)

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed stream needs to go on exactly where this one stands."""
        return {"step": self.step, "noise": self.noise.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` stood."""
        self.step = state["step"]
        self.arrivals.restart()
        self.noise.set_state(state["noise"].cpu())

    def close(self) -> None:
        """Stop reading ahead."""
        self.arrivals.restart()


class Arrivals:
    """How the images of a batch come to the device."""

    def __init__(self, stream: BatchStream) -> None:
        self.stream, self.order, self.device = stream, stream.order, stream.device

    def prepare(self, step: int, batches: int) -> None:
        """The host's part, of so many batches from this one on."""
        raise NotImplementedError

    def draw(self) -> tuple[Tensor, Tensor]:
        """The device's part of one: augmented images (n, side, side, 3), and which labels are theirs."""
        raise NotImplementedError

    def restart(self) -> None:
        """Forget what was prepared: the next step may be any."""
        raise NotImplementedError


class ResidentArrivals(Arrivals):
    """All images lie on the device; the host only says, every so often, which come next."""

    def __init__(self, stream: BatchStream) -> None:
        super().__init__(stream)
        held = make_resident(stream.splits, self.device)
        self.parts = held.parts
        self.homes = [held.homes[id(images)] for images in stream.splits]
        self.picks, self.label_picks = self._tables(BATCHES_OF_PICKS)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.picked_from: int | None = None

    def prepare(self, step: int, batches: int) -> None:
        """The picks of the next batches, unless they are written: all of them, since none is drawn in between."""
        if self.picked_from is not None and step + batches <= self.picked_from + len(self.picks):
            return
        if batches > len(self.picks):  # before anything has been recorded that reads from the tables
            self.picks, self.label_picks = self._tables(batches)
        picks = [self.order.picks(domain, step, len(self.picks)) for domain in range(len(self.homes))]
        starts = self.stream.label_starts
        self.picks.copy_(torch.cat([start + pick for (_, start), pick in zip(self.homes, picks, strict=True)], dim=1))
        self.label_picks.copy_(torch.cat([s + pick for s, pick in zip(starts, picks, strict=False)], dim=1))
        self.cursor.zero_()
        self.picked_from = step

    def draw(self) -> tuple[Tensor, Tensor]:
        """Look up the images of the cursor's batch, and move it on."""
        picks, label_picks = (p.index_select(0, self.cursor).squeeze(0) for p in (self.picks, self.label_picks))
        self.cursor += 1
        recipe, noise = self.stream.augmentation, self.stream.noise
        if len(self.parts) == 1:
            return augment(self.parts[0], picks, recipe, noise), label_picks
        by_domain = torch.split(picks, self.order.counts)
        found = [self.parts[part][pick] for (part, _), pick in zip(self.homes, by_domain, strict=True)]
        return augment(torch.cat(found), torch.arange(len(picks)), recipe, noise), label_picks

    def restart(self) -> None:
        """Write the picks anew before the next batch."""
        self.picked_from = None

    def _tables(self, batches: int) -> tuple[Tensor, Tensor]:
        """Room for the picks of so many batches: of images, and of the sources' labels."""
        counts, sources = self.order.counts, self.stream.num_sources
        first, second = (
            torch.zeros(batches, count, dtype=torch.int64, device=self.device)
            for count in (sum(counts), sum(counts[:sources]))
        )
        return first, second


@dataclass
class HostBatch:
    """A batch on its way: bytes this process reads and all label picks, in host memory; and when they are copied."""

    pixels: Tensor
    label_picks: Tensor
    copied: Any = None


class StreamedArrivals(Arrivals):
    """Batches are read ahead into host memory and copied to fixed places on the device, where a step finds them."""

    def __init__(self, stream: BatchStream) -> None:
        super().__init__(stream)
        self.prefetcher: Prefetcher[HostBatch] | None = None
        # The domains of a batch are read at the same time, or each would wait for the last file of the one before.
        self.readers = ThreadPoolExecutor(THREADS * len(stream.splits), thread_name_prefix="afield-read")
        side, count = stream.splits[0].side or 0, sum(self.order.counts)
        self.number, self.parts = stream.part
        self.share = stream.per_domain // self.parts
        """Images that this process reads of every b of a domain."""
        self.shape, self.labelled = (count, side, side, 3), stream.num_sources * stream.per_domain
        self.places: list[tuple[Tensor, Tensor]] = []
        """Pixels and label picks of each batch of a step."""
        self.drawn = 0
        self.whole = torch.arange(count, device=self.device)

    def prepare(self, step: int, batches: int) -> None:
        """Wait for the batches, and send each on its way to a place of its own."""
        if self.prefetcher is None:
            self.prefetcher = Prefetcher(self._fill, [self._buffer() for _ in range(BATCHES_AHEAD)], step)
        while len(self.places) < batches:
            pixels = torch.empty(self.shape, dtype=torch.uint8, device=self.device)
            self.places.append((pixels, torch.empty(self.labelled, dtype=torch.int64, device=self.device)))
        for pixels, label_picks in self.places[:batches]:
            batch = self.prefetcher.take()
            if self.parts == 1:
                pixels.copy_(batch.pixels, non_blocking=True)
            else:
                self._exchange(batch.pixels.to(self.device, non_blocking=True), pixels)
            label_picks.copy_(batch.label_picks, non_blocking=True)
            if self.device.type == "cuda":
                batch.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
                batch.copied.record(torch.cuda.current_stream(self.device))
            self.prefetcher.give_back(batch)
        self.drawn = 0

    def draw(self) -> tuple[Tensor, Tensor]:
        """What `prepare` has sent, one batch after the other. A recorded step reads from these same places."""
        pixels, label_picks = self.places[self.drawn]
        self.drawn += 1
        return augment(pixels, self.whole, self.stream.augmentation, self.stream.noise), label_picks.clone()

    def restart(self) -> None:
        """Drop what was read ahead."""
        if self.prefetcher is not None:
            self.prefetcher.close()
            self.prefetcher = None

    def _exchange(self, own: Tensor, whole: Tensor) -> None:
        """Give the other processes what this one has read, and take what they have."""
        assert self.stream.gather is not None
        found = self.stream.gather(own).view(self.parts, -1, self.share, *own.shape[1:])
        whole.copy_(found.transpose(0, 1).flatten(0, 2))  # the processes' shares of a domain, one after the other

    def _buffer(self) -> HostBatch:
        pinned, (count, *image) = self.device.type == "cuda", self.shape
        pixels = torch.empty((count // self.parts, *image), dtype=torch.uint8, pin_memory=pinned)
        return HostBatch(pixels, torch.empty(self.labelled, dtype=torch.int64, pin_memory=pinned))

    def _fill(self, step: int, batch: HostBatch) -> None:
        if batch.copied is not None:
            batch.copied.synchronize()
        count, pixels = self.share, batch.pixels.numpy()
        picks = [self.order.picks(domain, step)[0] for domain in range(len(self.stream.splits))]
        mine = slice(self.number * count, (self.number + 1) * count)
        own = [pick.view(-1, self.stream.per_domain)[:, mine].flatten().numpy() for pick in picks]
        ends = list(accumulate(map(len, own)))
        reading = [
            self.readers.submit(images.read, pick, pixels[end - len(pick) : end])
            for images, pick, end in zip(self.stream.splits, own, ends, strict=True)
        ]
        wait(reading)
        for read in reading:
            read.result()
        batch.label_picks.copy_(
            torch.cat([start + pick for start, pick in zip(self.stream.label_starts, picks, strict=False)])
        )


def mix_seed(*numbers: int) -> int:
    """One 63-bit seed from several small numbers, so that streams of neighbouring seeds do not overlap."""
    seed = 0
    for number in numbers:
        seed = (seed * 1_000_003 + number + 0x9E3779B9) % (2**63 - 1)
    return seed
