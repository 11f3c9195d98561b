"""`afield.Classifier`: training and prediction as scikit-learn has them, with domains as skada has them."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from os import PathLike, fsdecode
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import _safe_indexing, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from afield.app.model import Model, load
from afield.app.train import train
from afield.data.arrays import as_pixels, from_arrays
from afield.data.domain import DomainSet, Split
from afield.data.images import Pixels
from afield.data.paths import from_paths
from afield.errors import AfieldError
from afield.methods.registry import AnyMethod
from afield.results.run import Run
from afield.training.callbacks import Callback
from afield.training.devices import accelerator

MEANS = "sample_domain has a number for each image: above 0 for a source, below 0 for the target, such as 1, 2 and -3"


MEANS_BY_NAME = (
    "sample_domain has numbers by the names of its domains: above 0 for a source, below 0 for the target, such as "
    '{"camera1": 1, "camera2": 2, "camera4": -4}'
)


class InvalidInputError(AfieldError, ValueError):
    """Images, labels or domains that cannot be learned from: for scikit-learn a ValueError."""


class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Domain adaptation and generalization as a scikit-learn estimator of images.

    `fit(X, y, sample_domain=d)` trains as `afield.train` does, whose arguments are its parameters; `random_state` is
    the seed. X is an array (N, H, W, 3) of bytes, a list of arrays of any sizes, or a list of image files. d says for
    each image which domain it is of: above 0 for a source, below 0 for the target. Labels of the target are not read,
    whatever they are. Without a target it trains for domains that nobody has seen yet.

    X may also be a data set, in the forms that `afield.train` takes; then there is no y, and d has the numbers of its
    domains by their names, such as {"camera1": 1, "camera2": 2, "camera4": -4}. `predict` takes a `Split` of one, too.

    The run goes to a temporary folder, which is gone when `fit` ends, unless `out` names one. Then there are
    `classes_`, `run_` (accuracies, records) and `model_`, which is what `afield.load` gives.
    """

    classes_: NDArray[Any]
    run_: Run
    model_: Model

    def __init__(
        self,
        method: AnyMethod = "far",
        backbone: str | None = None,
        *,
        steps: int | None = None,
        lr: float | None = None,
        batch_size: int | None = None,
        pretrained: bool | None = None,
        weights: str | Path | None = None,
        device: str | None = None,
        random_state: Any = None,
        settings: dict[str, Any] | None = None,
        selector: str = "last",
        out: str | Path | None = None,
        overwrite: bool = False,
        progress: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.method = method
        self.backbone = backbone
        self.steps = steps
        self.lr = lr
        self.batch_size = batch_size
        self.pretrained = pretrained
        self.weights = weights
        self.device = device
        self.random_state = random_state
        self.settings = settings
        self.selector = selector
        self.out = out
        self.overwrite = overwrite
        self.progress = progress
        self.callbacks = callbacks

    def fit(self, X: Any, y: Any = None, sample_domain: ArrayLike | Mapping[str, int] | None = None) -> Self:
        """Train on the sources' images and labels and, where there is a target, on its images."""
        if isinstance(X, DomainSet | str | PathLike):
            return self._fit_data_set(X, y, sample_domain)
        if isinstance(sample_domain, Mapping):
            raise InvalidInputError(f"sample_domain by names is for a data set; of images, {MEANS}")
        if y is None:
            raise InvalidInputError("Classifier requires y to be passed, but the target y is None")
        images = files_or_pixels(X)
        domains = domains_of(sample_domain, len(images))
        classes, labels = labels_of(y, domains)
        names = [str(value) for value in classes.tolist()]
        if "" in names:
            raise InvalidInputError("a label of a source is empty; every image of a source needs a class")
        try:
            data = data_of(images, [None if number is None else names[number] for number in labels], domains, names)
        except AfieldError as error:
            raise InvalidInputError(str(error)) from error
        target = next((name_of(number) for number in domains if number < 0), None)
        self._train(data, None, target)
        self.classes_ = classes
        return self

    def _fit_data_set(self, data: Any, y: Any, numbers: Any) -> Self:
        """Train on the domains of a data set that have a number."""
        if y is not None:
            raise InvalidInputError("a data set has labels of its own: y is not given with it")
        if not isinstance(numbers, Mapping):
            raise InvalidInputError(f"of a data set, {MEANS_BY_NAME}")
        domains_of(list(numbers.values()), len(numbers))
        targets = [name for name, number in numbers.items() if number < 0]
        self._train(
            data if isinstance(data, DomainSet) else fsdecode(data),
            [name for name in numbers if name not in targets],
            targets[0] if targets else None,
        )
        self.classes_ = np.array(self.model_.classes)
        return self

    def _train(self, data: DomainSet | str, sources: list[str] | None, target: str | None) -> None:
        with ExitStack() as stack:
            folder = self.out or Path(stack.enter_context(TemporaryDirectory(prefix="afield-"))) / "run"
            run = train(
                data, "uda" if target else "dg", target, self.method, self.steps, self._seed(), folder,
                backbone=self.backbone, pretrained=self.pretrained, weights=self.weights, lr=self.lr,
                batch_size=self.batch_size, device=self.device, settings=self.settings, overwrite=self.overwrite,
                sources=sources, selector=self.selector, progress=self.progress, callbacks=self.callbacks,
            )  # fmt: skip
            model = load(run.checkpoint)
        self.run_ = run
        self.model_ = model.to(torch.device(accelerator(model.config.training)))

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each image."""
        probabilities = self.predict_proba(X)
        chosen: NDArray[Any] = self.classes_[probabilities.argmax(axis=1)]
        return chosen

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Probabilities (N, classes), in the order of `classes_`."""
        check_is_fitted(self, "model_")
        if isinstance(X, Split):
            return self._proba_of_split(X)
        probabilities: NDArray[np.float32] = self.model_.predict_proba(files_or_pixels(X)).numpy()
        return probabilities

    def _proba_of_split(self, split: Split) -> NDArray[np.float32]:
        """The same of a part of a data set, of which no more is in memory than is looked at together."""
        preprocessing = self.model_.preprocessing
        images = split.images.sized(preprocessing.image_size, preprocessing.oblong)
        chunks = np.split(np.arange(len(images)), range(self.model_.chunk, len(images), self.model_.chunk))
        return np.concatenate([self.model_.predict_proba(images.read(chunk)).numpy() for chunk in chunks])

    def _seed(self) -> int | None:
        """afield's seed; None: the config's."""
        if self.random_state is None or isinstance(self.random_state, int | np.integer):
            return None if self.random_state is None else int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False  # (N, H, W, 3), which scikit-learn has no tag for, or names of files
        tags.input_tags.string = True
        return tags


def files_or_pixels(X: Any) -> list[str] | Pixels | list[Pixels]:
    """Names of image files, or images as RGB bytes."""
    is_list = isinstance(X, Iterable) and not isinstance(X, str | bytes) and getattr(X, "ndim", 1) == 1
    listed = list(X) if is_list else []
    if listed and all(isinstance(one, str | PathLike) for one in listed):
        return [fsdecode(one) for one in listed]
    try:
        return as_pixels(X)
    except AfieldError as error:
        raise InvalidInputError(str(error)) from error


def domains_of(sample_domain: ArrayLike | None, count: int) -> list[int]:
    """For each image its domain's number, checked."""
    if sample_domain is None:
        raise InvalidInputError(f"sample_domain is missing: {MEANS}")
    numbers = np.asarray(sample_domain)
    if numbers.shape != (count,):
        raise InvalidInputError(f"there are {count:,} images, but sample_domain has shape {numbers.shape}; {MEANS}")
    if not np.issubdtype(numbers.dtype, np.integer) or not numbers.all():
        wrong = "0" if np.issubdtype(numbers.dtype, np.integer) else f"dtype {numbers.dtype}"
        raise InvalidInputError(f"sample_domain has {wrong}; {MEANS}")
    targets = sorted({int(number) for number in numbers if number < 0})
    if len(targets) > 1:
        raise InvalidInputError(f"sample_domain has {len(targets)} targets, {targets}; afield adapts to one")
    found: list[int] = numbers.tolist()
    return found


def labels_of(y: Any, domains: Sequence[int]) -> tuple[NDArray[Any], list[int | None]]:
    """The classes of the sources, sorted, and each image's place among them; None for the target's."""
    if len(y) != len(domains):
        raise InvalidInputError(f"there are {len(domains):,} images but {len(y):,} labels")
    sources = [place for place, number in enumerate(domains) if number > 0]
    if not sources:
        raise InvalidInputError(f"there are no sources to learn from; {MEANS}")
    given = column_or_1d(_safe_indexing(y, sources), warn=True)
    check_classification_targets(given)
    classes, numbers = np.unique(given, return_inverse=True)
    labels: list[int | None] = [None] * len(domains)
    for place, number in zip(sources, numbers.tolist(), strict=True):
        labels[place] = number
    return classes, labels


def data_of(
    images: list[str] | Pixels | list[Pixels], labels: list[str | None], domains: Sequence[int], classes: list[str]
) -> DomainSet:
    """The data set that `afield.train` takes."""
    names = [name_of(number) for number in domains]
    if isinstance(images, list) and isinstance(images[0], str):
        return from_paths([str(path) for path in images], labels, names, classes=classes)
    return from_arrays(images, labels, names, classes=classes)


def name_of(domain: int) -> str:
    """What a run calls a domain.

    >>> name_of(1), name_of(-2)
    ('source 1', 'target 2')
    """
    return f"source {domain}" if domain > 0 else f"target {-domain}"
