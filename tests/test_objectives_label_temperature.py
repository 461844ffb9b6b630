"""The laws of chains that move x at T and labels at 1, at T, or last, by transition matrices on a grid of x."""

import pytest
import torch

from jointenergy import recipes
from jointenergy.errors import InputError
from jointenergy.kernels import BlockGibbs, ExactGibbs, Langevin, Target
from jointenergy.models import LogitModel, Tempered
from jointenergy.objectives import Batch, Draws, LogPX, LogPXY, LogPYGivenX, Samples
from jointenergy.recipes.build import kernel_of, objectives_of, x_kernel_of
from jointenergy.recipes.data import data_of
from jointenergy.recipes.networks import model_of
from tests.exact import joint_toy, label_law

COLD = 0.2
X = torch.linspace(-3, 3, 41, dtype=torch.float64)[:, None]
G = len(X)
MODEL = joint_toy()
STATES = MODEL.labels.enumerate()
S = len(STATES)


def values(model=MODEL):
    """f at every label state and grid point, `[S, G]`."""
    return torch.stack([model.log_density_of_complete(X, s.expand(G, -1)) for s in STATES])


def over_labels(temperature):
    """The matrix on (state, point) that draws labels at a temperature, as ExactGibbs does of the tempered model."""
    law = label_law(MODEL.tempered(1 / temperature), X, torch.full((1, 2), -1)).detach()
    return torch.einsum("gt,gh,s->sgth", law, torch.eye(G).double(), torch.ones(S).double()).reshape(S * G, S * G)


def over_x(temperature):
    """The matrix that draws x given labels at a temperature: where many steps on x lead."""
    law = (values().detach() / temperature).softmax(1)
    return torch.einsum("sh,st,g->sgth", law, torch.eye(S).double(), torch.ones(G).double()).reshape(S * G, S * G)


def over_x_alone(temperature):
    """The same with labels summed out: the law of a chain on log p(x) at a temperature."""
    law = (values().detach().logsumexp(0) / temperature).softmax(0)
    return torch.einsum("h,st,g->sgth", law, torch.eye(S).double(), torch.ones(G).double()).reshape(S * G, S * G)


def stationary(matrix):
    law = torch.full((S * G,), 1 / (S * G), dtype=torch.float64)
    for _ in range(3000):
        law = law @ matrix
    return law


def apart(a, b):
    """Total variation."""
    return float((a - b).abs().sum() / 2)


@pytest.mark.parametrize("temperature", [1.0, COLD])
def test_both_at_t_have_the_law_of_f_over_t(temperature):
    law = (values().detach() / temperature).flatten().softmax(0)
    for matrix in (over_labels(temperature), over_x(temperature)):
        torch.testing.assert_close(law @ matrix, law, rtol=0, atol=1e-12)


@pytest.mark.parametrize("temperature", [1.0, COLD])
def test_labels_last_have_the_law_of_the_marginal_at_t_and_the_classifier_at_1(temperature):
    f = values().detach()
    law = ((f.logsumexp(0) / temperature).softmax(0) * f.softmax(0)).flatten()
    torch.testing.assert_close(law @ over_x_alone(temperature) @ over_labels(1.0), law, rtol=0, atol=1e-12)
    both = (f / temperature).flatten().softmax(0)
    assert (apart(law, both) < 1e-12) == (temperature == 1.0)


@pytest.mark.parametrize("temperature", [1.0, COLD])
def test_x_at_t_and_labels_at_1_have_no_joint_law(temperature):
    """The law after the move of x is another than after that of labels, and another with fewer moves of x; at
    temperature 1 all are one. So no density has these chains as its own."""
    y, x = over_labels(1.0), over_x(temperature)
    after_x, after_y = stationary(y @ x), stationary(x @ y)
    lazy = (x + torch.eye(S * G).double()) / 2  # half of the moves of x are left out
    fewer = stationary(y @ lazy)
    if temperature == 1.0:
        assert max(apart(after_x, after_y), apart(after_x, fewer)) < 1e-9
    else:
        assert min(apart(after_x, after_y), apart(after_x, fewer)) > 0.02
        coherent = (values().detach() / temperature).flatten().softmax(0)
        assert apart(after_x, coherent) > 0.02


def recipe(setting, *more):
    return recipes.load(f"digits-jem:labels-{setting}", ["objective.energy_l2=0.0", *more])


def gradient(total):
    return torch.cat([g.flatten() for g in torch.autograd.grad(total, list(MODEL.parameters()))])


def data_term(log_law, rows):
    """The mean log-probability of some points and states under a law on the grid."""
    return torch.stack([log_law[s, g] for s, g in rows]).mean()


ROWS = [(0, 5), (3, 20), (1, 33), (5, 12)]
BATCH = Batch(X[[g for _, g in ROWS]], torch.stack([STATES[s] for s, _ in ROWS]), complete=True)


def test_labels_last_train_the_likelihood_of_their_law():
    """T times its gradient, with cross-entropy weighted T; a mutant that weighs it 1 trains another."""
    (objective,) = objectives_of(recipe("last"), data_of(recipe("last")))
    t = recipe("last").chain.kernel.temperature
    assert objective == 1.0 * LogPX() + t * LogPYGivenX()
    f = values()
    marginal = f.logsumexp(0)
    log_law = (marginal / t).log_softmax(0) + f.log_softmax(0)
    negatives = Samples(X, weight=(marginal.detach() / t).softmax(0))
    right = gradient(t * data_term(log_law, ROWS))
    for trained, same in ((objective, True), (LogPX() + LogPYGivenX(), False)):
        found = -gradient(trained(MODEL, BATCH, Draws(negatives)).total)
        assert (float((found - right).abs().max()) < 1e-10) == same


def test_labels_at_t_train_the_likelihood_of_their_law():
    (objective,) = objectives_of(recipe("same"), data_of(recipe("same")))
    t = recipe("same").chain.kernel.temperature
    assert objective.terms == (t * LogPXY(),)
    log_law = (values() / t).flatten().log_softmax(0).view(S, G)
    x, y = X.repeat(S, 1), STATES.repeat_interleave(G, 0)
    negatives = Samples(x, y, weight=log_law.detach().exp().flatten(), complete=True)
    right = gradient(t * data_term(log_law, ROWS))
    found = -gradient(objective(MODEL.tempered(1 / t), BATCH, Draws(negatives)).total)
    assert float((found - right).abs().max()) < 1e-10


def test_labels_at_t_are_a_model_of_f_over_t_whose_x_moves_as_before():
    """Predictions, cross-entropy and label moves are by softmax(f / T); a step of x given labels is the same."""
    same, one = recipe("same"), recipe("one")
    data, t = data_of(same), same.chain.kernel.temperature
    model, plain = model_of(same, data, 0).double(), model_of(one, data, 0).double()
    assert isinstance(model, Tempered)
    assert isinstance(plain, LogitModel)
    x, y = data.x[:20].double(), data.y[:20]
    logits = plain.label_logits(x).logits
    torch.testing.assert_close(model.label_probs(x)[data.labels.names[0]], (logits / t).softmax(1))
    kernels = [x_kernel_of(r) for r in (same, one)]
    assert isinstance(kernels[0], Langevin)
    assert kernels[0].temperature == pytest.approx(1.0)
    assert isinstance(kernel_of(same), BlockGibbs)
    ends = []
    for kernel, of in zip(kernels, (model, plain), strict=True):
        target = Target(of)
        state = kernel.init(target, x, y, generator=torch.Generator().manual_seed(0))
        ends.append(kernel.step(target, state)[0].x)
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-12)
    state = ExactGibbs().init(Target(model), x, y, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ExactGibbs().open_logits(Target(model), state).softmax(1), (logits / t).softmax(1))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (("chain.label_temperature=last", "chain.label_kernel=exact"), "set chain.label_kernel = 'none'"),
        (("chain.label_temperature=same", "chain.kernel.noise_scale=0.0"), "set chain.kernel.noise_scale"),
        (("chain.label_temperature=last", "model.family=conditional", "objective=igebm"), "no p.y . x."),
    ],
)
def test_what_has_no_law_is_refused(setting, said):
    with pytest.raises(InputError, match=said):
        recipes.load("digits-jem", list(setting))
