"""Starts: one contract for all of them, the distributions they promise, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from scipy.fft import idctn
from scipy.stats import chi2
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.starts import (
    ClassGaussianStart,
    FrequencyLabels,
    GivenStart,
    LabelStart,
    MissingLabels,
    MixedStart,
    Start,
    UniformLabels,
    UniformStart,
    XStart,
)

LABELS = LabelSpace({"animal": ["cat", "dog", "eel"], "indoors": 2})
EVENT = (2, 2)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def data(n: int = 60, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, *EVENT, generator=seeded(99)).to(dtype)
    return x, UniformLabels(LABELS).draw(n, generator=seeded(98))


X_STARTS: dict[str, Callable[[torch.dtype], XStart]] = {
    "uniform": lambda dtype: UniformStart(-1, 2, EVENT, dtype=dtype),
    "uniform of a batch": lambda dtype: UniformStart.of_batch(data(dtype=dtype)[0]),
    "class Gaussians": lambda dtype: ClassGaussianStart.fit(*data(dtype=dtype), LABELS, "animal"),
    "class Gaussians, compact": lambda dtype: ClassGaussianStart.fit(*data(dtype=dtype), LABELS, "animal").compact(
        rank=2
    ),
    "mixed": lambda dtype: MixedStart(UniformStart(-1, 2, EVENT, dtype=dtype), GivenStart(data(20, dtype)[0]), 0.3),
    "given, all": lambda dtype: GivenStart(data(8, dtype)[0]),
    "given, some": lambda dtype: GivenStart(data(20, dtype)[0]),
}
LABEL_STARTS: dict[str, Callable[[], LabelStart]] = {
    "uniform": lambda: UniformLabels(LABELS),
    "frequency": lambda: FrequencyLabels.fit(data()[1], LABELS),
    "frequency with gaps": lambda: FrequencyLabels.fit(data()[1].index_fill(1, torch.tensor([0]), MISSING), LABELS),
    "missing": lambda: MissingLabels(LABELS),
}
each_x_start = pytest.mark.parametrize("build", X_STARTS.values(), ids=X_STARTS)
each_label_start = pytest.mark.parametrize("build", LABEL_STARTS.values(), ids=LABEL_STARTS)


# ---------------------------------------------------------------- contract


@each_x_start
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_x_starts_keep_the_contract(build, dtype):
    y = data(8)[1]
    y[3, 0] = MISSING
    kept, before = y.clone(), torch.get_rng_state()
    start = build(dtype)
    x = start.draw(y, generator=seeded(1))
    assert x.shape == (8, *EVENT)
    assert x.dtype == dtype
    assert x.isfinite().all()
    again = start.draw(y, generator=seeded(1))
    assert torch.equal(x, again)
    x.fill_(math.nan)  # what is drawn belongs to the caller
    assert torch.equal(start.draw(y, generator=seeded(1)), again)
    assert torch.equal(build(dtype).draw(y, generator=seeded(1)), again)
    assert torch.equal(y, kept)
    assert torch.equal(torch.get_rng_state(), before)


@each_label_start
def test_label_starts_keep_the_contract(build):
    before, start = torch.get_rng_state(), build()
    y = start.draw(9, generator=seeded(1))
    assert y.shape == (9, 2)
    assert y.dtype == torch.int64
    LABELS.check(y, 9, complete=not isinstance(start, MissingLabels))
    again = start.draw(9, generator=seeded(1))
    assert torch.equal(y, again)
    y.fill_(MISSING)
    assert torch.equal(start.draw(9, generator=seeded(1)), again)
    assert torch.equal(torch.get_rng_state(), before)


@each_label_start
def test_given_labels_are_written_in(build):
    named = build().draw(9, generator=seeded(), given={"animal": "eel"})
    assert (named[:, 0] == 2).all()
    given = torch.tensor([[MISSING, 1], [0, MISSING], [2, 0], [MISSING, MISSING]])
    kept = given.clone()
    y = build().draw(4, generator=seeded(), given=given)
    assert ((given == MISSING) | (y == given)).all()
    y.fill_(0)
    assert torch.equal(given, kept)
    # What is given changes nothing else: the free entries are those of a draw without it.
    free = build().draw(4, generator=seeded())
    assert torch.equal(build().draw(4, generator=seeded(), given=given)[given == MISSING], free[given == MISSING])


@pytest.mark.parametrize("labels", [LabelSpace.none(), LabelSpace({"digit": 3})], ids=["none", "one"])
def test_no_label_and_one_label(labels):
    y = torch.zeros(5, 0, dtype=torch.int64) if not len(labels) else torch.arange(5) % 3
    for start in (UniformLabels(labels), FrequencyLabels.fit(y, labels), MissingLabels(labels)):
        assert start.draw(4, generator=seeded()).shape == (4, len(labels))


@each_x_start
@pytest.mark.parametrize("labels", LABEL_STARTS.values(), ids=LABEL_STARTS)
def test_a_start_draws_x_and_labels(build, labels):
    start = Start(build(torch.float32), labels())
    x, y = start.draw(8, generator=seeded(), given={"indoors": 1})
    assert x.shape == (8, *EVENT)
    assert y.shape == (8, 2)
    assert (y[:, 1] == 1).all()


def test_fitted_starts_keep_copies_and_leave_their_data_alone():
    x, y = data()
    kept_x, kept_y = x.clone(), y.clone()
    builds = (UniformStart.of_batch, GivenStart, lambda x: ClassGaussianStart.fit(x, y, LABELS, "animal"))
    starts = [build(x) for build in builds]
    labels = FrequencyLabels.fit(y, LABELS)
    assert torch.equal(x, kept_x)
    assert torch.equal(y, kept_y)
    before = [s.draw(kept_y[:5], generator=seeded()) for s in starts] + [labels.draw(5, generator=seeded())]
    x.zero_()
    y.zero_()
    after = [s.draw(kept_y[:5], generator=seeded()) for s in starts] + [labels.draw(5, generator=seeded())]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


# ---------------------------------------------------------------- what each promises


def test_uniform_starts_fill_each_dimension_of_the_batch_and_no_more():
    x = torch.tensor([[-3.0, 5.0, 1.0], [1.0, 5.0, 2.0], [0.0, 5.0, 9.0]])
    drawn = UniformStart.of_batch(x).draw(torch.zeros(4000, 1), generator=seeded())
    low, high = torch.tensor([-3.0, 5.0, 1.0]), torch.tensor([1.0, 5.0, 9.0])
    assert ((drawn >= low) & (drawn <= high)).all()
    # The mean of 4,000 uniforms within 5 standard deviations, false-failure rate 6e-7 a dimension; a bound that is off
    # by a tenth of the range moves the mean by 11 of them.
    sd = (high - low) / math.sqrt(12 * 4000)
    assert ((drawn.mean(0) - (low + high) / 2).abs() <= 5 * sd).all()


def test_given_rows_keep_their_order_or_are_drawn_once_each():
    x = torch.arange(6.0)[:, None]
    y = torch.zeros(6, 1, dtype=torch.int64)
    assert torch.equal(GivenStart(x).draw(y, generator=seeded()), x)
    draws = [GivenStart(x).draw(y[:4], generator=seeded(s)) for s in range(20)]
    assert all(len(d.unique()) == 4 for d in draws)
    assert len({tuple(d[:, 0].tolist()) for d in draws}) > 1


MEANS = torch.tensor([[0.0, 1.0, -1.0], [4.0, 0.0, 2.0]], dtype=torch.float64)
MIXING = torch.tensor(
    [[[1.0, 0, 0], [0.8, 0.5, 0], [0, -0.4, 0.3]], [[0.2, 0, 0], [0, 1.5, 0], [1.0, 1.0, 0.7]]], dtype=torch.float64
)
BINARY = LabelSpace({"side": ["left", "right"]})


def class_data(n: int = 200) -> tuple[Tensor, Tensor]:
    y = (torch.arange(n) % 4 == 0).long()[:, None]  # a quarter on the right
    noise = torch.randn(n, 3, generator=seeded(5), dtype=torch.float64)
    return MEANS[y[:, 0]] + (MIXING[y[:, 0]] @ noise[:, :, None])[:, :, 0], y


def test_mixed_starts_have_their_shares():
    one, other = GivenStart(torch.zeros(5000, 3)), GivenStart(torch.ones(5000, 3))
    x = MixedStart(one, other, 0.3).draw(torch.zeros(5000, 0, dtype=torch.int64), generator=seeded())
    assert torch.equal(x.amin(1), x.amax(1))  # whole rows
    # Four standard errors: a share of .3 that fails once in 16,000 times.
    assert float((x[:, 0] == 0).float().mean()) == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / 5000))
    with pytest.raises(InputError, match="between 0 and 1"):
        MixedStart(one, other, 1.5)


def worst_deviation(start: ClassGaussianStart, x: Tensor, y: Tensor, jitter: float, n: int = 20_000) -> float:
    """The largest distance of a drawn mean or covariance entry from the data's, in standard errors of the draw."""
    worst = 0.0
    for c in range(2):
        rows = x[y[:, 0] == c]
        mean, covariance = rows.mean(0), rows.T.cov() + jitter * torch.eye(3)
        drawn = start.draw(torch.full((n, 1), c), generator=seeded(c)).double()
        variances = covariance.diagonal()
        mean_errors = (drawn.mean(0) - mean) / (variances / n).sqrt()
        standard_errors = ((variances[:, None] * variances + covariance**2) / n).sqrt()
        errors = torch.cat([mean_errors, ((drawn.T.cov() - covariance) / standard_errors).flatten()])
        worst = max(worst, float(errors.abs().max()))
    return worst


# 24 comparisons at 6 standard errors: false-failure rate 24 * 2e-9 = 5e-8. A covariance entry's standard error is at
# most sqrt(2 / 20,000) = 1 % of its variances, so an error of 12 % of them, or a mean off by .09 sd, is found.
WORST = 6.0


@pytest.mark.parametrize("jitter", [0.0, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_class_gaussians_recover_means_and_covariances(jitter, dtype):
    x, y = class_data()
    start = ClassGaussianStart.fit(x.to(dtype), y, BINARY, jitter=jitter)
    assert start.factors.dtype == dtype
    assert worst_deviation(start, x, y, jitter) < WORST


def test_broken_class_gaussians_are_found():
    x, y = class_data()
    right = ClassGaussianStart.fit(x, y, BINARY, jitter=0.5)
    pooled = ClassGaussianStart.fit(x - x.mean(0), torch.arange(200) % 2, BINARY, jitter=0.5)
    mutants = {
        "no jitter": ClassGaussianStart.fit(x, y, BINARY, jitter=0.0),
        "transposed factors": replace(right, factors=right.factors.mT),
        "covariance as factor": replace(right, factors=right.factors @ right.factors.mT),
        "classes swapped": replace(right, means=right.means.flip(0)),
        "one covariance for all": replace(right, factors=pooled.factors),
    }
    assert worst_deviation(right, x, y, 0.5) < WORST
    for name, mutant in mutants.items():
        assert worst_deviation(mutant, x, y, 0.5) > WORST, name


def test_a_missing_class_is_drawn_by_its_frequency():
    # A quarter of the data is on the right, far from the left ones. Binomial bound at 5 standard deviations,
    # false-failure rate 6e-7; detects frequencies that are off by .07 (two bounds), such as uniform ones.
    x = torch.where(torch.arange(200)[:, None] % 4 == 0, 100.0, -100.0) + torch.randn(200, 2, generator=seeded())
    y = (torch.arange(200) % 4 == 0).long()
    y[-40:] = MISSING  # left out, and they hold a quarter too
    start = ClassGaussianStart.fit(x, y, BINARY)
    drawn = start.draw(torch.full((4000, 1), MISSING), generator=seeded())
    assert abs(int((drawn[:, 0] > 0).sum()) - 1000) < 5 * math.sqrt(4000 * 0.25 * 0.75)
    # A row that has its class gets the same x whether or not its neighbors have theirs.
    mixed = torch.tensor([[0], [1], [0], [1]])
    some = mixed.clone()
    some[1:3] = MISSING
    whole, part = (start.draw(rows, generator=seeded()) for rows in (mixed, some))
    assert torch.allclose(whole[[0, 3]], part[[0, 3]])


def test_class_gaussians_leave_out_missing_rows_and_clamp():
    x, y = class_data()
    spoiled, gaps = torch.cat([x, x + 1000]), torch.cat([y, torch.full_like(y, MISSING)])
    start = ClassGaussianStart.fit(spoiled, gaps, BINARY, bounds=(-0.5, 0.75))
    assert torch.equal(start.means, ClassGaussianStart.fit(x, y, BINARY).means)
    drawn = start.draw(y, generator=seeded())
    assert (float(drawn.amin()), float(drawn.amax())) == (-0.5, 0.75)


def test_class_gaussians_take_fewer_rows_than_dimensions():
    x = torch.rand(20, 3, 8, 8, generator=seeded())
    drawn = ClassGaussianStart.fit(x, torch.arange(20) % 2, BINARY).draw(torch.zeros(5, 1).long(), generator=seeded())
    assert drawn.shape == (5, 3, 8, 8)
    assert drawn.isfinite().all()


def compact_data() -> tuple[ClassGaussianStart, Tensor, Tensor]:
    """Gaussians of 4 x 4 images with one direction and independent frequencies, their covariance; scipy has cosines."""
    places = torch.eye(16, dtype=torch.float64).view(16, 1, 4, 4).numpy()
    basis = torch.from_numpy(idctn(places, axes=(1, 2, 3), norm="ortho")).flatten(1)  # a row for each frequency
    deviations = torch.linspace(2.0, 0.1, 16, dtype=torch.float64).index_fill(0, torch.tensor([1, 6]), 0.0)
    direction = 4 * (basis[1] + basis[6])
    covariance = direction[:, None] * direction + basis.T @ deviations.square().diag() @ basis
    factor = torch.linalg.cholesky(covariance + 1e-12 * torch.eye(16, dtype=torch.float64))
    means = torch.arange(16, dtype=torch.float64)[None]
    return ClassGaussianStart(0, means, factor[None], torch.ones(1), (1, 4, 4)), covariance, deviations


def covariance_error(start: ClassGaussianStart, covariance: Tensor, n: int = 20_000) -> float:
    """The largest distance of a drawn covariance entry from the true one, in standard errors of the draw."""
    drawn = start.draw(torch.zeros(n, 1).long(), generator=seeded()).flatten(1).T.cov()
    variances = covariance.diagonal()
    return float(((drawn - covariance) / ((variances[:, None] * variances + covariance**2) / n).sqrt()).abs().max())


def test_compact_class_gaussians_keep_directions_and_the_spectrum():
    whole, covariance, deviations = compact_data()
    compact = whole.compact(rank=1)
    assert compact.factors.shape == (1, 16, 1)
    assert compact.rest is not None
    assert torch.allclose(compact.rest[0], deviations, atol=1e-5)
    flat = replace(whole, event_shape=(16,)).compact(rank=1)  # entries of a table have no frequencies
    assert flat.rest is not None
    left = covariance - flat.factors[0] @ flat.factors[0].T
    assert torch.allclose(flat.rest[0].square(), left.diagonal(), atol=1e-9)
    assert whole.compact(rank=16) is whole
    # 256 entries at 6 standard errors: false-failure rate 5e-7.
    assert covariance_error(compact, covariance) < WORST
    mutants = {
        "no rest": replace(compact, rest=None),
        "no direction": replace(compact, factors=torch.zeros_like(compact.factors)),
        "frequencies as entries": replace(compact, event_shape=(16,)),
        "frequencies in another order": replace(compact, rest=compact.rest.flip(1)),
    }
    for name, mutant in mutants.items():
        assert covariance_error(mutant, covariance) > WORST, name


def frequency_p_value(counts: Tensor, probabilities: Tensor) -> float:
    expected = probabilities * counts.sum()
    return float(chi2.sf(float(((counts - expected) ** 2 / expected).sum()), len(counts) - 1))


# Chi-square at 6,000 draws, false-failure rate 1e-6; detects (power > .99) cells that are off by 12 % (root mean
# square), such as independent variables where the data's go together.
FALSE_FAILURE = 1e-6


def cells(y: Tensor) -> Tensor:
    return (y[:, 0] * 2 + y[:, 1]).bincount(minlength=6).double()


def test_uniform_labels_are_uniform():
    drawn = cells(UniformLabels(LABELS).draw(6000, generator=seeded()))
    assert frequency_p_value(drawn, torch.full((6,), 1 / 6)) > FALSE_FAILURE


def test_frequency_labels_draw_configurations_as_often_as_the_data_have_them():
    y = torch.tensor([[0, 0]] * 3 + [[0, 1]] + [[1, 0]] + [[1, 1]] * 3 + [[2, 0]] + [[2, 1]])
    expected = cells(y) / 10
    start = FrequencyLabels.fit(y, LABELS)
    assert frequency_p_value(cells(start.draw(6000, generator=seeded())), expected) > FALSE_FAILURE
    # The mutant knows the variables' own frequencies only: each column is drawn from rows of its own.
    columns = [start.draw(6000, generator=seeded(k))[:, k] for k in range(2)]
    assert frequency_p_value(cells(torch.stack(columns, 1)), expected) < FALSE_FAILURE


def test_missing_entries_are_completed_from_the_variables_own_frequencies():
    y = torch.tensor([[0, MISSING]] * 6 + [[1, MISSING]] * 2 + [[MISSING, MISSING]] * 8)  # animal 3 : 1 : 0
    drawn = cells(FrequencyLabels.fit(y, LABELS).draw(6000, generator=seeded()))
    expected = torch.tensor([3 / 8, 3 / 8, 1 / 8, 1 / 8])  # indoors is missing everywhere, so uniform
    assert drawn[4:].sum() == 0
    assert frequency_p_value(drawn[:4], expected) > FALSE_FAILURE


# ---------------------------------------------------------------- what they refuse


def refusals() -> list[tuple[str, Callable[[], object], str]]:
    x, y = data()
    flat, side = torch.ones(10, 2), torch.arange(10) % 2
    no_rows, g = y[:0], seeded()
    return [
        ("low over high", lambda: UniformStart(1.0, 0.0, EVENT), "finite bounds with low <= high"),
        ("infinite", lambda: UniformStart(0.0, math.inf, EVENT), "finite bounds with low <= high"),
        ("bounds' shape", lambda: UniformStart(torch.zeros(3), 1.0, EVENT), "have the event shape (2, 2), got (3,)"),
        ("integers", lambda: UniformStart(torch.zeros(2).long(), 1, (2,)), "floating-point, got torch.int64"),
        ("empty batch", lambda: UniformStart.of_batch(x[:0]), "x is an empty batch"),
        (
            "no chains",
            lambda: Start(UniformStart(0, 1, EVENT), UniformLabels(LABELS)).draw(0, generator=g),
            "at least 1 chain, got n=0",
        ),
        ("no rows", lambda: FrequencyLabels.fit(no_rows, LABELS), "label frequencies need at least 1 row"),
        (
            "class not named",
            lambda: ClassGaussianStart.fit(x, y, LABELS),
            "need one label variable as the class, and there are 2: name it with variable=, for example 'animal'",
        ),
        ("no class", lambda: ClassGaussianStart.fit(x, y[:, :0], LabelSpace.none()), "and there are 0"),
        ("unknown class", lambda: ClassGaussianStart.fit(x, y, LABELS, "animals"), "did you mean 'animal'?"),
        (
            "lone row",
            lambda: ClassGaussianStart.fit(flat, (torch.arange(10) == 4).long(), BINARY),
            "class 'right' of 'side' has 1 row(s) and a Gaussian needs at least 2: add rows of it",
        ),
        (
            "singular",
            lambda: ClassGaussianStart.fit(flat, side, BINARY, jitter=0.0),
            "the covariance of class 'left' of 'side' is singular with jitter=0.0: raise the jitter",
        ),
        ("jitter", lambda: ClassGaussianStart.fit(flat, side, BINARY, jitter=-1.0), "not negative, got -1.0"),
        ("bounds", lambda: ClassGaussianStart.fit(flat, side, BINARY, bounds=(1, 0)), "low < high, got (1, 0)"),
        ("dtype", lambda: ClassGaussianStart.fit(flat.long(), side, BINARY), "floating point, got torch.int64"),
        ("row counts", lambda: ClassGaussianStart.fit(flat[:9], side, BINARY), "labels have 10 rows where x has 9"),
        ("too few", lambda: GivenStart(x[:3]).draw(y, generator=g), "60 chains cannot start from 3 given rows"),
        ("given", lambda: UniformLabels(LABELS).draw(2, generator=g, given={"animal": "ell"}), "did you mean 'eel'?"),
    ]


@pytest.mark.parametrize(("call", "sentence"), [pytest.param(c, s, id=i) for i, c, s in refusals()])
def test_what_does_not_fit_is_refused_in_one_sentence(call, sentence):
    with pytest.raises(InputError) as caught:
        call()
    assert sentence in str(caught.value)


# ---------------------------------------------------------------- devices


@pytest.mark.gpu
@pytest.mark.parametrize("generator_device", ["cpu", "cuda"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_x_comes_on_the_device_of_the_starts_tensors(device, generator_device):
    x, y = (part.to(device) for part in data())
    x_starts = (
        UniformStart(0, 1, EVENT, device=device),
        UniformStart.of_batch(x),
        GivenStart(x),
        ClassGaussianStart.fit(x, y, LABELS, "animal"),
    )
    label_starts = (UniformLabels(LABELS), MissingLabels(LABELS), FrequencyLabels.fit(y, LABELS))
    given = torch.tensor([[MISSING, 1]] * 8)
    for x_start in x_starts:
        for label_start in label_starts:
            generator = torch.Generator(generator_device).manual_seed(0)
            new_x, new_y = Start(x_start, label_start).draw(8, generator=generator, given=given)
            assert new_x.device.type == new_y.device.type == device
            assert (new_y[:, 1] == 1).all()
