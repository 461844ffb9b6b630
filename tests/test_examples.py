"""Every example runs as it stands, at smoke size and without a folder of data."""

import runpy
from pathlib import Path

import pytest
from PIL import Image

from jointenergy.report import provenance, results

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MOST_LINES = 100


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda e: e.stem)
def test_an_example_is_short(example):
    assert len(example.read_text().splitlines()) < MOST_LINES


def test_a_classifier_is_finetuned(tmp_path, monkeypatch, capsys, unchecked):
    """Fails if the script breaks, leaves out a figure, or writes a file that is no result."""
    monkeypatch.delenv("JOINTENERGY_DATA", raising=False)
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv(provenance.VARIABLE, "0123456789abcdef")
    main = runpy.run_path(str(EXAMPLES / "finetune_classifier.py"))["main"]
    main(["--smoke", "--out", str(tmp_path), "--grid", str(tmp_path / "samples.png")])
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("accuracy: ", "ece: ", "ood_auroc.", "CPU time", "healthy: "))
    found = results.read(tmp_path / "finetune-classifier.json")
    wanted = {"accuracy", "ece", "ood_auroc.inverted.log_density"}
    assert wanted | {f"baseline.{name}" for name in wanted} | {"healthy"} <= set(found.metrics)
    # A chance level of 0.1: the classifier was trained, and fit has started from its weights.
    assert (found.metrics["baseline.accuracy"].mean or 0.0) > 0.5
    assert (found.metrics["accuracy"].mean or 0.0) > 0.5
    assert Image.open(tmp_path / "samples.png").size == (2 * (8 * 30 + 2), 2 * (10 * 30 + 2))
