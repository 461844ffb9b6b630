"""Random streams: the right laws, independent between chains, draws and elements, and independent of the batch."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from jointenergy import streams
from tests.checks import ALPHA, chi_square, correlation, histogram


def keys(n: int, seed: int = 0):
    return streams.chain_keys(n, generator=torch.Generator().manual_seed(seed))


def unsigned(bits):
    return bits.numpy().view(np.uint64)


def test_bits_are_splitmix64():
    # The published generator's first outputs from the seed 1234567.
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert unsigned(streams._bits(torch.tensor([1234567]), 5))[0].tolist() == published


def test_bits_are_the_same_on_every_device():
    # The way of other devices, taken here; a shift that keeps the sign differs in half of the words.
    words = torch.cat((keys(1000), torch.tensor([0, -1, 1 << 62, -(1 << 63)])))[:, None]
    assert torch.equal(streams._mix(words.clone()), streams._mix_signed(words.clone()))


@pytest.mark.parametrize("n", [6, 7])
def test_normal_is_the_inverse_of_disjoint_bits(n):
    # Two values from the same bits would be dependent, and each would still be normal to the eye.
    bits = unsigned(streams._bits(keys(50), (n + 1) // 2))
    halves = np.stack((bits & np.uint64(2**32 - 1), bits >> np.uint64(32)), 2).reshape(50, -1)[:, :n]
    cells = (halves.astype(np.uint32).view(np.int32).astype(np.float64) + 0.5) / 2**32 + 0.5
    exact = stats.norm.ppf(cells)
    np.testing.assert_allclose(streams.normal(keys(50), n, torch.float64).numpy(), exact, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(streams.normal(keys(50), n).numpy(), exact, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("word", [0, -1], ids=["all zeros", "all ones"])
def test_extreme_bits_stay_inside(monkeypatch, word, dtype):
    # One hash in 2^32: no sample meets it, a long training run does.
    monkeypatch.setattr(streams, "_bits", lambda k, n: torch.full((len(k), n), word))
    value = streams.uniform(keys(2), 3, dtype)
    assert value.dtype == dtype
    assert (value > 0).all()
    assert (value < 1).all()
    # The middle of the first or the last of 2^32 or 2^53 cells, up to rounding: a much smaller number would be an
    # outlier.
    if word == 0:
        assert (value == 0.5 / 2 ** (53 if dtype == torch.float64 else 32)).all()
    assert torch.allclose(value, torch.full_like(value, float(word == -1)), atol=1e-6)
    assert streams.normal(keys(2), 3, dtype).isfinite().all()
    assert streams.gumbel(keys(2), 3).isfinite().all()
    # The first or the last entry that has a chance, and none beside it.
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf], [3.0, -torch.inf, 0.0, -100.0]])
    assert streams.categorical(keys(2), logits).tolist() == ([1, 0] if word == 0 else [2, 2])


@pytest.mark.parametrize(("dtype", "end"), [(torch.float32, 5.4), (torch.float64, 6.3)])
def test_the_farthest_normal_draws(monkeypatch, dtype, end):
    # The halves -2^31 and 2^31 - 1, where rounding could reach infinity.
    monkeypatch.setattr(streams, "_bits", lambda k, n: torch.full((len(k), n), 0x7FFFFFFF80000000))
    low, high = streams.normal(keys(1), 2, dtype)[0].tolist()
    assert -end - 0.1 < low < -end < end < high < end + 0.1


@pytest.mark.parametrize("far", [3.0, 4.0, 5.0])
def test_normal_tails(far):
    # 2 * 10^7 draws: a tenth too many or too few beyond 4 standard deviations is seen, and a cut at 5 is.
    n, many = 0, 20
    for seed in range(many):
        n += int((streams.normal(keys(1000, seed), 1000).abs() > far).sum())
    assert stats.binomtest(n, many * 10**6, 2 * stats.norm.sf(far)).pvalue > ALPHA


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_laws(dtype):
    # 10^6 draws: a shift or a change of scale of 0.6 % is seen.
    normal = streams.normal(keys(1000), 1001, dtype).flatten()
    uniform = streams.uniform(keys(1000, 1), 1000, dtype).flatten()
    assert normal.dtype == uniform.dtype == dtype
    assert stats.kstest(normal.double().numpy(), "norm").pvalue > ALPHA
    assert stats.kstest(uniform.double().numpy(), "uniform").pvalue > ALPHA
    assert float(uniform.min()) > 0
    assert float(uniform.max()) < 1


def test_independent_between_chains_draws_and_elements():
    # Correlations of 0.005 are seen among 10^6 pairs.
    first, second = streams.split(keys(1000), 2)
    z, w = streams.normal(first, 1000, torch.float64), streams.normal(second, 1000, torch.float64)
    for a, b in ((z, w), (z[:-1], z[1:]), (z[:, :-1], z[:, 1:]), (z[:, :500], z[:, 500:])):
        assert correlation(a, b) > ALPHA
        assert correlation(a**2, b**2) > ALPHA
    # Neighboring keys are the hardest case: streams of keys 0, 1, 2, ... must not resemble each other.
    near = streams.normal(torch.arange(1000), 1000, torch.float64)
    assert correlation(near[:-1], near[1:]) > ALPHA
    # A key's children must not repeat its elements.
    assert not {int(k) for k in streams.split(keys(1), 50)} & set(streams._bits(keys(1), 50)[0].tolist())


def test_noise_and_the_next_keys_in_one_pass():
    k = keys(500)
    for n, dtype in ((1, torch.float32), (10, torch.float32), (11, torch.float64)):
        following, noise = streams.next_normal(k, n, dtype)
        assert torch.equal(following, streams.split(k, 2)[0])
        assert torch.equal(noise, streams.normal(k, n, dtype))
    path = []
    for _ in range(40):
        k, noise = streams.next_normal(k, 50, torch.float64)
        path.append(noise)
    draws = torch.stack(path)
    assert stats.kstest(draws.flatten().numpy(), "norm").pvalue > ALPHA
    assert correlation(draws[:-1], draws[1:]) > ALPHA
    assert correlation(draws[:-1] ** 2, draws[1:] ** 2) > ALPHA


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(10,), (11,), (2, 3, 3), (31, 31)])
def test_noise_ahead_is_the_noise_of_step_after_step(shape, dtype):
    k, x = keys(70), torch.zeros(70, *shape, dtype=dtype)
    steps = streams.noise_ahead(k, x, 5)
    assert [ahead.values is None for ahead in steps] == [2 * x.numel() > streams.AHEAD] * 5
    assert all(ahead.following is later.keys for ahead, later in itertools.pairwise(steps))  # found by identity
    for ahead in steps:
        following, noise = streams.next_normal_like(k, x)
        assert torch.equal(ahead.keys, k)
        assert torch.equal(ahead.following, following)
        assert torch.equal(ahead.like(x), noise)
        assert ahead.like(x).shape == x.shape
        k = following


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [9, 10])
def test_noise_in_pieces_is_the_noise_at_once(n, dtype, monkeypatch):
    at_once = streams.normal(keys(70), n, dtype)
    monkeypatch.setattr(streams, "PIECE", 64)
    assert torch.equal(streams.normal(keys(70), n, dtype), at_once)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [11, 1000])
def test_proposals_ahead_are_those_of_step_after_step(n, dtype):
    k, x = keys(70), torch.zeros(70, n, dtype=dtype)
    steps = streams.proposals_ahead(k, x, 5)
    assert [ahead.values is None for ahead in steps] == [2 * x.numel() > streams.AHEAD] * 5
    assert all(ahead.following is later.keys for ahead, later in itertools.pairwise(steps))
    for ahead in steps:
        following, noise, accept = streams.split(k, 3)
        assert torch.equal(ahead.keys, k)
        assert torch.equal(ahead.following, following)
        assert torch.equal(ahead.like(x), streams.normal_like(noise, x))
        assert torch.equal(ahead.accept, accept)
        assert torch.equal(ahead.log_uniforms, streams.uniform(accept, 1, dtype)[:, 0].log())
        k = following


def test_long_splitting_stays_random():
    k = keys(2000)
    values = []
    for _ in range(200):
        k, draw = streams.split(k, 2)
        values.append(streams.uniform(draw, 1, torch.float64)[:, 0])
    path = torch.stack(values, dim=1)
    assert stats.kstest(path.flatten().numpy(), "uniform").pvalue > ALPHA
    assert correlation(path[:, :-1], path[:, 1:]) > ALPHA
    assert len(k.unique()) == 2000


def test_categorical():
    logits = torch.tensor([0.0, 1.0, -torch.inf, 2.0, -1.0]).expand(100_000, 5)
    counts = histogram(streams.categorical(keys(100_000), logits), 5)
    assert chi_square(counts, logits[0].softmax(0)) > ALPHA


def test_a_chain_does_not_know_its_batch():
    all_keys = keys(8)
    whole = streams.normal(all_keys, 11)
    assert torch.equal(whole[3:5], streams.normal(all_keys[3:5], 11))
    # Vectorized functions may treat the ends of a tensor in another way than its middle.
    many = keys(777)
    for n in (1, 2, 11, 100):
        logits = torch.linspace(-3, 3, n).expand(777, n)
        batch = streams.normal(many, n), streams.uniform(many, n), streams.gumbel(many, n)
        drawn = streams.categorical(many, logits)
        for i in (0, 1, 400, 776):
            one = many[i : i + 1]
            alone = streams.normal(one, n), streams.uniform(one, n), streams.gumbel(one, n)
            assert all(torch.equal(b[i], a[0]) for b, a in zip(batch, alone, strict=True))
            assert drawn[i] == streams.categorical(one, logits[:1])[0]
    # Keys come one by one, so that eight chains at once are the same as four and four.
    generator = torch.Generator().manual_seed(0)
    parts = [streams.chain_keys(4, generator=generator) for _ in range(2)]
    assert torch.equal(torch.cat(parts), all_keys)
