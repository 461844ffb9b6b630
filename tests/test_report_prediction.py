"""Prediction: figures of classes and attributes against scikit-learn's, rows that pass by, and who cannot predict."""

import gc
import itertools
import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import nn

import jointenergy
from jointenergy.data import Dataset
from jointenergy.errors import InputError
from jointenergy.inference.density import label_log_probs
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.metrics.classification import (
    Decisions,
    attributes,
    auprc,
    auroc,
    averages,
    class_accuracies,
    confusion,
    decisions,
    f1,
    ranked,
    whole,
)
from jointenergy.metrics.registry import check_value
from jointenergy.models import Box, ConditionalModel, EnergyModel, LogitModel, PairModel
from jointenergy.models.pairwise import Concat
from jointenergy.report import predictors
from jointenergy.report.prediction import prediction
from jointenergy.report.predictors import parts_of_names, tell
from jointenergy.report.sections import Subject
from jointenergy.runs.origin import Origin, Sampling
from jointenergy.runs.run import Run
from jointenergy.runs.thresholds import Thresholds

WIDTH = 6


def linear(n_codes, seed=0, scale=2.0):
    network = nn.Linear(WIDTH, n_codes)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        network.weight.copy_(scale * torch.randn(n_codes, WIDTH, generator=generator))
        network.bias.zero_()
    return network


def rows(labels, n=2500, missing=0.2, seed=0):
    """x with labels of a linear model's own law, some of them missing."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, WIDTH, generator=generator) - 1
    blocks = linear(labels.n_codes, seed=1)(x).detach().split(labels.cardinalities, dim=1)
    y = torch.cat([torch.multinomial(b.softmax(1), 1, generator=generator) for b in blocks], 1)
    y[torch.rand(y.shape, generator=generator) < missing] = MISSING
    return Dataset(x, y, labels, "random")


def wrapped(labels, seed=1, scale=2.0):
    return jointenergy.wrap(linear(labels.n_codes, seed, scale), labels, bounds=(-1, 1), event_shape=(WIDTH,))


def told_of(run, data):
    return tell(run.model, predictors.batches(data, "cpu"))


ATTRIBUTES = LabelSpace({"hat": 2, "smile": 2, "old": 2})
COLORED = LabelSpace({"hat": 2, "color": ["red", "green", "blue"]})
CLASSES = LabelSpace({"digit": 5})


class TestAttributes:
    """Against scikit-learn, each label on the rows that know it, and all pooled."""

    @pytest.fixture
    def case(self):
        run, data = wrapped(ATTRIBUTES, seed=2), rows(ATTRIBUTES)
        (answers,) = told_of(run, data).answers
        p = [q[:, 1].double().numpy() for q in run.predict_proba(data.x).values()]
        seen = [(data.y[:, k] != MISSING).numpy() for k in range(3)]
        truth = [data.y[:, k].numpy() for k in range(3)]
        return answers, [q[s] for q, s in zip(p, seen, strict=True)], [t[s] for t, s in zip(truth, seen, strict=True)]

    ORACLES = (
        ("f1", lambda t, p: sk.f1_score(t, p > 0.5)),
        ("auprc", sk.average_precision_score),
        ("auroc", sk.roc_auc_score),
        ("accuracy", lambda t, p: sk.accuracy_score(t, p > 0.5)),
    )

    def test_each(self, case):
        answers, p, truth = case
        found = attributes(answers)
        assert [a.name for a in found] == list(ATTRIBUTES)
        for k, a in enumerate(found):
            assert a.n == len(truth[k]) < 2500
            assert a.share == pytest.approx(truth[k].mean())
            for name, oracle in self.ORACLES:
                assert getattr(a, name) == pytest.approx(oracle(truth[k], p[k]), abs=1e-5), name

    def test_micro_and_macro(self, case):
        answers, p, truth = case
        found = averages(answers, attributes(answers))
        for name, oracle in self.ORACLES[:3]:
            pooled = oracle(np.concatenate(truth), np.concatenate(p))
            assert found[f"{name}_micro"] == pytest.approx(pooled, abs=1e-5)
            each = [oracle(t, q) for t, q in zip(truth, p, strict=True)]
            assert found[f"{name}_macro"] == pytest.approx(np.mean(each), abs=1e-5)
        each = [a.ece for a in attributes(answers)]
        assert found["ece_macro"] == pytest.approx(np.mean(each))

    def test_brier(self, case):
        answers, p, truth = case
        pooled = sk.brier_score_loss(np.concatenate(truth), np.concatenate(p))
        assert float(answers.brier.mean()) == pytest.approx(pooled, abs=1e-6)

    def test_labels_of_more_values_ask_one_question_for_each(self):
        run, data = wrapped(COLORED, seed=2), rows(COLORED)
        (answers,) = told_of(run, data).answers
        _, color = attributes(answers)
        seen = data.y[:, 1] != MISSING
        truth = data.y[seen, 1].numpy()
        p = run.predict_proba(data.x)["color"][seen].double().numpy()
        hot = np.eye(3)[truth]
        assert color.share is None
        assert color.f1 == pytest.approx(sk.f1_score(truth, p.argmax(1), average="macro"), abs=1e-5)
        assert color.auroc == pytest.approx(sk.roc_auc_score(truth, p, multi_class="ovr"), abs=1e-5)
        assert color.auprc == pytest.approx(sk.average_precision_score(hot, p, average="macro"), abs=1e-5)
        # One question of the hat, three of the color.
        pooled = Decisions.together([d for k in (0, 1) for d in decisions(answers, k)])
        assert len(pooled.truth) == int((data.y[:, 0] != MISSING).sum()) + 3 * len(truth)

    def test_log_odds_rank_what_probabilities_have_rounded_away(self):
        # All are sure; the one that is wrong is the least sure of them.
        labels = LabelSpace.binary(["a"])
        logit = torch.tensor([200.0, 150.0, 120.0, 60.0, -60.0])
        model = LogitModel(nn.Identity(), labels, event_shape=(2,))
        x = torch.stack((torch.zeros(5), logit), 1)
        y = torch.tensor([1, 1, 1, 0, 0])[:, None]
        (answers,) = tell(model, [(x, y)]).answers
        (asked,) = decisions(answers, 0)
        assert asked.log_odds.tolist() == pytest.approx(logit.tolist())
        assert (auprc(asked), auroc(asked)) == (1.0, 1.0)
        by_probability = sk.average_precision_score(y[:, 0], model.label_probs(x)["a"][:, 1])
        assert by_probability == pytest.approx(0.75)

    def test_ranks_keep_order_and_ties(self):
        scores = torch.tensor([3.0, -torch.inf, 3.0, 900.0, torch.inf], dtype=torch.float64)
        assert ranked(scores).tolist() == pytest.approx([1 / 3, 0, 1 / 3, 2 / 3, 1])

    def test_what_is_not_defined_is_no_number_and_no_part_of_a_mean(self):
        odds, yes, no = torch.randn(4), torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)
        assert math.isnan(f1(Decisions(odds, no, no)))
        assert math.isnan(auprc(Decisions(odds, no, yes)))
        assert math.isnan(auroc(Decisions(odds, no, yes)))
        assert math.isnan(auroc(Decisions(odds, yes, yes)))
        data = rows(ATTRIBUTES)
        y = data.y.clone()
        y[:, 1], y[:, 2] = 0, MISSING
        section = prediction(Subject(wrapped(ATTRIBUTES), Dataset(data.x, y, ATTRIBUTES, "random")), "quick")
        assert section.metrics["auroc_of.smile"] is None
        assert "auroc_of.old" not in section.metrics
        assert section.metrics["auroc_macro"] == section.metrics["auroc_of.hat"]


class TestClasses:
    def test_figures_are_those_of_scikit_learn(self):
        run, data = wrapped(CLASSES, seed=2), rows(CLASSES, missing=0.1)
        told = told_of(run, data)
        seen = data.y[:, 0] != MISSING
        p, truth = run.predict_proba(data.x)["digit"][seen].double().numpy(), data.y[seen, 0].numpy()
        p /= p.sum(1, keepdims=True)
        found = whole(told)
        assert found["accuracy"] == found["exact_match"] == sk.accuracy_score(truth, p.argmax(1))
        assert found["nll"] == pytest.approx(sk.log_loss(truth, p), abs=1e-5)
        assert found["brier"] == pytest.approx(sk.brier_score_loss(truth, p, scale_by_half=True), abs=1e-6)
        counts = sk.confusion_matrix(truth, p.argmax(1))
        assert confusion(told.answers[0]).tolist() == counts.tolist()
        recalls = sk.recall_score(truth, p.argmax(1), average=None)
        assert class_accuracies(told.answers[0]).tolist() == pytest.approx(recalls.tolist())

    def test_a_class_without_rows_has_no_accuracy(self):
        data = rows(CLASSES, missing=0.0)
        kept = data.rows(data.y[:, 0] != 3)
        section = prediction(Subject(wrapped(CLASSES), kept), "quick")
        assert section.metrics["accuracy_of_class.3"] is None
        assert section.tables[1].rows[3] == ("3", 0, None)

    def test_many_classes_show_the_hardest(self):
        labels = LabelSpace({"kind": 60})
        data = rows(labels, n=600, missing=0.0)
        section = prediction(Subject(wrapped(labels), data), "quick")
        table = section.tables[1]
        assert "the 50 hardest of 60" in table.title
        accuracies = [row[2] for row in table.rows if row[2] is not None]
        assert accuracies == sorted(accuracies)


class TestJointly:
    """A pair model whose labels depend on each other given x."""

    @pytest.fixture
    def model(self):
        labels = LabelSpace({"a": 2, "b": 3})
        generator = torch.Generator().manual_seed(0)
        network = nn.Sequential(nn.Linear(WIDTH + 5, 16), nn.Tanh(), nn.Linear(16, 1))
        with torch.no_grad():
            for p in network.parameters():
                p.copy_(1.5 * torch.randn(p.shape, generator=generator))
        return PairModel(Concat(network), labels, domain=Box(-1, 1), event_shape=(WIDTH,)).double()

    def test_labels_of_a_row_count_together(self, model):
        data = rows(model.labels, n=400, missing=0.0)
        x = data.x.double()
        y = data.y.clone()
        y[:100, 0] = MISSING
        told = tell(model, [(x[:150], y[:150]), (x[150:], y[150:])])
        states = torch.tensor(list(itertools.product(range(2), range(3))))
        with torch.no_grad():
            table = torch.stack([model.log_density(x, s.expand(400, -1)) for s in states], 1).log_softmax(1)
        best = states[table.argmax(1)]
        right = ((best == y) | (y == MISSING)).all(1)
        assert told.exact.tolist() == right.tolist()
        place = data.y[:, 0] * 3 + data.y[:, 1]
        expected = -table.gather(1, place[:, None])[:, 0]
        expected[:100] = -table.view(400, 2, 3).logsumexp(1).gather(1, y[:100, 1:].repeat(4, 1))[:100, 0]
        assert torch.allclose(told.nll, expected)
        # The most probable value of each label apart is another labeling in some rows: it is not what counts.
        apart = torch.stack([table.view(400, 2, 3).logsumexp(d).argmax(1) for d in (2, 1)], 1)
        assert bool((apart != best).any())
        assert told.exact.tolist() != ((apart == y) | (y == MISSING)).all(1).tolist()

    def test_marginals_are_those_of_the_model(self, model):
        x = rows(model.labels, n=50).x.double()
        with torch.no_grad():
            found, expected = label_log_probs(model, x), model.label_probs(x)
        for z, p in zip(found, expected.values(), strict=True):
            assert torch.allclose(z.exp(), p)


def live_bytes():
    """What all tensors of this process hold."""
    tensors = [o for o in gc.get_objects() if type(o) is torch.Tensor]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


class TestStreaming:
    @pytest.mark.parametrize("n_classes", [10, 100])
    def test_rows_pass_by_and_a_few_numbers_stay(self, n_classes):
        """What stays of a row has the same size for 10 and for 100 classes, whether there are 50 rows or 1,000."""
        model = LogitModel(nn.Linear(3072, n_classes), LabelSpace({"c": n_classes}), event_shape=(3072,))

        def held(n):
            """What is held when the last of n pieces was looked at, beyond what was held before the first."""
            found = []

            def batches():
                generator = torch.Generator().manual_seed(0)
                before = live_bytes()
                for _ in range(n):
                    yield torch.randn(25, 3072, generator=generator), torch.randint(10, (25, 1), generator=generator)
                found.append(live_bytes() - before)

            told = tell(model, batches())
            assert len(told.answers[0]) == 25 * n
            return found[0]

        few, many = held(2), held(40)
        assert few > 25 * 3072 * 4  # the piece itself is seen
        assert (many - few) / (38 * 25) <= 80

    def test_the_size_of_pieces_does_not_matter(self, monkeypatch):
        run, data = wrapped(COLORED), rows(COLORED, n=500)
        whole_rows = told_of(run, data)
        monkeypatch.setattr(predictors, "ROWS", 7)
        pieces = told_of(run, data)
        assert torch.allclose(whole_rows.nll, pieces.nll, atol=1e-5)
        first, second = (whole(t) for t in (whole_rows, pieces))
        assert first == pytest.approx(second, abs=1e-6)
        assert averages(whole_rows.answers[0], attributes(whole_rows.answers[0])) == pytest.approx(
            averages(pieces.answers[0], attributes(pieces.answers[0])), abs=1e-5
        )

    def test_rows_without_any_label_are_refused(self):
        with pytest.raises(InputError, match="no observed label"):
            told_of(wrapped(CLASSES), rows(CLASSES, n=20, missing=1.0))


@pytest.mark.gpu
def test_a_model_on_a_gpu_tells_the_same():
    run, data = wrapped(COLORED), rows(COLORED, n=300)
    own = told_of(run, data)
    run.model.to("cuda")
    there = tell(run.model, predictors.batches(data, "cuda"))
    assert whole(there) == pytest.approx(whole(own), abs=1e-5)
    assert there.answers[0].log_odds.device.type == "cpu"
    assert torch.allclose(there.answers[0].log_odds, own.answers[0].log_odds, atol=1e-4)


def run_of(model):
    origin = Origin("a model", model.labels, (WIDTH,), torch.device("cpu"))
    sampling = Sampling(wrapped(CLASSES).sampling.x_kernel)
    return Run(model.eval(), origin, sampling, (-1.0, 1.0), Thresholds())


class Scores(nn.Module):
    """f of x and label indices."""

    def __init__(self, n):
        super().__init__()
        self.network = linear(n)

    def forward(self, x, y):
        return self.network(x).gather(1, y[:, :1])[:, 0]


class TestSection:
    @pytest.mark.parametrize("labels", [ATTRIBUTES, COLORED, CLASSES, LabelSpace.binary(["only one"])])
    def test_all_who_predict_stand_side_by_side(self, labels, untouched_random_state):
        run, other = wrapped(labels), wrapped(labels, seed=5)
        subject = Subject(run, rows(labels, n=300), other, {"robust_one": other})
        with untouched_random_state():
            section = prediction(subject, "quick")
        for name, value in section.metrics.items():
            if value is not None:
                check_value(name, value)
        own = [m for m in section.metrics if not m.startswith(("baseline.", "others."))]
        assert {"accuracy", "nll", "brier", "exact_match"} <= set(own)
        for m in own:
            assert section.metrics[f"baseline.{m}"] == section.metrics[f"others.robust_one.{m}"]
        own_accuracy, other_accuracy = section.metrics["accuracy"], section.metrics["baseline.accuracy"]
        assert own_accuracy is not None
        assert other_accuracy is not None
        assert own_accuracy > other_accuracy
        assert [row[0] for row in section.tables[0].rows] == ["run", "baseline", "robust_one"]
        for table in section.tables:
            assert {len(row) for row in table.rows} == {len(table.columns)}
        names = [p.name for p in section.pictures]
        grids = ["attribute_reliability", "attribute_roc", "attribute_precision_recall"]
        assert names == (["confusion"] if labels is CLASSES else grids)
        assert all(p.png.startswith(b"\x89PNG") for p in section.pictures)
        assert any("missing and ignored" in s for s in section.says) == (len(labels) > 1)

    def test_unknown_normalizers_are_told_in_a_sentence(self):
        model = ConditionalModel(Scores(5), CLASSES, domain=Box(-1, 1), event_shape=(WIDTH,))
        section = prediction(Subject(run_of(model), rows(CLASSES, n=50), wrapped(CLASSES)), "quick")
        assert "accuracy" not in section.metrics
        assert "baseline.accuracy" in section.metrics
        assert any("unknown normalizing" in s for s in section.says)
        assumed = prediction(Subject(run_of(model).assuming_equal_constants(), rows(CLASSES, n=50)), "quick")
        assert "accuracy" in assumed.metrics
        assert any("not known" in s for s in assumed.says)

    def test_without_labels_there_is_nothing_to_predict(self):
        model = EnergyModel(linear(1), domain=Box(-1, 1), event_shape=(WIDTH,))
        x = rows(CLASSES, n=20).x
        for run, y, labels, words in (
            (run_of(model), torch.zeros(20, 1).long(), CLASSES, "no labels"),
            (wrapped(CLASSES), torch.full((20, 1), MISSING), CLASSES, "no labels"),
            (wrapped(CLASSES), torch.zeros(20, 3).long(), ATTRIBUTES, "labels differ from those"),
        ):
            section = prediction(Subject(run, Dataset(x, y, labels, "random")), "quick")
            assert section.metrics == {}
            assert any(words in s for s in section.says)

    def test_labels_too_many_to_be_summed_are_drawn(self):
        labels = LabelSpace.binary([f"bit {i}" for i in range(13)])
        network = nn.Linear(WIDTH + 26, 1)
        with torch.no_grad():  # bit 0 is on, whatever x: log-odds of 8
            network.weight.zero_()
            network.weight[0, WIDTH + 1] = 8.0
        model = PairModel(Concat(network), labels, domain=Box(-1, 1), event_shape=(WIDTH,))
        y = torch.full((30, 13), MISSING)
        y[:, 0] = 1
        section = prediction(Subject(run_of(model), Dataset(rows(CLASSES, n=30).x, y, labels, "bits")), "quick")
        assert section.metrics == {"accuracy_by_sampling": 1.0}
        assert any("8,192 states" in s for s in section.says)

    def test_what_is_not_finite_is_told(self):
        run = wrapped(CLASSES)
        with torch.no_grad():
            next(run.model.parameters()).fill_(torch.nan)
        section = prediction(Subject(run, rows(CLASSES, n=20)), "quick")
        assert section.metrics == {}
        assert any("not finite" in s for s in section.says)


def test_names_of_labels_become_parts_of_metrics():
    assert parts_of_names(["Men's", "5 o'clock shadow", "a b", "a_b", "?"]) == [
        "Men_s",
        "5_o_clock_shadow",
        "a_b",
        "a_b_2",
        "_",
    ]
