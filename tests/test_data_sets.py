"""Readers of the standard public layouts on small files of the real formats, on broken ones, and on the real data."""

from __future__ import annotations

import gzip
import shutil
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from jointenergy.data import Options, cache, load
from jointenergy.data.attributes import Attributes
from jointenergy.data.base import Dataset
from jointenergy.data.celeba import NOVEL_PAIRS
from jointenergy.data.dsprites import ANGLES, SEMI_AXES, ellipses
from jointenergy.data.framing import Frame
from jointenergy.data.toy import toy
from jointenergy.errors import InputError
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.recipes.data import data_of
from jointenergy.recipes.schema import parse
from tests import generated_data as made


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("JOINTENERGY_CACHE", str(folder))
    return folder


# Digits under other labels.


def test_the_attributes_of_digits():
    digits, data = load("digits"), load("digits-attributes")
    assert torch.equal(data.x, digits.x)
    assert data.labels.names == ("parity", "above_four", "loop")
    table = {d: data.y[digits.y[:, 0] == d].unique(dim=0).tolist() for d in range(10)}
    assert table == {
        0: [[0, 0, 1]], 1: [[1, 0, 0]], 2: [[0, 0, 0]], 3: [[1, 0, 0]], 4: [[0, 0, 0]],
        5: [[1, 1, 0]], 6: [[0, 1, 1]], 7: [[1, 1, 0]], 8: [[0, 1, 1]], 9: [[1, 1, 1]],
    }  # fmt: skip


def test_the_masks_of_digits(tmp_path):
    data = load("digits-masks", split="test")
    assert data.y.shape == (540, 64)
    assert torch.equal(data.y, (data.x >= 0).long())  # 8 of 16 levels
    assert 0.2 < float(data.y.float().mean()) < 0.4
    assert data.labels.names[13] == "r1c5"
    made.write_idx_set(tmp_path)
    big = load("mnist-masks", tmp_path)
    assert big.name == "mnist-masks"
    assert torch.equal(big.y, (big.x.flatten(1) >= 128).long())
    assert big.labels.names[28 * 3 + 4] == "r3c4"


# dSprites.


def test_ellipses_are_those_of_the_equation():
    """A plain loop over pixels as a second opinion, on a few latents."""
    drawn = ellipses(step=2)
    assert drawn.shape == (6, 8, 32, 32, 32, 32)
    for s, a, h, v in [(0, 0, 0, 0), (5, 1, 31, 7), (3, 2, 16, 31), (2, 5, 3, 20)]:
        scale, angle = np.linspace(0.5, 1, 6)[s], np.linspace(0, 2 * np.pi, 40)[[0, 9, 10, 19, 20, 29, 30, 39]][a]
        center = 12 + 40 * np.linspace(0, 1, 32)[[h, v]]
        expected = np.zeros((64, 64), bool)
        for row in range(64):
            for col in range(64):
                dx, dy = col + 0.5 - center[0], row + 0.5 - center[1]
                u, w = dx * np.cos(angle) + dy * np.sin(angle), -dx * np.sin(angle) + dy * np.cos(angle)
                expected[row, col] = (u / (scale * 11)) ** 2 + (w / (scale * 5.5)) ** 2 <= 1
        # float32 may put one pixel of the outline elsewhere
        assert (drawn[s, a, h, v] != expected[::2, ::2]).sum() <= 1
    area = 4 * drawn.sum((-1, -2)).mean((1, 2, 3))
    assert np.allclose(area, np.pi * SEMI_AXES[0] * SEMI_AXES[1] * np.linspace(0.5, 1, 6) ** 2, rtol=0.02)
    assert len(ANGLES) == 8


def test_the_ellipses_of_dsprites_are_drawn_split_and_kept(own_cache, untouched_random_state):
    with untouched_random_state():
        train, test = load("dsprites"), load("dsprites", split="test")
    assert train.x.shape == (46_652, 1, 32, 32)
    assert test.x.shape == (2_500, 1, 32, 32)
    assert train.x[:500].unique().tolist() == [0, 255]
    assert train.labels == LabelSpace({"horizontal": 16, "vertical": 16})
    counts = torch.bincount(train.y[:, 0], minlength=16) + torch.bincount(test.y[:, 0], minlength=16)
    assert counts.tolist() == [3072] * 16
    # The label is where the middle of the ellipse lies, left to right and top to bottom.
    weight = (test.x[:, 0] > 0).float()
    line = torch.arange(32) * 2 + 0.5
    across = (weight.sum(1) * line).sum(1) / weight.sum((1, 2))
    down = (weight.sum(2) * line).sum(1) / weight.sum((1, 2))
    for place, label in ((across, test.y[:, 0]), (down, test.y[:, 1])):
        expected = 12 + 40 * (2 * label + 0.5) / 31
        assert (place - expected).abs().max() < 2
    assert len(list(own_cache.iterdir())) == 1
    assert torch.equal(load("dsprites", split="test").x, test.x)


# The toy.


def test_the_toy_is_drawn_by_its_seed_and_kept(own_cache):
    split = toy(seed=3)
    for _ in range(2):  # drawn, then from the cache
        for name, rows in (("train", split.train), ("test", split.test)):
            found = load("toy", split=name, seed=3)
            assert torch.equal(found.x, rows.x)
            assert torch.equal(found.y, rows.y)
            assert found.labels == rows.labels
    assert len(list(own_cache.iterdir())) == 2
    assert not torch.equal(load("toy", split="test", seed=4).x, split.test.x)


# The cache.


def small_dataset():
    return Dataset(torch.arange(6.0).view(3, 2), torch.tensor([0, 1, MISSING]), LabelSpace({"a": ["x", "y"]}), "small")


def test_the_cache_is_made_once_and_again_when_its_sources_or_options_change(own_cache, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_text("1")
    built = []

    def build():
        built.append(1)
        return small_dataset()

    for _ in range(2):
        data = cache.cached("small", build, [source], "as it is")
        assert torch.equal(data.x, small_dataset().x)
        assert torch.equal(data.y, small_dataset().y)
        assert data.labels == small_dataset().labels
    assert len(built) == 1
    cache.cached("small", build, [source], "otherwise")
    (source / "a").write_text("12")
    cache.cached("small", build, [source], "as it is")
    (source / "b").write_text("")
    cache.cached("small", build, [source], "as it is")
    assert len(built) == 4
    with pytest.raises(InputError, match="gone cannot be read: No such file"):
        cache.cached("small", build, [tmp_path / "gone"])


@pytest.mark.parametrize("damage", [lambda b: b[:-40], lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"PK junk"])
def test_a_damaged_cache_is_made_anew(own_cache, damage):
    cache.cached("small", small_dataset, ())
    (file,) = own_cache.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert torch.equal(cache.cached("small", small_dataset, ()).x, small_dataset().x)
    fresh = file.read_bytes()
    flipped = bytearray(fresh)
    flipped[fresh.index(torch.tensor([5.0]).numpy().tobytes())] ^= 1  # a bit of the last value of x
    file.write_bytes(flipped)
    assert torch.equal(cache.cached("small", small_dataset, ()).x, small_dataset().x)


def test_nothing_half_read_is_cached(own_cache, tmp_path):
    folder = made.write_celeba(tmp_path / "celeba")
    broken = folder / "img_align_celeba" / "000033.jpg"
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"000033\.jpg cannot be read"):
        load("celeba", folder)
    assert not own_cache.exists() or not list(own_cache.iterdir())
    broken.write_bytes(whole)
    load("celeba", folder)
    assert [p.suffix for p in own_cache.iterdir()] == [".npz"]


def test_a_cache_that_cannot_be_written_costs_time_alone(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JOINTENERGY_CACHE", str(tmp_path / "file" / "below"))
    assert len(cache.cached("small", small_dataset, ())) == 3


def test_the_cache_folder_is_the_users_own(monkeypatch):
    monkeypatch.delenv("JOINTENERGY_CACHE")
    assert cache.cache_folder().name == "jointenergy"


# Frames.


def test_frames_crop_pad_and_stretch():
    pixels = np.zeros((20, 10, 3), np.uint8)
    pixels[5:15] = 200  # the centered square
    image = Image.fromarray(pixels)
    assert (np.asarray(Frame(4, 4, "crop")(image)) == 200).all()
    padded = np.asarray(Frame(8, 8, "pad")(image))
    assert (padded[:, :2] == 255).all()
    assert (padded[:, -2:] == 255).all()
    assert padded[0, 4, 0] < 60
    assert padded[4, 4, 0] > 150
    stretched = np.asarray(Frame(4, 4)(image))
    assert stretched.shape == (4, 4, 3)
    assert stretched[0, 0, 0] < 60
    assert stretched[2, 0, 0] > 150
    # Half of the square's sides, cut alike in copies of twice the size.
    pixels[7:13, 2:8] = 100
    for factor in (1, 2):
        copy = Image.fromarray(pixels.repeat(factor, 0).repeat(factor, 1))
        assert (np.asarray(Frame(2, 2, "crop", share=0.5)(copy)) == 100).all()
    assert np.asarray(Frame(6, 6, "pad")(Image.new("L", (3, 6), 7)))[0, 0] == 255


# CelebA.


@pytest.mark.parametrize("archive", [False, True])
def test_celeba_is_read(tmp_path, own_cache, archive):
    folder = made.write_celeba(tmp_path / "celeba", archive=archive)
    train, test = load("celeba", tmp_path), load("celeba", tmp_path, "test")
    assert train.x.shape == (36, 3, 64, 64)
    assert test.x.shape == (4, 3, 64, 64)
    assert train.labels == LabelSpace.binary(made.CELEBA_ATTRIBUTES)
    small = load("celeba", folder, options=Options(image_size=(18, 18), split_by="official"))
    assert small.x.shape == (20, 3, 18, 18)  # no resizing: the centered square itself
    with Image.open(io_of(folder, "000001.jpg", archive)) as face:
        expected = np.asarray(face.convert("RGB"))[2:20]
    assert np.array_equal(small.x[0].permute(1, 2, 0).numpy(), expected)
    assert small.y.tolist() == [[int(i % (k + 2) == 0) for k in range(8)] for i in range(20)]
    assert len(load("celeba", folder, "test", options=Options(split_by="official"))) == 10


def io_of(folder, name, archive):
    import tarfile

    if not archive:
        return folder / "img_align_celeba" / name
    return tarfile.open(folder / "images.tar.xz").extractfile(f"img_align_celeba/{name}")


def test_identities_of_celeba_are_in_one_split_alone(tmp_path, own_cache):
    made.write_celeba(tmp_path)
    options = Options(image_size=(4, 4), test_share=0.25)
    train, test = (load("celeba", tmp_path, part, options=options) for part in ("train", "test"))
    everything = load("celeba", tmp_path, options=Options(image_size=(4, 4), split_by="rows", test_share=0.01))
    assert len(train) + len(test) == 40
    assert len(test) == 10
    assert len(everything) == 40  # one hundredth of 40 rows rounds to none

    def numbers(data):
        rows = [(d.x == x).flatten(1).all(1).nonzero()[0, 0] for x in data.x for d in [everything]]
        return {int(r) // 2 for r in rows}

    assert not numbers(train) & numbers(test)
    again = load("celeba", tmp_path, "test", options=options)
    assert torch.equal(again.x, test.x)
    assert not torch.equal(load("celeba", tmp_path, "test", seed=1, options=options).x, test.x)


def test_attributes_of_celeba_are_chosen_and_pairs_held_out(tmp_path, own_cache):
    made.write_celeba(tmp_path)
    rows = {"image_size": (4, 4), "split_by": "rows"}
    frequent = load("celeba", tmp_path, options=Options(min_frequency=0.25, **rows))
    assert frequent.labels.names == ("Bangs", "Black_Hair", "Blond_Hair")
    named = load("celeba", tmp_path, options=Options(attributes=("Male", "Bangs"), **rows))
    assert named.labels.names == ("Male", "Bangs")
    pairs = (("Bangs", "Black_Hair"), ("Male", "not Bangs"))
    train = load("celeba", tmp_path, options=Options(held_out_pairs=pairs, **rows))
    test = load("celeba", tmp_path, "test", options=Options(held_out_pairs=pairs, **rows))
    bangs, black, male = (train.y[:, train.labels.index(n)] for n in ("Bangs", "Black_Hair", "Male"))
    assert not (bangs * black).any()
    assert not (male * (1 - bangs)).any()
    assert len(test) == 4
    held = {i for i in range(40) if i % 6 == 0} | {i for i in range(0, 40, 6) if i % 2}
    assert 36 - len(held) <= len(train) <= 40 - len(held)
    for options, sentence in [
        (Options(attributes=("Bang",)), "'celeba' has no attribute 'Bang': did you mean 'Bangs'"),
        (Options(held_out_pairs=(("not Youn", "Male"),)), "has no attribute 'Youn': did you mean 'Young'"),
        (Options(min_frequency=0.9), r"no attribute of 'celeba' is in 90% of the rows: .*the commonest has 50.0%"),
    ]:
        with pytest.raises(InputError, match=sentence):
            load("celeba", tmp_path, options=options)


def test_broken_lists_of_celeba_are_named(tmp_path, own_cache):
    made.write_celeba(tmp_path)
    path = tmp_path / "list_attr_celeba.txt"
    whole = path.read_text()
    lines = whole.splitlines()
    for text, sentence in [
        ("\n".join(lines[:-3]), "list_attr_celeba.txt is corrupt or truncated: it promises 40 images, 37 lines follow"),
        (whole[:-9], "list_attr_celeba.txt is corrupt or truncated: line 42 must be a file name and 8 values"),
        (whole.replace("-1", "-2", 1), "line 4 must be a file name and 8 values of 1 or -1"),
        ("", "its first line must be the number of images"),
        ("\n".join(lines[1:]), "its first line must be the number of images"),
    ]:
        path.write_text(text)
        with pytest.raises(InputError, match=sentence):
            load("celeba", tmp_path)
    path.write_text(whole)
    (tmp_path / "img_align_celeba" / "000040.jpg").unlink()
    with pytest.raises(InputError, match=r"1 images of 'celeba' are not in .*, the first of them 000040\.jpg"):
        load("celeba", tmp_path)
    identities = tmp_path / "identity_CelebA.txt"
    identities.write_text(identities.read_text()[:-30])
    with pytest.raises(InputError, match=r"identity_CelebA.txt is corrupt or truncated: .*(does not list|must be)"):
        load("celeba", tmp_path)
    identities.unlink()
    with pytest.raises(InputError, match=r"there is no file .*identity_CelebA\.txt: .* data.options.split_by = 'rows'"):
        load("celeba", tmp_path)
    (tmp_path / "list_eval_partition.txt").unlink()
    with pytest.raises(InputError, match=r"list_eval_partition\.txt: .* data.options.split_by = 'identity'"):
        load("celeba", tmp_path, options=Options(split_by="official"))


def test_what_else_lies_in_the_folder_of_celeba_is_left_alone(tmp_path, own_cache):
    """Files of all kinds beside the images, which lie in a folder, in an archive or flat."""
    plain = load("celeba", made.write_celeba(tmp_path / "plain"))
    for kind in ("folder", "archive", "flat"):
        where = made.write_celeba(tmp_path / kind, archive=kind == "archive")
        if kind == "flat":
            for file in (where / "img_align_celeba").iterdir():
                file.rename(where / file.name)
        (where / "notes").mkdir(exist_ok=True)
        (where / "notes" / "cover.png").write_bytes(made.picture_bytes(made.noise(3, 3)))
        (where / "a.csv.gz").write_bytes(gzip.compress(b"a,b"))
        (where / "z.zip").write_text("no archive")
        made.tar_of(where / "texts.tar.xz", {"b.txt": b"b"})
        assert torch.equal(load("celeba", where).x, plain.x)
    (where / "000001.jpg").unlink()
    with pytest.raises(InputError, match=r"1 images .* the first of them 000001\.jpg; archive .*a\.csv\.gz is corrupt"):
        load("celeba", where)
    faces = tmp_path / "archive" / "images.tar.xz"
    faces.write_bytes(faces.read_bytes()[:-8])  # all images can be read
    with pytest.raises(InputError, match=r"^archive .*images\.tar\.xz is corrupt, truncated"):
        load("celeba", tmp_path / "archive")


# Shoes.


def test_categories_become_binary_attributes():
    found = Attributes.of_categories({"a": ["x", "y;z", "", "NA", "x"], "b": ["Navy Blue", "-", "q", "q", "q"]})
    assert found.names == ("a_x", "a_y", "a_z", "b_", "b_Navy_Blue", "b_q")
    assert found.y[:, :3].tolist() == [[1, 0, 0], [0, 1, 1], [-1, -1, -1], [-1, -1, -1], [1, 0, 0]]
    assert found.frequency()[:3].tolist() == pytest.approx([2 / 3, 1 / 3, 1 / 3])
    assert found.complete.tolist() == [True, True, False, False, True]


@pytest.mark.parametrize("archive", [False, True])
def test_footwear_is_read(tmp_path, own_cache, archive):
    folder = made.write_footwear(tmp_path / "footwear", archive=archive)
    options = Options(min_frequency=0.1)
    train, test = (load("footwear", tmp_path, part, options=options) for part in ("train", "test"))
    assert train.x.shape == (32, 3, 64, 64)
    assert test.x.shape == (4, 3, 64, 64)
    assert train.labels.names == (
        *("gender_Men", "gender_Women", "articleType_Casual_Shoes", "articleType_Flats", "articleType_Heels"),
        *("baseColour_Black", "baseColour_White", "season_Fall", "season_Summer", "usage_Casual"),
    )
    assert (train.x[:, :, 0, 0] == 255).all(1).sum() >= 31  # white beside all but the square one
    assert not (train.x[:, :, 32, 32] == 255).all()
    kept = load("footwear", folder, options=Options(min_frequency=0.1, missing="keep"))
    assert len(kept) == 36
    season = kept.y[:, [k for k, n in enumerate(kept.labels.names) if n.startswith("season")]]
    assert ((season == MISSING).all(1) == (season == MISSING).any(1)).all()
    assert 0 < int((season == MISSING).all(1).sum()) <= 4
    assert (kept.y[:, 0] != MISSING).all()
    all_of_them = load("footwear", folder, options=Options(columns=("baseColour",)))
    assert all_of_them.labels.names == ("baseColour_Black", "baseColour_Teal", "baseColour_White")
    with pytest.raises(InputError, match=r"styles_footwear.csv has no column 'color': .*'baseColour'|known ones"):
        load("footwear", folder, options=Options(columns=("color",)))


def test_zappos_is_read(tmp_path, own_cache):
    made.write_zappos(tmp_path / "zappos")
    options = Options(min_frequency=0.1, image_size=(8, 8))
    train = load("zappos", tmp_path, options=options)
    assert train.x.shape == (31, 3, 8, 8)  # 5 of 40 rows lack a value, 4 are test rows
    names = train.labels.names
    assert {"Gender_Men", "Closure_Lace_up", "Material_Leather", "Material_Suede", "Material_Mesh"} <= set(names)
    assert not any(n.startswith(("HeelHeight", "Insole", "ToeStyle")) for n in names)
    leather, suede, mesh = (train.y[:, names.index(f"Material_{n}")] for n in ("Leather", "Suede", "Mesh"))
    assert torch.equal(leather, suede)
    assert torch.equal(leather, 1 - mesh)
    assert (train.x[:, :, 0] == 255).all()  # wider than high: white above and below


def test_broken_tables_of_shoes_are_named(tmp_path, own_cache):
    made.write_footwear(tmp_path)
    table = tmp_path / "styles_footwear.csv"
    whole = table.read_text()
    for text, sentence in [
        (whole[:-20], r"styles_footwear.csv is damaged or cut off: row 41 has \d cells for 9 names"),
        (whole.splitlines()[0], "has names and no rows"),
        ("", "is empty"),
        (whole.replace("id,", "number,", 1), "has no column 'id'"),
    ]:
        table.write_text(text)
        with pytest.raises(InputError, match=sentence):
            load("footwear", tmp_path)
    table.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not UTF-8 text"):
        load("footwear", tmp_path)


def test_images_may_lie_in_a_zip_archive(tmp_path, own_cache):
    folder = made.write_celeba(tmp_path)
    plain = load("celeba", folder)
    with zipfile.ZipFile(folder / "img_align_celeba.zip", "w") as archive:
        for file in sorted((folder / "img_align_celeba").iterdir()):
            archive.write(file, f"img_align_celeba/{file.name}")
    shutil.rmtree(folder / "img_align_celeba")
    assert torch.equal(load("celeba", folder).x, plain.x)
    content = bytearray((folder / "img_align_celeba.zip").read_bytes())
    content[len(content) // 3] ^= 0xFF
    (folder / "img_align_celeba.zip").write_bytes(content)
    with pytest.raises(InputError, match=r"img_align_celeba\.zip(:img_align_celeba/\d+\.jpg cannot|.*corrupt)"):
        load("celeba", folder)


# Your own images, arrays and tables.


def test_your_own_images(tmp_path, own_cache):
    for k, label in enumerate(("cat", "dog")):
        for i in range(10):
            path = tmp_path / "plain" / label / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(made.picture_bytes(made.noise(6, 8, 3, seed=100 * k + i)))
    options = Options(test_share=0.3, image_size=(4, 4), fit="crop")
    train, test = (load("images", tmp_path / "plain", part, options=options) for part in ("train", "test"))
    assert train.x.shape == (14, 3, 4, 4)
    assert torch.bincount(test.y[:, 0]).tolist() == [3, 3]
    assert test.labels == LabelSpace({"class": ["cat", "dog"]})
    (tmp_path / "split").mkdir()
    shutil.copytree(tmp_path / "plain", tmp_path / "split" / "train")
    with pytest.raises(InputError, match="found no images of 'images' under 'test/"):
        load("images", tmp_path / "split", "test")
    assert len(load("images", tmp_path / "split")) == 20
    with pytest.raises(InputError, match=r"needs a folder or archive of images, .*nowhere is not there"):
        load("images", tmp_path / "nowhere")


def test_your_own_arrays(tmp_path):
    x, y = made.noise(30, 5), np.arange(30) % 3
    np.savez(tmp_path / "a.npz", x=x, y=y)
    train, test = (load("npz", tmp_path / "a.npz", part) for part in ("train", "test"))
    assert (len(train), len(test)) == (27, 3)
    assert train.x.dtype == torch.uint8
    assert sorted([*train.y[:, 0].tolist(), *test.y[:, 0].tolist()]) == sorted(y.tolist())
    assert torch.equal(load("npz", tmp_path).x, train.x)  # the only one of the folder
    words = np.stack([np.array(["b", "a"])[y % 2], np.array(["u", "v"])[y // 2]], axis=1)
    np.savez(tmp_path / "b.npz", x=x.astype(np.float64), y=words, x_test=x[:4].astype(np.float16), y_test=words[:4])
    own = load("npz", tmp_path / "b.npz", "test")
    assert own.x.dtype == torch.float32
    assert own.labels == LabelSpace({"label_0": ["a", "b"], "label_1": ["u", "v"]})
    assert own.y.tolist() == [[1, 0], [0, 0], [1, 1], [1, 0]]
    assert len(load("npz", tmp_path / "b.npz")) == 30
    np.savez(tmp_path / "c.npz", x=x.astype(np.float32))
    assert len(load("npz", tmp_path / "c.npz").labels) == 0
    with pytest.raises(InputError, match=r"needs one .npz file, .* where 3 are: name the file itself"):
        load("npz", tmp_path)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"y": np.zeros(3)}, "holds y: call the array of inputs x"),
        ({"x": np.zeros((3, 2), np.int64), "y": np.arange(3)}, "holds int64: give floats, or pixels as uint8"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3)}, "holds float64: give whole numbers from 0, or words"),
        ({"x": np.zeros((3, 2)), "y": np.arange(4)}, "labels have 4 rows where x has 3"),
        ({"x": np.full((3, 2), np.nan), "y": np.arange(3)}, "not finite in row 0"),
        ({"x": np.zeros((3, 2)), "y": np.zeros((3, 2, 2), np.int64)}, r"must be \[n\] or \[n, L\]"),
        ({"x": np.zeros((3, 2)), "x_test": np.zeros((1, 2)), "y": np.arange(3)}, "has x_test and no y_test"),
        ({"x": np.array([[None]])}, "cannot be read as an array"),
        ({"x": np.float32(3.0)}, "is a single number"),
        ({"x": np.zeros((3, 2)), "y": np.array([0, 1, 10**8])}, "number the classes from 0 without gaps"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path, arrays, sentence):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=rf"a\.npz .*{sentence}"):
        load("npz", tmp_path / "a.npz", "test" if "x_test" in arrays else "train")


def test_a_damaged_npz_file_is_named(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=made.noise(30, 5), y=np.arange(30))
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"hello", bytes([*whole[:90], whole[90] ^ 1, *whole[91:]])):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"a\.npz cannot be read as an array: it holds no numbers, or is damaged$"):
            load("npz", path)


def test_your_own_table(tmp_path):
    path = tmp_path / "t.csv"
    rows = "\n".join(f"{i / 2},{('no', 'yes')[i % 2]},{-i}" for i in range(20))
    path.write_text(f"a,good,b\n{rows}\n")
    data = load("csv", path, options=Options(label="good", test_share=0.5))
    assert data.x.shape == (10, 2)
    assert torch.equal(data.x[:, 1], -2 * data.x[:, 0])
    assert torch.equal(data.y[:, 0], (2 * data.x[:, 0]).long() % 2)
    assert data.labels == LabelSpace({"good": ["no", "yes"]})
    (tmp_path / "parts").mkdir()
    for part, n in (("train", 6), ("test", 4)):
        rows = "\n".join(f"{i},{i},{10 - i % 3}" for i in range(n))
        (tmp_path / "parts" / f"{part}.csv").write_text(f"a,b,c\n{rows}")
    test = load("csv", tmp_path / "parts", "test")
    assert test.labels == LabelSpace({"c": ["8", "9", "10"]})  # in the order of numbers
    assert test.y[:, 0].tolist() == [2, 1, 0, 2]
    path.write_text("a,c\n1,x\n2,\n3,y\n4,y\n5,x\n6,NA\n7,y\n8,x\n")
    assert (load("csv", path, options=Options(test_share=0.4)).y == MISSING).sum() == 1


@pytest.mark.parametrize("lone", ["", "rare"])
def test_one_row_without_a_label_or_alone_in_its_class_is_no_fault(tmp_path, lone):
    labels = [lone, *(("no", "yes")[i % 2] for i in range(60))]
    (tmp_path / "t.csv").write_text("\n".join(["a,good", *(f"{i},{label}" for i, label in enumerate(labels))]))
    codes = {"": MISSING, "no": 0, "yes": 1, "rare": 2}
    np.savez(tmp_path / "t.npz", x=np.arange(61.0), y=np.array([codes[label] for label in labels]))
    for name in ("csv", "npz"):
        place = tmp_path / f"t.{name}"
        train, test = (load(name, place, part) for part in ("train", "test"))
        assert (len(train), len(test)) == (54, 7)
        assert sorted([*train.x[:, 0].tolist(), *test.x[:, 0].tolist()]) == list(range(61))
        recipe = parse({"name": "a", "data": {"name": name, "transform": "none"}}, "a.toml")
        data = data_of(recipe, place)
        assert len(data.x) + len(data.x_held) == 54


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "a,c\n1,x\nz,y\n",
            "has 'z' in row 3 of column 'a', where a finite number should be: leave out a column of words, or train "
            "JointEnergyClassifier",
        ),
        (
            "a,c\n1,x\n,y\n",
            "has '' in row 3 of column 'a', .*: fill or leave out such rows, or train by jointenergy.fit",
        ),
        ("a,c\n1,x\n1e300,y\n", "has '1e300' in row 3 of column 'a', .*: correct or leave out such rows"),
        ("a,c\n1,x\n2\n", "row 3 has 1 cells for 2 names"),
        ("a,a,c\n1,2,x\n", r"names a column twice: 'a'"),
        ("c\n1\n2\n", "has no column beside the label 'c'"),
    ],
)
def test_tables_that_do_not_fit_are_named(tmp_path, text, sentence):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"t\.csv .*{sentence}"):
        load("csv", path)


@pytest.mark.parametrize(("n", "values"), [(40, "0.5"), (200, "1")])
def test_a_last_column_of_measurements_is_no_label(tmp_path, n, values):
    """Each value would become a class: fractions that differ in most rows, or more than 50 whole numbers."""
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "".join(f"{i},{float(values) * (i % 60):g}\n" for i in range(n)))
    with pytest.raises(
        InputError, match=r"the last column 'b' .* different values in .* rows.*`jointenergy init --label"
    ):
        load("csv", path)
    assert load("csv", path, options=Options(label="b")).labels.cardinalities == (min(n, 60),)


def test_a_label_of_a_few_fractions_is_a_label(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,dose\n" + "".join(f"{i},{(0.5, 1.0, 2.5)[i % 3]}\n" for i in range(30)))
    assert load("csv", path).labels == LabelSpace({"dose": ["0.5", "1.0", "2.5"]})


# Options.


def test_options_that_a_set_does_not_take_are_refused():
    with pytest.raises(InputError, match="'digits' does not know the option 'image_size': it takes no options"):
        load("digits", options=Options(image_size=(4, 4)))
    with pytest.raises(InputError, match="'npz' does not know the option 'label': it takes center, scale, test_share"):
        load("npz", options=Options(label="a"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"crop": 0.0}, "data.options: crop is the share"),
        ({"image_size": [0, 4]}, r"data.options: image_size is \(height, width\)"),
        ({"min_frequency": 1.5}, "data.options: min_frequency is a share"),
        ({"test_share": 1.0}, "data.options: test_share is a share"),
        ({"missing": "guess"}, "'data.options.missing' got 'guess'"),
        ({"atributes": []}, "no key 'data.options.atributes': did you mean 'attributes'"),
    ],
)
def test_options_in_a_recipe_are_checked(options, sentence):
    with pytest.raises(InputError, match=sentence):
        parse({"name": "a", "data": {"name": "celeba", "options": options}}, "a.toml")


# The real data.


@pytest.mark.slow
def test_the_real_celeba(data_dir):
    """Field notes: 13 % gives the paper's 23 attributes, and its 11 pairs take out 2,038 rows."""
    options = Options(min_frequency=0.13)
    train, test = (load("celeba", data_dir, part, options=options) for part in ("train", "test"))
    assert len(train.labels) == 23
    assert len(train) + len(test) == 10_000
    assert len(test) == pytest.approx(1000, abs=30)
    novel = Options(min_frequency=0.13, held_out_pairs=NOVEL_PAIRS)
    without = load("celeba", data_dir, options=novel)
    whole = Options(held_out_pairs=NOVEL_PAIRS, split_by="rows", test_share=1e-5)
    assert len(load("celeba", data_dir, options=whole)) == 10_000 - 2_038
    assert len(without) < len(train)
    assert train.x.shape[1:] == (3, 64, 64)


@pytest.mark.slow
def test_the_real_footwear(data_dir):
    """Field notes: 10 % gives 13 attributes."""
    options = Options(min_frequency=0.1)
    train, test = (load("footwear", data_dir, part, options=options) for part in ("train", "test"))
    assert len(train.labels) == 13
    assert len(train) + len(test) == 9_200  # 22 of 9,222 rows lack a value
    kept = Options(min_frequency=0.1, missing="keep")
    assert sum(len(load("footwear", data_dir, part, options=kept)) for part in ("train", "test")) == 9_222


@pytest.mark.slow
def test_the_real_svhn_and_cifar100_by_name(data_dir):
    assert load("svhn", data_dir, "test").x.shape == (10_000, 3, 32, 32)
    assert torch.bincount(load("cifar100", data_dir, "test").y[:, 0]).tolist() == [100] * 100
