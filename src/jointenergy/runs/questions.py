"""runs: the questions that are asked of given x: which labels, how probable, how dense, is it like the data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from jointenergy import inference
from jointenergy.errors import InputError
from jointenergy.inference.detect import CONFIDENCE
from jointenergy.inputs import check_count
from jointenergy.kernels import BlockGibbs, ExactGibbs, GibbsWithGradients, Kernel, Langevin
from jointenergy.runs.arrays import Array, Labels, given_of
from jointenergy.runs.parts import Parts, seeded

By = Literal["energy", "sampling", "search"]
QUANTILE = 0.05  # the share of validation rows that a threshold leaves out, unless said


@dataclass(frozen=True, eq=False)
class Detected:
    """The score of each x, `[n]`, and whether it is like the data: inside the bounds, its score at the threshold."""

    score: Tensor
    inside: Tensor
    threshold: inference.Threshold


class Questions(Parts):
    """A run as far as it answers questions about given x; `Run` adds what chains make."""

    # Densities and scores.

    @torch.no_grad()
    def log_density(self, x: Array, y: Labels = None) -> Tensor:
        """log p(x, y) up to one constant of the model, `[n]`; labels that are not named are summed out."""
        rows = self._near(x)
        return self.model.log_density(rows, self.labels.given(given_of(y), len(rows), rows.device))

    def density(self, x: Array, names: Sequence[str] | None = None, *, given: Labels = None) -> Tensor:
        """p(the named labels together | x, given), `[n, *cardinalities]`, exact; None names all."""
        return inference.label_table(self.model, self._near(x), names, given_of(given))

    def score(self, x: Array, name: str = "log_density", *, given: Labels = None) -> Tensor:
        """How much x is like the data, `[n]`: log_density, max_probability or gradient_norm (minus the norm)."""
        return inference.score(self.model, self._near(x), name, given_of(given))

    # Labels of x.

    def predict(
        self,
        x: Array,
        *,
        given: Labels = None,
        by: By = "energy",
        refine: int = 0,
        mask: Array | None = None,
        n_chains: int = 10,
        steps: int = 200,
        seed: int = 0,
    ) -> Tensor:
        """Labels, int64 `[n, L]`: by energy the most probable value of each variable, exactly.

        `sampling` compares no energies: it takes the mode of chains of labels. It alone serves x that is known in part,
        where `mask` is True, and warns where x then moves at another temperature than the labels. `search` anneals all
        labels together, for those too many to enumerate. `refine` moves x that many Langevin steps first (JEM-1,
        JEM-10).
        """
        if by == "search" and mask is None:
            rows = self._refined(x, given, refine, seed)
            return inference.search(
                self.model, rows, steps=steps, restarts=n_chains, generator=seeded(seed), given=given_of(given)
            ).labels
        if by == "energy" and mask is None:
            return inference.predict(self.model, self._refined(x, given, refine, seed), given_of(given))
        return self._by_sampling(x, given, by, refine, mask, n_chains, steps, seed).labels

    def predict_proba(
        self,
        x: Array,
        *,
        given: Labels = None,
        by: By = "energy",
        refine: int = 0,
        mask: Array | None = None,
        n_chains: int = 10,
        steps: int = 200,
        seed: int = 0,
    ) -> dict[str, Tensor]:
        """p(label | x, given) for each label variable, `[n, cardinality]`; by sampling the shares of the chains."""
        if by == "energy" and mask is None:
            return inference.predict_proba(self.model, self._refined(x, given, refine, seed), given_of(given))
        return self._by_sampling(x, given, by, refine, mask, n_chains, steps, seed).shares

    def predict_by_sampling(
        self, x: Array, *, given: Labels = None, n_chains: int = 10, steps: int = 200, seed: int = 0
    ) -> inference.SampledPrediction:
        """All that chains of labels say: their modes, their shares, and one draw of all labels together."""
        return self._by_sampling(x, given, "sampling", 0, None, n_chains, steps, seed)

    def predict_joint(self, x: Array, *, given: Labels = None) -> inference.JointPrediction:
        """The most probable labels, all variables at once, and their log-probability. Exact."""
        return inference.predict_joint(self.model, self._near(x), given_of(given))

    def rank(self, x: Array, first: Labels, second: Labels, *, given: Labels = None) -> inference.Ranking:
        """Which of two labelings goes better with x, and by how much."""
        return inference.rank(self.model, self._near(x), given_of(first), given_of(second), given_of(given))

    def compatibility(self, x: Array, y: Labels, *, given: Labels = None) -> inference.Compatibility:
        """How well labels go with x: their probability, and their place among all labelings."""
        return inference.compatibility(self.model, self._near(x), given_of(y), given_of(given))

    # Is x like the data, and when to give no answer.

    def threshold(self, score: str = "log_density", quantile: float = QUANTILE) -> inference.Threshold:
        """The stored threshold of a score, or one fitted now to the held-out rows and stored in the run folder."""
        found = self.thresholds.find(score, quantile)
        if found is not None:
            return found
        if self.recipe is None:
            # Rounded as little as `find` forgives: 1 - coverage is seldom a short number.
            call = f'run.fit_threshold(x, score="{score}", quantile={round(quantile, 12)})'
            raise InputError(
                f"a threshold rests on validation rows, and {self.origin.name} has none: each score and quantile needs "
                f"rows x of your own, here by {call}"
            )
        return self.fit_threshold(self.data.x_held, score, quantile)

    def fit_threshold(self, x: Array, score: str = "log_density", quantile: float = QUANTILE) -> inference.Threshold:
        """A threshold from validation rows of your own, kept: the share `quantile` of them lies below it."""
        if score == CONFIDENCE:
            fitted = inference.confidence_threshold(self.model, self._near(x), 1.0 - quantile)
        else:
            fitted = inference.Threshold.fit(score, self.score(x, score), quantile)
        return self.thresholds.keep(fitted)

    def detect(self, x: Array, *, score: str = "log_density", quantile: float = QUANTILE) -> Detected:
        """Is x like the data: its score against that of held-out rows, of which the share `quantile` is refused."""
        rows, threshold = self._near(x), self.threshold(score, quantile)
        scores = self.score(rows, threshold.score)
        return Detected(scores, threshold.accepts(scores) & self.model.domain.contains(rows), threshold)

    def abstain(self, x: Array, *, coverage: float = 0.95, given: Labels = None) -> inference.Abstention:
        """Predictions where the model is sure enough, MISSING elsewhere; held-out rows are answered for `coverage`."""
        threshold = self.threshold(CONFIDENCE, 1.0 - coverage)
        return inference.abstain(self.model, self._near(x), threshold, given_of(given))

    def refine(
        self,
        x: Array,
        steps: int = 1,
        *,
        given: Labels = None,
        n_draws: int = 1,
        differentiable: bool = False,
        kernel: Langevin | None = None,
        seed: int = 0,
    ) -> inference.Refined:
        """x after some Langevin steps on log p(x), and its label probabilities there."""
        return inference.refine(
            self.model,
            self._near(x),
            kernel=kernel or self.sampling.x_kernel,
            steps=steps,
            given=given_of(given),
            n_draws=n_draws,
            differentiable=differentiable,
            generator=seeded(seed),
        )

    def _by_sampling(
        self, x: Array, given: Labels, by: By, refine: int, mask: Array | None, n_chains: int, steps: int, seed: int
    ) -> inference.SampledPrediction:
        if mask is not None and by in ("energy", "search"):
            raise InputError("what is not known of x has to be drawn: with a mask predict by='sampling'")
        if by != "sampling":
            raise InputError(f"by must be 'energy' or 'sampling' here, got {by!r}")
        if mask is not None and refine:
            raise InputError("x that is known in part cannot be refined: leave refine or mask out")
        rows = self._near(x, mask) if mask is not None else self._refined(x, given, refine, seed)
        kernel = self._label_kernel()
        if mask is not None:
            kernel = BlockGibbs(kernel, self.sampling.x_kernel, self.sampling.x_steps)
            temperature = self.sampling.x_kernel.temperature
            if not math.isclose(temperature, 1.0, rel_tol=1e-6):
                # Said here, as labels and shares are plain tensors, which have no room for a note.
                warnings.warn(
                    f"what is not known of x moves at temperature {temperature:.3g} and the labels at 1: together they "
                    "have no density, so the labels are drawn from no p(labels | what is known of x)",
                    stacklevel=3,
                )
        return inference.predict_by_sampling(
            self.model,
            rows,
            kernel,
            n_chains=n_chains,
            steps=steps,
            generator=seeded(seed),
            given=given_of(given),
            mask=None if mask is None else self.mask(mask),
            x_start=self._noise(),
        )

    def _label_kernel(self) -> Kernel:
        """The recipe's own; where it has none, that which draws all labels at once, if they can be gone through."""
        if self.sampling.y_kernel is not None:
            return self.sampling.y_kernel
        return ExactGibbs() if self.model.can_sum() else GibbsWithGradients()

    def _refined(self, x: Array, given: Labels, steps: int, seed: int) -> Tensor:
        if check_count("refine", steps, least=0) == 0:
            return self._near(x)
        return self.refine(x, steps, given=given, seed=seed).x[0]
