"""Files of others are read within limits and in bounded time; what is written is whole; a folder has one writer."""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import jointenergy
from jointenergy import limits, recipes
from jointenergy.data import arrays, folders
from jointenergy.data.archives import tar_files
from jointenergy.data.arrays import array_of, array_pieces, arrays_of
from jointenergy.data.folders import decode, image_folder
from jointenergy.data.idx import read_idx
from jointenergy.data.tables import lines_of
from jointenergy.data.unpickling import unpickle
from jointenergy.errors import InputError
from jointenergy.files import locks, writing
from jointenergy.files.reading import content_of, json_of, toml_of
from jointenergy.recipes import run_folder
from jointenergy.training import checkpoints
from tests.small_run import TINY

ROOT = Path(__file__).resolve().parents[1]


# Pickles.


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (b"}N" + b"\x85" * 1_000_000 + b"Ns.", "instructions|a key of a dict is a tuple"),
        (b"}N" + b"q\0h\0\x86" * 45 + b"Ns.", "a key of a dict is a tuple"),
        (b"}(" + b"(" * 100 + b"t" * 100 + b"Nu.", "a key of a dict is a tuple"),
        (b"]" + b"q\0]q\1h\0ah\1" * 300 + b".", "nested too deep|expected"),
        (b"(" + b"N" * 1_000_001 + b"t.", "instructions"),
        (b"}I01\nNs.", "a key of a dict is a bool"),
    ],
)
def test_a_hostile_pickle_ends_at_once(program, sentence):
    # The first crashed Python, the second never ended: the hash of a tuple goes through all that it holds.
    began = time.monotonic()
    with pytest.raises(InputError, match=sentence):
        unpickle(program, "data_batch_1")
    assert time.monotonic() - began < 20


def test_a_pickle_that_copies_one_text_again_and_again_is_refused(monkeypatch):
    monkeypatch.setattr("jointenergy.data.unpickling.MEMBER_BYTES", 1000)
    program = b"c_codecs\nencode\nq\0" + b"X\xe8\x03\x00\x00" + b"a" * 1000 + b"X\x06\x00\x00\x00latin1\x86q\1"
    with pytest.raises(InputError, match="copies more"):
        unpickle(program + b"h\0h\1R" * 5 + b".", "data_batch_1")


# Arrays.


def npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "."), content)
    return path


def npy(descr: str = "<f4", shape: str = "(2, 3)", content: bytes = bytes(24)) -> bytes:
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + content


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        npy(shape="(-1, 3)"),
        npy(shape="(999999999999, 999999999)"),
        npy(shape="(99999999999, 0)"),
        npy(shape="2"),
        npy(shape="(" * 3000 + ")" * 3000),
        npy(shape="(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)"),
        npy("|O"),
        npy("|V8"),
        npy("U99999999"),
        npy(content=b"short"),
        npy()[:20],
        b"\x93NUMPY\x09\x00" + npy()[8:],
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100),
    ],
    ids=lambda c: repr(c[:60]),
)
def test_arrays_that_are_none_are_one_sentence_to_every_reader(content, tmp_path):
    (tmp_path / "a.npy").write_bytes(content)
    npz(tmp_path / "a.npz", x__npy=content)
    for read in (array_of, arrays_of, lambda p: list(array_pieces(p, 2))):
        for path in (tmp_path / "a.npy", tmp_path / "a.npz"):
            with pytest.raises(InputError):
                read(path)


def test_archives_of_arrays_that_are_none(tmp_path):
    good = npz(tmp_path / "good.npz", x__npy=npy())
    assert array_of(good).shape == (2, 3)
    whole = good.read_bytes()
    entry = b"PK\x01\x02\x14\x03\x14\x00"  # of the directory; flags and the way of packing follow
    assert entry + bytes(4) in whole
    (tmp_path / "encrypted.npz").write_bytes(whole.replace(entry + b"\x00", entry + b"\x01"))
    (tmp_path / "odd.npz").write_bytes(whole.replace(entry + bytes(4), entry + b"\x00\x00\x63\x00"))
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    npz(tmp_path / "none.npz")
    npz(tmp_path / "bare.npz", x__npy=npy(), y=npy())  # a member without .npy
    npz(tmp_path / "notes.npz", x__npy=npy(), notes__txt=b"of their author")
    damaged = "cannot be read as an array"
    sentences = {"encrypted": damaged, "odd": damaged, "cut": damaged, "none": "holds no array", "bare": "'y.npy'"}
    for name, sentence in sentences.items():
        with pytest.raises(InputError, match=sentence):
            array_of(tmp_path / f"{name}.npz")
    assert array_of(tmp_path / "notes.npz").shape == (2, 3)


def test_an_array_larger_than_memory_is_refused_by_its_header(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.zeros((100, 100)))
    monkeypatch.setattr(arrays, "memory", lambda: 1000)
    with pytest.raises(InputError, match=r"more than the .* of memory"):
        array_of(tmp_path / "x.npy")


# Archives and images.


def tar_with(path: Path, members: list[tuple[str, bytes | str]]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return path


def test_a_member_that_is_too_large_is_not_read(tmp_path):
    path = tar_with(tmp_path / "x.tar", [("a/x.png", bytes(2000))])
    with pytest.raises(InputError, match=r"holds a/x\.png of .* at most"):
        list(tar_files(path, lambda name: True, 1000))


def test_chained_links_end_soon(tmp_path):
    links: list[tuple[str, bytes | str]] = [(f"a/{i}.png", f"{i + 1}.png") for i in range(20_000)]
    path = tar_with(tmp_path / "x.tar", [*links, ("a/20000.png", b"end")])
    began = time.monotonic()
    with pytest.raises(InputError, match="leads over more than 40 others"):
        list(tar_files(path, lambda name: True))
    assert time.monotonic() - began < 20


def test_absolute_paths_in_an_archive_are_no_classes(tmp_path):
    image = io.BytesIO()
    Image.new("L", (4, 4)).save(image, "PNG")
    content = image.getvalue()
    path = tar_with(tmp_path / "x.tar", [("/etc/x.png", content), ("a/y.png", content), ("b/y.png", content)])
    with pytest.raises(InputError, match=r"/etc/x\.png, which lies outside"):
        image_folder(path)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("/etc/x.png", content)
    with pytest.raises(InputError, match=r"/etc/x\.png, which lies outside"):
        image_folder(tmp_path / "x.zip")


def test_an_archive_that_unpacks_to_far_more_than_it_is_ends_soon(tmp_path, monkeypatch):
    monkeypatch.setattr("jointenergy.data.archives.UNPACKED_FREE", 1000)
    with tarfile.open(tmp_path / "x.tar.xz", "w:xz") as archive:
        member = tarfile.TarInfo("a.bin")
        member.size = 50_000_000
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    with pytest.raises(InputError, match="unpacks to more than"):
        list(tar_files(tmp_path / "x.tar.xz", lambda name: False))


def test_a_pipe_is_no_image(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        os.mkfifo(tmp_path / name / "x.png")
    with pytest.raises(InputError, match="it is a pipe, not a regular file"):
        image_folder(tmp_path)


def test_an_image_of_too_many_pixels_is_not_decoded(monkeypatch):
    image = io.BytesIO()
    Image.new("L", (100, 100)).save(image, "PNG")
    monkeypatch.setattr(folders, "IMAGE_PIXELS", 5000)
    with pytest.raises(InputError, match="100 x 100 pixels, and at most 5,000"):
        decode(image.getvalue(), "x.png", "L", None)


def test_an_idx_file_that_promises_more_than_memory_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(bytes((0, 0, 8, 3)) + b"\xff\xff\xff\xff" * 3)
    with pytest.raises(InputError, match="too large to be read"):
        read_idx(tmp_path / "x", 3)


# Text.


def test_json_and_toml_are_bounded(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    for text in ("[" * 100_000, "[" * 200 + "]" * 200, "1" * 5000, "", "\xff"):
        path.write_text(text, encoding="latin-1")
        with pytest.raises(InputError):
            json_of(path)
    for text in ("a = " + "[" * 5000, ".".join("a" * 500) + " = 1", f"a = {'1' * 5000}"):
        with pytest.raises(ValueError, match=r".+"):
            toml_of(text)
    path.write_text("[1]")
    with pytest.raises(InputError, match="more than the limit"):
        content_of(path, 2)


# What is written.


def test_a_file_is_whole_or_not_there_and_has_ordinary_permissions(tmp_path):
    path = tmp_path / "x.txt"
    writing.write_text(path, "one\r\n")
    assert path.read_bytes() == b"one\r\n"
    ordinary = tmp_path / "y"
    ordinary.touch()
    assert path.stat().st_mode == ordinary.stat().st_mode

    def break_off() -> None:
        with writing.whole(path) as part:
            part.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        break_off()
    assert path.read_bytes() == b"one\r\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.txt", "y"]


# One writer.


HOLD = """
import sys, time
from pathlib import Path
from jointenergy.files.locks import only_writer
with only_writer(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_has_one_writer_and_its_death_frees_it(tmp_path):
    folder = tmp_path / "new" / "run"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        sentence = rf"run is being written by process {holder.pid} on \S+ \("
        with pytest.raises(InputError, match=sentence), locks.only_writer(folder):
            pytest.fail("two writers")
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with locks.only_writer(folder):
        assert not locks.is_free(tmp_path)
        assert locks.is_free(folder)
    assert not (tmp_path / "new" / "run" / locks.LOCK).exists()


def test_a_lock_leaves_no_folder_behind(tmp_path):
    with pytest.raises(RuntimeError), locks.only_writer(tmp_path / "a" / "b"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


# What a folder says is what happened.


@pytest.fixture
def stopped(tmp_path):
    """A run that is at iteration 3 of 6, with metrics and an event."""
    folder = tmp_path / "run"
    run = run_folder.create(folder, recipes.load("digits-jem", TINY), 0)
    run.fit()
    (folder / "checkpoints" / "iteration-00000006").rename(tmp_path / "last")
    return folder


def edit(folder: Path, old: str, new: str) -> None:
    path = folder / run_folder.RECIPE
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def events(folder: Path) -> list[dict[str, object]]:
    path = folder / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("validation = 0.1", "validation = 0.2", "data.validation"),
        ("batch_size = 8", "batch_size = 16", "batch_size"),
        ("iterations = 6", "iterations = 5", "iterations"),
        ("learning_rate = ", "weight_decay = 0.5\nlearning_rate = ", "optimizer"),
    ],
)
def test_a_recipe_that_was_edited_is_not_resumed(stopped, old, new, key):
    if key == "optimizer":
        text = (stopped / run_folder.RECIPE).read_text()
        old = next(line for line in text.splitlines() if line.startswith("beta1"))
        new = "beta1 = 0.5"
    edit(stopped, old, new)
    with pytest.raises(InputError, match=rf"{key}\S* of .* was .* and is "):
        run_folder.reopen(stopped)


def test_a_seed_that_was_edited_is_not_resumed(stopped):
    path = stopped / run_folder.ABOUT
    path.write_text(json.dumps({**json.loads(path.read_text()), "seed": 1}))
    with pytest.raises(InputError, match=r"seed of .* was 0 and is 1"):
        run_folder.reopen(stopped)


def test_a_longer_run_says_so(stopped):
    edit(stopped, "iterations = 6", "iterations = 9")
    edit(stopped, "log = 2", "log = 1")
    run = run_folder.reopen(stopped)
    run.fit()
    assert run.trainer.iteration == 9
    told = [(e["key"], e["old"], e["new"]) for e in events(stopped) if e["event"] == "edited"]
    assert told == [("iterations", 6, 9), ("cadence.log", 2, 1)]
    again = run_folder.reopen(stopped)  # the next checkpoint knows of it
    assert again._edits == []


@pytest.mark.parametrize("damage", ["removed", "cut", "empty", "bytes"])
def test_lost_metrics_are_told(stopped, damage):
    path = stopped / "metrics.csv"
    if damage == "removed":
        path.unlink()
    elif damage == "cut":
        text = path.read_bytes()
        path.write_bytes(text[: text.index(b"\n") + 10])
    else:
        path.write_bytes(b"" if damage == "empty" else b"\xff\x00\n" * 10)
    run = run_folder.reopen(stopped)
    run.fit()
    (told,) = [e for e in events(stopped) if e["event"] == "repaired"]
    assert "metrics.csv: 1 of 1 lines are lost" in str(told["says"])
    lines = path.read_bytes().split(b"\n")
    assert b"\r" not in path.read_bytes()
    assert lines[0].startswith(b"iteration,")
    assert [line.split(b",")[0] for line in lines[1:-1]] == [b"4", b"6"]


def test_a_resumed_run_has_one_kind_of_line_ends(stopped):
    run_folder.reopen(stopped).fit()
    for name in ("metrics.csv", "checks.csv"):
        assert b"\r" not in (stopped / name).read_bytes()
    assert events(stopped) == [e for e in events(stopped) if e["event"] != "repaired"]


@pytest.mark.parametrize("name", ["../../last", "/etc", "", 5, None, "iteration-1"])
def test_the_best_checkpoint_lies_in_its_folder(stopped, name):
    (stopped / "checkpoints" / checkpoints.BEST).write_text(json.dumps({"checkpoint": name}))
    assert checkpoints.best(stopped / "checkpoints") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 10**12},
        {"steps": "many"},
        {"learning_rate_scale": -1.0},
        {"world_size": 0},
        {"journal": []},
        {"guard": None},
        {"recovery": {}},
        {"settings": None},
        {"attempt": None},
        {"best_score": "high"},
        {"accuracy": "good"},
        {"shown": {"gap": []}},
        {"seconds": -1.0},
        {"health": {"finite": True, "more": 1}},
        {"health": {"finite": "yes"}},
        {"confirmed": {"finite": True, "fresh": {"distance": 0.1}}},
    ],
    ids=str,
)
def test_values_of_a_checkpoint_that_were_edited_are_one_sentence(stopped, changes):
    place = stopped / "checkpoints"
    for folder in checkpoints.all_in(place):
        found = checkpoints.load(folder)
        checkpoints.save(place, checkpoints.Checkpoint(found.iteration, found.tensors, {**found.values, **changes}))
    with pytest.raises(InputError):
        run_folder.reopen(stopped).fit()


def test_a_best_score_without_best_weights_is_not_confirmed(stopped):
    """Fails where the end of a run takes for granted that the mark of its best weights is still there."""
    loop = run_folder.reopen(stopped)
    loop.best_score = 0.5
    checkpoints.mark_best(loop.checkpoint_folder, None)
    loop._confirm()
    assert loop.confirmed is None


@pytest.mark.parametrize(
    "changes",
    [
        {"bounds": [1]},
        {"x_steps": "2"},
        {"steps": 10**12},
        {"family": "other"},
        {"domain": {"kind": "os"}},
        {"more": 1},
    ],
    ids=str,
)
def test_an_exported_network_that_was_edited_is_one_sentence(changes, tmp_path):
    run = jointenergy.wrap(torch.nn.Linear(2, 3), ["a", "b", "c"], event_shape=(2,), bounds=(-1.0, 1.0))
    path = run.export(tmp_path / "own.safetensors")
    with safe_open(path, "pt") as file:
        known = file.metadata()
    own = json.dumps({**json.loads(known["own"]), **changes})
    save_file(load_file(path), path, {**known, "own": own})
    with pytest.raises(InputError):
        jointenergy.load(path, network=torch.nn.Linear(2, 3))


def test_the_limits_stand_in_the_documents():
    page = (ROOT / "docs" / "safety.md").read_text()
    for number in (limits.IMAGE_PIXELS, limits.MEMBERS, limits.PICKLE_STEPS, limits.CLASSES, limits.COUNT):
        assert f"{number:,}" in page
    for size in (limits.JSON_BYTES, limits.RECIPE_BYTES, limits.IMAGE_BYTES):
        assert f"{size // limits.MIB} MiB" in page
    for size in (limits.TABLE_BYTES, limits.MEMBER_BYTES):
        assert f"{size // limits.GIB} GiB" in page


def test_a_key_of_many_parts_is_refused_before_it_is_parsed(tmp_path):
    """The parser needs the square of its length: 6 GB for 120 kB."""
    path = tmp_path / "deep.toml"
    path.write_text("a" + ".a" * 60_000 + " = 1")
    with pytest.raises(InputError, match="more than 2,000 dots"):
        recipes.load(str(path))


@pytest.mark.parametrize("content", ["[" * 4096, '{"pid": Infinity, "host": 1, "command": 2}'])
def test_a_lock_with_a_strange_holder_is_still_a_lock(tmp_path, content):
    with open(tmp_path / ".lock", "w") as file:
        file.write(content)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="being written by another process"), locks.only_writer(tmp_path):
            pass


def test_an_archive_of_zeros_is_refused_by_its_size(tmp_path, monkeypatch):
    """Nothing of it is read: 5 GB of zeros fit in 22 MB."""
    monkeypatch.setattr(arrays, "UNPACKED_FREE", 1000)
    path = tmp_path / "zeros.npz"
    np.savez_compressed(path, x=np.zeros((20_000, 64), np.float32))
    for read in (array_of, arrays_of, lambda path: list(array_pieces(path, 100))):
        with pytest.raises(InputError, match=r"zeros\.npz unpacks to 0 GiB: give fewer rows at once"):
            read(path)


def test_the_files_of_a_checkpoint_have_the_usual_permissions(tmp_path):
    checkpoints.save(tmp_path, checkpoints.Checkpoint(1, {"a": torch.zeros(2)}, {}))
    modes = {p.name: p.stat().st_mode & 0o777 for p in tmp_path.rglob("*") if p.is_file()}
    assert set(modes.values()) == {0o666 & ~current_umask()}


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_table_of_too_many_lines_is_refused_before_it_is_parsed(tmp_path):
    path = tmp_path / "tall.csv"
    path.write_bytes(b"\n" * (limits.LINES + 1))
    with pytest.raises(InputError, match=r"has more than 10,000,000 lines: give it in parts"):
        lines_of(path)
