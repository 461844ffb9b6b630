"""report: the model card of a run: what it is, its data, training, figures with seeds and health, what it is not for.

Written from the run, and from its results file where its recipe has one; no figure is typed by hand.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from jointenergy.errors import plural
from jointenergy.files.reading import shown
from jointenergy.metrics.registry import Metric
from jointenergy.models import EnergyModel, LogitModel
from jointenergy.report.results import Result
from jointenergy.runs import Run
from jointenergy.runs.pretrained import Weights

LICENSES = {
    "digits": "Optical Recognition of Handwritten Digits (Alpaydin and Kaynak, 1998), as in scikit-learn; CC BY 4.0",
    "mnist": "MNIST (LeCun, Cortes and Burges); CC BY-SA 3.0",
    "cifar10": "CIFAR-10 (Krizhevsky, 2009); published without a license, for research",
}
"""The data sets of published models, by the first word of the recipe's data, and their licenses."""
NOT_WEIGHTS = ("noise_scale", "n_noise", "frequency_weights", "label_smoothing")  # settings of the objective's terms
FIRST = ("accuracy", "exact_match", "nll", "ece")
LAST = ("ood_auroc.",)
FIRST_VERDICT = "by the first verdict, on energies alone, which passed runs whose samples are poor"
FAMILIES = {
    "logits": "a classifier whose logits are read as log p(x, y)",
    "pair": "a network of data and labels together",
    "conditional": "one energy for each label, each with an unknown constant of its own",
    "unconditional": "one energy of the data",
}


def card(
    run: Run,
    result: Result | None = None,
    weights: Weights | None = None,
    *,
    figures: Mapping[str, float | None] | None = None,
    file: str | None = None,
) -> str:
    """Write the model card of a run as Markdown.

    `result` has the figures of all seeds of its recipe, `weights` those of a published file; of a `file` of your own,
    which the card then names, they are in `figures`.
    """
    recipe = run.recipe
    name = run.origin.name if recipe is None else recipe.name
    own: Mapping[str, float | None] = (figures or {}) if weights is None else weights.figures
    license_ = "" if weights is None else "license: apache-2.0\n"
    parts = [
        f"---\n{license_}library_name: jointenergy\ntags:\n- energy-based-model\n---\n",
        f"# {name}\n",
        recipe.description if recipe else "A network of your own, read as a joint energy-based model.",
        _what(run),
        "\n## Use\n",
        _use(run, file or name),
        "\n## Data\n",
        _data(run),
        "\n## Training\n",
        _training(run, result, weights),
        "\n## Figures\n",
        _figures(result, own),
        "\n## Health\n",
        _health(result, own),
        "\n## Not for\n",
        _limits(run),
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _plain(text: str) -> str:
    """Escape a label for Markdown: control characters, line breaks, HTML and table bars."""
    return re.sub(r"([|`])", r"\\\1", html.escape(shown(text), quote=False))


def _what(run: Run) -> str:
    n = sum(p.numel() for p in run.model.parameters())
    low, high = run.bounds
    named = "logits" if type(run.model) is LogitModel else "unconditional" if type(run.model) is EnergyModel else None
    named = run.recipe.model.family if run.recipe else named
    family = "a network of data" if named is None else FAMILIES[named]
    labels = "; ".join(
        f"`{_plain(k)}`: {', '.join(map(_plain, v[:10]))}{', ...' if len(v) > 10 else ''}"
        for k, v in zip(run.labels.names, run.labels.values, strict=True)
    )
    shape = " x ".join(map(str, run.event_shape))
    return (
        f"\nA joint energy-based model: {family}, with {n:,} weights. x has {shape} values between {low:g} and "
        f"{high:g}. " + (f"Labels: {labels}." if labels else "It has no labels.")
    )


def _use(run: Run, name: str) -> str:
    given = (
        f", given={{{json.dumps(run.labels.names[0])}: {json.dumps(run.labels.values[0][-1])}}}"
        if len(run.labels)
        else ""
    )
    opened = f"je.load({json.dumps(name)}{'' if run.recipe else ', network=net'})"
    lines = [
        "import jointenergy as je\n",
        f"run = {opened}",
        f"run.sample(16{given})  # new x",
        "run.detect(x)  # out of distribution or not",
    ]
    if len(run.labels):
        lines.insert(2, "run.predict_proba(x)  # p(label | x)")
    return "```python\n" + "\n".join(lines) + "\n```"


def _data(run: Run) -> str:
    if run.recipe is None:
        if not _by_fit(run):
            return "Not known to the run."
        data = run.origin.data
        rows = f"{plural(len(data.x), 'row')} for training and {len(data.x_held):,} held out"
        return f"Rows given to `fit`: {rows}. Their owner decides on a license."
    name = run.recipe.data.name
    known = LICENSES.get(name) or LICENSES.get(name.partition("-")[0])
    return f"`{name}`: {known}." if known else f"`{name}`. Its license is that of its publisher."


def _by_fit(run: Run) -> bool:
    """Whether `fit` trained the run, and its rows and settings are at hand."""
    return run.recipe is None and run.origin.read_data is not None and run.origin.make_plan is not None


def _of_fit(run: Run) -> str:
    plan = run.origin.plan
    terms = [f"{term.weight:g} {term.name}" for objective in plan.objectives for term in objective.terms]
    said = [
        f"{plural(plan.iterations, 'iteration')} with batches of {plan.batch_size}",
        f"objective {' + '.join(terms)}",
    ]
    if plan.uses_chains:
        kernel = run.sampling.x_kernel
        numbers = [f"{k} {v:g}" for k, v in vars(kernel).items() if isinstance(v, int | float)]
        said.append(f"chains of {plan.steps} steps ({', '.join([type(kernel).__name__, *numbers])})")
    return f"`jointenergy.fit` with seed {plan.seed}: {', '.join(said)}."


def _training(run: Run, result: Result | None, weights: Weights | None) -> str:
    recipe = run.recipe
    if recipe is None:
        return _of_fit(run) if _by_fit(run) else "By `jointenergy.fit`, or elsewhere."
    terms = [f"{v:g} {k}" for k, v in asdict(recipe.objective).items() if v and k not in NOT_WEIGHTS]
    kernel = ", ".join(f"{k} {v}" for k, v in asdict(recipe.chain.kernel).items() if v is not None)
    said = [
        f"`jointenergy train {recipe.name}`: {recipe.iterations:,} iterations with batches of {recipe.batch_size}, "
        f"objective {' + '.join(terms)}, chains of {recipe.chain.steps} steps ({kernel})."
    ]
    if weights is not None:
        said.append(
            f"The published file is seed {weights.seed}, trained on {weights.date} at commit {weights.commit[:12]} "
            f"({weights.hardware}); weights are stored as float16, sha256 `{weights.sha256}`."
        )
    if result is not None:
        said.append(f"The figures of all seeds: `{result.command}`, commit {result.commit[:12]}, {result.hardware}.")
    return " ".join(said)


def _figures(result: Result | None, own: Mapping[str, float | None]) -> str:
    published: Mapping[str, Metric] = {} if result is None else result.metrics
    names = [
        n for n in (*FIRST, *(k for k in {**published, **own} if k.startswith(LAST))) if n in own or n in published
    ]
    if not names:
        return "None: `jointenergy evaluate` measures a run on its test rows."
    if result is None:
        return _table(["metric, test rows", "this file"], [[name, _figure(own.get(name))] for name in names])
    of_seeds = [f"mean of {plural(len(result.seeds), 'seed')}", "standard deviation"]
    here = [[name, _figure(own[name]), *_over_seeds(published.get(name))] for name in names if name in own]
    elsewhere = [[name, *_over_seeds(published[name])] for name in names if name not in own]
    tables = []
    if here:
        tables.append(_table(["metric, test rows", "this file", *of_seeds], here))
    if elsewhere:
        tables.append(_table(["metric, test rows; not measured on this file", *of_seeds], elsewhere))
    return "\n\n".join(tables)


def _figure(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


def _over_seeds(metric: Metric | None) -> list[str]:
    return ["n/a", "n/a"] if metric is None else [_figure(metric.mean), _figure(metric.std)]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head, *body = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return "\n".join([head, "|---" * len(heads) + "|", *body])


def _health(result: Result | None, own: Mapping[str, float | None]) -> str:
    said = []
    if (healthy := own.get("healthy")) is not None:
        said.append(f"The chains of this file are {'' if healthy else 'not '}healthy, judged on held-out rows.")
    if result is not None and "healthy" in result.metrics:
        metric = result.metrics["healthy"]
        n = sum(bool(v) for v in metric.values)
        said.append(
            f"{n} of {plural(len(result.seeds), 'seed')} ended healthy, judged {metric.protocol or FIRST_VERDICT}."
        )
    return " ".join(said) or "Ask `jointenergy.load(...).health()`."


def _limits(run: Run) -> str:
    said = [
        "Decisions about people, and inputs unlike its data: it is a research model of one small data set.",
        "log p(x) is known up to a constant, so that its values cannot be compared between models.",
    ]
    if run.model.normalizer == "conditional":
        said.append("Labels cannot be compared: each has an unknown constant of its own.")
    temperature = run.sampling.temperature
    if abs(temperature - 1.0) > 1e-6:
        said.append(
            f"Chains move x at temperature {temperature:.3g}: samples are of a sharper law than that of log p(x) at 1."
        )
    return "\n".join(f"- {line}" for line in said)
