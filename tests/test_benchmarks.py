"""Benchmarks: they run with whichever peers are there, know a wrong sampler, and say what was missed."""

import importlib
import importlib.util
import math
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch

from jointenergy.errors import InputError
from jointenergy.kernels import MALA, Langevin, Target, last
from jointenergy.metrics.registry import check_value, range_of
from jointenergy.models import EnergyModel
from jointenergy.report.results import Result
from jointenergy.report.sections import Extractor


def here(package: str, module: str) -> str | None:
    return "1" if importlib.util.find_spec(module) else None


# What they share.


def test_turns_and_tables(benchmark):
    rounds = benchmark("rounds")
    calls: list[str] = []
    ticks = iter(range(1000))
    contestants = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    seconds = rounds.in_turns(contestants, 3, clock=lambda: float(next(ticks)))
    # One call of each is not counted; then the order turns around.
    assert calls == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert seconds == {"a": [1.0] * 3, "b": [1.0] * 3}
    assert rounds.median_ratio([2.0, 9.0, 4.0], [1.0, 3.0, 1.0]) == 3.0
    text = rounds.table(["", "speed"], [["one", "1"], ["another", "12"]])
    assert text.splitlines() == ["         speed", "--------------", "one          1", "another     12"]


def test_missing_peers_are_named(benchmark):
    rounds = benchmark("rounds")
    found = rounds.versions(["torch", "no-such-peer"])
    assert found["torch"]
    assert found["no-such-peer"] is None
    assert "Not installed, so not measured: no-such-peer" in rounds.told(found)
    assert "Not installed" not in rounds.told({"torch": "2"})


# Chains.


def brute_force(lattice) -> float:
    states = torch.cartesian_prod(*(torch.arange(lattice.colors) for _ in range(lattice.height * lattice.width)))
    like = lattice.like_neighbors(states)
    weights = (lattice.coupling * lattice.n_bonds * like).softmax(0)
    return float((weights * like).sum())


@pytest.mark.parametrize("colors", [2, 3])
def test_transfer_matrices_are_exact(benchmark, colors):
    lattice = benchmark("targets").Lattice("small", 3, 2, colors, 0.7)
    assert lattice.exact_like_neighbors() == pytest.approx(brute_force(lattice), abs=1e-12)


@pytest.mark.parametrize("colors", [2, 3])
def test_heads_are_the_lattice(benchmark, colors):
    targets = benchmark("targets")
    lattice = targets.Lattice("small", 3, 2, colors, 0.7)
    y = torch.randint(colors, (20, 6), generator=torch.Generator().manual_seed(0))
    code = torch.nn.functional.one_hot(y, colors).flatten(1).double()
    value = targets.LatticeHead(lattice)(None, code)
    expected = lattice.coupling * lattice.n_bonds * lattice.like_neighbors(y)
    # Spins count unlike neighbors too: a constant more or less.
    assert torch.allclose(value - value[0], expected - expected[0])


def smaller(case):
    """The case, on a lattice that forgets its start in a hundred flips."""
    return replace(case, target=replace(case.target, height=4, width=3)) if case.kernel == "gwg" else case


def test_every_case_runs_and_is_right(benchmark):
    chains, targets = benchmark("chains"), benchmark("targets")
    rows = []
    for case in map(smaller, targets.cases()):
        law_steps = 40 if case.kernel == "hmc" else 200  # its steps are trajectories
        rows += chains.compare(case, {}, chains=[20], steps=2, repeats=2, law_steps=law_steps)
    names = [row.case for row in rows]
    assert len(set(names)) == 10
    assert all(row.right for row in rows), [(row.case, row.error) for row in rows]
    for row in rows:
        assert row.who == "jointenergy"
        assert row.ahead == 1.0
        assert 0 < row.effective < 1
        assert len(row.per_second) == 2
        assert math.isfinite(sum(row.per_second))
    text = chains.told_rows(rows)
    assert all(name in text for name in names)
    assert "WRONG" not in text


@pytest.mark.parametrize("kernel", ["langevin", "mala", "gwg"])
def test_a_wrong_sampler_is_told(benchmark, kernel):
    # Noise a tenth too large; and labels of a lattice whose coupling is a quarter too strong.
    chains, targets = benchmark("chains"), benchmark("targets")
    contestants = benchmark("contestants")
    case = smaller(next(c for c in targets.cases() if c.kernel == kernel))
    if kernel == "gwg":
        strong = replace(case, target=replace(case.target, coupling=1.25 * case.target.coupling))
        (wrong,) = contestants.jointenergy(strong, case.start(200, 0), 0)
        error, _ = chains.law_and_mixing(case, wrong, 100, 200)
    else:
        target = Target(EnergyModel(case.target))
        hot = 1.1**2
        walk = (
            Langevin.at_temperature(case.step_size, hot)
            if kernel == "langevin"
            else MALA(case.step_size, temperature=hot)
        )
        state = walk.init(target, case.start(200, 0), generator=torch.Generator().manual_seed(0))
        wrong = contestants.Contestant("wrong", state, lambda s, n: last(walk, target, s, n), lambda s: s.x)
        error, _ = chains.law_and_mixing(case, wrong, 200, 100)
    row = chains.Row(case.name, 20, "wrong", (1.0, 2.0), error, 0.5, 1.0)
    assert not row.right
    own = chains.Row(case.name, 20, "jointenergy", (1.0, 2.0), 0.0, 0.5, 1.0)
    assert "WRONG" in chains.told_rows([own, row])


@pytest.mark.parametrize(("peer", "module"), [("ebmkit", "ebm"), ("torchebm", "torchebm")])
def test_a_peer_that_is_there_takes_part(benchmark, peer, module):
    # Where it is not installed the comparison goes on without it: that is asserted instead.
    chains, targets = benchmark("chains"), benchmark("targets")
    found = {peer: here(peer, module)}
    case = targets.cases()[1]
    rows = chains.compare(case, found, chains=[4], steps=2, repeats=2, law_steps=100)
    assert [row.who for row in rows] == ["jointenergy", *([peer] if found[peer] else [])]
    assert all(row.right for row in rows)


def test_published_names_are_metrics(benchmark, monkeypatch):
    chains = benchmark("chains")
    written = []
    monkeypatch.setattr(chains.results, "measured", lambda name, figures, **others: written.append((name, figures)))
    monkeypatch.setattr(chains.results, "write", lambda result: "nowhere")
    right = chains.Row("gaussian-mala", 1000, "blackjax eager", (1.0, 2.0), 0.0, 0.5, 1.0)
    wrong = chains.Row("gaussian-mala", 10, "ebmkit", (1.0, 2.0), 0.9, 0.5, 1.0)
    chains.publish("chains", [right, wrong], {100: 250.0, 10_000: 251.0}, 1.0, "")
    for _, figures in written:
        for name, values in figures.items():
            range_of(name)
            for value in values:
                if value is not None:
                    check_value(name, value)
    figures = written[0][1]
    assert figures["samples_per_second.gaussian-mala.blackjax-eager"] == (1.0, 2.0)
    assert figures["effective_samples_per_second.gaussian-mala.blackjax-eager"] == (0.5, 1.0)
    # What samples another law has no speed worth publishing.
    assert figures["samples_per_second.gaussian-mala.chains-10.ebmkit"] == [None, None]


def test_memory_is_told_as_one_number(benchmark, capsys):
    # No proof that memory is flat, which the published figures show: that would take a process of minutes.
    benchmark("chains").run_for_memory(1)
    assert 50 < float(capsys.readouterr().out) < 50_000


# Networks at equal minutes.


def test_a_network_is_seen_at_the_last_check_within_its_minutes(benchmark, tmp_path):
    networks = benchmark("networks")
    (tmp_path / "metrics.csv").write_text("iteration,seconds\n100,60\n200,175\n300,300\n400,470\n500,700\n")
    checks = "iteration,accuracy,healthy\n100,0.5,False\n250,0.7,True\n400,0.8,True\n500,0.9,True\n"
    (tmp_path / "checks.csv").write_text(checks)
    found = networks.seen(tmp_path, [3.0, 8.0])
    assert found == {
        "3": {"accuracy": 0.7, "healthy": 1.0, "minutes": 175 / 60},
        "8": {"accuracy": 0.8, "healthy": 1.0, "minutes": 470 / 60},
    }
    (tmp_path / "checks.csv").write_text("iteration,accuracy\n100,0.5\n")  # a baseline has no health
    assert networks.seen(tmp_path, [3.0]) == {"3": {"accuracy": 0.5, "healthy": None, "minutes": 1.0}}


def test_figures_of_networks_keep_their_machine_and_what_was_said(benchmark, monkeypatch, capsys):
    networks = benchmark("networks")
    written: list[Result] = []
    monkeypatch.setattr(networks.provenance, "commit", lambda: "f" * 40)
    monkeypatch.setattr(networks.results, "write", written.append)
    at = {"3": {"accuracy": 0.7, "healthy": None, "minutes": 2.9}}
    kept = {"minutes": 8.0, "epochs": 9.0, "iteration_ms": 20.0, "commit": "a" * 40, "hardware": "a GPU", "at": at}
    found = {"nf-jem": kept, "nf-baseline": kept | {"ece": 0.02, "interventions": 1, "says": "beside others."}}
    networks.publish(found, 0)
    (result,) = written
    assert result.hardware == "a GPU"
    assert "nf-baseline: beside others." in result.notes
    assert "aaaaaaaaaaaa" in result.notes
    assert {"accuracy_held.nf-jem.after-3-minutes", "ece_held.nf-baseline"} <= set(result.metrics)
    assert not {"ece_held.nf-jem", "healthy_held.nf-jem.after-3-minutes"} & set(result.metrics)
    networks.Console().print(networks.shown(found))
    assert "nf-jem" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["iteration", "networks"])
def test_what_needs_a_gpu_says_so_and_leaves_nothing(benchmark, name, monkeypatch, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"benchmarks/{name}.py"])
    with pytest.raises(SystemExit, match="GPU, and torch finds none"):
        benchmark(name).main()
    assert list(tmp_path.iterdir()) == []


def test_a_benchmark_refuses_in_a_sentence(benchmark):
    def main() -> None:
        raise InputError("it cannot be done: do something else")

    with pytest.raises(SystemExit, match="it cannot be done: do something else"):
        benchmark("rounds").in_a_sentence(main)


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("chains", ["--only", "nosuch"], "no case has 'nosuch' in its name: gaussian-langevin"),
        ("chains", ["--only", "mala", "--write"], "has all cases"),
        ("chains", ["--chains", "10", "--write"], "has all cases and chains"),
        ("training", ["--iterations", "1"], "blocks of 2"),
        ("training", ["--iterations", "120"], "blocks of 50"),
        ("training", ["--iterations", "20", "--write"], "2,500 iterations"),
    ],
)
def test_what_cannot_be_measured_or_published_is_refused(name, words, says, benchmark, monkeypatch):
    monkeypatch.setattr(sys, "argv", [f"benchmarks/{name}.py", *words])
    with pytest.raises(InputError, match=says):
        benchmark(name).main()


@pytest.mark.parametrize(
    "words", [["chains", "--threads", "0"], ["chains", "--repeats", "x"], ["training", "--seeds", "0"]]
)
def test_counts_begin_at_one(words, benchmark, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        benchmark(words[0]).main()
    assert "is no count from 1 on" in capsys.readouterr().err


# Lengths of chains.


def test_samples_are_compared_by_the_length_of_their_chains(benchmark, tmp_path, monkeypatch, capsys):
    from tests.generated_data import write_idx_set
    from tests.small_run import call

    lengths = benchmark("chain_lengths")
    write_idx_set(tmp_path / "mnist")
    place = str(tmp_path / "run")
    assert call("train", "mnist-jem", "--smoke", "--data", str(tmp_path), "--out", place).status == 0
    means = torch.nn.Sequential(torch.nn.AvgPool2d(14), torch.nn.Flatten())
    monkeypatch.setattr(
        lengths.extractors, "load", lambda name, run: Extractor(str(name), means, torch.nn.Flatten(), reference="train")
    )
    words = [place, "--chains", "0", "3:1", "--n", "20", "--judge", "other", "--pictures", str(tmp_path / "pictures")]
    monkeypatch.setattr(sys, "argv", ["chain_lengths", *words])
    lengths.main()
    assert re.fullmatch(
        r"0 steps, the last 0 without noise, 20 samples: fid .*, mosaics .*, judge .*\n"
        r"3 steps, the last 1 without noise, 20 samples: fid .*, mosaics .*, judge .*\n",
        capsys.readouterr().out,
    )
    assert (tmp_path / "pictures" / "3-1.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(sys, "argv", ["chain_lengths", place, "--chains", "3:4"])
    with pytest.raises(SystemExit):
        lengths.main()


# Training.


def test_training_is_measured_with_what_is_there(benchmark, capsys, monkeypatch):
    training = benchmark("training")
    monkeypatch.delenv("JOINTENERGY_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", ["benchmarks/training.py", "--seeds", "1", "--iterations", "6"])
    before = torch.get_num_threads()
    try:
        training.main()
    finally:
        torch.set_num_threads(before)
    text = capsys.readouterr().out
    there = here("ebmkit", "ebm") is not None
    assert re.search(r"^jointenergy +\d", text, re.MULTILINE)
    assert re.search(r"^jointenergy unguarded +\d", text, re.MULTILINE)
    assert re.search(r"^matrix products alone +\d", text, re.MULTILINE)
    assert bool(re.search(r"^ebmkit +\d", text, re.MULTILINE)) == there
    assert ("The goal is" in text) == there
    assert there or "ebmkit is not installed" in text
    assert "AUROC uniform" in text


def test_the_settings_are_those_of_the_comparison(benchmark):
    recipe = benchmark("training").equal_recipe(2500)
    assert (recipe.iterations, recipe.batch_size, recipe.chain.steps) == (2500, 128, 20)
    assert (recipe.chain.kernel.step_size, recipe.chain.kernel.noise_scale) == (1.0, 0.01)
    assert (recipe.buffer.size, recipe.buffer.restart) == (5000, 0.05)
    assert tuple(recipe.model.network.hidden) == (256, 256)


def test_the_verdict_names_what_was_missed(benchmark):
    training = benchmark("training")
    ours = {"iteration_ms": [10.0, 10.0], "accuracy": [0.98], "ece": [0.02]}
    theirs = {"iteration_ms": [20.0, 22.0], "accuracy": [0.97], "ece": [0.03]}
    assert training.verdict({"jointenergy": [ours], "ebmkit": [theirs]}) == "The goal is met."
    slow = {**ours, "iteration_ms": [15.0, 15.0], "ece": [0.04]}
    said = training.verdict({"jointenergy": [slow], "ebmkit": [theirs]})
    assert "speed is 1.40 times ebmkit's, not 2" in said
    assert "ece 0.0400 against 0.0300" in said
    assert "accuracy" not in said
    assert "not installed" in training.verdict({"jointenergy": [ours]})


# Calls of Python functions.


def test_an_iteration_of_a_small_network_calls_few_functions(benchmark):
    # A layer of Python too much in every step: a small chain is made of little else.
    calls = benchmark("calls")
    two, three = calls.calls_of("digits-jem", 2), calls.calls_of("digits-jem", 3)
    assert two["kernels/langevin.py: Langevin.step"] == 2
    assert 5 < three.total() - two.total() <= 15
    assert 50 < two.total() <= 110


# Distributions of a number.


def test_scores_of_quantiles_are_those_of_a_normal_distribution(benchmark):
    """Of N(0, 1) by itself the score of a level q is twice the density at its quantile; others score worse."""
    regression = benchmark("regression")
    y = np.random.default_rng(0).normal(size=20_000)
    true = np.tile(scipy.stats.norm.ppf(regression.LEVELS), (len(y), 1))
    found = regression.measured(true, y)
    expected = 2 * scipy.stats.norm.pdf(true[0]).mean()
    assert found["crps"] == pytest.approx(expected, abs=0.01)
    assert found["interval_coverage"] == pytest.approx(0.9, abs=0.01)
    for wrong in (true + 0.5, true * 0.5, true * 2):
        assert regression.measured(wrong, y)["crps"] > found["crps"] + 0.02
    assert regression.measured(true * 0.5, y)["interval_coverage"] < 0.65
    for name in (f"{key}.widening.truth" for key in (*found, "cpu_seconds")):
        range_of(name)


def test_true_quantiles_of_drawn_tables_cover_their_rows(benchmark):
    """Fails if the noise of a drawn set is not that of its quantiles."""
    regression = benchmark("regression")
    for name in ("friedman1", "widening"):
        _, y, true = regression.SETS[name](0)
        assert regression.measured(true, y)["interval_coverage"] == pytest.approx(0.9, abs=0.03)
