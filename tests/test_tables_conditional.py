"""p(anything | anything): densities against integrals, samples against densities, explanations, drawings."""

from __future__ import annotations

import warnings

import matplotlib as mpl
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest

from jointenergy import InputError, JointEnergyClassifier, JointEnergyDetector
from jointenergy.tables import plots

mpl.use("Agg")
import matplotlib.pyplot as plt

N = 300


def people(n=N):
    g = np.random.default_rng(0)
    age = g.normal(45, 12, n)
    town = np.where(g.random(n) < 0.5, "Ulm", "Jena")
    income = 1000 + 50 * age + np.where(town == "Ulm", 900, 0) + g.normal(0, 300, n)
    frame = pd.DataFrame(
        {"age": age, "income": income, "town": pd.Categorical(town), "born": pd.Timestamp("1980-01-01")}
    )
    frame["born"] += pd.to_timedelta(g.integers(0, 5000, n), unit="D")
    return frame, np.where(income > 3700, "rich", "poor")


FRAME, Y = people()


@pytest.fixture(scope="module")
def model():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return JointEnergyClassifier(max_iter=100, random_state=0).fit(FRAME, Y)


@pytest.mark.parametrize("given", [{}, {"age": 30}, {"age": 60.0, "town": "Ulm"}])
def test_a_density_of_a_number_integrates_to_one_and_its_samples_have_its_moments(model, given):
    found = model.conditional(["income"], given=given)
    at = np.linspace(-2000, 9000, 101)
    p = found.density(at)
    width = at[1] - at[0]
    assert p.sum() * width == pytest.approx(1.0, abs=0.1)
    mean = (p * at).sum() / p.sum()
    spread = np.sqrt((p * (at - mean) ** 2).sum() / p.sum())
    rows = found.sample(500, random_state=0)
    assert list(rows.columns) == ["income"]
    # A false failure in a thousand: 3.3 standard errors, and a tenth of the spread for the estimate of p itself.
    assert rows["income"].mean() == pytest.approx(mean, abs=(3.3 / 500**0.5 + 0.1) * spread)
    assert rows["income"].std() == pytest.approx(spread, rel=0.25)


def test_conditions_tell_what_the_law_says(model):
    poor, rich = (model.conditional("income", {"age": age, "town": "Jena"}).sample(200, 0) for age in (25, 65))
    assert rich["income"].mean() - poor["income"].mean() == pytest.approx(2000, abs=500)
    towns = model.conditional("town", given={"age": 45, "income": 4400})
    p = towns.density(["Ulm", "Jena"])
    assert p.sum() == pytest.approx(1.0, abs=0.02)
    assert p[0] > 0.8
    assert (towns.sample(200, random_state=0)["town"] == "Ulm").mean() == pytest.approx(p[0], abs=0.1)
    # Given the class too; and two columns at once.
    assert (model.conditional("income", y="rich").sample(100, 0)["income"] > 3500).mean() > 0.8
    both = model.conditional(["age", "town"], given={"income": 3000})
    assert both.log_density(FRAME[["age", "town"]][:4]).shape == (4,)
    np.testing.assert_allclose(
        both.log_density({"age": [40.0], "town": ["Ulm"]}), both.log_density([[40.0, "Ulm"]]), rtol=1e-12
    )
    dated = model.conditional("born", given={"age": 30}).sample(5, random_state=0)
    assert dated["born"].dtype == FRAME["born"].dtype
    assert np.isfinite(model.conditional("age", given={"born": "1985-03-01"}).log_density([40.0])).all()


def test_of_complete_rows_it_is_a_difference_of_exact_densities(model):
    rows = pd.concat([FRAME[:1]] * 5, ignore_index=True).assign(age=[20.0, 35.0, 45.0, 55.0, 80.0])
    given = {"income": rows["income"][0], "town": rows["town"][0], "born": rows["born"][0]}
    found = model.conditional("age", given).log_density(rows["age"])
    exact = model.score_samples(rows)
    np.testing.assert_allclose(found - found[0], exact - exact[0], atol=1e-8)


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda m: m.conditional("size"), "no column 'size': name one of"),
        (lambda m: m.conditional("age", {"age": 3}), "'age' is asked for twice, or given too"),
        (lambda m: m.conditional("age", {"town": "Rome"}), "'town' has no value 'Rome': it has 'Jena', 'Ulm'"),
        (lambda m: m.conditional("town", {"age": "old"}), "'age' takes a number, got 'old'"),
        (lambda m: m.conditional([]), "at least one column"),
        (lambda m: m.conditional("age").log_density({"town": ["Ulm"]}), "values have no column 'age'"),
        (lambda m: m.plot_density(["age", "income", "town"]), "one or two columns"),
        (lambda m: m.explain(FRAME[:2]).plot(5), "no row 5"),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_sentence(model, ask, sentence):
    with pytest.raises(InputError, match=sentence):
        ask(model)


def test_a_detector_has_no_labels_to_condition_on():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detector = JointEnergyDetector(max_iter=3, random_state=0).fit(FRAME[["age", "income"]].to_numpy())
    assert detector.conditional([1], given={0: 30.0}).sample(3, random_state=0).shape == (3, 1)
    with pytest.raises(InputError, match="has no labels: leave y out"):
        detector.conditional([1], y="rich")


def test_an_explanation_names_the_entry_that_is_strange(model):
    rows = FRAME[:3].copy()
    rows.loc[0, "income"] = 9000.0
    rows.loc[1, "age"] = np.nan
    found = model.explain(rows)
    assert found.top(0, 1)[0][0] == "income"
    assert found.surprise[0, 1] > 5
    assert found.surprise[1, 0] == 0
    # Usual rows surprise by nothing on average, whatever the units are.
    usual = model.explain(FRAME[100:160]).surprise
    assert np.abs(usual.mean(0)).max() < 0.6
    strange = model.explain(rows.assign(town=pd.Categorical(["Rome", "Ulm", "Ulm"])))
    assert strange.surprise[0, 2] == pytest.approx(np.log(N + 1))
    ax = found.plot(0)
    assert [label.get_text() for label in ax.get_yticklabels()][-1] == "income = 9000"
    plt.close("all")


def test_partial_dependence_is_by_conditioning(model):
    found = model.partial_dependence("income")
    np.testing.assert_allclose(found.average.sum(1), 1)
    rich = found.average[:, list(found.classes).index("rich")]
    assert rich[0] < 0.1
    assert rich[-1] > 0.9
    by_town = model.partial_dependence("town", given={"age": 50})
    assert by_town.values.tolist() == ["Jena", "Ulm"]
    assert by_town.average[1, 1] > by_town.average[0, 1]
    for drawn in (found, by_town, model.partial_dependence("born")):
        assert drawn.plot().get_xlabel() == drawn.column
    plt.close("all")


def test_densities_are_drawn(model, monkeypatch):
    monkeypatch.setattr(plots, "CURVE", 60)
    monkeypatch.setattr(plots, "MAP", 12)
    curve = model.plot_density("income", given={"age": 30}, label="age 30")
    (line,) = curve.get_lines()
    x, p = line.get_data()
    assert 0.8 < np.sum((p[1:] + p[:-1]) / 2 * np.diff(x)) < 1.1
    assert model.plot_density("town").get_ylabel() == "probability"
    assert model.plot_density(["age", "income"]).get_ylabel() == "income"
    assert model.plot_density("born").get_xlabel() == "born"
    plt.close("all")
