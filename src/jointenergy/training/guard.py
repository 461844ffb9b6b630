"""training: the guard, which monitors a few numbers every few steps and reports when a run is in trouble.

It knows numbers, not models; the loop decides what to do. All thresholds are here, set on healthy runs and on runs
broken on purpose; recipes cannot change them.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

WARMUP = 40  # looks before comparisons with the run's own history
HISTORY = 100  # looks in the history
RECENT = 20  # looks in the recent history
PATIENCE = 5  # consecutive looks before a sign counts as trouble
GAP_LAG = 1.5  # chains lag behind the data; more steps help
GAP_TROUBLE = 3.0  # the limit of the health check
SICK_SHARE = 0.25  # share of diverged chains beyond which restarts are not enough
# Gradient norm relative to the medians of its recent and its whole history. When the classifier of dsprites-mixed
# leaves its plateau, it grows tenfold within 10 looks and a hundredfold within 40.
NORM_JUMP = 30.0
NORM_RISE = 300.0
LEVEL_JUMP = 8.0  # jump of mean f(data) from its history, in standard deviations of f(data)
LEVEL_LEAST = 5.0  # nats; early in a run f varies little over the data, and its mean drifts by more
FROZEN = 1e-5  # mean movement per step, as a share of the data range
DIVERSITY = 0.3  # spread of the chains, as a share of the data's
AT_BOUNDS = 0.35  # more values at the bounds than in the data

Verdict = Literal["fine", "lagging", "trouble"]


@dataclass(frozen=True)
class Signals:
    """Cheap statistics of a step."""

    loss: float
    gradient_norm: float
    f_data: float
    f_data_spread: float
    f_samples: float
    f_samples_spread: float
    sick: float
    movement: float
    spread: float
    at_bounds: float

    @property
    def finite(self) -> bool:
        return all(map(math.isfinite, vars(self).values()))

    @property
    def gap(self) -> float:
        """f(data) minus f(samples), in standard deviations of f(data)."""
        return (self.f_data - self.f_samples) / max(self.f_data_spread, 1e-3)


@dataclass(frozen=True)
class Judgment:
    """The guard's judgment of a step, with a one-sentence reason."""

    verdict: Verdict
    reason: str = ""


class Symptom(NamedTuple):
    """A symptom of trouble: whether a step shows it, the reason in a sentence, and after how many looks it counts."""

    name: str
    shown: bool
    reason: str
    patience: int = PATIENCE


@dataclass
class Guard:
    """Monitors the signals of a run; `judge` is called at every look, in order."""

    seen: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    levels: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))

    def judge(self, s: Signals) -> Judgment:
        """Return fine, lagging, or trouble with its reason. A symptom must last, since one bad value may be chance."""
        self.seen += 1
        unsound = Symptom("not finite", not s.finite, "loss, gradient or log-densities are not finite")
        for symptom in [unsound] if unsound.shown else [unsound, *self._symptoms(s)]:
            count = self.counts.get(symptom.name, 0)
            count = count + 1 if symptom.shown else max(count - 1, 0)
            lasting = count >= symptom.patience
            self.counts[symptom.name] = 0 if lasting else count
            if lasting:
                return Judgment("lagging" if symptom.name == "lag" else "trouble", symptom.reason)
        return Judgment("fine")

    def _symptoms(self, s: Signals) -> list[Symptom]:
        """List the symptoms in finite signals, and add these to the history."""
        warm, gap = self.seen > WARMUP, s.gap
        norms = list(self.norms) if len(self.norms) > WARMUP // 2 else [math.inf]
        recent, long = statistics.median(norms[-RECENT:]), statistics.median(norms)
        times = NORM_JUMP if s.gradient_norm > NORM_JUMP * recent else NORM_RISE
        level = statistics.median(self.levels) if len(self.levels) > WARMUP // 2 else s.f_data
        risen = s.gradient_norm > min(NORM_JUMP * recent, NORM_RISE * long)
        jumped = abs(s.f_data - level) > max(LEVEL_JUMP * s.f_data_spread, LEVEL_LEAST)
        # Suspicious values do not enter the history, or they would soon look normal.
        if not risen:
            self.norms.append(s.gradient_norm)
        if not jumped:
            self.levels.append(s.f_data)
        rise = f"the gradient norm is {s.gradient_norm:.3g}, {times:.0f} times its median"
        collapse = f"the chains have collapsed (spread {s.spread:.2f} of the data's)"
        bounds = f"{s.at_bounds:.0%} more values at the bounds than in the data"
        apart = f"f(data) and f(samples) are {gap:+.1f} standard deviations apart"
        return [
            Symptom("gap", warm and abs(gap) > GAP_TROUBLE, apart),
            Symptom("sick", warm and s.sick > SICK_SHARE, f"{s.sick:.0%} of the chains diverged"),
            Symptom("norm", warm and risen, rise),
            Symptom("level", warm and jumped, f"f(data) jumped from {level:.1f} to {s.f_data:.1f}"),
            Symptom("frozen", warm and s.movement < FROZEN, "the chains do not move"),
            Symptom("diversity", warm and s.spread < DIVERSITY, collapse),
            Symptom("bounds", warm and s.at_bounds > AT_BOUNDS, bounds),
            Symptom("lag", warm and GAP_LAG < gap <= GAP_TROUBLE, "the chains lag behind the data", PATIENCE * 2),
        ]

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the history after a rollback, and reset all signs."""
        self.load_state_dict(state)
        self.counts.clear()

    def state_dict(self) -> dict[str, Any]:
        return {
            "seen": self.seen,
            "counts": self.counts,
            "norms": list(self.norms),
            "levels": list(self.levels),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen, self.counts = state["seen"], dict(state["counts"])
        self.norms = deque(state["norms"], maxlen=HISTORY)
        self.levels = deque(state["levels"], maxlen=HISTORY)
