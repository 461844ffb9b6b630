"""report: networks whose features compare samples with data: a run's own, a baseline's, weights from a file."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from jointenergy.data import View
from jointenergy.errors import InputError
from jointenergy.models import LogitModel
from jointenergy.networks.cifar_resnet import MEAN, STD, CifarResNet
from jointenergy.networks.inception import is_inception
from jointenergy.report import inception
from jointenergy.report.sections import Extractor, Subject
from jointenergy.report.weight_files import tensors_of
from jointenergy.runs import Run
from jointenergy.runs.film import as_images
from jointenergy.runs.loading import open_run

REMEDY = "give inception, a run folder, an exported run, or a file of weights"


class Penultimate(nn.Module):
    """What the last linear layer of a network sees: its features, whatever the network is made of."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        seen: list[Tensor] = []
        layers = [m for m in self.network.modules() if isinstance(m, nn.Linear)]
        # The last that is called, which need not be the last that was made.
        hooks = [layer.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for layer in layers]
        try:
            self.network(x)
        finally:
            for hook in hooks:
                hook.remove()
        if not seen:
            raise InputError("the network has no linear layer, whose input would be its features")
        return seen[-1].flatten(1)


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
    """A CIFAR ResNet asked with images between 0 and 1; grey ones are taken as colors that are all alike."""

    def __init__(self, network: CifarResNet, *, features: bool) -> None:
        super().__init__()
        self.network, self.wants_features = network, features

    def forward(self, x: Tensor) -> Tensor:
        images = as_images(x)
        if images is None:
            raise InputError(f"the CIFAR ResNet takes images, and x has rows of shape {tuple(x.shape[1:])}")
        mean, std = (torch.tensor(v, dtype=x.dtype, device=x.device)[:, None, None] for v in (MEAN, STD))
        images = (images.expand(-1, 3, -1, -1) - mean) / std
        value: Tensor = self.network.features(images) if self.wants_features else self.network(images)
        return value


def load(path: Path | str, run: Run) -> Extractor:
    """The extractor for x as `run` takes it: `inception`, a run folder, an exported run, or a file of weights.

    Weights are of Inception, which keeps its name, or of a CIFAR ResNet, which is called after the file. They are read
    from safetensors, a state dict of torch (.th, .pt, .pth) or TorchScript; a file is never allowed to run code.
    """
    if str(path) == inception.NAME:
        return inception.load(run)
    path, device = Path(path), run.origin.device
    if not path.exists():
        raise InputError(f"there is no extractor {path}: {REMEDY}")
    if path.is_dir() or (path.suffix == ".safetensors" and _is_run(path)):
        other = open_run(path, device=str(device))
        if other.event_shape != run.event_shape:
            raise InputError(
                f"the extractor {path} takes x of shape {other.event_shape}, and the run has {run.event_shape}: give "
                "one of the same shape"
            )
        return of_run(other, _name(path), run.bounds)
    tensors = tensors_of(path)
    if is_inception(tensors):
        return inception.of_tensors(tensors, run, path)
    network = CifarResNet.of_weights(tensors).to(device)
    features, logits = (
        Rescaled(CifarInput(network, features=wanted), run.bounds, (0.0, 1.0)) for wanted in (True, False)
    )
    features(torch.zeros(1, *run.event_shape))  # x that is no image is refused here, not after all chains have run
    return Extractor(_name(path), features, logits)


def check_there(extractor: Path | str, data_folder: Path | None) -> None:
    """One sentence now, where an extractor that is needed later is not there."""
    if str(extractor) == inception.NAME:
        inception.find(data_folder)
    elif not Path(extractor).exists():
        raise InputError(f"there is no extractor {extractor}: {REMEDY}")


def of_run(run: Run, name: str, bounds: tuple[float, float]) -> Extractor:
    """The features of a run's classifier, for x between `bounds`, or one sentence where it is none."""
    model = run.model
    if not isinstance(model, LogitModel):
        raise InputError(
            f"{run.origin.name} is no classifier of x alone, whose last layer would see features: give an extractor"
        )
    network = model.network
    if not any(isinstance(m, nn.Linear) for m in network.modules()):
        raise InputError(f"the network of {run.origin.name} has no linear layer, whose input would be its features")
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
            reasons.append(f"{name} are not at hand: {error}.")
            continue
        if name == "own-features":
            reasons.append(
                "No extractor and no baseline was given, so samples are compared by features of the very network that "
                "made them, called own-features: it is blind to what it has not learned. Give --against or --extractor."
            )
        return found, tuple(reasons)
    reasons.append("Samples are compared by their plain values, called pixels: differences are those of single values.")
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
        raise InputError(f"{path} is no safetensors file, or is damaged: {error}") from None
