"""training: what to change in a run that ended and is not healthy: for each sign the two settings to try first."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from jointenergy.training.health import Health, Sign
from jointenergy.training.plan import Plan

PAGE = "docs/how-to/health.md"


class Remedy(NamedTuple):
    """A setting by its name in a recipe and in `fit`, and which way to change it."""

    verb: str
    recipe: str
    fit: str


RATE = Remedy("lower", "optimizer.learning_rate", "the learning rate of optimizer")
SMALLER = Remedy("lower", "chain.kernel.step_size", "step_size of kernel")
LARGER = Remedy("raise", "chain.kernel.step_size", "step_size of kernel")
WARMER = Remedy("raise", "chain.kernel.noise_scale", "noise_scale of kernel")
STEPS = Remedy("raise", "chain.steps", "steps")
LONGER = Remedy("raise", "iterations", "iterations")
RESTARTS = Remedy("raise", "buffer.restart", "restart of buffer")
FLATTER = Remedy("raise", "objective.energy_l2", "the weight of EnergyL2 in objective")
LABELS = Remedy("raise", "objective.log_p_y_given_x", "the weight of LogPYGivenX in objective")
TERMS = {FLATTER: "energy_l2", LABELS: "log_p_y_given_x"}

# What each sign means, and what to change first and then; docs/how-to/health.md shows the same.
REMEDIES: dict[Sign, tuple[str, Remedy, Remedy]] = {
    "finite": ("training diverged", RATE, SMALLER),
    "persistent": ("chains of the buffer lag behind the model, or run ahead of it", RATE, STEPS),
    "fresh": ("chains from the start do not reach the data in the steps they have", STEPS, RESTARTS),
    "long": ("the model has maxima away from the data, which long chains find", FLATTER, STEPS),
    "bounds": ("chains are pushed to the edge of the box", SMALLER, FLATTER),
    "movement": ("the gradient does not lead back to the data", LONGER, LARGER),
    "looks": ("samples have artifacts, or another distribution than data", LONGER, STEPS),
    "coverage": ("samples show a few kinds of data, or copies of training rows", WARMER, RESTARTS),
    "conditions": ("samples depend too weakly on the label", LABELS, LONGER),
}


def changes(health: Health, plan: Plan) -> list[Remedy]:
    """The two settings most worth changing: those that most signs name, the first of a sign counting double.

    Weights of terms that the objective lacks, and a buffer that the run lacks, are left out.
    """
    terms = {term.name for objective in plan.objectives for term in objective.terms}
    lacking = {remedy for remedy, term in TERMS.items() if term not in terms}
    if plan.buffer is None:
        lacking.add(RESTARTS)
    votes: Counter[Remedy] = Counter()
    for sign in dict.fromkeys(sign for sign, _ in health.signs):
        _, first, then = REMEDIES[sign]
        votes[first] += 2
        votes[then] += 1
    return [change for change, _ in votes.most_common() if change not in lacking][:2]
