"""recipes: a recipe for your own data, chosen by their type, size and the machine."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from jointenergy.data import Dataset
from jointenergy.data.own import OwnData
from jointenergy.data.training import TrainingData
from jointenergy.files.reading import shown
from jointenergy.labels import MISSING
from jointenergy.recipes import FOLDER
from jointenergy.recipes.build import trainer_of
from jointenergy.recipes.data import data_of
from jointenergy.recipes.schema import Recipe, parse, values_of
from jointenergy.training.check import FRESH, GIVEN, LONG, RECOVERED, share_of
from jointenergy.training.defaults import IMAGES, SMALL_ROWS, Numbers, gaussian_classes

SIDES = {"cpu": 32, "cuda": 64}
"""Maximum image side in pixels, by device type."""

CHECKS = 4  # health checks per run
WARM, MEASURED = 2, 5  # iterations
FEWEST, MOST = 100, 20_000  # iterations
SMALL = 400  # pixels up to which an MLP is used for images

Table = dict[str, Any]


def recipe_values(found: OwnData, name: str, device: torch.device) -> Table:
    """Return the recipe as nested tables, without the number of iterations."""
    train = found.train
    n, shape = len(train), train.event_shape
    on_gpu = device.type == "cuda"
    image = len(shape) == 3 and shape[0] in (1, 3)
    kind = _images if image and math.prod(shape) > SMALL else _vectors
    values = kind(train, on_gpu=on_gpu)
    _label_terms(values, train)
    values["name"] = name
    values["batch_size"] = min(values["batch_size"], max(2, n // 2))
    options: Table = {key: getattr(found.options, key) for key in found.options.changed()}
    values["data"] = {"name": found.name, **_bounds(train), **values["data"], "options": options}
    return values


def _images(train: Dataset, *, on_gpu: bool) -> Table:
    """Return the settings of `cifar10-jem` on a GPU, or a small network on a CPU."""
    augment = ["crop", "flip"] if train.event_shape[0] == 3 else ["crop"]
    data = {"noise": 0.03 if on_gpu else IMAGES.data_noise, "augment": augment, "separate_batches": True}
    if on_gpu:
        values = values_of(FOLDER / "cifar10-jem.toml")
        kept = ("batch_size", "model", "objective", "chain", "buffer", "start", "optimizer")
        return {"data": data, **{key: values[key] for key in kept}}
    return {**_numbers(IMAGES), "data": data, "model": {"network": {"kind": "image-cnn", "hidden": [256]}}}


def _vectors(train: Dataset, *, on_gpu: bool) -> Table:
    """Return the settings of `digits-jem`: an MLP, which takes any shape."""
    hidden = [512, 512] if on_gpu else [256, 256]
    data = {"noise": SMALL_ROWS.data_noise}
    return {**_numbers(SMALL_ROWS), "data": data, "model": {"network": {"kind": "mlp", "hidden": hidden}}}


def _numbers(of: Numbers) -> Table:
    """Return the settings that `fit` has by default."""
    clamp = {} if of.gradient_clamp is None else {"gradient_clamp": of.gradient_clamp}
    return {
        "batch_size": of.batch_size,
        "objective": {"log_p_y_given_x": of.label_weight, "energy_l2": of.energy_l2},
        "chain": {
            "steps": of.steps,
            "kernel": {"kind": "langevin", "step_size": of.step_size, "noise_scale": of.noise_scale, **clamp},
            "clamp": True,
            "sampling_steps": of.sampling_steps,
        },
        "buffer": {"size": of.buffer, "restart": of.restart},
        "start": {"x": "class-gaussians", "uniform": of.uniform},
        "optimizer": {
            "name": "adamw",
            "learning_rate": of.learning_rate,
            "weight_decay": of.weight_decay,
            "clip_norm": 1.0,
            "decay": "cosine",
            "ema": 0.99,
        },
    }


def _bounds(train: Dataset) -> Table:
    """Return the bounds: -1 and 1 for pixels, bounds around the values for numbers."""
    if not train.x.is_floating_point():
        return {"low": -1.0, "high": 1.0}
    low, high = float(train.x.min()), float(train.x.max())
    if train.x.ndim > 2 and low < high:
        return {"low": low, "high": high}
    return {"low": math.floor(low) - 1.0, "high": math.ceil(high) + 1.0}


def _label_terms(values: Table, train: Dataset) -> None:
    """Choose the objective and the start: JEM for one label; with several labels, chains move them and the loss sums
    them out; log p(x) without labels."""
    n_labels, objective = len(train.labels), values["objective"]
    if n_labels != 1:
        values["chain"].pop("keep_labels", None)  # of a classifier's recipe
    if n_labels == 0:
        values["model"]["family"] = "unconditional"
        objective |= {"log_p_x": 1.0, "log_p_y_given_x": 0.0}
    elif n_labels == 1:
        objective |= {"log_p_x": 1.0}
    else:
        # log p(x, y) covers all labels. Energies sum over labels, so the energy L2 of one label would be too strong.
        objective |= {"log_p_x": 0.0, "log_p_xy": 1.0, "log_p_y_given_x": 0.0, "energy_l2": 0.01}
        values["chain"] |= {"label_kernel": "exact", "sum_labels": True}
        if len(train.event_shape) == 3:  # without class Gaussians chains need more steps
            values["chain"]["steps"] = 20
            values["chain"]["kernel"] |= {"step_size": 1.0, "noise_scale": 0.01}
            values["optimizer"]["learning_rate"] /= 4
        values["start"] |= {"labels": "frequency"}
    if objective["log_p_y_given_x"] == 0:  # no separate augmented batches for the classifier
        values["data"] = {"noise": values["data"]["noise"]}
    if not gaussian_classes(train.y, train.labels.cardinalities, train.event_shape):
        values["start"] |= {"x": "batch"}
        values["start"].pop("uniform", None)


def with_iterations(values: Table, seconds: float, place: Path, device: torch.device) -> tuple[Table, float]:
    """Set the number of iterations that fit into the time and are useful; also return the expected seconds.

    Times a few iterations.
    """
    recipe = parse({**values, "iterations": MOST}, values["name"])
    data = data_of(recipe, place, device)
    each = seconds_each(recipe, data)
    checks = CHECKS * _check_cost(recipe)
    enough = min(MOST, max(IMAGES.fewest, IMAGES.epochs * len(data.x) // recipe.batch_size))
    n = int(min(enough, max(FEWEST, float(f"{seconds / each - checks:.1e}"))))
    every = -(-n // CHECKS)
    cadence = {"log": max(1, n // 40), "check": every, "checkpoint": every}
    optimizer = {**values["optimizer"], "warmup": min(values["optimizer"].get("warmup", 100), n // 10)}
    return {**values, "iterations": n, "optimizer": optimizer, "cadence": cadence}, (n + checks) * each


def seconds_each(recipe: Recipe, data: TrainingData) -> float:
    """Time an iteration, after a few warm-up iterations."""
    trainer = trainer_of(recipe, data, 0)
    for _ in range(WARM):
        trainer.step()
    began = time.perf_counter()
    for _ in range(MEASURED):
        trainer.step()
    if data.x.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / MEASURED


def _check_cost(recipe: Recipe) -> float:
    """Return the cost of a health check, in iterations."""
    chain = recipe.chain
    n_chains = share_of(recipe.batch_size, recipe.iterations) * (FRESH + 9 * LONG + GIVEN + RECOVERED)
    return chain.sampling_steps * n_chains / (chain.steps * recipe.batch_size)


# The written file.

ORDER = ("name", "description", "iterations", "batch_size", "data", "model", "objective", "chain", "buffer", "start")

COMMENTS = {
    "iterations": "`jointenergy train FILE --time 1h` sets them for a given time",
    "batch_size": "rows and chains per iteration",
    "data.low": "the bounds of x",
    "data.noise": "standard deviation of Gaussian noise added to the data",
    "data.augment": "augmentation of the classifier's batches; remove flip if left and right matter",
    "data.separate_batches": "the density term uses a separate batch without augmentation",
    "data.options.image_size": "height and width; larger images train slower",
    "data.options.columns": "label columns of the table",
    "data.options.label": "the column with the class",
    "data.options.center": "columns are standardized: (x - center) / scale",
    "model.family": "log p(x) only, since the data have no labels",
    "model.network.kind": "mlp, image-cnn, nf-wide-resnet, ...",
    "objective.log_p_x": "weight of log p(x)",
    "objective.log_p_xy": "weight of log p(x, y)",
    "objective.log_p_y_given_x": "weight of log p(y | x)",
    "objective.energy_l2": "keeps energies near 0",
    "chain.steps": "Langevin steps per iteration; more are slower but more stable",
    "chain.kernel.kind": "langevin; or mala, hmc or underdamped, with a step_size and a temperature",
    "chain.label_kernel": "block Gibbs: alternates labels given x and x given labels",
    "chain.sampling_steps": "steps of `jointenergy sample`",
    "buffer.size": "number of persistent chains",
    "buffer.restart": "share of chains restarted",
    "start.x": "starting points of fresh chains",
    "start.uniform": "share of them that start from uniform noise",
    "optimizer.ema": "decay of the averaged weights, used for samples and predictions",
    "cadence.check": "iterations between health checks",
}


def text_of(values: Mapping[str, Any], found: OwnData, head: list[str]) -> str:
    """Format the recipe as TOML with comments, starting with `head`."""
    ordered = sorted(values, key=lambda key: ORDER.index(key) if key in ORDER else len(ORDER))
    lines = [f"# {shown(line)}" for line in head] + [""]
    lines += _lines({key: values[key] for key in ordered}, "", {"data": label_lines(found.train)})
    return "\n".join(lines) + "\n"


def _lines(table: Mapping[str, Any], path: str, notes: Mapping[str, list[str]]) -> list[str]:
    """Format a table's own keys, then its subtables with their headings."""
    lines = [f"# {shown(note)}" for note in notes.get(path, [])]
    for key, value in table.items():
        if not isinstance(value, dict):
            comment = COMMENTS.get(f"{path}.{key}".lstrip("."), "")
            lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}" + (f"  # {comment}" if comment else ""))
    for key, value in table.items():
        if isinstance(value, dict) and value:
            inner = f"{path}.{key}".lstrip(".")
            plain = any(not isinstance(v, dict) for v in value.values())
            lines += ["", f"[{inner}]"] if plain else []
            lines += _lines(value, inner, notes)
    return lines


SHOWN = 12  # values listed per label


def label_lines(train: Dataset) -> list[str]:
    """List the labels by name, with the number of training rows of each value."""
    lines = []
    for k, name in enumerate(train.labels.names):
        y = train.y[:, k]
        counts = y[y != MISSING].bincount(minlength=train.labels.cardinalities[k]).tolist()
        pairs = [f"{shown(value)} {n:,}" for value, n in zip(train.labels.values[k], counts, strict=True)]
        more = f", and {len(pairs) - SHOWN} more" if len(pairs) > SHOWN else ""
        missing = f"; {n:,} missing" if (n := int((y == MISSING).sum())) else ""
        lines.append(f"{name}: {', '.join(pairs[:SHOWN])}{more}{missing}")
    return lines


def plain_name(text: str) -> str:
    """Derive a recipe name from a file name."""
    return re.sub(r"^[^A-Za-z0-9]+", "", re.sub(r"[^\w.-]+", "-", text, flags=re.ASCII)) or "own"
