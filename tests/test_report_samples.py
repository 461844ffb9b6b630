"""Samples: each figure against a closed form, an oracle or a count by hand; the whole part on runs of every kind."""

from __future__ import annotations

import dataclasses
import io
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import jointenergy
from jointenergy import InputError, LabelSpace
from jointenergy.buffers import Drawn, ReplayBuffer
from jointenergy.data import Dataset, load
from jointenergy.data.training import TrainingData
from jointenergy.kernels import Langevin, State
from jointenergy.labels import MISSING
from jointenergy.metrics import label_patterns, registry
from jointenergy.metrics.sample_quality import frechet_distance, kernel_distance
from jointenergy.networks import MLP
from jointenergy.networks.cifar_resnet import MEAN, STD, CifarBlock, CifarResNet
from jointenergy.report import conditional_samples, extractors, long_chains, sample_sets, samples
from jointenergy.report.drawings import STYLE
from jointenergy.report.sections import Extractor, Subject
from jointenergy.runs.loading import open_run
from jointenergy.training import checkpoints
from tests.small import trained
from tests.test_runs import TINY

SMALL = samples.SampleSizes(
    samples=60,
    reference=60,
    manifold=40,
    conditional=True,
    patterns=4,
    per=3,
    per_selected=1,
    chains=6,
    times=2,
    neighbors=10,
)


def resnet(depth=8, n_classes=3):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return CifarResNet(depth, n_classes=n_classes).eval()


class TestCifarResNet:
    @pytest.mark.parametrize(("depth", "published"), [(20, "0.27M"), (56, "0.85M"), (110, "1.7M")])
    def test_parameters(self, depth, published):
        n = (depth - 2) // 6
        convs = 9 * (3 * 16 + 16 * 16 * 2 * n + 16 * 32 + 32 * 32 * (2 * n - 1) + 32 * 64 + 64 * 64 * (2 * n - 1))
        norms = 2 * (16 + 2 * n * (16 + 32 + 64))
        with torch.device("meta"):
            found = sum(p.numel() for p in CifarResNet(depth).parameters())
        assert found == convs + norms + 65 * 10
        assert f"{found / 1e6:.{len(published) - 3}f}M" == published

    def test_shortcuts_have_no_weights(self):
        block = CifarBlock(2, 6, stride=2).eval()
        for p in block.parameters():
            nn.init.zeros_(p)
        x = torch.arange(2 * 16.0).view(1, 2, 4, 4)
        assert torch.equal(block(x)[:, 2:4].detach(), x[:, :, ::2, ::2])
        assert float(block(x)[:, [0, 1, 4, 5]].detach().abs().max()) == 0.0

    def test_weights_from_files_give_the_same_network(self, tmp_path):
        network = resnet()
        tensors = {f"module.{k}": v for k, v in network.state_dict().items()}
        torch.save({"best_prec1": 90.0, "state_dict": tensors}, tmp_path / "net.th")
        torch.save(network.state_dict(), tmp_path / "net.pt")
        save_file(network.state_dict(), tmp_path / "net.safetensors")
        run = jointenergy.wrap(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), 3, bounds=(-1, 1), event_shape=(3, 8, 8))
        pixels = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        mean, std = (torch.tensor(v)[:, None, None] for v in (MEAN, STD))
        wanted = network((pixels - mean) / std).detach()
        for name in ("net.th", "net.pt", "net.safetensors"):
            found = extractors.load(tmp_path / name, run)
            assert found.name == "net"
            assert found.logits is not None
            assert torch.allclose(found.logits(pixels * 2 - 1), wanted, atol=1e-5)
            assert torch.allclose(network.linear(found.features(pixels * 2 - 1)), wanted, atol=1e-5)
        grey = jointenergy.wrap(nn.Linear(64, 3), 3, bounds=(0, 1), event_shape=(64,))
        one = extractors.load(tmp_path / "net.pt", grey).features(pixels[:, 0].flatten(1))
        assert torch.allclose(one, network.features((pixels[:, :1].expand(-1, 3, -1, -1) - mean) / std), atol=1e-5)

    def test_what_is_no_extractor_is_one_sentence(self, tmp_path):
        network = resnet()
        run = jointenergy.wrap(nn.Linear(5, 3), 3, bounds=(0, 1), event_shape=(5,))
        torch.save(network.state_dict(), tmp_path / "net.pt")
        torch.save([1, 2], tmp_path / "list.pt")
        (tmp_path / "broken.pt").write_bytes(b"no weights")
        (tmp_path / "broken.safetensors").write_bytes(b"no weights")
        torch.save({"w": torch.zeros(2)}, tmp_path / "other.pt")
        torch.save({**network.state_dict(), "linear.weight": torch.zeros(3, 9)}, tmp_path / "misfit.pt")
        (tmp_path / "net.onnx").touch()
        for name, sentence in (
            ("net.pt", "needs images"),
            ("nothing.pt", "there is no extractor"),
            ("list.pt", "is not a state dict"),
            ("broken.pt", "not a weights-only file"),
            ("broken.safetensors", "is damaged"),
            ("other.pt", "do not belong to a CIFAR ResNet"),
            ("misfit.pt", "do not fit a CIFAR ResNet-8"),
            ("net.onnx", "ends in"),
        ):
            with pytest.raises(InputError, match=sentence):
                extractors.load(tmp_path / name, run)
        with pytest.raises(InputError, match="6n \\+ 2"):
            CifarResNet(21)

    @pytest.mark.slow
    def test_published_weights_classify_real_images(self, data_dir):
        folder = data_dir / "weights"
        if not folder.is_dir():
            pytest.skip(f"no real data: there are no weights of CIFAR ResNets in {folder}")
        test = load("cifar10", data_dir, "test")
        rows = torch.randperm(len(test), generator=torch.Generator().manual_seed(1))[:500]
        run = jointenergy.wrap(
            nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), 10, bounds=(-1, 1), event_shape=(3, 32, 32)
        )
        # 91.7 % and 93.4 % of all 10,000; 500 of them lie within 3.7 points with a probability of .997.
        for pattern, accuracy in (("*resnet20*", 0.917), ("*resnet56*", 0.934)):
            found = extractors.load(next(folder.glob(pattern)), run)
            assert found.logits is not None
            right = found.logits(run.rows(test.x[rows])).argmax(1) == test.y[rows, 0]
            assert float(right.double().mean()) == pytest.approx(accuracy, abs=0.037)


class Turned(nn.Module):
    """Its last layer was made first."""

    def __init__(self):
        super().__init__()
        self.last, self.first = nn.Linear(3, 2), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.first(x).relu())


class TestExtractors:
    def test_features_are_what_the_last_layer_sees(self):
        network = Turned()
        x = torch.rand(5, 4)
        features = extractors.Penultimate(network)(x)
        assert torch.equal(network.last(features), network(x))
        assert not any(m._forward_pre_hooks for m in network.modules())
        with pytest.raises(InputError, match="no linear layer"):
            extractors.Penultimate(nn.Flatten())(x)

    def test_a_run_of_other_bounds_sees_x_between_its_own(self, tmp_path, digits):
        path = digits.run.export(tmp_path / "my net.safetensors")
        run = jointenergy.wrap(MLP((64, 8, 10)), 10, bounds=(0, 1), event_shape=(64,))
        found = extractors.load(path, run)
        assert found.name == "my-net"
        assert found.logits is not None
        x = digits.test.x[:3]
        wanted = digits.run.model.label_logits(x).logits
        assert torch.allclose(found.logits((x + 1) / 2), wanted, atol=1e-4)
        other = jointenergy.wrap(MLP((9, 8, 10)), 10, bounds=(0, 1), event_shape=(9,))
        with pytest.raises(InputError, match=r"takes x of shape \(64,\)"):
            extractors.load(path, other)

    def test_the_baseline_comes_before_the_run_itself(self, digits):
        own, said = extractors.choose(digits)
        assert own.name == "own-features"
        assert "--against or --extractor" in said[0]
        assert extractors.choose(replace(digits, baseline=digits.run))[0].name == "baseline-features"
        given = Extractor("mine", nn.Flatten())
        assert extractors.choose(replace(digits, baseline=digits.run, extractor=given)) == (given, ())


# Labels.

SPACE = LabelSpace({"shape": ["round", "square", "star"], "big": 2, "dark": 2})


class TestConsistency:
    def test_counts_of_pairs_are_those_by_hand(self):
        y = torch.randint(-1, 2, (300, 3), generator=torch.Generator().manual_seed(0))
        counts = label_patterns.counts_of_pairs(y, SPACE)
        for i, (k, v) in enumerate(zip(SPACE.variable_of_code, SPACE.value_of_code, strict=True)):
            for j, (m, w) in enumerate(zip(SPACE.variable_of_code, SPACE.value_of_code, strict=True)):
                assert int(counts[i, j]) == int(((y[:, k] == v) & (y[:, m] == w)).sum())

    def test_pairs_that_no_row_has(self):
        rows = torch.tensor([[0, 0, 0], [0, 1, 0], [1, 0, 1], [1, MISSING, 1], [0, MISSING, 1]])
        seen, novel = label_patterns.pairs(SPACE, rows)
        # The star is in no row at all: no pair with it is one of known values.
        assert novel.tolist() == [[1, 1, MISSING], [1, MISSING, 0], [MISSING, 1, 1]]
        assert label_patterns.named(SPACE, novel[0]) == "shape square, big 1"
        assert len(seen) == 2 * 2 + 2 * 2 + 2 * 2 - len(novel)
        all_pairs, none = label_patterns.pairs(SPACE, None)
        assert (len(all_pairs), len(none)) == (3 * 2 + 3 * 2 + 2 * 2, 0)

    def test_agreement_is_of_all_that_was_asked_for(self):
        found = torch.tensor([[0, 1, 1], [0, 1, 0], [2, 1, 1]])
        asked = torch.tensor([[0, 1, MISSING]]).expand(3, -1)
        assert label_patterns.agreement(found, asked).tolist() == [True, True, False]
        assert label_patterns.share_with(found, torch.tensor([[0, MISSING, 1], [MISSING, 1, MISSING]])).tolist() == [
            pytest.approx(1 / 3),
            1.0,
        ]

    def test_x_that_left_the_box_has_no_labels(self, attributes):
        x = attributes.test.x[:4].clone()
        wanted = attributes.run.predict(x)
        x[1], x[3] = math.nan, 50.0
        found = conditional_samples.judge_of(attributes.run)(x)
        assert torch.equal(found[[0, 2]], wanted[[0, 2]])
        assert found[[1, 3]].unique().tolist() == [MISSING]

    def test_ways_that_differ(self):
        free = [w.key for w in conditional_samples.ways(torch.tensor([[0, MISSING]]))]
        assert len(free) == 4 * 2 + 3
        assert len(set(free)) == 11
        assert [w.key for w in conditional_samples.ways(torch.tensor([[0]]))][:2] == [
            "noise.marginalize",
            "class.marginalize",
        ]

    def test_some_are_all_or_as_many_as_wanted(self):
        patterns = torch.arange(10)[:, None]
        generator = torch.Generator().manual_seed(0)
        assert sample_sets.some(patterns, 10, generator) is patterns
        assert len(sample_sets.some(patterns, 4, generator).unique()) == 4

    def test_samples_of_an_exact_model_show_their_labels_and_a_wrong_judge_does_not(self, attributes):
        run = attributes.run
        patterns = label_patterns.pairs(SPACE, run.data.y)[0]
        judges = {
            "model": run.predict,
            "always 0": lambda x: torch.zeros(len(x), 3, dtype=torch.int64),
            "swapped": lambda x: run.predict(x) * torch.tensor([1, -1, 1]) + torch.tensor([0, 1, 0]),
        }
        found = conditional_samples.judged(run, patterns, judges, per=3, per_selected=1, steps=60, seed=0, at_once=50)
        assert {j.way.key for j in found if j.why} == set()
        for one in found:
            assert one.by is not None
            if one.way.method != "select":
                assert one.by["model"] == 1.0, one.way
                asked = patterns.repeat_interleave(3, dim=0)
                zeros = ((asked == MISSING) | (asked == 0)).all(1).double().mean()
                assert one.by["always 0"] == pytest.approx(float(zeros))
                assert one.by["swapped"] == pytest.approx(float((asked[:, 1] == MISSING).double().mean()))

    def test_unmatched_chains_of_the_buffer_have_any_labels_at_their_start(self, attributes):
        run, patterns = attributes.run, torch.tensor([[MISSING, 1, MISSING], [MISSING, 0, MISSING]])
        found = conditional_samples.judged(
            run, patterns, {"model": run.predict}, per=30, per_selected=1, steps=0, seed=0, at_once=100
        )
        by = {j.way.key: j.by["model"] for j in found if j.by is not None}
        assert by["matched_buffer.marginalize"] == 1.0
        assert 0.3 < by["unmatched_buffer.marginalize"] < 0.7
        assert by["class.marginalize"] == 1.0
        # 60 chains from noise, half right by chance: beyond .25 and .75 once in ten thousand.
        assert 0.25 < by["noise.marginalize"] < 0.75

    def test_class_starts_of_large_rows_are_refused(self, attributes, monkeypatch):
        monkeypatch.setattr(conditional_samples, "LARGEST", 10)
        patterns = torch.tensor([[0, MISSING, MISSING]])
        found = conditional_samples.judged(
            attributes.run, patterns, {}, per=1, per_selected=1, steps=0, seed=0, at_once=9
        )
        assert [j.why for j in found if j.why] == [
            "class starts need a covariance of each class, and 16 values a row are too many"
        ] * 3


# Chains that grow old.


class TestDrift:
    def test_a_frozen_chain_keeps_its_class_and_one_that_flips_does_not(self):
        frozen = torch.randint(5, (1, 40, 2)).expand(6, -1, -1)
        assert long_chains.kept(frozen).tolist() == [1.0] * 6
        flipped = torch.stack([torch.full((8, 1), age % 2) for age in range(4)])
        assert long_chains.kept(flipped).tolist() == [1.0, 0.0, 1.0, 0.0]
        assert long_chains.kept(flipped, since=1).tolist() == [1.0, 0.0, 1.0]
        half = torch.stack((torch.zeros(4, 1), torch.tensor([[0.0], [0.0], [1.0], [1.0]])))
        assert long_chains.kept(half).tolist() == [1.0, 0.5]

    def test_ages_rise_to_the_end(self):
        for steps in (0, 1, 2, 37, 1000):
            ages = long_chains.ages_of(steps, also=(steps // 2,))
            assert ages[0] == 0
            assert ages[-1] == steps
            assert steps // 2 in ages
            assert list(ages) == sorted(set(ages))
            assert len(ages) <= long_chains.AGES + 1

    def test_age_that_encodes_a_class_is_seen(self):
        age = torch.arange(400)[torch.randperm(400, generator=torch.Generator().manual_seed(0))]
        frog_then_car = (age >= 200).long()
        groups = long_chains.by_age(age, frog_then_car, 2)
        assert [(g.youngest, g.oldest, g.n) for g in groups] == [
            (0, 99, 100),
            (100, 199, 100),
            (200, 299, 100),
            (300, 399, 100),
        ]
        assert long_chains.apart(groups[0].shares, groups[-1].shares) == 1.0
        mixed = long_chains.by_age(age, age % 2, 2)
        assert long_chains.apart(mixed[0].shares, mixed[-1].shares) == 0.0

    def test_chance_is_what_draws_show(self):
        p, n = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), 200
        generator = torch.Generator().manual_seed(0)
        found = []
        for _ in range(300):
            pair = [
                long_chains.shares(torch.multinomial(p, n, True, generator=generator)[None], 3)[0] for _ in range(2)
            ]
            found.append(long_chains.apart(*pair))
        assert long_chains.apart_by_chance(p, n) == pytest.approx(np.mean(found), rel=0.15)

    def test_a_watch_keeps_a_few_numbers_of_each_look(self):
        watch = long_chains.Watch((0, 2), (0.0, 1.0), lambda x, y: x.sum(1), lambda x: (x[:, :1] > 0.5).long())
        for step, value in enumerate((0.0, 0.4, 0.9)):
            x = torch.full((3, 2), value)
            watch(step, State(x, torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64)))
        course = watch.course()
        assert torch.allclose(course.energy, torch.tensor([[0.0] * 3, [1.8] * 3]))
        assert course.at_bounds == (1.0, 0.0)
        assert course.labels is not None
        assert course.labels[:, 0, 0].tolist() == [0, 1]
        with pytest.raises(InputError, match="0 of 2 ages"):
            long_chains.Watch((0, 2), (0.0, 1.0), lambda x, y: x.sum(1), None).course()


# The whole part.


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Subject:
    fit = trained(tmp_path_factory.mktemp("samples") / "run", *TINY)
    checkpoints.mark_best(fit.checkpoint_folder, fit.checkpoint_folder / "iteration-00000200")
    return Subject(jointenergy.load(fit.folder), load("digits", split="test"))


@pytest.fixture
def attributes() -> Subject:
    """Images of 4 x 4 whose rows of pixels show the labels, and a model that knows; no row is both big and dark."""
    network = nn.Linear(16, 7)
    with torch.no_grad():
        network.weight.zero_()
        network.bias.zero_()
        for code, (label, value) in enumerate(zip(SPACE.variable_of_code, SPACE.value_of_code, strict=True)):
            if label == 0:  # which of the first three columns of the upper half is bright
                network.weight[code, [value, 4 + value]] = 40.0
            else:  # bright or dark, one row of the lower half for each
                network.weight[code, 4 + 4 * label : 8 + 4 * label] = 20.0 * (2 * value - 1)
                network.bias[code] = -40.0 * (2 * value - 1)
    run = jointenergy.wrap(
        network, SPACE, bounds=(0, 1), event_shape=(16,), kernel=Langevin(2e-3, 0.01, bounds=(0.0, 1.0))
    )
    generator = torch.Generator().manual_seed(0)
    y = torch.tensor([s for s in SPACE.enumerate().tolist() if s[1:] != [1, 1]] * 20)
    x = torch.full((len(y), 4, 4), 0.1)
    x[torch.arange(len(y)), :2, y[:, 0]] = 0.9
    x[:, 2] = 0.1 + 0.8 * y[:, 1:2]
    x[:, 3] = 0.1 + 0.8 * y[:, 2:]
    x = (x.flatten(1) + 0.02 * torch.randn(len(y), 16, generator=generator)).clamp(0, 1)
    vars(run.origin)["data"] = TrainingData(x, y, x, y, SPACE)  # in place of a recipe's
    buffer = ReplayBuffer(len(y), (16,), SPACE)
    buffer.store(Drawn(x, y, torch.arange(len(y))))
    vars(run.origin)["buffer"] = buffer
    return Subject(run, Dataset(x[::2], y[::2], SPACE, "attributes"))


def check(section, subject):
    """Names and values that results may have, pictures that decode, sentences that end."""
    for name, value in section.metrics.items():
        if value is not None:
            registry.check_value(name, value)
        else:
            registry.range_of(name)
    assert len({p.name for p in section.pictures}) == len(section.pictures)
    for p in section.pictures:
        assert Image.open(io.BytesIO(p.png)).size[0] > 60
        assert p.caption.endswith(".")
    for table in section.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
    for sentence in section.says:
        assert sentence.endswith("."), sentence
        assert not sentence.endswith(".."), sentence


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(samples, "QUICK", SMALL)
    monkeypatch.setattr(sample_sets, "STEPS", 60)
    monkeypatch.setitem(STYLE, "savefig.dpi", 40)


class TestSamples:
    def test_a_run_of_one_label(self, digits, untouched_random_state):
        with untouched_random_state():
            found = samples.samples(replace(digits, baseline=digits.run), "quick")
        check(found, digits)
        name = "baseline-features"
        for what in ("precision", "recall", "density", "coverage"):
            assert found.metrics[f"{what}.{name}.fresh"] is not None
        for which in ("fresh", "train", "buffer", "start", "noise"):
            assert found.metrics[f"fid.{name}.{which}"] is not None
            assert (f"kid.{name}.{which}" in found.metrics) == (which in ("fresh", "train", "buffer"))
        for table in found.tables[:2]:  # rows of starts and noise once were dashes in nearly all columns
            assert all(row.count(None) < 2 for row in table.rows), table.title
        told = found.protocols[f"kid.{name}.buffer"]
        assert re.match(r"60 rows, persistent chains \(not fresh\), unfiltered, against 60 test rows of digits; ", told)
        assert told.endswith("; over all rows at once")
        again = samples.samples(replace(digits, baseline=digits.run), "quick")
        timed = {"samples_50000_seconds"}
        assert {k: v for k, v in found.metrics.items() if k not in timed} == {
            k: v for k, v in again.metrics.items() if k not in timed
        }
        # What the names say, from the run itself.
        x = digits.run.sample(60, seed=0).x
        features = extractors.of_run(digits.run, name, digits.run.bounds).features
        rows = sample_sets.some(torch.arange(len(digits.test)), 60, torch.Generator().manual_seed(0))
        test = digits.test.x[rows]
        wanted = frechet_distance(features(x), features(test))
        assert found.metrics[f"fid.{name}.fresh"] == pytest.approx(wanted)
        assert found.metrics[f"kid.{name}.fresh"] == pytest.approx(kernel_distance(features(x), features(test)))
        begun = digits.run.sample(60, steps=0, seed=0).x
        wanted = frechet_distance(features(begun), features(test))
        assert found.metrics[f"fid.{name}.start"] == pytest.approx(wanted)
        assert wanted > 3 * (found.metrics[f"fid.{name}.train"] or math.inf)
        assert found.metrics["training_seconds"] is not None
        assert found.metrics["parameters"] == 64 * 32 + 32 + 32 * 10 + 10
        assert {"samples", "samples-of-class", "energies", "chains-grow-old", "classes-by-age", "neighbors"} == {
            p.name for p in found.pictures
        }

    def test_a_run_of_several_labels(self, attributes):
        found = samples.samples(replace(attributes, baseline=attributes.run), "quick")
        check(found, attributes)
        assert found.metrics["consistency_pairs"] == 1.0
        assert found.metrics["consistency_pairs_baseline"] == 1.0
        assert found.metrics["consistency_novel"] == 1.0
        # The model does not mind what is both big and dark: about a quarter of its samples are. The buffer has none.
        assert 0.05 < (found.metrics["novel_share.samples"] or 0.0) < 0.5
        assert found.metrics["novel_share.buffer"] == 0.0
        assert "Samples given pairs that no training row has (1 pair)" in [t.title for t in found.tables]
        assert {"samples-of-single", "samples-of-pairs", "samples-of-novel"} <= {p.name for p in found.pictures}
        assert any("60 steps here" in s for s in found.says)

    def test_a_wrapped_classifier_alone(self):
        network = MLP((3, 8, 4))
        run = jointenergy.wrap(network, {"a": 2, "b": 2}, bounds=(0, 1), event_shape=(3,))
        x = torch.rand(30, 3, generator=torch.Generator().manual_seed(0))
        subject = Subject(run, Dataset(x, torch.zeros(30, 2, dtype=torch.int64), run.labels, "cloud"))
        found = samples.samples(subject, "quick")
        check(found, subject)
        for part in ("training rows", "persistent chains", "unseen pairs", "class Gaussians"):
            assert any(part in s for s in found.says), part
        assert "fid.own-features.fresh" in found.metrics
        assert "fid.own-features.train" not in found.metrics
        assert {p.name for p in found.pictures} == {"energies", "chains-grow-old", "classes-by-age"}

    @pytest.mark.parametrize("family", ["conditional", "unconditional", "pair"])
    def test_other_families(self, family, tmp_path):
        more = {
            "conditional": ("model.family=conditional", "objective=igebm"),
            "unconditional": ("model.family=unconditional", "objective.log_p_y_given_x=0.0"),
            "pair": ("model.family=pair", "chain.label_kernel=gibbs-with-gradients", "objective=mixed"),
        }[family]
        trained(tmp_path / "run", *TINY, "iterations=4", "cadence.check=4", *more)
        run = open_run(tmp_path / "run")
        test = load("digits", split="test")
        if family == "unconditional":
            test = Dataset(test.x, test.y[:, :0], run.labels, "digits")
        subject = Subject(run, test)
        found = samples.samples(subject, "quick")
        check(found, subject)
        assert "fid.pixels.fresh" in found.metrics or family == "unconditional"
        assert "inception_score.pixels" not in found.metrics  # values are no logits
        said = {
            "conditional": "chains are given labels",
            "unconditional": "has no labels",
            "pair": "not a classifier of x alone",
        }[family]
        assert any(said in s for s in found.says)

    def test_a_costly_extractor_passes_no_training_set_for_neighbors(self, digits):
        costly = Extractor("inception", nn.Flatten(), costly=True)
        found = samples.samples(replace(digits, extractor=costly), "quick")
        check(found, digits)
        assert {"fid.inception.fresh", "kid.inception.fresh", "fid.inception.buffer"} <= found.metrics.keys()
        assert "nearest_train.pixels" in found.metrics
        assert "nearest_train.inception" not in found.metrics

    def test_the_training_set_is_the_reference_where_an_extractor_says_so(self, digits):
        """A figure against test rows under a name whose published figures are against all training rows."""
        network = Extractor("inception", nn.Flatten(), costly=True, reference="train")
        sets = sample_sets.sets_of(digits, 60, torch.Generator().manual_seed(0))
        whole = samples.features(digits, sets, network, replace(SMALL, reference=None))
        data = digits.run.data
        train = torch.cat((data.x, data.x_held))
        n = f"{len(train):,}"
        assert whole.metrics["fid.inception.fresh"] == pytest.approx(frechet_distance(train, sets.samples), rel=1e-6)
        assert f"against {n} training rows of digits" in whole.protocols["fid.inception.fresh"]
        assert "fid.inception.test" in whole.metrics
        assert "fid.inception.train" not in whole.metrics
        few = samples.features(digits, sets, network, replace(SMALL, reference=100))
        assert "against 100 training rows" in few.protocols["fid.inception.fresh"]

    def test_memory_does_not_grow_with_the_data(self, digits):
        batches: list[int] = []

        class Counted(nn.Module):
            def forward(self, x):
                batches.append(len(x))
                return x.flatten(1)[:, :5]

        x, y = digits.test.x, digits.test.y
        total = []
        for times in (1, 40):
            batches.clear()
            test = Dataset(x.repeat(times, 1), y.repeat(times, 1), digits.test.labels, "more")
            samples.samples(replace(digits, test=test, extractor=Extractor("counted", Counted())), "quick")
            assert max(batches) <= 1024
            total.append(sum(batches))
        assert total[0] == total[1]

    def test_chains_that_leave_the_finite_numbers_are_said(self, attributes):
        wild = Langevin(2e-3, 1e38, bounds=None)
        vars(attributes.run)["sampling"] = dataclasses.replace(attributes.run.sampling, x_kernel=wild)
        found = samples.samples(attributes, "quick")
        check(found, attributes)
        assert any("became non-finite" in s for s in found.says)
        assert (found.metrics["consistency_pairs"] or 0.0) < 0.5
