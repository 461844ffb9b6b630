"""Tables of figures in the README and the documents say what the result files say, to the printed digit."""

import re
import statistics
from pathlib import Path

import pytest

from jointenergy.report import results
from jointenergy.report.results import Result

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"

# What the README calls a measure, and the names of it in a result.
MEASURES = {
    "accuracy": ["accuracy"],
    "accuracy by sampling": ["accuracy_by_sampling"],
    "AUROC, FashionMNIST": ["ood_auroc.fashion-mnist.log_density"],
    "AUROC, EMNIST letters": ["ood_auroc.emnist-letters.log_density"],
    "AUROC, KMNIST": ["ood_auroc.kmnist.log_density"],
    "log-likelihood bounds, nats": ["log_likelihood_lower_nats", "log_likelihood_upper_nats"],
}
KERNELS = {
    "Langevin, Gaussian": "gaussian-langevin",
    "Langevin, network": "network-langevin",
    "MALA, Gaussian": "gaussian-mala",
    "MALA, network": "network-mala",
    "Gibbs-With-Gradients, Ising": "ising-gwg",
    "Gibbs-With-Gradients, Potts": "potts-gwg",
}
ONE_THREAD = {  # measured later, and more of them
    **dict(list(KERNELS.items())[:4]),
    "HMC, Gaussian": "gaussian-hmc",
    "HMC, network": "network-hmc",
    "Underdamped Langevin, Gaussian": "gaussian-underdamped",
    "Underdamped Langevin, network": "network-underdamped",
    **dict(list(KERNELS.items())[4:]),
}
NONE = "n/a"


def result(name: str) -> Result:
    return results.read(ROOT / "results" / f"{name}.json")


def mean(of: Result, metric: str) -> float:
    value = of.metrics[metric].mean
    assert value is not None
    return value


def tables(document: Path) -> list[list[dict[str, str]]]:
    """Every table of a page: its rows, by the names of the columns."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", document.read_text(), flags=re.M):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
        found.append([dict(zip(head, row, strict=True)) for row in rows])
    return found


def table_with(document: Path, column: str, n: int = 0) -> list[dict[str, str]]:
    return [t for t in tables(document) if column in t[0]][n]


def printed(value: float, like: str) -> str:
    """The value with as many decimals as the text has."""
    return f"{value:.{len(like.partition('.')[2])}f}"


HEADLINES = table_with(README, "jointenergy")


@pytest.mark.parametrize("row", HEADLINES, ids=lambda row: f"{row['model and data']}: {row['measure']}")
def test_a_headline_is_what_its_file_says(row):
    """Fails for a figure, a paper's figure or a number of seeds that the file does not have."""
    found = re.fullmatch(r"\[(.+)\]\(results/(.+)\.json\)", row["file"])
    assert found
    assert found[1] == found[2]
    measured, names = result(found[2]), MEASURES[row["measure"]]
    ours = row["jointenergy"].split(" to ")
    assert ours == [printed(mean(measured, n), like=o) for n, o in zip(names, ours, strict=True)]
    assert row["seeds"] == str(len(measured.seeds))
    if row["paper"] == NONE:
        assert not set(names) & set(measured.paper)
        return
    papers = row["paper"].split(" to ")
    theirs = [float(measured.paper[n]) for n in names]
    assert papers == [printed(t, like=p) for t, p in zip(theirs, papers, strict=True)]
    if len(names) == 1:
        assert ("below the paper" in row["what differs from the paper"]) == (float(ours[0]) < theirs[0])


def test_the_headlines_have_the_misses():
    assert len(HEADLINES) >= 8
    assert sum("below the paper" in row["what differs from the paper"] for row in HEADLINES) >= 3


def ratio(of: Result, quantity: str, case: str, peer: str) -> str:
    ours, theirs = (of.metrics.get(f"{quantity}.{case}.{who}") for who in ("jointenergy", peer))
    pairs = [] if ours is None or theirs is None else zip(ours.values, theirs.values, strict=True)
    ratios = [a / b for a, b in pairs if a and b]
    return f"{statistics.median(ratios):.2f}" if ratios else NONE


@pytest.mark.parametrize(("n", "name", "kernels"), [(0, "chains", KERNELS), (1, "chains-threads-1", ONE_THREAD)])
def test_the_speed_of_chains_is_what_the_file_says(n, name, kernels):
    rows, measured = table_with(ROOT / "docs" / "speed.md", "kernel and target", n), result(name)
    assert [row["kernel and target"] for row in rows] == list(kernels)
    for row in rows:
        case = kernels[row.pop("kernel and target")]
        assert row.pop("ebmkit, effective samples") == ratio(measured, "effective_samples_per_second", case, "ebmkit")
        for peer, said in row.items():
            assert said == ratio(measured, "samples_per_second", case, peer.replace(", ", "-")), (case, peer)


def test_the_speed_by_the_number_of_chains_is_what_the_file_says():
    rows, measured = table_with(ROOT / "docs" / "speed.md", "against ebmkit"), result("chains-threads-1")
    assert [row["against ebmkit"] for row in rows] == list(ONE_THREAD)
    for row in rows:
        case = ONE_THREAD[row.pop("against ebmkit")]
        for column, said in row.items():
            chains = column.removesuffix(" chains").replace(",", "")
            where = case if chains == "1000" else f"{case}.chains-{chains}"
            assert said == ratio(measured, "samples_per_second", where, "ebmkit"), (case, column)


def test_the_speed_of_training_is_what_the_files_say():
    page = ROOT / "docs" / "speed.md"
    names = {
        "accuracy": "accuracy",
        "calibration error (ECE)": "ece",
        "negative log-likelihood": "nll",
        "AUROC, KMNIST": "ood_auroc.kmnist.log_density",
    }
    for row, file in zip(table_with(page, "AUROC, KMNIST"), ("training", "training-ebmkit"), strict=True):
        assert f"({'../results/' + file}.json)" in row["file"]
        assert {k: row[k] for k in names} == {k: printed(mean(result(file), n), row[k]) for k, n in names.items()}
    assert f"{mean(result('training'), 'speed_of_ebmkit_times'):.2f} times as fast" in page.read_text()
    parts = {"original loop": "original", "jointenergy": "engine", "floor": "floor"}
    measured = result("iteration")
    for row in table_with(page, "times as fast"):
        case = f"{row['network'].lower().replace('wideresnet', 'wrn')}.batch-{row['batch']}"
        assert row["times as fast"] == printed(mean(measured, f"speedup_times.{case}"), row["times as fast"])
        for column, part in parts.items():
            assert row[column] == printed(mean(measured, f"iteration_ms.{part}.{case}"), row[column])


def test_attacks_on_refined_rows_are_what_the_file_says():
    rows, measured = (
        table_with(ROOT / "docs" / "evaluation" / "robustness.md", "L2 128/255"),
        result("digits-jem-refined"),
    )
    assert [row["refinement steps"] for row in rows] == ["0", "1", "10"]
    for row in rows:
        steps = row.pop("refinement steps")
        for column, said in row.items():
            norm, _, radius = (
                column.replace("unchanged", "L2 0").replace("L-inf", "linf").replace("L2", "l2").partition(" ")
            )
            name = f"robust_accuracy.{norm}.{steps}.{radius.replace('/', '-')}"
            assert said == printed(mean(measured, name), said), name


def test_scores_of_predicted_distributions_are_what_the_file_says():
    rows, measured = table_with(ROOT / "docs" / "scikit-learn.md", "quantile boosting"), result("tabular-regression")
    peers = {"Bayesian ridge": "bayesian-ridge", "forest": "forest-residuals", "boosting": "quantile-boosting"}
    for row, name in zip(rows, ("diabetes", "friedman1", "friedman2", "friedman3", "widening"), strict=True):
        for column, said in list(row.items())[1:]:
            what, _, method = f"crps, {column}".rpartition(", ")
            method = peers.get(method, method.replace(" ", "-"))
            metric = f"{'interval_coverage' if 'coverage' in what else 'crps'}.{name}.{method}"
            assert said == (printed(mean(measured, metric), said) if metric in measured.metrics else NONE), metric


def test_own_images_do_what_the_file_says():
    (row,), measured = table_with(ROOT / "docs" / "data.md", "logistic regression on pixels"), result("init-cifar4")
    assert row.pop("healthy") == ("yes" if mean(measured, "healthy") == 1.0 else "no")
    names = ("accuracy", "baseline.accuracy", "ece", "training_minutes")
    assert list(row.values()) == [printed(mean(measured, n), said) for n, said in zip(names, row.values(), strict=True)]


def test_the_finetuned_classifier_is_what_the_file_says():
    measured = result("finetune-classifier")
    names = ["accuracy", "ece", "ood_auroc.fashion-mnist.log_density"]
    for row, name in zip(table_with(ROOT / "docs" / "fit.md", "fine-tuned"), names, strict=True):
        assert row["classifier"] == printed(mean(measured, f"baseline.{name}"), row["classifier"])
        assert row["fine-tuned"] == printed(mean(measured, name), row["fine-tuned"])
    assert mean(measured, "healthy") == 1.0
    assert (
        f"{mean(measured, 'finetuning_cpu_seconds'):.0f} seconds of CPU time" in (ROOT / "docs" / "fit.md").read_text()
    )


def test_the_defaults_of_fit_do_what_the_files_say():
    rows = table_with(ROOT / "docs" / "fit.md", "logistic regression")
    assert len(rows) == len(list((ROOT / "results").glob("fit-defaults-*.json"))) == 8
    for row in rows:
        measured = result(f"fit-defaults-{row['result'].partition('](')[0].strip('[')}")
        assert row["accuracy"] == printed(mean(measured, "accuracy"), row["accuracy"])
        assert row["logistic regression"] == printed(mean(measured, "baseline.accuracy"), row["logistic regression"])
        assert row["ECE"] == printed(mean(measured, "ece"), row["ECE"])
        assert row["healthy"] == ("yes" if mean(measured, "healthy") == 1.0 else "no")


SAMPLERS = ROOT / "docs" / "how-to" / "samplers.md"
OF_X = {
    "`MALA`": "mala",
    "`MALA`, adapted": "mala-adapted",
    "`HMC`": "hmc",
    "`HMC`, adapted": "hmc-adapted",
    "`Langevin`, biased": "langevin-biased",
    "`UnderdampedLangevin`, biased": "underdamped-biased",
}
OF_LABELS = {
    "`SingleSiteGibbs`": "single-site-gibbs",
    "`GibbsWithGradients`": "gibbs-with-gradients",
    '`GibbsWithGradients("barker")`': "gibbs-with-gradients-barker",
    "`PathAuxiliary(8)`": "path-auxiliary-8-flips",
    "`DiscreteMALA`": "discrete-mala",
    "`DiscreteMALA`, adapted": "discrete-mala-adapted",
}
OF_BOTH = {
    "`BlockGibbs`, exact labels": "block-gibbs",
    "`BlockGibbs`, Gibbs-With-Gradients": "block-gibbs-gradients",
    "`BlockGibbs`, adapted": "block-gibbs-adapted",
    "`MixedHMC`, adapted": "mixed-hmc-adapted",
    "`LabelJump`, 1 step": "label-jump-1-step",
    "`LabelJump`, 8 steps": "label-jump-8-steps",
    "`LabelJump`, 32 steps": "label-jump-32-steps",
}


@pytest.mark.parametrize(
    ("column", "target", "names"), [("kernel of x", "gaussian", OF_X), ("kernel of labels", "ising", OF_LABELS)]
)
def test_figures_of_samplers_are_what_their_file_says(column, target, names):
    rows = table_with(SAMPLERS, column)
    assert [row[column] for row in rows] == list(names)
    for row in rows:
        said = row["effective samples, thousands per second"]
        found = mean(result("samplers"), f"effective_samples_per_second.{target}.{names[row[column]]}")
        assert said == printed(found / 1000, like=said)


def test_figures_of_kernels_of_x_and_labels_are_what_their_file_says():
    rows, file = table_with(SAMPLERS, "kernel of x and labels"), result("chains-mixed")
    assert [row["kernel of x and labels"] for row in rows] == list(OF_BOTH)
    changes, effective = "class_changes_per_second", "effective_samples_per_second"
    columns = {
        "class changes, thousands per second, 2 apart": (changes, 2),
        "4 apart": (changes, 4),
        "6 apart": (changes, 6),
        "effective samples, thousands per second, 2 apart": (effective, 2),
    }
    for row in rows:
        for column, (metric, distance) in columns.items():
            found = mean(file, f"{metric}.distance-{distance}.{OF_BOTH[row['kernel of x and labels']]}")
            assert row[column] == printed(found / 1000, like=row[column])


def test_the_trained_chains_of_the_samplers_page_are_those_of_their_file():
    file, text = result("chains-trained"), " ".join(SAMPLERS.read_text().split())
    assert f"change them {mean(file, 'changes_per_100_steps.own-chains'):.0f} times in 100 steps" in text
    exact = [m for m in file.metrics if m.startswith("changes_per_100_steps.") and not m.endswith("own-chains")]
    assert len(exact) == 5
    assert all(mean(file, m) == 0 for m in exact)  # "no exact kernel changed any label"


OF_TRAINED = {
    "chains as in training": "own-chains",
    "`BlockGibbs`, exact labels": "temperature-1-block-gibbs-adapted",
    "`BlockGibbs`, Gibbs-With-Gradients": "temperature-1-block-gibbs-gradients-adapted",
    "`MixedHMC`": "temperature-1-mixed-hmc-adapted",
    "`LabelJump`, 8 steps": "temperature-1-label-jump-8-steps",
    "`LabelJump`, 32 steps": "temperature-1-label-jump-32-steps",
}


def test_the_class_changes_of_a_trained_mixed_model_are_those_of_its_file():
    rows, file = table_with(SAMPLERS, "kernel on a trained model"), result("chains-trained-mnist-mixed")
    assert [row["kernel on a trained model"] for row in rows] == list(OF_TRAINED)
    for row in rows:
        kernel = OF_TRAINED[row["kernel on a trained model"]]
        for column, metric in (("in 100 steps", "changes_per_100_steps"), ("per second", "changes_per_second")):
            said = row[f"class changes {column}"]
            assert said == printed(mean(file, f"{metric}.{kernel}"), like=said)
    assert "reduced training" in file.notes
    assert "not healthy" in file.notes
    cold = [
        m for m in file.metrics if m.startswith("changes_per_100_steps.") and m.split(".")[1] not in OF_TRAINED.values()
    ]
    assert len(cold) == 5
    assert all(mean(file, m) == 0 for m in cold)  # "none of them changed a label"
