"""Publish trained runs by name: weights in pretrained/, the index in the package, and a model card for each.

    python scripts/publish.py COMMIT RUN ...    # full runs of recipes, trained in a clean clone at that commit
    python scripts/publish.py                   # after a setting of recipes was renamed: rewrite the files

A run is evaluated as users load it, on the test rows. It must be healthy, and float16 must keep its accuracy to the
third digit. Names of `KNOWN` without weights keep the figures of their results files.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from jointenergy import recipes
from jointenergy.errors import InputError
from jointenergy.experiments import run_figures
from jointenergy.files.writing import whole, write_text
from jointenergy.recipes import run_folder
from jointenergy.recipes.schema import write as recipe_text
from jointenergy.report import provenance, results
from jointenergy.report.cards import card
from jointenergy.report.suite import subject_of
from jointenergy.runs import Run, pretrained
from jointenergy.runs.loading import open_run
from jointenergy.runs.pretrained import Published, Weights

ROOT = Path(__file__).resolve().parents[1]
KNOWN = ("digits-jem", "digits-gibbs", "mnist-jem", "mnist-mixed", "cifar10-jem")
FIGURES = ("accuracy", "exact_match", "nll", "ece")
DIGITS = 3  # of a printed figure


def measured(run: Run) -> dict[str, float]:
    """Evaluate a run on its test rows."""
    taken, _ = run_figures.take_all(subject_of(run, seed=run.origin.seed))
    return {name: value for name in FIGURES if (value := taken.get(name)) is not None}


def publish(folder: Path, commit: str) -> tuple[str, Weights]:
    """Write the file of a run folder; return its figures."""
    run = open_run(folder)
    if run.recipe is None or run.recipe.name not in KNOWN or recipes.load(run.recipe.name) != run.recipe:
        raise InputError(f"{folder} is not a full run of one of {', '.join(KNOWN)}")
    name, verdict = run.recipe.name, run.health()
    if not verdict.healthy or run.notes:
        raise InputError(f"{folder} is not healthy: {'; '.join([*verdict.complaints, *run.notes])}")
    path = pretrained.REPOSITORY / pretrained.file_of(name)
    run.export(path, half=True)
    before, after = measured(run), measured(open_run(path))
    if round(before["accuracy"], DIGITS) != round(after["accuracy"], DIGITS):
        raise InputError(f"float16 changes the accuracy of {name} from {before['accuracy']} to {after['accuracy']}")
    content = path.read_bytes()
    return name, Weights(
        hashlib.sha256(content).hexdigest(),
        len(content),
        run_folder.about(folder).seed,
        commit,
        provenance.hardware(),
        datetime.date.today().isoformat(),
        {**after, "healthy": 1.0},
    )


def restated(name: str, weights: Weights) -> Weights:
    """Write the current recipe into a published file; its tensors stay unchanged."""
    path = pretrained.REPOSITORY / pretrained.file_of(name)
    with safe_open(path, "pt") as file:
        metadata, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    with whole(path) as part:
        save_file(tensors, part, {**metadata, "recipe": recipe_text(recipes.load(name))})
    content = path.read_bytes()
    return replace(weights, sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))


def main(commit: str, folders: list[Path]) -> None:
    """Publish the runs and write the index and the cards."""
    if folders and not provenance.COMMIT.fullmatch(commit):
        raise InputError(f"the first word is the commit that the runs were trained at, got {commit!r}")
    before = pretrained.published() if pretrained.INDEX.exists() else {}
    new = dict(publish(folder, commit) for folder in folders)
    index = {}
    for name in KNOWN:
        result = results.read(ROOT / "results" / f"{name}.json")
        figures = {k: result.metrics[k].mean for k in FIGURES if k in result.metrics}
        weights = new.get(name)
        if weights is None and name in before and (known := before[name].weights) is not None:
            weights = restated(name, known)
        index[name] = Published(recipes.load(name).description, len(result.seeds), figures, weights)
        if weights is not None:
            run = open_run(pretrained.REPOSITORY / pretrained.file_of(name))
            write_text(pretrained.REPOSITORY / f"{name}.md", card(run, result, weights))
    write_text(pretrained.INDEX, json.dumps({k: asdict(v) for k, v in index.items()}, indent=2) + "\n")


if __name__ == "__main__":
    main("".join(sys.argv[1:2]), [Path(word) for word in sys.argv[2:]])
