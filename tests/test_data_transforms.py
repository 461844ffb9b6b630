"""Transforms and augmentations: inverses, Jacobians, what is random in each row, and plain loops as second opinions."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import pad

from jointenergy.data import (
    CenterCrop,
    ColorJitter,
    Dequantize,
    DequantizeBinary,
    GaussianBlur,
    GaussianNoise,
    Logit,
    RandomCrop,
    RandomFlip,
    Resize,
    Scale,
)
from jointenergy.data.augmentations import Cutout
from jointenergy.errors import InputError

ALL_BYTES = torch.arange(256, dtype=torch.uint8)[None]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def images(n=6, channels=3, height=8, width=7, dtype=torch.float32):
    return torch.rand(n, channels, height, width, generator=seeded(3), dtype=torch.float64).to(dtype)


RANDOM = [
    (Dequantize(), torch.randint(256, (6, 3, 8, 7), generator=seeded(), dtype=torch.uint8)),
    (DequantizeBinary(), torch.randint(2, (6, 1, 8, 7), generator=seeded(), dtype=torch.uint8)),
    (GaussianNoise(0.1), images()),
    (GaussianNoise(0.5, clamp=(0.0, 1.0)), images(dtype=torch.float64)),
    (RandomCrop(2), images()),
    (RandomCrop(2), torch.randint(256, (6, 3, 8, 7), generator=seeded(), dtype=torch.uint8)),
    (RandomCrop(2, "replicate"), images(dtype=torch.float64)),
    (RandomFlip(), images()),
    (Cutout(), images()),
    (GaussianBlur(), images(dtype=torch.float64)),
    (GaussianBlur(probability=1.0), images()),
    (ColorJitter(), images(dtype=torch.float64)),
    (ColorJitter(bounds=(-1.0, 1.0)), 2 * images() - 1),
    (ColorJitter(), images(channels=1)),
]


@pytest.mark.parametrize(("transform", "x"), RANDOM)
def test_the_contract_of_what_is_random(transform, x, untouched_random_state):
    before = x.clone()
    with untouched_random_state():
        new = transform(x, generator=seeded())
    assert torch.equal(x, before)
    assert new.shape == x.shape
    assert new.dtype == (torch.float32 if isinstance(transform, Dequantize | DequantizeBinary) else x.dtype)
    assert torch.equal(new, transform(x, generator=seeded()))
    assert not torch.equal(new, transform(x, generator=seeded(1)))
    same = transform(x[:1].expand(64, *x.shape[1:]), generator=seeded())
    assert len({tuple(row.flatten().tolist()) for row in same}) > 1  # every row draws for itself
    assert transform(x[:0], generator=seeded()).shape == (0, *x.shape[1:])
    assert hash(transform) == hash(type(transform)(**vars(transform)))


@pytest.mark.parametrize("apply", [Scale(), Logit(), Logit().inverse, Logit().log_jacobian, Scale().inverse])
def test_the_wrong_dtype_is_refused(apply):
    wrong = torch.zeros(2, 3, 8, 8, dtype=torch.float32 if isinstance(apply, Scale) else torch.uint8)
    with pytest.raises(InputError, match=r"takes (uint8|floating-point)"):
        apply(wrong)


@pytest.mark.parametrize("apply", [Dequantize(), GaussianBlur(), GaussianNoise(1.0), ColorJitter()])
def test_the_wrong_dtype_is_refused_by_what_is_random(apply):
    wrong = torch.zeros(2, 3, 8, 8, dtype=torch.float32 if isinstance(apply, Dequantize) else torch.uint8)
    with pytest.raises(InputError, match=r"takes (uint8|floating-point)"):
        apply(wrong, generator=seeded())


@pytest.mark.parametrize(
    "build",
    [
        lambda: Scale(1.0, 1.0),
        lambda: Logit(0.0),
        lambda: Logit(0.5),
        lambda: GaussianNoise(-1.0),
        lambda: GaussianNoise(math.nan),
        lambda: RandomCrop(-1),
        lambda: RandomCrop(1, "zeros"),
        lambda: RandomFlip(1.1),
        lambda: Cutout(0.0),
        lambda: Cutout(1.5),
        lambda: GaussianBlur(0),
        lambda: GaussianBlur(sigma=(0.0, 1.0)),
        lambda: GaussianBlur(probability=-0.1),
        lambda: ColorJitter(brightness=-1.0),
        lambda: ColorJitter(bounds=(1.0, 0.0)),
    ],
)
def test_impossible_numbers_are_refused(build):
    with pytest.raises(InputError, match=r"needs"):
        build()


# Between pixels and numbers.


@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (0.0, 1.0), (-3.5, 2.25)])
def test_scale_reaches_its_bounds_and_comes_back(bounds):
    scale = Scale(*bounds)
    x = scale(ALL_BYTES)
    assert (float(x.min()), float(x.max())) == bounds
    assert torch.equal(scale.inverse(x), ALL_BYTES)
    outside = torch.tensor([[bounds[0] - 1, bounds[1] + 1]])
    assert scale.inverse(outside).tolist() == [[0, 255]]


def test_dequantized_pixels_fill_their_level_and_come_back():
    """2.56 million draws: a level's u has mean .5 and variance 1/12; the bounds are 5 standard errors wide."""
    pixels = ALL_BYTES.expand(10_000, 256)
    x = Dequantize()(pixels, generator=seeded())
    assert torch.equal(Dequantize().inverse(x), pixels)
    assert x.min() >= 0
    assert x.max() < 1
    u = x.double() * 256 - pixels
    assert (u.mean(0) - 0.5).abs().max() < 5 * math.sqrt(1 / 12 / 10_000)
    assert (u.var(0) - 1 / 12).abs().max() < 5 * math.sqrt(1 / 180 / 10_000)


def test_dequantize_never_rounds_up_to_the_next_level(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, 1 - 2.0**-24))
    x = Dequantize()(ALL_BYTES, generator=seeded())
    assert torch.equal(Dequantize().inverse(x), ALL_BYTES)
    assert x.max() < 1


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float32])
def test_dequantized_binary_images_come_back(dtype):
    pixels = torch.arange(2).expand(10_000, 2).to(dtype)
    x = DequantizeBinary()(pixels, generator=seeded())
    assert torch.equal(DequantizeBinary().inverse(x), pixels.to(torch.uint8))
    u = x.double() * 8 - 7 * pixels.double()
    assert u.min() >= 0
    assert u.max() < 1
    assert (u.mean(0) - 0.5).abs().max() < 5 * math.sqrt(1 / 12 / 10_000)
    with pytest.raises(InputError, match="DequantizeBinary takes values from 0 to 1, got some from 0 to 255"):
        DequantizeBinary()(ALL_BYTES, generator=seeded())


@pytest.mark.parametrize("epsilon", [1e-6, 0.05])
def test_the_logit_and_its_inverse_undo_each_other(epsilon):
    logit = Logit(epsilon)
    x = torch.cat([torch.linspace(0, 1, 1001, dtype=torch.float64), torch.tensor([1e-9, 1 - 1e-9])])[None]
    z = logit(x)
    torch.testing.assert_close(z, torch.special.logit(x * (1 - 2 * epsilon) + epsilon), rtol=0, atol=1e-9)
    torch.testing.assert_close(logit.inverse(z), x, rtol=0, atol=1e-12)
    torch.testing.assert_close(logit(logit.inverse(z).clamp(0, 1)), z, rtol=0, atol=1e-6)
    single = logit(x.float())
    torch.testing.assert_close(single.double(), logit(x.float().double()), rtol=0, atol=1e-5)
    torch.testing.assert_close(logit.inverse(single), x.float(), rtol=0, atol=1e-6)


def test_the_logits_log_jacobian_is_that_of_autograd():
    logit = Logit()
    x = images(2, 1, 3, 2, torch.float64)
    x[0, 0, 0] = torch.tensor([0.0, 1.0])
    got = logit.log_jacobian(x)
    assert got.shape == (2,)
    for row, value in zip(x, got, strict=True):
        jacobian = torch.autograd.functional.jacobian(logit, row.flatten())
        torch.testing.assert_close(torch.linalg.slogdet(jacobian).logabsdet, value, rtol=1e-10, atol=1e-8)


def test_the_logit_moves_a_density_so_that_it_still_integrates_to_one():
    """The logistic density of z pulled back to x is uniform on (epsilon, 1 - epsilon), stretched to [0, 1]."""
    logit = Logit(0.01)
    x = torch.linspace(0, 1, 10_001, dtype=torch.float64)[:, None]
    z = logit(x)
    log_q = (-z - 2 * torch.nn.functional.softplus(-z))[:, 0]
    p = (log_q + logit.log_jacobian(x)).exp()
    assert float(torch.trapezoid(p, x[:, 0])) == pytest.approx(0.98, abs=1e-9)


def test_the_logit_refuses_what_lies_outside():
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(InputError, match="Logit takes values from 0 to 1"):
            Logit()(torch.tensor([[0.5, wrong]]))


def test_gaussian_noise_has_its_scale_and_bounds():
    x = torch.zeros(100, 1000)
    noise = GaussianNoise(0.03)(x, generator=seeded())
    assert float(noise.std()) == pytest.approx(0.03, rel=5 / math.sqrt(2 * x.numel()))
    assert float(noise.mean()) == pytest.approx(0, abs=5 * 0.03 / math.sqrt(x.numel()))
    clamped = GaussianNoise(0.03, clamp=(0.0, 1.0))(x, generator=seeded())
    assert torch.equal(clamped, noise.clamp(0, 1))
    assert torch.equal(GaussianNoise(0.0)(x, generator=seeded()), x)


def test_resize_and_center_crop():
    x = images(2, 3, 8, 6)
    half = Resize(4, 3)(x)
    assert half.shape == (2, 3, 4, 3)
    assert float(half.mean()) == pytest.approx(float(x.mean()), abs=0.02)
    assert torch.equal(Resize(8, 6)(x), x)
    flat = torch.full((1, 1, 4, 4), 200, dtype=torch.uint8)
    assert torch.equal(Resize(7, 2)(flat), torch.full((1, 1, 7, 2), 200, dtype=torch.uint8))
    assert torch.equal(CenterCrop(4, 2)(x), x[:, :, 2:6, 2:4])
    with pytest.raises(InputError, match=r"images of 8 x 6 are too small for CenterCrop\(4, 7\)"):
        CenterCrop(4, 7)(x)


# Augmentations.


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_random_crops_are_all_the_windows_of_the_padded_image(mode):
    """1,000 crops of 25 equally likely windows: a window is absent with probability 25 exp(-40)."""
    x = images(1, 2, 6, 5)
    padded = pad(x, (2, 2, 2, 2), mode=mode)[0]
    windows = [padded[:, i : i + 6, j : j + 5] for i in range(5) for j in range(5)]
    crops = RandomCrop(2, mode)(x.expand(1000, -1, -1, -1), generator=seeded())
    found = torch.stack([(crops == window).flatten(1).all(1) for window in windows], 1)
    assert found.any(1).all()
    assert found.any(0).all()
    assert torch.equal(RandomCrop(0, mode)(x, generator=seeded()), x)


def test_a_crop_without_a_reflection_is_refused():
    with pytest.raises(InputError, match="images of 8 x 7 have no reflection for a pad of 7"):
        RandomCrop(7)(images(), generator=seeded())
    with pytest.raises(InputError, match="have no reflection for a radius of 7"):
        GaussianBlur(7)(images(), generator=seeded())
    for transform in (RandomCrop(1), RandomFlip(), GaussianBlur(), ColorJitter()):
        with pytest.raises(InputError, match=r"takes images \[n, C, H, W\], got shape \(6, 64\)"):
            transform(torch.zeros(6, 64), generator=seeded())
    with pytest.raises(InputError, match="1 or 3 channels, got 2"):
        ColorJitter()(images(channels=2), generator=seeded())


def test_cutout_fills_a_square_with_its_center_anywhere():
    """A square that never meets the border, or holes of one size everywhere, fails."""
    x = torch.ones(2000, 3, 8, 8)
    holes = Cutout(0.5, fill=-1.0)(x, generator=seeded()) == -1
    assert torch.equal(holes, holes[:, :1].expand_as(holes))
    rows, columns = holes[:, 0].any(2), holes[:, 0].any(1)
    assert torch.equal(holes[:, 0], rows[:, :, None] & columns[:, None, :])
    # Of 8 centers, all as likely, sides of 4 are cut at the border to 2 and 3 from one side and to 3 from the other.
    shares = torch.bincount(rows.sum(1), minlength=5).double() / 2000
    assert shares.tolist() == pytest.approx([0, 0, 1 / 8, 2 / 8, 5 / 8], abs=5 * (0.25 / 2000) ** 0.5)


def test_random_flips_flip_left_and_right_as_often_as_stated():
    """2,000 rows at .3: 5 standard errors are .051."""
    x = images(1).expand(2000, -1, -1, -1)
    flipped = (RandomFlip(0.3)(x, generator=seeded()) == x.flip(3)).flatten(1).all(1)
    kept = (RandomFlip(0.3)(x, generator=seeded()) == x).flatten(1).all(1)
    assert (flipped ^ kept).all()
    assert float(flipped.double().mean()) == pytest.approx(0.3, abs=0.051)
    assert torch.equal(RandomFlip(1.0)(x, generator=seeded()), x.flip(3))
    assert torch.equal(RandomFlip(0.0)(x, generator=seeded()), x)


def test_blur_is_a_normalized_gaussian_of_the_stated_width():
    point = torch.zeros(4, 2, 21, 21, dtype=torch.float64)
    point[:, :, 10, 10] = 1
    blurred = GaussianBlur(8, (1.5, 1.5), 1.0)(point, generator=seeded())
    at = torch.arange(21, dtype=torch.float64) - 10
    weight = (-at.square() / (2 * 1.5**2)).exp() * (at.abs() <= 8)
    weight /= weight.sum()
    torch.testing.assert_close(blurred, torch.outer(weight, weight).expand_as(blurred), rtol=0, atol=1e-12)
    flat = torch.full((3, 3, 8, 8), 0.7, dtype=torch.float64)
    torch.testing.assert_close(GaussianBlur(probability=1.0)(flat, generator=seeded()), flat)
    x = images(50, dtype=torch.float64)
    changed = (GaussianBlur(probability=0.5)(x, generator=seeded()) != x).flatten(1).any(1)
    assert 10 < int(changed.sum()) < 40
    wide = GaussianBlur(2, (0.1, 2.0), 1.0)(point, generator=seeded())[:, 0, 10, 10]
    assert len(wide.unique()) == 4  # every row has a width of its own, shared by its channels


def test_color_jitter_agrees_with_pillow_enhancers():
    """Pillow's brightness, contrast and saturation with the drawn factors, to two of 255 levels."""
    from PIL import Image, ImageEnhance

    x = Scale(0.0, 1.0)(torch.randint(256, (5, 3, 16, 16), generator=seeded(), dtype=torch.uint8))
    for kind, enhancer in (
        ("brightness", ImageEnhance.Brightness),
        ("contrast", ImageEnhance.Contrast),
        ("saturation", ImageEnhance.Color),
    ):
        strengths = dict.fromkeys(("brightness", "contrast", "saturation"), 0.0) | {kind: 0.5}
        new = ColorJitter(**strengths, probability=1.0)(x, generator=seeded(1))
        generator = seeded(1)
        factors = torch.stack([0.5 + torch.rand(5, 1, 1, 1, generator=generator)[:, 0, 0, 0] for _ in range(3)])
        factor = factors[("brightness", "contrast", "saturation").index(kind)]
        for row, f, got in zip(Scale(0.0, 1.0).inverse(x), factor.tolist(), new, strict=True):
            image = enhancer(Image.fromarray(row.permute(1, 2, 0).numpy())).enhance(f)
            expected = torch.tensor(list(image.tobytes())).view(16, 16, 3).permute(2, 0, 1) / 255
            assert (got - expected).abs().max() < 2.01 / 255


def test_color_jitter_stays_within_the_bounds_and_may_do_nothing():
    x = 2 * images(64) - 1
    jitter = ColorJitter(0.9, 0.9, 0.9, 1.0, bounds=(-1.0, 1.0))
    new = jitter(x, generator=seeded())
    assert new.min() >= -1 - 1e-6
    assert new.max() <= 1 + 1e-6
    unit = ColorJitter(0.9, 0.9, 0.9, 1.0)((x + 1) / 2, generator=seeded())
    torch.testing.assert_close(new, 2 * unit - 1, rtol=0, atol=1e-5)
    none = ColorJitter(0.0, 0.0, 0.0, 1.0, bounds=(-1.0, 1.0))(x, generator=seeded())
    torch.testing.assert_close(none, x, rtol=0, atol=1e-6)
    assert torch.equal(ColorJitter(probability=0.0)(x, generator=seeded()), x)
    grey = images(8, 1)
    torch.testing.assert_close(ColorJitter(0.0, 0.0, 0.9, 1.0)(grey, generator=seeded()), grey)
