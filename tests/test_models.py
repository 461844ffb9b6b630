"""Every model of the table: contract, exactness of the sums over missing labels, and what is refused."""

import copy
import itertools

import pytest
import torch
from torch import nn

from jointenergy.errors import DomainError, EnumerationError, InputError, NormalizerError
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import (
    Box,
    Concat,
    ConditionalModel,
    EnergyModel,
    InnerProduct,
    LogitModel,
    PairModel,
    Product,
    Reals,
)
from jointenergy.networks import WideResNet
from tests.tables import BINARY, MIXED, MODELS, D, conditional, logit, make, mask_model, pair

N = 5


def data(model, seed=0):
    g = torch.Generator().manual_seed(seed)
    shape = model.event_shape or (D,)
    x = torch.randn(N, *shape, generator=g, dtype=torch.float64)
    columns = [torch.randint(c, (N,), generator=g) for c in model.labels.cardinalities]
    y = torch.stack(columns, 1) if columns else torch.zeros(N, 0, dtype=torch.int64)
    return x, y


def patterns(n_labels):
    """All subsets of columns that may miss."""
    return itertools.chain.from_iterable(itertools.combinations(range(n_labels), k) for k in range(n_labels + 1))


def by_hand(model, x, y):
    """log of the sum over all completions, term by term from complete labels alone: the definition."""
    rows = []
    for i in range(len(x)):
        choices = [
            range(c) if int(v) == MISSING else [int(v)] for v, c in zip(y[i], model.labels.cardinalities, strict=True)
        ]
        terms = [model.log_density_of_complete(x[i : i + 1], torch.tensor([c])) for c in itertools.product(*choices)]
        rows.append(torch.cat(terms).logsumexp(0))
    return torch.stack(rows)


@pytest.fixture(params=MODELS)
def model(request):
    return make(request.param)


class TestContract:
    def test_shape_dtype_and_untouched_inputs(self, model, untouched_random_state):
        x, y = data(model)
        before = x.clone(), y.clone()
        with untouched_random_state():
            value = model.log_density(x, y)
        assert value.shape == (N,)
        assert value.dtype == x.dtype
        assert torch.equal(x, before[0])
        assert torch.equal(y, before[1])
        assert torch.equal(model.log_density(x, y), value)
        assert torch.equal(model(x, y), value)

    def test_rows_are_independent(self, model):
        # In the mode in which chains run: training mode, as the model came.
        assert model.training
        x, y = data(model)
        y[1:3] = MISSING
        value = model.log_density(x, y)
        for i in range(N):
            torch.testing.assert_close(model.log_density(x[i : i + 1], y[i : i + 1]), value[i : i + 1])
        other = x.clone()
        other[0] += 1.0
        torch.testing.assert_close(model.log_density(other, y)[1:], value[1:])

    def test_gradients_reach_weights_and_x(self, model):
        x, y = data(model)
        x.requires_grad_()
        model.log_density(x, torch.full_like(y, MISSING)).sum().backward()
        assert x.grad is not None
        assert x.grad.abs().sum() > 0
        assert all(p.grad is not None for p in model.parameters())

    def test_float32_and_float64_agree(self, model, request):
        x, y = data(model)
        low = copy.deepcopy(model).float()
        torch.testing.assert_close(
            low.log_density(x.float(), y).double(), model.log_density(x, y), rtol=1e-4, atol=1e-4
        )


class TestSums:
    def test_missing_labels_are_summed_out(self, model):
        x, y = data(model)
        for free in patterns(len(model.labels)):
            missing = y.clone()
            missing[:, list(free)] = MISSING
            torch.testing.assert_close(
                model.log_density(x, missing), by_hand(model, x, missing), rtol=1e-10, atol=1e-10
            )
        torch.testing.assert_close(
            model.log_density(x), by_hand(model, x, torch.full_like(y, MISSING)), rtol=1e-10, atol=1e-10
        )

    def test_rows_may_miss_different_labels(self, model):
        x, y = data(model)
        for i in range(N):
            y[i, : i % (len(model.labels) + 1)] = MISSING
        torch.testing.assert_close(model.log_density(x, y), by_hand(model, x, y), rtol=1e-10, atol=1e-10)

    def test_codes_equal_labels_at_the_corners(self, model):
        x, y = data(model)
        code = model.labels.one_hot(y, x.dtype)
        if any(isinstance(m, ConditionalModel) for m in model.modules()):
            with pytest.raises(InputError, match="no gradient with respect to labels"):
                model.log_density_of_codes(x, code)
        else:
            value, exact = model.log_density_of_codes(x, code), model.log_density_of_complete(x, y)
            torch.testing.assert_close(value, exact, rtol=1e-12, atol=1e-12)

    def test_label_probabilities_given_any_others(self, model):
        x, y = data(model)
        for free in patterns(len(model.labels)):
            given = y.clone()
            given[:, list(free)] = MISSING
            probs, summed = model.label_probs(x, given), by_hand(model, x, given)
            assert list(probs) == list(model.labels)
            for k, name in enumerate(model.labels):
                for value in range(model.labels.cardinalities[k]):
                    asked = given.clone()
                    asked[:, k] = value
                    exact = (by_hand(model, x, asked) - summed).exp()
                    possible = (given[:, k] == MISSING) | (given[:, k] == value)
                    torch.testing.assert_close(
                        probs[name][:, value], torch.where(possible, exact, 0.0), rtol=1e-9, atol=1e-9
                    )

    def test_conditionals_of_labels(self, model):
        x, y = data(model)
        if len(model.labels) < 2:
            return
        given, asked = torch.full_like(y, MISSING), torch.full_like(y, MISSING)
        given[:, 0], asked[:, 1] = y[:, 0], y[:, 1]
        both = torch.where(asked == MISSING, given, asked)
        exact = by_hand(model, x, both) - by_hand(model, x, given)
        torch.testing.assert_close(model.label_log_prob(x, asked, given), exact, rtol=1e-9, atol=1e-9)

    def test_inverse_temperature_comes_before_the_sum(self, model):
        x, y = data(model)
        tempered = model.tempered(0.7)
        torch.testing.assert_close(tempered.log_density(x, y), 0.7 * model.log_density(x, y))
        missing = torch.full_like(y, MISSING)
        torch.testing.assert_close(tempered.log_density(x, missing), by_hand(tempered, x, missing))


def linear(n_in, n_out, seed=0):
    """A seeded linear network, the global random state left as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(n_in, n_out).double()


class NamedHeads(nn.Module):
    """A head per label of MIXED, as a tuple or as a mapping in another order than the label space has.

    The two labels that change places have equally many values, so that taking heads by place would go unnoticed.
    """

    def __init__(self, mapping):
        super().__init__()
        self.heads = nn.ModuleDict({name: linear(D, c, k) for k, (name, c) in enumerate(SIZES.items())})
        self.mapping = mapping

    def forward(self, x):
        if self.mapping:
            return {name: self.heads[name](x) for name in ("color", "size", "round")}
        return tuple(self.heads[name](x) for name in ("color", "round", "size"))


class TableOfClasses(nn.Module):
    """An energy that looks each label's index up, with no two values alike."""

    def __init__(self):
        super().__init__()
        self.one = nn.Parameter(torch.tensor([2.0, -1.0, 0.5, 4.0], dtype=torch.float64))
        self.two = nn.Parameter(torch.tensor([0.3, 7.0, -5.0], dtype=torch.float64))

    def forward(self, x, y):
        return x.sum(1) + self.one[y[:, 0]] + self.two[y[:, 1]]


SIZES = {"color": 3, "round": 2, "size": 2}
PLACES = {"color": 0, "round": 3, "size": 5}  # where each label of MIXED begins in a code
SQUARE = LabelSpace({"a": 3, "b": 3})
CLASSES = LabelSpace({"class": 4, "group": 3})


def check_formula(model, f):
    """The model's value at every state is f(row of x, labels), written by hand from raw outputs, one row at a time."""
    x, _ = data(model)
    sizes = model.labels.cardinalities
    states = list(itertools.product(*map(range, sizes)))
    with torch.no_grad():
        table = torch.tensor([[float(f(row, y)) for y in states] for row in x], dtype=torch.float64).view(N, *sizes)
    for i, y in enumerate(states):
        rows = torch.tensor([y] * N, dtype=torch.int64).view(N, len(sizes))
        exact = table.view(N, -1)[:, i]
        torch.testing.assert_close(model.log_density(x, rows).detach(), exact, rtol=1e-10, atol=1e-10)
    if model.normalizer == "joint":
        flat = table.view(N, -1)
        torch.testing.assert_close(model.log_density(x).detach(), flat.logsumexp(1), rtol=1e-10, atol=1e-10)
        joint = flat.softmax(1).view(N, *sizes)
        for k, (name, probs) in enumerate(model.label_probs(x).items()):
            others = [j + 1 for j in range(len(sizes)) if j != k]
            assert name == model.labels.names[k]
            marginal = joint.sum(others) if others else joint
            torch.testing.assert_close(probs.detach(), marginal, rtol=1e-10, atol=1e-10)


def code_by_hand(y):
    """The one-hot code of labels of MIXED, from the places written out above."""
    code = torch.zeros(7, dtype=torch.float64)
    for start, value in zip(PLACES.values(), y, strict=True):
        code[start + value] = 1.0
    return code


class TestFormulas:
    """f(x, y) of each family from the raw outputs of its network: what no comparison of a model with itself sees."""

    def test_single_logit(self):
        network = linear(D, 3)
        model = LogitModel(network, BINARY)
        check_formula(model, lambda row, y: sum(logit * v for logit, v in zip(network(row), y, strict=True)))
        x, _ = data(model)
        logits = network(x)
        torch.testing.assert_close(model.log_density(x), torch.log(1 + logits.exp()).sum(1))
        for k, name in enumerate(BINARY):
            torch.testing.assert_close(model.label_probs(x)[name][:, 1], torch.sigmoid(logits[:, k]))

    def test_single_logit_of_one_label_without_a_dimension(self):
        network = nn.Sequential(linear(D, 1), nn.Flatten(0))
        check_formula(LogitModel(network, LabelSpace({"on": 2})), lambda row, y: network(row[None])[0] * y[0])

    def test_single_logit_symmetric(self):
        network = linear(D, 3)
        model = LogitModel(network, BINARY, single_logit="symmetric")
        check_formula(model, lambda row, y: sum(logit * (v - 0.5) for logit, v in zip(network(row), y, strict=True)))
        x, _ = data(model)
        torch.testing.assert_close(model.log_density(x), torch.log(2 * torch.cosh(network(x) / 2)).sum(1))

    def test_logits_side_by_side(self):
        network = linear(D, 7)
        model = LogitModel(network, MIXED)
        check_formula(model, lambda row, y: network(row)[y[0]] + network(row)[3 + y[1]] + network(row)[5 + y[2]])

    def test_logits_by_label_and_value(self):
        network = nn.Sequential(linear(D, 6), nn.Unflatten(1, (2, 3)))
        model = LogitModel(network, SQUARE)
        check_formula(model, lambda row, y: network(row[None])[0, 0, y[0]] + network(row[None])[0, 1, y[1]])

    @pytest.mark.parametrize("mapping", [True, False], ids=["by name", "in order"])
    def test_heads(self, mapping):
        network = NamedHeads(mapping)
        heads = network.heads
        check_formula(
            LogitModel(network, MIXED),
            lambda row, y: heads["color"](row)[y[0]] + heads["round"](row)[y[1]] + heads["size"](row)[y[2]],
        )

    def test_concat_has_the_features_first(self):
        network = linear(D + 7, 1)
        weight, bias = network.weight[0], network.bias
        model = PairModel(Concat(network), MIXED)
        check_formula(model, lambda row, y: weight[:D] @ row + weight[D:] @ code_by_hand(y) + bias)
        # With features of as many entries as a code the other order is not a matter of shapes.
        wide, features = linear(14, 1), linear(D, 7, 1)
        model = PairModel(Concat(wide), MIXED, features=features)
        weight = wide.weight[0]
        check_formula(model, lambda row, y: weight[:7] @ features(row) + weight[7:] @ code_by_hand(y) + wide.bias)

    def test_inner_product(self):
        of_code, features = linear(7, 4), linear(D, 4, 1)
        model = PairModel(InnerProduct(of_code), MIXED, features=features)

        def f(row, y):
            h = of_code.bias + sum(of_code.weight[:, start + v] for start, v in zip(PLACES.values(), y, strict=True))
            return sum(a * b for a, b in zip(features(row), h, strict=True))

        check_formula(model, f)

    def test_conditional_network_gets_the_indices(self):
        network = TableOfClasses()

        def f(row, y):
            return row.sum() + network.one[y[0]] + network.two[y[1]]

        check_formula(ConditionalModel(network, CLASSES), f)
        check_formula(ConditionalModel(network, CLASSES).with_offsets(assume_equal_constants=True), f)
        offsets = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        related = ConditionalModel(network, CLASSES).with_offsets(offsets)
        check_formula(related, lambda row, y: f(row, y) - offsets[y])

    def test_energy(self):
        network = linear(D, 1)
        check_formula(EnergyModel(network), lambda row, y: network.weight[0] @ row + network.bias[0])

    @pytest.mark.parametrize("closed", [True, False])
    def test_product_is_the_sum(self, closed):
        # The factors have the shared labels in different orders, and equally many values.
        one, two, energy, joint = linear(D, 7), linear(D, 4, 1), linear(D, 1, 2), linear(D + 7, 1, 3)
        factors = [
            LogitModel(one, MIXED, domain=Reals(2.0, 0.5)),
            LogitModel(two, MIXED.subspace(["size", "round"])),
            EnergyModel(energy, domain=Reals(0.7)),
        ]
        if not closed:
            factors.append(PairModel(Concat(joint), MIXED))

        def f(row, y):
            value = one(row)[y[0]] + one(row)[3 + y[1]] + one(row)[5 + y[2]] - ((row - 0.5) ** 2).sum() / 8
            value = value + two(row)[y[2]] + two(row)[2 + y[1]] + energy(row)[0] - (row**2).sum() / (2 * 0.49)
            return value if closed else value + joint(torch.cat((row, code_by_hand(y))))[0]

        check_formula(Product(factors), f)

    @pytest.mark.parametrize("inverse_temperature", [0.3, 4.0])
    def test_tempered(self, inverse_temperature):
        network = linear(D, 7)
        domain = Reals(scale=1.5, mean=0.4)
        tempered = LogitModel(network, MIXED, domain=domain).tempered(inverse_temperature)

        def f(row, y):
            logits = network(row)
            value = logits[y[0]] + logits[3 + y[1]] + logits[5 + y[2]] - ((row - 0.4) ** 2).sum() / (2 * 1.5**2)
            return inverse_temperature * value

        check_formula(tempered, f)
        # The domain says what bounds the density at infinity: its term is tempered as the whole is.
        x, _ = data(tempered)
        assert tempered.domain == Reals(1.5 / inverse_temperature**0.5, 0.4)
        torch.testing.assert_close(tempered.domain.log_reference(x), inverse_temperature * domain.log_reference(x))
        assert Reals().tempered(inverse_temperature) == Reals()
        assert Box(0.0, 1.0).tempered(inverse_temperature) == Box(0.0, 1.0)

    @pytest.mark.parametrize("family", ["logits", "pair", "conditional", "conditional, related", "energy"])
    def test_reference_term(self, family):
        with_term, without = (
            {
                "logits": lambda d: LogitModel(linear(D, 7), MIXED, domain=d),
                "pair": lambda d: PairModel(Concat(linear(D + 7, 1)), MIXED, domain=d),
                "conditional": lambda d: ConditionalModel(TableOfClasses(), CLASSES, domain=d),
                "conditional, related": lambda d: ConditionalModel(TableOfClasses(), CLASSES, domain=d).with_offsets(
                    assume_equal_constants=True
                ),
                "energy": lambda d: EnergyModel(linear(D, 1), domain=d),
            }[family](domain)
            for domain in (Reals(scale=0.8, mean=-0.6), None)
        )
        x, y = data(without)
        exact = torch.tensor(
            [-sum((float(v) + 0.6) ** 2 for v in row) / (2 * 0.8**2) for row in x], dtype=torch.float64
        )
        difference = with_term.log_density(x, y) - without.log_density(x, y)
        torch.testing.assert_close(difference.detach(), exact, rtol=1e-10, atol=1e-10)
        if without.normalizer == "joint":
            # Sums over labels go other ways, by closed form or over states of one x: the term is there once.
            difference = with_term.log_density(x) - without.log_density(x)
            torch.testing.assert_close(difference.detach(), exact, rtol=1e-10, atol=1e-10)
        # Kernels ask for complete labels and for codes without going through a sum.
        asked = ["log_density_of_complete"] + ["log_density_of_codes"] * (family in ("logits", "pair", "energy"))
        for name in asked:
            at = y if name == "log_density_of_complete" else without.labels.one_hot(y, x.dtype)
            difference = getattr(with_term, name)(x, at) - getattr(without, name)(x, at)
            torch.testing.assert_close(difference.detach(), exact, rtol=1e-10, atol=1e-10)


class TestLogits:
    def test_classifier_keeps_its_weights(self):
        classifier = nn.Linear(D, 4)
        before = {k: v.clone() for k, v in classifier.state_dict().items()}
        model = LogitModel(classifier, LabelSpace({"class": 4}))
        x = torch.randn(N, D, generator=torch.Generator().manual_seed(0))
        assert model.network is classifier
        assert all(torch.equal(v, before[k]) for k, v in classifier.state_dict().items())
        torch.testing.assert_close(model.label_probs(x)["class"], classifier(x).softmax(1))
        torch.testing.assert_close(model.log_density(x), classifier(x).logsumexp(1))

    def test_single_logit_choice_changes_p_of_x_and_not_p_of_y(self):
        network = nn.Linear(D, 3).double()
        zero, symmetric = (LogitModel(network, BINARY, single_logit=s) for s in ("zero", "symmetric"))
        x, _ = data(zero)
        for name in BINARY:
            torch.testing.assert_close(zero.label_probs(x)[name], symmetric.label_probs(x)[name])
        torch.testing.assert_close(zero.log_density(x) - symmetric.log_density(x), network(x).sum(1) / 2)

    def test_batch_statistics_break_the_contract_that_the_others_keep(self):
        model = LogitModel(WideResNet(10, 1, n_classes=4, norm="batch"), LabelSpace({"class": 4}))
        x = torch.randn(N, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        for mode, independent in ((True, False), (False, True)):
            model.train(mode)
            whole = model.log_density(x)
            part = model.log_density(x[:2])
            assert torch.allclose(whole[:2], part, atol=1e-4) == independent


class TestStructure:
    def test_deep_set_does_not_know_the_order(self):
        model = make("pair, deep set")
        x, y = data(model)
        torch.testing.assert_close(model.log_density(x, y), model.log_density(x, y[:, [2, 0, 3, 1]]))

    def test_graph_sum_is_exact(self):
        model = make("pair, graph")
        x, _ = data(model)
        states = model.labels.enumerate()
        every = torch.stack([model.log_density_of_complete(x, s.expand(N, -1)) for s in states], 1)
        torch.testing.assert_close(model.log_density(x), every.logsumexp(1))

    def test_mask_of_784_labels(self):
        model = mask_model()
        x, y = data(model)
        y[:, :8] = MISSING
        torch.testing.assert_close(model.log_density(x, y)[:2], by_hand(model, x[:2], y[:2]))
        with pytest.raises(EnumerationError, match=r"784 free label\(s\).*GibbsWithGradients"):
            model.log_density(x)


class TestProducts:
    def test_shared_labels_are_summed_jointly(self):
        one, two = logit(LabelSpace({"class": 3})).double(), logit(LabelSpace({"class": 3})).double()
        x, y = data(one)
        product = Product([one, two])
        torch.testing.assert_close(product.log_density(x, y), one.log_density(x, y) + two.log_density(x, y))
        apart = one.log_density(x) + two.log_density(x)
        assert (product.log_density(x) - apart).abs().min() > 1e-3
        torch.testing.assert_close(
            product.log_density(x), (one.label_logits(x).logits + two.label_logits(x).logits).logsumexp(1)
        )

    def test_domains_meet(self):
        a, b = (
            EnergyModel(nn.Linear(D, 1), domain=Reals(1.0)),
            EnergyModel(nn.Linear(D, 1), domain=Reals(2.0, mean=1.0)),
        )
        product = Product([a, b])
        assert product.domain == Reals((1 + 1 / 4) ** -0.5, mean=0.2)
        # The product's reference is the sum of the factors' up to a constant: its differences are the same.
        x = torch.randn(N, D, generator=torch.Generator().manual_seed(0))
        total = a.domain.log_reference(x) + b.domain.log_reference(x)
        torch.testing.assert_close(product.domain.log_reference(x).diff(), total.diff(), rtol=1e-4, atol=1e-5)
        assert Product([a, EnergyModel(nn.Linear(D, 1), domain=Box(0, 1))]).domain == Box(0, 1)

    def test_disagreement_is_named(self):
        with pytest.raises(InputError, match="disagree on the values of label 'class'"):
            Product([logit(LabelSpace({"class": 3})), logit(LabelSpace({"class": 4}))])
        with pytest.raises(InputError, match="do not overlap"):
            Product([EnergyModel(nn.Linear(D, 1), domain=Box(0, 1)), EnergyModel(nn.Linear(D, 1), domain=Box(2, 3))])
        with pytest.raises(InputError, match="different shapes"):
            Product([EnergyModel(nn.Linear(D, 1), event_shape=(3,)), EnergyModel(nn.Linear(D, 1), event_shape=(4,))])


class TestCanSum:
    """`can_sum` says whether `log_density` can sum the missing labels, or raises that they are too many."""

    def check(self, model, given, wanted):
        x = torch.randn(N, D)
        assert model.can_sum(given) is wanted
        if wanted:
            assert model.log_density(x, given).isfinite().all()
        else:
            with pytest.raises(EnumerationError):
                model.log_density(x, given)

    def test_labels_that_do_not_meet_are_counted_apart(self):
        a, b = (pair(LabelSpace({name: 100})) for name in "ab")
        self.check(Product([a, b]), None, True)
        self.check(Product([a, b]).tempered(0.5), None, True)

    def test_labels_of_one_factor_are_counted_together(self):
        both = pair(LabelSpace({"a": 100, "b": 100}))
        self.check(both, None, False)
        self.check(Product([pair(LabelSpace({"c": 2})), both]), None, False)
        # A factor of both labels joins those of the others.
        self.check(Product([pair(LabelSpace({"a": 100})), pair(LabelSpace({"b": 100})), both]), None, False)

    def test_only_missing_labels_count_row_by_row(self):
        both = pair(LabelSpace({"a": 100, "b": 100}))
        given = torch.full((N, 2), MISSING)
        given[::2, 0], given[1::2, 1] = 3, 4
        self.check(both, given, True)
        given[1] = MISSING
        self.check(both, given, False)
        self.check(
            Product([pair(LabelSpace({"c": 2})), both]), torch.cat([torch.full((N, 1), MISSING), given], 1), False
        )

    def test_closed_sums_have_no_limit(self):
        self.check(logit(LabelSpace({"a": 100, "b": 100, "c": 100})), None, True)

    def test_the_limit_is_read_where_it_is_kept(self, monkeypatch):
        monkeypatch.setattr("jointenergy.labels.ENUMERATION_LIMIT", 1)
        assert not make("pair").can_sum()
        assert make("logits").can_sum()


class TestNormalizer:
    @pytest.mark.parametrize("kind", ["conditional", "logits stated conditional", "product with one"])
    def test_conditional_models_refuse_every_comparison_of_labels(self, kind):
        model = {
            "conditional": lambda: conditional(),
            "logits stated conditional": lambda: logit(normalizer="conditional"),
            "product with one": lambda: Product([conditional(), logit()]),
        }[kind]().double()
        assert model.normalizer == "conditional"
        x, y = data(model)
        model.log_density(x, y)
        for ask in (
            lambda: model.log_density(x),
            lambda: model.label_probs(x),
            lambda: model.label_log_prob(x, y),
            lambda: model.label_log_prob(x, y.index_fill(1, torch.tensor(2), MISSING), {"size": 1}),
        ):
            with pytest.raises(
                NormalizerError, match=r"annealed importance.*cross-entropy.*assume_equal_constants=True"
            ):
                ask()

    def test_offsets_relate_the_labels_and_share_the_weights(self):
        model = conditional().double()
        x, y = data(model)
        offsets = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        related = model.with_offsets(offsets)
        assert (related.normalizer, model.normalizer) == ("joint", "conditional")
        assert {id(p) for p in related.parameters()} == {id(p) for p in model.parameters()}
        torch.testing.assert_close(
            related.log_density(x, y), model.log_density(x, y) - offsets[y[:, 0], y[:, 1], y[:, 2]]
        )
        assumed = model.with_offsets(assume_equal_constants=True)
        assert assumed.assumptions == ("all labels have equal constants",)
        assert related.assumptions == model.assumptions == ()
        torch.testing.assert_close(assumed.log_density(x, y), model.log_density(x, y))
        for wrong in (lambda: model.with_offsets(), lambda: model.with_offsets(torch.zeros(3))):
            with pytest.raises(InputError, match="offsets"):
                wrong()
        with pytest.raises(InputError, match="not both"):
            model.with_offsets(offsets, assume_equal_constants=True)


class TestDomain:
    def test_likelihood_needs_a_domain(self):
        model = pair().double()
        x, y = data(model)
        with pytest.raises(DomainError, match=r"domain=Box\(low, high\).*domain=Reals\(scale\)"):
            model.log_likelihood(x, y, log_normalizer=0.0)

    def test_likelihood_of_a_gaussian(self):
        model = EnergyModel(Zero(), domain=Reals(scale=2.0, mean=1.0))
        x, _ = data(model)
        log_z = D * torch.log(torch.tensor(2.0 * (2 * torch.pi) ** 0.5)).item()
        exact = torch.distributions.Normal(1.0, 2.0).log_prob(x).sum(1)
        torch.testing.assert_close(model.log_likelihood(x, log_normalizer=log_z), exact, rtol=1e-6, atol=1e-6)

    def test_box_has_no_density_outside(self):
        model = EnergyModel(Zero(), domain=Box(0.0, 2.0))
        x = torch.tensor([[0.5, 1.0, 2.0], [0.5, 1.0, 2.1]])
        value = model.log_likelihood(x, log_normalizer=D * torch.log(torch.tensor(2.0)))
        torch.testing.assert_close(value, torch.tensor([-D * 0.6931472, -torch.inf]))

    @pytest.mark.parametrize(
        "make_domain",
        [lambda: Box(1.0, 0.0), lambda: Box(0.0, float("inf")), lambda: Reals(0.0), lambda: Reals(1.0, float("nan"))],
    )
    def test_nonsense_domains(self, make_domain):
        with pytest.raises(InputError):
            make_domain()


class Zero(nn.Module):
    def forward(self, x):
        return x.new_zeros(len(x))


X = torch.zeros(2, D)
NAN_ROW = torch.tensor([[0.0, 1.0, 2.0], [float("nan"), 0, 0]])
Y = torch.zeros(2, 3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda m: m.log_density(X, Y[:, :2]), r"3 column\(s\), one for each of color, round, size, got"),
        (lambda m: m.log_density(X, Y + 2), r"'round' takes the values 0 to 1.* row 0 has 2"),
        (lambda m: m.log_density(X, Y.float()), "must be integers"),
        (lambda m: m.log_density(X, Y[:1]), "1 rows where x has 2"),
        (lambda m: m.log_density(torch.zeros(2, 4)), r"shape \[n, 3\], got \[2, 4\]"),
        (lambda m: m.log_density(X.double()), r"torch.float64 on cpu where the model's weights are torch.float32"),
        (lambda m: m.log_density(X.long()), "must be floating point, got torch.int64"),
        (lambda m: m.log_density([[0.0] * 3]), "must be a tensor of floats, got list"),
        (lambda m: m.log_density(NAN_ROW), r"NaN or infinite values in 1 row\(s\), the first of them 1"),
        (lambda m: m.log_density(X + float("inf")), r"NaN or infinite values in 2 row"),
        (lambda m: m.log_density(X[:0]), "empty batch"),
        (lambda m: m.label_probs(X, {"colour": 1}), "no label called 'colour': did you mean 'color'"),
        (lambda m: m.label_log_prob(X, Y, {"size": 1}), "row 0 asks for a value of 'size' other than the one given"),
        (lambda m: m.tempered(0.0), "inverse temperature must be positive"),
        (lambda m: LogitModel(nn.Linear(D, 4), MIXED).log_density(X), r"returned shape \[2, 4\].*needs \[2, 7\]"),
        (lambda m: LogitModel(nn.Linear(D, 5), BINARY).log_density(X), r"or \[2, 3\] with one logit per binary label"),
        (lambda m: LogitModel(nn.Linear(D, 4), LabelSpace.none()), "use EnergyModel"),
        (lambda m: LogitModel(nn.Linear(D, 3), BINARY, single_logit="one"), "'zero' or 'symmetric', got 'one'"),
        (lambda m: EnergyModel(nn.Linear(D, 2)).log_density(X), r"Linear must give one value per row.*got \[2, 2\]"),
        (lambda m: EnergyModel(nn.Linear(1, 1)).log_density(torch.zeros(2)), "one row per example"),
        (lambda m: ConditionalModel(nn.Linear(D, 2), LabelSpace.none()), "use EnergyModel"),
        (lambda m: Product([]), "at least one factor"),
        (lambda m: logit(normalizer="none"), "'joint' or 'conditional', got 'none'"),
    ],
)  # fmt: skip
def test_bad_input(call, sentence):
    with pytest.raises(InputError, match=sentence) as raised:
        call(pair())
    assert "\n" not in str(raised.value)


class TestCorrelatedReference:
    """R^D with a Gaussian reference of any covariance, against torch.distributions."""

    covariance = torch.tensor([[2.0, 0.9, 0.0], [0.9, 1.0, -0.3], [0.0, -0.3, 0.5]], dtype=torch.float64)
    mean = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)

    def law(self):
        return torch.distributions.MultivariateNormal(self.mean, self.covariance)

    def test_density_gradient_and_normalizer(self):
        domain, x = Reals.gaussian(self.mean, self.covariance), torch.randn(7, 3, dtype=torch.float64)
        x.requires_grad_()
        value = domain.log_reference(x)
        assert torch.allclose(value - domain.log_normalizer(3), self.law().log_prob(x))
        (gradient,) = torch.autograd.grad(value.sum(), x)
        assert torch.allclose(domain.reference_gradient(x), gradient)

    def test_draws(self):
        noise = torch.randn(50_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        x = Reals.gaussian(self.mean, self.covariance).of_noise(noise)
        assert torch.allclose(x.mean(0), self.mean, atol=0.04)  # nine standard errors
        assert torch.allclose(x.T.cov(), self.covariance, atol=0.1)

    def test_products_and_temperatures(self):
        one, other = Reals.gaussian(self.mean, self.covariance), Reals(2.0, 1.0)
        both, x = one.intersect(other), torch.randn(5, 3, dtype=torch.float64)
        difference = both.log_reference(x) - one.log_reference(x) - other.log_reference(x)
        assert torch.allclose(difference, difference[0].expand(5))
        assert torch.allclose(one.tempered(0.25).log_reference(x), 0.25 * one.log_reference(x))

    def test_what_is_no_covariance_is_refused(self):
        with pytest.raises(InputError, match="positive definite"):
            Reals.gaussian(self.mean, -self.covariance)
        with pytest.raises(InputError, match="Cholesky"):
            Reals(((1.0, 0.0), (0.0, -1.0)))
        with pytest.raises(InputError, match="3 and 2 entries"):
            Reals.gaussian(self.mean, self.covariance).intersect(Reals.gaussian(self.mean[:2], torch.eye(2)))
