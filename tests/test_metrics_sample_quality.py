"""FID, KID, class score, precision, recall, density and coverage against closed forms, scipy and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import torch

from jointenergy import InputError
from jointenergy.metrics import sample_quality
from jointenergy.metrics.sample_quality import (
    density_and_coverage,
    frechet_distance,
    inception_score,
    kernel_distance,
    precision_and_recall,
)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def of_moments(mean, root, n):
    """Rows whose mean and covariance are exactly these: `root` times rows that are white."""
    white = drawn(n, len(mean), seed=n)
    white = white - white.mean(0)
    whitening = torch.linalg.inv(torch.linalg.cholesky(torch.cov(white.T)))
    return white @ whitening.T @ root.T + mean


class TestFrechet:
    def test_commuting_gaussians_have_a_closed_form(self):
        a, b = torch.tensor([2.0, 1.0, 0.5, 0.0]).double(), torch.tensor([1.0, 3.0, 0.5, 1.4]).double()
        shift = torch.tensor([1.0, 0.0, -2.0, 0.5]).double()
        turn = torch.linalg.qr(drawn(4, 4)).Q
        found = frechet_distance(of_moments(shift * 0, turn * a, 30), of_moments(turn @ shift, turn * b, 40))
        # A cross term by entries of the matrices misses it.
        assert found == pytest.approx(float(((a - b) ** 2).sum() + shift.square().sum()), rel=1e-6)

    def test_others_are_as_scipy_has_them(self):
        x, y = drawn(40, 6, seed=1) @ drawn(6, 6, seed=2), drawn(50, 6, seed=3) @ drawn(6, 6, seed=4) + 1
        a, b = torch.cov(x.T), torch.cov(y.T)
        cross = np.trace(scipy.linalg.sqrtm((a @ b).numpy())).real
        wanted = float((x.mean(0) - y.mean(0)).square().sum() + (a + b).trace()) - 2 * cross
        assert frechet_distance(x, y) == pytest.approx(wanted, rel=1e-9)
        by_entries = wanted + 2 * cross - 2 * float((a * b).clamp(min=0).sqrt().trace())
        assert abs(by_entries - wanted) > 0.1  # what a product of entries would give is told apart

    def test_turned_shifted_and_swapped_it_is_the_same(self):
        x, y, turn = drawn(40, 5, seed=1), drawn(40, 5, seed=2) * 2 + 1, torch.linalg.qr(drawn(5, 5)).Q
        plain = frechet_distance(x, y)
        assert frechet_distance(y, x) == pytest.approx(plain, abs=1e-9)
        assert frechet_distance(x @ turn + 7, y @ turn + 7) == pytest.approx(plain, abs=1e-9)
        assert frechet_distance(x, x) == pytest.approx(0.0, abs=1e-6)

    def test_fewer_rows_than_features_are_no_trouble(self):
        x, y = drawn(10, 3, seed=1), drawn(10, 3, seed=2) * 3
        into = torch.linalg.qr(drawn(50, 3)).Q.T  # the same points in a space of 50 dimensions
        assert frechet_distance(x @ into, y @ into) == pytest.approx(frechet_distance(x, y), rel=1e-6)

    def test_a_small_spread_far_from_zero_is_kept(self):
        x, y = drawn(101, 4) * 1e-2, drawn(101, 4, seed=1) * 3e-2
        assert frechet_distance(x + 1e5, y + 1e5) == pytest.approx(frechet_distance(x, y), rel=1e-4)

    def test_what_cannot_be_compared_is_one_sentence(self):
        for distance in (frechet_distance, kernel_distance):
            with pytest.raises(InputError, match="at least 2 rows"):
                distance(drawn(1, 3), drawn(5, 3))
            with pytest.raises(InputError, match="must have one width, got 3 and 4"):
                distance(drawn(5, 3), drawn(5, 4))
            assert math.isnan(distance(drawn(5, 3) * math.nan, drawn(5, 3)))


class TestKernelDistance:
    def test_it_is_the_unbiased_discrepancy(self, untouched_random_state):
        x, y = drawn(12, 3, seed=1), drawn(12, 3, seed=2) + 1

        def kernel(a, b):
            return (a @ b.T / 3 + 1) ** 3

        def apart(a):  # the mean over pairs of two different rows
            k = kernel(a, a)
            return (k.sum() - k.trace()) / (len(a) * (len(a) - 1))

        wanted = float(apart(x) + apart(y) - 2 * kernel(x, y).mean())
        with untouched_random_state():
            assert kernel_distance(x, y) == pytest.approx(wanted, rel=1e-12)

    def test_subsets_are_those_of_the_seed(self, monkeypatch):
        monkeypatch.setattr(sample_quality, "SUBSET", 10)
        x, y = drawn(60, 3, seed=1), drawn(50, 3, seed=2) + 1
        assert kernel_distance(x, y, seed=1) == kernel_distance(x, y, seed=1)
        assert kernel_distance(x, y, seed=1) != kernel_distance(x, y, seed=2)
        # Means over 100 subsets of 10 rows scatter by about a twentieth.
        monkeypatch.setattr(sample_quality, "SUBSET", 1000)
        assert kernel_distance(x, y) == pytest.approx(kernel_distance(x[:50], y), rel=0.5)


class TestScores:
    def test_the_class_score_is_the_mean_divergence(self, untouched_random_state):
        logits = drawn(60, 4).float() * 3
        probs = logits.double().softmax(1)
        wanted = math.exp(float((probs * (probs / probs.mean(0)).log()).sum(1).mean()))
        with untouched_random_state():
            assert inception_score(logits.split(7)) == pytest.approx(wanted, rel=1e-9)

    def test_the_class_score_lies_between_1_and_the_number_of_classes(self):
        sure = torch.eye(5).repeat(3, 1) * 1e4
        assert inception_score([sure]) == pytest.approx(5.0)
        assert inception_score([sure[:1], sure[:1]]) == pytest.approx(1.0)
        assert inception_score([torch.zeros(4, 5)]) == pytest.approx(1.0)

    def test_precision_and_recall_of_clouds(self):
        here, there = drawn(30, 2, seed=1), drawn(30, 2, seed=2) + 100
        both = torch.cat((here, there))
        near = drawn(30, 2, seed=3) * 0.5
        for data, made, precision, recall in (
            (here, here, 1.0, 1.0),
            (here, there, 0.0, 0.0),
            (both, near, 1.0, 0.5),
            (near, torch.cat((near, there)), 0.5, 1.0),
        ):
            found = precision_and_recall(data, made)
            assert found.precision == pytest.approx(precision, abs=0.04)
            assert found.recall == pytest.approx(recall, abs=0.2 if made is near else 0.04)

    def test_a_ball_reaches_to_the_third_neighbor(self):
        data = torch.tensor([[0.0], [1.0], [2.0], [3.0], [100.0]])
        made = torch.tensor([[-2.9], [6.1], [197.0], [199.1], [-3.1]])
        # Radii 3, 2, 2, 3, 99: -2.9 lies in the ball of 0, and 6.1 and 197 in that of 100; the others just outside.
        assert precision_and_recall(data, made).precision == pytest.approx(3 / 5)
        with pytest.raises(InputError, match="more than 3 rows"):
            precision_and_recall(data[:3], made)

    def test_pieces_do_not_matter(self, monkeypatch):
        data, made = drawn(50, 3, seed=1), drawn(50, 3, seed=2)
        whole, covered = precision_and_recall(data, made), density_and_coverage(data, made)
        monkeypatch.setattr(sample_quality, "PIECE", 7)
        assert precision_and_recall(data, made) == whole
        assert density_and_coverage(data, made) == covered

    def test_density_and_coverage_by_hand(self):
        data = torch.tensor([[0.0], [1.0], [3.0], [100.0]])  # radii of the second neighbor 3, 2, 3, 99
        made = torch.tensor([[0.5], [-2.5], [5.5], [500.0]])
        # 0.5 lies in the balls of 0, 1 and 3, -2.5 in that of 0, 5.5 in those of 3 and 100, and 500 in none.
        found = density_and_coverage(data, made, k=2)
        assert found.density == pytest.approx(6 / (2 * 4))
        assert found.coverage == 1.0
        # Balls around samples in place of data, as recall has them, would let one far sample cover all.
        assert density_and_coverage(data, made[3:], k=2).coverage == 0.0
        with pytest.raises(InputError, match="more than 4 rows"):
            density_and_coverage(data, made, k=4)

    def test_coverage_of_the_same_distribution_is_as_expected(self):
        data, made, few = drawn(600, 3, seed=1), drawn(600, 3, seed=2), drawn(5, 3, seed=3).repeat(120, 1)
        same = density_and_coverage(data, made)
        n = 600
        expected = 1 - math.prod((n - i) / (2 * n - i) for i in range(1, 6))
        assert same.coverage == pytest.approx(expected, abs=0.04)  # standard error about 0.009
        assert same.density == pytest.approx(1.0, abs=0.1)
        # Five shapes, each again and again: recall's balls have no size, and coverage is near 0 while density stays.
        assert density_and_coverage(data, few).coverage < 0.1
