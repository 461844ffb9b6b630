"""The page of results is what its command writes from the files: no figure on it is typed by hand."""

import re
from dataclasses import replace

import pytest
from scripts import results_page

from jointenergy import recipes
from jointenergy.experiments import study
from jointenergy.metrics.registry import Metric
from jointenergy.report import results

TEXT = results_page.PAGE.read_text()
FOUND = {result.name: result for result in results.all_in(results_page.ROOT / "results")}
NAMES = [*recipes.names(), *study.names()]
REMEDY = "run `python scripts/results_page.py`"


def test_the_page_is_what_the_command_writes():
    assert results_page.page(TEXT, FOUND) == TEXT, REMEDY


def test_another_figure_makes_another_page():
    """Teeth: of a figure, of the number of seeds, and of a verdict."""
    own = FOUND["digits-jem"]
    lower = {**own.metrics, "accuracy": Metric([0.5 for _ in own.seeds])}
    judged = {**own.metrics, "healthy": Metric(own.metrics["healthy"].values, "second verdict")}
    for changed in (replace(own, metrics=lower), replace(own, metrics=judged)):
        assert results_page.page(TEXT, {**FOUND, "digits-jem": changed}) != TEXT
    assert results_page.page(TEXT, {n: r for n, r in FOUND.items() if n != "mask-mixed"}) != TEXT


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_variant_and_study_has_one_place(name):
    """With its figures, or with the words that it was not run."""
    rows = [line for line in TEXT.splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1, REMEDY
    result = FOUND.get(recipes.result_name(name))
    assert ("not run" in rows[0]) == (result is None)
    assert result is None or f"({'../results/' + result.name}.json)" in rows[0]


def test_every_figure_of_a_recipe_is_on_the_page():
    """A result that is reproduced and told nowhere would be left out in silence."""
    made = [n for n, r in FOUND.items() if re.match(r"jointenergy (reproduce|study) ", r.command)]
    assert [n for n in made if f"results/{n}.json" not in TEXT] == []


def test_prose_has_no_figures():
    prose = re.sub(r"<!-- (?!end).*?<!-- end -->|```.*?```|^\|.*$", "", TEXT, flags=re.S | re.M)
    assert re.findall(r"\d?\.\d{3,}", prose) == []


def test_what_differs_is_said_of_recipes_that_exist():
    assert set(results_page.DIFFERS) <= set(NAMES)
    assert {recipes.result_name(n) for n in NAMES} >= set(results_page.OLD)


@pytest.mark.parametrize("name", [n for n in NAMES if recipes.result_name(n) in FOUND])
def test_cross_entropy_beside_log_p_of_x_and_y_is_said(name):
    """Where a recipe adds log p(y given x) to the paper's log p(x, y), the row says so with its weight."""
    if name not in recipes.names():
        return
    weights = recipes.load(name).objective
    said = re.search(r"plus exact cross-entropy, weight (\d+)", results_page.DIFFERS.get(name, ""))
    inherits = results_page.DIFFERS.get(name, "").startswith("as `summed`")
    if weights.log_p_xy > 0 and weights.log_p_y_given_x > 0 and not inherits:
        assert said
        assert float(said[1]) == weights.log_p_y_given_x
