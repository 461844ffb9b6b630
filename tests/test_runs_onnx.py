"""Runs as ONNX graphs: onnxruntime gives what torch gives, at every batch size."""

from __future__ import annotations

import json

import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import jointenergy as je
from jointenergy import networks
from jointenergy.errors import InputError
from jointenergy.models import Concat, EnergyModel, InnerProduct, LogitModel, PairModel, Reals
from jointenergy.runs import onnx as graphs

LABELS = je.LabelSpace({"color": ["red", "green"], "size": 3})
TOLERANCE = 1e-4


def answers(path, **inputs):
    session = onnxruntime.InferenceSession(str(path))
    names = [output.name for output in session.get_outputs()]
    given = {name: value.numpy() for name, value in inputs.items()}
    return dict(zip(names, map(torch.from_numpy, session.run(None, given)), strict=True))


def compare(model, shape, path):
    """Hold the graph of a model against the model itself."""
    graphs.write(model, shape, {}, path)
    for n in (1, 2, 7):
        x = torch.linspace(-1, 1, n * torch.Size(shape).numel()).sin().view(n, *shape)
        y = torch.arange(n * len(model.labels)).view(n, -1) % 2
        asks = {"y": y} if not model.factorized or model.normalizer == "conditional" else {}
        asks = asks if len(model.labels) else {}
        found = answers(path, x=x, **asks)
        with torch.no_grad():
            expected = {"log_density": model.log_density(x, y if asks else None)}
            if "logits" in found:
                expected["logits"] = model.label_logits(x).logits
                expected["max_probability"] = je.inference.score(model, x, "max_probability")
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.allclose(found[name], value, atol=TOLERANCE, rtol=TOLERANCE), name


@pytest.mark.slow
def test_an_exported_run_answers_without_torch(tmp_path):
    """Fails where the batch size is fixed, an output is missing, or labels, bounds or thresholds are lost."""
    run = je.load("digits-gibbs")
    path = run.export(tmp_path / "digits.onnx")
    x = torch.linspace(-1, 1, 5 * 64).sin().view(5, 64)
    found = answers(path, x=x)
    for name in ("log_density", "max_probability"):
        assert torch.allclose(found[name], run.score(x, name), atol=TOLERANCE)
    probs = [block.softmax(1) for block in found["logits"].split(run.labels.cardinalities, dim=1)]
    for own, (name, expected) in zip(probs, run.predict_proba(x).items(), strict=True):
        assert torch.allclose(own, expected, atol=TOLERANCE), name
    known = {p.key: json.loads(p.value) for p in onnx.load(path).metadata_props}
    assert known["labels"] == dict(zip(run.labels.names, map(list, run.labels.values), strict=True))
    assert known["bounds"] == [-1.0, 1.0]
    threshold = next(t for t in known["fitted"]["thresholds"] if t["score"] == "log_density")
    assert torch.equal(found["log_density"] >= threshold["value"], run.detect(x).inside)


MODELS = {
    "conditional": lambda: (LogitModel(nn.Linear(7, 5), LABELS, normalizer="conditional"), (7,)),
    "gaussian reference": lambda: (LogitModel(nn.Linear(7, 5), LABELS, domain=Reals(2.0)), (7,)),
    "full covariance": lambda: (LogitModel(nn.Linear(2, 5), LABELS, domain=Reals(((1.0, 0.0), (0.5, 2.0)))), (2,)),
    "pair": lambda: (PairModel(Concat(nn.Sequential(nn.Linear(12, 8), nn.SiLU(), nn.Linear(8, 1))), LABELS), (7,)),
    "inner product": lambda: (PairModel(InnerProduct(nn.Linear(5, 6)), LABELS, features=nn.Linear(7, 6)), (7,)),
    "without labels": lambda: (
        EnergyModel(nn.Sequential(nn.Conv2d(1, 4, 3), nn.SiLU(), nn.Flatten(), nn.Linear(144, 1))),
        (1, 8, 8),
    ),
    "normalizer-free": lambda: (LogitModel(networks.NFWideResNet(10, 1, n_classes=5), LABELS), (3, 8, 8)),
    "wide": lambda: (LogitModel(networks.WideResNet(10, 1, n_classes=5), LABELS), (3, 8, 8)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_family_agrees_with_torch(name, tmp_path):
    torch.manual_seed(0)
    model, shape = MODELS[name]()
    model.event_shape = shape
    compare(model.eval(), shape, tmp_path / "model.onnx")


class Random(nn.Module):
    def forward(self, x):
        if bool(x.sum() > 0):  # a branch on values, which no graph can follow
            return x[:, :5]
        return -x[:, :5]


def test_what_cannot_be_exported_is_said_in_one_sentence(tmp_path):
    with pytest.raises(InputError, match="cannot be written as ONNX"):
        graphs.write(LogitModel(Random(), LABELS).eval(), (7,), {}, tmp_path / "model.onnx")
    with pytest.raises(InputError, match="keeps float32 weights"):
        je.load("digits-gibbs").export(tmp_path / "model.onnx", half=True)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["model.onnx", "model.safetensors"])
def test_a_file_that_cannot_be_written_is_refused_before_any_work(name, tmp_path, monkeypatch):
    """Fails if thresholds are fitted or the network is traced first."""
    run = je.load("digits-gibbs")
    (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setattr(type(run), "_fit_all", lambda _: pytest.fail("work was done"))
    with pytest.raises(InputError, match=f"{name} is not a valid file name: choose another"):
        run.export(tmp_path / name)
    with pytest.raises(InputError, match="file is not a writable folder"):
        run.export(tmp_path / "file" / name)
    with pytest.raises(InputError, match=r"must end in \.safetensors or \.onnx"):
        run.export(tmp_path / "model.pt")
