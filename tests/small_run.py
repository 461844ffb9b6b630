"""A tiny run of a table and of images, with files beside them, for tests that damage files and misuse commands."""

from __future__ import annotations

import contextlib
import io
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from jointenergy import recipes
from jointenergy.cli.main import main
from jointenergy.recipes import run_folder
from jointenergy.runs.loading import open_run
from tests.generated_data import write_idx_set

TINY = (
    "iterations=6",
    "batch_size=8",
    "buffer.size=50",
    "model.network.hidden=[8]",
    "chain.steps=2",
    "chain.sampling_steps=3",
    "cadence.log=2",
    "cadence.check=3",
    "cadence.checkpoint=3",
)


@dataclass(frozen=True)
class Answer:
    """How a command ended, and what it said."""

    status: int
    out: str
    err: str


def call(*words: str) -> Answer:
    """A command in this process, as a shell would see it."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(list(words))
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
    return Answer(status, out.getvalue(), err.getvalue())


def make_place(folder: Path) -> Path:
    """A run of 8 x 8 digits, its export, its evaluation's metrics, and valid files of every kind to ask it about."""
    loop = run_folder.create(folder / "run", recipes.load("digits-jem", TINY), 0)
    loop.fit()
    run = open_run(folder / "run")
    run.export(folder / "run.safetensors")
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (3, 64)).astype(np.float32)
    np.save(folder / "x.npy", x)
    np.savez_compressed(folder / "x.npz", x=x, y=np.arange(3))
    np.save(folder / "mask.npy", np.arange(64) < 32)
    (folder / "x.csv").write_text("\n".join(",".join(f"{v:.3f}" for v in row) for row in x) + "\n")
    (folder / "table.csv").write_text("a,b,kind\n" + "".join(f"{i},{-i % 5},{'uv'[i % 2]}\n" for i in range(40)))
    images = folder / "images"
    for i in range(8):
        place = images / "ab"[i % 2] / f"{i}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(place)
    (folder / "image.png").write_bytes((images / "a" / "0.png").read_bytes())
    with tarfile.open(folder / "images.tar.gz", "w:gz") as tar, zipfile.ZipFile(folder / "images.zip", "w") as packed:
        for file in sorted(images.rglob("*.png")):
            tar.add(file, file.relative_to(images))
            packed.write(file, file.relative_to(images))
    write_idx_set(folder / "mnist")
    (folder / "recipe.toml").write_text((folder / "run" / "recipe.toml").read_text())
    evaluation = folder / "run" / "evaluation"
    evaluation.mkdir()
    (evaluation / "metrics.json").write_text(
        '{"suite": "quick", "headline": "fine", "metrics": {"accuracy": 0.5}, "about": {"data": "digits"}}'
    )
    return folder
