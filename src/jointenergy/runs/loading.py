"""runs: `load` opens a run folder or an exported file, `wrap` takes a classifier that was trained elsewhere."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from jointenergy.data.augmentations import augmentation
from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.inference import Aids
from jointenergy.inputs import is_number
from jointenergy.kernels import Langevin
from jointenergy.labels import LabelSpace
from jointenergy.models import Box, JointModel, LogitModel
from jointenergy.models.logits import SingleLogit
from jointenergy.recipes import run_folder
from jointenergy.recipes.build import kernel_of, x_start_of
from jointenergy.recipes.data import data_of, view_of
from jointenergy.recipes.networks import model_of
from jointenergy.recipes.schema import Recipe, read
from jointenergy.runs import portable
from jointenergy.runs.origin import Origin, Sampling
from jointenergy.runs.run import Run
from jointenergy.runs.thresholds import Thresholds
from jointenergy.training import checkpoints
from jointenergy.training.checkpoints import Checkpoint
from jointenergy.training.distributed import device_of
from jointenergy.training.state import under


def load(path: Path | str, *, data: Path | str | None = None, device: str = "cpu") -> Run:
    """A trained run, from its folder or from an exported file.

    Its weights are the averaged ones of the best healthy checkpoint; where no checkpoint was healthy those of the
    newest, with a warning. `data` is the folder of the data, should it have moved; only what needs data reads them.
    """
    run = open_run(path, data=data, device=device)
    for note in run.notes:
        warnings.warn(note, stacklevel=2)
    return run


def open_run(path: Path | str, *, data: Path | str | None = None, device: str = "cpu") -> Run:
    """`load`, its warnings left in `notes`."""
    path, where = Path(path), device_of(device)
    folder = None if data is None else Path(data)
    if path.is_dir():
        return _from_folder(path, folder, where)
    if path.is_file():
        return _from_file(path, folder, where)
    raise InputError(f"there is no run folder and no exported file {path}: train one with `jointenergy train`")


def _from_folder(folder: Path, data_folder: Path | None, device: torch.device) -> Run:
    known = run_folder.about(folder)
    recipe = read(folder / "recipe.toml")
    if data_folder is None and known["data"] is not None and Path(known["data"]).exists():
        data_folder = Path(known["data"])
    labels, event_shape = _labels_and_shape(known, recipe, data_folder)
    path, checkpoint, notes = _best_checkpoint(folder)
    model = _model(recipe, labels, event_shape, under(checkpoint.tensors, "ema/"), device)
    origin = Origin.of_recipe(
        f"the run {folder}", labels, event_shape, device, recipe, known["seed"], data_folder, path
    )
    weights = json.loads((path / checkpoints.SUMS).read_text())[checkpoints.TENSORS]
    return _run_of(model, origin, recipe, Thresholds(folder, weights), [*notes, *known["warnings"]])


def _from_file(path: Path, data_folder: Path | None, device: torch.device) -> Run:
    found = portable.read(path)
    model = _model(found.recipe, found.labels, found.event_shape, found.tensors, device)
    origin = Origin.of_recipe(
        f"the file {path}", found.labels, found.event_shape, device, found.recipe, found.seed, data_folder
    )
    return _run_of(model, origin, found.recipe, Thresholds(known=found.thresholds), found.notes)


def _run_of(model: JointModel, origin: Origin, recipe: Recipe, thresholds: Thresholds, notes: Sequence[str]) -> Run:
    chain, bounds = recipe.chain, view_of(recipe.data)
    every = chain.augment_every if chain.augment else 0
    aids = Aids(augmentations=augmentation(chain.augment, bounds) if every else (), augment_every=every)
    sampling = Sampling.of(kernel_of(recipe), chain.sampling_steps, aids, x_start_of(recipe))
    return Run(model, origin, sampling, bounds, thresholds, notes)


def _labels_and_shape(
    known: Mapping[str, Any], recipe: Recipe, data_folder: Path | None
) -> tuple[LabelSpace, tuple[int, ...]]:
    """Labels and shape of x as the run noted them; an older run did not, and its data are asked."""
    if "labels" in known and "event_shape" in known:
        return LabelSpace(known["labels"]), tuple(known["event_shape"])
    data = data_of(recipe, data_folder)
    return data.labels, data.event_shape


def _best_checkpoint(folder: Path) -> tuple[Path, Checkpoint, list[str]]:
    """The best healthy checkpoint, or the newest that is whole and a sentence that says so."""
    where, notes = folder / "checkpoints", []
    best = checkpoints.best(where)
    if best is None:
        notes.append(f"no checkpoint of {folder} was found healthy")
    else:
        try:
            return best, checkpoints.load(best), []
        except InputError as error:
            notes.append(f"the best weights cannot be read ({error})")
    newest, _ = checkpoints.newest(where)
    if newest is None:
        raise InputError(f"{folder} has no checkpoint that is whole: train it again in a new folder")
    notes[-1] += f": its newest weights are used, of iteration {newest.iteration}, and their density may mean nothing"
    return checkpoints.path_of(where, newest.iteration), newest, notes


def _model(
    recipe: Recipe,
    labels: LabelSpace,
    event_shape: tuple[int, ...],
    tensors: dict[str, Tensor],
    device: torch.device,
) -> JointModel:
    """The recipe's network with these weights; only the form of the data is needed to build it."""
    x, y = torch.empty(0, *event_shape, device=device), torch.empty(0, len(labels), dtype=torch.int64, device=device)
    model = model_of(recipe, TrainingData(x, y, x, y, labels), seed=0)
    try:
        model.load_state_dict(tensors)
    except RuntimeError:
        raise InputError("the weights are of another network than the recipe's") from None
    return model.requires_grad_(False).eval()


def wrap(
    classifier: nn.Module,
    labels: LabelSpace | Mapping[str, int | Sequence[str]] | Sequence[str] | int,
    *,
    bounds: tuple[float, float],
    event_shape: Sequence[int],
    kernel: Langevin | None = None,
    single_logit: SingleLogit = "zero",
) -> Run:
    """A classifier of your own as a run, without training; it is put in eval mode and shares its weights.

    p(y | x), rankings and abstention are the classifier's own and as good as it is. log p(x) is read from logits that
    were trained by cross-entropy, which leaves it free: it often tells far from near, it is no density of the data, and
    chains on it seldom look like data. Measure before you rely on it (`fit_threshold` takes validation rows).
    `labels` is a LabelSpace, its mapping, the names of the classes or their number. `refine` and chains move by
    `kernel`: JEM's step of 1 and noise of .01 on the range [-1, 1], brought to the bounds, unless you give one.
    """
    if not isinstance(classifier, nn.Module):
        raise InputError(f"wrap takes a torch module that gives logits, got {type(classifier).__name__}")
    low, high = _bounds(bounds)
    space, shape = _space(labels), _shape(event_shape)
    model = LogitModel(classifier, space, single_logit=single_logit, domain=Box(low, high), event_shape=shape).eval()
    weight = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    middle = torch.full((2, *shape), (low + high) / 2, dtype=weight.dtype, device=weight.device)
    try:
        with torch.no_grad():
            model.log_density(middle)
    except InputError:
        raise
    except Exception as error:  # a network of another may raise anything
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"the classifier cannot take x of shape [n, {', '.join(map(str, shape))}]: {reason}") from None
    half = (high - low) / 2
    sampling = Sampling(kernel or Langevin(half**2, 0.01 * half, bounds=(low, high)))
    origin = Origin("a wrapped classifier", space, shape, weight.device)
    return Run(model, origin, sampling, (low, high), Thresholds())


def _bounds(bounds: Iterable[float]) -> tuple[float, float]:
    both = tuple(bounds) if isinstance(bounds, Iterable) else ()
    if len(both) != 2 or not all(is_number(b) for b in both):
        raise InputError(f"bounds must be (low, high), the range of x, got {bounds!r}")
    return float(both[0]), float(both[1])


def _shape(event_shape: Iterable[int]) -> tuple[int, ...]:
    sizes = tuple(event_shape) if isinstance(event_shape, Iterable) else ()
    if not sizes or not all(is_number(s) and s > 0 and float(s).is_integer() for s in sizes):
        raise InputError(f"event_shape must be the sizes of one row of x, as in (3, 32, 32), got {event_shape!r}")
    return tuple(int(s) for s in sizes)


def _space(labels: LabelSpace | Mapping[str, int | Sequence[str]] | Sequence[str] | int) -> LabelSpace:
    if isinstance(labels, LabelSpace):
        return labels
    return LabelSpace(labels) if isinstance(labels, Mapping) else LabelSpace({"class": labels})
