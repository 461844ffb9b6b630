"""Writers of small files in the real formats of the public data sets, for tests that have no real data."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

from jointenergy.data.cifar import CIFAR10, CIFAR100

CELEBA_ATTRIBUTES = ["Bangs", "Black_Hair", "Blond_Hair", "Brown_Hair", "Male", "No_Beard", "Smiling", "Young"]


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def picture_bytes(pixels: np.ndarray, form: str = "PNG") -> bytes:
    """Pixels `[H, W]` or `[H, W, 3]` as an image file."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, form)
    return stream.getvalue()


def tar_of(path: Path, files: dict[str, bytes], mode: str = "w:xz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


# idx.


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes((0, 0, 8, array.ndim)) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_idx_set(folder: Path, n_train: int = 200, n_test: int = 100) -> Path:
    """A folder like MNIST's, 28 x 28, with classes that can be told apart by where their pixels lie."""
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, n, seed in (("train", n_train, 0), ("t10k", n_test, 1)):
        y = np.arange(n) % 10
        x = noise(n, 28, 28, seed=seed) // 8
        for row, digit in enumerate(y):
            x[row, 2 * digit + 2 : 2 * digit + 8, 8:20] |= 0xE0
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(x)))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(y)))
    return folder


# CIFAR.


def cifar_rows(n: int, n_classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return noise(n, 3072, seed=seed), np.arange(n) % n_classes


def write_cifar_binary(folder: Path, name: str = "cifar10", n: int = 20, archive: bool = False) -> Path:
    """Files of n records each, under CIFAR's names, in a folder or packed as they come."""
    files = {}
    if name == "cifar10":
        inside, packed = "cifar-10-batches-bin", "cifar-10-binary.tar.gz"
        for i, file in enumerate([*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]):
            x, y = cifar_rows(n, 10, seed=i)
            files[file] = np.concatenate([y[:, None].astype(np.uint8), x], axis=1).tobytes()
    else:
        inside, packed = "cifar-100-binary", "cifar-100-binary.tar.gz"
        for i, file in enumerate(["train.bin", "test.bin"]):
            x, y = cifar_rows(n, 100, seed=i)
            both = np.stack([y // 5, y], axis=1).astype(np.uint8)
            files[file] = np.concatenate([both, x], axis=1).tobytes()
    return _put(folder, inside, packed, files, archive)


def write_cifar_python(folder: Path, name: str = "cifar10", n: int = 20, archive: bool = False) -> Path:
    """The python layout, as Python 2 wrote it."""
    files = {}
    names = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"] if name == "cifar10" else ["train", "test"]
    key = b"labels" if name == "cifar10" else b"fine_labels"
    for i, file in enumerate(names):
        x, y = cifar_rows(n, 10 if name == "cifar10" else 100, seed=i)
        files[file] = python2_pickle({b"batch_label": file.encode(), key: [int(v) for v in y], b"data": x})
    inside = "cifar-10-batches-py" if name == "cifar10" else "cifar-100-python"
    return _put(folder, inside, f"{inside.replace('batches-py', 'python')}.tar.gz", files, archive)


def _put(folder: Path, inside: str, packed: str, files: dict[str, bytes], archive: bool) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if archive:
        tar_of(folder / packed, {f"{inside}/{name}": content for name, content in files.items()}, "w:gz")
    else:
        (folder / inside).mkdir()
        for name, content in files.items():
            (folder / inside / name).write_bytes(content)
    return folder


def python2_pickle(value: dict[bytes, object]) -> bytes:
    """Protocol 2 as Python 2's cPickle wrote it: its strings are neither text nor bytes of Python 3."""

    def text(content: bytes) -> bytes:
        short = len(content) < 256
        return (b"U" + bytes([len(content)]) if short else b"T" + struct.pack("<i", len(content))) + content

    def item(thing: object) -> bytes:
        if isinstance(thing, bytes):
            return text(thing)
        if isinstance(thing, int):
            return b"K" + bytes([thing])
        if isinstance(thing, list):
            return b"](" + b"".join(map(item, thing)) + b"e"
        assert isinstance(thing, np.ndarray)
        dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|")
        dtype += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        shape = b"".join(b"J" + struct.pack("<i", size) for size in thing.shape)
        made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
        return made + b"(K\x01(" + shape + b"t" + dtype + b"\x89" + text(thing.tobytes()) + b"tb"

    return b"\x80\x02}q\x01(" + b"".join(text(k) + item(v) for k, v in value.items()) + b"u."


def python3_pickle(value: object, protocol: int) -> bytes:
    return pickle.dumps(value, protocol)


def write_cifar_images(folder: Path, name: str = "cifar10", per_class: int = 2, split: str = "train") -> Path:
    """Image folders <split>/<class>/*.png."""
    for k, label in enumerate(CIFAR10 if name == "cifar10" else CIFAR100):
        where = folder / split / label
        where.mkdir(parents=True)
        for i in range(per_class):
            (where / f"{i}.png").write_bytes(picture_bytes(noise(32, 32, 3, seed=1000 * k + i)))
    return folder


# SVHN.


def write_svhn(folder: Path, n_train: int = 40, n_test: int = 20) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, n, seed in (("train", n_train, 0), ("test", n_test, 1)):
        y = (np.arange(n) % 10 + 1).astype(np.uint8)[:, None]  # 10 is the digit 0
        savemat(folder / f"{split}_32x32.mat", {"X": noise(32, 32, 3, n, seed=seed), "y": y}, do_compression=True)
    return folder


# CelebA.


def write_celeba(folder: Path, n: int = 40, *, size: tuple[int, int] = (22, 18), archive: bool = False) -> Path:
    """Faces of (height, width), two of each identity in a row; attribute k is 1 in every (k + 2)-th row."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{i + 1:06d}.jpg" for i in range(n)]
    values = [[1 if i % (k + 2) == 0 else -1 for k in range(len(CELEBA_ATTRIBUTES))] for i in range(n)]
    lines = [f"{name}  {' '.join(f'{v:2d}' for v in row)}" for name, row in zip(names, values, strict=True)]
    (folder / "list_attr_celeba.txt").write_text("\n".join([str(n), " ".join(CELEBA_ATTRIBUTES) + " ", *lines, ""]))
    identities = "".join(f"{name} {i // 2 + 7}\n" for i, name in enumerate(names))
    (folder / "identity_CelebA.txt").write_text(identities)
    parts = "".join(f"{name} {0 if i < n // 2 else 1 if i < 3 * n // 4 else 2}\n" for i, name in enumerate(names))
    (folder / "list_eval_partition.txt").write_text(parts)
    files = {f"img_align_celeba/{name}": picture_bytes(noise(*size, 3, seed=i), "JPEG") for i, name in enumerate(names)}
    return _put_images(folder, files, archive)


def _put_images(folder: Path, files: dict[str, bytes], archive: bool) -> Path:
    if archive:
        tar_of(folder / "images.tar.xz", files)
    else:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    return folder


# Shoes.


def write_footwear(folder: Path, n: int = 40, archive: bool = False) -> Path:
    """Every tenth row lacks its season; images are 8 high and 6 wide, one is square and one grey."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["id,gender,masterCategory,subCategory,articleType,baseColour,season,year,usage"]
    files = {}
    for i in range(n):
        season = "" if i % 10 == 9 else ("Summer", "Fall")[i % 2]
        kind = ("Casual Shoes", "Heels", "Flats")[i % 3]
        colour = "Teal" if i == 0 else ("Black", "White")[i % 2]
        lines.append(f"{100 + i},{('Men', 'Women')[i % 2]},Footwear,Shoes,{kind},{colour},{season},2012,Casual")
        pixels = noise(6 if i == 1 else 8, 6, 3, seed=i)
        files[f"images/{100 + i}.jpg"] = picture_bytes(pixels[:, :, 0] if i == 2 else pixels, "JPEG")
    (folder / "styles_footwear.csv").write_text("\n".join([*lines, ""]))
    return _put_images(folder, files, archive)


def write_zappos(folder: Path, n: int = 40) -> Path:
    """Every eighth row lacks its closure, every fourth one has two materials."""
    lines = ["CID,Category,SubCategory,HeelHeight,Insole,Closure,Gender,Material,ToeStyle"]
    files = {}
    for i in range(n):
        closure = "" if i % 8 == 7 else ("Lace up", "Slip-On")[i % 2]
        material = "Leather;Suede" if i % 4 == 0 else "Mesh"
        gender = ("Men", "Women")[i % 2]
        lines.append(f"{1000 + i}-{i},Shoes,Oxfords,,,{closure},{gender},{material},Round Toe")
        image = f"ut-zap50k-images/Shoes/Oxfords/Maker/{1000 + i}.{i}.jpg"
        files[image] = picture_bytes(noise(6, 8, 3, seed=i), "JPEG")
    (folder / "ut-zap50k-data").mkdir(parents=True, exist_ok=True)
    (folder / "ut-zap50k-data" / "meta-data.csv").write_text("\n".join([*lines, ""]))
    return _put_images(folder, files, archive=False)


# Data of one's own.


def write_class_folders(
    folder: Path, per_class: int = 12, size: tuple[int, int] = (12, 12), *, grey: bool = False
) -> Path:
    """Images <class>/*.png of three classes, told apart by where they are bright."""
    for k, label in enumerate(("cats", "dogs", "red foxes")):
        (folder / label).mkdir(parents=True)
        for i in range(per_class):
            pixels = noise(*size, seed=100 * k + i) // 4
            pixels[4 * k : 4 * k + 4] += 128
            content = picture_bytes(pixels if grey else np.repeat(pixels[:, :, None], 3, axis=2))
            (folder / label / f"{i}.png").write_bytes(content)
    return folder


def write_labeled_images(folder: Path, n: int = 40) -> Path:
    """Images with a table: ids without ending, two labels, one with an empty cell, and columns that are no labels."""
    (folder / "pictures").mkdir(parents=True)
    lines = ["number,item,kind,worn,maker,note"]
    for i in range(n):
        worn = "" if i == 3 else ("yes", "no")[i % 2]
        lines.append(f"{i},item-{i},{('boot', 'clog', 'shoe')[i % 3]},{worn},Same,note {i}")
        (folder / "pictures" / f"item-{i}.jpg").write_bytes(picture_bytes(noise(16, 12, 3, seed=i), "JPEG"))
    lines.append(f"{n},absent,boot,yes,Same,note {n}")
    (folder / "labels.csv").write_text("\n".join([*lines, ""]))
    return folder


def write_table(path: Path, n: int = 60) -> Path:
    """Three columns on very different scales, and a word for each row."""
    random = np.random.default_rng(0)
    y = np.arange(n) % 2
    x = random.normal(size=(n, 3)) + y[:, None]
    rows = [
        f"{a:.4f},{1000 * b + 5000:.1f},{c / 100:.6f},{('low', 'high')[k]}" for (a, b, c), k in zip(x, y, strict=True)
    ]
    path.write_text("\n".join(["length,weight,share,grade", *rows, ""]))
    return path
