"""objectives: the objectives of the papers, and those without chains."""

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
    """Return the objective of JEM (Grathwohl et al. 2020): log p(x) + log p(y | x).

    Examples
    --------
    >>> import jointenergy as je
    >>> [term.name for term in je.objectives.JEM().terms]
    ['log_p_x', 'log_p_y_given_x']
    """
    return LogPX() + LogPYGivenX()


def GibbsJEM() -> Objective:  # noqa: N802
    """Return the objective of Gibbs-JEM (Kelly, Zemel and Grathwohl 2021): log p(x, y) with a KL and entropy term.

    The weights are those of the authors' program. The paper prints 0.3 for the KL term.

    Examples
    --------
    >>> import jointenergy as je
    >>> [term.name for term in je.objectives.GibbsJEM().terms]
    ['log_p_xy', 'kl']
    """
    return LogPXY() + KLTerm(entropy_weight=0.3)


def Mixed() -> Objective:  # noqa: N802
    """Return the objective of the mixed joint EBM (Kelly and Grathwohl 2021): log p(x, y) of everything observed.

    Examples
    --------
    >>> import jointenergy as je
    >>> [term.name for term in je.objectives.Mixed().terms]
    ['log_p_xy']
    """
    return Objective((LogPXY(),))


def IGEBM() -> Objective:  # noqa: N802
    """Return the objective of IGEBM (Du and Mordatch 2019): log p(x | y) with an L2 penalty on energies.

    Examples
    --------
    >>> import jointenergy as je
    >>> [term.name for term in je.objectives.IGEBM().terms]
    ['log_p_x_given_y', 'energy_l2']
    """
    return LogPXGivenY() + EnergyL2(1.0)


def CrossEntropy() -> Objective:  # noqa: N802
    """Return the baseline: log p(y | x) alone, which learns no density of x.

    Examples
    --------
    >>> import jointenergy as je
    >>> [term.name for term in je.objectives.CrossEntropy().terms]
    ['log_p_y_given_x']
    """
    return Objective((LogPYGivenX(),))


def ScoreMatching() -> Objective:  # noqa: N802
    """Return denoising score matching of p(x | y) (Vincent 2011) plus log p(y | x): a JEM without chains.

    Examples
    --------
    >>> import jointenergy as je
    >>> [term.name for term in je.objectives.ScoreMatching().terms]
    ['denoising_score_matching', 'log_p_y_given_x']
    """
    return DenoisingScoreMatching() + LogPYGivenX()


def NCE() -> Objective:  # noqa: N802 (the method's name)
    """Return noise contrastive estimation of log p(x, y) (Ma and Collins 2018), without chains.

    Examples
    --------
    >>> import jointenergy as je
    >>> [term.name for term in je.objectives.NCE().terms]
    ['noise_contrastive_estimation']
    """
    return Objective((NoiseContrastiveEstimation(),))


def Discrepancy() -> Objective:  # noqa: N802
    """Return energy discrepancy of p(x | y) (Schröder et al. 2023) plus log p(y | x), without chains.

    Examples
    --------
    >>> import jointenergy as je
    >>> [term.name for term in je.objectives.Discrepancy().terms]
    ['energy_discrepancy', 'log_p_y_given_x']
    """
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
    """Return the objective of a name in `PRESETS`, such as jem or score-matching.

    Examples
    --------
    >>> import jointenergy as je
    >>> je.objectives.preset("jem") == je.objectives.JEM()
    True
    """
    if name not in PRESETS:
        raise InputError(f"there is no objective called {name!r}: {nearest(str(name), tuple(PRESETS))}")
    return PRESETS[name]()
