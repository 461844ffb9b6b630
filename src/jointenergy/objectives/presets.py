"""objectives: the papers' objectives, and those without chains; one of your own is a sum like these."""

from __future__ import annotations

from collections.abc import Callable

from jointenergy.errors import InputError
from jointenergy.labels import nearest
from jointenergy.objectives.contrastive import EnergyDiscrepancy, NoiseContrastiveEstimation
from jointenergy.objectives.objective import Objective
from jointenergy.objectives.regularizers import EnergyL2, KLTerm
from jointenergy.objectives.score_matching import DenoisingScoreMatching
from jointenergy.objectives.terms import LogPX, LogPXGivenY, LogPXY, LogPYGivenX


def JEM() -> Objective:  # noqa: N802 (the paper's name)
    """log p(x) + log p(y | x), of Grathwohl et al. (2020)."""
    return LogPX() + LogPYGivenX()


def GibbsJEM() -> Objective:  # noqa: N802
    """log p(x, y), with the KL of log p(x) through the last Langevin step and its entropy, of Kelly, Zemel and
    Grathwohl (2021): the weights of their program, where the paper prints 0.3 for the KL."""
    return LogPXY() + KLTerm(entropy_weight=0.3)


def Mixed() -> Objective:  # noqa: N802
    """log p(x, y) of what is observed, of Kelly and Grathwohl (2021)."""
    return Objective((LogPXY(),))


def IGEBM() -> Objective:  # noqa: N802
    """log p(x | y) with an L2 penalty on energies, of Du and Mordatch (2019)."""
    return LogPXGivenY() + EnergyL2(1.0)


def CrossEntropy() -> Objective:  # noqa: N802
    """log p(y | x) alone: the baseline, which learns no density."""
    return Objective((LogPYGivenX(),))


def ScoreMatching() -> Objective:  # noqa: N802
    """Denoising score matching of p(x | y) (Vincent 2011) + log p(y | x): JEM without chains."""
    return DenoisingScoreMatching() + LogPYGivenX()


def NCE() -> Objective:  # noqa: N802 (the method's name)
    """Noise contrastive estimation of log p(x, y) (Gutmann and Hyvarinen 2010; Ma and Collins 2018), no chains."""
    return Objective((NoiseContrastiveEstimation(),))


def Discrepancy() -> Objective:  # noqa: N802
    """Energy discrepancy of p(x | y) (Schröder et al. 2023) + log p(y | x), no chains."""
    return EnergyDiscrepancy() + LogPYGivenX()


PRESETS: dict[str, Callable[[], Objective]] = {
    "jem": JEM,
    "gibbs-jem": GibbsJEM,
    "mixed": Mixed,
    "igebm": IGEBM,
    "baseline": CrossEntropy,
    "score-matching": ScoreMatching,
    "nce": NCE,
    "energy-discrepancy": Discrepancy,
}


def preset(name: str) -> Objective:
    """The objective that recipes call `name`."""
    if name not in PRESETS:
        raise InputError(f"there is no objective called {name!r}: {nearest(str(name), tuple(PRESETS))}")
    return PRESETS[name]()
