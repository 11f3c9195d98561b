"""`afield.Classifier` among scikit-learn's estimators."""

import pickle
import tempfile

import numpy as np
import pytest
import sklearn
from PIL import Image
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import afield
from conftest import SMALL, toy_data
from support.images import write_folder

NUMBERS = {"day": 1, "dusk": 2, "fog": 3, "night": -4}

MATRIX = "it fits a matrix (samples, features), and an image is no row of numbers"
EXPECTED_TO_FAIL = dict.fromkeys(
    [
        "check_classifier_data_not_an_array",
        "check_classifiers_classes",
        "check_classifiers_regression_target",
        "check_classifiers_train",
        "check_dict_unchanged",
        "check_dont_overwrite_parameters",
        "check_dtype_object",
        "check_estimators_dtypes",
        "check_estimators_fit_returns_self",
        "check_estimators_overwrite_params",
        "check_estimators_pickle",
        "check_f_contiguous_array_estimator",
        "check_fit2d_predict1d",
        "check_fit_check_is_fitted",
        "check_fit_idempotent",
        "check_fit_score_takes_y",
        "check_methods_sample_order_invariance",
        "check_methods_subset_invariance",
        "check_n_features_in",
        "check_n_features_in_after_fitting",
        "check_pipeline_consistency",
        "check_positive_only_tag_during_fit",
        "check_readonly_memmap_input",
        "check_supervised_y_2d",
    ],
    MATRIX,
) | {
    "check_classifiers_one_label": "one class leaves nothing to tell apart; afield needs two",
    "check_complex_data": f"{MATRIX}: its shape is refused before its numbers are looked at",
    "check_estimator_sparse_array": f"{MATRIX}, sparse or not",
    "check_estimator_sparse_matrix": f"{MATRIX}, sparse or not",
    "check_estimator_sparse_tag": f"{MATRIX}, sparse or not",
    "check_estimators_empty_data_messages": "images have no features to count in a message",
    "check_estimators_nan_inf": f"{MATRIX}: its shape is refused before its numbers are looked at",
    "check_fit2d_1feature": "images have no features to count in a message",
    "check_fit2d_1sample": f"{MATRIX}: its shape is refused before samples are counted",
}


class TakenForOneOfMatrices(afield.Classifier):
    """scikit-learn runs no check at all on an estimator that says it takes no matrix."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags


@parametrize_with_checks([TakenForOneOfMatrices()], expected_failed_checks=lambda estimator: EXPECTED_TO_FAIL)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def toy():
    """Images, the names of their classes, and the number of their domain."""
    data = toy_data()
    splits = {number: data[name].train for name, number in NUMBERS.items()}
    X = np.concatenate([split.images.read(np.arange(len(split))) for split in splits.values()])
    y = np.array(data.classes)[np.concatenate([split.labels for split in splits.values()])]
    return X, y, np.repeat(list(splits), [len(split) for split in splits.values()])


def small(**others):
    return afield.Classifier(**{"method": "far", "steps": 4, "settings": SMALL} | others)


@pytest.fixture(scope="module")
def fitted(toy):
    X, y, sample_domain = toy
    return small().fit(X, y, sample_domain=sample_domain)


def test_it_predicts_what_its_model_does(fitted, toy):
    X, y, sample_domain = toy
    night = sample_domain < 0
    assert fitted.classes_.tolist() == ["across", "down", "square"]
    probabilities, classes = fitted.predict_proba(X[night]), fitted.predict(X[night])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    assert probabilities.shape == (night.sum(), 3)
    assert classes.tolist() == fitted.model_.predict(X[night])
    assert fitted.score(X[night], y[night]) == np.mean(classes == y[night])
    assert set(fitted.run_.accuracy) == {"source 1", "source 2", "source 3", "target 4"}
    assert fitted.run_.accuracy["target 4"] is None, "its labels are not there to measure by"


class Unreadable:
    """A label that must not be looked at."""

    def _refuse(self, *_):
        raise AssertionError("a label of the target was read")

    __eq__ = __ne__ = __lt__ = __hash__ = __str__ = __repr__ = __array__ = __float__ = __int__ = __bool__ = _refuse


@pytest.mark.parametrize("kind", ["list", "objects"])
def test_labels_of_the_target_are_never_read(fitted, toy, kind):
    X, y, sample_domain = toy
    labels = [Unreadable() if domain < 0 else label for label, domain in zip(y.tolist(), sample_domain, strict=True)]
    if kind == "objects":
        array = np.empty(len(labels), object)
        for place, label in enumerate(labels):
            array[place] = label
        labels = array
    again = small().fit(X, labels, sample_domain=sample_domain)
    assert np.array_equal(again.predict_proba(X), fitted.predict_proba(X))


def test_parameters_are_scikit_learns(fitted, toy):
    X, y, sample_domain = toy
    copy = clone(fitted)
    assert not hasattr(copy, "model_")
    assert copy.get_params() == fitted.get_params()
    assert copy.get_params()["settings"] == SMALL
    assert copy.set_params(method="dann", steps=2, random_state=3) is copy
    copy.fit(X, y, sample_domain=sample_domain)
    config = copy.model_.config
    assert (config.method_name, config.training.steps, config.training.seed) == ("dann", 2, 3)
    drawn = small(steps=1, method="baseline", random_state=np.random.RandomState(0)).fit(X, y, sample_domain)
    assert drawn.model_.config.training.seed == np.random.RandomState(0).randint(2**31 - 1)


def test_a_fitted_estimator_is_pickled(fitted, toy):
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(toy[0][:5]), fitted.predict_proba(toy[0][:5]))


def test_it_stands_at_the_end_of_a_pipeline(toy):
    X, y, sample_domain = toy
    mirror = FunctionTransformer(lambda images: images[:, :, ::-1])
    pipeline = Pipeline([("mirror", mirror), ("classifier", small(method="baseline", steps=1))])
    pipeline.fit(X, y, classifier__sample_domain=sample_domain)
    mirrored = pipeline["classifier"].predict(X[:, :, ::-1])
    assert pipeline.predict(X).tolist() == mirrored.tolist()


def test_cross_validation_routes_domains_to_it(toy):
    X, y, sample_domain = toy
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = small(method="baseline", steps=1).set_fit_request(sample_domain=True)
        scores = cross_val_score(estimator, X, y, cv=2, params={"sample_domain": sample_domain})
    assert len(scores) == 2 and all(0 <= score <= 1 for score in scores)


def test_a_temporary_run_leaves_nothing_and_a_named_one_stays(fitted, toy, tmp_path, monkeypatch):
    X, y, sample_domain = toy
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    brief = {"method": "baseline", "steps": 1}
    small(**brief).fit(X, y, sample_domain=sample_domain)
    assert not list((tmp_path / "temporary").iterdir())
    estimator = small(**brief, out=tmp_path / "run").fit(X, y, sample_domain=sample_domain)
    assert afield.load(tmp_path / "run").predict(X[:4]) == estimator.predict(X[:4]).tolist()
    with pytest.raises(afield.AfieldError, match="already holds a run"):
        estimator.fit(X, y, sample_domain=sample_domain)
    estimator.set_params(overwrite=True).fit(X, y, sample_domain=sample_domain)


def test_a_data_set_is_fitted_by_the_names_of_its_domains_and_a_split_of_it_predicted():
    data = toy_data()
    fitted = small().fit(data, sample_domain={"day": 1, "fog": 2, "night": -3})
    assert set(fitted.run_.accuracy) == {"day", "fog", "night"}, "domains without a number are left out"
    assert fitted.classes_.tolist() == list(data.classes)
    split = data["night"].test
    pixels = split.images.read(np.arange(len(split)))
    assert np.array_equal(fitted.predict(split), fitted.predict(pixels))
    np.testing.assert_allclose(fitted.predict_proba(split), fitted.predict_proba(pixels), atol=1e-6)


def test_a_folder_is_a_data_set(tmp_path):
    cameras = {name: {"bus": 4, "car": 4} for name in ("camera1", "camera2")}
    write_folder(tmp_path / "photos", cameras | {"camera4": 5})
    fitted = small(steps=1).fit(tmp_path / "photos", sample_domain={"camera1": 1, "camera2": 1, "camera4": -1})
    assert fitted.classes_.tolist() == ["bus", "car"]
    assert fitted.run_.accuracy["camera4"] is None
    assert len(fitted.predict(sorted((tmp_path / "photos/camera4").iterdir()))) == 5


@pytest.mark.parametrize(
    ("y", "sample_domain", "message"),
    [
        (["bus"], {"day": 1, "dusk": 2}, "a data set has labels of its own"),
        (None, None, "numbers by the names of its domains"),
        (None, [1, 2, -3], "numbers by the names of its domains"),
        (None, {"day": 1, "dusk": 2, "fog": -1, "night": -2}, "has 2 targets"),
        (None, {"day": 0, "dusk": 2}, "sample_domain has 0"),
    ],
)
def test_a_data_set_whose_domains_are_not_said_is_a_value_error_in_one_line(y, sample_domain, message):
    with pytest.raises(ValueError, match=message) as raised:
        small().fit(toy_data(), y, sample_domain=sample_domain)
    assert "\n" not in str(raised.value)


def test_without_a_target_it_generalizes_and_classes_keep_their_type(toy):
    X, y, sample_domain = toy
    sources = sample_domain > 0
    numbers = np.where(y == "down", 10, np.where(y == "square", -1, 9))
    estimator = small(steps=1).fit(X[sources], numbers[sources], sample_domain=sample_domain[sources])
    assert estimator.model_.config.task.kind == "dg"
    assert estimator.classes_.tolist() == [-1, 9, 10] and estimator.model_.classes == ("-1", "9", "10")
    assert set(estimator.predict(X).tolist()) <= {-1, 9, 10}


def test_images_may_be_files(toy, tmp_path):
    X, y, sample_domain = toy
    paths = [tmp_path / f"{number}.png" for number in range(len(X))]
    for path, image in zip(paths, X, strict=True):
        Image.fromarray(image).save(path)
    estimator = small(steps=1).fit(paths, y, sample_domain=sample_domain)
    assert estimator.run_.step == 1
    probabilities = estimator.predict_proba(X[:6])
    for same in (
        paths[:6],
        [str(path) for path in paths[:6]],
        np.array([str(path) for path in paths[:6]]),
        list(X[:6]),
    ):
        np.testing.assert_allclose(estimator.predict_proba(same), probabilities, atol=1e-6)
    with pytest.raises(ValueError, match=r"no such image file: nowhere\.png"):
        estimator.fit(["nowhere.png", *paths[1:]], y, sample_domain=sample_domain)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y, d: (X, y, None), "sample_domain is missing"),
        (lambda X, y, d: (X, y, d[1:]), "but sample_domain has shape"),
        (lambda X, y, d: (X, y, d * (d != 1)), "sample_domain has 0"),
        (lambda X, y, d: (X, y, d / 2), "dtype float64"),
        (lambda X, y, d: (X, y, np.where(d == 3, -3, d)), r"2 targets, \[-4, -3\]"),
        (lambda X, y, d: (X, y, -np.abs(d) // np.abs(d)), "no sources to learn from"),
        (lambda X, y, d: (X, y[1:], d), "labels"),
        (lambda X, y, d: (X, None, d), "requires y"),
        (lambda X, y, d: (X, np.arange(len(y)) / 2, d), "Unknown label type"),
        (lambda X, y, d: (X, np.where(y == "down", "", y), d), "is empty"),
        (lambda X, y, d: (X.transpose(0, 3, 1, 2), y, d), "channels come last"),
        (lambda X, y, d: ("photos", y, d), "a data set has labels of its own"),
    ],
)
def test_what_cannot_be_learned_from_is_a_value_error_in_one_line(toy, change, message):
    X, y, sample_domain = change(*toy)
    with pytest.raises(ValueError, match=message):
        small().fit(X, y, sample_domain=sample_domain)
