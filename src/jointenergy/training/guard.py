"""training: the guard, which looks at a few numbers every few steps and says when a run is in trouble.

It knows numbers, not models: what is done about trouble is the loop's part. All thresholds live here; they were set on
runs known to live and runs killed on purpose, and are no fields of a recipe.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

WARMUP = 40  # looks before a comparison with a run's own history means something
HISTORY = 100  # how many looks back that history goes
RECENT = 20  # and its nearer part
PATIENCE = 5  # looks that a sign must last before it counts as trouble
GAP_LAG = 1.5  # chains lag behind the data: more steps help
GAP_TROUBLE = 3.0  # the limit of health
SICK_SHARE = 0.25  # more sick chains than purging can be the answer to
# A gradient norm, against the median of its recent history and of all of it: the classifier of dsprites-mixed, when it
# leaves its plateau, steepens tenfold within 10 looks and a hundredfold within 40.
NORM_JUMP = 30.0
NORM_RISE = 300.0
LEVEL_JUMP = 8.0  # the level of f(data), against its history, in standard deviations of f(data)
LEVEL_LEAST = 5.0  # nats; early in a run f varies little over the data, and its level drifts by more than that
FROZEN = 1e-5  # mean movement of a chain in a step, as a share of the data's range
DIVERSITY = 0.3  # spread of the chains, as a share of the data's
AT_BOUNDS = 0.35  # more values at the bounds than in the data

Verdict = Literal["fine", "lagging", "trouble"]


@dataclass(frozen=True)
class Signals:
    """What a step tells, all of it cheap."""

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
        return all(math.isfinite(v) for v in asdict(self).values())

    @property
    def gap(self) -> float:
        """f(data) minus f(samples) in standard deviations of f(data)."""
        return (self.f_data - self.f_samples) / max(self.f_data_spread, 1e-3)


@dataclass(frozen=True)
class Judgment:
    """The guard's word on a step, and the reason in one sentence."""

    verdict: Verdict
    reason: str = ""


@dataclass
class Guard:
    """Watches the signals of a run; `judge` is called at every look, in order."""

    seen: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    levels: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))

    def judge(self, s: Signals) -> Judgment:
        """Fine, lagging, or trouble with its reason. One bad value may be chance; one that lasts is not."""
        self.seen += 1
        if not s.finite:
            return self._last("not finite", True, PATIENCE, "losses, gradients or log-densities are not finite")
        self._last("not finite", False, PATIENCE, "")
        warm = self.seen > WARMUP
        norms = list(self.norms) if len(self.norms) > WARMUP // 2 else [math.inf]
        recent, long = statistics.median(norms[-RECENT:]), statistics.median(norms)
        times = NORM_JUMP if s.gradient_norm > NORM_JUMP * recent else NORM_RISE
        level = statistics.median(self.levels) if len(self.levels) > WARMUP // 2 else s.f_data
        jump = max(LEVEL_JUMP * s.f_data_spread, LEVEL_LEAST)
        signs = [
            ("gap", abs(s.gap) > GAP_TROUBLE, f"f(data) and f(samples) are {s.gap:+.1f} standard deviations apart"),
            ("sick", s.sick > SICK_SHARE, f"{s.sick:.0%} of the chains are sick"),
            (
                "norm",
                s.gradient_norm > min(NORM_JUMP * recent, NORM_RISE * long),
                f"the gradient norm is {s.gradient_norm:.3g}, {times:.0f} times its history's",
            ),
            (
                "level",
                abs(s.f_data - level) > jump,
                f"f(data) jumped from {level:.1f} to {s.f_data:.1f}",
            ),
            ("frozen", s.movement < FROZEN, "the chains do not move"),
            ("diversity", s.spread < DIVERSITY, f"the chains are all alike (spread {s.spread:.2f} of the data's)"),
            ("bounds", s.at_bounds > AT_BOUNDS, f"{s.at_bounds:.0%} more values lie at the bounds than in the data"),
        ]
        # What looks wrong is no history: it would soon look like what is usual.
        suspect = {name for name, bad, _ in signs if bad}
        if "norm" not in suspect:
            self.norms.append(s.gradient_norm)
        if "level" not in suspect:
            self.levels.append(s.f_data)
        for name, bad, reason in signs:
            judgment = self._last(name, bad and warm, PATIENCE, reason)
            if judgment.verdict == "trouble":
                return judgment
        lagging = warm and GAP_LAG < s.gap <= GAP_TROUBLE
        judgment = self._last("lag", lagging, PATIENCE * 2, "the chains lag behind the data")
        return Judgment("lagging", judgment.reason) if judgment.verdict == "trouble" else Judgment("fine")

    def restore(self, state: dict[str, Any]) -> None:
        """After a rollback: the history of the point that the run went back to, no sign counted against it."""
        self.load_state_dict(state)
        self.counts.clear()

    def _last(self, name: str, bad: bool, patience: int, reason: str) -> Judgment:
        self.counts[name] = self.counts.get(name, 0) + 1 if bad else max(self.counts.get(name, 0) - 1, 0)
        if self.counts[name] >= patience:
            self.counts[name] = 0
            return Judgment("trouble", reason)
        return Judgment("fine")

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


SIGNALS = tuple(f.name for f in fields(Signals))
