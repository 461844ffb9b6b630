"""Write the tables of docs/results.md from the files in results/: no figure on that page is typed by hand.

    python scripts/results_page.py    # after a result was written, or a recipe or variant added

The parts between `<!-- NAME -->` and `<!-- end -->` are generated; the rest of the page is prose. `RECIPES` and
`DIFFERS` below hold the paper and the record of each recipe, and what differs from the paper.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from jointenergy import recipes
from jointenergy.experiments import study
from jointenergy.experiments.papers import PAPERS
from jointenergy.metrics.registry import Metric
from jointenergy.report import results
from jointenergy.report.results import Result

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results.md"

ATTRIBUTES, MIXED, DIGITS, IGEBM = (f"records/{name}.md" for name in ("attributes", "mixed", "jem", "igebm"))
RECIPES: dict[str, tuple[str, str]] = {
    "cifar10-jem": ("jem", "records/cifar10.md"),
    "cifar10-few-steps": ("jem", "guard.md"),
    "cifar100-jem": ("jem", "records/cifar10.md"),
    "svhn-jem": ("jem", "records/cifar10.md"),
    "mnist-jem": ("jem", DIGITS),
    "digits-jem": ("jem", DIGITS),
    "celeba-gibbs": ("gibbs-jem", ATTRIBUTES),
    "shoes-gibbs": ("gibbs-jem", ATTRIBUTES),
    "digits-gibbs": ("gibbs-jem", ATTRIBUTES),
    "toy-mixed": ("mixed", MIXED),
    "mnist-mixed": ("mixed", MIXED),
    "dsprites-mixed": ("mixed", MIXED),
    "digits-mixed": ("mixed", MIXED),
    "mask-mixed": ("mixed", MIXED),
    "mnist-igebm": ("igebm", IGEBM),
    "cifar10-igebm": ("igebm", IGEBM),
    "split-mnist": ("igebm", "continual.md"),
    "digits-continual": ("igebm", "continual.md"),
    "digits-composition": ("igebm", "continual.md"),
    "celeba-compose": ("igebm", "continual.md"),
}
"""The table that lists a recipe or study with its variants, and its record."""

BOX = "data noise left the box of the chains"
FIRST_KL = "the KL term began before the last block"
SMALL_NETWORK = "normalizer-free WideResNet-16-4, minutes of training"
WEIGHTED = "log p(x) + 2 log p(y given x): labels summed at chains, plus exact cross-entropy, weight 1"
FACES, SHOES = "10,000 of the faces", "footwear set in place of UT Zappos50K"
DIFFERS: dict[str, str] = {
    "cifar10-jem": SMALL_NETWORK,
    "cifar10-jem:factored": SMALL_NETWORK,
    "cifar10-jem:class-negatives": SMALL_NETWORK,
    "cifar10-jem:few-labels": f"{SMALL_NETWORK}; the other rows are used without labels",
    "cifar10-jem:short-run": SMALL_NETWORK,
    "cifar10-few-steps": "not in the paper: chains too short, on purpose",
    "cifar100-jem": f"{SMALL_NETWORK}; its training set is not available",
    "svhn-jem": f"{SMALL_NETWORK}; its training set is not available",
    "mnist-jem": "not in the paper",
    "digits-jem": "not in the paper; log p(y given x) weighs 2; FashionMNIST and KMNIST were in sight when settings "
    "were chosen",
    "digits-jem:few-labels": "not in the paper",
    "digits-jem:labels-one": "x at temperature 0.01, labels at 1: no joint distribution",
    "digits-jem:labels-same": "x and labels at temperature 0.01",
    "digits-jem:labels-last": "x at temperature 0.01 on log p(x), labels last at 1; not finished, see the record",
    "celeba-gibbs": f"{FACES}, flipped at random",
    "celeba-gibbs:factored": f"{FACES}, flipped at random",
    "celeba-gibbs:novel": f"{FACES}, flipped at random; the paper shows samples",
    "celeba-gibbs:summed": f"{FACES}; {WEIGHTED}; KL 0.3, energy L2, half steps, clamped gradients",
    "celeba-gibbs:summed-factored": f"{FACES}; KL 0.3, energy L2, half steps, clamped gradients",
    "celeba-gibbs:summed-novel": f"as `summed`, 11 pairs held out; {FACES}; the paper shows samples",
    "shoes-gibbs": SHOES,
    "shoes-gibbs:factored": SHOES,
    "shoes-gibbs:summed": f"{SHOES}; {WEIGHTED}; KL 0.3, twice the rate, decaying; chosen after earlier settings had "
    "been measured on the same test rows",
    "shoes-gibbs:summed-factored": f"{SHOES}; KL 0.3, twice the rate, decaying; 4,000 iterations (`summed`: 2,500)",
    "shoes-gibbs:zappos": "UT Zappos50K itself, which is not available",
    "digits-gibbs": "not in the paper; plus exact cross-entropy, weight 1",
    "digits-gibbs:missing": "not in the paper; plus exact cross-entropy, weight 1; half of the attributes hidden",
    "digits-gibbs:factored": "not in the paper",
    "digits-gibbs:joint": "not in the paper; log p(x, y) alone",
    "toy-mixed": "longer steps at the paper's temperature, energy L2",
    "mnist-mixed": "plus exact cross-entropy, weight 5, and an energy L2; fewer iterations at a higher rate; by "
    "sampling: the mode of ten chains, 1,000 rows",
    "mnist-mixed:joint": "log p(x, y) alone; 60,000 of the paper's 110,000 iterations",
    "dsprites-mixed": "plus exact cross-entropy, weight 14, and an energy L2; ellipses re-rendered; fewer iterations "
    "at a higher rate; other weights had been measured on test rows before",
    "dsprites-mixed:joint": "log p(x, y) alone; ellipses re-rendered; 36,000 of the paper's 180,000 iterations",
    "digits-mixed": "not in the paper; plus exact cross-entropy, weight 5",
    "digits-mixed:missing": "not in the paper; plus exact cross-entropy, weight 5; half of the labels hidden",
    "digits-mixed:joint": "not in the paper; log p(x, y) alone",
    "mask-mixed": "not in the paper",
    "mask-mixed:mnist": "not in the paper",
    "mnist-igebm": "a fifth of the rate, decaying, gradients clamped; the paper does not print its temperature",
    "mnist-igebm:narrow": "an eighth of the width; the paper's figure is of the full width",
    "mnist-igebm:conditional": "not in the paper",
    "split-mnist": "the paper's figure is in its main text, which is not available",
    "split-mnist:seen": "negatives have the labels seen so far",
    "digits-continual": "not in the paper",
    "digits-composition": "not in the paper",
    "celeba-compose": "the paper shows samples",
    "cifar10-igebm:unconditional": "the paper shows samples",
}
"""What differs between a row and its paper's figure."""

OLD: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("digits-jem", "digits-mixed", "digits-mixed-missing", "mask-mixed"), ("3171dd396565", BOX)),
    "digits-gibbs": ("3171dd396565", f"{BOX}; {FIRST_KL}"),
    "digits-gibbs-missing": ("7c8187b559c3", f"{BOX}; {FIRST_KL}"),
    "digits-gibbs-factored": ("0b63755b3261", BOX),
    "digits-jem-few-labels": ("0b63755b3261", BOX),
    "cifar10-jem": ("c7a399f68776", f"{BOX}; 1 % restarts, no kept labels, 40 sampling steps"),
    "cifar10-few-steps": ("36e3be6fee17", BOX),
}
"""What a result still has and its recipe no longer does, by the commit of that result; a new run removes it."""

MEASURES: dict[str, str] = {
    "accuracy": "accuracy",
    "accuracy_equal_constants": "accuracy, equal constants assumed",
    "accuracy_by_sampling": "accuracy by sampling",
    "ece": "ECE",
    "ece_scaled": "ECE at a fitted temperature",
    "f1_micro": "F1 over attributes",
    "auroc_micro": "AUROC over attributes",
    "consistency_pairs": "samples that show their pair of labels, by the model",
    "consistency_pairs_baseline": "the same, by the baseline",
    "consistency_novel": "samples that show a held-out pair, by the model",
    "consistency_novel_baseline": "the same, by a baseline that saw the pairs",
    "diversity": "diversity of samples, relative to the data",
    "kl_nats.xy": "KL divergence from the true density, nats",
    "mode_share.lowest": "share of samples in the rarest mode (1/8 is right)",
    "inpainting_mse.given_labels": "squared error of x drawn from its labels",
    "inpainting_mse.training_mean": "the same for the mean image",
    "log_likelihood_lower_nats": "log-likelihood, lower bound, nats",
    "log_likelihood_upper_nats": "log-likelihood, upper bound, nats",
    "log_likelihood_gaussian_nats": "the same for a Gaussian, nats",
    "ood_auroc.fashion-mnist.log_density": "AUROC of log p(x), FashionMNIST",
    "ood_auroc.kmnist.log_density": "AUROC of log p(x), KMNIST",
    "ood_auroc.emnist-letters.log_density": "AUROC of log p(x), EMNIST letters",
    "consistency_composed.svm.before": "samples that meet both conditions, before fine-tuning",
    "consistency_composed.svm.after": "the same, after it",
}
SCORES = {"log_density": "log p(x)", "max_probability": "largest p(y given x)", "gradient_norm": "norm of the gradient"}
SETS = {"fashion-mnist": "FashionMNIST", "kmnist": "KMNIST", "emnist-letters": "EMNIST letters"}
TASKS: dict[str, str] = {
    "consistency_class.model": "samples given a class that show it, by the model",
    "consistency_class.svm": "samples given a class that show it, by a support vector machine",
    "diversity_class.mean": "diversity within a class, relative to the data",
    "inpainting_mse.given_class": "inpainting, class given: squared error",
    "inpainting_mse.class_mean": "the same for the mean of the class",
    "inpainting_coverage.given_class": "inpainting, class given: true values in 90 % intervals",
    "inpainting_mse.no_class": "inpainting, class not given: squared error",
    "inpainting_mse.guessed_class_mean": "the same for the mean of the class that a support vector machine predicts",
    "agreement_by_sampling": "labels by sampling that agree with the exact ones",
}

Table = list[tuple[str, ...]]


def figure(value: float | None, name: str) -> str:
    if value is None:
        return "none"
    return f"{value:.0f}" if name.startswith("log_likelihood") else f"{value:.3f}"


def mean_and_spread(metric: Metric, name: str) -> str:
    spread = f" ± {figure(metric.std, name)}" if len(metric.present) > 1 else ""
    return figure(metric.mean, name) + spread


def paper_figure(paper: Mapping[str, float | str], name: str) -> str:
    value = paper.get(name, paper.get(f"{name}_micro"))
    if value is None or isinstance(value, str):
        return "n/a"
    above = name == "consistency_pairs" or "both more than" in str(paper["source"])
    return ("above " if above else "") + figure(value, name)


def health(result: Result) -> str:
    """Describe how many seeds ended healthy, by which verdict, and how often the guard intervened."""
    metric, stepped = result.metrics["healthy"], result.metrics.get("interventions")
    said = f"{sum(metric.present):.0f} of {len(metric.values)} healthy, {metric.protocol or 'first verdict'}"
    total = 0.0 if stepped is None else sum(stepped.present)
    return said + (f"; {total:.0f} intervention{'s' if total > 1 else ''}" if total else "")


def links(name: str, record: str) -> str:
    found = [f"[file](../results/{name}.json)"] if (ROOT / "results" / f"{name}.json").exists() else []
    found += [f"[picture](gallery/{name}.png)"] if (ROOT / "docs" / "gallery" / f"{name}.png").exists() else []
    return ", ".join([*found, f"[record]({record})"])


def differences(name: str, result: Result | None) -> str:
    said = [DIFFERS[name]] if name in DIFFERS else []
    commit, old = OLD.get(recipes.result_name(name), ("none", ""))
    return "; ".join([*said, old] if result is not None and result.commit.startswith(commit) else said)


def rows_of(title: str, name: str, result: Result | None, differs: str, record: str) -> Table:
    """Return one row for each measure; the first has what differs and the links."""
    paper = PAPERS.get(name, {}) if result is None else result.paper or PAPERS.get(name, {})
    if result is None:
        measures = [m for m in MEASURES if m in paper or (f"{m}_micro" in paper and m == "ece")] or [""]
        rows = [(MEASURES.get(m, ""), paper_figure(paper, m), "not run", "0") for m in measures]
    else:
        seeds = str(len(result.seeds))
        rows = [
            (said, paper_figure(paper, m), mean_and_spread(result.metrics[m], m), seeds)
            for m, said in MEASURES.items()
            if m in result.metrics
        ]
        rows += [("health", "n/a", health(result), seeds)] if "healthy" in result.metrics else []
    first = (title, differs, links(name, record))
    return [(first[0] if i == 0 else "", *row, *(first[1:] if i == 0 else ("", ""))) for i, row in enumerate(rows)]


def table(paper: str, found: Mapping[str, Result]) -> str:
    """List every recipe, variant and study of a paper; below each, its cross-entropy baseline, if it was run."""
    rows: Table = [("row", "measure", "paper", "ours", "seeds", "what differs from the paper", "more")]
    order = list(RECIPES)
    names = [n for n in [*recipes.names(), *study.names()] if RECIPES[n.partition(":")[0]][0] == paper]
    for name in sorted(names, key=lambda n: order.index(n.partition(":")[0])):
        own, record = recipes.result_name(name), RECIPES[name.partition(":")[0]][1]
        result = found.get(own)
        rows += rows_of(f"`{name}`", own, result, differences(name, result), record)
        for suffix, said in (("-baseline", "cross-entropy alone"), ("-unguarded", "without the guard")):
            beside = f"{own}{suffix}"
            if beside in found or (suffix == "-baseline" and beside in PAPERS):
                rows += rows_of(f"`{name}`, {said}", beside, found.get(beside), "", record)
    return _written(rows)


def scores(result: Result) -> str:
    """Tabulate the AUROC of each score of out-of-distribution detection on each set."""
    sets = {key: said for key, said in SETS.items() if f"ood_auroc.{key}.log_density" in result.metrics}
    rows: Table = [("score", *sets.values())]
    for score, said in SCORES.items():
        names = [f"ood_auroc.{key}.{score}" for key in sets]
        rows.append((said, *(mean_and_spread(result.metrics[n], n) for n in names)))
    return _written(rows)


def attacks(runs: Mapping[str, Result], norm: str) -> str:
    """The accuracy of each run, after each number of refinement steps, within each radius."""
    places = {
        (steps, radius)
        for result in runs.values()
        for kind, *parts in (name.split(".") for name in result.metrics)
        if kind == "robust_accuracy" and parts[0] == norm
        for steps, radius in [parts[1:]]
    }
    radii = sorted({radius for _, radius in places}, key=lambda radius: int(radius.partition("-")[0]))
    rows: Table = [("classifier", *(radius.replace("-", "/") for radius in radii))]
    for title, result in runs.items():
        for steps in sorted({int(steps) for steps, _ in places}):
            names = [f"robust_accuracy.{norm}.{steps}.{radius}" for radius in radii]
            if all(name in result.metrics for name in names):
                refined = f", {steps} refinement step{'s' * (steps > 1)}" if steps else ""
                rows.append((title + refined, *(mean_and_spread(result.metrics[name], name) for name in names)))
    return _written(rows)


def tasks(result: Result) -> str:
    rows: Table = [("task", "ours")]
    rows += [(said, mean_and_spread(result.metrics[name], name)) for name, said in TASKS.items()]
    return _written(rows)


def _written(rows: Table) -> str:
    lines = [f"| {' | '.join(row)} |\n" for row in rows]
    return "".join([lines[0], "|---" * len(rows[0]) + "|\n", *lines[1:]])


def page(text: str, found: Mapping[str, Result]) -> str:
    """Return the page with new tables."""
    parts = {paper: table(paper, found) for paper, _ in RECIPES.values()}
    parts |= {f"scores {name}": scores(found[name]) for name in ("digits-jem", "mnist-jem")}
    parts["tasks"] = tasks(found["digits-jem-tasks"])
    attacked = {"JEM": found["digits-jem-paper"], "cross-entropy alone": found["digits-jem-paper-baseline"]}
    parts |= {f"attacks {norm}": attacks(attacked, norm) for norm in ("linf", "l2")}

    def made(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n\n{parts.pop(match[1])}\n<!-- end -->"

    text = re.sub(r"<!-- (?!end)(.+?) -->\n.*?<!-- end -->", made, text, flags=re.S)
    if parts:
        raise ValueError(f"docs/results.md has no place for {', '.join(parts)}: add <!-- NAME --> and <!-- end -->")
    return text


def main() -> None:
    found = {result.name: result for result in results.all_in(ROOT / "results")}
    PAGE.write_text(page(PAGE.read_text(), found))


if __name__ == "__main__":
    main()
