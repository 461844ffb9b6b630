"""Inception of 2015-12-05: its weights from every kind of file, what it is shown, its cache, and published values."""

from __future__ import annotations

import io
import math
import warnings
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.kid import KernelInceptionDistance

import jointenergy
from jointenergy import InputError
from jointenergy.data import View, cache, load
from jointenergy.data.torchscript import is_torchscript, torchscript_tensors
from jointenergy.metrics.sample_quality import frechet_distance
from jointenergy.networks.inception import N_CLASSES, N_FEATURES, NAMES_OF_PORT, Inception, is_inception, resized
from jointenergy.report import extractors, samples
from jointenergy.report.extractors import tensors_of
from jointenergy.report.sections import Extractor


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    """Weights under the names of the graph, drawn so that features neither vanish nor explode, with an output layer."""
    generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        shapes = {name: t.shape for name, t in Inception(head=True).state_dict().items()}
    found = {}
    for name, shape in shapes.items():
        drawn = torch.randn(shape, generator=generator)
        scale = math.sqrt(2 / math.prod(shape[1:])) if name.endswith("weight") else 0.1
        found[name] = drawn.abs() + 0.5 if name.endswith("var") else drawn * scale
    return found


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randint(0, 256, (2, 3, 32, 32), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


@pytest.fixture
def unchecked(monkeypatch):
    """Weights need not be the published ones."""
    monkeypatch.setattr(extractors, "check_published", lambda network, path: None)


def as_port(weights):
    """As the common PyTorch port has them: with scales that are 1, and counts of batches."""
    names = {graph: port for port, graph in NAMES_OF_PORT.items() if not port.startswith("output")}
    found = {names[name]: tensor for name, tensor in weights.items()}
    for name in [n for n in found if n.endswith("bn.bias")]:
        found[name.replace("bias", "weight")] = torch.ones_like(found[name])
        found[name.replace("bias", "num_batches_tracked")] = torch.tensor(0)
    return found


def as_script(weights):
    return {f"output.{n[5:]}" if n.startswith("head.") else f"layers.{n}": t for n, t in weights.items()}


def script_module(tensors):
    """A module whose tensors have these dotted names."""
    root = nn.Module()
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        module = root
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, nn.Module())
            module = getattr(module, part)
        module.register_buffer(last, tensor)
    return root


def run_of(event_shape=(3, 32, 32), bounds=(-1.0, 1.0)):
    network = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(event_shape), 3))
    return jointenergy.wrap(network, 3, bounds=bounds, event_shape=event_shape)


class TestNetwork:
    def test_every_scheme_of_names_gives_the_same_features(self, weights, images, untouched_random_state):
        with untouched_random_state():
            wanted = Inception.of_weights(weights)(images)
        assert wanted.shape == (2, N_FEATURES)
        assert 1e-3 < float(wanted.std()) < 1e3
        for named in (as_port(weights), as_script(weights)):
            assert is_inception(named)
            network = Inception.of_weights(named)
            assert all(torch.equal(network.state_dict()[name], tensor) for name, tensor in weights.items())
        assert torch.equal(network(images), wanted)

    @pytest.mark.parametrize(
        ("port", "graph"),
        [
            # Layers of equal shapes, which a shape would not tell apart.
            ("Mixed_6c.branch7x7dbl_4.conv.weight", "mixed_5.tower_1.conv_3.weight"),
            ("Mixed_6d.branch7x7_2.bn.running_var", "mixed_6.tower.conv_1.var"),
            ("Mixed_5d.branch3x3dbl_3.bn.bias", "mixed_2.tower_1.conv_2.beta"),
            ("Mixed_7b.branch3x3_2b.conv.weight", "mixed_9.tower_mixed_conv_1.weight"),
            ("Mixed_7c.branch3x3dbl_3a.bn.running_mean", "mixed_10.tower_1_mixed_conv.mean"),
            ("Mixed_7a.branch7x7x3_4.conv.weight", "mixed_8.tower_1.conv_3.weight"),
            ("Mixed_6a.branch3x3.conv.weight", "mixed_3.conv.weight"),
            ("Conv2d_4a_3x3.bn.running_mean", "conv_4.mean"),
            ("fc.bias", "head.bias"),
        ],
    )
    def test_names_of_the_port(self, port, graph):
        assert NAMES_OF_PORT[port] == graph

    def test_every_layer_has_a_name_in_the_port(self, weights):
        assert set(NAMES_OF_PORT.values()) == set(weights)
        assert len(weights) == 376 + 2

    def test_features_of_inner_layers(self, weights, images):
        network = Inception.of_weights(weights)
        for n in (64, 192, 768):
            assert network(images[:1], n).shape == (1, n)

    def test_other_weights_are_one_sentence(self, weights):
        port = as_port(weights)
        for tensors, sentence in (
            ({k: v for k, v in weights.items() if k != "mixed_4.tower.conv_1.beta"}, "lack mixed_4.tower.conv_1.beta"),
            ({**weights, "mixed_4.conv.mean": torch.zeros(3)}, r"mixed_4.conv.mean of Inception has shape \(192,\)"),
            ({**weights, "conv.mean": torch.zeros(32, dtype=torch.int64)}, "got torch.int64"),
            ({**weights, "AuxLogits.fc.weight": torch.zeros(2)}, "no tensor AuxLogits.fc.weight"),
            ({**port, "Conv2d_1a_3x3.bn.weight": torch.full((32,), 2.0)}, "Conv2d_1a_3x3.bn.weight is not 1"),
            (
                {**port, "fc.weight": torch.zeros(1000, N_FEATURES)},
                r"head.weight of Inception has shape \(1008, 2048\)",
            ),
        ):
            with pytest.raises(InputError, match=sentence):
                Inception.of_weights(tensors)

    def test_what_is_no_byte_image_is_refused(self, weights, images):
        network = Inception.of_weights(weights)
        for bad in (images.float(), images[:, :1], images[0]):
            with pytest.raises(InputError, match="takes uint8 images"):
                network(bad)

    def test_the_resize_has_no_half_pixels(self):
        image = torch.tensor([[[[0.0, 4.0], [8.0, 12.0]]]])
        line = torch.tensor([0.0, 0.5, 1.0, 1.0])  # places 0, .5, 1 and 1.5 of two pixels, the last beyond the end
        assert torch.equal(resized(image, 4)[0, 0], 8 * line[:, None] + 4 * line)
        centered = nn.functional.interpolate(image, size=4, mode="bilinear", align_corners=False)
        assert not torch.allclose(resized(image, 4), centered)
        assert torch.equal(
            resized(torch.arange(16.0).view(1, 1, 4, 4), 2)[0, 0], torch.tensor([[0.0, 2.0], [8.0, 10.0]])
        )


class TestFiles:
    @pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
    def test_every_kind_of_file_is_the_same_extractor(self, weights, images, tmp_path, unchecked):
        torch.save(as_port(weights), tmp_path / "port.pth")
        trunk = {name: t.half() if name.endswith("weight") else t for name, t in weights.items() if "head" not in name}
        save_file(trunk, tmp_path / "ours.safetensors")
        torch.jit.script(script_module(as_script(weights))).save(str(tmp_path / "script.pt"))
        x = images[:1].float() / 255 * 2 - 1
        wanted = Inception.of_weights(weights)(images[:1])
        for name, has_logits, tolerance in (
            ("port.pth", True, 1e-5),
            ("script.pt", True, 1e-5),
            ("ours.safetensors", False, 1e-2),
        ):
            found = extractors.load(tmp_path / name, run_of())
            assert found.name == "inception"
            assert "299 x 299" in found.protocol
            features = found.features(x)
            assert torch.allclose(features, wanted, rtol=tolerance, atol=tolerance * float(wanted.max()))
            assert (found.logits is not None) == has_logits
            if found.logits is not None:
                head = wanted @ weights["head.weight"].T + weights["head.bias"]
                assert found.logits(x).shape == (1, N_CLASSES)
                assert torch.allclose(found.logits(x), head, rtol=1e-3, atol=1e-3)

    def test_weights_that_fit_and_are_not_the_published_ones_are_refused(self, weights, tmp_path):
        save_file(weights, tmp_path / "mine.safetensors")
        with pytest.raises(InputError, match=r"mine.safetensors is an Inception-v3 with other weights"):
            extractors.load(tmp_path / "mine.safetensors", run_of())
        weights = {**weights, "conv.beta": torch.full((32,), math.nan)}
        with pytest.raises(InputError, match="other weights"):
            extractors.check_published(Inception.of_weights(weights), tmp_path)

    def test_files_that_lack_something_are_named(self, weights, tmp_path):
        save_file({"mixed_10.conv.weight": weights["mixed_10.conv.weight"]}, tmp_path / "part.safetensors")
        with pytest.raises(InputError, match=r"part.safetensors: the weights of Inception lack conv.weight"):
            extractors.load(tmp_path / "part.safetensors", run_of())

    def test_rows_that_are_no_images_are_refused_at_once(self, weights, tmp_path, unchecked):
        save_file(weights, tmp_path / "mine.safetensors")
        with pytest.raises(InputError, match=r"needs images of 1 or 3 channels, but x has rows of shape \(5,\)"):
            extractors.load(tmp_path / "mine.safetensors", run_of((5,)))

    def test_weights_are_sought_in_the_data_folder_and_in_a_package(self, tmp_path, monkeypatch):
        data, package = tmp_path / "data", tmp_path / "site" / extractors.PACKAGE
        monkeypatch.setenv("JOINTENERGY_DATA", str(data))
        monkeypatch.setattr(extractors, "PACKAGE", "no_such_package")
        with pytest.raises(InputError, match=r"there are no Inception weights.*--extractor FILE.*jointenergy\[fid\]"):
            extractors.find_inception(None)
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise SystemExit('the package was imported')")
        (package / "default_1.pt").touch()
        monkeypatch.setattr(extractors, "PACKAGE", package.name)
        monkeypatch.syspath_prepend(str(package.parent))
        assert extractors.find_inception(None) == package / "default_1.pt"
        (data / "weights").mkdir(parents=True)
        for name in ("inception-2015-12-05-pool3-fp16.safetensors", "pt_inception-2015-12-05-6726825d.pth"):
            (data / "weights" / name).touch()
            assert extractors.find_inception(None).name == name  # the later has an output layer
        other = tmp_path / "other" / "weights"
        other.mkdir(parents=True)
        (other / "inception-2015-12-05.pt").touch()
        assert extractors.find_inception(other.parent) == other / "inception-2015-12-05.pt"


class Several(nn.Module):
    """Tensors of several kinds, some of which share their storage."""

    def __init__(self):
        super().__init__()
        base = torch.arange(12.0).view(3, 4)
        self.register_buffer("turned", base.T)
        self.register_buffer("part", base[1:, 2:])
        self.register_buffer("short", torch.tensor([1.5, -2.0], dtype=torch.float16))
        self.register_buffer("empty", torch.zeros(0, 3))
        self.weight = nn.Parameter(torch.tensor([3.0]))
        self.sizes = [1, 2]
        self.inner = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x) + float(self.sizes[0])
        return y


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
class TestTorchScript:
    @pytest.fixture
    def archive(self, tmp_path):
        path = tmp_path / "module.pt"
        torch.jit.script(Several()).save(str(path))
        return path

    def changed(self, path, **members):
        """The archive with other contents of some members."""
        with zipfile.ZipFile(path) as old:
            contents = {name: old.read(name) for name in old.namelist()}
        with zipfile.ZipFile(path, "w") as new:
            for name, content in contents.items():
                new.writestr(name, members.get(name.partition("/")[2].replace("/", "_").replace(".", "_"), content))
        return path

    def test_tensors_are_those_of_torch(self, archive):
        assert is_torchscript(archive)
        wanted = torch.jit.load(archive).state_dict()
        found = tensors_of(archive)
        assert found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name], tensor)

    def test_plain_weights_are_no_script(self, tmp_path):
        torch.save({"w": torch.ones(1)}, tmp_path / "plain.pt")
        assert not is_torchscript(tmp_path / "plain.pt")
        assert tensors_of(tmp_path / "plain.pt")["w"].item() == 1

    def test_code_is_never_looked_at(self, archive):
        with zipfile.ZipFile(archive) as file:
            (code,) = (n for n in file.namelist() if n.endswith(".py") and "inner" in file.read(n).decode())
        key = code.partition("/")[2].replace("/", "_").replace(".", "_")
        assert "weight" in torchscript_tensors(self.changed(archive, **{key: b"no program at all"}))

    @pytest.mark.parametrize(
        ("pickle", "sentence"),
        [
            (b"cos\nsystem\n(X\x04\x00\x00\x00true\x85R.", "refused: it holds the name 'os.system'"),
            (b"ctorch._utils\n_rebuild_tensor_v2\n)\x81.", "refused: it holds an object of a foreign class"),
            (b"c__torch__.a\nB\n)R.", "is not called for a tensor"),
            (b"", "corrupt"),
            (b"\x80\x02}", "corrupt"),
        ],
    )
    def test_a_hostile_or_broken_pickle_is_one_sentence(self, archive, pickle, sentence):
        with pytest.raises(InputError, match=sentence):
            torchscript_tensors(self.changed(archive, data_pkl=pickle))

    def test_tensors_that_are_cut_short_are_one_sentence(self, archive):
        with pytest.raises(InputError, match="has 5 bytes where"):
            torchscript_tensors(self.changed(archive, data_0=b"12345"))
        archive.write_bytes(archive.read_bytes()[:2000])
        with pytest.raises(InputError, match="corrupt, truncated or no TorchScript archive"):
            torchscript_tensors(archive)


class TestPixels:
    def test_what_is_outside_is_clipped_and_what_is_between_is_rounded(self):
        x = torch.tensor([-3.0, -1.0, 0.0, 0.4 / 127.5 - 1, 0.6 / 127.5 - 1, 1.0, 5.0])
        assert extractors.pixels_of(x, (-1, 1)).tolist() == [0, 0, 128, 0, 1, 255, 255]

    @pytest.mark.parametrize("view", [View(-1, 1), View(0, 1), View(-14, 14, 256)])
    def test_bytes_come_back_as_they_were(self, view):
        pixels = torch.arange(256, dtype=torch.uint8)[:, None]
        x = view.of_pixels(pixels, generator=torch.Generator().manual_seed(0))
        assert torch.equal(extractors.pixels_of(x, view), pixels)

    def test_the_network_sees_bytes_and_grey_as_three_channels(self, weights):
        network = Inception.of_weights(weights)
        x = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0))
        asked = extractors.InceptionInput(network, (0.0, 1.0))
        pixels = (x * 255).round().to(torch.uint8)[:, None].expand(-1, 3, -1, -1)
        wanted = network(pixels)
        before = torch.backends.cudnn.allow_tf32
        for rows in (x, x[:, None], x.flatten(1)):
            assert torch.allclose(asked(rows), wanted, rtol=1e-4, atol=1e-4)
        assert torch.backends.cudnn.allow_tf32 == before
        with pytest.raises(InputError, match="needs images"):
            asked(torch.zeros(2, 5))


class Counted(nn.Module):
    """Features that are counted as they are extracted."""

    def __init__(self):
        super().__init__()
        self.weight, self.rows = nn.Parameter(torch.ones(3)), 0

    def forward(self, x):
        self.rows += len(x)
        return x[:, :3] * self.weight


class TestCache:
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
        return tmp_path / "cache"

    @pytest.fixture
    def extractor(self):
        return Extractor("inception", Counted().requires_grad_(False), costly=True)

    def test_features_of_real_rows_are_extracted_once(self, extractor, folder):
        run, x = run_of((5,)), torch.arange(20.0).view(4, 5)
        for _ in range(3):
            found = samples.features_of_real(run, extractor, x)
            assert torch.equal(found, x[:, :3])
        assert extractor.features.rows == 4
        assert [p.suffix for p in folder.iterdir()] == [".npz"]  # and nothing half-written beside it

    def test_whatever_they_depend_on_is_in_the_key(self, extractor):
        run, x = run_of((5,)), torch.arange(20.0).view(4, 5)
        samples.features_of_real(run, extractor, x)
        network = Counted().requires_grad_(False)
        network.weight.mul_(2)
        heavier = Extractor("inception", network, costly=True)
        for n, (a_run, an_extractor, rows) in enumerate(
            (
                (run, extractor, x + 1),
                (run, extractor, x[:3]),
                (run_of((5,), (0.0, 1.0)), extractor, x),
                (run, replace(extractor, protocol="another"), x),
            )
        ):
            before = extractor.features.rows
            samples.features_of_real(a_run, an_extractor, rows)
            assert extractor.features.rows == before + len(rows), n
        assert torch.equal(samples.features_of_real(run, heavier, x), 2 * x[:, :3])

    def test_a_damaged_entry_is_made_anew(self, extractor, folder):
        run, x = run_of((5,)), torch.arange(20.0).view(4, 5)
        samples.features_of_real(run, extractor, x)
        (path,) = folder.iterdir()
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        other = io.BytesIO()
        np.savez(other, features=np.zeros((2, 3), np.float32))
        for content in (b"", whole[: len(whole) // 2], bytes(flipped), other.getvalue()):
            path.write_bytes(content)
            before = extractor.features.rows
            assert torch.equal(samples.features_of_real(run, extractor, x), x[:, :3])
            assert extractor.features.rows == before + 4
            assert path.read_bytes() == whole

    def test_others_leave_no_files(self, folder):
        extractor = Extractor("own-features", Counted())
        samples.features_of_real(run_of((5,)), extractor, torch.zeros(4, 5))
        assert not folder.exists()


# Published values.


class At(nn.Module):
    """One layer of the network, as torchmetrics asks for it."""

    def __init__(self, network, n):
        super().__init__()
        self.network, self.n, self.num_features = network, n, n

    @torch.no_grad()
    def forward(self, images):
        return torch.cat([self.network(piece, self.n) for piece in images.split(10)])


@pytest.fixture(scope="module")
def published():
    try:
        path = extractors.find_inception(None)
    except InputError as error:
        pytest.skip(f"no real data: {error}")
    tensors = tensors_of(path)
    network = Inception.of_weights(tensors)
    extractors.check_published(network, path)
    return network, next(t.dtype for name, t in tensors.items() if name.endswith("conv.weight"))


def examples(metric, network):
    """The images of torchmetrics' examples, drawn as its documentation does; then its figures."""
    trunk = sum(p.numel() for name, p in network.named_parameters() if not name.startswith("head"))
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.manual_seed(42)
        torch.rand(
            trunk + N_CLASSES * (N_FEATURES + 1)
        )  # its own network draws as many starting weights before the images
        real = torch.randint(0, 200, (100, 3, 299, 299), dtype=torch.uint8)
        fake = torch.randint(100, 255, (100, 3, 299, 299), dtype=torch.uint8)
        metric.update(real, real=True)
        metric.update(fake, real=False)
        return metric.compute()


@pytest.mark.slow
def test_the_fid_of_torchmetrics_documentation(published):
    network, dtype = published
    found = float(examples(FrechetInceptionDistance(At(network, 64)), network))
    # To all printed digits with weights in float32; those in float16 move the fourth.
    assert found == pytest.approx(12.6388, abs=5e-5 if dtype == torch.float32 else 1.5e-3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_kid_of_torchmetrics_documentation(published):
    network, _ = published
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        metric = KernelInceptionDistance(At(network, 2048), subset_size=50)
    mean, spread = examples(metric, network)
    assert round(float(mean), 4) == 0.0312
    assert round(float(spread), 4) == 0.0025


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.timeout(900)
def test_the_fid_of_cifar10_training_and_test_images(data_dir, published):
    network = extractors.InceptionInput(published[0].cuda(), (0.0, 255.0))
    train, test = (load("cifar10", data_dir, split).x for split in ("train", "test"))
    found = frechet_distance(*(network(x.float().cuda()) for x in (train, test)))
    assert found == pytest.approx(3.15, abs=0.02)
