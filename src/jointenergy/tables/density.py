"""tables: the joint density of a fitted table, at temperature 1: log-densities, probabilities, completions, in tensors.

Rows are standardized features x, `[n, D]`, with NaN where not known, and labels y, `[n, L]`, the targets first, then
the discrete features, MISSING where not known. What is known never moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.inference.chains import Mover, run_chains
from jointenergy.kernels import ExactGibbs, GibbsWithGradients, Kernel, Metric, PreconditionedMALA
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import TiltedGaussianModel
from jointenergy.tables.gaussians import ConditionalGaussian, Gaussians

CANDIDATES = 128  # draws of the reference that compete for the starts of a row's chains
WITNESSES = 512  # such draws where a mean over them is asked for
ENOUGH = 64.0  # of these, counted by their weights, that answer for a row without chains
DRAWS, STEPS = 32, 20  # of a row's chains, where fewer do
FEW_STATES = 128  # label states up to which all labels are drawn at once, exactly
X_STEPS = 3  # moves of x for each such draw, which costs as much as several of them
AT_ONCE = 8192  # rows or chains that are looked at together


Question = Callable[[Tensor, Tensor], Tensor]  # of complete rows x and labels y, an answer of several numbers each


@dataclass(frozen=True, eq=False)
class Draws:
    """Completed rows: x `[m, n, D]`, all labels `[m, n, L]`, and log p(what is known) of each row, up to a constant."""

    x: Tensor
    y: Tensor
    log_density: Tensor


@dataclass(frozen=True, eq=False)
class Candidates:
    """Rows completed by the reference, their log weights under the model `[n, m]`, and log p(known) of each row."""

    x: Tensor
    y: Tensor
    weights: Tensor
    log_density: Tensor

    def rows(self, chosen: Tensor) -> Candidates:
        return Candidates(self.x[:, chosen], self.y[:, chosen], self.weights[chosen], self.log_density[chosen])


@dataclass(frozen=True, eq=False)
class TableDensity:
    """The model in float64 with its reference, the step size of its chains, and the chains themselves at the last."""

    model: TiltedGaussianModel
    gaussians: Gaussians
    step_size: float
    chains_x: Tensor
    chains_y: Tensor

    @property
    def n_targets(self) -> int:
        return self.model.n_targets

    @property
    def others(self) -> LabelSpace:
        return self.model.others

    @property
    def kernel(self) -> Kernel:
        return x_kernel(self.model, self.step_size)

    def complete(self, x: Tensor, y: Tensor) -> Tensor:
        """Rows in which only targets may be missing."""
        return ~(x.isnan().any(1) | (y[:, self.n_targets :] == MISSING).any(1))

    @torch.no_grad()
    def log_density(self, x: Tensor, y: Tensor) -> Tensor:
        """log p(x, y) of complete rows up to the model's constant, missing targets summed out."""
        pieces = zip(self.rows(x).split(AT_ONCE), y.split(AT_ONCE), strict=True)
        return torch.cat([self.model.log_density_unchecked(a, b) for a, b in pieces])

    @torch.no_grad()
    def target_probs(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """p(target | x, the other labels) for each target of complete rows."""
        names, found = self.model.targets.names, []
        for a, b in zip(self.rows(x).split(AT_ONCE), y.split(AT_ONCE), strict=True):
            probs = self.model.label_probs(a, b)
            found.append([probs[name] for name in names])
        return [torch.cat(parts) for parts in zip(*found, strict=True)]

    def rows(self, x: Tensor) -> Tensor:
        """In the shape that the model takes."""
        return x.view(len(x), *(self.model.event_shape or ()))

    @torch.no_grad()
    def complete_rows(self, x: Tensor, y: Tensor, keys: Tensor, *, n_draws: int, steps: int) -> Draws:
        """`n_draws` completions of each row: draws of the reference given what is known, chosen by their weight under
        the model, then moved by `steps` steps of an exact kernel. A row's completions are a function of the row and its
        key."""
        size = max(1, AT_ONCE // max(CANDIDATES, n_draws))
        parts = [
            self._completed(self._candidates(a, b, k, CANDIDATES), a, b, k, n_draws=n_draws, steps=steps)
            for a, b, k in zip(x.split(size), y.split(size), keys.split(size), strict=True)
        ]
        return Draws(
            torch.cat([p.x for p in parts], dim=1),
            torch.cat([p.y for p in parts], dim=1),
            torch.cat([p.log_density for p in parts]),
        )

    @torch.no_grad()
    def log_known(self, x: Tensor, y: Tensor, keys: Tensor) -> Tensor:
        """log p(what is known of each row), up to the model's constant, estimated by the reference's draws."""
        size = AT_ONCE // WITNESSES
        parts = zip(x.split(size), y.split(size), keys.split(size), strict=True)
        return torch.cat([self._candidates(*part, WITNESSES).log_density for part in parts])

    @torch.no_grad()
    def expected(self, of: Question, x: Tensor, y: Tensor, keys: Tensor, *, chains: bool) -> Tensor:
        """The means of what `of` finds, `[rows, V]`, over each row's completions with targets missing.

        Over the reference's draws by their weights, where these are many; else, if `chains`, over where chains end. One
        key for all rows makes a row's answer its own, whichever rows stand beside it.
        """
        size = AT_ONCE // WITNESSES
        found = []
        for a, b, k in zip(x.split(size), y.split(size), keys.split(size), strict=True):
            drawn = self._candidates(a, b, k, WITNESSES)
            shares = drawn.weights.softmax(1)
            few = (shares.square().sum(1) > 1 / ENOUGH) & chains
            parts = []
            if not bool(few.all()):
                enough = drawn.rows(~few)
                parts.append((~few, torch.einsum("nm,mnv->nv", shares[~few], self._asked(of, enough.x, enough.y))))
            if bool(few.any()):
                moved = self._completed(drawn.rows(few), a[few], b[few], k[few], n_draws=DRAWS, steps=STEPS)
                parts.append((few, self._asked(of, moved.x, moved.y).mean(0)))
            means = parts[0][1].new_empty(len(a), parts[0][1].shape[1])
            for rows, part in parts:
                means[rows] = part
            found.append(means)
        return torch.cat(found)

    def _asked(self, of: Question, x: Tensor, y: Tensor) -> Tensor:
        labels = y.flatten(0, 1).clone()
        labels[:, : self.n_targets] = MISSING
        values = of(x.flatten(0, 1), labels)
        return values.view(*x.shape[:2], values.shape[1])

    def _candidates(self, x: Tensor, y: Tensor, keys: Tensor, count: int) -> Candidates:
        drawn_x, drawn_y, log_known = reference_draws(self, x, y, count, streams.split(keys, 3)[0])
        flat_x, flat_y = drawn_x.flatten(0, 1), drawn_y.flatten(0, 1)
        f = self.model.log_density_unchecked(self.rows(flat_x), flat_y)
        weights = (f - self._reference(flat_x, flat_y)).view(count, len(x)).mT
        return Candidates(drawn_x, drawn_y, weights, log_known + weights.logsumexp(1) - math.log(count))

    def _completed(self, drawn: Candidates, x: Tensor, y: Tensor, keys: Tensor, *, n_draws: int, steps: int) -> Draws:
        n = len(x)
        mask = ~x.isnan()
        _, choice, walks = streams.split(keys, 3)
        # Evenly spaced through the sums of the weights: a candidate comes as often as it weighs, to within one.
        below = drawn.weights.softmax(1).cumsum(1)
        places = (torch.arange(n_draws) + streams.uniform(choice, 1, torch.float64)) / n_draws
        chosen = torch.searchsorted(below, places * below[:, -1:], right=True).clamp_(max=len(drawn.x) - 1).mT
        at = torch.arange(n)
        begin, labels = drawn.x[chosen, at].flatten(0, 1), drawn.y[chosen, at].flatten(0, 1)
        given, mask = y.repeat(n_draws, 1), mask.repeat(n_draws, 1)
        keys = torch.cat(streams.split(walks, n_draws))
        # Rows that miss discrete features walk apart from the others, whose chains must not depend on them.
        lacks = (given[:, self.n_targets :] == MISSING).any(1)
        end_x, end_y = begin.clone(), labels.clone()
        for rows in (lacks, ~lacks):
            if not bool(rows.any()):
                continue
            mover = mover_of(self.model.labels, self.kernel) if rows is lacks else Mover(self.kernel, None, 1)
            x_there, end_y[rows] = run_chains(
                self.model,
                mover,
                self.rows(begin[rows]),
                labels[rows],
                given[rows],
                steps=-(-steps // mover.x_steps),
                keys=keys[rows],
                mask=self.rows(mask[rows]),
            )
            end_x[rows] = x_there.flatten(1)
        return Draws(end_x.view(n_draws, n, -1), end_y.view(n_draws, n, -1), drawn.log_density)

    def _reference(self, x: Tensor, y: Tensor) -> Tensor:
        """log of the reference's density at complete rows, over the classes that y leaves open."""
        joint = self.gaussians.log_joint(x, self.others.code_of(y[:, self.n_targets :], x.dtype))
        return joint.masked_fill(~self.open_classes(y), -torch.inf).logsumexp(1)

    def open_classes(self, y: Tensor) -> Tensor:
        """Which of the reference's classes a row may belong to."""
        n_classes = len(self.gaussians.log_weights)
        if n_classes == 1:
            return torch.ones(len(y), 1, dtype=torch.bool)
        return self.model.targets.allowed(y[:, : self.n_targets])


def x_kernel(model: TiltedGaussianModel, step_size: float) -> Kernel:
    """MALA in the coordinates in which the reference is round: exact at temperature 1."""
    return PreconditionedMALA(step_size, Metric(model.whitening @ model.whitening.mT))


def mover_of(labels: LabelSpace, x_kernel: Kernel) -> Mover:
    """Labels and x in turn: all labels at once where they have few states, else one at a time by gradients."""
    exact = labels.n_states <= FEW_STATES
    return Mover(x_kernel, ExactGibbs(), X_STEPS) if exact else Mover(x_kernel, GibbsWithGradients(), 1)


def reference_draws(
    density: TableDensity, x: Tensor, y: Tensor, n_draws: int, keys: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows completed by the reference, x `[m, n, D]` and y `[m, n, L]`, and its log p(what is known), `[n]`.

    Targets stay as they are: the model sums them out.
    """
    gaussians, n, n_features = density.gaussians, *x.shape
    mask, held = ~x.isnan(), x.nan_to_num(0.0)
    conditions = ConditionalGaussian.of(gaussians.precision, mask)
    discrete = y[:, density.n_targets :]
    code = density.others.code_of(discrete.clamp(min=0), x.dtype)
    if len(density.others):
        code = code.masked_fill((discrete == MISSING)[:, torch.tensor(density.others.variable_of_code)], 0.0)
    centers = []
    log_known = []
    for k, mean in enumerate(gaussians.means):
        away = torch.where(mask, held - mean, 0.0)
        filled = away + conditions.mean(away)
        centers.append(mean + filled)
        square = ((filled @ gaussians.precision) * filled).sum(1)
        log_known.append(gaussians.log_weights[k] - 0.5 * square + code @ gaussians.log_values[k])
    known = torch.stack(log_known, dim=1).masked_fill(~density.open_classes(y), -torch.inf)
    of_class, of_x, *of_values = streams.split(torch.cat(streams.split(keys, n_draws)), 2 + len(density.others))
    classes = streams.categorical(of_class, known.repeat(n_draws, 1)).view(n_draws, n)
    moved = conditions.spread(streams.normal(of_x, n_features, x.dtype).view(n_draws, n, n_features))
    drawn = torch.stack(centers)[classes, torch.arange(n)] + moved
    free = (~mask).sum(1)
    roots = conditions.roots.diagonal(dim1=1, dim2=2)
    log_volume = torch.where(roots > 0, roots.clamp(min=1e-300).log(), 0.0).sum(1)[conditions.pattern]
    log_density = known.logsumexp(1) + 0.5 * free * math.log(2 * math.pi) + log_volume
    labels = y.repeat(n_draws, 1, 1)
    for place, (begin, size) in enumerate(zip(density.others.offsets, density.others.cardinalities, strict=True)):
        column = labels[:, :, density.n_targets + place]
        shares = gaussians.log_values[:, begin : begin + size][classes.flatten()]
        values = streams.categorical(of_values[place], shares).view(n_draws, n)
        column.copy_(torch.where(column == MISSING, values, column))
    return torch.where(mask, held, drawn), labels, log_density
