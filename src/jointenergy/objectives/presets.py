"""objectives: the papers' objectives by name."""

from __future__ import annotations

from jointenergy.errors import InputError
from jointenergy.labels import nearest
from jointenergy.objectives.objective import Objective
from jointenergy.objectives.regularizers import EnergyL2, KLTerm
from jointenergy.objectives.terms import LogPX, LogPXGivenY, LogPXY, LogPYGivenX

PRESETS: dict[str, Objective] = {
    "jem": LogPX() + LogPYGivenX(),
    "gibbs-jem": LogPXY() + KLTerm(0.3),
    "mixed": Objective((LogPXY(),)),
    "igebm": LogPXGivenY() + EnergyL2(1.0),
    "baseline": Objective((LogPYGivenX(),)),
}
"""What each paper maximizes; an objective of one's own is a line like these."""


def preset(name: str) -> Objective:
    """The objective called `name`."""
    if name not in PRESETS:
        raise InputError(f"there is no objective called {name!r}: {nearest(str(name), tuple(PRESETS))}")
    return PRESETS[name]
