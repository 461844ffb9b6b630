"""Data of one's own: what a place holds is found, read with its names, and gets a recipe that trains."""

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from jointenergy import recipes
from jointenergy.cli.main import app
from jointenergy.data import Options, load
from jointenergy.data.labeled_images import labeled_images
from jointenergy.data.own import look
from jointenergy.errors import InputError
from jointenergy.labels import MISSING
from jointenergy.recipes import own, run_folder
from jointenergy.recipes.build import trainer_of
from jointenergy.recipes.data import data_of
from jointenergy.recipes.schema import Recipe, parse
from tests import generated_data as made

TINY = ("iterations=3", "chain.steps=2", "chain.sampling_steps=2", "buffer.size=64", "batch_size=8", "cadence.check=3")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JOINTENERGY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("JOINTENERGY_DATA", raising=False)


def write_npz(path: Path) -> Path:
    np.savez(path, x=made.noise(40, 3, 16, 16), y=np.array(["plum", "pear"] * 20))
    return path


def write_unlabeled(path: Path) -> Path:
    np.savez(path, x=np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32))
    return path


PLACES = {
    "a folder per class": (lambda at: made.write_class_folders(at / "mine", size=(24, 24)), {"class": 3}, "image-cnn"),
    "small grey images": (lambda at: made.write_class_folders(at / "mine", grey=True), {"class": 3}, "mlp"),
    "images and a table": (lambda at: made.write_labeled_images(at / "mine"), {"kind": 3, "worn": 2}, "image-cnn"),
    "arrays": (lambda at: write_npz(at / "mine.npz"), {"class": 2}, "image-cnn"),
    "arrays without labels": (lambda at: write_unlabeled(at / "mine.npz"), {}, "mlp"),
    "a table": (lambda at: made.write_table(at / "mine.csv"), {"grade": 2}, "mlp"),
}


def initialized(place: Path, out: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> tuple[Recipe, str]:
    monkeypatch.setattr(own, "MEASURED", 1)
    arguments = ["init", str(place), "--out", str(out), "--minutes", "0.1", "--device", "cpu", *more]
    outcome = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert outcome.exit_code == 0
    assert f"jointenergy train {out} --data {place}" in outcome.output
    return recipes.load(str(out), TINY), outcome.output


@pytest.mark.parametrize("what", PLACES)
def test_each_kind_of_place_gets_a_recipe_that_trains(what, tmp_path, monkeypatch):
    """A reader, a network or a chain that does not fit the data would fail in the first iterations."""
    write, labels, network = PLACES[what]
    place, out = write(tmp_path), tmp_path / "fit.toml"
    settings, said = initialized(place, out, monkeypatch)
    head = [line for line in out.read_text().split("\n\n")[0].splitlines() if line.startswith("#")]
    assert 1 <= len(head) <= 5
    assert settings.model.network.kind == network
    run = run_folder.create(tmp_path / "run", settings, 0, data_folder=place)
    run.fit()
    assert run.trainer.iteration == 3
    known = run.trainer.data.labels
    assert dict(zip(known.names, known.cardinalities, strict=True)) == labels
    assert all(f"{name}: {known.values[k][0]}" in said for k, name in enumerate(known.names))
    assert (run.trainer.data.x.amin() >= settings.data.low) & (run.trainer.data.x.amax() <= settings.data.high)


@pytest.mark.parametrize("what", PLACES)
def test_a_gpu_gets_a_recipe_that_can_be_read(what, tmp_path):
    place = PLACES[what][0](tmp_path)
    settings = parse(own.recipe_values(look(place, 64), "mine", torch.device("cuda")), "mine")
    assert settings.model.network.kind == PLACES[what][2].replace("image-cnn", "nf-wide-resnet")
    assert settings.data.name in ("images", "image-attributes", "npz", "csv")


def test_the_small_cnn_takes_images_alone():
    with pytest.raises(InputError, match="the image-cnn needs images, but rows of 'digits'"):
        trainer_of(recipes.load("digits-jem", ["model.network.kind=image-cnn"]), data_of(recipes.load("digits-jem")), 0)


def test_iterations_are_chosen_for_a_time(tmp_path, monkeypatch):
    place = made.write_table(tmp_path / "mine.csv")
    values = own.recipe_values(look(place, 32), "mine", torch.device("cpu"))
    monkeypatch.setattr(own, "seconds_each", lambda *_: 0.1)
    few, many = (own.with_iterations(values, s, place, torch.device("cpu"))[0]["iterations"] for s in (100.0, 1000.0))
    assert few < 1000 == many  # of 60 rows that is enough


def test_labels_of_a_table_keep_their_names(tmp_path):
    place = made.write_labeled_images(tmp_path / "mine")
    found = labeled_images(place)
    assert found.key == "item"
    assert found.without_image == 1
    assert set(found.columns) == {"kind", "worn"}
    assert found.left_out["maker"] == "is the same in all rows"
    assert "40 different values" in found.left_out["note"]
    options = Options(image_size=(8, 6), test_share=0.25)
    parts = [load("image-attributes", place, split, options=options) for split in ("train", "test")]
    assert [len(part) for part in parts] == [30, 10]
    assert parts[0].x.shape == (30, 3, 8, 6)
    assert parts[0].labels.values == (("boot", "clog", "shoe"), ("no", "yes"))
    y = torch.cat([part.y for part in parts])
    assert int((y == MISSING).sum()) == 1
    assert y[:, 0].bincount().tolist() == [14, 13, 13]
    grey = load("image-attributes", place, options=Options(grey=True, columns=("worn",)))
    assert (grey.event_shape, grey.labels.names) == ((1, 64, 64), ("worn",))


def test_each_image_has_the_labels_of_its_row(tmp_path):
    """Rows of the table in another order than the files, named by their paths."""
    (tmp_path / "deep").mkdir()
    for level in range(20):
        pixels = np.full((4, 4, 3), 10 * level, np.uint8)
        (tmp_path / "deep" / f"{level}.png").write_bytes(made.picture_bytes(pixels))
    rows = [f"deep/{level}.png,{'dark' if level < 10 else 'bright'}" for level in reversed(range(20))]
    (tmp_path / "t.csv").write_text("\n".join(["path,light", *rows]))
    data = load("image-attributes", tmp_path, options=Options(image_size=(4, 4)))
    names = [data.labels.values[0][k] for k in data.y[:, 0].tolist()]
    assert names == ["dark" if x < 100 else "bright" for x in data.x[:, 0, 0, 0].tolist()]


def test_columns_of_a_table_are_standardized(tmp_path):
    found = look(made.write_table(tmp_path / "mine.csv"), 32)
    assert found.train.x.mean(0).abs().max() < 1e-3
    assert (found.train.x.std(0) - 1).abs().max() < 1e-3
    with pytest.raises(InputError, match=r"data.options.center has 2 numbers"):
        load("csv", tmp_path / "mine.csv", options=Options(center=(1.0, 2.0)))


def test_the_label_of_a_table_can_be_named(tmp_path, monkeypatch):
    """By default the last column would be the label."""
    place, out = tmp_path / "mine.csv", tmp_path / "fit.toml"
    place.write_text("grade,size\n" + "".join(f"{('low', 'high')[i % 2]},{i / 7:.3f}\n" for i in range(60)))
    settings, said = initialized(place, out, monkeypatch, "--label", "grade")
    assert "grade: high 27, low 27" in said
    assert settings.data.options.label == "grade"
    assert data_of(settings, place).labels.names == ("grade",)
    with pytest.raises(InputError, match=r"--label names a column of a .csv file, and .* is read as 'npz'"):
        look(write_npz(tmp_path / "mine.npz"), 32, "grade")


def test_a_table_is_predicted_on_the_scale_of_its_file(tmp_path, monkeypatch):
    """Raw columns would lie thousands of standard deviations outside the bounds of x."""
    place = made.write_table(tmp_path / "mine.csv")
    settings, _ = initialized(place, tmp_path / "fit.toml", monkeypatch)
    run_folder.create(tmp_path / "run", settings, 0, data_folder=place).fit()
    outcome = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), str(place), "--csv"], catch_exceptions=False)
    assert outcome.exit_code == 0
    assert outcome.output.count("mine.csv[") == 60


def test_images_of_many_sizes_are_resized(tmp_path):
    place = made.write_class_folders(tmp_path / "mine", per_class=4, size=(40, 60))
    found = look(place, 32)
    assert found.train.event_shape == (3, 21, 32)
    assert found.notes == ("images of 40 x 60 are resized to 21 x 32",)
    for i in range(9):
        (place / "cats" / f"more{i}.png").write_bytes(made.picture_bytes(made.noise(30 + i, 20, 3)))
        (place / "dogs" / f"more{i}.png").write_bytes(made.picture_bytes(made.noise(20, 30 + i, 3)))
    found = look(place, 32)
    assert found.train.event_shape == (3, 32, 32)
    assert "19 sizes: all are resized to 32 x 32" in found.notes[0]


def test_an_existing_file_is_never_overwritten(tmp_path):
    out = tmp_path / "my.toml"
    out.write_text("mine")
    place = made.write_table(tmp_path / "mine.csv")
    with pytest.raises(InputError, match=r"my.toml already exists: choose another --out"):
        CliRunner().invoke(app, ["init", str(place), "--out", str(out)], catch_exceptions=False)
    assert out.read_text() == "mine"


def _flat(at: Path) -> None:
    (at / "a.png").write_bytes(made.picture_bytes(made.noise(8, 8)))


def _one_class(at: Path) -> None:
    (at / "cats").mkdir()
    _flat(at / "cats")


def _no_names(at: Path) -> None:
    _flat(at)
    (at / "labels.csv").write_text("image,kind\n1,x\n2,y\n")


def _broken(at: Path) -> None:
    _one_class(at)
    (at / "dogs").mkdir()
    (at / "dogs" / "b.png").write_bytes(b"no image")


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (lambda at: at.rmdir(), "there is no folder or file"),
        (lambda _: None, "it holds no images, no .npz and no .csv file"),
        (_flat, "its images lie in no class folders, and no .csv file has their labels"),
        (_one_class, "needs at least 2 class folders, found only"),
        (_no_names, "no column of its .csv file names its images"),
        (_broken, "b.png cannot be read: its format is unknown, or it is damaged$"),
    ],
)
def test_nonsense_is_answered_in_one_sentence(write, sentence, tmp_path):
    place = tmp_path / "mine"
    place.mkdir()
    write(place)
    with pytest.raises(InputError, match=sentence) as raised:
        CliRunner().invoke(app, ["init", str(place), "--out", str(tmp_path / "o.toml")], catch_exceptions=False)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "o.toml").exists()


def test_arrays_without_labels_beside_them_are_named(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 4)))
    with pytest.raises(InputError, match=r"save both in one .npz file, as x and y"):
        look(tmp_path / "x.npy", 32)


@pytest.mark.parametrize("name", ["cifar10", "svhn", "mnist", "celeba", "footwear"])
def test_a_data_set_pointed_at_other_data_names_init(name, tmp_path):
    place = made.write_class_folders(tmp_path / "mine")
    with pytest.raises(InputError, match=rf"write a recipe with `jointenergy init {place}`"):
        load(name, place)
    with pytest.raises(InputError) as raised:
        load(name, tmp_path / "nowhere")
    assert "jointenergy init" not in str(raised.value)
