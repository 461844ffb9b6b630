"""tables: the joint density of a fitted table at temperature 1: log-densities, probabilities and completions.

Rows are standardized features x, `[n, D]`, NaN where missing, and labels y, `[n, L]`, the targets first, then the
discrete features, MISSING where missing. Known entries never move.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.inference.chains import Mover, run_chains
from jointenergy.kernels import ExactGibbs, GibbsWithGradients, Kernel, PreconditionedMALA, Preconditioner
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import TiltedGaussianModel
from jointenergy.tables.gaussians import ConditionalGaussian, Gaussians, known_code
from jointenergy.tables.jobs import each

CANDIDATES = 128  # reference draws per row from which the starts of its chains are resampled
WITNESSES = 512  # reference draws per row for an importance-sampled mean
ENOUGH = 64.0  # effective sample size of these above which a row needs no chains
DRAWS, STEPS = 32, 20  # chains of a row, and their steps, below it
FEW_STATES = 128  # label states up to which all labels are drawn jointly and exactly
X_STEPS = 3  # moves of x for each such draw, which costs as much as several of them
AT_ONCE = 8192  # rows or chains per batch


Question = Callable[[Tensor, Tensor], Tensor]  # from complete rows x and labels y to one or several numbers per row


@dataclass(frozen=True, eq=False)
class Candidates:
    """Hold rows completed by the reference, x `[m, n, D]` and y `[m, n, L]`, their log importance weights and the
    model's log-densities, `[n, m]`."""

    x: Tensor
    y: Tensor
    weights: Tensor
    values: Tensor

    def of_rows(self, chosen: Tensor) -> Candidates:
        return Candidates(self.x[:, chosen], self.y[:, chosen], self.weights[chosen], self.values[chosen])


@dataclass(frozen=True, eq=False)
class TableDensity:
    """Hold the model in float64 with its reference, the step size of its chains, and their last states.

    Questions about many rows are answered in pieces, in `n_jobs` threads.
    """

    model: TiltedGaussianModel
    gaussians: Gaussians
    step_size: float
    chains_x: Tensor
    chains_y: Tensor

    @property
    def n_targets(self) -> int:
        return self.model.n_targets

    @torch.no_grad()
    def log_density(self, x: Tensor, y: Tensor, *, n_jobs: int | None = None) -> Tensor:
        """Return log p(x, y) of complete rows up to the model's constant, missing targets summed out."""
        pieces = zip(self._shaped(x).split(AT_ONCE), y.split(AT_ONCE), strict=True)
        return torch.cat(each(self.model.log_density_unchecked, pieces, n_jobs))

    @torch.no_grad()
    def target_probs(self, x: Tensor, y: Tensor, *, n_jobs: int | None = None) -> Tensor:
        """Return p(target | x, other labels) of complete rows, targets concatenated: `[n, n_codes of the targets]`."""

        def probs(x: Tensor, y: Tensor) -> Tensor:
            found = self.model.label_probs(x, y)
            return torch.cat([found[name] for name in self.model.targets], dim=1)

        return torch.cat(each(probs, zip(self._shaped(x).split(AT_ONCE), y.split(AT_ONCE), strict=True), n_jobs))

    def incomplete(self, x: Tensor, y: Tensor) -> Tensor:
        """Return which rows have missing features; missing targets do not count."""
        return x.isnan().any(1) | (y[:, self.n_targets :] == MISSING).any(1)

    @torch.no_grad()
    def complete_rows(
        self, x: Tensor, y: Tensor, keys: Tensor, *, n_draws: int, steps: int, n_jobs: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw `n_draws` completions of each row, x `[m, n, D]` and y `[m, n, L]`.

        Reference draws given the known entries are resampled by their importance weights, then moved by `steps` steps
        of an exact kernel. A row's completions depend on the row and its key alone.
        """
        size = max(1, AT_ONCE // max(CANDIDATES, n_draws))

        def completed(x: Tensor, y: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
            return self._moved(self._candidates(x, y, keys, CANDIDATES)[0], x, y, keys, n_draws=n_draws, steps=steps)

        parts = each(completed, zip(x.split(size), y.split(size), keys.split(size), strict=True), n_jobs)
        return torch.cat([x for x, _ in parts], dim=1), torch.cat([y for _, y in parts], dim=1)

    @torch.no_grad()
    def log_known(self, x: Tensor, y: Tensor, keys: Tensor, *, n_jobs: int | None = None) -> Tensor:
        """Return log p(known entries) of each row up to the model's constant: exact for complete rows, else estimated
        by importance sampling from the reference."""

        def estimated(x: Tensor, y: Tensor, keys: Tensor) -> Tensor:
            return self._candidates(x, y, keys, WITNESSES)[1]

        return self._answers(self.log_density, estimated, x, y, keys, n_jobs)

    @torch.no_grad()
    def expected_log_density(
        self, x: Tensor, y: Tensor, keys: Tensor, *, count: int = WITNESSES, n_jobs: int | None = None
    ) -> Tensor:
        """Return the mean of log p over the completions of each row, by importance sampling from the reference with
        `count` draws: as `expected(log_density)` without chains, at half the cost."""

        def mean(x: Tensor, y: Tensor, keys: Tensor) -> Tensor:
            drawn, _ = self._candidates(x, y, keys, count)
            return (drawn.weights.softmax(1) * drawn.values).sum(1)

        return self._answers(self.log_density, mean, x, y, keys, n_jobs)

    @torch.no_grad()
    def expected(
        self, of: Question, x: Tensor, y: Tensor, keys: Tensor, *, chains: bool, n_jobs: int | None = None
    ) -> Tensor:
        """Return the mean of `of`, `[n, V]`, over the completions of each row, targets missing.

        Importance sampling from the reference where the effective sample size suffices; else, with `chains`, the mean
        over chain ends. With one key for all rows, a row's answer does not depend on other rows.
        """

        def asked(x: Tensor, y: Tensor) -> Tensor:
            labels = y.flatten(0, 1).clone()
            labels[:, : self.n_targets] = MISSING
            return of(x.flatten(0, 1), labels).view(*x.shape[:2], -1)

        def mean(x: Tensor, y: Tensor, keys: Tensor) -> Tensor:
            drawn, _ = self._candidates(x, y, keys, WITNESSES)
            shares = drawn.weights.softmax(1)
            few = (shares.square().sum(1) > 1 / ENOUGH) & chains

            def weighted(many: Tensor) -> Tensor:
                enough = drawn.of_rows(many)
                return torch.einsum("nm,mnv->nv", shares[many], asked(enough.x, enough.y))

            def chained(few: Tensor) -> Tensor:
                start = drawn.of_rows(few)
                return asked(*self._moved(start, x[few], y[few], keys[few], n_draws=DRAWS, steps=STEPS)).mean(0)

            return _by_rows(few, chained, weighted)

        return self._answers(of, mean, x, y, keys, n_jobs)

    def _answers(
        self,
        of_complete: Callable[..., Tensor],
        of_others: Callable[..., Tensor],
        x: Tensor,
        y: Tensor,
        keys: Tensor,
        n_jobs: int | None,
    ) -> Tensor:
        size = AT_ONCE // WITNESSES

        def others(rows: Tensor) -> Tensor:
            pieces = zip(*(t[rows].split(size) for t in (x, y, keys)), strict=True)
            return torch.cat(each(of_others, pieces, n_jobs))

        def complete(rows: Tensor) -> Tensor:
            return of_complete(x[rows], y[rows], n_jobs=n_jobs)

        return _by_rows(self.incomplete(x, y), others, complete)

    def _candidates(self, x: Tensor, y: Tensor, keys: Tensor, count: int) -> tuple[Candidates, Tensor]:
        """Draw `count` completions per row from the reference; estimate log p(known entries) from their weights."""
        drawn_x, drawn_y, log_known = self._reference_draws(x, y, count, streams.split(keys, 3)[0])
        flat_x, flat_y = drawn_x.flatten(0, 1), drawn_y.flatten(0, 1)
        code = self.model.others.code_of(flat_y[:, self.n_targets :], x.dtype)
        joint = self.gaussians.log_joint(flat_x, code).masked_fill(~self._open_classes(flat_y), -torch.inf)
        f = self.model.log_density_unchecked(self._shaped(flat_x), flat_y)
        values = f.view(count, len(x)).mT
        weights = values - joint.logsumexp(1).view(count, len(x)).mT
        return Candidates(drawn_x, drawn_y, weights, values), log_known + weights.logsumexp(1) - math.log(count)

    def _moved(
        self, drawn: Candidates, x: Tensor, y: Tensor, keys: Tensor, *, n_draws: int, steps: int
    ) -> tuple[Tensor, Tensor]:
        """Run chains from candidates resampled by weight; return where they end."""
        n = len(x)
        _, choice, walks = streams.split(keys, 3)
        # Systematic resampling: the count of each candidate is its expected count, up to one.
        below = drawn.weights.softmax(1).cumsum(1)
        places = (torch.arange(n_draws) + streams.uniform(choice, 1, torch.float64)) / n_draws
        chosen = torch.searchsorted(below, places * below[:, -1:], right=True).clamp_(max=len(drawn.x) - 1).mT
        at = torch.arange(n)
        end_x, end_y = drawn.x[chosen, at].flatten(0, 1), drawn.y[chosen, at].flatten(0, 1)
        given, mask = y.repeat(n_draws, 1), (~x.isnan()).repeat(n_draws, 1)
        keys = torch.cat(streams.split(walks, n_draws))
        kernel = x_kernel(self.model, self.step_size)
        # Rows with missing discrete features run separately: the chains of the others must not depend on them.
        lacks = (given[:, self.n_targets :] == MISSING).any(1)
        for rows, mover in ((lacks, mover_of(self.model.labels, kernel)), (~lacks, Mover(kernel, None, 1))):
            if not bool(rows.any()):
                continue
            x_there, end_y[rows] = run_chains(
                self.model,
                mover,
                self._shaped(end_x[rows]),
                end_y[rows],
                given[rows],
                steps=-(-steps // mover.x_steps),
                keys=keys[rows],
                mask=self._shaped(mask[rows]),
            )
            end_x[rows] = x_there.flatten(1)
        return end_x.view(n_draws, n, -1), end_y.view(n_draws, n, -1)

    def _reference_draws(self, x: Tensor, y: Tensor, n_draws: int, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Complete rows by the reference, x `[m, n, D]` and y `[m, n, L]`; return its log p(known entries), `[n]`, too.

        Targets stay as they are: the model sums them out.
        """
        gaussians, n, n_features = self.gaussians, *x.shape
        mask, held = ~x.isnan(), x.nan_to_num(0.0)
        conditions = ConditionalGaussian.of(gaussians.precision, mask)
        others = self.model.others
        code = known_code(y[:, self.n_targets :], others, x.dtype)
        centers = []
        log_known = []
        for k, mean in enumerate(gaussians.means):
            away = torch.where(mask, held - mean, 0.0)
            filled = away + conditions.mean(away)
            centers.append(mean + filled)
            square = ((filled @ gaussians.precision) * filled).sum(1)
            log_known.append(gaussians.log_weights[k] - 0.5 * square + code @ gaussians.log_values[k])
        known = torch.stack(log_known, dim=1).masked_fill(~self._open_classes(y), -torch.inf)
        of_class, of_x, *of_values = streams.split(torch.cat(streams.split(keys, n_draws)), 2 + len(others))
        classes = streams.categorical(of_class, known.repeat(n_draws, 1)).view(n_draws, n)
        moved = conditions.spread(streams.normal(of_x, n_features, x.dtype).view(n_draws, n, n_features))
        drawn = torch.stack(centers)[classes, torch.arange(n)] + moved
        free = (~mask).sum(1)
        roots = conditions.roots.diagonal(dim1=1, dim2=2)
        log_volume = torch.where(roots > 0, roots.clamp(min=1e-300).log(), 0.0).sum(1)[conditions.pattern]
        log_density = known.logsumexp(1) + 0.5 * free * math.log(2 * math.pi) + log_volume
        labels = y.repeat(n_draws, 1, 1)
        for place, (begin, size) in enumerate(zip(others.offsets, others.cardinalities, strict=True)):
            column = labels[:, :, self.n_targets + place]
            shares = gaussians.log_values[:, begin : begin + size][classes.flatten()]
            values = streams.categorical(of_values[place], shares).view(n_draws, n)
            column.copy_(torch.where(column == MISSING, values, column))
        return torch.where(mask, held, drawn), labels, log_density

    def _open_classes(self, y: Tensor) -> Tensor:
        """Return which classes of the reference a row may belong to."""
        if len(self.gaussians.log_weights) == 1:
            return torch.ones(len(y), 1, dtype=torch.bool)
        return self.model.targets.allowed(y[:, : self.n_targets])

    def _shaped(self, x: Tensor) -> Tensor:
        """Reshape rows to the model's event shape."""
        return x.view(len(x), *(self.model.event_shape or ()))


def _by_rows(chosen: Tensor, of_chosen: Callable[[Tensor], Tensor], of_others: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply one function to the rows of a mask and another to the rest."""
    parts = [(rows, of(rows)) for rows, of in ((chosen, of_chosen), (~chosen, of_others)) if bool(rows.any())]
    found = parts[0][1].new_empty(len(chosen), *parts[0][1].shape[1:])
    for rows, values in parts:
        found[rows] = values
    return found


def x_kernel(model: TiltedGaussianModel, step_size: float) -> Kernel:
    """Return MALA preconditioned by the reference's covariance: exact at temperature 1."""
    return PreconditionedMALA(step_size, Preconditioner(model.whitening @ model.whitening.mT))


def mover_of(labels: LabelSpace, x_kernel: Kernel) -> Mover:
    """Return a kernel that moves labels and x in turn: labels jointly where they have few states, else one at a time by
    Gibbs-With-Gradients."""
    exact = labels.n_states <= FEW_STATES
    return Mover(x_kernel, ExactGibbs(), X_STEPS) if exact else Mover(x_kernel, GibbsWithGradients(), 1)
