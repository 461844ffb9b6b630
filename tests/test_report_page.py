"""The evaluation as a whole: parts kept as they are finished, one sentence, a page that holds all it shows."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import jointenergy
from jointenergy import recipes
from jointenergy.cli.main import app
from jointenergy.data import load
from jointenergy.errors import InputError
from jointenergy.metrics.looks import Looks
from jointenergy.recipes import run_folder
from jointenergy.report import cache, comparison, health, page, suite
from jointenergy.report.drawings import drawing, picture
from jointenergy.report.ood_sets import read_ood_set
from jointenergy.report.sections import Extractor, Section, Subject, Table
from jointenergy.runs import Run
from jointenergy.runs.loading import open_run
from jointenergy.training.health import Health

CHROMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SMALL = [
    "iterations=20",
    "cadence.log=5",
    "model.network.hidden=[16]",
    "buffer.size=64",
    "cadence.check=10",
    "cadence.checkpoint=10",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of a few iterations."""
    place = tmp_path_factory.mktemp("runs") / "small"
    recipe = recipes.load("digits-jem", [*SMALL, "chain.sampling_steps=5", "batch_size=32"])
    run_folder.create(place, recipe, 0).fit()
    return place


@pytest.fixture(scope="module")
def baseline(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs") / "baseline"
    run_folder.create(place, recipes.load("digits-jem", [*SMALL, "batch_size=32"]).baseline(), 0).fit()
    return place


@pytest.fixture(scope="module")
def subject(folder):
    return suite.subject_of(open_run(folder))


def drawn(name: str = "curve"):
    with drawing(2, 2) as figure:
        figure.subplots().plot([0, 1], [1, 0])
        return picture(name, f"a <curve> & {name}", figure)


def one(subject: Subject, size: str) -> Section:
    return Section(
        "one",
        "The <first>",
        ("It was measured & found.",),
        {"accuracy": 0.989, "ece": 0.008, "healthy": 1.0, "ood_auroc.clothes.log_density": 0.991},
        (Table("A table", ("what", "value"), (("a", 0.123456), ("b", None), ("c", 12345))),),
        (drawn(),),
    )


def two(subject: Subject, size: str) -> Section | None:
    return None


@pytest.fixture
def parts(monkeypatch):
    calls: list[str] = []

    def counted(name, part):
        def called(subject, size):
            calls.append(name)
            return part(subject, size)

        return called

    monkeypatch.setattr(suite, "PARTS", {"one": counted("one", one), "two": counted("two", two)})
    return calls


class Images(HTMLParser):
    """Everything in a page that refers to something."""

    def __init__(self) -> None:
        super().__init__()
        self.images: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if tag == "img" and name == "src":
                self.images.append(value)
            elif name in ("src", "href", "data", "action", "poster", "srcset"):
                self.links.append(value)


def read_page(text: str) -> Images:
    found = Images()
    found.feed(text)
    return found


# ---------------------------------------------------------------- the page


def test_the_page_holds_all_it_shows(subject, parts, tmp_path):
    shown = page.write(suite.evaluate(subject, "quick", tmp_path), tmp_path).read_text()
    found = read_page(shown)
    assert len(found.images) == 1
    for source in found.images:
        head, data = source.split(",", 1)
        assert head == "data:image/png;base64"
        Image.open(io.BytesIO(base64.b64decode(data, validate=True))).verify()
    assert found.links
    assert all(link.startswith("#") for link in found.links)
    ids = set(re.findall(r'id="([^"]+)"', shown))
    assert all(link[1:] in ids for link in found.links)
    assert not {"script", "link", "iframe", "object", "embed"} & set(found.tags)
    assert not re.search(r"https?:|url\(|@import|file:", shown)


def test_the_page_says_what_was_found(subject, parts, tmp_path):
    shown = page.page(suite.evaluate(subject, "quick", tmp_path))
    assert "ccuracy 98.9 %, expected calibration error 0.8 %" in shown
    assert "; healthy" in shown
    assert "The &lt;first&gt;" in shown
    assert "It was measured &amp; found." in shown
    for cell in (">0.123<", ">12,345<", ">-</td>"):
        assert cell in shown
    assert "[model.network]" in shown  # the recipe
    assert "digits" in shown


def test_a_bound_in_doubt_is_not_told_at_a_glance():
    sure = {"accuracy": 0.9, "log_likelihood_upper_nats": -3.0, "likelihood_effective_share": 0.5}
    assert "log-likelihood, at most" in page._glance(sure)
    assert ">-3.00<" in page._glance(sure)
    assert "log-likelihood" not in page._glance({**sure, "likelihood_effective_share": 0.02})


def test_a_column_has_one_form_of_numbers():
    """0.9 beside 0.12345, or 12 beside 0.3, in one column."""
    assert page.texts_of([0.9, 0.12345, None, 1.0]) == ["0.900", "0.123", "-", "1.000"]
    assert page.texts_of([12.0, 0.3]) == ["12.0", "0.3"]
    assert page.texts_of([0.012, 0.00345]) == ["0.0120", "0.0034"]
    assert page.texts_of([1234.5, float("nan"), 7]) == ["1,234", "-", "7"]
    assert page.texts_of([-0.00001, 0.5]) == ["0.000", "0.500"]  # a zero has no sign


def test_a_section_shows_one_table_and_one_picture_and_folds_the_rest():
    """A page that shows all it has is read by nobody."""
    tables = tuple(
        Table(name, ("", "n"), (("a", 1),), folded) for name, folded in (("F", True), ("A", False), ("B", False))
    )
    shown = page._section(Section("s", "S", ("How.",), {}, tables, lead=("What.",)))
    open_part, folded = shown.split("<details>")
    assert "What." in open_part
    assert "<h3>A</h3>" in open_part
    assert all(part in folded for part in ("How.", "<h3>F</h3>", "<h3>B</h3>"))


def test_a_page_that_refers_outside_would_be_found():
    found = read_page('<img src="http://a.org/x.png"><a href="https://a.org">x</a>')
    assert not found.images[0].startswith("data:")
    assert not found.links[0].startswith("#")


@pytest.mark.skipif(not any(map(shutil.which, CHROMES)), reason="no browser: no Chromium to open the page in")
def test_a_browser_shows_the_page(subject, parts, tmp_path):
    shown = page.write(suite.evaluate(subject, "quick", tmp_path), tmp_path)
    chrome = next(c for c in map(shutil.which, CHROMES) if c)
    shot = tmp_path / "page.png"
    words = [chrome, "--headless", "--no-sandbox", "--disable-gpu", f"--screenshot={shot}", "--window-size=1100,1600"]
    subprocess.run([*words, shown.resolve().as_uri()], check=True, timeout=60, capture_output=True)
    seen = Image.open(shot).convert("L")
    assert seen.size == (1100, 1600)
    assert len(np.unique(np.asarray(seen))) > 20


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(not any(map(shutil.which, CHROMES)), reason="no browser: no Chromium to open the page in")
def test_nothing_is_wider_than_the_screen(subject, parts, tmp_path):
    """Numbers at the right end that a reader must scroll sideways to see, with all details unfolded."""
    from playwright.sync_api import sync_playwright

    found = suite.evaluate(subject, "quick", tmp_path)
    wide = Table("Wide", ("", *(f"column {i}" for i in range(9))), (("a row", *(0.123,) * 9), ("b", *(None,) * 9)))
    found = replace(
        found,
        sections=(*found.sections, Section("wide", "Wide", tables=(wide,))),
        seconds={f"a-part-with-a-name-{i}": 1.0 for i in range(12)},
    )
    shown = page.write(found, tmp_path)
    with sync_playwright() as driver:
        chrome = next(c for c in map(shutil.which, CHROMES) if c)
        browser = driver.chromium.launch(executable_path=chrome, args=["--no-sandbox", "--disable-gpu"])
        for width in (1200, 400):
            tab = browser.new_page(viewport={"width": width, "height": 900})
            tab.goto(shown.resolve().as_uri())
            tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            # A list on a narrow screen leaves out what has no value.
            assert tab.locator("table.many td.none").first.is_visible() == (width == 1200)
        browser.close()


# ---------------------------------------------------------------- what is kept


def test_what_was_found_is_written(subject, parts, tmp_path):
    found = suite.evaluate(subject, "quick", tmp_path)
    plain = json.loads((tmp_path / "metrics.json").read_text())
    assert plain["metrics"] == found.metrics
    assert plain["headline"] == found.headline
    assert plain["about"]["test_rows"] == len(load("digits", split="test"))
    assert (tmp_path / "pictures" / "curve.png").read_bytes() == found.sections[0].pictures[0].png


def test_parts_that_are_done_are_not_done_again(subject, parts, tmp_path):
    first = suite.evaluate(subject, "quick", tmp_path)
    again = suite.evaluate(subject, "quick", tmp_path)
    assert parts == ["one", "two"]
    assert again.sections == first.sections
    assert again.seconds == first.seconds
    suite.evaluate(subject, "full", tmp_path)
    assert parts == ["one", "two"] * 2


def test_an_evaluation_that_was_stopped_goes_on(subject, parts, tmp_path, monkeypatch):
    asked = []

    def stopped(subject, size):
        asked.append("two")
        raise KeyboardInterrupt

    whole = suite.PARTS["two"]
    monkeypatch.setitem(suite.PARTS, "two", stopped)
    with pytest.raises(KeyboardInterrupt):
        suite.evaluate(subject, "quick", tmp_path)
    monkeypatch.setitem(suite.PARTS, "two", whole)
    suite.evaluate(subject, "quick", tmp_path)
    assert parts == ["one", "two"]
    assert asked == ["two"]


@pytest.mark.parametrize("damage", ["{", '{"key": 1}', '{"key": "k", "seconds": 1, "section": {}}'])
def test_a_damaged_part_is_measured_again(tmp_path, damage):
    cache.keep(tmp_path / "one", "k", one(None, "quick"), 1.0)
    assert cache.found(tmp_path / "one", "k") == (one(None, "quick"), 1.0)
    assert cache.found(tmp_path / "one", "another") is None
    (tmp_path / "one" / cache.SECTION).write_text(damage)
    assert cache.found(tmp_path / "one", "k") is None


@pytest.mark.parametrize("what", ["rows", "labels", "set", "extractor", "settings", "attacks"])
def test_what_a_part_depends_on_is_measured_again(subject, tmp_path, monkeypatch, what):
    np.save(tmp_path / "set.npy", np.zeros((40, 64), dtype=np.float32))
    linear = nn.Linear(64, 3)
    whole = replace(
        subject,
        ood_sets=[read_ood_set("set", tmp_path / "set.npy", subject.run)],
        extractor=Extractor("named", linear),
    )
    before = cache.key_of(whole, "quick")
    assert cache.key_of(whole, "quick") == before
    if what == "rows":
        whole = replace(whole, test=replace(whole.test, x=whole.test.x.flip(0)))
    elif what == "labels":
        whole = replace(whole, test=replace(whole.test, y=whole.test.y.flip(0)))
    elif what == "set":
        rows = np.zeros((40, 64), dtype=np.float32)
        rows[-1] = 0.5
        np.save(tmp_path / "set.npy", rows)
    elif what == "extractor":
        linear.weight.data[0, 0] += 1
    elif what == "settings":
        monkeypatch.setattr(whole.run, "sampling", replace(whole.run.sampling, steps=7))
    else:
        monkeypatch.setattr(cache, "find_spec", lambda name: None)
    assert cache.key_of(whole, "quick") != before


@pytest.mark.parametrize("name", ["run", "baseline", "my run", ""])
def test_further_runs_have_names_of_their_own(subject, name):
    with pytest.raises(InputError, match="another run cannot be called"):
        replace(subject, others={name: subject.run})


def test_a_run_with_a_density_is_no_baseline(subject, folder):
    with pytest.raises(InputError, match="a baseline is trained with cross-entropy only"):
        suite.subject_of(subject.run, baseline=open_run(folder))


def test_a_wrapped_classifier_is_evaluated(subject, parts, tmp_path):
    classifier = jointenergy.wrap(nn.Linear(64, 10), {"digit": 10}, bounds=(-1, 1), event_shape=(64,))
    found = suite.evaluate(Subject(classifier, subject.test), "quick", tmp_path)
    assert "a wrapped classifier" in page.page(found)


def test_other_weights_are_measured_again(subject):
    before = cache.key_of(subject, "quick")
    assert cache.key_of(subject, "quick") == before
    model = next(subject.run.model.parameters())
    kept = model.detach().clone()
    model.data.add_(1e-3)
    assert cache.key_of(subject, "quick") != before
    model.data.copy_(kept)
    assert cache.key_of(subject, "quick") == before
    assert cache.key_of(subject, "full") != before


# ---------------------------------------------------------------- one sentence


@pytest.mark.parametrize(
    ("metrics", "named", "says"),
    [
        (
            {"accuracy": 0.9889, "ece": 0.0081, "ood_auroc.clothes.log_density": 0.991, "healthy": 1.0},
            ["clothes"],
            "accuracy 98.9 %, expected calibration error 0.8 %, OOD set clothes, AUROC 0.99; healthy",
        ),
        (
            {
                "ood_auroc.noise.log_density": 1.0,
                "ood_auroc.mixed_pairs.log_density": 0.61,
                "ood_fpr95.mixed_pairs.log_density": 0.8,
                "healthy": 0.0,
            },
            [],
            "hardest OOD set: mixed pairs, AUROC 0.61 (FPR at 95 % TPR: 80 %); NOT healthy",
        ),
        ({"ood_auroc.a-b.log_density": 0.48}, ["a-b"], "OOD set a b, AUROC 0.48"),
        ({"accuracy": 0.5, "ood_auroc.noise.max_probability": 0.1}, [], "accuracy 50.0 %"),
        ({}, [], "prediction was not measured"),
    ],
)
def test_the_headline(metrics, named, says):
    assert suite.headline(metrics, named) == says


# ---------------------------------------------------------------- who can be evaluated


def test_an_unknown_part_is_named(subject, tmp_path):
    with pytest.raises(InputError, match="no part 'colour'"):
        suite.evaluate(subject, "quick", tmp_path, only=["colour"])


def test_a_baseline_of_other_x_is_refused(subject, folder, tmp_path):
    other = recipes.load("digits-jem", [*SMALL, "data.low=0.0", "batch_size=32", "chain.sampling_steps=5"])
    run_folder.create(tmp_path / "other", other, 0).fit()
    with pytest.raises(InputError, match="compare runs on the same x"):
        suite.subject_of(subject.run, baseline=open_run(tmp_path / "other"))


# ---------------------------------------------------------------- side by side


def evaluated(place: Path, name: str, accuracy: float, size: str = "quick") -> Path:
    (place / name / "evaluation").mkdir(parents=True)
    plain = {"suite": size, "headline": name, "metrics": {"accuracy": accuracy, name: 1.0}, "about": {"data": "digits"}}
    (place / name / "evaluation" / "metrics.json").write_text(json.dumps(plain))
    return place / name


def test_runs_side_by_side(tmp_path):
    found = [comparison.read(evaluated(tmp_path, "a", 0.9)), comparison.read(evaluated(tmp_path, "b", 0.8, "full"))]
    table, says = comparison.compare(found)
    assert table.columns == ("metric", str(tmp_path / "a"), str(tmp_path / "b"))
    assert table.rows == (("accuracy", 0.9, 0.8), ("a", 1.0, None), ("b", None, 1.0))
    assert len(says) == 1
    assert "suites differ" in says[0]


def test_a_run_that_was_not_evaluated_is_named(tmp_path):
    with pytest.raises(InputError, match="has not been evaluated: run `jointenergy evaluate"):
        comparison.read(tmp_path)
    place = evaluated(tmp_path, "a", 0.9)
    (place / "evaluation" / "metrics.json").write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        comparison.read(place)


# ---------------------------------------------------------------- the commands


def shell(*words: str):
    return CliRunner().invoke(app, [*words])


def test_evaluate_and_compare(folder, baseline, tmp_path):
    place = tmp_path / "run"
    shutil.copytree(folder, place)
    idx = tmp_path / "grey-images-idx3-ubyte"
    idx.write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(range(256)) * 12 + bytes(64))
    words = ("--part", "ood", "--part", "prediction", "--ood", f"grey={idx}", "--against", str(baseline))
    found = shell("evaluate", str(place), *words)
    assert found.exit_code == 0, found.output
    assert re.search(r"OOD set grey, AUROC [01]\.\d\d", found.output)
    assert "baseline 0." in found.output
    plain = json.loads((place / "evaluation" / "metrics.json").read_text())
    assert 0 <= plain["metrics"]["baseline.accuracy"] <= 1
    assert 0 <= plain["metrics"]["ood_auroc.grey.log_density"] <= 1
    assert (place / "evaluation" / "report.html").is_file()
    side = shell("compare", str(place), str(place), "--only", "accuracy", "--json")
    assert json.loads(side.output)["accuracy"] == {str(place): plain["metrics"]["accuracy"]}
    # One part more is added to the page, and does not take the place of the others.
    assert shell("evaluate", str(place), *words, "--part", "health").exit_code == 0
    more = json.loads((place / "evaluation" / "metrics.json").read_text())["metrics"]
    assert {*plain["metrics"], "healthy"} == set(more)
    shown = shell("compare", str(place), str(place), "--only", "accuracy")
    assert f"{plain['metrics']['accuracy']:.4g}" in shown.output


def test_an_exported_run_is_evaluated_beside_its_file(folder, tmp_path):
    file = open_run(folder).export(tmp_path / "model.safetensors")
    found = shell("evaluate", str(file), "--part", "prediction", "--part", "training")
    assert found.exit_code == 0, found.output
    assert (tmp_path / "model-evaluation" / "report.html").is_file()
    assert "accuracy" in shell("compare", str(file)).output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--ood", "grey"], "--ood takes NAME=DIR, got 'grey'"),
        (["--ood", "grey=nowhere"], "nowhere"),
        (["--ood", "a=.", "--ood", "a=."], "--ood names 'a' twice"),
        (["--against", "nowhere"], "there is no run folder or exported file nowhere"),
        (["--extractor", "nowhere.pt"], "nowhere.pt"),
        (["--part", "colour"], "there is no part 'colour'"),
    ],
)
def test_what_is_wrong_is_one_sentence(folder, tmp_path, words, sentence):
    found = shell("evaluate", str(folder), "--out", str(tmp_path), *words)
    assert isinstance(found.exception, InputError)
    assert sentence in str(found.exception)
    assert "\n" not in str(found.exception)


# ---------------------------------------------------------------- health and training


def test_health_and_training_are_told(subject):
    told = health.health(subject, "quick")
    assert told.metrics["healthy"] in (0.0, 1.0)
    assert told.says[0].startswith("Healthy" if told.metrics["healthy"] else "Not healthy")
    energies, looks = told.tables
    assert len(energies.rows) == 9
    assert looks.columns == ("check", "samples", "samples given a label", "persistent chains", "healthy")
    curves = health.training(subject, "quick")
    assert curves is not None
    assert (curves.metrics["training_seconds"] or 0) > 0
    Image.open(io.BytesIO(curves.pictures[0].png)).verify()


def test_the_worst_findings_are_shown_and_the_rest_is_folded(subject, monkeypatch):
    """A bad run once had a list of sixteen sentences, and a note that had them all again."""
    looks = Looks(distance=0.01, coverage=0.1, unlike=0.9, copies=0.0, rows=100)
    bad = Health(finite=True, auroc_fresh=0.99, auroc_fresh_long=1.0, at_bounds=0.5, recovery=0.0, fresh=looks)
    told_twice = f"the run is not healthy: {'; '.join(bad.complaints)}"
    monkeypatch.setattr(Run, "health", lambda run: bad)
    monkeypatch.setattr(subject.run, "notes", ("a caveat", told_twice))
    told = health.health(subject, "quick")
    assert told.lead == (
        "Not healthy.",
        "Fresh chains are distinguishable from data by energy (AUROC 0.99).",
        "90% of samples are unlike all data rows.",
        "Samples cover 10% of the data (real data: 97 %).",
        "3 more findings in the details.",
        "a caveat",
    )
    assert {f"{c[0].upper()}{c[1:]}." for c in bad.complaints} < set(told.says)
    shown, folded = page._section(told).split("<details>")
    assert all(said in shown for said in told.lead)
    assert "drift away from data" not in shown
    assert "drift away from data" in folded


def test_an_exported_run_has_a_verdict_without_persistent_chains(folder, tmp_path):
    """A published file was once not judged at all."""
    file = open_run(folder).export(tmp_path / "model.safetensors")
    told = health.health(suite.subject_of(open_run(file)), "quick")
    assert told.metrics["healthy"] in (0.0, 1.0)
    assert any("persistent chains were not kept" in said for said in told.says)
    assert told.tables[1].columns == ("check", "samples", "samples given a label", "healthy")


def test_the_guards_events_are_told(folder, tmp_path):
    place = tmp_path / "run"
    shutil.copytree(folder, place)
    line = {"event": "rollback", "iteration": 10, "says": "the run went back"}
    (place / "events.jsonl").write_text(json.dumps(line) + "\n")
    curves = health.training(suite.subject_of(open_run(place)), "quick")
    assert curves is not None
    assert curves.says == ("Iteration 10: the run went back.",)
    assert curves.metrics["interventions"] == 1.0


def test_a_baseline_has_no_health(baseline):
    told = health.health(suite.subject_of(open_run(baseline)), "quick")
    assert "healthy" not in told.metrics
    assert "trained without a density of x" in told.says[0]


def test_a_table_with_short_rows_is_refused():
    """A stored section with such a table broke the page that shows it."""
    with pytest.raises(InputError, match="fewer cells than its 2 columns"):
        Table("t", ("a", "b"), (("x", 1.0), ("y",)))
