"""benchmarks: the distributions that JointEnergyRegressor predicts, against quantile boosting and two Gaussian models.

python benchmarks/regression.py [--seeds 3] [--only SET] [--write] prints a table; --write publishes
results/tabular-regression.json from a clean tree. Sets are of scikit-learn or drawn; where the distribution is known it
is measured too, as `truth`. Half of the rows, at most 1,000, are test rows. All have one thread and default settings.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from rounds import count, in_a_sentence, table
from scipy.stats import norm
from sklearn.datasets import load_diabetes, make_friedman1, make_friedman2, make_friedman3
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import train_test_split

from jointenergy import JointEnergyRegressor
from jointenergy.report import provenance, results

Floats = NDArray[np.float64]
LEVELS = np.arange(1, 20) / 20
"""Quantiles that are predicted; those of 5 % and 95 % are the ends of the 90 % interval."""
Set = tuple[Floats, Floats, Floats | None]
"""Rows, targets, and the true quantiles of each row if they are known."""
MOST_TEST = 1000


def diabetes(seed: int) -> Set:
    x, y = load_diabetes(return_X_y=True)
    return x, y, None


def friedman(make: Callable[..., tuple[Floats, Floats]], n: int, noise: float) -> Callable[[int], Set]:
    def draw(seed: int) -> Set:
        x, mean = make(2 * n, noise=0.0, random_state=seed)
        scale = noise * mean.std()
        y = mean + scale * np.random.default_rng(seed).normal(size=len(mean))
        return x, y, mean[:, None] + scale * norm.ppf(LEVELS)

    return draw


def widening(seed: int) -> Set:
    """Draw a curve whose noise grows along it, and five columns that say nothing."""
    random = np.random.default_rng(seed)
    x = random.uniform(-2, 2, (2000, 6))
    mean, scale = np.sin(2 * x[:, 0]), 0.1 + 0.3 * (x[:, 0] + 2)
    return x, mean + scale * random.normal(size=2000), mean[:, None] + scale[:, None] * norm.ppf(LEVELS)


SETS: dict[str, Callable[[int], Set]] = {
    "diabetes": diabetes,
    "friedman1": friedman(make_friedman1, 500, 0.2),
    "friedman2": friedman(make_friedman2, 500, 0.2),
    "friedman3": friedman(make_friedman3, 1000, 0.2),
    "widening": widening,
}


def jointenergy(x: Floats, y: Floats, x_test: Floats, seed: int) -> Floats:
    return JointEnergyRegressor(random_state=seed).fit(x, y).predict_quantiles(x_test, LEVELS)


def quantile_boosting(x: Floats, y: Floats, x_test: Floats, seed: int) -> Floats:
    found = [
        HistGradientBoostingRegressor(loss="quantile", quantile=q, max_iter=100, random_state=seed).fit(x, y)
        for q in LEVELS
    ]
    return np.sort(np.stack([model.predict(x_test) for model in found], axis=1), axis=1)


def bayesian_ridge(x: Floats, y: Floats, x_test: Floats, seed: int) -> Floats:
    mean, scale = BayesianRidge().fit(x, y).predict(x_test, return_std=True)
    return mean[:, None] + scale[:, None] * norm.ppf(LEVELS)


def forest_residuals(x: Floats, y: Floats, x_test: Floats, seed: int) -> Floats:
    """A forest, and around its mean the residuals of rows that its trees have not seen."""
    forest = RandomForestRegressor(oob_score=True, random_state=seed).fit(x, y)
    return forest.predict(x_test)[:, None] + np.quantile(y - forest.oob_prediction_, LEVELS)


METHODS = {f.__name__.replace("_", "-"): f for f in (jointenergy, quantile_boosting, bayesian_ridge, forest_residuals)}


def measured(quantiles: Floats, y: Floats) -> dict[str, float]:
    """Return the continuous ranked probability score by quantiles, in standard deviations, and the share inside."""
    off = y[:, None] - quantiles
    crps = 2 * np.maximum(LEVELS * off, (LEVELS - 1) * off).mean() / y.std()
    inside = (quantiles[:, 0] <= y) & (y <= quantiles[:, -1])
    return {"crps": float(crps), "interval_coverage": float(inside.mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=count, default=3)
    parser.add_argument("--only", choices=tuple(SETS), action="append", default=[])
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.write:
        provenance.commit()  # before the work, not after it
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    began, figures = time.perf_counter(), dict[str, list[float | None]]()
    for name in arguments.only or SETS:
        for seed in range(arguments.seeds):
            x, y, truth = SETS[name](seed)
            rest, test = train_test_split(np.arange(len(y)), test_size=min(len(y) // 2, MOST_TEST), random_state=seed)
            for method, quantiles in METHODS.items():
                spent = time.process_time()
                found = quantiles(x[rest], y[rest], x[test], seed)
                spent = time.process_time() - spent
                values = measured(found, y[test]) | {"cpu_seconds": spent}
                for key, value in values.items():
                    figures.setdefault(f"{key}.{name}.{method}", []).append(value)
            if truth is not None:
                for key, value in measured(truth[test], y[test]).items():
                    figures.setdefault(f"{key}.{name}.truth", []).append(value)
        lines = [
            (m, *(f"{statistics.mean(v):.3f}" if (v := figures.get(f"{k}.{name}.{m}")) else "" for k in values))
            for m in (*METHODS, "truth")
        ]
        print(f"{name}\n{table(('', *values), lines)}\n", flush=True)
    if arguments.write:
        result = results.measured(
            "tabular-regression",
            figures,
            seeds=range(arguments.seeds),
            minutes=(time.perf_counter() - began) / 60,
            command=["python", *sys.argv],
            notes="Scores of 19 quantiles on test rows; intervals are of 90 %. Default settings, one thread.",
        )
        print(f"written to {results.write(result)}")


if __name__ == "__main__":
    in_a_sentence(main)
