"""Fuzzing: valid files of every kind, mutations that know their structure, and every reader and command to feed.

A target takes a mutated file and must answer it or refuse it by an `InputError`; a command must end with 0 or 2. All
else, and whatever takes longer than `PATIENCE`, is a finding.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import shutil
import signal
import struct
import tarfile
import tomllib
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import tomli_w
import torch
from scipy.io import savemat

from jointenergy import data
from jointenergy.cli.screen import DIVERGED, UNHEALTHY, WRONG
from jointenergy.data.arrays import array_of, array_pieces, arrays_of
from jointenergy.data.cache import cached_features
from jointenergy.data.folders import decode, image_folder, images_in
from jointenergy.data.idx import read_idx
from jointenergy.data.own import look
from jointenergy.data.svhn import read_mat
from jointenergy.data.torchscript import torchscript_tensors
from jointenergy.data.unpickling import unpickle
from jointenergy.errors import InputError
from jointenergy.experiments import study as studies
from jointenergy.recipes import run_folder
from jointenergy.recipes.schema import read as read_recipe
from jointenergy.report import cache, comparison, page, results
from jointenergy.report.ood_sets import read_ood_set
from jointenergy.report.sections import Picture, Section, Table
from jointenergy.report.suite import RunEvaluation
from jointenergy.runs.loading import open_run
from jointenergy.runs.thresholds import Thresholds
from jointenergy.tables import JointEnergyClassifier
from jointenergy.training import checkpoints
from tests.generated_data import idx_bytes, noise, python2_pickle, python3_pickle
from tests.small_run import call
from tests.small_tables import Quick, blobs

PATIENCE = 20  # seconds of computing for one file, whatever else the machine does
HANG = 120  # seconds for one file in all
NASTY: list[Any] = [
    *(None, True, False, {}, [], "", 0, -1, 1, 2**31, 2**63, 10**30, -(10**30), 1e308, -1e308, 1e-320),
    *(float("nan"), float("inf"), "\x1b[31m", "[/b]", "../../x", "/etc/passwd", "\x00", "x" * 5000, "9" * 5000),
    *([[[[[[]]]]]], {"a": {"a": {"a": {}}}}, [1] * 50, "ä\u202e", {"": None}, [None], 0.1),
]
NUMBERS = (b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\x01", b"\xff")

Mutate = Callable[[bytes, Random], bytes]


class TookTooLongError(BaseException):
    """A target did not end in time; no reader may catch it."""


@contextmanager
def bounded(computing: int = PATIENCE, waiting: int = HANG) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TookTooLongError

    before = {kind: signal.signal(kind, ring) for kind in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, computing)
    signal.alarm(waiting)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for kind, handler in before.items():
            signal.signal(kind, handler)


# Mutations.


def of_bytes(content: bytes, random: Random) -> bytes:
    """Bytes flipped, cut, doubled, moved and replaced by numbers at the edges."""
    found = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 4, 16))):
        at = random.randrange(len(found) + 1)
        end = min(len(found), at + random.choice((1, 1, 2, 4, 16, 256)))
        match random.randrange(7):
            case 0:
                found[at:end] = bytes(random.randrange(256) for _ in range(end - at))
            case 1:
                del found[at:end]
            case 2:
                found[at:at] = found[at:end]
            case 3:
                number = random.choice(NUMBERS)
                found[at : at + len(number)] = number
            case 4:
                del found[at:]
            case 5:
                found[at:at] = bytes(random.randrange(256) for _ in range(random.choice((1, 4, 64))))
            case _:
                if at < len(found):
                    found[at] ^= 1 << random.randrange(8)
    return bytes(found)


def of_tree(value: Any, random: Random) -> Any:
    """A tree of plain values with some nodes replaced, removed, doubled or named otherwise."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    if isinstance(value, dict | list):
        walk(value)
    if not places or random.random() < 0.02:
        return random.choice(NASTY)
    for _ in range(random.choice((1, 1, 2, 5))):
        node, key = random.choice(places)
        match random.randrange(5):
            case 0 if isinstance(node, dict):
                node.pop(key, None)
            case 1 if isinstance(node, dict):
                node[random.choice(("", "x", "kind", "name", "own", str(key) * 2))] = random.choice(NASTY)
            case 2:
                other, name = random.choice(places)
                if _has(other, name) and _has(node, key):
                    node[key] = json.loads(json.dumps(other[name], default=str))
            case _:
                if _has(node, key):
                    node[key] = random.choice(NASTY)
    return value


def _has(node: Any, key: Any) -> bool:
    return key in node if isinstance(node, dict) else key < len(node)


def of_json(content: bytes, random: Random) -> bytes:
    if random.random() < 0.2:
        return of_bytes(content, random)
    text = json.dumps(of_tree(json.loads(content), random), default=str)
    return text.replace(f'"{"9" * 5000}"', "9" * 5000).encode("utf-8", "surrogatepass")


def of_toml(content: bytes, random: Random) -> bytes:
    if random.random() < 0.3:
        return of_bytes(content, random)
    changed = of_tree(tomllib.loads(content.decode()), random)
    try:
        return tomli_w.dumps(changed).encode("utf-8", "surrogatepass")
    except Exception:  # what TOML has no words for
        return of_bytes(content, random)


def of_recipe(content: bytes, random: Random) -> bytes:
    """TOML; a recipe that lost its number of iterations is a valid one of 10,000, which takes its time."""
    changed = of_toml(content, random)
    return changed if b"iterations" in changed else b"iterations = 6\n" + changed


def of_csv(content: bytes, random: Random) -> bytes:
    if random.random() < 0.3:
        return of_bytes(content, random)
    rows = [line.split(b",") for line in content.split(b"\n")]
    for _ in range(random.choice((1, 2, 5))):
        row = random.choice(rows)
        cells = (
            b"",
            b"nan",
            b"1e999",
            b"+-5",
            b'"',
            b"9" * 5000,
            b"\xff",
            b"0x1",
            b"a;b",
            b"\r",
            b"-0",
            b"1e39",
            b"\x00",
        )
        row[random.randrange(len(row))] = random.choice(cells)
        if random.random() < 0.2:
            rows.append(list(random.choice(rows)))
        if random.random() < 0.1:
            row.append(b"1")
    return b"\n".join(b",".join(row) for row in rows)


def of_idx(content: bytes, random: Random) -> bytes:
    plain = bytearray(gzip.decompress(content))
    if random.random() < 0.7:
        at = random.choice((0, 2, 3, 4, 8, 12))
        plain[at : at + 4] = struct.pack(">I", random.choice((0, 1, 2**31, 2**32 - 1, 100, 0x803, 0x801)))
    else:
        plain = bytearray(of_bytes(bytes(plain), random))
    packed = bytes(plain) if random.random() < 0.3 else gzip.compress(bytes(plain), 1)
    return of_bytes(packed, random) if random.random() < 0.2 else packed


def of_npy(content: bytes, random: Random) -> bytes:
    if random.random() < 0.3:
        return of_bytes(content, random)
    length = int.from_bytes(content[8:10], "little")
    body = content[10 + length :]
    descr = random.choice(("<f4", "<f8", ">f4", "|u1", "<i8", "|O", "|V4", "<U3", "<M8[s]", "<c8", "<f2", "|b1", "<U0"))
    sizes = random.choice(
        ("(3, 64)", "(3,)", "()", "(0, 64)", "(3, 0)", "(-1,)", "(2**40,)", "(99999999999999, 64)", "3")
    )
    head = f"{{'descr': {descr!r}, 'fortran_order': {random.choice(('True', 'False', '1'))}, 'shape': {sizes}, }}\n"
    return content[:6] + b"\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + body


def of_npz(content: bytes, random: Random) -> bytes:
    if random.random() < 0.3:
        return of_bytes(content, random)
    out = io.BytesIO()
    ways = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    with warnings.catch_warnings(), zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        warnings.simplefilter("ignore")
        for name in old.namelist():
            inner = old.read(name)
            if random.random() < 0.6:
                inner = of_npy(inner, random)
            called = random.choice((name, name, name, "x.npy", "x", "../x.npy", "y_test.npy", "x_test.npy", ".npy"))
            new.writestr(called, inner, random.choice(ways))
    return of_bytes(out.getvalue(), random) if random.random() < 0.2 else out.getvalue()


def of_zip(content: bytes, random: Random) -> bytes:
    if random.random() < 0.4:
        return of_bytes(content, random)
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        warnings.simplefilter("ignore")
        for name in old.namelist():
            inner = old.read(name)
            inner = of_png(inner, random) if random.random() < 0.2 else inner
            called = random.choice(
                (name, name, name, f"/{name}", f"../{name}", "a/.png", "\u202e/x.png", "x" * 300 + ".png")
            )
            new.writestr(called, inner)
    return out.getvalue()


def of_tar(content: bytes, random: Random) -> bytes:
    plain = gzip.decompress(content)
    if random.random() < 0.3:
        return gzip.compress(of_bytes(plain, random), 1)
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(plain)) as old, tarfile.open(fileobj=out, mode="w") as new:
        names = old.getnames()
        for member in old.getmembers():
            stream = old.extractfile(member)
            inner = b"" if stream is None else stream.read()
            if random.random() < 0.3:
                member.name = random.choice(
                    (f"/{member.name}", f"../{member.name}", "x/../y/z.png", ".png", "a/é\x1b.png")
                )
            if random.random() < 0.3:
                kinds = (
                    tarfile.SYMTYPE,
                    tarfile.LNKTYPE,
                    tarfile.FIFOTYPE,
                    tarfile.CHRTYPE,
                    tarfile.DIRTYPE,
                    b"S",
                    b"x",
                )
                member.type, member.linkname = random.choice(kinds), random.choice((*names, "/etc/passwd", "..", ""))
                inner = b""
            member.size = len(inner)
            new.addfile(member, io.BytesIO(inner))
    found = out.getvalue()
    if random.random() < 0.2:
        found = of_bytes(found, random)
    return random.choice((lambda c: c, lambda c: gzip.compress(c, 1)))(found)


def of_png(content: bytes, random: Random) -> bytes:
    if random.random() < 0.4:
        return of_bytes(content, random)
    at, chunks = 8, []
    while at + 8 <= len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        chunks.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + length]))
        at += 12 + length
    if not chunks:
        return of_bytes(content, random)
    k = random.randrange(len(chunks))
    kind, body = chunks[k]
    if kind == b"IHDR" and random.random() < 0.7:
        sizes = [random.choice((0, 1, 8, 2**16, 2**31 - 1, 2**32 - 1)) for _ in range(2)]
        body = struct.pack(">IIBBBBB", *sizes, *(random.choice((0, 1, 2, 3, 4, 6, 8, 16, 255)) for _ in range(5)))
    else:
        body = of_bytes(body, random)
    chunks[k] = (random.choice((kind, kind, b"tRNS", b"PLTE", b"iCCP", b"zTXt", b"eXIf", b"acTL", b"fdAT")), body)
    if random.random() < 0.2:
        chunks.insert(random.randrange(len(chunks)), random.choice(chunks))
    return content[:8] + b"".join(
        struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b)) for k, b in chunks
    )


def of_pickle(content: bytes, random: Random) -> bytes:
    if random.random() < 0.3:
        return of_bytes(content, random)
    parts = [
        *(
            b"}",
            b"]",
            b")",
            b"(",
            b"N",
            b"K\x01",
            b"q\x00",
            b"h\x00",
            b"q\x01",
            b"h\x01",
            b"\x85",
            b"\x86",
            b"\x87",
            b"t",
        ),
        *(b"l", b"d", b"s", b"u", b"a", b"e", b"R", b"b", b"0", b"2", b"\x94", b"\x88", b"cnumpy\ndtype\n", b"U\x01a"),
        *(
            b"cnumpy\nndarray\n",
            b"cos\nsystem\n",
            b"c_codecs\nencode\n",
            b"\x8a\x01\xff",
            b"X\x02\x00\x00\x00f4",
            b"\x93",
        ),
        *(
            b"cnumpy.core.multiarray\n_reconstruct\n",
            b"G\x7f\xf0\x00\x00\x00\x00\x00\x00",
            b"I9\n",
            b"V\\ud800\n",
            b".",
        ),
    ]
    made = b"".join(random.choice(parts) for _ in range(random.randrange(60)))
    at = random.randrange(len(content))
    return random.choice((made + b".", content[:at] + made + content[at:], content[:at] + made + b"."))


def of_safetensors(content: bytes, random: Random) -> bytes:
    if random.random() < 0.2:
        return of_bytes(content, random)
    length = int.from_bytes(content[:8], "little")
    head = json.loads(content[8 : 8 + length])
    if "__metadata__" in head and random.random() < 0.8:
        known = head["__metadata__"]
        key = random.choice(list(known))
        if key == "recipe":
            known[key] = of_toml(known[key].encode(), random).decode("utf-8", "replace")
        elif key != "jointenergy":
            known[key] = of_json(known[key].encode(), random).decode("utf-8", "replace")
    else:
        head = of_tree(head, random)
    body = content[8 + length :]
    text = json.dumps(head, default=str).encode()
    text += b" " * (-len(text) % 8)
    if random.random() < 0.2:
        body = of_bytes(body, random)
    return len(text).to_bytes(8, "little") + text + body


# Targets.


@dataclass(frozen=True)
class Target:
    """A valid file, how it is mutated, and what reads the mutated one, which lies at a path of the same ending."""

    content: bytes
    ending: str
    mutate: Mutate
    read: Callable[[Path], object]


def targets(place: Path, scratch: Path) -> dict[str, Target]:
    """Every reader and every command that takes a file; `place` is that of `make_place`."""
    run = open_run(place / "run")
    x = (place / "x.npy").read_bytes()
    png, packed = (place / "image.png").read_bytes(), (place / "x.npz").read_bytes()
    idx = gzip.compress(idx_bytes(noise(5, 8, 8)))
    rows = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1], "batch_label": "one"}
    script = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), script)
    mat = io.BytesIO()
    savemat(mat, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((2, 1))})
    estimator = Quick().fit(*blobs()).save(scratch / "estimator.safetensors").read_bytes()
    result = next(Path(__file__).resolve().parents[1].glob("results/digits-jem.json"))
    features = io.BytesIO()
    np.savez(features, features=np.zeros((3, 2)))
    checkpoint = sorted((place / "run" / "checkpoints").glob("iteration-*"))[-1]

    def in_run(name: str, use: Callable[[Path], object]) -> Callable[[Path], object]:
        """The run with one file replaced."""

        def read(path: Path) -> object:
            folder = scratch / "run"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(place / "run", folder)
            shutil.copy(path, folder / name)
            return use(folder)

        return read

    def resumed(folder: Path) -> None:
        run_folder.reopen(folder).fit()

    def in_checkpoint(name: str) -> Callable[[Path], object]:
        """The run with a file of its newest checkpoint replaced, under a right checksum; resumed."""

        def read(path: Path) -> None:
            folder = scratch / "run"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(place / "run", folder)
            newest = folder / "checkpoints" / checkpoint.name
            for other in (folder / "checkpoints").glob("iteration-*"):
                if other != newest:
                    shutil.rmtree(other)
            shutil.copy(path, newest / name)
            sums = {f: checkpoints._sha256(newest / f) for f in (checkpoints.TENSORS, checkpoints.VALUES)}
            (newest / checkpoints.SUMS).write_text(json.dumps(sums))
            resumed(folder)

        return read

    def command(*words: str) -> Callable[[Path], object]:
        """A command with FILE in its words, which may write to SCRATCH."""

        def read(path: Path) -> None:
            shutil.rmtree(scratch / "out", ignore_errors=True)
            (scratch / "out").mkdir()
            answer = call(*(w.replace("FILE", str(path)).replace("SCRATCH", str(scratch / "out")) for w in words))
            assert answer.status in (0, WRONG, DIVERGED, UNHEALTHY), answer
            assert "Traceback" not in answer.err
            if answer.status == WRONG:
                said = [line for line in answer.err.splitlines() if not line.startswith("note: ")]
                raise InputError("\n".join(said))

        return read

    def thresholds(folder: Path) -> object:
        return Thresholds(folder, "x").find("log_density", 0.05)

    def opened(folder: Path) -> object:
        return open_run(folder).predict(run.rows(np.zeros((1, 64), np.float32)))

    def pieces(path: Path) -> list[Any]:
        return list(array_pieces(path, 2))

    def ood_set(path: Path) -> list[Any]:
        return list(read_ood_set("set", path, run).batches(10))

    def feature_file(path: Path) -> object:
        return cached_features("f", str(path), 3, lambda: torch.zeros(3, 2)), arrays_of(path)

    def result_file(path: Path) -> object:
        shutil.copy(path, scratch / result.name)
        return results.read(scratch / result.name)

    def kept_section(path: Path) -> object:
        shutil.rmtree(scratch / "part", ignore_errors=True)
        shutil.copytree(place / "part", scratch / "part")
        shutil.copy(path, scratch / "part" / cache.SECTION)
        found = cache.found(scratch / "part", "key")
        if found is None or found[0] is None:
            raise InputError("none")
        return page.page(RunEvaluation("x", "quick", (found[0],), {}, about, "", "fine"))

    def listed(path: Path) -> object:
        folder = scratch / "results"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        shutil.copy(path, folder / result.name)
        return command("results", "--results", str(folder))(path)

    def table(name: str) -> Callable[[Path], object]:
        return lambda path: data.load(name, path)

    one, many = str(place / "run"), str(place / "x.npy")
    run_json, recipe = (place / "run" / "run.json").read_bytes(), (place / "run" / "recipe.toml").read_bytes()
    exported, metrics = (place / "run.safetensors").read_bytes(), (place / "run/evaluation/metrics.json").read_bytes()
    tar, zipped = (place / "images.tar.gz").read_bytes(), (place / "images.zip").read_bytes()
    csv, wide = (place / "table.csv").read_bytes(), (place / "x.csv").read_bytes()
    celeba = b"2\na b\nx.jpg 1 -1\ny.jpg -1 1\n"
    fitted = (place / "run" / "metrics.csv").read_bytes()
    events = b'{"event": "warning", "iteration": 0, "says": "x"}\n' * 3
    from jointenergy.data.celeba import read_attributes

    with_labels = io.BytesIO()
    many_rows = np.random.default_rng(0).uniform(-1, 1, (30, 64)).astype(np.float32)
    answers = run.predict_proba(run.rows(many_rows))["digit"].argmax(1).numpy()
    np.savez(with_labels, x=many_rows, y=np.where(np.arange(30) % 3, answers, 0))
    labelled, study = with_labels.getvalue(), next(studies.FOLDER.glob("digits-continual.toml")).read_bytes()
    shown = Section(
        "s", "S", ("x",), {"a": 1.0}, (Table("T", ("a",), ((1.0,),)),), (Picture("p", "c", png),), {"a": "x"}
    )
    cache.keep(place / "part", "key", shown, 1.0)
    about: dict[str, Any] = dict.fromkeys(("run", "baseline", "data", "training_seed", "seed", "hardware", "date"), "x")
    about |= {"others": {}, "test_rows": 1, "parameters": 1}
    section = (place / "part" / cache.SECTION).read_bytes()
    return {
        "npy": Target(x, ".npy", of_npy, array_of),
        "npy in pieces": Target(x, ".npy", of_npy, pieces),
        "npz": Target(packed, ".npz", of_npz, arrays_of),
        "npz in pieces": Target(packed, ".npz", of_npz, pieces),
        "npz data set": Target(packed, ".npz", of_npz, table("npz")),
        "npz ood set": Target(packed, ".npz", of_npz, ood_set),
        "npz features": Target(features.getvalue(), ".npz", of_npz, feature_file),
        "csv data set": Target(csv, ".csv", of_csv, table("csv")),
        "csv own": Target(csv, ".csv", of_csv, lambda p: look(p, 32)),
        "png": Target(png, ".png", of_png, lambda p: decode(p.read_bytes(), "x", None, (8, 8))),
        "tar": Target(tar, ".tar.gz", of_tar, lambda p: image_folder(p, size=(8, 8))),
        "tar of images": Target(tar, ".tar.gz", of_tar, lambda p: [len(c) for _, c in images_in(p)]),
        "tar ood set": Target(tar, ".tar.gz", of_tar, ood_set),
        "zip": Target(zipped, ".zip", of_zip, lambda p: image_folder(p, size=(8, 8))),
        "idx": Target(idx, ".gz", of_idx, lambda p: read_idx(p, 3)),
        "idx ood set": Target(idx, "-idx3-ubyte.gz", of_idx, ood_set),
        "pickle": Target(python3_pickle(rows, 2), "", of_pickle, lambda p: unpickle(p.read_bytes(), "x")),
        "pickle of Python 2": Target(
            python2_pickle({k.encode(): v for k, v in rows.items() if not isinstance(v, str)}),
            "",
            of_pickle,
            lambda p: unpickle(p.read_bytes(), "x"),
        ),
        "pickle of protocol 4": Target(pickle.dumps(rows, 4), "", of_pickle, lambda p: unpickle(p.read_bytes(), "x")),
        "torchscript": Target(script.getvalue(), ".pt", of_zip, torchscript_tensors),
        "mat": Target(mat.getvalue(), ".mat", of_bytes, read_mat),
        "celeba": Target(celeba, ".txt", of_bytes, read_attributes),
        "recipe": Target(recipe, ".toml", of_recipe, read_recipe),
        "run.json": Target(run_json, ".json", of_json, in_run("run.json", opened)),
        "recipe of a run": Target(recipe, ".toml", of_recipe, in_run("recipe.toml", opened)),
        "recipe resumed": Target(recipe, ".toml", of_recipe, in_run("recipe.toml", run_folder.reopen)),
        "values.json": Target(
            (checkpoint / checkpoints.VALUES).read_bytes(), ".json", of_json, in_checkpoint(checkpoints.VALUES)
        ),
        "tensors": Target(
            (checkpoint / checkpoints.TENSORS).read_bytes(),
            ".safetensors",
            of_safetensors,
            in_checkpoint(checkpoints.TENSORS),
        ),
        "best.json": Target(
            b'{"checkpoint": "iteration-00000003"}', ".json", of_json, in_run("checkpoints/best.json", opened)
        ),
        "metrics.csv": Target(fitted, ".csv", of_csv, in_run("metrics.csv", resumed)),
        "events.jsonl": Target(events, ".jsonl", of_bytes, in_run("events.jsonl", resumed)),
        "thresholds.json": Target(
            b'{"weights": "x", "thresholds": [{"score": "log_density", "quantile": 0.05, "value": 1.5, "n_rows": 7}], '
            b'"temperature": {"value": 1.5, "n_rows": 7}, "conformal": [{"label": "digit", "coverage": 0.9, '
            b'"randomized": false, "value": 0.5, "n_rows": 7}]}',
            ".json",
            of_json,
            in_run("thresholds.json", thresholds),
        ),
        "metrics.json": Target(metrics, ".json", of_json, in_run("evaluation/metrics.json", comparison.read)),
        "result": Target(result.read_bytes(), ".json", of_json, result_file),
        "export": Target(exported, ".safetensors", of_safetensors, opened),
        "estimator": Target(estimator, ".safetensors", of_safetensors, JointEnergyClassifier.load),
        "predict an array": Target(packed, ".npz", of_npz, command("predict", one, "FILE")),
        "predict a table": Target(wide, ".csv", of_csv, command("predict", one, "FILE", "--json")),
        "predict an image": Target(png, ".png", of_png, command("predict", one, "FILE", "--resize")),
        "predict by a file": Target(
            exported, ".safetensors", of_safetensors, command("predict", "FILE", many, "--csv")
        ),
        "inpaint by a mask": Target(
            (place / "mask.npy").read_bytes(),
            ".npy",
            of_npy,
            command("inpaint", one, many, "--mask", "FILE", "--draws", "2", "--steps", "1"),
        ),
        "inpaint by a picture": Target(
            png, ".png", of_png, command("inpaint", one, many, "--mask", "FILE", "--draws", "2", "--steps", "1")
        ),
        "recipes": Target(recipe, ".toml", of_recipe, command("recipes", "FILE")),
        "compare": Target(metrics, ".json", of_json, in_run("evaluation/metrics.json", command("compare", "FILE"))),
        "score": Target(run_json, ".json", of_json, in_run("run.json", command("score", "FILE", many))),
        "train": Target(recipe, ".toml", of_recipe, command("train", "FILE", "--out", "SCRATCH/run")),
        "resume": Target(recipe, ".toml", of_recipe, in_run("recipe.toml", command("resume", "FILE"))),
        "study": Target(study, ".toml", of_toml, lambda p: studies.load(str(p))),
        "init": Target(csv, ".csv", of_csv, command("init", "FILE", "--out", "SCRATCH/r.toml", "--minutes", "0.1")),
        "calibrate": Target(labelled, ".npz", of_npz, command("calibrate", one, "--rows", "FILE", "--coverage", "0.5")),
        "rank": Target(packed, ".npz", of_npz, command("rank", one, "FILE", "--first", "3", "--second", "8")),
        "convert": Target(
            x, ".npy", of_npy, command("convert", one, "FILE", "--to", "3", "--steps", "1", "--out", "SCRATCH/x.npy")
        ),
        "sample": Target(
            exported, ".safetensors", of_safetensors, command("sample", "FILE", "-n", "2", "--out", "SCRATCH/x.png")
        ),
        "distal": Target(
            exported,
            ".safetensors",
            of_safetensors,
            command("distal", "FILE", "--given", "3", "-n", "2", "--max-steps", "2", "--out", "SCRATCH/x.npz"),
        ),
        "compose": Target(
            exported,
            ".safetensors",
            of_safetensors,
            command("compose", "FILE", one, "-n", "2", "--out", "SCRATCH/x.npy"),
        ),
        "export again": Target(
            exported, ".safetensors", of_safetensors, command("export", "FILE", "SCRATCH/e.safetensors")
        ),
        "evaluate": Target(
            packed, ".npz", of_npz, command("evaluate", one, "--ood", "a=FILE", "--part", "ood", "--out", "SCRATCH/e")
        ),
        "evaluate a course": Target(
            fitted,
            ".csv",
            of_csv,
            in_run("metrics.csv", command("evaluate", "FILE", "--part", "training", "--out", "SCRATCH/e")),
        ),
        "evaluate events": Target(
            events,
            ".jsonl",
            of_bytes,
            in_run("events.jsonl", command("evaluate", "FILE", "--part", "training", "--out", "SCRATCH/e")),
        ),
        "section": Target(section, ".json", of_json, kept_section),
        "results": Target(result.read_bytes(), ".json", of_json, listed),
    }


def feed(target: Target, content: bytes, scratch: Path) -> bool:
    """Whether the target took a file; one that it refused is fine too, and anything else is raised."""
    path = scratch / f"fed{target.ending}"
    path.write_bytes(content)
    with bounded(), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            target.read(path)
        except InputError as error:
            refused = str(error)
        else:
            return True
    assert 0 < len(refused) < 5000, "no sentence"
    assert "\n" not in refused.strip(), "more than a line"
    return False
