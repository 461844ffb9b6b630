"""experiments: products of separately trained models, fine-tuned by the KL term of Du and Mordatch (2019), A.8.

After a few steps the chains of a product have a distribution q. Fine-tuning changes the weights that guide the chains
so that q approaches the product's density p: it minimizes KL(q || p) = E_q[-f(x)] - H(q) up to a constant, where f is
the product as trained and stays fixed, and the gradient flows through the chains' last step. The paper leaves the
entropy H out, and prints it with the wrong sign.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from jointenergy.data.training import TrainingData
from jointenergy.errors import InputError
from jointenergy.experiments.study_parts import Fitting, StudySeed, fitted
from jointenergy.kernels import Langevin, State, Target, last
from jointenergy.labels import LabelSpace, nearest
from jointenergy.metrics.registry import Figures
from jointenergy.models import JointModel, Product
from jointenergy.objectives import Batch, Draws, KLTerm, Objective, Samples
from jointenergy.recipes.build import trainer_of
from jointenergy.recipes.data import data_of
from jointenergy.recipes.schema import Recipe
from jointenergy.report.tasks import JUDGE_ROWS, Judge
from jointenergy.starts import XStart
from jointenergy.streams import seeded
from jointenergy.training import loop
from jointenergy.training.health import diversity
from jointenergy.training.settings import Count, NotNegative, Positive, Strict

LONG = 10  # longer chains run this many times the fine-tuned steps
SMALL = 16  # image side for the judge of attributes
Told = Callable[[Tensor], Tensor]
"""Predicts the values of all factors, `[n, factors]`, from x."""


@dataclass(frozen=True)
class Composition(Strict):
    """Compose models of single factors by product, and fine-tune the product.

    `factors` group the classes of data with one label; for data with several, `attributes` names the labels to compose.
    One model is trained for each factor, on all rows, with that label alone. Chains of `steps` from the recipe's start
    are fine-tuned and evaluated for every combination of one value per factor.
    """

    factors: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    attributes: tuple[str, ...] = ()
    steps: Count = 20
    iterations: Count = 200
    chains: Count = 64
    learning_rate: Positive = 1e-4
    entropy: NotNegative = 0.0
    samples: Count = 100
    """Samples of each combination, for evaluation."""

    @property
    def n_models(self) -> int:
        """Number of models, trained one after another."""
        return len(self.factors or self.attributes)

    def baseline(self, recipe: Recipe) -> Recipe:
        raise InputError(f"{recipe.name!r} is compared with its product before fine-tuning: leave --baseline out")

    def measure(self, recipe: Recipe, place: StudySeed, fit: Fitting) -> tuple[Figures, str]:
        """Train the factors, fine-tune their product, and evaluate samples of each combination before and after."""
        full = data_of(recipe, place.data, place.device, place.seed)
        parts = self.parts(full)
        models, healthy, interventions = [], True, 0
        for i, (name, data) in enumerate(parts.items()):
            # Each factor has its own weights, chains and batches.
            trainer = trainer_of(recipe, data, place.seed * len(parts) + i)
            says = f"factor {i + 1} of {len(parts)} ({name})"
            try:
                run = fitted(place.folder / name, recipe, trainer, says, fit)
            except loop.Diverged:
                return {"healthy": 0.0}, f"Seed {place.seed} diverged in {says}."
            healthy = healthy and run.verdict is not None and run.verdict.healthy
            interventions += run.interventions
            models.append(trainer.ema)
        kernel, start = trainer.chains.langevin, trainer.chains.start.x_start
        before = Product(models).requires_grad_(False)
        products = {"before": before, "after": tuned(before, kernel, start, self, seed=place.seed)}
        if self.entropy > 0:
            products["after_without_entropy"] = tuned(
                before, kernel, start, replace(self, entropy=0.0), seed=place.seed
            )
        judge = self.judge(full)
        y = before.labels.enumerate(device=full.x.device).repeat_interleave(self.samples, dim=0)
        figures: Figures = {}
        for when, product in products.items():
            # The same noise for all, so that only the fine-tuning differs.
            generator = seeded(place.seed, "composed samples", device=full.x.device)
            short = run_chains(product, kernel, start, y, self.steps, generator=generator)
            long = last(kernel, Target(product, given_y=y), short, (LONG - 1) * self.steps)
            for key, x in ((when, short.x), (f"{when}_long", long.x)):
                figures |= {f"{k}.{key}": v for k, v in self.figures(before, judge, parts, x, y).items()}
        figures |= {"healthy": float(healthy), "interventions": float(interventions)}
        says = (
            "The models' own judgment compares log p(x | label) up to unknown constants: all labels have equal ones. "
        )
        return figures, says + f"Chains move at temperature {kernel.temperature:.3g}."

    def figures(
        self, product: Product, judge: Told, parts: Mapping[str, TrainingData], x: Tensor, y: Tensor
    ) -> dict[str, float]:
        """Return the share of samples that meet all conditions, by the models as trained and by the judge; their
        diversity within a combination, relative to its data; and their mean log-density as trained."""
        by_model = torch.ones(len(x), dtype=torch.bool, device=x.device)
        for k, name in enumerate(parts):
            own = product.factors[k]
            assert isinstance(own, JointModel)
            related = own.with_offsets(assume_equal_constants=True) if own.normalizer == "conditional" else own
            with torch.no_grad():
                by_model &= related.label_probs(x)[name].argmax(1) == y[:, k]
        by_judge = (judge(x) == y).all(1)
        of_data, rows = torch.cat([data.y for data in parts.values()], dim=1), next(iter(parts.values())).x
        ratios = []
        for state in product.labels.enumerate(device=x.device):
            mine, theirs = (x[(y == state).all(1)], rows[(of_data == state).all(1)])
            if len(theirs) > 1:  # combinations without data have no diversity to compare with
                ratios.append(diversity(mine) / diversity(theirs))
        with torch.no_grad():
            log_density = product.log_density(x, y).double().mean()
        return {
            "consistency_composed.model": float(by_model.double().mean()),
            "consistency_composed.svm": float(by_judge.double().mean()),
            "diversity_composed.mean": sum(ratios) / len(ratios),
            "diversity_composed.lowest": min(ratios),
            "composed_log_density_nats": float(log_density),
        }

    def parts(self, data: TrainingData) -> dict[str, TrainingData]:
        """Return, for each factor, the rows with its label alone."""
        if bool(self.attributes) == bool(self.factors):
            raise InputError("a composition has factors or attributes: give one of the two, such as attributes = [...]")
        if self.factors:
            groups = self.groups(data)
            return {n: regrouped(data, n, tuple(self.factors[n]), group) for n, group in groups.items()}
        if len(self.attributes) < 2:
            raise InputError("a composition needs at least two attributes: name more in composition.attributes")
        for name in self.attributes:
            if name not in data.labels.names:
                raise InputError(f"composition.attributes: no label is {name!r}: {nearest(name, data.labels.names)}")
        return {name: alone(data, name) for name in self.attributes}

    def judge(self, data: TrainingData) -> Told:
        """Return a judge: support vector machines that predict the values of all factors, `[n, factors]`."""
        if self.factors:
            whole, groups = Judge.of(data.x, data.y[:, 0]), self.groups(data)
            return lambda x: torch.stack([group[whole(x)] for group in groups.values()], dim=1)
        small = shrunk(data.x[:JUDGE_ROWS])
        judges = [Judge.of(small, data.y[:JUDGE_ROWS, data.labels.names.index(n)]) for n in self.attributes]
        return lambda x: torch.stack([judge(shrunk(x)) for judge in judges], dim=1)

    def groups(self, data: TrainingData) -> dict[str, Tensor]:
        """Return, for each factor, the value of each class of the data."""
        if len(data.labels) != 1:
            raise InputError(f"factors group the values of one label, and the data have {len(data.labels)}")
        if len(self.factors) < 2:
            raise InputError("a composition needs at least two factors: give tables such as [composition.factors.size]")
        known = data.labels.values[0]
        found = {}
        for name, values in self.factors.items():
            flat = [c for group in values.values() for c in group]
            for c in flat:
                if c not in known:
                    raise InputError(f"composition.factors.{name}: there is no class {c!r}: {nearest(c, known)}")
            if sorted(flat) != sorted(known):
                raise InputError(f"composition.factors.{name} must put every class of the data in one group")
            of_class = [next(i for i, group in enumerate(values.values()) if c in group) for c in known]
            found[name] = torch.tensor(of_class, device=data.x.device)
        return found


def regrouped(data: TrainingData, name: str, values: Sequence[str], group: Tensor) -> TrainingData:
    """Replace the label of rows by groups of its classes."""
    return replace(data, y=group[data.y], y_held=group[data.y_held], labels=LabelSpace({name: tuple(values)}))


def alone(data: TrainingData, name: str) -> TrainingData:
    """Keep one label of the rows."""
    k = data.labels.names.index(name)
    return replace(data, y=data.y[:, [k]], y_held=data.y_held[:, [k]], labels=data.labels.subspace([name]))


def shrunk(x: Tensor) -> Tensor:
    """Shrink large images to 16 x 16 for a support vector machine."""
    large = x.ndim == 4 and max(x.shape[2:]) > SMALL
    return F.adaptive_avg_pool2d(x, SMALL) if large else x


def run_chains(
    product: JointModel, kernel: Langevin, start: XStart, y: Tensor, steps: int, *, generator: torch.Generator
) -> State:
    """Run chains of a product given labels y, from the start distribution."""
    target = Target(product, given_y=y)
    state = kernel.init(target, start.draw(y, generator=generator), y, generator=generator)
    return last(kernel, target, state, steps)


def tuned(product: Product, kernel: Langevin, start: XStart, settings: Composition, *, seed: int) -> Product:
    """Return a copy of the product with chains fine-tuned toward the density of the product, which stays fixed."""
    moving = copy.deepcopy(product).requires_grad_(True)
    optimizer = torch.optim.Adam(moving.parameters(), lr=settings.learning_rate)
    device = next(moving.parameters()).device
    generator = seeded(seed, "composition", device=device)
    states = product.labels.enumerate(device=device)
    y = states.repeat(-(-settings.chains // len(states)), 1)[: settings.chains]
    others: Tensor | None = None
    for _ in range(settings.iterations):
        before = run_chains(moving, kernel, start, y, settings.steps - 1, generator=generator)
        x = kernel.recompute(Target(moving, given_y=y), before)
        if others is not None or settings.entropy == 0:
            optimizer.zero_grad()
            kl(product, x, y, settings.entropy, others).backward()
            optimizer.step()
        others = x.detach()
    return moving.requires_grad_(False)


def kl(product: Product, x: Tensor, y: Tensor, entropy: float, others: Tensor | None) -> Tensor:
    """Return KL(q || p) up to a constant, for states x of q with a graph to the weights of their last step."""
    # The term uses the chains only, not a batch of data.
    draws = Draws(last_step=Samples(x, y, complete=True), neighbors=others)
    objective = Objective((KLTerm(1.0, entropy),))
    return objective.unchecked(product, Batch(x.detach(), y, complete=True), draws).total
