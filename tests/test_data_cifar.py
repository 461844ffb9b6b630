"""CIFAR's binary and python layouts and SVHN's MATLAB files, whole, broken and hostile."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch
from scipy.io import savemat

from jointenergy.data import cifar, load
from jointenergy.data.matlab import matlab_arrays
from jointenergy.data.unpickling import unpickle
from jointenergy.errors import InputError
from tests import generated_data as made


@pytest.fixture
def small_cifar(monkeypatch):
    for rows in (cifar.CIFAR10_ROWS, cifar.CIFAR100_ROWS):
        monkeypatch.setitem(rows, "test", 20)
    monkeypatch.setitem(cifar.CIFAR10_ROWS, "train", 100)
    monkeypatch.setitem(cifar.CIFAR100_ROWS, "train", 20)


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("write", [made.write_cifar_binary, made.write_cifar_python])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_both_layouts_are_read(tmp_path, small_cifar, name, write, archive):
    write(tmp_path / name, name, archive=archive)
    train, test = load(name, tmp_path), load(name, tmp_path, "test")
    parts = 5 if name == "cifar10" else 1
    expected = [made.cifar_rows(20, 100 if parts == 1 else 10, seed=i) for i in range(parts + 1)]
    x = np.concatenate([rows[0] for rows in expected[:-1]]).reshape(-1, 3, 32, 32)
    assert np.array_equal(train.x.numpy(), x)
    assert train.y[:, 0].tolist() == [int(v) for rows in expected[:-1] for v in rows[1]]
    assert np.array_equal(test.x.flatten(1).numpy(), expected[-1][0])
    assert train.labels.values[0] == (cifar.CIFAR10 if parts == 5 else cifar.CIFAR100)


def test_the_classes_of_cifar100():
    assert len(set(cifar.CIFAR100)) == 100
    assert list(cifar.CIFAR100) == sorted(cifar.CIFAR100)
    assert (cifar.CIFAR100[0], cifar.CIFAR100[41], cifar.CIFAR100[99]) == ("apple", "lawn_mower", "worm")


def test_image_folders_of_cifar_are_kept_in_the_cache(tmp_path, small_cifar, monkeypatch):
    monkeypatch.setenv("JOINTENERGY_CACHE", str(tmp_path / "cache"))
    made.write_cifar_images(tmp_path / "images", split="test")
    first = load("cifar10", tmp_path / "images", "test")
    monkeypatch.setattr(cifar, "image_folder", lambda *_, **__: pytest.fail("the images were decoded again"))
    assert torch.equal(load("cifar10", tmp_path / "images", "test").x, first.x)


def test_broken_binary_files_are_named(tmp_path, small_cifar):
    where = made.write_cifar_binary(tmp_path) / "cifar-10-batches-bin"
    path = where / "data_batch_3.bin"
    whole = path.read_bytes()
    for content in (whole[:-1], b""):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"data_batch_3\.bin is corrupt or truncated: its \d+ bytes are no"):
            load("cifar10", tmp_path)
    path.write_bytes(b"\x0b" + whole[1:])
    with pytest.raises(InputError, match=r"data_batch_3\.bin.* does not hold the labels of 'cifar10'.*row 40 has 11"):
        load("cifar10", tmp_path)
    path.write_bytes(whole[:3073])
    with pytest.raises(InputError, match=r"train split of 'cifar10' has 100 images, 81 are in .*a part is missing"):
        load("cifar10", tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=r"has data_batch_1\.bin and no data_batch_3\.bin: a part of the train split"):
        load("cifar10", tmp_path)
    assert len(load("cifar10", tmp_path, "test")) == 20


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_broken_archives_are_named(tmp_path, small_cifar, share):
    made.write_cifar_binary(tmp_path, archive=True)
    path = tmp_path / "cifar-10-binary.tar.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(InputError, match=r"archive .*cifar-10-binary\.tar\.gz is (corrupt, )?truncated"):
        load("cifar10", tmp_path, "test")


def test_every_byte_of_an_archive_is_under_its_checksum(tmp_path, small_cifar):
    made.write_cifar_binary(tmp_path, archive=True)
    path = tmp_path / "cifar-10-binary.tar.gz"
    whole = path.read_bytes()
    begin = whole.index(b"\0", 10) + 1  # after the name and time in the head of gzip, which nothing checks
    damaged = [whole[:-n] for n in (1, 4, 8, 9)]
    for place in [*range(begin, len(whole), len(whole) // 40), len(whole) - 5, len(whole) - 1]:
        flipped = bytearray(whole)
        flipped[place] ^= 16
        damaged.append(bytes(flipped))
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"archive .*cifar-10-binary\.tar\.gz is corrupt, truncated or no.*: .+\Z"):
            load("cifar10", tmp_path, "test")


def test_a_page_in_the_place_of_an_archive_is_told_in_one_sentence(tmp_path):
    (tmp_path / "cifar-10-binary.tar.gz").write_text("<!DOCTYPE html>\n<title>404 Not Found</title>\n" * 100)
    with pytest.raises(InputError, match=r"cifar-10-binary\.tar\.gz is corrupt, truncated or no tar archive: .+\Z"):
        load("cifar10", tmp_path)


# Pickles.


class Hostile:
    """Runs a command when a plain unpickler opens it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_hostile_pickle_is_refused_and_runs_nothing(tmp_path, small_cifar, protocol):
    where = made.write_cifar_python(tmp_path / "cifar10") / "cifar-10-batches-py"
    trace = tmp_path / "trace"
    content = pickle.dumps({b"data": Hostile(trace), b"labels": []}, protocol)
    pickle.loads(content)  # the file does what it says where it is let
    assert trace.exists()
    trace.unlink()
    (where / "test_batch").write_bytes(content)
    with pytest.raises(InputError, match=r"test_batch is refused: it holds the name '(posix|nt|os)\.system', and only"):
        load("cifar10", tmp_path, "test")
    assert not trace.exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"cbuiltins\neval\n(S'1'\ntR.", r"refused: it holds the name 'builtins\.eval'"),
        (b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.", r"refused: it holds the name 'builtins\.eval'"),
        (b"cnumpy\nndarray\n.", "ends in the middle of something"),
        (b"cnumpy\nndarray\n(tR.", "numpy.ndarray is not called"),
        (b"(S'a'\niposix\nsystem\n.", "refused: it holds the instruction INST"),
        (b"Pid\n.", "refused: it holds the instruction PERSID"),
        (b"\x80\x02}\x81.", "refused: it holds the instruction NEWOBJ"),
        (b"\x82\x01.", "refused: it holds the instruction EXT1"),
        (b"]q\x00h\x00a.", "no pickle of plain values: it is nested too deep"),
        (b"N", "no pickle of plain values"),
        (b"", "no pickle of plain values"),
        (b"K\x01e.", "no pickle of plain values"),
        (b"g5\n.", "no pickle of plain values"),
        (b"](K\x01K\x02u.", "a dict is expected where a list is"),
        (b"cnumpy.core.multiarray\n_reconstruct\n(tR.", "an array has no content"),
        (b"c_codecs\nencode\n(Va\nVrot13\ntR.", "bytes are written in latin1"),
    ],
)
def test_what_is_no_plain_value_is_refused_by_name(content, sentence):
    with pytest.raises(InputError, match=f"^some/file .*{sentence}"):
        unpickle(content, "some/file")


def test_lists_that_share_their_parts_stay_small():
    """Sixty lists, each twice in the next: written out they would be 2^60."""
    content = b"]q\x00" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(60)) + b"."
    found = unpickle(content, "some/file")
    for _ in range(60):
        assert found[0] is found[1]
        found = found[0]
    assert found == []


def test_arrays_of_objects_are_refused():
    for protocol in (2, 3, 4):
        with pytest.raises(InputError, match=r"some/file .*only numbers are read"):
            unpickle(pickle.dumps(np.array([{}, None]), protocol), "some/file")


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_plain_values_come_back(protocol):
    value = {
        "text": "ä",
        b"bytes": b"\x00\xff",
        "numbers": [0, 1, -1, 255, 70_000, 2**40, -(2**70), 0.5],
        "truths": (True, False, None),
        "nested": [{"a": ()}, [[]], ("b", "b")],
        "array": np.arange(6, dtype=">u2").reshape(2, 3),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "many": list(range(3000)),
    }
    found = unpickle(pickle.dumps(value, protocol), "some/file")
    for key in ("array", "columns"):
        assert np.array_equal(found.pop(key), value[key])
        assert found.keys() == {k: v for k, v in value.items() if k in found}.keys()
        value.pop(key)
    assert found == value


def test_broken_python_files_are_named(tmp_path, small_cifar):
    where = made.write_cifar_python(tmp_path) / "cifar-10-batches-py"
    path = where / "test_batch"
    whole = path.read_bytes()
    x, y = made.cifar_rows(20, 10)
    labels = [int(v) for v in y]
    for content, sentence in [
        (whole[:-100], r"test_batch is corrupt, truncated or no pickle"),
        (b"hello", r"test_batch is corrupt, truncated or no pickle"),
        (made.python2_pickle({b"labels": labels}), r"test_batch holds no array 'data' of bytes"),
        (made.python2_pickle({b"data": x[:, :5], b"labels": labels}), r"test_batch holds no array 'data' of bytes"),
        (made.python2_pickle({b"data": x}), r"test_batch holds no list 'labels' of 20 numbers"),
        (made.python2_pickle({b"data": x, b"labels": labels[:5]}), r"test_batch holds no list 'labels' of 20"),
        (made.python2_pickle({}).replace(b"}q\x01(u", b"]"), r"test_batch holds no array 'data'"),
    ]:
        path.write_bytes(content)
        with pytest.raises(InputError, match=sentence):
            load("cifar10", tmp_path, "test")


# SVHN.


def test_svhn_is_read(tmp_path):
    made.write_svhn(tmp_path / "svhn")
    train, test = load("svhn", tmp_path), load("svhn", tmp_path, "test")
    assert train.x.shape == (40, 3, 32, 32)
    assert np.array_equal(train.x[7].numpy(), made.noise(32, 32, 3, 40)[..., 7].transpose(2, 0, 1))
    assert train.y[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0] * 4
    assert len(test) == 20


def test_broken_files_of_svhn_are_named(tmp_path):
    made.write_svhn(tmp_path)
    path = tmp_path / "train_32x32.mat"
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:200], b"", b"hello", whole[:300] + bytes(100) + whole[400:]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"train_32x32\.mat is corrupt, truncated or not a MATLAB 5 file: ."):
            load("svhn", tmp_path)
    for arrays, sentence in [
        ({"y": np.ones((3, 1))}, "holds no array X of bytes"),
        ({"X": made.noise(32, 32, 3, 4), "y": np.ones((3, 1))}, "holds no array y of 4 digits"),
        ({"X": made.noise(32, 32, 3, 4), "y": np.zeros((4, 1))}, "holds no array y of 4 digits"),
        ({"X": made.noise(32, 32, 3, 4), "y": np.full((4, 1), np.nan)}, "holds no array y of 4 digits"),
    ]:
        savemat(path, arrays)
        with pytest.raises(InputError, match=rf"train_32x32\.mat {sentence}"):
            load("svhn", tmp_path)


@pytest.mark.parametrize("compressed", [False, True])
def test_matlab_arrays_are_those_of_scipy(compressed, tmp_path):
    rng = np.random.default_rng(0)
    kinds = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")
    arrays = {f"a{kind}": rng.integers(0, 100, (2, 3, 4)).astype(kind) for kind in kinds}
    others = {"text": "hello", "complex": np.array([1j]), "table": {"a": 1}}
    savemat(tmp_path / "a.mat", {**arrays, **others}, do_compression=compressed)
    found = matlab_arrays(tmp_path / "a.mat", [*arrays, *others])
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
