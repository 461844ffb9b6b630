"""kernels: Markov chain Monte Carlo transitions on joint states (x, y), and the loop that runs them."""

from jointenergy.kernels.adaptation import adapt
from jointenergy.kernels.base import Info, Kernel, State, Target
from jointenergy.kernels.chain import last, run
from jointenergy.kernels.cycle import Cycle
from jointenergy.kernels.diagnostics import effective_sample_size, split_r_hat
from jointenergy.kernels.discrete_mala import DiscreteMALA
from jointenergy.kernels.gibbs import ExactGibbs, SingleSiteGibbs
from jointenergy.kernels.gibbs_with_gradients import GibbsWithGradients
from jointenergy.kernels.group_gibbs import GroupGibbs
from jointenergy.kernels.hmc import HMC
from jointenergy.kernels.joint import BlockGibbs
from jointenergy.kernels.label_jump import LabelJump
from jointenergy.kernels.langevin import Langevin, PolynomialDecay
from jointenergy.kernels.mala import MALA
from jointenergy.kernels.mixed_hmc import MixedHMC
from jointenergy.kernels.motion import DiagonalMetric
from jointenergy.kernels.path_auxiliary import PathAuxiliary
from jointenergy.kernels.preconditioned import PreconditionedMALA, Preconditioner
from jointenergy.kernels.tempering import Ladder, Replicas, annealed, parallel_tempering, rungs_needed
from jointenergy.kernels.underdamped import UnderdampedLangevin

__all__ = [
    "HMC",
    "MALA",
    "BlockGibbs",
    "Cycle",
    "DiagonalMetric",
    "DiscreteMALA",
    "ExactGibbs",
    "GibbsWithGradients",
    "GroupGibbs",
    "Info",
    "Kernel",
    "LabelJump",
    "Ladder",
    "Langevin",
    "MixedHMC",
    "PathAuxiliary",
    "PolynomialDecay",
    "PreconditionedMALA",
    "Preconditioner",
    "Replicas",
    "SingleSiteGibbs",
    "State",
    "Target",
    "UnderdampedLangevin",
    "adapt",
    "annealed",
    "effective_sample_size",
    "last",
    "parallel_tempering",
    "run",
    "rungs_needed",
    "split_r_hat",
]
