"""The commands that put questions to a trained run: they show what the run answers, and errors are sentences."""

import csv
import functools
import io
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner, Result

import jointenergy
from jointenergy.cli import waiting as waits
from jointenergy.cli.inputs import labels_of, text_of
from jointenergy.cli.main import app
from jointenergy.cli.masks import mask_of
from jointenergy.data import arrays, load
from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.inference import SCORES, Score
from jointenergy.labels import LabelSpace
from jointenergy.recipes.networks import model_of
from jointenergy.runs import portable
from jointenergy.runs.thresholds import Thresholds
from jointenergy.training import checkpoints
from tests.small import trained
from tests.test_runs import TINY


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of digits, one of points, and inputs for them."""
    folder = tmp_path_factory.mktemp("tasks")
    fit = trained(folder / "run", *TINY, "iterations=80", "cadence.check=80")
    checkpoints.mark_best(fit.checkpoint_folder, fit.checkpoint_folder / "iteration-00000080")
    points = ("data.name=toy", "data.low=-6.0", "data.high=6.0", "model.domain=reals", "model.reference_scale=4.0")
    fit = trained(folder / "points", *TINY, *points, "iterations=2", "cadence.check=2", "data.noise=0.0")
    checkpoints.mark_best(fit.checkpoint_folder, fit.checkpoint_folder / "iteration-00000002")
    x = load("digits", split="test").x[:5]
    pixels = ((x + 1) * 127.5).round().byte().view(-1, 8, 8).numpy()
    (folder / "images" / "deep").mkdir(parents=True)
    for i, image in enumerate(pixels[:3]):
        Image.fromarray(image).save(folder / "images" / ("deep" if i == 2 else "") / f"{i}.png")
    Image.fromarray(pixels[0]).convert("RGB").resize((20, 30)).save(folder / "large.png")
    np.save(folder / "x.npy", x.numpy())
    np.save(folder / "pixels.npy", pixels)
    np.savez(folder / "x.npz", x=x.numpy(), other=np.zeros(3))
    np.savez(folder / "unnamed.npz", a=x.numpy(), b=np.zeros(3))
    np.save(folder / "large.npy", np.zeros((2, 16, 16), np.uint8))
    np.save(folder / "wrong.npy", np.zeros((2, 5), np.float32))
    np.save(folder / "whole.npy", np.zeros((2, 64), np.int64))
    np.save(folder / "bright.npy", np.full((2, 64), 200.0))
    names = [f"p{i}" for i in range(64)]
    lines = [",".join([*names, "digit"]), *(",".join([*(f"{v:.6f}" for v in row), "3"]) for row in x.tolist())]
    (folder / "x.csv").write_text("\n".join(lines) + "\n")
    (folder / "points.csv").write_text("a,b\n1.0,\n,2.0\n0.5,-1\n")
    (folder / "words.csv").write_text("a,b\n1.0,hello\n")
    (folder / "ragged.csv").write_text("1,2\n1\n")
    (folder / "broken.png").write_text("no image")
    (folder / "text.txt").write_text("no image")
    np.save(folder / "mark.npy", np.float32(1))
    np.save(folder / "mask63.npy", np.zeros(63, bool))
    np.save(folder / "mask3.npy", np.zeros((3, 8, 8), bool))
    np.save(folder / "mask0.npy", np.zeros((), bool))
    (folder / "broken.npy").write_bytes((folder / "x.npy").read_bytes()[:300])
    (folder / "broken.npz").write_bytes((folder / "x.npz").read_bytes()[:300])
    (folder / "latin.csv").write_bytes("größe,b\n1.0,2.0\n".encode("latin-1"))
    (folder / "binary.csv").write_bytes((folder / "images" / "0.png").read_bytes())
    (folder / "empty").mkdir()
    return folder


def call(place: Path, *words: str) -> Result:
    """The command as the shell calls it, files looked for in the folder of the fixture."""
    names = {p.name for p in place.iterdir()}
    return CliRunner().invoke(
        app, [str(place / w) if w.partition("/")[0] in names else w for w in words], catch_exceptions=False
    )


def records(outcome: Result) -> list[dict[str, object]]:
    assert outcome.exit_code == 0, outcome.output
    found = json.loads(outcome.stdout)
    assert isinstance(found, list)
    return found


@pytest.fixture(scope="module")
def run(place: Path) -> jointenergy.Run:
    return jointenergy.load(place / "run")


class TestQuestions:
    def test_predict_says_what_the_run_says(self, place, run):
        x = load("digits", split="test").x[:5]
        probs = run.predict_proba(x)["digit"]
        found = records(call(place, "predict", "run", "x.npy", "--json"))
        assert [r["input"] for r in found] == [f"x.npy[{i}]" for i in range(5)]
        assert [int(str(r["digit"])) for r in found] == probs.argmax(1).tolist()
        assert [r["p(digit)"] for r in found] == probs.max(1).values.tolist()
        shown = call(place, "predict", "run", "x.npy").stdout
        assert shown.split()[:3] == ["input", "digit", "p(digit)"]
        assert f"{float(probs[0].max()):.4g}" in shown
        table = list(csv.DictReader(io.StringIO(call(place, "predict", "run", "x.npy", "--csv", "--all").stdout)))
        assert [float(r["p(digit=7)"]) for r in table] == probs[:, 7].tolist()
        refined = records(call(place, "predict", "run", "x.npy", "--refine", "3", "--seed", "4", "--json"))
        expected = run.predict_proba(x, refine=3, seed=4)["digit"].max(1).values
        assert [r["p(digit)"] for r in refined] == expected.tolist()
        sampled = call(place, "predict", "run", "x.npy", "--by", "sampling", "--chains", "4", "--steps", "2", "--json")
        assert all(float(str(r["p(digit)"])) in (0.25, 0.5, 0.75, 1.0) for r in records(sampled))
        assert "share of 4 chains" in sampled.stderr

    def test_all_kinds_of_input_are_the_same_rows(self, place):
        names = {"x.npy": 5, "x.npz": 5, "x.csv": 5, "pixels.npy": 5, "images": 3}
        expected = records(call(place, "score", "run", "x.npy", "--json"))
        for name, n in names.items():
            found = records(call(place, "score", "run", name, "--json"))
            assert len(found) == n
            for a, b in zip(found, expected, strict=False):
                assert float(str(a["log_density"])) == pytest.approx(float(str(b["log_density"])), abs=0.05), name
        folder = call(place, "predict", "run", "images", "x.npy", "--json")
        assert [r["input"] for r in records(folder)][:4] == ["0.png", "1.png", "deep/2.png", "x.npy[0]"]
        assert "ignored label columns: digit" in call(place, "score", "run", "x.csv").stderr

    def test_score_tells_data_from_noise_by_the_stored_threshold(self, place, run):
        found = records(call(place, "score", "run", "x.npy", "--quantile", "0.2", "--json"))
        x = torch.from_numpy(np.load(place / "x.npy"))
        assert [r["log_density"] for r in found] == run.log_density(x).tolist()
        assert [r["gradient_norm"] for r in found] == run.score(x, "gradient_norm").tolist()
        assert [r["in"] for r in found] == run.detect(x, quantile=0.2).inside.tolist()
        stored = json.loads((place / "run" / "thresholds.json").read_text())["thresholds"]
        assert ("log_density", 0.2) in [(t["score"], t["quantile"]) for t in stored]
        assert "held-out rows" in call(place, "score", "run", "x.npy").stderr

    def test_score_shows_the_whole_table_and_says_which_scores_a_run_has_not(self, place, run, monkeypatch):
        def refused(model, x, given):
            raise InputError("the model has none")

        monkeypatch.setitem(SCORES, "minus_first", Score(lambda model, x, given: -x[:, 0], "minus x1", "the first"))
        monkeypatch.setitem(SCORES, "refused", Score(refused, "none", "none"))
        found = call(place, "score", "run", "x.npy", "--features", "--json")
        assert list(records(found)[0]) == ["input", *(name for name in SCORES if name != "refused"), "in"]
        assert [r["minus_first"] for r in records(found)] == (-np.load(place / "x.npy")[:, 0]).tolist()
        assert "no refused: the model has none" in found.stderr

    def test_rank(self, place, run):
        found = records(call(place, "rank", "run", "x.npy", "--first", "3", "--second", "digit=8", "--json"))
        ranking = run.rank(np.load(place / "x.npy"), {"digit": 3}, {"digit": 8})
        assert [r["log_odds"] for r in found] == ranking.log_odds.tolist()
        assert [r["better"] for r in found] == [f"digit={(3, 8)[w]}" for w in ranking.winner.tolist()]
        assert [r["winner"] for r in found] == [("first", "second")[w] for w in ranking.winner.tolist()]

    def test_ranked_labelings_without_a_name_are_no_tie(self, place):
        words = ("rank", "run", "x.npy", "--csv", "--second")
        for labels, winner in (("8", "first"), ("", "tie")):
            table = csv.DictReader(io.StringIO(call(place, *words, labels, "--first", "").stdout))
            assert {r["winner"] for r in table} == {winner}

    def test_all_values_stand_below_each_other_with_whole_numbers(self, place, run):
        probs = run.predict_proba(np.load(place / "x.npy"))["digit"]
        shown = [line.split() for line in call(place, "predict", "run", "x.npy", "--all").stdout.splitlines()]
        assert shown[0] == ["input", "label", "value", "p"]
        assert shown[1:11] == [["x.npy[0]", "digit", str(v), f"{float(probs[0, v]):.4g}"] for v in range(10)]

    def test_a_single_image_is_one_row(self, place, run, tmp_path):
        x = np.load(place / "x.npy")[0]
        for shape in ((8, 8), (8, 8, 1), (1, 8, 8), (64,), (1, 64)):
            np.save(tmp_path / "one.npy", x.reshape(shape))
            (found,) = records(call(place, "predict", "run", str(tmp_path / "one.npy"), "--json"))
            assert found["p(digit)"] == pytest.approx(float(run.predict_proba(x[None])["digit"].max()))

    def test_many_rows_and_many_labels_stay_readable(self, place, tmp_path):
        np.save(tmp_path / "many.npy", np.zeros((60, 64), np.float32))
        shown = call(place, "predict", "run", str(tmp_path / "many.npy")).stdout
        assert len(shown.splitlines()) == 42
        assert "and 20 more" in shown

    def test_many_labels_stand_below_each_other(self, tmp_path, place, run):
        labels = LabelSpace.binary(["Smiling", "Male", "Young", "Hat"])
        form = torch.zeros(0, 64)
        assert run.recipe is not None
        model = model_of(run.recipe, TrainingData(form, form[:, :4].long(), form, form[:, :4].long(), labels), seed=0)
        origin = replace(run.origin, labels=labels)
        path = str(
            portable.write(model, origin, run.sampling, run.bounds, Thresholds(), (), tmp_path / "faces.safetensors")
        )
        shown = call(place, "predict", path, "x.npy", "--given", "Male=1").stdout.splitlines()
        assert shown[0].split() == ["input", "label", "value", "p"]
        assert shown[2].split() == ["x.npy[0]", "Male", "1", "1"]
        assert len(shown) == 1 + 5 * 4
        (first, *_) = records(call(place, "predict", path, "x.npy", "--json"))
        assert list(first)[1:] == [part for name in labels for part in (name, f"p({name})")]
        with pytest.raises(InputError, match="did you mean 'Smiling'"):
            call(place, "sample", path, "--given", "Smilling=1", "--out", str(tmp_path / "s.png"))

    def test_rows_that_no_picture_shows_are_refused_before_the_chains_run(self, tmp_path, place, run):
        labels = LabelSpace({"kind": 2})
        form, y = torch.zeros(0, 5), torch.zeros(0, 1, dtype=torch.int64)
        assert run.recipe is not None
        model = model_of(run.recipe, TrainingData(form, y, form, y, labels), seed=0)
        origin = replace(run.origin, labels=labels, event_shape=(5,))
        path = str(
            portable.write(model, origin, run.sampling, run.bounds, Thresholds(), (), tmp_path / "table.safetensors")
        )
        with pytest.raises(InputError, match=r"are neither images nor points: write them as \.npy instead"):
            call(place, "sample", path, "--steps", "1000000", "--out", str(tmp_path / "s.png"))
        assert call(place, "sample", path, "--steps", "2", "--out", str(tmp_path / "s.npy")).exit_code == 0

    def test_export_and_the_file_in_place_of_the_run(self, place, tmp_path):
        path = str(tmp_path / "model.safetensors")
        assert call(place, "export", "run", path).exit_code == 0
        words = ("score", "x.npy", "--json")
        assert records(call(place, words[0], path, *words[1:])) == records(call(place, words[0], "run", *words[1:]))


class TestSynthesis:
    def test_sample_writes_pictures_arrays_and_films(self, place, run, tmp_path):
        words = ("sample", "run", "--given", "digit=3", "-n", "4", "--steps", "5", "--seed", "2", "--json")
        (found,) = records(call(place, *words, "--out", str(tmp_path / "new" / "s.npz")))
        drawn = run.sample(4, {"digit": 3}, steps=5, seed=2)
        written = np.load(tmp_path / "new" / "s.npz")
        assert np.array_equal(written["x"], drawn.x.numpy())
        assert written["y"].tolist() == [[3]] * 4
        assert drawn.log_prob is not None
        assert found["p(given | x)"] == pytest.approx(float(drawn.log_prob.exp().mean()))
        assert (found["samples"], found["given"], found["steps"]) == (4, "digit=3", 5)
        film = str(tmp_path / "films" / "s.gif")
        call(place, *words, "--out", str(tmp_path / "s.png"), "--film", film)
        with Image.open(tmp_path / "s.png") as picture, Image.open(film) as moving:
            assert picture.size == moving.size == ((2 * 10 + 2) * 6,) * 2
            assert getattr(moving, "n_frames") == 6  # noqa: B009 (only films have it)
            moving.seek(5)
            # The last frame shows the samples that were written.
            still = np.asarray(picture.convert("L"), int)
            assert np.abs(still - np.asarray(moving.convert("L"), int)).max() <= 4

    def test_a_film_of_more_chains_than_are_kept_says_so(self, place, tmp_path):
        words = ("sample", "run", "--given", "3", "-n", "4", "--steps", "2", "--out", str(tmp_path / "s.png"))
        film = ("--film", str(tmp_path / "s.gif"))
        for more, sentence in (
            (("--keep-best", "0.5"), "film shows 8 of all 8 chains, not only the 4 samples kept"),
            (("--method", "select"), "film shows 40 of all 40 chains, not only the 4 samples kept"),
        ):
            assert sentence in call(place, *words, *film, *more).stderr
            assert "film shows" not in call(place, *words, *more).stderr
        assert "film shows" not in call(place, *words, *film).stderr

    @pytest.mark.parametrize("method", ["resample", "marginalize", "select"])
    @pytest.mark.parametrize("start", ["noise", "class", "buffer"])
    def test_methods_and_starts(self, place, tmp_path, method, start):
        out = str(tmp_path / "s.npz")
        words = ("--method", method, "--start", start, "--keep-best", "0.5", "--steps", "2", "-n", "3", "--json")
        (found,) = records(call(place, "sample", "run", "--given", "7", "--out", out, *words))
        assert np.load(out)["y"].tolist() == [[7]] * 3
        assert ("accepted" in found) == (method == "select")

    def test_more_chains_than_run_at_once_give_the_same(self, place, tmp_path, monkeypatch):
        files = [str(tmp_path / f"{i}.npy") for i in range(2)]
        words = ("sample", "run", "-n", "5", "--steps", "3", "--out")
        call(place, *words, files[0])
        monkeypatch.setattr("jointenergy.cli.synthesis.AT_ONCE", 2)
        call(place, *words, files[1])
        one, other = (np.load(f) for f in files)
        assert np.allclose(one, other, atol=1e-5)

    def test_inpaint_holds_what_is_known(self, place, tmp_path):
        out = str(tmp_path / "i.npy")
        words = ("inpaint", "run", "x.npy", "--draws", "3", "--steps", "4", "--json")
        for mask, known in (("upper", np.s_[:, :4]), ("left", np.s_[:, :, :4]), ("lower", np.s_[:, 4:])):
            found = records(call(place, *words, "--mask", mask, "--out", out))
            x, draws = np.load(place / "x.npy").reshape(5, 8, 8), np.load(out).reshape(3, 5, 8, 8)
            for draw in draws:
                assert np.array_equal(draw[known], x[known])
                assert not np.array_equal(draw, x)
            assert {r["known"] for r in found} == {0.5}
        picture = tmp_path / "i.png"
        call(place, *words, "--mask", "right", "--out", str(picture), "--film", str(tmp_path / "i.gif"))
        with Image.open(picture) as shown:
            assert shown.size == ((6 * 10 + 2) * 6, (5 * 10 + 2) * 6)  # input, known, 3 draws, mean
        with Image.open(tmp_path / "i.gif") as moving:
            assert moving.size == ((5 * 10 + 2) * 6, (3 * 10 + 2) * 6)  # a column for each input, a row for each draw

    def test_masks_from_files(self, place, run, tmp_path):
        mask = np.zeros((8, 8), bool)
        mask[2:5] = True
        np.save(tmp_path / "mask.npy", mask)
        Image.fromarray((mask * 255).astype(np.uint8)).save(tmp_path / "mask.png")
        for name in ("mask.npy", "mask.png"):
            found = mask_of(str(tmp_path / name), run, 1)
            assert np.array_equal(found.reshape(8, 8).numpy(), mask)
        out = str(tmp_path / "i.npy")
        call(place, "inpaint", "run", "x.npy", "--mask", str(tmp_path / "mask.npy"), "--draws", "1", "--out", out)
        assert np.array_equal(np.load(out).reshape(5, 8, 8)[:, 2:5], np.load(place / "x.npy").reshape(5, 8, 8)[:, 2:5])

    def test_empty_cells_of_a_table_are_imputed(self, place):
        found = records(call(place, "inpaint", "points", "points.csv", "--draws", "20", "--steps", "3", "--json"))
        assert [(r["input"], r["column"]) for r in found] == [("points.csv[0]", "b"), ("points.csv[1]", "a")]
        assert all(float(str(r["low"])) < float(str(r["mean"])) < float(str(r["high"])) for r in found)
        named = records(
            call(place, "inpaint", "points", "points.csv", "--mask", "a", "--draws", "2", "--steps", "1", "--json")
        )
        assert [(r["input"], r["column"]) for r in named] == [
            ("points.csv[0]", "b"),
            ("points.csv[1]", "a"),
            ("points.csv[1]", "b"),
            ("points.csv[2]", "b"),
        ]

    def test_convert_and_compose(self, place, tmp_path):
        out, film = str(tmp_path / "c.png"), str(tmp_path / "c.gif")
        words = ("convert", "run", "images", "--to", "8", "--steps", "6", "--out", out, "--film", film, "--json")
        found = records(call(place, *words))
        assert all(float(str(r["after"])) > float(str(r["p(to | x) before"])) for r in found)
        with Image.open(film) as moving:
            assert getattr(moving, "n_frames") == 7  # noqa: B009 (only films have it)
        both = ("--given", "3", "--given", "", "-n", "4", "--steps", "2", "--out", out, "--json")
        found = records(call(place, "compose", "run", "run", *both))
        assert [r["given"] for r in found] == ["digit=3", None]


WRONG = [
    (["predict", "nowhere", "x.npy"], "there is no run folder or exported file nowhere"),
    (["predict", "text.txt", "x.npy"], "is not an exported run"),
    (["predict", "run", "nothing.png"], "there is no file or folder nothing.png"),
    (["predict", "run", "empty"], "contains no images"),
    (["predict", "run", "broken.png"], "cannot be read: its format is unknown"),
    (["predict", "run", "text.txt"], "text.txt has an unknown file type"),
    (["predict", "run", "large.png"], "large.png is 30 x 20 pixels, but the run expects 8 x 8 pixels: add --resize"),
    (["predict", "run", "large.npy"], "rows of large.npy are 16 x 16, but the run expects 8 x 8 pixels: add --resize"),
    (["predict", "run", "wrong.npy"], "rows of wrong.npy are 5, but the run expects 8 x 8 pixels"),
    (["predict", "run", "mark.npy"], "rows of mark.npy are single numbers, but the run expects 8 x 8 pixels"),
    (["predict", "run", "whole.npy"], "whole.npy has dtype int64: give floats on the run's scale, or pixels as uint8"),
    (["predict", "run", "bright.npy"], "has values from 200 to 200, but the run expects x between -1 and 1"),
    (["predict", "run", "unnamed.npz"], "unnamed.npz holds a, b: call the array of inputs x"),
    (["predict", "run", "points.csv"], "points.csv has 2 columns of numbers, but the run expects 64"),
    (["predict", "points", "words.csv"], "line 2 of words.csv has 'hello' where a number is expected"),
    (["predict", "points", "ragged.csv"], "line 2 of ragged.csv has 1 cells, but the first line has 2"),
    (["predict", "points", "large.png"], "the run expects rows of shape (2,): give .npy or .csv"),
    (["predict", "points", "points.csv"], "2 of 3 inputs have empty cells or NaN, first points.csv[0]"),
    (["score", "points", "points.csv"], "fill them first, for example with `jointenergy inpaint`"),
    (["predict", "points", "latin.csv"], "the table latin.csv is not UTF-8 text"),
    (["predict", "points", "binary.csv"], "the table binary.csv is not UTF-8 text"),
    (["predict", "run", "x.npy", "--given", "digt=3"], "there is no label called 'digt': did you mean 'digit'?"),
    (["predict", "run", "x.npy", "--given", "digit=12"], "label 'digit' takes the values 0 to 9, got 12"),
    (["predict", "run", "x.npy", "--json", "--csv"], "give one of them"),
    (["sample", "run", "--out", "o.txt"], "--out must end in .npy, .npz, .png"),
    (["sample", "run", "--out", "o.png", "--film", "o.mp4"], "--film must end in .gif"),
    (["sample", "run", "--given", "3", "--out", "o.png", "--keep-best", "0"], "keep_best must be a share above 0"),
    (
        ["sample", "run", "--out", "o.png", "--keep-best", "0.5"],
        "rank chains by p(given | x): add labels with --given",
    ),
    (
        ["sample", "run", "--out", "o.png", "--method", "select"],
        "rank chains by p(given | x): add labels with --given",
    ),
    (["inpaint", "run", "x.npy"], "nothing is missing in the input: name the known part with --mask"),
    (["inpaint", "run", "x.npy", "--mask", "uper"], "did you mean 'upper'?"),
    (["inpaint", "points", "points.csv", "--mask", "c"], "the known ones are 'a', 'b'"),
    (["inpaint", "run", "x.npy", "--mask", "mask63.npy"], "has shape (63,): give one mask of 8 x 8 pixels, or one"),
    (["inpaint", "run", "x.npy", "--mask", "mask3.npy"], "has shape (3, 8, 8): give one mask of 8 x 8 pixels, or one"),
    (["inpaint", "run", "x.npy", "--mask", "mask0.npy"], "has shape (): give one mask of 8 x 8 pixels, or one"),
    (["inpaint", "run", "x.npy", "--mask", "broken.npy"], "broken.npy cannot be read as an array"),
    (["inpaint", "run", "x.npy", "--mask", "broken.npz"], "broken.npz cannot be read as an array"),
    (["inpaint", "run", "x.npy", "--mask", "x.npy"], "must be an array of True and False, got float32"),
    (["compose", "run", "run", "--given", "3", "--out", "o.png"], "got 1 for 2 run(s)"),
    (["compose", "run", "points", "--out", "o.png"], "only runs on the same x can be composed"),
    (["export", "run", "model.bin"], "an exported file must end in .safetensors"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=lambda w: " ".join(w) if isinstance(w, list) else "")
def test_what_is_wrong_is_one_sentence(words, sentence, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refused:
        call(place, *words)
    assert sentence in str(refused.value).replace(str(place) + "/", "")
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_resize_brings_images_to_the_runs_size(place):
    found = records(call(place, "predict", "run", "large.png", "large.npy", "--resize", "--json"))
    assert len(found) == 3


@pytest.mark.parametrize("name", ["wide.npy", "wide.npz"])
def test_a_shape_that_does_not_fit_is_refused_before_values_are_read(name, place, tmp_path, monkeypatch):
    """Fails if a large file is unpacked first, which can take all memory."""
    (np.savez_compressed if name.endswith("z") else np.save)(tmp_path / name, np.zeros((1000, 5)))
    monkeypatch.setattr(arrays, "_read", lambda *_: pytest.fail("values were read"))
    with pytest.raises(InputError, match=rf"rows of {name} are 5, but the run expects 8 x 8 pixels"):
        call(place, "predict", "run", str(tmp_path / name))


@pytest.mark.parametrize("dtype", [">f4", ">f8", "longdouble", "f2"])
def test_floats_of_any_kind_are_the_same_rows(dtype, place, run, tmp_path):
    x = np.load(place / "x.npy").astype("f2")  # so that all kinds hold the same values
    np.save(tmp_path / "kind.npy", x.astype(dtype))
    expected = run.predict_proba(x)["digit"]
    assert torch.equal(run.predict_proba(x.astype(dtype))["digit"], expected)
    found = records(call(place, "predict", "run", str(tmp_path / "kind.npy"), "--json"))
    assert [r["p(digit)"] for r in found] == expected.max(1).values.tolist()


def test_a_byte_order_mark_loses_no_row(place, tmp_path):
    table = tmp_path / "marked.csv"
    for lines, n in (("1,2\n2,1\n", 2), ("a,b\n1,2\n", 1)):
        table.write_text(lines, encoding="utf-8-sig")
        assert len(records(call(place, "score", "points", str(table), "--json"))) == n
    out = call(place, "inpaint", "points", str(table), "--mask", "a", "--draws", "2", "--steps", "1", "--json")
    assert [r["column"] for r in records(out)] == ["b"]


def test_counted_names_of_columns_are_no_row(place, tmp_path):
    table = tmp_path / "counted.csv"
    table.write_text("0,1\n1,2\n-2,1\n")
    outcome = call(place, "score", "points", str(table), "--json")
    assert len(records(outcome)) == 2
    assert "the first line of counted.csv, 0 to 1, was read as column names" in outcome.stderr
    for rows in ("1,0\n1,2\n-2,1\n", "0,1.0\n1,2\n-2,1\n"):
        table.write_text(rows)
        outcome = call(place, "score", "points", str(table), "--json")
        assert len(records(outcome)) == 3
        assert "names of columns" not in outcome.stderr


def test_a_table_without_names_shows_what_was_imputed(place, tmp_path):
    table = tmp_path / "bare.csv"
    table.write_text("1.0,\n,2.0\n")
    words = ("inpaint", "points", str(table), "--draws", "20", "--steps", "3", "--json")
    found = records(call(place, *words))
    assert [(r["input"], r["column"]) for r in found] == [("bare.csv[0]", "1"), ("bare.csv[1]", "0")]
    assert all(float(str(r["low"])) < float(str(r["mean"])) < float(str(r["high"])) for r in found)


def test_labels_as_text():
    labels = LabelSpace({"shape": ["round", "square"], "big": 2})
    assert labels_of("shape=square, big=1", labels) == {"shape": 1, "big": 1}
    assert labels_of("shape=0", labels) == {"shape": 0}  # by number too
    assert labels_of("", labels) == {}
    assert text_of({"shape": 1, "big": 0}, labels) == "shape=square,big=0"
    assert text_of({}, labels) is None
    for text, sentence in (
        ("shape=sqare", "did you mean 'square'"),
        ("square", "there is no label called 'square'"),
        ("big=", "needs a value, as in big=0"),
        ("big=0,big=1", "is given twice"),
    ):
        with pytest.raises(InputError, match=sentence):
            labels_of(text, labels)


# Says when its chains have begun; Ctrl-C is listened to also where a shell has it ignored.
SLOW = """
import signal
from contextlib import contextmanager
from jointenergy.cli import main, synthesis
signal.signal(signal.SIGINT, signal.default_int_handler)
waiting = synthesis.waiting
@contextmanager
def telling(*words):
    with waiting(*words) as done:
        print("begun", flush=True)
        yield done
synthesis.waiting = telling
main.main()
"""


class TestWaiting:
    def test_a_bar_is_shown_only_of_what_takes_long(self, monkeypatch, capsys):
        monkeypatch.setattr(waits, "PATIENCE", 0.05)
        monkeypatch.setattr(waits, "Console", functools.partial(Console, force_terminal=True))
        with waits.waiting("dreaming", 10) as done:
            done(1)
        assert "dreaming" not in capsys.readouterr().err
        with waits.waiting("working", 10) as done:
            time.sleep(0.2)
            done(5)
        assert "working" in capsys.readouterr().err

    def test_ctrl_c_ends_a_command_quietly(self, place):
        out = place / "stopped.npy"
        words = ["sample", str(place / "run"), "-n", "900", "--steps", "1000000", "--out", str(out)]
        process = subprocess.Popen(
            [sys.executable, "-c", SLOW, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "stopped while sampling; nothing was written" in rest
        assert "Traceback" not in rest
        assert not out.exists()
