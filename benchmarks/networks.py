"""benchmarks: networks with and without batch statistics on CIFAR-10, at equal minutes of training on one GPU.

python benchmarks/networks.py [--networks nf plain group batch] [--kinds jem baseline] [--minutes 3 8] trains each for
the last of these minutes of steps, with all that a step does, and notes accuracy and health on 5,000 held-out training
images at each of them. A run that stands in --folder already, begun or ended, is taken up, so that hours can be spent
in parts; a run of the recipe itself may be put there as nf-jem. --write publishes all that is there as
results/cifar10-networks.json, from a clean tree. The test set is not touched.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rounds import in_a_sentence

from jointenergy import recipes
from jointenergy.data import Dataset
from jointenergy.recipes import run_folder
from jointenergy.recipes.data import data_of
from jointenergy.recipes.schema import Recipe
from jointenergy.report import provenance, results
from jointenergy.report.predictors import classify
from jointenergy.training import checkpoints, loop

RESIDUAL = 'kind = "wide-resnet", depth = 16, width = 4, activation = "leaky_relu"'
# Each with an optimizer that suits it, as the field has found: the recipe's own for the normalizer-free network.
SGD = ("optimizer.learning_rate=0.1", "optimizer.clip_norm=0.5")
ADAM = (
    "optimizer.name=adamw",
    "optimizer.learning_rate=1e-3",
    "optimizer.weight_decay=0.05",
    "optimizer.clip_norm=1.0",
)
NETWORKS: dict[str, tuple[str, ...]] = {
    "nf": (),
    "plain": (f'model.network={{{RESIDUAL}, norm = "none", residual_gain = 0.2}}', *ADAM),
    "group": (f'model.network={{{RESIDUAL}, norm = "group"}}', *SGD),
    "batch": (f'model.network={{{RESIDUAL}, norm = "batch"}}', "model.allow_batch_statistics=true", *SGD),
}
CHECKS = 8  # in a run, evenly: with minutes 3 and 8 there is one at each
SLACK = 1.02  # a run is sized by a short one, and its last check may come a little late


def recipe_of(network: str, kind: str, overrides: list[str]) -> Recipe:
    recipe = recipes.load("cifar10-jem", [*NETWORKS[network], *overrides])
    if network != "nf":  # adaptive clipping was made for it
        recipe = replace(recipe, optimizer=replace(recipe.optimizer, clip_adaptive=None))
    return recipe if kind == "jem" else recipe.baseline()


def measured(
    recipe: Recipe, minutes: list[float], folder: Path, data: Path | None, seed: int, device: str = "cuda"
) -> dict[str, Any]:
    """Train for the last of these minutes, or go on with what stands there; what was seen at each of them."""
    if checkpoints.all_in(folder / "checkpoints"):
        run = run_folder.reopen(folder, device=device)
        there = run.trainer.recipe
        if replace(there, iterations=recipe.iterations, cadence=recipe.cadence) != recipe:
            sys.exit(f"{folder} holds a run of other settings: remove it, or choose another --folder")
        recipe = there
    else:
        shutil.rmtree(folder, ignore_errors=True)
        rows = data_of(recipe, data, device, seed)
        # Minutes are of steps: checks, which are the same for all, are not counted.
        unchecked = replace(recipe, cadence=replace(recipe.cadence, check=10**9))
        iterations = run_folder.iterations_in(unchecked, minutes[-1] * 60, seed, device=device, data=rows)
        every = max(1, -(-iterations // CHECKS))
        cadence = replace(recipe.cadence, check=every, checkpoint=every)
        recipe = replace(recipe, iterations=every * CHECKS, cadence=cadence)
        run = run_folder.create(folder, recipe, seed, data_folder=data, device=device, data=rows)
        (folder / "commit").write_text(provenance.commit())
    diverged = False
    try:
        run.fit()
    except loop.Diverged:
        diverged = True
    held = run.trainer.data
    figures = classify(run.trainer.ema, Dataset(held.x_held, held.y_held, held.labels, "held-out rows"))
    return {
        "minutes": run.seconds / 60,
        "iterations": recipe.iterations,
        "epochs": recipe.iterations * recipe.batch_size / len(held.x),
        "iteration_ms": run.seconds / max(1, run.trainer.iteration) * 1e3,
        "ece": figures.ece,
        "accuracy": figures.accuracy,
        "diverged": diverged,
        "interventions": run.interventions,
        "steps": run.trainer.chains.steps,
        "commit": own.read_text() if (own := folder / "commit").exists() else provenance.commit(),
        "hardware": provenance.hardware(),
        "at": seen(folder, minutes),
    }


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def seen(folder: Path, minutes: list[float]) -> dict[str, Any]:
    """Accuracy and health at the last check within each of these minutes of training steps."""
    clock = {int(row["iteration"]): float(row["seconds"]) for row in rows_of(folder / "metrics.csv")}
    found: dict[str, Any] = {}
    for check in rows_of(folder / "checks.csv"):
        iteration = int(check["iteration"])
        seconds = max((s for i, s in clock.items() if i <= iteration), default=0.0)
        for mark in minutes:
            if seconds <= mark * 60 * SLACK:
                healthy = check.get("healthy")
                found[f"{mark:g}"] = {
                    "accuracy": float(check["accuracy"]),
                    "healthy": None if healthy is None else float(healthy == "True"),
                    "minutes": seconds / 60,
                }
    return found


def shown(found: dict[str, dict[str, Any]]) -> Table:
    """Where a run's figures were kept by an earlier form of this program, ece and interventions are not known."""
    table = Table(title="CIFAR-10, 5,000 held-out training images")
    for column in (
        "network",
        "minutes",
        "epochs",
        "ms an iteration",
        "accuracy at",
        "ece",
        "healthy at",
        "interventions",
    ):
        table.add_column(column, justify="right")
    for name, f in found.items():
        table.add_row(
            *(name, f"{f['minutes']:.1f}", f"{f['epochs']:.0f}", f"{f['iteration_ms']:.1f}"),
            ", ".join(f"{m}: {at['accuracy']:.4f}" for m, at in f["at"].items()),
            f"{f['ece']:.4f}" if "ece" in f else "-",
            ", ".join(f"{m}: {'-' if at['healthy'] is None else bool(at['healthy'])}" for m, at in f["at"].items()),
            str(f.get("interventions", "-")),
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--kinds", nargs="+", default=["jem"], choices=["jem", "baseline"])
    parser.add_argument("--minutes", nargs="+", type=float, default=[3.0, 8.0])
    parser.add_argument("--folder", type=Path, default=Path("runs/networks"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tag", default="", help="added to the name, for trials with other settings")
    parser.add_argument("--set", nargs="*", default=[], dest="overrides")
    parser.add_argument("--says", default="", help="a sentence about these runs, such as what else the GPU did")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() and arguments.networks:
        sys.exit("this benchmark trains on a GPU, and torch finds none")
    if arguments.write:
        provenance.commit()  # before the work, not after it
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for network in arguments.networks:
        for kind in arguments.kinds:
            name = f"{network}-{kind}{arguments.tag}"
            recipe = recipe_of(network, kind, arguments.overrides)
            figures = measured(recipe, arguments.minutes, arguments.folder / name, arguments.data, arguments.seed)
            figures["says"] = arguments.says
            (arguments.folder / f"{name}.json").write_text(json.dumps(figures, indent=1))
            print(name, json.dumps(figures), flush=True)
    found = {p.stem: json.loads(p.read_text()) for p in sorted(arguments.folder.glob("*.json"))}
    Console().print(shown(found))
    if arguments.write:
        publish(found, arguments.seed)


def publish(found: dict[str, dict[str, Any]], seed: int) -> None:
    metrics: dict[str, list[float | None]] = {}
    for name, f in found.items():
        metrics |= {f"iteration_ms.{name}": [f["iteration_ms"]], f"training_minutes.{name}": [f["minutes"]]}
        metrics[f"epochs.{name}"] = [f["epochs"]]
        metrics |= {
            f"{what}.{name}": [f[k]] for k, what in (("ece", "ece_held"), ("interventions", "interventions")) if k in f
        }
        for mark, at in f["at"].items():
            metrics[f"accuracy_held.{name}.after-{mark}-minutes"] = [at["accuracy"]]
            metrics[f"check_minutes.{name}.after-{mark}-minutes"] = [at["minutes"]]
            if at["healthy"] is not None:
                metrics[f"healthy_held.{name}.after-{mark}-minutes"] = [at["healthy"]]
    commits = sorted({f["commit"][:12] for f in found.values()})
    remarks = "".join(f" {name}: {f['says']}" for name, f in found.items() if f.get("says"))
    result = results.measured(
        "cifar10-networks",
        metrics,
        seeds=[seed],
        minutes=sum(f["minutes"] for f in found.values()),
        command=["python", *sys.argv],
        notes="WRN-16-4 in four forms; averaged weights, 5,000 held-out training images; training_minutes and "
        "iteration_ms are of the steps, with the guard's looks and compilation; checks come on top. check_minutes says "
        f"when the last check within the minutes was. Trained by commit(s) {', '.join(commits)}.{remarks}",
    )
    # What was measured elsewhere, or earlier, keeps the name of the machine it was measured on.
    machines = " | ".join(sorted({f["hardware"] for f in found.values()}))
    print(f"written to {results.write(replace(result, hardware=machines))}")


if __name__ == "__main__":
    in_a_sentence(main)
