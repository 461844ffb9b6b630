"""Every command and every kind of nonsense: exit status 2, one sentence, no traceback, nothing written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from jointenergy.cli.main import COMMANDS
from jointenergy.cli.screen import UNFORESEEN, WRONG
from jointenergy.errors import InputError
from jointenergy.recipes.schema import read
from jointenergy.runs.loading import open_run
from tests.small_run import call, make_place

LONG = "9" * 5000
DEEP = "[" * 5000 + "]" * 5000

# For every command the words that make it run, with files of `place`.
RIGHT: dict[str, tuple[str, ...]] = {
    "demo": ("demo", "--out", "out"),
    "train": ("train", "recipe.toml", "--out", "out"),
    "resume": ("resume", "run"),
    "recipes": ("recipes", "recipe.toml"),
    "init": ("init", "table.csv", "--out", "out.toml"),
    "data": ("data", "get", "mnist", "--to", "out"),
    "predict": ("predict", "run", "x.npy"),
    "score": ("score", "run", "x.npy"),
    "calibrate": ("calibrate", "run", "--rows", "x.npz"),
    "rank": ("rank", "run", "x.npy", "--first", "digit=3", "--second", "digit=8"),
    "sample": ("sample", "run", "--out", "out.npy"),
    "inpaint": ("inpaint", "run", "x.npy", "--mask", "upper"),
    "convert": ("convert", "run", "x.npy", "--to", "digit=3", "--out", "out.npy"),
    "distal": ("distal", "run", "--given", "digit=3", "--out", "out.npy"),
    "compose": ("compose", "run", "run", "--out", "out.npy"),
    "export": ("export", "run", "out.safetensors"),
    "models": ("models",),
    "push": ("push", "run", "out"),
    "pull": ("pull", "nowhere", "--to", "out"),
    "studio": ("studio", "run", "--no-browser"),
    "evaluate": ("evaluate", "run", "--out", "out"),
    "compare": ("compare", "run"),
    "reproduce": ("reproduce", "recipe.toml", "--runs", "out", "--results", "results"),
    "study": ("study", "digits-continual", "--runs", "out", "--results", "results"),
    "results": ("results", "--results", "nowhere"),
}
RUNS = [name for name, words in RIGHT.items() if "run" in words]
INPUTS = [name for name, words in RIGHT.items() if "x.npy" in words]
SETS = ["train", "recipes", "demo"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return make_place(tmp_path_factory.mktemp("place"))


@pytest.fixture(autouse=True)
def _in_place(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.delenv("JOINTENERGY_DATA", raising=False)


def refused(*words: str) -> str:
    """The one sentence that a command answers nonsense by; nothing is written."""
    before = sorted(p for p in Path().rglob("*"))
    answer = call(*words)
    said = answer.out + answer.err
    assert answer.status == WRONG, (words, answer)
    assert "Traceback" not in said
    lines = [line for line in answer.err.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1, answer.err
    assert lines[0].startswith("jointenergy: ")
    assert len(lines[0]) < 1000
    assert not set(lines[0]) & {chr(c) for c in (*range(32), *range(127, 160))}
    assert sorted(p for p in Path().rglob("*")) == before
    return lines[0]


def swapped(words: tuple[str, ...], old: str, new: str) -> tuple[str, ...]:
    return tuple(new if word == old else word for word in words)


def test_every_command_is_in_the_table():
    assert set(RIGHT) == set(COMMANDS)


@pytest.mark.parametrize("name", RIGHT)
def test_unknown_and_missing_words(name):
    assert "No such option" in refused(*RIGHT[name], "--bogus[/b]")
    if len(RIGHT[name]) > 1 and name not in ("demo", "recipes", "reproduce", "results", "studio"):
        refused(name)


BAD_RUNS = {
    "nowhere": lambda f: None,
    "a file": lambda f: f.write_text("hello"),
    "an empty folder": lambda f: f.mkdir(),
    "a pipe": os.mkfifo,
    "empty about": lambda f: about(f, {}),
    "about a list": lambda f: about(f, []),
    "about null": lambda f: about(f, None),
    "about of wrong types": lambda f: about(f, {"seed": "0", "guarded": 1}),
    "deep about": lambda f: about(f, DEEP),
    "long seed": lambda f: about(f, edited(seed=LONG)),
    "two thousand million classes": lambda f: about(f, edited(labels={"digit": 2_000_000_000})),
    "huge shape": lambda f: about(f, edited(event_shape=[10**6, 10**6])),
    "no recipe": lambda f: about(f, edited()),
    "device meta": lambda f: full(f, device="meta"),
}


def about(folder: Path, values: object) -> None:
    folder.mkdir()
    (folder / "run.json").write_text(values if isinstance(values, str) else json.dumps(values))


def edited(**changes: object) -> str:
    known = json.loads(Path("run/run.json").read_text())
    marks = {k: v for k, v in changes.items() if v is LONG}
    text = json.dumps({**known, **changes})
    for value in marks.values():
        text = text.replace(f'"{value}"', str(value))  # the bare digits
    return text


def full(folder: Path, **changes: object) -> None:
    shutil.copytree("run", folder)
    (folder / "run.json").write_text(edited(**changes))


@pytest.mark.parametrize("bad", BAD_RUNS)
def test_folders_that_are_no_runs(bad, tmp_path):
    folder = tmp_path / "bad"
    BAD_RUNS[bad](folder)
    names = RUNS if bad in ("nowhere", "empty about", "a pipe") else ("resume", "predict")
    for name in names:
        if name == "compare" and bad == "a pipe":
            continue
        if bad == "device meta" and name == "predict":
            continue  # it chooses its own
        refused(*swapped(RIGHT[name], "run", str(folder)))


BAD_INPUTS = {
    "nowhere.npy": "there is no file",
    "recipe.toml": "unknown file type",
    "empty.npy": "cannot be read as an array",
    "text.npz": "cannot be read as an array",
    "pipe.png": "it is a pipe",
    "words.npy": "has dtype",
    "pickle.npy": "cannot be read as an array",
    "huge.npy": "GiB of memory",
    "over.npy": "values up to 1e+300, more than the 3.4e+38 that torch.float32 can hold: scale it",
    "infinite.npy": "128 infinite values: replace them",
    "over.csv": "values up to 1e+39",
    "bare.npz": "holds 'x', which numpy would call 'x.npy'",
}


@pytest.fixture(scope="module")
def bad_inputs(place):
    folder = place / "bad"
    folder.mkdir()
    (folder / "empty.npy").write_bytes(b"")
    (folder / "text.npz").write_text("no zip")
    (folder / "recipe.toml").write_text("x = 1")
    os.mkfifo(folder / "pipe.png")
    np.save(folder / "words.npy", np.array(["a", "b"]))
    np.save(folder / "pickle.npy", np.array([{}], dtype=object))
    x = np.zeros((2, 64), np.float32)
    np.save(folder / "over.npy", np.full((2, 64), 1e300))
    np.save(folder / "infinite.npy", np.full((2, 64), np.inf))
    (folder / "over.csv").write_text(",".join(["1e39"] * 64) + "\n")
    with zipfile.ZipFile(folder / "bare.npz", "w") as archive:
        archive.writestr("x", (place / "x.npy").read_bytes())
    np.savez(folder / "words.npz", x=x, y=np.array(["a", "b"]))
    np.savez(folder / "pickle.npz", x=x, y=np.array([{}, {}], dtype=object))
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999, 64), }\n"
    (folder / "huge.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head)
    return folder


@pytest.mark.parametrize("bad", BAD_INPUTS)
@pytest.mark.parametrize("name", INPUTS)
def test_inputs_that_are_none(name, bad, bad_inputs):
    assert BAD_INPUTS[bad] in refused(*swapped(RIGHT[name], "x.npy", str(bad_inputs / bad)))


@pytest.mark.parametrize(
    "override",
    [
        "",
        "=",
        "a",
        "a.b=1",
        "iterations=0",
        "iterations=1e9",
        f"iterations={LONG}",
        "iterations=2000000000",
        "batch_size=999999999999",
        "buffer.size=99999999999999",
        "buffer.size=1000000000",
        "model.network.hidden=[1000000, 1000000]",
        "model.network.hidden=[99999999999]",
        f"model.network.hidden={DEEP}",
        "model.network.hidden=[[1]]",
        "model.network={}",
        "model=[]",
        "chain.kernel.step_size=1e300",
        "chain.kernel.step_size=nan",
        "chain.kernel.noise_scale=-1",
        "data.low=-1e39",
        "data.high=inf",
        "data.name='[/b]'",
        "data.validation=0.6",
        "objective='nothing'",
        "name='../up'",
        f"name='{'x' * 300}'",
        "optimizer.ema=nan",
        ".".join("a" * 500) + "=1",
        "\x1b[2J=1",
    ],
    ids=lambda text: text[:40].encode("unicode_escape").decode(),
)
@pytest.mark.parametrize("name", ["train"])
def test_settings_that_are_none(name, override):
    refused(*RIGHT[name], "--set", override)


@pytest.mark.parametrize("name", SETS)
def test_settings_are_checked_by_all_that_take_them(name):
    refused(*RIGHT[name], "--set", "iterations=-1")


OPTIONS = [
    ("predict", ("--device", "meta")),
    ("predict", ("--device", "cuda:99")),
    ("predict", ("--device", "[/b]")),
    ("predict", ("--given", "digit=99")),
    ("predict", ("--given", f"digit={LONG}")),
    ("predict", ("--given", "[/INST]=1")),
    ("predict", ("--by", "sampling", "--chains", "999999999999")),
    ("predict", ("--refine", "99999999999")),
    ("predict", ("--seed", LONG)),
    ("predict", ("--seed", "-1")),
    ("predict", ("--json", "--csv")),
    ("predict", ("--coverage", "nan")),
    ("predict", ("--calibrated",)),
    ("predict", ("",)),
    ("train", ("--out", "")),
    ("train", ("--out=",)),
    ("calibrate", ("--rows", "x.npy")),
    ("calibrate", ("--rows", "x.csv")),
    ("calibrate", ("--rows", "bad/text.npz")),
    ("calibrate", ("--rows", "bad/words.npz")),
    ("calibrate", ("--rows", "bad/pickle.npz")),
    ("calibrate", ("--coverage", "nan")),
    ("calibrate", ("--coverage", "2")),
    ("score", ("--quantile", "nan")),
    ("score", ("--quantile", "2")),
    ("sample", ("-n", "0")),
    ("sample", ("-n", "999999999999")),
    ("sample", ("--steps", "-1")),
    ("sample", ("--steps", "99999999999")),
    ("sample", ("--keep-best", "1e-9", "--given", "digit=3")),
    ("sample", ("--keep-best", "nan", "--given", "digit=3")),
    ("sample", ("-n", "1000000", "--steps", "0", "--out", "out.png")),
    ("sample", ("-n", "1000000", "--keep-best", "0.1", "--given", "digit=3")),
    ("sample", ("--film", "out.png")),
    ("sample", ("--out", "q[/b]")),
    ("sample", ("--out", "run")),
    ("sample", ("--out", "x.npy/out.npy")),
    ("sample", ("--out", f"{'x' * 300}.npy")),
    ("inpaint", ("--mask", "[/b]")),
    ("inpaint", ("--mask", "x.npy")),
    ("inpaint", ("--mask", "bad/text.npz")),
    ("inpaint", ("--draws", "999999999")),
    ("inpaint", ("--level", "nan")),
    ("convert", ("--to", "digit")),
    ("compose", ("-n", "1000000", "--out", "out.png")),
    ("distal", ("-n", "1000000", "--out", "out.png")),
    ("distal", ("-n", "999999999999")),
    ("distal", ("--above", "nan")),
    ("distal", ("--max-steps", "99999999999")),
    ("distal", ("--given", "[/b]=1")),
    ("compose", ("--given", "digit=1")),
    ("evaluate", ("--ood", "a=bad/text.npz")),
    ("evaluate", ("--ood", "a=bad/huge.npy")),
    ("evaluate", ("--ood", "a=bad/pipe.png")),
    ("evaluate", ("--ood", "../a=x.npy")),
    ("evaluate", ("--ood", "a")),
    ("evaluate", ("--part", "[/b]")),
    ("evaluate", ("--extractor", "x.npy")),
    ("evaluate", ("--other", "a=nowhere")),
    ("compare", ("--only", "[/b]")),
    ("train", ("--time", "soon")),
    ("train", ("--time", "9" * 400)),
    ("train", ("--device", "meta")),
    ("train", ("--out", "run")),
    ("train", ("--out", "x.npy")),
    ("train", ("--quick", "--smoke")),
    ("init", ("--minutes", "nan")),
    ("init", ("--minutes", "inf")),
    ("init", ("--out", "out.txt")),
    ("reproduce", ("--seeds", LONG)),
    ("reproduce", ("--name", "../x")),
    ("reproduce", ("--jobs", "0")),
    ("study", ("--set", "a=1")),
    ("data", ("--to", "x.npy")),
]


@pytest.mark.parametrize(("name", "words"), OPTIONS, ids=[f"{n} {' '.join(w)[:40]}" for n, w in OPTIONS])
def test_options_that_make_no_sense(name, words, bad_inputs):
    refused(*RIGHT[name], *words)


ABSURD = {
    "samples": lambda run, x: run.sample(10**12),
    "samples of many digits": lambda run, x: run.sample(10**5000),
    "chains": lambda run, x: run.sample(1000, {"digit": 3}, keep_best=1e-6),
    "steps": lambda run, x: run.sample(1, steps=10**12),
    "a seed": lambda run, x: run.sample(1, seed=2**64),
    "a share": lambda run, x: run.sample(1, {"digit": 3}, keep_best=10**5000),
    "aids": lambda run, x: run.sample(1, aids={}),
    "chains of a composition": lambda run, x: run.compose([{"digit": 3}], 10**12),
    "no list": lambda run, x: run.compose(3, 1),
    "distal inputs": lambda run, x: run.distal(10**12, {"digit": 3}),
    "draws": lambda run, x: run.inpaint(x, x[0] > 0, n_draws=10**12),
    "refinements": lambda run, x: run.refine(x, n_draws=10**12),
    "label chains": lambda run, x: run.predict(x, by="sampling", n_chains=10**12),
    "restarts": lambda run, x: run.predict(x, by="search", n_chains=10**12),
    "chains to diagnose": lambda run, x: run.diagnose(n=10**12),
    "a quantile": lambda run, x: run.detect(x, quantile="low"),
    "a coverage": lambda run, x: run.abstain(x, coverage=None),
    "the coverage of a set": lambda run, x: run.predict_set(x, coverage=[]),
    "the coverage of sets": lambda run, x: run.conform(x, np.arange(3), coverage="high"),
    "a radius": lambda run, x: run.attack(x, radius=float("nan")),
    "a score": lambda run, x: run.score(x, []),
    "names": lambda run, x: run.density(x, 3),
    "a path": lambda run, x: run.export(3),
    "a device": lambda run, x: open_run("run", device=1.5),
    "rows beyond float32": lambda run, x: run.predict(np.full((1, 64), 1e300)),
}


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_arguments_in_python(name, place):
    with pytest.raises(InputError) as told:
        ABSURD[name](open_run("run"), np.load("x.npy"))
    assert len(str(told.value)) < 300


def test_what_does_not_fit_in_memory_is_refused_by_its_size(place, monkeypatch):
    monkeypatch.setattr("jointenergy.inputs.memory", lambda: 100_000)
    run, x = open_run("run"), np.load("x.npy")
    for ask in (
        lambda: run.sample(1000),
        lambda: run.sample(100, {"digit": 3}, keep_best=0.1),
        lambda: run.distal(1000, {"digit": 3}),
        lambda: run.inpaint(x, x[0] > 0, n_draws=1000),
        lambda: run.refine(x, n_draws=1000),
        lambda: run.convert(x, {"digit": 3}, steps=1000),
        lambda: run.diagnose(n=1000),
    ):
        with pytest.raises(InputError, match=r"take about .* GiB, more than this machine has"):
            ask()


def test_a_pipe_is_called_one(bad_inputs):
    for words in (("predict", "run", "bad/pipe.png"), ("inpaint", "run", "x.npy", "--mask", "bad/pipe.png")):
        assert "pipe.png cannot be read: it is a pipe" in refused(*words)


def test_texts_of_files_stay_comments(place, tmp_path):
    """A description or a label with a line break must not become code of a program or keys of a recipe."""
    text = Path("recipe.toml").read_text()
    described = 'description = "x\\nprint(1)\\n"\n'
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith("description")]
    head = next(i for i, line in enumerate(lines) if line.startswith("name"))
    (tmp_path / "inject.toml").write_text("".join([*lines[: head + 1], described, *lines[head + 1 :]]))
    program = call("recipes", str(tmp_path / "inject.toml"), "--python").out
    assert program.startswith("# x\\nprint(1)")
    assert "\nprint(1)" not in program
    for name in ("a", "b\nvalidation = 0.4\n#", "c\x1b[31m"):
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True)
        for i in range(12):
            Image.fromarray(np.full((8, 8), 20 * i, np.uint8)).save(folder / f"{i}.png")
    assert call("init", str(tmp_path / "images"), "--out", str(tmp_path / "own.toml")).status == 0
    assert read(tmp_path / "own.toml").data.validation != 0.4
    assert "\x1b" not in (tmp_path / "own.toml").read_text()


def test_archives_without_images_and_wide_tables(tmp_path):
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"):
        pass
    refused("init", str(tmp_path / "empty.zip"), "--out", "out.toml")
    (tmp_path / "wide.csv").write_text("," * 200_000 + "\n")
    assert "names a column twice" in refused("init", str(tmp_path / "wide.csv"), "--out", "out.toml")


def test_calibration_is_kept_as_a_whole_or_not_at_all(place):
    rows = np.random.default_rng(0).uniform(-1, 1, (30, 64)).astype(np.float32)
    right = open_run("run").predict_proba(rows)["digit"].argmax(1).numpy()
    np.savez(place / "rows.npz", x=rows, y=np.where(np.arange(30) % 3, right, 0))
    words = ("calibrate", "run", "--rows", "rows.npz", "--coverage", "0.5")
    file = Path("run/thresholds.json")
    before = file.read_bytes()
    assert "coverage must be" in refused(*words, "--coverage", "2")
    assert "needs at least" in refused(*words, "--coverage", "0.99")
    assert file.read_bytes() == before
    assert call(*words).status == 0
    assert 0.5 in [c["coverage"] for c in json.loads(file.read_text())["conformal"]]
    file.write_bytes(before)
    exported = Path("run.safetensors")
    before, again = exported.read_bytes(), swapped(words, "run", "run.safetensors")
    assert "needs at least" in refused(*again, "--coverage", "0.99")
    assert exported.read_bytes() == before
    assert call(*again).status == 0
    assert 0.5 in [c.coverage for c in open_run(exported).thresholds.conformal]
    exported.write_bytes(before)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", DEEP, '{"metrics": {"a": "b"}}', "\x00", "nan"])
def test_metrics_that_are_none(text, tmp_path):
    folder = tmp_path / "run" / "evaluation"
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(text)
    assert "is damaged" in refused("compare", str(folder.parent))


@pytest.mark.parametrize(
    "text", ["", "name = ", "[a" * 3000, "a." * 9000 + "a = 1", "name = 5", f"iterations = {LONG}", "a = " + DEEP]
)
def test_recipe_files_that_are_none(text, tmp_path):
    path = tmp_path / "r.toml"
    path.write_text(text)
    refused("train", str(path), "--out", "out")
    refused("recipes", str(path))


def exported(tmp_path: Path, **changes: str) -> Path:
    from safetensors import safe_open

    with safe_open("run.safetensors", "pt") as file:
        known = file.metadata()
    path = tmp_path / "e.safetensors"
    save_file(load_file("run.safetensors"), path, {**known, **changes})
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": ""},
        {"recipe": "name = 'x'\n[model.network]\nkind='mlp'\nhidden=[1000000, 1000000]"},
        {"recipe": "a = " + DEEP},
        {"labels": "{}"},
        {"labels": "[]"},
        {"labels": '{"digit": 2000000000}'},
        {"labels": DEEP},
        {"event_shape": "null"},
        {"event_shape": "[1000000, 1000000, 1000000]"},
        {"event_shape": "[-1]"},
        {"seed": LONG},
        {"seed": "x"},
        {"thresholds": "{}"},
        {"thresholds": '[{"score": 1}]'},
        {"notes": "5"},
        {"jointenergy": "2"},
    ],
    ids=lambda c: str(c)[:50],
)
def test_exported_files_that_are_none(changes, tmp_path):
    refused("predict", str(exported(tmp_path, **changes)), "x.npy")


def test_weights_that_are_no_numbers_are_refused(tmp_path):
    tensors = load_file("run.safetensors")
    from safetensors import safe_open

    with safe_open("run.safetensors", "pt") as file:
        known = file.metadata()
    name = next(k for k, v in tensors.items() if v.is_floating_point())
    tensors[name] = torch.full_like(tensors[name], torch.nan)
    save_file(tensors, tmp_path / "e.safetensors", known)
    assert "non-finite" in refused("predict", str(tmp_path / "e.safetensors"), "x.npy")


def test_labels_of_others_are_shown_and_not_obeyed(tmp_path):
    labels = {"[/INST]\x1b[31m": ["[bold]", "\x9b2J", *map(str, range(2, 10))]}
    path = exported(tmp_path, labels=json.dumps(labels))
    for form in ((), ("--json",), ("--csv",)):
        answer = call("predict", str(path), "x.npy", "--all", *form)
        assert answer.status == 0
        assert "[/INST]" in answer.out
        assert "[bold]" in answer.out
        assert not set(answer.out + answer.err) & {"\x1b", "\x9b"}
        if form == ("--json",):
            assert "[/INST]\x1b[31m" in json.loads(answer.out)[0]


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-"])
def test_a_closed_stream_is_no_fault(closed):
    words = ["sh", "-c", f'"$0" -m jointenergy --version {closed}', sys.executable]
    assert subprocess.run(words, check=False, stderr=subprocess.PIPE).stderr == b""


def test_what_nobody_foresaw_is_a_sentence_with_the_path_of_a_traceback(monkeypatch):
    monkeypatch.setattr("jointenergy.runs.loading.open_run", lambda *_, **__: [][1])
    answer = call("predict", "run", "x.npy")
    assert answer.status == UNFORESEEN
    assert answer.out == ""
    (line,) = answer.err.splitlines()
    path = Path(line.partition("the traceback is in ")[2].partition(": ")[0])
    assert "IndexError: list index out of range" in path.read_text()
    path.unlink()
