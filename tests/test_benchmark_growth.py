"""The benchmark `growth`: its fits know the laws they are shown, and a tiny run measures every axis."""

import json
import math
import random
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from jointenergy.metrics.registry import Metric, check_value
from jointenergy.models import LogitModel, PairModel
from jointenergy.report import results

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks"
CPU = torch.device("cpu")
LABELS = (4, 8, 16, 32, 64, 128, 256, 512, 784)
ONE_PROCESS = {"batch", "image-side", "chain-steps", "labels-exact", "labels-gradients", "data-rows"}
RANKS = {"ranks-same-batch", "ranks-same-share"}


# Fits.


@pytest.mark.parametrize("exponent", [-1.0, 0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_found(benchmark, exponent):
    law = benchmark("fits").power_law(LABELS, [3.0 * n**exponent for n in LABELS])
    assert law.exponent == pytest.approx(exponent, abs=1e-12)
    assert law.error == pytest.approx(0.0, abs=1e-9)
    assert law.at(100) == pytest.approx(3.0 * 100**exponent)


def test_the_error_of_an_exponent_is_its_spread(benchmark):
    """Over 400 noisy laws; the ratio of stated and real spread is 1 within 15 %, four of its standard errors."""
    fits, g = benchmark("fits"), random.Random(0)
    laws = [fits.power_law(LABELS, [n * math.exp(g.gauss(0, 0.05)) for n in LABELS]) for _ in range(400)]
    spread = statistics.stdev(law.exponent for law in laws)
    stated = math.sqrt(statistics.fmean(law.error**2 for law in laws))
    assert statistics.fmean(law.exponent for law in laws) == pytest.approx(1.0, abs=4 * spread / 20)
    assert stated / spread == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize(("fixed", "exponent"), [(20.0, 1.0), (20.0, 2.0), (5.0, 0.5), (0.0, 1.0)])
def test_a_fixed_cost_is_told_from_what_grows(benchmark, fixed, exponent):
    fits, times = benchmark("fits"), [fixed + 0.07 * n**exponent for n in LABELS]
    parts = fits.fixed_and_growing(LABELS, times)
    assert parts.fixed == pytest.approx(fixed, abs=1e-6)
    assert parts.exponent == pytest.approx(exponent, abs=1e-6)
    assert parts.scale == pytest.approx(0.07, rel=1e-5)
    assert parts.worst < 1e-9
    # The power law alone sees less: the reason for this fit.
    upper = fits.upper_half(LABELS)
    alone = fits.power_law(LABELS[upper], times[upper]).exponent
    assert alone < exponent - 1e-4 if fixed else alone == pytest.approx(exponent)


def test_a_fixed_cost_under_noise_has_an_honest_error(benchmark):
    """Over 200 laws with 3 % noise; stated and real spread agree within 30 %, so an error is no decoration."""
    fits, g = benchmark("fits"), random.Random(1)
    found = [
        fits.fixed_and_growing(LABELS, [(20 + 0.07 * n) * (1 + g.gauss(0, 0.03)) for n in LABELS]) for _ in range(200)
    ]
    for value, error, right in (("fixed", "fixed_error", 20.0), ("exponent", "error", 1.0)):
        values, errors = ([getattr(parts, name) for parts in found] for name in (value, error))
        spread = statistics.stdev(values)
        assert statistics.fmean(values) == pytest.approx(right, abs=max(4 * spread / math.sqrt(200), 0.02 * right))
        assert math.sqrt(statistics.fmean(e**2 for e in errors)) / spread == pytest.approx(1.0, abs=0.3)


def test_two_points_take_their_error_from_the_rounds(benchmark):
    fits = benchmark("fits")
    # Whatever slows a round down slows both: the ratio of each round is what counts.
    rounds = [[10.0, 20.0, 40.0, 10.0], [5.0, 10.0, 20.0, 5.0]]
    law = fits.power_of_two_points((1, 2), rounds)
    assert law.exponent == pytest.approx(-1.0)
    assert law.error == pytest.approx(0.0, abs=1e-12)
    noisy = fits.power_of_two_points((1, 2), [[10.0, 10.0, 10.0], [10.0, 20.0, 40.0]])
    assert noisy.exponent == pytest.approx(1.0)
    assert noisy.error == pytest.approx(math.sqrt(math.pi / 2) / math.sqrt(3))
    assert noisy.at(1) == pytest.approx(10.0)


def test_a_slow_round_changes_nothing(benchmark):
    fair_medians = benchmark("fits").fair_medians
    assert fair_medians([[1.0, 1.0, 1.0], [4.0, 4.0, 4.0]]) == pytest.approx([1.0, 4.0])
    # Each contestant is slowed down in the same rounds, by as much; most rounds are slow.
    assert fair_medians([[1.0, 3.0, 3.0], [4.0, 12.0, 12.0]]) == pytest.approx([3.0, 12.0])
    # And one that met trouble alone in one round is not believed there.
    assert fair_medians([[1.0, 1.0, 1.0, 1.0, 1.0], [4.0, 4.0, 40.0, 4.0, 4.0]]) == pytest.approx([1.0, 4.0])


def test_turns_are_random_and_complete(benchmark):
    calls: list[str] = []
    ticks = iter(range(1000))
    names = [str(n) for n in LABELS]
    contestants = {name: lambda name=name: calls.append(name) for name in names}
    seconds = benchmark("growth").in_random_turns(contestants, 4, clock=lambda: float(next(ticks)))
    assert seconds == dict.fromkeys(names, [1.0] * 4)
    rounds = [calls[i : i + len(names)] for i in range(0, len(calls), len(names))]
    assert rounds[0] == names
    assert all(sorted(r) == sorted(names) for r in rounds)
    assert len({tuple(r) for r in rounds}) == 5


def test_the_upper_half(benchmark):
    upper_half = benchmark("fits").upper_half
    assert upper_half(LABELS).indices(len(LABELS)) == (4, 9, 1)  # from 64 on
    for plan in (benchmark("axes").CPU, benchmark("axes").CUDA, benchmark("axes").QUICK):
        for sizes in plan.sizes.values():
            assert list(sizes) == sorted(set(sizes))
            assert len(sizes[upper_half(sizes)]) >= 3, "an error needs a point more than the law"


# Axes.


def test_an_axis_varies_what_it_says_and_nothing_else(benchmark):
    axes = benchmark("axes")
    assert set(axes.AXES) == set(axes.CPU.sizes) == ONE_PROCESS
    base = axes.images(axes.QUICK, CPU)
    for name, size in (("batch", 8), ("image-side", 12), ("chain-steps", 3), ("data-rows", 100)):
        trainer = axes.AXES[name].trainer(axes.QUICK, size, CPU)
        seen = {
            "batch": len(trainer.feeds[0].rows),
            "image-side": trainer.data.event_shape[-1],
            "chain-steps": trainer.chains.steps,
            "data-rows": len(trainer.data.x),
        }
        others = {
            "batch": len(base.feeds[0].rows),
            "image-side": base.data.event_shape[-1],
            "chain-steps": base.chains.steps,
            "data-rows": len(base.data.x),
        }
        assert seen == {**others, name: size}
    for name, family in (("labels-exact", LogitModel), ("labels-gradients", PairModel)):
        trainer = axes.AXES[name].trainer(axes.QUICK, 5, CPU)
        assert trainer.data.labels.cardinalities == (2,) * 5
        assert isinstance(trainer.model, family)
        assert trainer.chains.kernel.moves_y


def test_every_axis_of_one_process_is_measured(benchmark):
    axes, growth, page = benchmark("axes"), benchmark("growth"), benchmark("growth_page")
    sizes = dict.fromkeys(ONE_PROCESS, (4, 8, 12, 16, 20))
    sizes |= {"labels-exact": (4, 8, 16, 32, 784), "labels-gradients": (4, 8, 16, 32, 784)}
    plan = replace(axes.QUICK, sizes=sizes, block_seconds=0.0, repeats=2)
    figures: dict[str, float] = {}
    remarks: list[str] = []
    for name in ONE_PROCESS:
        figures |= growth.along(name, plan, CPU, remarks)
    assert remarks == []
    for name, value in figures.items():
        check_value(name, value)
    for name in ONE_PROCESS:
        assert page.points(figures, name)[0] == list(sizes[name])
        assert min(page.points(figures, name)[1]) > 0
        assert {f"exponent.{name}", f"exponent_error.{name}"} <= set(figures)
        assert (f"exponent_growing.{name}" in figures) == (name != "data-rows")
    assert len(page.told(figures).splitlines()) == 2 + len(ONE_PROCESS)


def test_a_process_alone_takes_its_turns(benchmark, tmp_path, monkeypatch):
    """What torchrun starts, in a world of one; `test_the_command` starts two."""
    processes, axes = benchmark("processes"), benchmark("axes")
    monkeypatch.setattr(axes, "QUICK", replace(axes.QUICK, block_seconds=0.0, repeats=2))
    monkeypatch.setattr(sys, "argv", ["processes.py", str(tmp_path / "times.json"), "--quick"])
    n_threads = torch.get_num_threads()
    processes.main()
    torch.set_num_threads(n_threads)
    found = json.loads((tmp_path / "times.json").read_text())
    assert {name: len(times) for name, times in found.items()} == {
        **dict.fromkeys((processes.ALONE, processes.SAME_BATCH, processes.SAME_SHARE), 4),
        processes.SHARES: 5,
    }


@pytest.mark.slow
def test_the_command(benchmark):
    """`--quick`, with two processes under torchrun: a row for every axis."""
    words = [sys.executable, str(FOLDER / "growth.py"), "--quick"]
    outcome = subprocess.run(words, capture_output=True, text=True, timeout=280)
    assert outcome.returncode == 0, outcome.stderr
    told = benchmark("growth_page").WORDS
    assert set(told) == ONE_PROCESS | RANKS
    for says in told.values():
        assert sum(line.startswith(says) for line in outcome.stdout.splitlines()) == 1, outcome.stdout
    assert "of a core's time" in outcome.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["--quick", "--write"], "nothing that can be published"), (["--device", "abacus"], "there is no device called")],
)
def test_what_cannot_be_measured_is_one_sentence(benchmark, monkeypatch, words, sentence):
    growth = benchmark("growth")
    monkeypatch.setattr(sys, "argv", ["growth.py", *words])
    with pytest.raises(SystemExit, match=sentence):
        growth.main()


# The page.


def published(sizes: dict[str, tuple[int, ...]]) -> results.Result:
    figures: dict[str, float] = {}
    for name, found in sizes.items():
        figures |= {f"iteration_ms.{name}.{n}": 20.0 + 0.5 * n for n in found}
        figures |= {f"exponent.{name}": 0.9, f"exponent_error.{name}": 0.1}
        if name not in RANKS | {"data-rows"}:
            figures |= {f"fixed_ms.{name}": 20.0, f"fixed_error_ms.{name}": 0.1}
            figures |= {f"exponent_growing.{name}": 1.0, f"exponent_growing_error.{name}": 0.01}
    metrics = {name: Metric([value]) for name, value in figures.items()}
    origin = ("python benchmarks/growth.py --write", "0" * 40, "2 cores; torch 2", "2026-01-31", 1.0)
    return results.Result("growth", *origin, (0,), metrics, notes="What was held fixed.")


def test_the_page_is_filled_and_filled_again(benchmark, tmp_path):
    axes, page = benchmark("axes"), benchmark("growth_page")
    (tmp_path / "docs").mkdir()
    (tmp_path / "results").mkdir()
    path = tmp_path / "docs" / "growth.md"
    path.write_text((ROOT / "docs" / "growth.md").read_text())
    page.draw(tmp_path)
    assert "Not published yet." in path.read_text()
    result = published({**axes.CPU.sizes, **dict.fromkeys(RANKS, (1, 2))})
    (tmp_path / "results" / "growth.json").write_text(results.text_of(result))
    page.draw(tmp_path)
    once = path.read_text()
    assert "Not published yet." not in once
    assert "| rows of a batch | 16 to 512 | 28.0 to 276.0 | 0.90 ± 0.10 | 128 to 512 | 1 | 20.0 ± 0.1 |" in once
    assert "What was held fixed." in once
    assert once.startswith("# How the cost")
    assert "## What the arithmetic says" in once
    assert (tmp_path / "docs" / "figures" / "growth.png").stat().st_size > 10_000
    page.draw(tmp_path)
    assert path.read_text() == once
