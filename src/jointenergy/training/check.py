"""training: the health check: run chains as users do, and compare them with data."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from jointenergy.buffers import Buffer
from jointenergy.errors import plural
from jointenergy.kernels import Target
from jointenergy.labels import MISSING
from jointenergy.metrics.looks import FEWEST, GROUP, REFERENCE, Space, vote
from jointenergy.models import JointModel
from jointenergy.models.base import LabelLogits
from jointenergy.networks.accelerated import hold
from jointenergy.streams import seeded
from jointenergy.training.chains import Chains
from jointenergy.training.health import DISTANCE, DISTANCE_ROWS, Health, at_bounds, auroc
from jointenergy.training.label_looks import label_looks
from jointenergy.training.plan import Plan
from jointenergy.training.trainer import Trainer

# Numbers of held-out rows for energies, samples, samples of ten times the length, samples with
# given labels, noised rows, and label values that are tested.
HELD_ROWS, FRESH, LONG, GIVEN, RECOVERED, PAIRS = 256, 256, 64, 512, 128, 20
TABLE = 1024  # samples of a table, whose means are compared
VALUES = 100  # values of a single label that are tested
FULL, FULL_LENGTH = 64, 1000  # batch size and iterations, from either of which a check uses these numbers in full
FEWEST_HELD = 8  # minimum held-out rows; with fewer, training rows are used
SCALES = (1.0, 2.0, 4.0, 8.0)  # noise on data, in standard deviations; the first visible one is used
ROUNDING = 1e-5  # a standard deviation of f(data), relative to f, that is none
VISIBLE = 0.15  # minimum excess over chance of the label agreement of data; below it, samples are not judged
CLEAR, CLEAR_OF_MANY = 0.3, 0.5  # the same for one value, and for one of so many that some look bad by chance


def check(
    plan: Plan, model: JointModel, buffer: Buffer | None, *, iteration: int = 0, stream: str = "health"
) -> Health:
    """Check the health of a model with new chains and a random stream that training never uses.

    `buffer` has the persistent chains. In a run that is trained without one, chains of the training length replace
    them; of a run whose buffer was not kept, they are not checked.
    """
    return _Examined(plan, model, buffer, seeded(plan.seed, stream, iteration, device=plan.data.x.device)).health()


def share_of(batch_size: int, iterations: int) -> float:
    """Return the share of a check's samples: less than 1 for short runs with small batches, which are trials."""
    return min(1.0, max(batch_size / FULL, iterations / FULL_LENGTH))


class _Examined:
    """A model and the data that its samples are compared with: held-out rows for energies, training rows for looks."""

    def __init__(self, plan: Plan, model: JointModel, buffer: Buffer | None, generator: torch.Generator) -> None:
        self.plan, self.model, self.buffer, self.generator = plan, model, buffer, generator
        self.notes: list[str] = []
        self.uncompared = ""
        self.share = share_of(plan.batch_size, plan.iterations)
        if self.share < 1:
            short = f"a short run with small batches is judged with {self.share:.0%} of the usual samples"
            self.notes.append(f"{short}: it may miss faults")
        self.chains = Chains(
            plan.kernel,
            plan.steps,
            plan.start,
            None,
            generator,
            plan.bounds,
            augmentation=plan.chain_augment,
            augment_every=plan.augment_every,
        )
        data = plan.data
        self.held = data.x_held[:HELD_ROWS], data.y_held[:HELD_ROWS]
        # Rows with hidden entries cannot be compared; held-out rows are complete.
        self.rows = (data.x, data.y) if data.mask is None else (data.x_held, data.y_held)
        if len(data.x) < FEWEST and data.mask is None:
            self.rows = torch.cat((data.x, data.x_held)), torch.cat((data.y, data.y_held))
        if len(data.x_held) < FEWEST_HELD <= len(self.rows[0]):
            few = f"{plural(len(data.x_held), 'held-out row')}, too few for energies and movement"
            self.notes.append(f"{few}: training rows replace them")
            self.held = self.rows[0][:HELD_ROWS], self.rows[1][:HELD_ROWS]
        self.space = None if plan.label_rows else self._space()

    def _space(self) -> Space | None:
        x, self.reference_labels = self._drawn_rows(*self.rows, n=self._some(REFERENCE))
        if len(x) < FEWEST:
            kind = "row" if self.plan.data.mask is None else "held-out row"  # the only ones without hidden entries
            self.uncompared = f"samples cannot be compared with data: {plural(len(x), kind)}, but {FEWEST} are needed"
            return None
        kernel = getattr(self.plan.kernel, "x_kernel", self.plan.kernel)
        exact = abs(getattr(kernel, "temperature", 1.0) - 1.0) < ROUNDING
        space = Space(x, self._shown(x), unseen=self.plan.data.mask is not None, means=exact)
        if space.constant:
            self.uncompared = "samples cannot be compared with data: all data rows are equal"
            return None
        return space

    def health(self) -> Health:
        plan, model, generator = self.plan, self.model, self.generator
        (data, y_data), steps = self.held, plan.sampling_steps
        low, high = plan.bounds
        noise = torch.rand(data.shape, generator=generator, device=generator.device).to(data) * (high - low) + low
        n_fresh = TABLE if self.space is not None and self.space.means else FRESH
        x, y = plan.start.draw(self._some(n_fresh), generator=generator)
        fresh = self._sampled(x, y)
        persistent = self._persistent(x, y)
        if not _finite(fresh[0], *(p[0] for p in persistent)):
            return Health(False)
        long = self._run(Target(model), fresh[0][: self._some(LONG)], fresh[1][: self._some(LONG)], 9 * steps)
        if not _finite(long[0]):
            return Health(False)
        with torch.no_grad():
            states = ((data, y_data), (noise, y_data), fresh, long, *persistent)
            values = [model.log_density(at, plan.scored(labels)[0]) for at, labels in states]
        if not _finite(*values):
            return Health(False)
        f_data, f_noise, f_fresh, f_long, *f_persistent = values
        looks: dict[str, Any] = self._looks(fresh[0], *(p[0] for p in persistent))
        if plan.label_rows:
            chains = dict(zip(("fresh", "persistent"), (fresh[1], *(p[1] for p in persistent)), strict=False))
            looks, self.uncompared = label_looks(plan.data, plan.label_rows, chains, generator=generator)
        return Health(
            finite=True,
            auroc_persistent=auroc(f_data, f_persistent[0]) if f_persistent else math.nan,
            gap=_gap(f_data, f_persistent[0]) if f_persistent else math.nan,
            auroc_noise=auroc(f_data, f_noise),
            auroc_fresh=auroc(f_data, f_fresh),
            auroc_fresh_long=auroc(f_data, f_long),
            at_bounds=float(at_bounds(fresh[0], plan.bounds) - at_bounds(data, plan.bounds)),
            notes=tuple(self.notes),
            uncompared=self.uncompared,
            **looks,
        )

    # Chains.

    def _run(self, target: Target, x: Tensor, y: Tensor, steps: int, *, denoise: int = 0) -> tuple[Tensor, Tensor]:
        with hold(self.model):
            state = self.chains.sample(target, x, y, steps, denoise=denoise, generator=self.generator)
        return state.x, state.y

    def _sampled(self, x: Tensor, y: Tensor, given: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run chains as users do; every other one takes one more step, to reveal two-cycles."""
        steps, denoise = self.plan.sampling_steps, self.plan.denoising_steps
        x, y = self._run(Target(self.model, given_y=given), x, y, steps, denoise=denoise)
        odd = slice(1, None, 2)
        if len(x) > 1 and bool(x.isfinite().all()):
            target = Target(self.model, given_y=None if given is None else given[odd])
            x[odd], y[odd] = self._run(target, x[odd], y[odd], 1, denoise=min(denoise, 1))
        return x, y

    def _persistent(self, x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the persistent chains, or what replaces them; nothing if they were not kept."""
        if self.buffer is not None:
            drawn = self.buffer.draw(min(self._some(FRESH), len(self.buffer)), generator=self.generator)
            return [(drawn.x, drawn.y)]
        if self.plan.buffer is not None:
            self.notes.append("persistent chains were not kept with these weights, so they are not checked")
            return []
        return [self._run(Target(self.model), x, y, self.plan.steps)]

    # Looks of samples.

    def _looks(self, fresh: Tensor, *persistent: Tensor) -> dict[str, Any]:
        if self.space is None:
            return {}
        found: dict[str, Any] = {"fresh": self.space.looks(fresh)}
        if persistent:
            found["persistent"] = self.space.looks(persistent[0])
        return {**found, "recovery": self._recovery(self.space), **self._given(self.space)}

    def _recovery(self, space: Space) -> float:
        """Compare how much noised data approach data by chains, and by the same chains without a gradient."""
        plan = self.plan
        x, y = self._drawn_rows(*self.held, n=self._some(RECOVERED))
        noise = plan.data.x.std() * torch.randn(x.shape, generator=self.generator, device=x.device).to(x)
        limit = 2 * (DISTANCE + DISTANCE_ROWS / len(x))
        for scale in SCALES:
            noised = (x + scale * noise).clamp(*plan.bounds)
            if space.distance(space(noised), space.data) > limit:
                break
        else:
            self.notes.append("movement is not tested: noise on data is not visible between the bounds")
            return math.nan
        labels = plan.start.label_start.draw(len(x), generator=self.generator).to(y.device)
        distances = []
        for model in (self.model, Flat.like(self.model)):
            moved = self._run(Target(model), noised, labels, plan.sampling_steps)[0]
            if not _finite(moved):
                return 0.0
            distances.append(space.distance(space(moved), space.data))
        return 1 - max(distances[0], 0.0) / max(distances[1], limit)

    def _given(self, space: Space) -> dict[str, Any]:
        """Evaluate samples given labels, each for one value of one label: looks and label agreement."""
        pairs = self._pairs()
        if not pairs:
            return {}
        rows, labels = self.rows
        complete = self.model.normalizer == "conditional" or not (self.plan.kernel.moves_y or self.model.can_sum())
        each = -(-self._some(GIVEN) // len(pairs))
        many = self.share == 1 and each < GROUP
        each = GROUP if many else each
        asked, matched = [], []
        for variable, value in pairs:
            having = (labels[:, variable] == value).nonzero()[:, 0]
            chosen = having[torch.randperm(len(having), generator=self.generator, device=having.device)[:each]]
            given = torch.full((each, labels.shape[1]), MISSING, device=labels.device)
            if complete:
                given = labels[chosen[torch.arange(each, device=chosen.device) % len(chosen)]].clamp(min=0)
            given[:, variable] = value
            asked.append(given)
            matched.append(self._shown(rows[chosen]))
        if few := sum(min(each, len(group)) < GROUP for group in matched):
            self.notes.append(
                f"{few} of {plural(len(pairs), 'label value')} with too few samples or rows to judge alone"
            )
        given = torch.cat(asked)
        x, y = self.plan.start.draw(len(given), generator=self.generator, given=given)
        x = self._sampled(x, y, given.to(x.device))[0]
        if not _finite(x):
            self.notes.append("samples given a label are not finite")
            return {"agreement": 0.0}
        space_of = self.plan.data.labels
        names = [f"{space_of.names[k]} = {space_of.values[k][value]}" for k, value in pairs]
        groups = dict(zip(names, zip(x.split(each), matched, strict=True), strict=True))
        agreement, labels_of = self._agreement(space, x, pairs, clear=CLEAR_OF_MANY if many else CLEAR)
        by_label = {names[i]: value for i, value in labels_of.items()}
        return {"given": space.looks_given(groups), "agreement": agreement, "agreement_of": by_label}

    def _pairs(self) -> list[tuple[int, int]]:
        """List the label values to test: up to VALUES of a single label, PAIRS of many labels."""
        labels = self.rows[1]
        pairs = [
            (variable, value)
            for variable, n_values in enumerate(self.plan.data.labels.cardinalities)
            for value in range(n_values)
            if bool((labels[:, variable] == value).any())
        ]
        most = min(PAIRS if labels.shape[1] > 1 else VALUES, self._some(GIVEN))
        if len(pairs) <= most:
            return pairs
        self.notes.append(f"samples given a label are judged for {most} of {len(pairs)} label values")
        # Of many labels always the same; of a single one others at each check, so that none is never tested.
        fixed = labels.shape[1] > 1
        generator = torch.Generator().manual_seed(0) if fixed else self.generator
        order = torch.randperm(len(pairs), generator=generator, device=generator.device)
        return [pairs[i] for i in sorted(order[:most].tolist())]

    def _agreement(
        self, space: Space, x: Tensor, pairs: list[tuple[int, int]], *, clear: float
    ) -> tuple[float, dict[int, float]]:
        """Return how often the nearest training rows of samples have the given label, from 0 (chance) to 1 (data).

        Over all labels, and per label if there are enough samples and data show the label clearly.
        """
        found, single = [], {}
        voters = {variable: self._voters(space, variable) for variable, _ in pairs}
        own = {variable: vote(data, data, labels, own=True) for variable, (data, labels) in voters.items()}
        each = len(x) // len(pairs)
        for i, (variable, value) in enumerate(pairs):
            data, labels = voters[variable]
            having = labels == value
            if bool(having.any()):
                asked = vote(space(x[i * each : (i + 1) * each]), data, labels)
                chance = 1 / self.plan.data.labels.cardinalities[variable]
                shown = own[variable][having]
                rates = (float((asked == value).float().mean()), float((shown == value).float().mean()), chance)
                found.append(rates)
                if each >= GROUP and rates[1] - chance > clear:
                    single[i] = (rates[0] - chance) / (rates[1] - chance)
        samples, real, chance = (sum(rates[k] for rates in found) / max(1, len(found)) for k in range(3))
        if real - chance > VISIBLE:
            return (samples - chance) / (real - chance), single
        self.notes.append("labels of samples are not compared: the nearest rows of data hardly show their own")
        return math.nan, single

    def _voters(self, space: Space, variable: int) -> tuple[Tensor, Tensor]:
        """Return features and labels of rows that have the label: of the reference, or of all rows if it has few."""
        labels = self.reference_labels[:, variable]
        known, enough = labels != MISSING, GROUP * self.plan.data.labels.cardinalities[variable]
        if bool(known.all()) or int(known.sum()) >= enough:
            return space.data[known], labels[known]
        x, y = self.rows
        labeled = (y[:, variable] != MISSING).nonzero()[:, 0]
        order = torch.randperm(len(labeled), generator=self.generator, device=self.generator.device)
        rows = labeled[order[:enough].to(labeled.device)]
        return space(self._shown(x[rows])), y[rows, variable]

    # Rows.

    def _some(self, n: int) -> int:
        return max(FEWEST, int(self.share * n))

    def _drawn_rows(self, x: Tensor, y: Tensor, *, n: int) -> tuple[Tensor, Tensor]:
        rows = torch.randperm(len(x), generator=self.generator, device=self.generator.device)[:n].to(x.device)
        return x[rows], y[rows]

    def _shown(self, x: Tensor) -> Tensor:
        """Transform rows as the density term sees them in training: noised, dequantized, augmented."""
        for change in self.plan.changes[0]:
            x = change(x, generator=self.generator)
        return x


class Flat(JointModel):
    """A constant density: chains on it are only the noise of the kernel."""

    factorized = True

    @classmethod
    def like(cls, model: JointModel) -> Flat:
        return cls(model.labels, domain=model.domain, event_shape=model.event_shape)

    def label_logits(self, x: Tensor) -> LabelLogits:
        return LabelLogits(0.0 * x.flatten(1).sum(1), x.new_zeros(len(x), self.labels.n_codes))


def check_trainer(trainer: Trainer) -> Health:
    """Check the health of the averaged weights with the current chains."""
    chains = trainer.chains
    plan = replace(trainer.plan, kernel=chains.kernel, steps=chains.steps)
    return check(plan, trainer.ema, chains.buffer if plan.uses_chains else None, iteration=trainer.iteration)


def _gap(data: Tensor, chains: Tensor) -> float:
    """Return the difference of means, in standard deviations of the first; NaN where that is zero up to rounding."""
    spread = float(data.std(correction=0))
    difference = float(data.mean() - chains.mean())
    return difference / spread if spread > ROUNDING * max(1.0, float(data.abs().max())) else math.nan


def _finite(*tensors: Tensor) -> bool:
    return all(bool(t.isfinite().all()) for t in tensors)
