"""runs: `load` opens a run folder or an exported file; `wrap` turns a trained classifier into a run."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from jointenergy.data import Dataset, View
from jointenergy.data.augmentations import augmentation
from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.files.reading import told
from jointenergy.inference import Aids
from jointenergy.inputs import is_number
from jointenergy.kernels import Kernel, Langevin
from jointenergy.labels import LabelSpace, nearest
from jointenergy.models import Box, Domain, EnergyModel, JointModel, LogitModel
from jointenergy.models.base import Normalizer
from jointenergy.models.logits import SingleLogit
from jointenergy.objectives import Objective
from jointenergy.recipes import run_folder
from jointenergy.recipes.build import kernel_of, x_start_of
from jointenergy.recipes.data import data_of, view_of
from jointenergy.recipes.networks import model_of
from jointenergy.recipes.run_folder import About
from jointenergy.recipes.schema import Recipe, read
from jointenergy.runs import description, portable, pretrained
from jointenergy.runs.fitting import best_of
from jointenergy.runs.origin import Origin, Sampling
from jointenergy.runs.run import Run
from jointenergy.runs.thresholds import Thresholds
from jointenergy.runs.user_data import LabelNames, label_space, rows_of_user, training_data
from jointenergy.starts import Start, StartSpec, XStart
from jointenergy.training import checkpoints
from jointenergy.training.chains import with_step_size
from jointenergy.training.distributed import device_of
from jointenergy.training.plan import make_plan
from jointenergy.training.state import under
from jointenergy.training.stores import FolderStore


def load(
    path: Path | str,
    *,
    network: nn.Module | None = None,
    kernel: Kernel | None = None,
    start: StartSpec | XStart | Start | None = None,
    data: object = None,
    device: str = "cpu",
) -> Run:
    """Open a trained run, from its folder, from an exported file, or by the name of a published model.

    A name, as in `load("digits-jem")`, is looked up where nothing of that name lies in the present folder; `jointenergy
    models` lists the names.

    Loads the averaged weights of the best healthy checkpoint, or of the newest one, with a warning, if none is healthy.

    For a run of `fit`, or an exported run of your own network, pass the `network` (or model) that `fit` or `wrap` got;
    its weights are read from the folder or file. Also pass `kernel` and `start` if they were your own. `data` are the
    rows that `fit` got, needed for thresholds, health, nearest neighbors and class-conditional starts. For the run of a
    recipe, `data` is the data folder, if it has moved.
    """
    path = pretrained.found(path)
    if not path.exists():
        raise InputError(
            f"there is no run folder, exported file or published model {path}: "
            f"{nearest(str(path), list(pretrained.published()))}"
        )
    if path.is_dir() and (path / description.FILE).exists():
        run = _from_fit(path, network, kernel, start, data, device_of(device))
    elif path.is_file() and (found := portable.read(path)).recipe is None:
        _check_no_folder(path, data)
        run = _from_own_file(path, found, network, kernel, start, device_of(device))
    elif network is not None or kernel is not None or start is not None:
        raise InputError(f"{path} is a run of a recipe, which defines network, kernel and start: leave them out")
    elif data is None or isinstance(data, str | Path):
        run = open_run(path, data=data, device=device)
    else:
        raise InputError(f"data= of a recipe's run takes a folder, got {type(data).__name__}")
    for note in run.notes:
        warnings.warn(note, stacklevel=2)
    return run


def open_run(
    path: Path | str, *, network: nn.Module | None = None, data: Path | str | None = None, device: str = "cpu"
) -> Run:
    """`load` with a data folder, its warnings left in `notes`; the `network` is for a run that has none of its own."""
    path, where = pretrained.found(path), device_of(device)
    folder = None if data is None else Path(data)
    if path.is_dir() and (path / description.FILE).exists():
        _check_no_folder(path, folder)
        return _from_fit(path, network, None, None, None, where)
    if path.is_dir():
        return _from_folder(path, folder, where)
    if not path.is_file():
        raise InputError(
            f"there is no run folder or exported file {path}: train one with `jointenergy train`, or see `jointenergy "
            "models`"
        )
    found = portable.read(path)
    if found.recipe is not None:
        return _from_file(path, found, found.recipe, folder, where)
    _check_no_folder(path, folder)
    return _from_own_file(path, found, network, None, None, where)


def _check_no_folder(path: Path, data: object) -> None:
    if data is not None:
        raise InputError(f"{path} has no recipe and so no data folder: leave out data=")


def _from_folder(folder: Path, data_folder: Path | None, device: torch.device) -> Run:
    known = run_folder.about(folder)
    recipe = read(folder / "recipe.toml")
    if data_folder is None and known.data_folder is not None and known.data_folder.exists():
        data_folder = known.data_folder
    labels, event_shape = _labels_and_shape(known, recipe, data_folder)
    best, checkpoint, notes = best_of(FolderStore(folder / "checkpoints"), str(folder))
    path = folder / "checkpoints" / best
    model = _model(recipe, labels, event_shape, under(checkpoint.tensors, "ema/"), device, f"the run {folder}")
    origin = Origin.of_recipe(f"the run {folder}", labels, event_shape, device, recipe, known.seed, data_folder, path)
    thresholds = Thresholds(folder, checkpoints.checksum(path))
    return _run_of(model, origin, recipe, thresholds, [*notes, *known.warnings])


def _from_fit(
    folder: Path,
    network: nn.Module | None,
    kernel: Kernel | None,
    start: StartSpec | XStart | Start | None,
    data: object,
    device: torch.device,
) -> Run:
    """Open a folder that `fit` has written."""
    known = description.read(folder)
    if network is None:
        raise InputError(_own(folder))
    name, checkpoint, notes = best_of(FolderStore(folder / "checkpoints"), str(folder))
    try:
        labels, shape = LabelSpace(known["labels"]), tuple(known["event_shape"])
        bounds, family, normalizer = View(*known["bounds"]), known["family"], known["normalizer"]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder / description.FILE} is damaged: {error}") from None
    model = _model_of_fit(network, family, labels, shape, description.rebuild(known["domain"], "domain"), normalizer)
    _load_weights(model, under(checkpoint.tensors, "ema/"), str(folder))
    if (layers := description.of_network(model)) and known.get("network", layers) not in ("", layers):
        notes.append(
            "the weights fit the network, but its layers print differently from those that were trained, such as "
            "another activation: results are then those of another function"
        )
    moves = kernel or with_step_size(description.rebuild(known["kernel"], "kernel"), checkpoint.values["step_size"])
    begins = start or description.rebuild(known["start"], "start")
    path = folder / "checkpoints" / name
    origin = Origin(
        f"the run {folder}",
        labels,
        shape,
        device,
        seed=known["seed"],
        checkpoint=path,
        density=known["density"],
        read_data=None
        if data is None
        else lambda: _rows_of_fit(data, labels, model.domain, bounds, shape, known["data"], device),
        make_plan=lambda rows: replace(
            make_plan(
                model,
                rows,
                objective=Objective(tuple(description.rebuild(t, "objective") for t in known["objectives"][0])),
                kernel=moves,
                bounds=bounds,
                iterations=known["iterations"],
                batch_size=known["batch_size"],
                steps=known["steps"],
                sampling_steps=known["sampling_steps"],
                denoising_steps=known.get("denoising_steps", 0),
                buffer=description.rebuild(known["buffer"], "buffer"),
                start=begins,
                seed=known["seed"],
            ),
            changes=tuple(  # the user's own changes are not stored
                tuple(description.rebuild(c, "change") for c in changes if "own" not in c)
                for changes in known["changes"]
            ),
        ),
        read_tensors=lambda: checkpoints.load(path).tensors,
    )
    aids = Aids(denoise_for=known.get("denoising_steps", 0))
    sampling = Sampling.of(moves, known["sampling_steps"], aids, begins)
    model = model.to(device).requires_grad_(False).eval()
    return Run(model, origin, sampling, bounds, Thresholds(folder, checkpoints.checksum(path)), notes)


def _model_of_fit(
    network: nn.Module,
    family: str,
    labels: LabelSpace,
    shape: tuple[int, ...],
    domain: Domain,
    normalizer: Normalizer,
    single_logit: SingleLogit = "zero",
) -> JointModel:
    """Copy the user's network and wrap it as `fit` or `wrap` did."""
    if not isinstance(network, nn.Module):
        raise InputError(f"network= takes a torch module, got {type(network).__name__}")
    if family == "model":
        if not isinstance(network, JointModel):
            raise InputError("fit got a JointModel: pass it as network=, not only its network")
        return copy.deepcopy(network)
    if isinstance(network, JointModel):
        raise InputError("fit got a network: pass it as network=, not a model around it")
    own = copy.deepcopy(network).float()
    if any(isinstance(p, nn.UninitializedParameter) for p in own.parameters()):
        with torch.no_grad():  # initializes lazy layers
            own.eval()(torch.zeros(1, *shape))
    if family == "energy":
        return EnergyModel(own, domain=domain, event_shape=shape)
    return LogitModel(own, labels, single_logit=single_logit, domain=domain, event_shape=shape, normalizer=normalizer)


def _load_weights(model: JointModel, tensors: dict[str, Tensor], whose: str) -> None:
    """Load weights; on a mismatch, name the first tensor that differs."""
    _check_finite(tensors, whose)
    own = model.state_dict()
    for name in {**tensors, **own}:
        if name not in own or name not in tensors or own[name].shape != tensors[name].shape:
            here, there = (f"shape {tuple(t[name].shape)}" if name in t else "no entry" for t in (own, tensors))
            raise InputError(
                f"the network differs from that of {whose}: {name.removeprefix('network.')!r} has {here} here and "
                f"{there} in the run"
            )
    model.load_state_dict(tensors)


def _rows_of_fit(
    data: object,
    labels: LabelSpace,
    domain: Domain,
    bounds: View,
    shape: tuple[int, ...],
    checksum: str,
    device: torch.device,
) -> TrainingData:
    """Prepare the rows that `fit` got, verified by their checksum."""
    if isinstance(data, TrainingData):
        found = data
    else:
        named = None if isinstance(data, Dataset) or not len(labels) else labels
        rows = rows_of_user(data, named, named_by="the run")
        found = training_data(rows, domain, bounds, 0.1, shape)
    if description.digest(found) != checksum:
        warnings.warn(
            "the data differ from those that the run was trained on, or other rows are held out", stacklevel=2
        )
    return found.to(device)


def _from_own_file(
    path: Path,
    found: portable.Portable,
    network: nn.Module | None,
    kernel: Kernel | None,
    start: StartSpec | XStart | Start | None,
    device: torch.device,
) -> Run:
    """Open an exported file of a user's own network."""
    if network is None:
        raise InputError(_own(path))
    own, labels, shape = found.own, found.labels, found.event_shape
    assert own is not None
    with told(f"{path} is damaged"):
        bounds, domain = View(*own.bounds, own.levels), description.rebuild(own.domain, "domain")
        model = _model_of_fit(network, own.family, labels, shape, domain, own.normalizer, own.single_logit)
        _load_weights(model, found.tensors, str(path))
        sampling = Sampling(
            kernel or description.rebuild(own.kernel, "kernel"),
            description.rebuild(own.label_kernel, "kernel"),
            own.x_steps,
            own.steps,
            Aids(denoise_for=own.denoising_steps),
            start=start or description.rebuild(own.start, "start"),
        )
    origin = Origin(
        f"the file {path}", labels, shape, device, seed=found.seed, density=own.density, gaussians=found.gaussians
    )
    model = model.to(device).requires_grad_(False).eval()
    return Run(model, origin, sampling, bounds, _thresholds_of(path, found), found.notes)


def _own(path: Path) -> str:
    return (
        f"{path} is a run of fit or wrap, whose network is in your code: open it with "
        f"jointenergy.load({str(path)!r}, network=...), or in the shell with --network MODULE:NAME"
    )


def _from_file(
    path: Path, found: portable.Portable, recipe: Recipe, data_folder: Path | None, device: torch.device
) -> Run:
    """Open an exported file of a recipe's run."""
    name = f"the file {path}"
    model = _model(recipe, found.labels, found.event_shape, found.tensors, device, name)
    origin = Origin.of_recipe(name, found.labels, found.event_shape, device, recipe, found.seed, data_folder)
    origin = replace(origin, gaussians=found.gaussians)
    return _run_of(model, origin, recipe, _thresholds_of(path, found), found.notes)


def _thresholds_of(path: Path, found: portable.Portable) -> Thresholds:
    """Return what was fitted, to be stored in the file again; published files stay as their checksums say."""
    own = path.resolve() not in pretrained.places()
    return Thresholds(fitted=found.fitted, store=(lambda fitted: portable.store(path, fitted)) if own else None)


def _run_of(model: JointModel, origin: Origin, recipe: Recipe, thresholds: Thresholds, notes: Sequence[str]) -> Run:
    chain, bounds = recipe.chain, view_of(recipe.data)
    every = chain.augment_every if chain.augment else 0
    changes = augmentation(chain.augment, bounds) if every else ()
    aids = Aids(augmentations=changes, augment_every=every, denoise_for=chain.denoising_steps)
    sampling = Sampling.of(kernel_of(recipe), chain.sampling_steps, aids, x_start_of(recipe))
    return Run(model, origin, sampling, bounds, thresholds, notes)


def _labels_and_shape(known: About, recipe: Recipe, data_folder: Path | None) -> tuple[LabelSpace, tuple[int, ...]]:
    """Return the stored labels and shape of x; for older runs, read them from the data."""
    if known.labels is not None and known.event_shape is not None:
        return LabelSpace(known.labels), known.event_shape
    data = data_of(recipe, data_folder)
    return data.labels, data.event_shape


def _model(
    recipe: Recipe,
    labels: LabelSpace,
    event_shape: tuple[int, ...],
    tensors: dict[str, Tensor],
    device: torch.device,
    whose: str,
) -> JointModel:
    """Build the recipe's network with these weights, without reading data."""
    _check_finite(tensors, whose)
    with told(f"{whose} is damaged: cannot build the network from its labels, shape and recipe"):
        x = torch.empty(0, *event_shape, device=device)
        y = torch.empty(0, len(labels), dtype=torch.int64, device=device)
        model = model_of(recipe, TrainingData(x, y, x, y, labels), seed=0)
    try:
        model.load_state_dict(tensors)
    except RuntimeError:
        raise InputError("the weights do not fit the network of the recipe") from None
    return model.requires_grad_(False).eval()


def _check_finite(tensors: dict[str, Tensor], whose: str) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise InputError(f"{name!r} of {whose} has non-finite values: train it again, or load an older copy")


def wrap(
    classifier: nn.Module,
    labels: LabelNames,
    *,
    bounds: tuple[float, float],
    event_shape: Sequence[int],
    kernel: Langevin | None = None,
    single_logit: SingleLogit = "zero",
) -> Run:
    """Wrap a trained classifier as a run, without training; it is put in eval mode and its weights are shared.

    p(y | x), rankings and abstention are those of the classifier. log p(x) is computed from its logits. Cross-entropy
    does not train it: it may detect outliers, but it is not a density of the data, and samples seldom look like data.
    Evaluate it before you rely on it (`fit_threshold` takes validation rows). `labels` is a LabelSpace, its mapping,
    the class names or their number. `refine` and chains use `kernel`; default: the step size 1 and noise 0.01 of JEM
    on the range [-1, 1], rescaled to the bounds.
    """
    if not isinstance(classifier, nn.Module):
        raise InputError(f"wrap takes a torch module that returns logits, got {type(classifier).__name__}")
    low, high = _bounds(bounds)
    space, shape = label_space(labels), _shape(event_shape)
    model = LogitModel(classifier, space, single_logit=single_logit, domain=Box(low, high), event_shape=shape).eval()
    weight = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    middle = torch.full((2, *shape), (low + high) / 2, dtype=weight.dtype, device=weight.device)
    try:
        with torch.no_grad():
            model.log_density(middle)
    except InputError:
        raise
    except Exception as error:  # user code may raise anything
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
        raise InputError(f"event_shape must be the shape of one row of x, such as (3, 32, 32), got {event_shape!r}")
    return tuple(int(s) for s in sizes)
