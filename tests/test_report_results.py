"""Published results: one schema, one writer, from a clean tree alone; and every file of results/ keeps to it."""

import json
import math
import re
import socket
import subprocess
from pathlib import Path

import pytest

from jointenergy.errors import InputError
from jointenergy.metrics.registry import NAMES, Metric, range_of
from jointenergy.report import provenance, results
from jointenergy.report.results import Result

ROOT = Path(__file__).resolve().parents[1]
KEYS = ["name", "command", "commit", "hardware", "date", "minutes", "seeds", "metrics", "paper", "notes"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def example(**changes: object) -> Result:
    values: dict[str, object] = {
        "name": "toy-jem",
        "command": "jointenergy reproduce toy-jem --seeds 3",
        "commit": COMMIT,
        "hardware": "A CPU, 2 cores; torch 2.11.0",
        "date": "2026-01-31",
        "minutes": 4.5,
        "seeds": (0, 1, 5),
        "metrics": {
            "accuracy": Metric([0.9, 0.8, 1.0]),
            "fid.inception.fresh": Metric([12.5, 13.0, 11.0], "10,000 fresh chains"),
        },
        "paper": {"accuracy": 0.929, "source": "Table 1"},
        "notes": "",
    }
    return Result(**{**values, **changes})


@pytest.fixture
def no_git(monkeypatch):
    """A copied tree: git knows nothing, the variable names the commit."""
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv(provenance.VARIABLE, COMMIT)


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    outcome = subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True)
    return outcome.stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A clean repository that holds a package, which takes the place of ours."""
    root = tmp_path / "repository"
    package = root / "src" / "package"
    package.mkdir(parents=True)
    (package / "module.py").write_text("x = 1\n")
    (root / ".gitignore").write_text("runs/\n")
    git(tmp_path, "init", "-q", str(root))
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "first")
    monkeypatch.setattr(provenance, "PACKAGE", package)
    monkeypatch.delenv(provenance.VARIABLE, raising=False)
    return root


# What is written.


def test_the_file_has_the_keys_of_the_schema_in_order_and_reads_back_equal(tmp_path, no_git):
    path = results.write(example(), tmp_path / "new" / "results")
    assert path.name == "toy-jem.json"
    values = json.loads(path.read_text())
    assert list(values) == KEYS
    assert values["seeds"] == [0, 1, 5]
    assert list(values["metrics"]["accuracy"]) == ["mean", "std", "values"]
    assert values["metrics"]["accuracy"]["mean"] == pytest.approx(0.9)
    assert values["metrics"]["accuracy"]["std"] == pytest.approx(0.1)  # the sample's, not 0.0816
    assert '  "seeds": [0, 1, 5],\n' in path.read_text()
    assert results.read(path) == example()
    assert results.all_in(path.parent) == [example()]
    assert [p.name for p in path.parent.iterdir()] == ["toy-jem.json"]


def test_a_crash_leaves_the_file_that_was_there(tmp_path, no_git, monkeypatch):
    path = results.write(example(), tmp_path)
    # Who has the old file open keeps it whole: a new one takes its name.
    (tmp_path / "open").hardlink_to(path)
    results.write(example(minutes=8.0), tmp_path)
    assert json.loads((tmp_path / "open").read_text())["minutes"] == 4.5
    results.write(example(), tmp_path)
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        results.write(example(minutes=9.0), tmp_path)
    assert results.read(path) == example()


def test_a_failed_seed_is_null_and_told(tmp_path, no_git):
    result = example(metrics={"accuracy": Metric([0.9, math.nan, None]), "ece": Metric([0.1, 0.2, 0.3])})
    values = json.loads(results.write(result, tmp_path).read_text())
    assert values["metrics"]["accuracy"] == {"mean": 0.9, "std": 0.0, "values": [0.9, None, None]}
    assert values["notes"] == "No value of accuracy for 2 of 3 seeds (1, 5): mean and std are over the others."
    assert results.read(tmp_path / "toy-jem.json") == result
    none = Metric([None, None])
    assert (none.mean, none.std) == (None, None)


def test_measured_fills_in_where_a_figure_comes_from(no_git, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["python", tmp_path / "benchmarks" / "speed.py", "--data=/somewhere/else/mnist"]
    result = results.measured("speed", {"step_ms": [3.0]}, seeds=[0], minutes=0.123456, command=words)
    assert result.command == "python benchmarks/speed.py --data=mnist"
    assert result.commit == COMMIT
    assert result.minutes == 0.12
    assert result.metrics["step_ms"].std == 0.0


# What is refused.


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"metrics": {"accuracy": Metric([0.9, 0.8])}}, "has 2 value(s) where 3 seed(s) were started"),
        ({"metrics": {"accuracy": Metric([0.9, 1.2, 0.8])}}, "accuracy of seed 1 must be a fraction between 0 and 1"),
        ({"metrics": {"accuracy": Metric([0.9, -0.1, 0.8])}}, "accuracy of seed 1 must be a fraction"),
        ({"metrics": {"healthy": Metric([0.9, 1, 0])}}, "healthy of seed 0 must be 0 or 1"),
        ({"metrics": {"interventions": Metric([0.5, 1, 2])}}, "interventions of seed 0 must be a count"),
        ({"metrics": {"nll": Metric([0.5, -1, 2])}}, "nll of seed 1 must be not negative"),
        ({"metrics": {"nll": Metric([0.5, math.inf, 2])}}, "nll of seed 1 is inf: give None"),
        ({"metrics": {"acuracy": Metric([0.9, 0.8, 0.7])}}, "did you mean 'accuracy'"),
        ({"metrics": {}}, "has no metric"),
        ({"seeds": (0, 1, 1)}, "seeds that are different"),
        ({"seeds": ()}, "seeds that are different"),
        ({"name": "../escape"}, "a result's name has letters"),
        ({"commit": "main"}, "must be hexadecimal"),
        ({"date": "31.1.2026"}, "the date of result"),
        ({"minutes": math.nan}, "the minutes of result"),
        ({"command": ""}, "the command of result 'toy-jem' is empty"),
        ({"command": "jointenergy reproduce toy --data /home/a/data"}, "the command of result 'toy-jem' names an abso"),
        ({"command": "jointenergy reproduce toy --data=~/data"}, "the command of result 'toy-jem' names an abso"),
        ({"notes": "see /tmp/log"}, "the notes of result 'toy-jem' names an absolute path"),
        ({"paper": {"accuracy": 92.9}}, "accuracy of the paper must be a fraction"),
        ({"paper": {"accuracy": "92.9"}}, "the paper's accuracy in result 'toy-jem' is a number"),
        ({"paper": {"page": 3}}, "there is no metric called 'page'"),
    ],
)
def test_what_does_not_fit_is_one_sentence(changes, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        example(**changes)


@pytest.mark.parametrize("name", [re.sub("<.*?>", "cifar10-train", n) for n in NAMES] + ["step_ms", "x_nats.a.b"])
def test_the_names_of_the_house_are_known(name):
    range_of(name)


def test_a_misspelled_score_is_refused():
    with pytest.raises(
        InputError,
        match=r"'ood_auroc\.svhn\.log_densty' has the unknown score 'log_densty': did you mean 'log_density'",
    ):
        example(metrics={"ood_auroc.svhn.log_densty": Metric([0.9, 0.9, 0.9])})
    example(metrics={"baseline.ood_auroc.svhn.knn": Metric([0.9, 0.9, 0.9])})


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("ood_auroc.log_density", "'ood_auroc.<set>.<score>'"),
        ("fid.<extractor>", "'fid.<extractor>.<which>'"),
        ("f1_weighted", "'f1_"),
        ("Accuracy", "'accuracy'"),
        ("accuracyX", "'accuracy'"),
        ("oodXauroc.<set>.<score>", "'ood_auroc.<set>.<score>'"),
        ("_ms", "a name that ends in a unit"),
    ],
)
def test_other_names_give_the_nearest(name, nearest):
    with pytest.raises(InputError, match=re.escape(nearest)):
        range_of(name)


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda v: v["metrics"]["accuracy"].update(mean=0.95), "the mean of accuracy is 0.95"),
        (lambda v: v["metrics"]["accuracy"].update(std=0.01), "the std of accuracy is 0.01"),
        (lambda v: v["metrics"]["accuracy"]["values"].pop(), "of accuracy is"),
        (lambda v: v["metrics"]["accuracy"].update(mean=None), "the mean of accuracy is None"),
        (lambda v: v["metrics"]["accuracy"].update(best=1.0), "best"),
        (lambda v: v.pop("hardware"), "hardware"),
        (lambda v: v.update(remark="x"), "remark"),
        (lambda v: v.update(minutes="4.5"), "minutes"),
        (lambda v: v.update(name="other"), "a file is named after its result"),
    ],
)
def test_a_file_that_was_edited_is_refused(edit, sentence, tmp_path, no_git):
    path = results.write(example(), tmp_path)
    values = json.loads(path.read_text())
    edit(values)
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match=re.escape(sentence)):
        results.read(path)


def test_a_silent_gap_in_a_file_is_refused(tmp_path, no_git):
    path = results.write(example(metrics={"accuracy": Metric([0.9, None, 0.7])}), tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "notes": ""}))
    with pytest.raises(InputError, match="does not say which seeds have no value"):
        results.read(path)
    path.write_text("{")
    with pytest.raises(InputError, match="is no result"):
        results.read(path)
    with pytest.raises(InputError, match="there is no result file"):
        results.read(tmp_path / "none.json")


# Where it comes from.


def test_a_clean_tree_gives_its_commit_and_one_that_is_not_names_what_changed(repository, tmp_path):
    head = git(repository, "rev-parse", "HEAD")
    assert provenance.commit() == head
    path = results.write(example(commit=head), repository / "results")
    # The next result is written beside the first, before either is committed.
    (repository / "docs").mkdir()
    (repository / "docs" / "page.md").write_text("new")
    (repository / "runs").mkdir()
    (repository / "runs" / "log").write_text("ignored")
    assert results.write(example(commit=head), repository / "results") == path
    with pytest.raises(InputError, match="was measured at commit 0123456789ab and the tree is at"):
        results.write(example(), tmp_path)
    (repository / "src" / "package" / "module.py").write_text("x = 2\n")
    with pytest.raises(InputError, match=r"clean tree, but src/package/module\.py differ"):
        results.write(example(commit=head), tmp_path)
    git(repository, "add", "-A")
    with pytest.raises(InputError, match=r"src/package/module\.py"):
        provenance.commit()
    git(repository, "commit", "-q", "-m", "second")
    assert provenance.commit() == git(repository, "rev-parse", "HEAD") != head
    # What git does not know yet can be imported all the same.
    for i in range(7):
        (repository / "src" / "package" / f"new{i}.py").touch()
    with pytest.raises(InputError, match=r"new0\.py, .*new4\.py and 2 more differ"):
        provenance.commit()
    assert not list(tmp_path.glob("*.json"))


def test_git_outweighs_the_variable(repository, monkeypatch):
    monkeypatch.setenv(provenance.VARIABLE, COMMIT)
    assert provenance.commit() == git(repository, "rev-parse", "HEAD")
    # A package that is installed below a repository and not tracked by it is no part of it.
    installed = repository / "runs" / "site-packages" / "package"
    installed.mkdir(parents=True)
    (installed / "module.py").touch()
    assert provenance.commit(installed) == COMMIT


@pytest.mark.parametrize("value", ["", "main", "0123456789ABCDEF", "0123"])
def test_a_copy_without_git_needs_the_variable(value, no_git, monkeypatch):
    assert provenance.commit() == COMMIT
    monkeypatch.setenv(provenance.VARIABLE, value)
    with pytest.raises(InputError, match=f"set {provenance.VARIABLE} to the commit"):
        provenance.commit()


def test_the_digest_is_of_the_code_alone(repository):
    package = repository / "src" / "package"
    before = provenance.source_digest()
    (package / "recipe.toml").write_text("# accuracy 0.9")
    assert provenance.source_digest() == before
    (package / "module.py").rename(package / "other.py")
    moved = provenance.source_digest()
    (package / "other.py").write_text("x = 3\n")
    assert len({before, moved, provenance.source_digest()}) == 3


def test_the_hardware_names_no_machine_and_no_path():
    text = provenance.hardware()
    assert re.search(r"\d+ cores; (.+; )?torch \d", text)
    assert socket.gethostname() not in text
    assert not provenance.names_a_path(text)


def test_commands_are_relative(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    words = [here / "a.py", f"--out={here.parent / 'next'}", "--x", "1/2", "https://a.org/b", "two words"]
    assert provenance.command(words) == "a.py --out=../next --x 1/2 https://a.org/b 'two words'"
    assert provenance.names_a_path(f"python {here}")
    assert not provenance.names_a_path("accuracy/nll of https://a.org/b, 3 / 4, results/x.json")


# The files of this repository.


def test_every_published_result_keeps_to_the_schema():
    found = results.all_in(ROOT / "results")
    assert len(found) == len(list((ROOT / "results").glob("*.json")))
