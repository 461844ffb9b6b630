"""Rows unlike the data: sets are read and made as they say, and figures are those of brute force and closed forms."""

from __future__ import annotations

import gzip
import io
import math
import os
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from sklearn.ensemble import IsolationForest
from torch import nn

import jointenergy
from jointenergy.data import Dataset, load
from jointenergy.data.arrays import array_pieces
from jointenergy.data.fitting import fitted, image_form
from jointenergy.errors import InputError
from jointenergy.inference import SCORES, Score
from jointenergy.kernels import Langevin
from jointenergy.labels import LabelSpace
from jointenergy.metrics import detection, registry
from jointenergy.models import Box, ConditionalModel, EnergyModel
from jointenergy.report import ood as ood_part
from jointenergy.report.ood import Asked, OodSizes, ood, scores_of
from jointenergy.report.ood_sets import built_in_sets, read_ood_set
from jointenergy.report.sections import Subject
from jointenergy.runs import Run
from jointenergy.runs.origin import Origin, Sampling
from jointenergy.runs.thresholds import Thresholds
from tests.small import trained
from tests.test_runs import TINY

# Toys.


class Both(nn.Module):
    """Two equal logits of a function of x, so that log p(x) is the function and log 2."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)[:, None].expand(-1, 2)


def gaussian(x):
    return -(x**2).flatten(1).sum(1) / 2


def wrapped(function=gaussian, shape=(2,), bounds=(-20.0, 20.0)) -> Run:
    return jointenergy.wrap(Both(function), 2, bounds=bounds, event_shape=shape)


def run_of(model, shape, bounds=(-1.0, 1.0)) -> Run:
    origin = Origin("a toy", model.labels, shape, torch.device("cpu"))
    return Run(model.eval(), origin, Sampling(Langevin(1.0, 0.01)), bounds, Thresholds())


class Given:
    """A tensor as a set."""

    def __init__(self, name, x):
        self.name, self.x = name, x

    def batches(self, size):
        yield from self.x.split(size)


def normal(n, shape=(2,), scale=1.0, seed=0):
    return scale * torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))


def rows_of(x, labels=None):
    labels = LabelSpace({"class": 2}) if labels is None else labels
    return Dataset(x, torch.zeros(len(x), len(labels), dtype=torch.int64), labels, "toy")


# Separation.


def test_a_gaussian_tells_a_wider_one_as_often_as_the_closed_form_says():
    """|x|^2 / 2 is exponential: of scales 1 and s the first is smaller with probability s^2 / (1 + s^2)."""
    subject = Subject(wrapped(), rows_of(normal(4000)), ood_sets=[Given("wide", normal(4000, scale=2.0, seed=1))])
    found = ood(subject, "full").metrics
    for kind in ("log_density", "gradient_norm"):
        assert found[f"ood_auroc.wide.{kind}"] == pytest.approx(0.8, abs=0.02)  # four standard errors
    assert found["ood_auroc.wide.log_density"] == pytest.approx(found["ood_auroc.wide.gradient_norm"], abs=1e-3)
    assert found["ood_auroc.wide.max_probability"] == 0.5  # one value for all
    assert found["ood_auroc_control.log_density"] == pytest.approx(0.5, abs=0.04)


# Scores of rows that pass by.

LOG_DENSITY = Asked("run", "log_density", False)
NOISED = Asked("run", "log_density", True)


@pytest.mark.parametrize("at_once", [1, 7, 500])
@pytest.mark.parametrize(
    ("n", "most", "step"), [(90, 100, 1), (100, 100, 1), (101, 100, 2), (999, 100, 16), (5, None, 1)]
)
def test_of_long_sets_rows_are_taken_evenly(monkeypatch, at_once, n, most, step):
    monkeypatch.setattr(ood_part, "AT_ONCE", at_once)
    run = wrapped(lambda x: x[:, 0], (1,), (0.0, 1000.0))
    rows = Given("count", torch.arange(n).float()[:, None])
    found = scores_of(rows, {"run": run}, [LOG_DENSITY], most=most, noise=0.0, seed=0)[LOG_DENSITY]
    assert (found - math.log(2)).round().tolist() == list(range(0, n, step))


def test_noise_belongs_to_the_row(monkeypatch, untouched_random_state):
    run = wrapped(lambda x: x[:, 0], (1,), (-9.0, 9.0))
    rows = Given("zeros", torch.zeros(3000, 1))
    found = []
    for at_once in (500, 7):
        monkeypatch.setattr(ood_part, "AT_ONCE", at_once)
        with untouched_random_state():
            found.append(scores_of(rows, {"run": run}, [LOG_DENSITY, NOISED], most=None, noise=0.3, seed=4))
    assert np.array_equal(found[0][NOISED], found[1][NOISED])
    assert np.allclose(found[0][LOG_DENSITY], math.log(2))
    # The standard error of a spread is 1 / sqrt(2 n), 1.3 %, and that of the mean .0055: four of them.
    assert found[0][NOISED].std() == pytest.approx(0.3, rel=0.052)
    assert found[0][NOISED].mean() == pytest.approx(math.log(2), abs=0.022)
    other = scores_of(rows, {"run": run}, [NOISED], most=None, noise=0.3, seed=5)[NOISED]
    assert not np.array_equal(other, found[0][NOISED])


# Built-in sets.


def all_of(rows, size=500):
    return torch.cat(list(rows.batches(size)))


@pytest.mark.parametrize("shape", [(64,), (3, 8, 9), (5,)])
def test_embedded_sets_are_what_they_say(shape, untouched_random_state):
    low, high = -1.0, 3.0
    run = wrapped(shape=shape, bounds=(low, high))
    test = torch.rand(50, *shape, generator=torch.Generator().manual_seed(0)) * (high - low) + low
    with untouched_random_state():
        sets = {rows.name: rows for rows in built_in_sets(run, test, 80, seed=3)}
        x = {name: all_of(rows) for name, rows in sets.items()}
    # Rows that are no images have no pixels.
    assert set(x) == {"noise", "constant", "interpolations", *(["shuffled_pixels", "patches"] if shape != (5,) else [])}
    for name, rows in sets.items():
        assert x[name].shape[1:] == shape
        assert torch.equal(all_of(rows, 7), x[name])  # rows do not depend on their batch
        assert float(x[name].min()) >= low
        assert float(x[name].max()) <= high
        assert name.replace("_", " ") in rows.says.lower()
    again = {rows.name: all_of(rows) for rows in built_in_sets(run, test, 80, seed=4)}
    assert all(not torch.equal(again[name], values) for name, values in x.items())
    assert {name: len(values) for name, values in x.items() if name != "patches"} == {
        "noise": 80,
        "constant": 80,
        "interpolations": 50,
        **({"shuffled_pixels": 50} if shape != (5,) else {}),
    }
    # Uniform: mean and variance, to four standard errors of the fewest values, 400.
    unit = (x["noise"] - low) / (high - low)
    assert float(unit.mean()) == pytest.approx(0.5, abs=0.06)
    assert float(unit.var()) == pytest.approx(1 / 12, abs=0.016)
    by_channel = x["constant"].reshape(80, 3 if len(shape) == 3 else 1, -1)
    assert torch.equal(by_channel.amin(2), by_channel.amax(2))
    assert by_channel[:, :, 0].unique().numel() == by_channel.shape[0] * by_channel.shape[1]
    pairs = [(i, j) for i in range(50) for j in range(i)]
    means = torch.stack([(test[i] + test[j]) / 2 for i, j in pairs]).flatten(1)
    used = [pairs[int((means - row).abs().sum(1).argmin())] for row in x["interpolations"].flatten(1)]
    nearest = torch.stack([(means - row).abs().sum(1).min() for row in x["interpolations"].flatten(1)])
    assert float(nearest.max()) < 1e-4
    assert len(set(used)) == 50


def test_shuffled_rows_have_their_pixels_in_orders_of_their_own():
    """A pixel's three channels stay together, every row of the test set is used once, and orders differ."""
    run = wrapped(shape=(3, 4, 5), bounds=(0.0, 1000.0))
    pixels = torch.arange(20.0).view(4, 5)
    test = torch.stack([torch.stack([pixels, pixels + 100, pixels + 200]) + 300 * (i % 2) for i in range(6)])
    rows = next(r for r in built_in_sets(run, test, 6, seed=0) if r.name == "shuffled_pixels")
    x = all_of(rows).flatten(2)
    assert torch.equal(x[:, 1] - x[:, 0], torch.full((6, 20), 100.0))
    assert torch.equal(x[:, 2] - x[:, 0], torch.full((6, 20), 200.0))
    assert sorted(x[:, 0].amin(1).tolist()) == [0.0] * 3 + [300.0] * 3
    orders = x[:, 0] - x[:, 0].amin(1, keepdim=True)
    assert torch.equal(orders.sort(1).values, torch.arange(20.0).expand(6, 20))
    assert orders.unique(dim=0).shape[0] == 6


def test_patches_are_pieces_of_the_photographs():
    run = wrapped(shape=(3, 8, 8), bounds=(-1.0, 1.0))
    rows = next(r for r in built_in_sets(run, torch.zeros(2, 3, 8, 8), 12, seed=0) if r.name == "patches")
    photos = [p.astype(np.int64) for p in load_sample_images().images]
    used = set()
    for patch in ((all_of(rows) + 1) * 127.5).round().long().permute(0, 2, 3, 1).numpy():
        hits = set()
        for i, photo in enumerate(photos):
            corner = (photo[:-7, :-7] == patch[0, 0]).all(2)
            hits |= {i for y, x in np.argwhere(corner) if np.array_equal(photo[y : y + 8, x : x + 8], patch)}
        assert hits
        used |= hits
    assert used == {0, 1}
    huge = built_in_sets(wrapped(shape=(1, 428, 428)), torch.zeros(2, 1, 428, 428), 2, seed=0)
    assert "patches" not in {rows.name for rows in huge}


# Fitting.


def test_images_are_padded_with_their_background_and_averaged_in_blocks():
    rng = np.random.default_rng(0)
    x = rng.random((5, 1, 28, 28)).astype(np.float32)
    backgrounds = np.array([0.0, 1.0, 0.25, -1.0, 0.5], np.float32)
    for image, value in zip(x, backgrounds, strict=True):
        image[0, 0] = image[0, :, 0] = value  # 55 of 108 values of the border
    padded = np.stack([np.pad(i[0], 2, constant_values=v) for i, v in zip(x, backgrounds, strict=True)])
    expected = padded.reshape(5, 8, 4, 8, 4).mean((2, 4))
    found, how = fitted(torch.from_numpy(x), (1, 8, 8))
    assert np.allclose(found[:, 0].numpy(), expected, atol=1e-6)
    assert how == "padded to 32 x 32 with the most common value of their border, averaged in blocks of 4 x 4"
    exact, how = fitted(torch.from_numpy(x), (1, 14, 7 * 2))
    assert np.allclose(exact[:, 0].numpy(), x[:, 0].reshape(5, 14, 2, 14, 2).mean((2, 4)), atol=1e-6)
    assert how == "averaged in blocks of 2 x 2"


@pytest.mark.parametrize(
    ("size", "wanted"), [((28, 28), (11, 11)), ((40, 56), (8, 8)), ((5, 6), (8, 8)), ((33, 33), (32, 32))]
)
def test_other_sizes_are_resized_as_pillow_does(size, wanted):
    pixels = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    expected = np.asarray(Image.fromarray(pixels).resize(wanted[::-1], Image.Resampling.BILINEAR), np.float32)
    found, how = fitted(torch.from_numpy(pixels.astype(np.float32))[None, None], (1, *wanted))
    assert np.abs(found[0, 0].numpy() - expected).max() <= 1.0  # Pillow rounds, twice
    assert how == f"resized to {wanted[0]} x {wanted[1]}, bilinear and antialiased"


def test_colors_are_made_grey_and_grey_color():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 7, 3), np.uint8)
    x = torch.from_numpy(pixels.astype(np.float32)).permute(2, 0, 1)[None]
    grey, how = fitted(x, (1, 6, 7))
    assert np.abs(grey[0, 0].numpy() - np.asarray(Image.fromarray(pixels).convert("L"), np.float32)).max() <= 0.51
    assert how == "converted to gray"
    color, how = fitted(grey, (3, 6, 7))
    assert torch.equal(color, grey.expand(-1, 3, -1, -1))
    assert how == "converted to color with three equal channels"
    same, how = fitted(x, (3, 6, 7))
    assert how == ""
    assert torch.equal(same, x)
    with pytest.raises(InputError, match=r"images are \[n, 1 or 3, height, width\]"):
        fitted(x[:, :2], (1, 6, 7))


def test_which_rows_are_images():
    shapes = [(64,), (9,), (65,), (4, 5), (3, 4, 5), (2, 4, 5), (1, 1, 1, 1)]
    assert [image_form(s) for s in shapes] == [(1, 8, 8), None, None, (1, 4, 5), (3, 4, 5), None, None]


# Files.


def idx_bytes(x):
    return bytes((0, 0, 8, x.ndim)) + b"".join(s.to_bytes(4, "big") for s in x.shape) + x.tobytes()


def png(pixels):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def write_tar(path: Path, contents, mode="w"):
    with tarfile.open(path, mode) as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write(folder: Path, kind: str, x: np.ndarray) -> Path:
    """The grey images as a set of one kind."""
    folder.mkdir(parents=True, exist_ok=True)
    packed = kind.startswith(("idx", "np"))
    named = {} if packed else {f"a/{i:04d}.png": png(image) for i, image in enumerate(x)}
    if kind == "idx":
        (folder / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(x))
        (folder / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(len(x), np.uint8)))
    elif kind == "idx.gz":
        (folder / "images").write_bytes(gzip.compress(idx_bytes(x)))  # any name will do where the file itself is named
        return folder / "images"
    elif kind.startswith("tar"):
        write_tar(folder / f"x.{kind}", named, {"tar": "w", "tar.gz": "w:gz", "tar.xz": "w:xz"}[kind])
    elif kind == "npy":
        np.save(folder / "x.npy", x)
    elif kind == "npz":
        np.savez_compressed(folder / "x.npz", x=x, y=np.zeros(3))
    else:
        for name, content in named.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("kind", ["idx", "idx.gz", "tar", "tar.gz", "tar.xz", "npy", "npz", "folder"])
def test_all_kinds_of_files_give_the_same_rows(tmp_path, kind):
    """Block means of 32 x 32 in the bounds: 0 becomes the lower one and 255 the upper."""
    x = np.random.default_rng(0).integers(0, 256, (23, 28, 28), np.uint8)
    x[:, 0] = x[:, -1] = x[:, :, 0] = x[:, :, -1] = 0
    x[3], x[4] = 0, 255
    run = wrapped(shape=(64,), bounds=(-2.0, 6.0))
    rows = read_ood_set("set-1", write(tmp_path / "set", kind, x), run)
    found = all_of(rows, 5)
    background = np.where(np.arange(23) == 4, 255, 0)
    padded = np.stack([np.pad(i, 2, constant_values=v) for i, v in zip(x, background, strict=True)]) / 255.0
    expected = padded.reshape(23, 8, 4, 8, 4).mean((2, 4)).reshape(23, 64) * 8.0 - 2.0
    assert found.dtype == torch.float32
    assert np.allclose(found.numpy(), expected, atol=1e-5)
    assert found[3].tolist() == [-2.0] * 64
    assert found[4].tolist() == [6.0] * 64
    assert [len(batch) for batch in rows.batches(10)] == [10, 10, 3]
    assert torch.equal(all_of(rows, 1), found)
    assert "23 images of 28 x 28, padded to 32 x 32 with the most common value of their border, averaged" in rows.says
    assert rows.name == "set-1"


def test_images_of_many_sizes_and_colors_in_one_folder(tmp_path):
    rng = np.random.default_rng(0)
    for name, shape in (("a.png", (16, 16, 3)), ("b.PNG", (16, 16)), ("sub/c.png", (20, 30)), ("sub/d.png", (40, 31))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(png(rng.integers(0, 256, shape, np.uint8)))
    (tmp_path / "notes.txt").write_text("no image")
    rows = read_ood_set("s", tmp_path, wrapped(shape=(3, 8, 8), bounds=(0.0, 1.0)))
    assert all_of(rows).shape == (4, 3, 8, 8)
    assert "1 image of 16 x 16, averaged in blocks of 2 x 2" in rows.says
    assert "2 images of 20 x 30 to 40 x 31, converted to color with three equal channels, resized to 8 x 8" in rows.says


def test_floats_are_on_the_scale_of_the_run(tmp_path):
    run, x = wrapped(shape=(64,), bounds=(-1.0, 1.0)), np.linspace(-1, 1, 640).reshape(10, 64)
    for stored in (x, x.astype(np.float32), x.reshape(10, 8, 8), x.reshape(10, 1, 8, 8), x.astype(">f8")):
        np.save(tmp_path / "x.npy", stored)
        assert np.allclose(all_of(read_ood_set("s", tmp_path / "x.npy", run), 3).numpy(), x, atol=1e-7)
    last = np.random.default_rng(0).random((4, 16, 16, 3)).astype(np.float32)  # channels last, and averaged in color
    np.savez(tmp_path / "y.npz", last)
    found = all_of(read_ood_set("s", tmp_path / "y.npz", wrapped(shape=(3, 8, 8), bounds=(0.0, 1.0))))
    expected = last.reshape(4, 8, 2, 8, 2, 3).mean((2, 4)).transpose(0, 3, 1, 2)
    assert np.allclose(found.numpy(), expected, atol=1e-6)
    table = np.random.default_rng(0).random((7, 5)).astype(np.float32)
    np.save(tmp_path / "table.npy", table)
    rows = read_ood_set("s", tmp_path / "table.npy", wrapped(shape=(5,), bounds=(0.0, 1.0)))
    assert np.array_equal(all_of(rows, 2).numpy(), table)


@pytest.mark.parametrize(
    ("name", "array", "sentence"),
    [
        ("x.npy", np.full((3, 64), 255.0), "x.npy has values from 255 to 255, but the run expects x between -1 and 1"),
        ("x.npy", np.array([[0.0] * 63 + [math.nan]]), "x.npy has NaN values"),
        ("x.npy", np.zeros((3, 64), np.int64), "x.npy holds int64: give floats on the run's scale, or pixels as uint8"),
        ("x.npy", np.zeros((3, 65)), "rows of .*x.npy are 65, but the run expects 64, and they cannot be converted"),
        ("x.npy", np.zeros((3, 2, 8, 8)), "rows of .*x.npy are 2 x 8 x 8, but the run expects 64"),
        ("x.npy", np.array(1.0), "x.npy holds a single number where rows are expected"),
        ("x.npy", np.asfortranarray(np.zeros((3, 64))), "x.npy lies column by column: save it after"),
        ("x.npy", np.zeros((0, 64)), "x.npy contains no images"),
        ("x.npy", np.array([{}]), "x.npy cannot be read as an array: it holds no numbers"),
        ("x.npz", {"a": np.zeros(2), "b": np.zeros(2)}, "x.npz holds a, b: call the array of inputs x"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, name, array, sentence):
    if isinstance(array, dict):
        np.savez(tmp_path / name, **array)
    else:
        np.save(tmp_path / name, array, allow_pickle=array.dtype == object)
    with pytest.raises(InputError, match=sentence):
        all_of(read_ood_set("s", tmp_path, wrapped(shape=(64,), bounds=(-1.0, 1.0))))


def test_what_is_corrupt_is_named(tmp_path):
    run, x = wrapped(shape=(64,), bounds=(-1.0, 1.0)), np.random.default_rng(0).integers(0, 256, (40, 28, 28), np.uint8)
    for kind, cut, sentence in [
        ("idx", 0.9, "ubyte is corrupt or truncated: its header promises 40 x 28 x 28 values"),
        ("idx.gz", 0.9, "images is corrupt or truncated: "),
        ("idx.gz", 0.0005, "images is no idx file of images|images is corrupt or truncated"),
        ("tar", 0.5, r"archive .*x\.tar is corrupt, truncated or no tar archive: ."),
        ("tar.xz", 0.5, r"archive .*x\.tar\.xz is corrupt, truncated or no tar archive: ."),
        ("npy", 0.5, r"x\.npy cannot be read as an array: it holds no numbers, or is damaged"),
        ("npz", 0.5, r"x\.npz cannot be read as an array: it holds no numbers, or is damaged"),
    ]:
        place = write(tmp_path / f"{kind}-{cut}", kind, x)
        file = place if place.is_file() else next(f for f in place.iterdir() if "labels" not in f.name)
        content = file.read_bytes()
        file.write_bytes(content[: int(cut * len(content))])
        with pytest.raises(InputError, match=sentence):
            all_of(read_ood_set("s", place, run))
    folder = write(tmp_path / "images", "folder", x[:3])
    (folder / "a" / "0001.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"image .*a/0001\.png cannot be read"):
        all_of(read_ood_set("s", folder, run))
    text = tmp_path / "readme.txt"
    text.write_text("hello")
    with pytest.raises(InputError, match=r"readme\.txt is no idx file .*; an OOD set is images, one tar"):
        read_ood_set("s", text, run)
    huge = tmp_path / "huge-idx3"
    huge.write_bytes(bytes((0, 0, 8, 3)) + b"\xff" * 12 + b"few")  # what it promises fits in no memory
    with pytest.raises(InputError, match=r"its header promises 4294967295 x .* values, 3 follow"):
        read_ood_set("s", huge, run)


def test_places_and_names_that_cannot_be_used(tmp_path):
    run, x = wrapped(shape=(64,), bounds=(-1.0, 1.0)), np.zeros((2, 28, 28), np.uint8)
    folder = write(tmp_path / "set", "npy", x)
    for name, place, sentence in [
        ("s", tmp_path / "nothing", "there is no file or folder .*nothing: an OOD set is images"),
        ("s", tmp_path / "empty", "the folder .*empty contains no set of images"),
        ("a.b", folder, "takes letters, digits, _ and -, got 'a.b'"),
        ("noise", folder, "noise is a built-in set"),
        (
            "s",
            write(write(tmp_path / "two", "npy", x), "tar", x),
            r"contains 2 sets \(x\.npy, x\.tar\): name the file of",
        ),
        ("s", write(write(tmp_path / "three", "npy", x), "folder", x), r"contains 2 sets \(x\.npy, images\)"),
    ]:
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(InputError, match=sentence):
            read_ood_set(name, place, run)
    with pytest.raises(InputError, match="is a set of images, but the run expects rows of 5 numbers: give them as"):
        read_ood_set("s", write(tmp_path / "tar", "tar", x), wrapped(shape=(5,)))
    empty = write_tar(tmp_path / "empty.tar", {"notes.txt": b"none"})
    with pytest.raises(InputError, match=r"empty\.tar contains no images"):
        read_ood_set("s", empty, run)


def resident() -> int:
    """Bytes of memory that the process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("kind", ["idx", "npy", "npz"])
def test_memory_does_not_grow_with_the_rows(tmp_path, kind):
    """120 MiB of pixels pass by: a reader that kept them, as bytes or as floats, would be seen."""
    place = write(tmp_path / "x", kind, np.zeros((160_000, 28, 28), np.uint8))
    assert grown(read_ood_set("large", place, wrapped(shape=(1, 28, 28), bounds=(0.0, 1.0))), 160_000) < 60 << 20


def test_memory_does_not_grow_with_an_archive(tmp_path):
    """64 MiB of images pass by, one at a time."""
    stream = io.BytesIO()
    Image.fromarray(np.zeros((1 << 10, 1 << 10), np.uint8)).save(stream, "BMP")
    place = write_tar(tmp_path / "x.tar", {f"{i}.bmp": stream.getvalue() for i in range(64)})
    assert grown(read_ood_set("large", place, wrapped(shape=(1, 16, 16), bounds=(0.0, 1.0))), 64, 1) < 32 << 20


def grown(rows, n, size=500):
    """By how many bytes memory grows while all rows pass by."""
    next(rows.batches(size))
    before, most, read = resident(), 0, 0
    for batch in rows.batches(size):
        read += len(batch)
        most = max(most, resident() - before)
    assert read == n
    return most


def test_pieces_of_an_array_are_the_array(tmp_path):
    x = np.random.default_rng(0).random((10, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    pieces = list(array_pieces(tmp_path / "x.npy", 4))
    assert [len(p) for p in pieces] == [4, 4, 2]
    assert np.array_equal(np.concatenate(pieces), x)
    with pytest.raises(InputError, match="there is no file"):
        list(array_pieces(tmp_path / "y.npy", 4))


# The section.


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    fit = trained(tmp_path_factory.mktemp("ood") / "run", *TINY, "iterations=60", "cadence.check=60")
    return jointenergy.runs.loading.open_run(fit.folder)


def classifier(seed=0) -> Run:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Linear(64, 10)
    run = jointenergy.wrap(network, LabelSpace({"digit": 10}), bounds=(-1, 1), event_shape=(64,))
    run.fit_features(*(getattr(load("digits", split="test").rows(slice(0, 200)), part) for part in "xy"))
    return run


@pytest.mark.parametrize("suite", ["quick", "full"])
def test_a_section_has_figures_tables_and_pictures(run, suite, monkeypatch, untouched_random_state):
    monkeypatch.setattr(sys.modules[ood.__module__], "FULL", OodSizes(300, None, True))
    test = load("digits", split="test").rows(slice(0, 60))
    ood_sets = [Given("dark", torch.full((30, 64), -1.0))]
    subject = Subject(run, test, classifier(), {"second": classifier(1)}, ood_sets, seed=2)
    with untouched_random_state():
        section = ood(subject, suite)
    names = ["dark", "noise", "constant", "interpolations", "shuffled_pixels", "patches"]
    kinds = list(SCORES)
    whats = ["auroc", "aupr", "fpr95", *(["auroc_noised"] if suite == "full" else [])]
    expected = {f"ood_{what}.{name}.{kind}" for what in whats for name in names for kind in kinds}
    expected |= {f"ood_auroc_control.{kind}" for kind in kinds}
    prefixes = ("", "baseline.", "others.second.")
    assert set(section.metrics) == {prefix + name for prefix in prefixes for name in expected}
    for name, value in section.metrics.items():
        assert value is not None
        registry.check_value(name, value)
    x = all_of(next(r for r in built_in_sets(run, test.x, 1000, seed=2) if r.name == "shuffled_pixels"))
    by_hand = float((run.score(test.x)[:, None] > run.score(x)).double().mean())
    assert section.metrics["ood_auroc.shuffled_pixels.log_density"] == pytest.approx(by_hand, abs=1e-9)
    main, *folded = section.tables
    assert main.columns == ("set", "AUROC", "FPR at 95 % TPR", "AUROC, baseline", "FPR at 95 % TPR, baseline")
    assert [row[0] for row in main.rows] == [n.replace("_", " ") for n in names]
    assert main.rows[0][1] == section.metrics["ood_auroc.dark.log_density"]
    assert main.rows[0][4] == section.metrics["baseline.ood_fpr95.dark.log_density"]
    assert len(folded) == 3 * (4 if suite == "full" else 3)
    for table in folded:
        assert table.folded
        assert table.columns == ("set", "rows", *(SCORES[kind].symbol for kind in kinds))
        assert [row[0] for row in table.rows] == [*(n.replace("_", " ") for n in names), "control: test rows"]
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert folded[0].rows[0][1:3] == (30, section.metrics["ood_auroc.dark.log_density"])
    second = next(t for t in folded if t.title == "AUROC, baseline")
    assert second.rows[-1][2] == section.metrics["baseline.ood_auroc_control.log_density"]
    drawn = {p.name: Image.open(io.BytesIO(p.png)) for p in section.pictures}
    noised = ["ood_histograms_noised", "ood_histograms_baseline_noised"] if suite == "full" else []
    assert set(drawn) == {"ood_histograms", "ood_histograms_baseline", "ood_examples", *noised}
    assert all(np.asarray(image.convert("L")).std() > 10 for image in drawn.values())
    told = " ".join(section.says)
    assert ("standard deviation 0.1" in told) == (suite == "full")
    assert "logsumexp" in told
    if suite == "quick":
        assert ood(subject, suite) == section


def test_what_cannot_be_summed_is_said_and_the_rest_measured():
    test = load("digits", split="test").rows(slice(0, 40))
    model = ConditionalModel(Pair(), LabelSpace({"digit": 10}), domain=Box(-1.0, 1.0), event_shape=(64,))
    alone = ood(Subject(run_of(model, (64,)), test), "quick")
    assert alone.metrics == {}
    assert len(alone.says) == 2
    assert alone.says[0].startswith(
        "The run has no log p(x), no max p(y | x), no gradient norm, no ODIN: this model is"
    )
    beside = ood(Subject(run_of(model, (64,)), test, classifier()), "quick")
    assert all(name.startswith("baseline.") for name in beside.metrics)
    assert beside.metrics["baseline.ood_auroc.noise.log_density"] is not None


class Pair(nn.Module):
    def forward(self, x, y):
        return gaussian(x) + y[:, 0]


class Energy(nn.Module):
    def forward(self, x):
        return gaussian(x)


def test_runs_without_labels_and_with_many():
    x = normal(40, (64,), 0.2)
    none = EnergyModel(Energy(), domain=Box(-1.0, 1.0), event_shape=(64,))
    section = ood(Subject(run_of(none, (64,)), rows_of(x, LabelSpace.none())), "quick")
    assert section.metrics["ood_auroc.noise.log_density"] == 1.0
    assert not any("max_probability" in name for name in section.metrics)
    assert any("The run has no max p(y | x): max_probability needs labels" in s for s in section.says)
    labels = LabelSpace({"a": 2, "b": 3})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        many = jointenergy.wrap(nn.Linear(64, 5), labels, bounds=(-1, 1), event_shape=(64,))
    found = ood(Subject(many, rows_of(x, labels)), "quick").metrics
    assert found["ood_auroc.noise.max_probability"] is not None


def test_scores_that_are_no_numbers_have_no_figures():
    """Those of bright rows are NaN: figures of sets that have some are left out, and it is said."""
    run = wrapped(lambda x: gaussian(x) + torch.where(x.mean(1) > 0.9, torch.nan, 0.0), (64,), (-1.0, 1.0))
    subject = Subject(run, rows_of(normal(40, (64,), 0.2)), ood_sets=[Given("bright", torch.ones(9, 64))])
    section = ood(subject, "quick")
    assert section.metrics["ood_auroc.bright.log_density"] is None
    assert section.metrics["ood_auroc.noise.log_density"] == 1.0
    assert any("log p(x) of the run is not finite on rows of bright" in sentence for sentence in section.says)


def test_two_sets_of_one_name_are_refused():
    sets = [Given("s", torch.zeros(3, 2)), Given("s", torch.zeros(3, 2))]
    with pytest.raises(InputError, match="two OOD sets are called 's'"):
        ood(Subject(wrapped(), rows_of(normal(10)), ood_sets=sets), "quick")


def test_a_score_is_a_function_and_a_line_of_the_table(monkeypatch):
    """A place that spells the scores out itself would miss the new one."""

    def minus_first(model, x, given):
        assert given.shape == (len(x), 1)
        return -x[:, 0]

    monkeypatch.setitem(SCORES, "minus_first", Score(minus_first, "minus x1", "minus the first entry"))
    run, test = wrapped(), normal(100)
    assert torch.equal(run.score(test, "minus_first"), -test[:, 0])
    run.fit_threshold(test, score="minus_first", quantile=0.1)
    assert int(run.detect(test, score="minus_first", quantile=0.1).inside.sum()) == 90
    section = ood(Subject(run, rows_of(test), ood_sets=[Given("right", test + 9)]), "quick")
    assert section.metrics["ood_auroc.right.minus_first"] == 1.0
    assert "minus x1" in section.tables[1].columns
    assert "minus x1, minus the first entry" in section.says[0]
    with pytest.raises(InputError, match="did you mean 'minus_first'"):
        run.score(test, "minus_frist")


def test_the_page_lists_all_scores():
    page = (Path(__file__).parent.parent / "docs" / "evaluation" / "ood.md").read_text()
    assert all(f"| `{name}` |" in page for name in SCORES)


def test_equal_scores_are_said():
    test = load("digits", split="test").rows(slice(0, 60))
    network = nn.Linear(64, 10)
    nn.init.constant_(network.weight, 0.0)
    nn.init.constant_(network.bias, 0.0)
    network.bias.data[0] = 100.0
    sure = jointenergy.wrap(network, LabelSpace({"digit": 10}), bounds=(-1, 1), event_shape=(64,))
    assert any(
        "gives 100 % of the test rows the same largest max p(y | x)" in s
        for s in ood(Subject(sure, test), "quick").says
    )


def test_rows_that_are_no_images_have_no_examples():
    assert ood_part.examples({"s": torch.zeros(3, 5)}, wrapped(shape=(5,))) is None


# Real data.


@pytest.mark.slow
def test_the_published_protocol_on_real_data(data_dir):
    """An isolation forest, which is not ours, is known to reach .74 and .885 on these block means."""
    run, split = classifier(), (load("digits", split=part) for part in ("train", "test"))
    train, test = (part.x.numpy() for part in split)
    forest = IsolationForest(random_state=0).fit(train)
    for name, file, auroc in (
        ("fashion", "fashion-mnist", 0.74),
        ("kmnist", "ood-grey/kmnist-t10k-images-idx3-ubyte.gz", 0.885),
    ):
        rows = read_ood_set(name, data_dir / file, run)
        x = all_of(rows).numpy()
        assert x.shape == (10_000, 64)
        found = detection.separation(forest.score_samples(test), forest.score_samples(x)).auroc
        assert found == pytest.approx(auroc, abs=0.03)
        assert "10,000 images of 28 x 28, padded to 32 x 32" in rows.says
    with pytest.raises(InputError, match="contains 2 sets"):
        read_ood_set("s", data_dir / "ood-grey", run)


@pytest.mark.slow
def test_real_archives_of_color_images_pass_by(data_dir):
    run = wrapped(shape=(3, 32, 32), bounds=(-1.0, 1.0))
    for folder in ("svhn", "cifar100"):
        rows = read_ood_set(folder, data_dir / folder, run)
        assert sum(len(batch) for batch in rows.batches(500)) == 10_000


@pytest.mark.gpu
def test_figures_on_a_gpu_are_those_on_a_cpu():
    test = load("digits", split="test").rows(slice(0, 60))
    ood_sets = [Given("wide", normal(50, (64,), 0.5))]
    here = ood(Subject(classifier(), test, ood_sets=ood_sets), "full").metrics
    there = classifier()
    network = there.model.to("cuda").network
    on_gpu = jointenergy.wrap(network, LabelSpace({"digit": 10}), bounds=(-1, 1), event_shape=(64,))
    found = ood(Subject(on_gpu, test.to("cuda"), ood_sets=ood_sets), "full").metrics
    assert found == pytest.approx(here, abs=1e-3)
