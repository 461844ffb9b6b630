"""kernels: Markov transitions on joint states, each proved against exact targets, and the one loop that runs them."""

from jointenergy.kernels.base import Info, Kernel, State, Target
from jointenergy.kernels.chain import last, run
from jointenergy.kernels.diagnostics import effective_sample_size, split_r_hat
from jointenergy.kernels.gibbs import ExactGibbs, SingleSiteGibbs
from jointenergy.kernels.gibbs_with_gradients import GibbsWithGradients
from jointenergy.kernels.joint import BlockGibbs
from jointenergy.kernels.langevin import Langevin, PolynomialDecay
from jointenergy.kernels.mala import MALA
from jointenergy.kernels.preconditioned import PreconditionedMALA, Preconditioner

__all__ = [
    "MALA",
    "BlockGibbs",
    "ExactGibbs",
    "GibbsWithGradients",
    "Info",
    "Kernel",
    "Langevin",
    "PolynomialDecay",
    "PreconditionedMALA",
    "Preconditioner",
    "SingleSiteGibbs",
    "State",
    "Target",
    "effective_sample_size",
    "last",
    "run",
    "split_r_hat",
]
