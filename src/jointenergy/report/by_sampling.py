"""report: labels predicted by sampling alone, as where they are too many to be gone through: how often right."""

from __future__ import annotations

from jointenergy.data import Dataset
from jointenergy.labels import MISSING
from jointenergy.report.predictors import parts_of_names
from jointenergy.runs import Run

ROWS = 1000  # test rows at the most, taken evenly
CHAINS = 10  # of each row; the mode of their last states is the prediction
STEPS = 100  # of a chain from a uniform start, or so many for each label as it takes to visit all of them:
STEPS_PER_LABEL = 3
LISTED = 32  # labels that have figures of their own


def n_steps(n_labels: int) -> int:
    """A step changes one label at the most."""
    return max(STEPS, STEPS_PER_LABEL * n_labels)


def some_rows(test: Dataset, n: int = ROWS) -> Dataset:
    """Rows that have a label, evenly taken: data may be sorted."""
    known = (test.y != MISSING).any(1).nonzero()[:, 0]
    return test.rows(known[:: max(1, -(-len(known) // n))])


def by_sampling(
    run: Run, test: Dataset, seed: int, *, n_rows: int = ROWS, n_chains: int = CHAINS, steps: int | None = None
) -> dict[str, float]:
    """Of the mode of each label over chains of the run's own label kernel, and of the first chain's draw alone."""
    rows = some_rows(test, n_rows)
    steps = n_steps(len(run.labels)) if steps is None else steps
    drawn = run.predict_by_sampling(rows.x, n_chains=n_chains, steps=steps, seed=seed)
    truth = rows.y
    seen = truth != MISSING
    found = {}
    for name, labels in (("by_sampling", drawn.labels.cpu()), ("by_one_sample", drawn.one_sample.cpu())):
        right = labels == truth
        found[f"accuracy_{name}"] = float(right[seen].double().mean())
        if len(run.labels) > 1:
            found[f"exact_match_{name}"] = float((right | ~seen).all(1).double().mean())
        if name == "by_sampling" and 1 < len(run.labels) <= LISTED:
            for k, part in enumerate(parts_of_names(run.labels.names)):
                if bool(seen[:, k].any()):
                    found[f"accuracy_by_sampling_of.{part}"] = float(right[seen[:, k], k].double().mean())
    return found
