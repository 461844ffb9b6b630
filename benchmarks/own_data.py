"""benchmarks: own images from the shell: a folder, `jointenergy init`, `jointenergy train`, and figures on test images.

python benchmarks/own_data.py [--only cifar4|footwear] [--minutes 10] [--write] reads JOINTENERGY_DATA; --write
publishes results/init-SET.json from a clean tree. Nothing is set but the minutes that `init` plans for.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rounds import in_a_sentence
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

import jointenergy as je
from jointenergy.cli.inputs import read
from jointenergy.errors import InputError
from jointenergy.report import provenance, results
from jointenergy.training.health import PROTOCOL

EACH, CLASSES = 400, ("airplane", "automobile", "bird", "cat")
STEP = 10  # every tenth shoe is a test image
NOTE = (
    "Test images are touched once; one seed. Times are of the command. The baseline is a logistic regression "
    "on the pixels of the training images, of several labels the value that most of these have."
)
Answers = dict[str, Tensor]
"""For each label the place of its value in the run's names, one for each test image."""


def cifar4(train: Path, test: Path) -> Callable[[je.Run], Answers]:
    """Write the first images of the first four classes, and all of their test images, a folder for each class."""
    for folder, split, most in ((train, "train", EACH), (test, "test", None)):
        rows = je.data.load("cifar10", None, split)
        for k, name in enumerate(CLASSES):
            (folder / name).mkdir(parents=True)
            for i, x in enumerate(rows.x[rows.y[:, 0] == k][:most].numpy()):
                Image.fromarray(x.transpose(1, 2, 0)).save(folder / name / f"{i:05d}.png")
    counts = [len(list((test / name).iterdir())) for name in CLASSES]
    return lambda run: {run.labels.names[0]: torch.arange(len(CLASSES)).repeat_interleave(torch.tensor(counts))}


def footwear(train: Path, test: Path) -> Callable[[je.Run], Answers]:
    """Write shoes and their table of attributes; every tenth is a test image."""
    place = Path(os.environ["JOINTENERGY_DATA"]) / "footwear"
    table = (place / "styles_footwear.csv").read_bytes()
    for folder in (train, test):
        folder.mkdir(parents=True)
    (train / "styles.csv").write_bytes(table)
    with tarfile.open(place / "images_60x80.tar.xz") as archive:
        members = sorted((m for m in archive.getmembers() if m.isfile()), key=lambda m: m.name)
        for i, member in enumerate(members):
            found = archive.extractfile(member)
            assert found is not None
            ((train if i % STEP else test) / Path(member.name).name).write_bytes(found.read())
    rows = {row["id"]: row for row in csv.DictReader(io.StringIO(table.decode()))}
    of_images = [rows[path.stem] for path in sorted(test.iterdir())]

    def truth(run: je.Run) -> Answers:
        def place_of(k: int, name: str) -> Tensor:
            values = list(run.labels.values[k])
            return torch.tensor([values.index(row[name]) if row[name] in values else -1 for row in of_images])

        return {name: place_of(k, name) for k, name in enumerate(run.labels.names)}

    return truth


def shell(*words: str | Path) -> float:
    """Run a command of jointenergy as a user would; return its minutes."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "jointenergy", *map(str, words)], capture_output=True, text=True)
    print(done.stdout[-1500:], done.stderr[-500:], flush=True)
    if done.returncode not in (0, 4):  # 4: never healthy
        raise InputError(f"jointenergy {words[0]} failed: {done.stderr.strip()[-300:]}")
    return (time.perf_counter() - began) / 60


def baseline(run: je.Run, train: Path, answers: Answers, x_test: Tensor) -> float:
    """Return the accuracy of a logistic regression on pixels, or of the most frequent values."""
    if len(answers) > 1:
        shares = [torch.bincount(y[y >= 0]).max() / (y >= 0).sum() for y in answers.values()]
        return float(torch.stack(shares).mean())
    x = read([train], run, resize=True).x
    y = np.repeat(np.arange(len(CLASSES)), EACH)
    line = LogisticRegression(max_iter=2000).fit(x.flatten(1).numpy(), y)
    (truth,) = answers.values()
    return float(line.score(x_test.flatten(1).numpy(), truth.numpy()))


def measure(write: Callable[[Path, Path], Callable[[je.Run], Answers]], minutes: float) -> Mapping[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        train, test, out = (Path(folder) / name for name in ("train", "test", "run"))
        truth, recipe = write(train, test), Path(folder) / "my.toml"
        shell("init", train, "--out", recipe, "--minutes", str(minutes), "--device", "cpu")
        spent = shell("train", recipe, "--data", train, "--out", out, "--device", "cpu")
        run = je.load(out)
        x, answers, health = read([test], run, resize=True).x, truth(run), run.health()
        probs = [run.predict_proba(part) for part in x.split(500)]
        accuracies, errors = [], []
        for name, y in answers.items():
            p, known = torch.cat([part[name] for part in probs]), y >= 0
            accuracies.append(float((p.argmax(1) == y)[known].double().mean()))
            errors.append(float(multiclass_calibration_error(p[known], y[known], p.shape[1], n_bins=15)))
        for complaint in health.complaints:
            print(complaint)
        return {
            "accuracy": float(np.mean(accuracies)),
            "baseline.accuracy": baseline(run, train, answers, x),
            "ece": float(np.mean(errors)),
            "healthy": float(health.healthy),
            **{f"health.{k}": float(v) for k, v in health.values().items() if k != "healthy" and v is not None},
            "training_minutes": spent,
        }


SETS = {"cifar4": cifar4, "footwear": footwear}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=tuple(SETS), action="append", default=[])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.write:
        provenance.commit()  # before the work, not after it
    for name in arguments.only or SETS:
        found = measure(SETS[name], arguments.minutes)
        for key, value in found.items():
            print(f"{name}  {key}  {value:.4f}", flush=True)
        if arguments.write:
            result = results.measured(
                f"init-{name}",
                {key: [value] for key, value in found.items()},
                seeds=[0],
                minutes=found["training_minutes"],
                command=["python", "benchmarks/own_data.py", "--only", name, "--minutes", f"{arguments.minutes:g}"],
                notes=NOTE,
                protocols={"healthy": PROTOCOL},
            )
            print(f"written to {results.write(result)}")


if __name__ == "__main__":
    in_a_sentence(main)
