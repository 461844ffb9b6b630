"""Every kernel can be named in `fit`, in recipes and in `sample`, and comes back from a run's folder."""

import pytest
import torch

import jointenergy as je
from jointenergy import recipes
from jointenergy.errors import InputError
from jointenergy.kernels import (
    HMC,
    MALA,
    BlockGibbs,
    Cycle,
    DiscreteMALA,
    ExactGibbs,
    GibbsWithGradients,
    GroupGibbs,
    LabelJump,
    Langevin,
    MixedHMC,
    PathAuxiliary,
    UnderdampedLangevin,
)
from jointenergy.networks import MLP
from jointenergy.recipes.build import kernel_of
from jointenergy.runs.description import describe, rebuild
from jointenergy.training.engine import precision_of
from jointenergy.training.settings import EngineSettings

NAMED = {
    "hmc": (["chain.kernel={ kind = 'hmc', step_size = 0.1, leapfrog_steps = 3 }"], HMC(0.1, 3)),
    "mixed-hmc": (["chain.kernel={ kind = 'mixed-hmc', step_size = 0.1, visits = 2 }"], MixedHMC(0.1, 2)),
    "underdamped": (
        ["chain.kernel={ kind = 'underdamped', step_size = 0.1, friction = 2.0 }"],
        UnderdampedLangevin(0.1, 2.0),
    ),
}
LABELS = {
    "discrete-mala": DiscreteMALA(0.5),
    "path-auxiliary": PathAuxiliary(4),
    "group-gibbs": GroupGibbs(),
    "gibbs-with-gradients": GibbsWithGradients(),
}


JUMPING = Cycle((BlockGibbs(ExactGibbs(), MALA(0.1)), LabelJump(0.2, 3)))


@pytest.mark.parametrize("name", NAMED)
def test_recipes_name_kernels_of_x(name):
    overrides, kernel = NAMED[name]
    assert kernel_of(recipes.load("mnist-jem", overrides)) == kernel


@pytest.mark.parametrize("name", LABELS)
def test_recipes_name_kernels_of_labels(name):
    found = kernel_of(recipes.load("toy-mixed", [f"chain.label_kernel={name}"]))
    assert isinstance(found, BlockGibbs)
    assert found.y_kernel == LABELS[name]


def test_recipes_set_the_numbers_of_label_kernels():
    settings = ["chain.label_kernel=path-auxiliary", "chain.label_moves.flips=7", "chain.label_moves.balancing=barker"]
    found = kernel_of(recipes.load("toy-mixed", settings))
    assert isinstance(found, BlockGibbs)
    assert found.y_kernel == PathAuxiliary(7, "barker")


def test_recipes_add_label_jumps():
    jump = "chain.label_jump={ step_size = 0.2, steps = 3 }"
    found = kernel_of(recipes.load("toy-mixed", [jump]))
    assert isinstance(found, Cycle)
    assert isinstance(found.kernels[0], BlockGibbs)
    jumping = found.kernels[1]
    assert isinstance(jumping, LabelJump)
    assert (jumping.step_size, jumping.steps) == (0.2, 3)
    assert jumping.temperature == pytest.approx(0.5)  # that of chain.kernel
    with pytest.raises(InputError, match="label_jump is for chains that move labels"):
        recipes.load("mnist-jem", [jump])
    with pytest.raises(InputError, match="mixed-hmc moves x and labels itself"):
        recipes.load("toy-mixed", ["chain.kernel={ kind = 'mixed-hmc', step_size = 0.1 }"])


@pytest.mark.parametrize(
    "kernel",
    [*(k for _, k in NAMED.values()), *LABELS.values(), GroupGibbs((("a", "b"), ("c",))), JUMPING],
    ids=lambda k: type(k).__name__,
)
def test_a_folder_names_kernels(kernel):
    assert rebuild(describe(kernel), "kernel") == kernel


def rows():
    g = torch.Generator().manual_seed(0)
    y = torch.randint(2, (80,), generator=g)
    return torch.randn(80, 2, generator=g) + 2.0 * y[:, None], y


@pytest.mark.parametrize(
    "kernel",
    [UnderdampedLangevin(0.2), BlockGibbs(DiscreteMALA(1.0), HMC(0.2, 2)), MixedHMC(0.2, 2, 1), JUMPING],
    ids=["underdamped", "hmc with discrete mala", "mixed hmc", "jumping"],
)
def test_fit_and_sample_take_kernels(kernel, tmp_path):
    x, y = rows()
    network = MLP((2, 8, 2))
    quick = {"steps": 2, "sampling_steps": 3, "iterations": 3, "verbose": False}
    run = je.fit(network, (x, y), kernel=kernel, folder=tmp_path / "run", **quick)
    assert je.load(tmp_path / "run", network=network).sampling.x_kernel == run.sampling.x_kernel
    assert run.sample(4, steps=3).x.shape == (4, 2)
    for other, warm_up in ((HMC(0.1, 2), 30), (MixedHMC(0.1, 2), 30), (JUMPING, 30)):
        drawn = run.sample(4, kernel=other, steps=3, warm_up=warm_up)
        assert drawn.x.isfinite().all()
        assert bool((drawn.y >= 0).all())
        assert run.sample(4, given={"class": 1}, kernel=other, steps=3).y.tolist() == [[1]] * 4


def test_a_warm_up_does_not_depend_on_how_many_chains_run_at_once():
    run = je.fit(MLP((2, 8, 2)), rows(), sampling_steps=3, iterations=2, verbose=False)
    drawn = run.sample(6, kernel=MALA(1e-3), steps=5, warm_up=30, batch_size=3)
    assert drawn.x.shape == (6, 2)
    with pytest.raises(InputError, match="Langevin has no step size to adapt"):
        run.sample(4, kernel=Langevin(0.1, 0.1), warm_up=30)
    with pytest.raises(InputError, match="takes a kernel that moves x"):
        run.sample(4, kernel=ExactGibbs())


def test_training_does_not_round_what_a_kernel_compares():
    cpu = torch.device("cpu")
    for kernel in (MALA(0.1), BlockGibbs(ExactGibbs(), HMC(0.1))):
        for precision in ("bfloat16", "tensorfloat32"):
            with pytest.raises(InputError, match=f"which {precision} rounds away"):
                precision_of(EngineSettings(precision=precision), kernel, cpu)
    with pytest.raises(InputError, match="bfloat16"):
        precision_of(EngineSettings(precision="bfloat16"), BlockGibbs(GibbsWithGradients(), Langevin(0.1, 0.1)), cpu)
    assert precision_of(EngineSettings(precision="bfloat16"), Langevin(0.1, 0.1), cpu) == "bfloat16"
