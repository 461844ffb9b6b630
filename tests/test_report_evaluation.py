"""`evaluate`: the report of any run on rows of the user's own."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import jointenergy
from jointenergy.data import load
from jointenergy.errors import InputError
from jointenergy.report.suite import PARTS, RunEvaluation
from jointenergy.runs import Run

TEST = load("digits", split="test")
FEW = TEST.rows(slice(0, 60))


def classifier(seed: int = 0) -> Run:
    """A few steps of cross-entropy: enough to be better than chance."""
    data = load("digits")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(64, 16), nn.SiLU(), nn.Linear(16, 10))
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(data.x), data.y[:, 0]).backward()
        optimizer.step()
    return jointenergy.wrap(net, {"digit": 10}, bounds=(-1, 1), event_shape=(64,))


@pytest.fixture(scope="module")
def wrapped() -> Run:
    return classifier()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> Run:
    data = load("digits")
    return jointenergy.fit(
        nn.Linear(64, 10),
        (data.x[:300], data.y[:300, 0]),
        labels={"digit": 10},
        iterations=4,
        steps=2,
        folder=tmp_path_factory.mktemp("fits") / "mine",
        verbose=False,
    )


def told(found: RunEvaluation, name: str) -> str:
    return " ".join(next(section.says for section in found.sections if section.name == name))


def test_a_wrapped_classifier_has_a_report(wrapped, tmp_path):
    """Fails if a part needs what only runs of recipes have, or is left out without a word."""
    found = jointenergy.evaluate(wrapped, FEW.x.numpy(), FEW.y[:, 0].numpy(), out=tmp_path)
    assert found.metrics["accuracy"] == pytest.approx(float((wrapped.predict(FEW.x) == FEW.y).double().mean()))
    assert {section.name for section in found.sections} == {*PARTS} - {"training", "distal"}
    assert "was not trained here" in told(found, "health")
    assert "has no training data" in told(found, "samples")
    assert "no validation rows" in told(found, "likelihood")
    assert "data of your own, 60 test rows" in (tmp_path / "report.html").read_text()
    assert "The recipe" not in (tmp_path / "report.html").read_text()
    assert json.loads((tmp_path / "metrics.json").read_text())["metrics"] == found.metrics
    assert list((tmp_path / "pictures").glob("*.png"))


def test_what_was_fitted_to_validation_rows_is_shown(wrapped, tmp_path):
    """Fails if the report of a run without held-out rows has no temperature and no sets, or keeps older figures."""

    def figures() -> dict[str, float | None]:
        return dict(jointenergy.evaluate(wrapped, FEW.x, FEW.y, out=tmp_path, parts=["calibration"]).metrics)

    assert "ece_scaled" not in figures()
    rest = TEST.rows(slice(60, None))
    temperature = wrapped.calibrate(rest.x, {"digit": rest.y})
    wrapped.conform(rest.x, rest.y, coverage=0.8)
    found = figures()
    assert found["logit_temperature"] == temperature.value
    assert found["set_coverage.80"] == pytest.approx(
        float(wrapped.predict_set(FEW.x, coverage=0.8).members["digit"].gather(1, FEW.y).double().mean())
    )
    assert "set_coverage.90" not in found
    assert "set_coverage_randomized.80" not in found


def test_a_run_of_fit_has_a_report_beside_its_baseline(fitted, wrapped, tmp_path):
    ood = {"bright": np.ones((20, 64), np.float32)}
    parts = ["health", "prediction", "ood", "training"]
    found = jointenergy.evaluate(fitted, FEW.x, FEW.y, out=tmp_path, ood=ood, against=wrapped, parts=parts)
    assert [section.name for section in found.sections] == parts
    assert found.metrics["healthy"] in (0.0, 1.0)
    assert found.name == fitted.origin.name
    assert {"baseline.accuracy", "ood_auroc.bright.log_density"} <= found.metrics.keys()


def test_a_run_of_fit_without_its_data_says_what_it_lacks(fitted, tmp_path):
    """Fails if one part that needs the training rows stops all others."""
    folder = fitted.origin.checkpoint.parent.parent
    with pytest.warns(UserWarning, match="no healthy checkpoint"):
        run = jointenergy.load(folder, network=nn.Linear(64, 10))
    parts = ["health", "samples", "prediction", "likelihood"]
    found = jointenergy.evaluate(run, FEW.x, FEW.y, out=tmp_path, parts=parts)
    assert "Not checked: the run" in told(found, "health")
    assert "has no training data" in told(found, "samples")
    assert "has no validation rows" in told(found, "likelihood")
    assert "accuracy" in found.metrics


def test_another_network_with_the_same_weights_is_measured_again(wrapped, tmp_path):
    """Fails if a network that differs only in what has no weights is taken for the one before."""
    linear, _, last = wrapped.model.network
    other = jointenergy.wrap(nn.Sequential(linear, nn.ReLU(), last), wrapped.labels, bounds=(-1, 1), event_shape=(64,))
    one, two = (
        jointenergy.evaluate(run, FEW.x, FEW.y, out=tmp_path, parts=["prediction"]).metrics["nll"]
        for run in (wrapped, other)
    )
    assert one != two


X = FEW.x


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "has no recipe that names some: pass x and y to jointenergy.evaluate, or --rows FILE.npz in the shell"),
        ({"y": FEW.y}, "y has the labels of x: pass x too"),
        ({"x": X[:, :5]}, r"x must have shape \[n, 64\], got \[60, 5\]"),
        ({"x": X * 200}, "x has values from -200 to 200, but the run expects x between -1 and 1: scale it"),
        ({"x": X, "y": FEW.y[:3]}, "labels have 3 rows where x has 60"),
        ({"x": X, "suite": "slow"}, "suite must be 'quick', 'full' or 'paper', got 'slow'"),
        ({"x": X, "ood": {"a b": X}}, "the name of a set takes letters, digits, _ and -, got 'a b'"),
        ({"x": X, "ood": {"noise": X}}, "noise is a built-in set: choose another name"),
        ({"x": X, "ood": {"far": X * 200}}, r"ood\['far'\] has values from -200 to 200"),
        ({"x": X, "parts": ["colour"]}, "there is no part 'colour'"),
        ({"run": nn.Linear(64, 10), "x": X}, "evaluate takes a run, as fit, load or wrap returns it, got Linear"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_what_is_wrong_is_one_sentence(wrapped, tmp_path, arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        jointenergy.evaluate(**{"run": wrapped, "out": tmp_path, **arguments})
    assert not list(tmp_path.iterdir())


def test_rows_without_labels_are_evaluated_for_what_needs_none(wrapped, tmp_path):
    found = jointenergy.evaluate(wrapped, FEW.x, out=tmp_path, parts=["prediction", "ood"])
    assert "has no labels to predict" in told(found, "prediction")
    assert found.metrics["ood_auroc.noise.log_density"] is not None


def test_the_rows_of_a_recipe_can_be_replaced(tmp_path):
    run = jointenergy.load("digits-jem")
    found = jointenergy.evaluate(run, FEW.x, FEW.y, out=tmp_path, parts=["prediction"])
    assert found.about["test_rows"] == len(FEW)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"against": nn.Linear(2, 2)}, "against must be a run"),
        ({"others": {"a": nn.Linear(2, 2)}}, "a must be a run"),
        ({"others": [1]}, "others must map names"),
        ({"ood": [1]}, "ood must map names"),
        ({"parts": 5}, "parts must be names of parts"),
        ({"seed": "a"}, "seed must be an integer"),
    ],
)
def test_nonsense_is_one_sentence(wrapped, tmp_path, changes, sentence):
    with pytest.raises(InputError, match=sentence):
        jointenergy.evaluate(wrapped, FEW.x, FEW.y, out=tmp_path, **changes)


def test_a_file_is_no_folder_for_a_report(wrapped, tmp_path):
    (tmp_path / "x.npy").touch()
    with pytest.raises(InputError, match="is a file: choose another one"):
        jointenergy.evaluate(wrapped, FEW.x, FEW.y, out=tmp_path / "x.npy", parts="prediction")
