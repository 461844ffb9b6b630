"""`fit`: any network on any data from Python, resumed exactly, opened again; and what is refused, a sentence each."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import ClassVar

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import jointenergy as je
from jointenergy.errors import InputError
from jointenergy.kernels import MALA, BlockGibbs, ExactGibbs, Langevin
from jointenergy.labels import MISSING
from jointenergy.objectives import IGEBM, JEM, CrossEntropy, GibbsJEM, LogPX, LogPYGivenX, Mixed
from jointenergy.runs.user_data import domain_of, label_columns, rows_of_user
from jointenergy.starts import ClassGaussians, Uniform
from jointenergy.training.callbacks import Event
from jointenergy.training.chains import step_size_of
from jointenergy.training.loop import Loop
from jointenergy.training.step import Outcome
from tests.forks import forked
from tests.small_run import call

# Checked once, at the end: a run of six iterations is healthy at one check and not at the next.
QUICK = {"iterations": 6, "batch_size": 16, "steps": 2, "sampling_steps": 2, "verbose": False, "device": "cpu"}
QUICK |= {"cadence": je.CadenceSettings(log=1, check=6, checkpoint=1)}


def blobs(n: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three groups of points in a plane."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 3, n)
    centers = np.array([[-2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    return (centers[y] + 0.4 * random.normal(size=(n, 2))).astype(np.float32), y


def network(n_in: int = 2, n_out: int = 3, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(n_in, 16), nn.SiLU(), nn.Linear(16, n_out))


def weights(run: je.Run) -> Tensor:
    return torch.cat([p.flatten() for p in run.model.parameters()])


class TestData:
    def test_arrays_tensors_datasets_and_data_sets_of_the_library_train_alike(self):
        x, y = blobs()
        forms = [
            (x, y),
            (x.astype(np.float64), y.astype(np.int32)),
            (torch.from_numpy(x), torch.from_numpy(y)),
            TensorDataset(torch.from_numpy(x), torch.from_numpy(y)),
            je.data.Dataset(torch.from_numpy(x), torch.from_numpy(y)[:, None], je.LabelSpace({"class": 3}), "mine"),
        ]
        found = [weights(je.fit(network(), data, **QUICK)) for data in forms]
        assert all(torch.equal(found[0], other) for other in found[1:])

    def test_labels_are_read_off_names_and_missing_ones_are_kept(self):
        names = np.array(["dog", "cat", None, "dog", "cat"], dtype=object)
        codes, space = label_columns(names, None)
        assert space.values == (("cat", "dog"),)
        assert codes[:, 0].tolist() == [1, 0, MISSING, 1, 0]
        codes, space = label_columns(np.array([[0.0, 1.0], [np.nan, 2.0]]), {"a": 2, "b": ["x", "y", "z"]})
        assert codes.tolist() == [[0, 1], [MISSING, 2]]
        assert space.names == ("a", "b")
        assert label_columns(np.array([0, 3]), None)[1].cardinalities == (4,)
        frame = pd.DataFrame({"kind": ["dog", pd.NA, "cat"], "old": pd.array([1, None, 0], dtype="Int64")})
        codes, space = label_columns(frame, None)
        assert space == je.LabelSpace({"kind": ["cat", "dog"], "old": ["0", "1"]})
        assert codes.tolist() == [[1, 1], [MISSING, MISSING], [0, 0]]

    def test_missing_labels_and_entries_of_x_are_learned_from(self):
        x, y = blobs()
        x[::5, 0], y[::3] = np.nan, MISSING
        run = je.fit(network(), (x, y), **QUICK, kernel=BlockGibbs(ExactGibbs(), Langevin(0.1, 0.1)), objective=Mixed())
        data = run.data
        assert data.mask is not None
        assert bool((~data.mask).any())
        assert bool(data.x_held.isfinite().all())
        assert bool((data.y == MISSING).any())
        assert bool(weights(run).isfinite().all())

    def test_without_labels_a_density_is_trained(self):
        run = je.fit(network(n_out=1), blobs()[0], **QUICK)
        assert len(run.labels) == 0
        assert run.log_density(blobs()[0]).shape == (120,)

    def test_pixels_are_scaled_and_shaped_as_the_network_takes_them(self):
        images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
        y = np.arange(40) % 2
        convolution = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 2))
        run = je.fit(convolution, (images, y), **QUICK)
        assert run.event_shape == (3, 8, 8)
        assert run.bounds == (-1.0, 1.0)
        assert run.predict(images[:2]).shape == (2, 1)
        flat = je.fit(network(64, 2), (images[..., 0], y), **QUICK)
        assert flat.event_shape == (64,)
        one = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 2))
        assert je.fit(one, (images[..., 0], y), **QUICK).event_shape == (1, 8, 8)

    def test_held_out_rows_may_be_given(self):
        x, y = blobs()
        run = je.fit(network(), (x[:100], y[:100]), validation=(x[100:], y[100:]), **QUICK)
        assert torch.equal(run.data.x_held, torch.from_numpy(x[100:]))
        assert len(run.data.x) == 100

    @pytest.mark.parametrize(
        ("x", "wanted"),
        [
            (torch.zeros(2, 3, dtype=torch.uint8), (-1.0, 1.0)),
            (torch.tensor([[0.2, 0.9]]).repeat(1, 20), (0.0, 1.0)),
            (torch.tensor([[-0.2, 0.9]]).repeat(1, 20), (-1.0, 1.0)),
            (torch.tensor([[0.0, 1.0]]), (0.5 - 0.5 * 200**0.5, 0.5 + 0.5 * 200**0.5)),
            (torch.tensor([[-5.0, 5.0]]), (-5.0 * 200**0.5, 5.0 * 200**0.5)),
            (torch.cat((torch.full((1, 500), -5.0), torch.full((1, 500), 5.0)), 1), (-6.0, 6.0)),
            (torch.tensor([[[[-5.0, 5.0]]]]), (-5.0, 5.0)),
        ],
    )
    def test_the_range_of_x_is_read_off_the_data(self, x, wanted):
        domain, view = domain_of(x, None)
        assert tuple(view) == pytest.approx(wanted)
        floats = x.ndim == 2 and x.dtype != torch.uint8
        assert isinstance(domain, je.Reals) == (floats and (float(x.max()) > 1 or x.shape[1] <= 32))

    def test_a_default_fit_of_columns_of_other_scales_resumes_and_samples_with_its_adapted_steps(self, tmp_path):
        # Fails where the adapted step size is not in the checkpoint, or where samples take the first one.
        x, y = blobs()
        x = x * np.array([1.0, 100.0], dtype=np.float32) + np.array([0.0, 500.0], dtype=np.float32)
        settings = {k: v for k, v in QUICK.items() if k not in ("iterations", "kernel")} | {"iterations": 60}

        class Stop(je.Callback):
            def on_step(self, loop, outcome):
                loop.stop = loop.trainer.iteration == 35

        with pytest.raises(KeyboardInterrupt):
            je.fit(network(), (x, y), folder=tmp_path / "a", callbacks=[Stop()], **settings)
        net = network()
        run = je.fit(net, (x, y), folder=tmp_path / "a", **settings)
        whole = je.fit(network(), (x, y), folder=tmp_path / "b", **settings)
        assert torch.equal(weights(run), weights(whole))
        assert step_size_of(run.sampling.x_kernel) == step_size_of(whole.sampling.x_kernel) != 0.1
        opened = je.load(tmp_path / "a", network=net)
        assert step_size_of(opened.sampling.x_kernel) == step_size_of(run.sampling.x_kernel)
        assert opened.model.domain == run.model.domain
        drawn = run.sample(64, {"class": 1}, steps=5, seed=0, start="buffer").x
        assert torch.equal(drawn, opened.sample(64, {"class": 1}, steps=5, seed=0, start="buffer").x)
        assert float(drawn[:, 1].std()) > 10 * float(drawn[:, 0].std())

    def test_masked_entries_are_missing(self):
        x, y = blobs()
        hidden = np.arange(120) % 5 == 0
        masked = np.ma.array(x, mask=np.stack((hidden, np.zeros(120, dtype=bool)), axis=1))
        data = je.fit(network(), (masked, np.ma.array(y, mask=hidden)), **QUICK).data
        assert data.mask is not None
        assert int((~data.mask).sum()) == 24
        assert int((data.y == MISSING).sum() + (data.y_held == MISSING).sum()) == 24
        codes, space = label_columns(np.ma.array(["a", "b", "c"], mask=[False, False, True]), None)
        assert (codes[:, 0].tolist(), space.values) == ([0, 1, MISSING], (("a", "b"),))
        whole = je.fit(network(), (np.ma.array(x), np.ma.array(y)), **QUICK)
        assert torch.equal(weights(whole), weights(je.fit(network(), (x, y), **QUICK)))

    def test_a_run_takes_the_forms_that_fit_takes(self):
        x, y = blobs()
        x = x.round()
        names = [["left", "right", "up"][k] for k in y]
        run = je.fit(network(), (pd.DataFrame(x), names), **QUICK)
        expected = run.log_density(x, torch.from_numpy(y))
        for form in (pd.DataFrame(x), x.tolist(), np.ma.array(x), x.astype(int), pd.DataFrame(x.astype(int))):
            for labels in (names, np.array(names), pd.Series(names), y.tolist(), y.astype(float), np.ma.array(y)):
                assert torch.equal(run.log_density(form, labels), expected)
        assert torch.equal(run.predict(pd.DataFrame(x)), run.predict(x))
        with pytest.raises(InputError, match="has the value 'down' of 'class', which the run does not name"):
            run.log_density(x, ["down"] * 120)

    def test_binary_labels_are_no_one_hot_code(self):
        x, y = blobs()
        code = np.eye(3)[y]
        for net, more in ((network(n_out=6), {}), (network(), {"labels": {"a": 2, "b": 2, "c": 2}})):
            assert je.fit(net, (x, code), **more, **QUICK).labels.cardinalities == (2, 2, 2)
        code[0] = 1
        assert je.fit(network(), (x, code), **QUICK).labels.cardinalities == (2, 2, 2)


class TestArguments:
    @pytest.mark.parametrize(
        "objective", [JEM(), GibbsJEM(), Mixed(), IGEBM(), CrossEntropy(), LogPX() + 2 * LogPYGivenX()]
    )
    def test_objectives_of_the_papers_and_sums_of_terms(self, objective):
        run = je.fit(network(), blobs(), objective=objective, **QUICK)
        assert bool(weights(run).isfinite().all())
        assert run.is_cross_entropy == (objective == CrossEntropy())
        assert (run.model.normalizer == "conditional") == (objective == IGEBM())

    def test_kernels_buffers_and_starts_of_the_library_and_of_the_user(self):
        class Mine:
            def draw(self, y, *, generator):
                return torch.zeros(len(y), 2)

        for more in (
            {"kernel": Langevin(0.1, 0.1)},
            {"kernel": MALA(0.1)},
            {"kernel": BlockGibbs(ExactGibbs(), MALA(0.1))},
            {"buffer": je.ReservoirBuffer(50, restart=0.1)},
            {"buffer": None},
            {"start": ClassGaussians()},
            {"start": Uniform(rows=20)},
            {"start": Mine()},
        ):
            run = je.fit(network(), blobs(), **QUICK, **more)
            assert run.sample(3, given={"class": 1}).x.shape == (3, 2)
        assert torch.equal(run.sample(2, steps=0).x, torch.zeros(2, 2))

    def test_chains_keep_to_the_box_unless_told(self):
        kernel = Langevin(0.1, 0.1)
        box = {**QUICK, "bounds": (-4.0, 4.0), "kernel": kernel}
        assert je.fit(network(), blobs(), **box).sampling.langevin.bounds == (-4.0, 4.0)
        assert je.fit(network(), blobs(), **box, clamp=False).sampling.langevin.bounds is None
        assert je.fit(network(), blobs(), kernel=kernel, **QUICK).sampling.langevin.bounds is None  # a table

    def test_one_specification_serves_two_fits(self):
        buffer, start = je.ReplayBuffer(64, restart=0.1), ClassGaussians(uniform=0.1)
        one, two = (je.fit(network(), blobs(), buffer=buffer, start=start, **QUICK) for _ in range(2))
        assert torch.equal(weights(one), weights(two))
        assert len(buffer) == 0

    def test_an_optimizer_of_the_users_own_is_scaled_and_skips_what_is_not_finite(self):
        rates = []

        class Seen(je.Callback):
            def before_step(self, loop: Loop) -> None:
                if loop.trainer.iteration == 3:
                    loop.trainer.learning_rate_scale = 0.5
                if loop.trainer.iteration == 4:
                    self.before = [p.detach().clone() for p in loop.trainer.model.parameters()]
                    self.right = loop.trainer.data.x.clone()
                    loop.trainer.data.x.fill_(torch.nan)

            def on_step(self, loop: Loop, outcome: Outcome) -> None:
                rates.append(loop.trainer.update.optimizer.param_groups[0]["lr"])
                if loop.trainer.iteration == 5:
                    loop.trainer.data.x.copy_(self.right)
                    now = list(loop.trainer.model.parameters())
                    assert all(torch.equal(a, b) for a, b in zip(self.before, now, strict=True))

        je.fit(network(), blobs(), optimizer=lambda p: torch.optim.RMSprop(p, 0.01), callbacks=[Seen()], **QUICK)
        assert rates == pytest.approx([0.01] * 3 + [0.005] * 3)

    def test_frozen_layers_stay_as_they_are(self):
        net = network()
        net[0].requires_grad_(False)
        run = je.fit(net, blobs(), **QUICK)
        after = run.model.state_dict()
        assert torch.equal(after["network.0.weight"], net[0].weight)
        assert not torch.equal(after["network.2.weight"], net[2].weight)

    def test_the_callers_network_is_left_alone_and_its_weights_are_begun_with(self):
        net = network()
        before = [p.clone() for p in net.parameters()]
        run = je.fit(net, blobs(), optimizer=lambda p: torch.optim.SGD(p, 1e-9), ema=0.0, **QUICK)
        assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
        assert torch.allclose(run.model.state_dict()["network.0.weight"], net[0].weight, atol=1e-6)

    def test_callbacks_are_called_in_their_places(self):
        seen: list[str] = []

        class Mine(je.Callback):
            def on_step(self, loop: Loop, outcome: Outcome) -> None:
                seen.append("step")

            def on_check(self, loop: Loop) -> None:
                seen.append("check")

            def on_event(self, loop: Loop, event: Event) -> None:
                seen.append(event.kind)

            def on_end(self, loop: Loop) -> None:
                seen.append("end")

        je.fit(network(), blobs(), callbacks=[Mine()], **QUICK)
        assert seen.count("step") == 6
        assert "check" in seen
        assert seen[-1] == "end"

    def test_a_callback_ends_or_interrupts_a_fit(self, tmp_path):
        class End(je.Callback):
            def __init__(self, how: str) -> None:
                self.how = how

            def on_step(self, loop: Loop, outcome: Outcome) -> None:
                setattr(loop, self.how, loop.trainer.iteration == 3)

        short = je.fit(network(), blobs(), **{**QUICK, "iterations": 3}, optimizer=lambda p: torch.optim.SGD(p, 0.01))
        for where in (None, tmp_path / "ended"):
            more = {"callbacks": [End("enough")], "optimizer": lambda p: torch.optim.SGD(p, 0.01), "folder": where}
            assert torch.equal(weights(je.fit(network(), blobs(), **more, **QUICK)), weights(short))
        for where, sentence in (
            (None, "stopped after iteration 3; nothing is saved without folder=$"),
            (tmp_path / "stopped", "stopped after iteration 3; saved in .*/stopped; call fit again to continue$"),
        ):
            with pytest.raises(KeyboardInterrupt, match=sentence):
                je.fit(network(), blobs(), callbacks=[End("stop")], folder=where, **QUICK)

    def test_what_is_chosen_is_printed(self, capsys):
        je.fit(network(), blobs(), **{**QUICK, "verbose": True})
        said = capsys.readouterr().out
        for word in (
            "108 rows of shape (2,)",
            "12 held out",
            "domain R^2, Gaussian reference of standard deviation ",
            "; noise on data 0.0",
            "log_p_x",
            "MALA in the shape of a class, step size 0.1 adapted to accept 60%, 2 steps (2 of a sample)",
            "adamw, learning_rate 0.002, weight_decay 0.05, clip_norm 1, warmup 100, decay cosine",
            "averaged weights 0.99",
            "ReplayBuffer(",
            "6 iterations on cpu",
        ):
            assert word in said
        assert "chains stay in" not in said  # a table has no box

    def test_bounds_are_printed_as_those_of_chains(self, capsys):
        x, y = blobs()
        je.fit(network(), (x, y), **{**QUICK, "verbose": True, "bounds": (-20.0, 20.0)})
        said = capsys.readouterr().out
        assert "; chains stay in [-20, 20]" in said
        assert "domain [-20, 20]; noise on data 0." in said

    def test_a_run_says_where_x_lies(self):
        assert ": x of (2,) in R^2, " in repr(je.fit(network(), blobs(), **QUICK))
        assert ": x of (2,) in [-20, 20], " in repr(je.fit(network(), blobs(), bounds=(-20.0, 20.0), **QUICK))

    def test_an_objective_without_chains_says_so(self, capsys):
        je.fit(network(), blobs(), **{**QUICK, "verbose": True, "objective": je.objectives.ScoreMatching()})
        said = capsys.readouterr().out
        assert "no chains in training; samples by " in said
        assert "buffer" not in said


class Kill(je.Callback):
    """Sends this process a signal on its way."""

    def __init__(self, kind: signal.Signals) -> None:
        self.kind = kind

    def before_step(self, loop: Loop) -> None:
        if loop.trainer.iteration == 7:
            os.kill(os.getpid(), self.kind)


class TestFolder:
    more: ClassVar[dict[str, object]] = {**QUICK, "iterations": 12}

    @pytest.mark.parametrize(("kind", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
    def test_a_call_that_was_killed_goes_on_bit_for_bit(self, tmp_path, kind, status):
        whole = je.fit(network(), blobs(), folder=tmp_path / "whole", **self.more)

        def struck() -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            with pytest.raises(KeyboardInterrupt, match="call fit again to continue"):
                je.fit(network(), blobs(), folder=tmp_path / "killed", callbacks=[Kill(kind)], **self.more)
            sys.exit(130)

        assert forked(struck) == status
        seen = []

        class Seen(je.Callback):
            def on_step(self, loop: Loop, outcome: Outcome) -> None:
                seen.append(loop.trainer.iteration)

        again = je.fit(network(), blobs(), folder=tmp_path / "killed", callbacks=[Seen()], **self.more)
        assert len(seen) < 12
        assert torch.equal(weights(again), weights(whole))
        assert (tmp_path / "killed" / "metrics.csv").read_text().count("\n") == (
            tmp_path / "whole" / "metrics.csv"
        ).read_text().count("\n")

    def test_a_finished_folder_is_returned_as_it_is(self, tmp_path):
        one = je.fit(network(), blobs(), folder=tmp_path / "run", **QUICK)
        stamp = (tmp_path / "run" / "metrics.csv").stat().st_mtime_ns
        two = je.fit(network(), blobs(), folder=tmp_path / "run", **QUICK)
        assert torch.equal(weights(one), weights(two))
        assert (tmp_path / "run" / "metrics.csv").stat().st_mtime_ns == stamp

    def test_a_folder_gives_the_weights_that_memory_gives(self, tmp_path):
        one, two = (je.fit(network(), blobs(), folder=f, **QUICK) for f in (tmp_path / "run", None))
        assert torch.equal(weights(one), weights(two))
        assert one.health() == two.health()

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"seed": 1}, "seed was 0 and is 1"),
            ({"batch_size": 8}, "batch_size was 16 and is 8"),
            ({"kernel": Langevin(0.1, 0.2)}, "kernel was"),
            ({"iterations": 9, "cadence": None}, "iterations was 6 and is 9"),
            ({"ema": 0.5}, r"\(optimizer\.ema was 0\.99 and is 0\.5\)"),
            (
                {"objective": JEM() + 0.1 * je.objectives.EnergyL2()},
                r"objectives\[0\]\[2\]\.weight was 0\.001 and is 0\.1",
            ),
            ({"objective": JEM()}, r'objectives\[0\]\[2\] was \{"kind": "EnergyL2", "weight": 0\.001\} and is null'),
        ],
    )
    def test_a_folder_of_another_run_is_refused(self, tmp_path, change, sentence):
        je.fit(network(), blobs(), folder=tmp_path / "run", **QUICK)
        with pytest.raises(InputError, match=sentence):
            je.fit(network(), blobs(), folder=tmp_path / "run", **{**QUICK, **change})
        x, y = blobs()
        with pytest.raises(InputError, match="the data differ"):
            je.fit(network(), (x[::-1], y[::-1]), folder=tmp_path / "run", **QUICK)
        (tmp_path / "notes").mkdir()
        (tmp_path / "notes" / "mine.txt").write_text("mine")
        with pytest.raises(InputError, match="is not a run folder of fit"):
            je.fit(network(), blobs(), folder=tmp_path / "notes", **QUICK)

    def test_load_takes_the_network_and_gives_the_same_run(self, tmp_path):
        made = je.fit(network(), blobs(), folder=tmp_path / "run", **QUICK)
        x = blobs()[0][:7]
        opened = je.load(tmp_path / "run", network=network(seed=9))
        assert torch.equal(opened.log_density(x), made.log_density(x))
        assert torch.equal(opened.sample(4, start="noise", seed=3).x, made.sample(4, start="noise", seed=3).x)
        assert opened.buffer.state_dict()["x"].shape == made.buffer.state_dict()["x"].shape
        with pytest.raises(InputError, match="load the run folder with data="):
            opened.neighbors(x)
        whole = je.load(tmp_path / "run", network=network(), data=blobs())
        assert torch.equal(whole.data.x, made.data.x)
        assert torch.equal(whole.sample(4, seed=3).x, made.sample(4, seed=3).x)

    def test_load_says_what_it_misses(self, tmp_path):
        folder = tmp_path / "run"
        je.fit(network(), blobs(), folder=folder, **QUICK)
        with pytest.raises(InputError, match=r"or in the shell with --network MODULE:NAME"):
            je.load(folder)
        with pytest.raises(InputError, match=r"'0\.weight' has shape \(16, 3\) here and shape \(16, 2\)"):
            je.load(folder, network=network(3))
        other = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))
        with pytest.warns(UserWarning, match="its layers print differently"):
            je.load(folder, network=other)
        with pytest.raises(InputError, match="the layers of the network differ"):
            je.fit(other, blobs(), folder=folder, **QUICK)
        with pytest.raises(InputError, match="not a model around it"):
            je.load(folder, network=je.LogitModel(network(), je.LabelSpace({"class": 3})))
        known = json.loads((folder / "fit.json").read_text())
        (folder / "fit.json").write_text(json.dumps({**known, "kernel": {"own": "Mine"}}))
        with pytest.raises(InputError, match="your own kernel, Mine: pass it as kernel="):
            je.load(folder, network=network())
        assert je.load(folder, network=network(), kernel=Langevin(0.1, 0.1)).sampling.langevin.step_size == 0.1
        (folder / "fit.json").write_text("{")
        with pytest.raises(InputError, match="missing or damaged"):
            je.load(folder, network=network())

    def test_nothing_of_a_file_is_imported(self, tmp_path):
        folder = tmp_path / "run"
        je.fit(network(), blobs(), folder=folder, **QUICK)
        known = json.loads((folder / "fit.json").read_text())
        for kind in ("os.system", "Trainer", "__import__"):
            (folder / "fit.json").write_text(json.dumps({**known, "kernel": {"kind": kind, "command": "true"}}))
            with pytest.raises(InputError, match="another version of jointenergy"):
                je.load(folder, network=network())

    def test_a_callback_that_raises_is_shown_and_the_run_is_saved(self, tmp_path):
        class Broken(je.Callback):
            def on_step(self, loop: Loop, outcome: Outcome) -> None:
                if loop.trainer.iteration == 5:
                    raise ZeroDivisionError("of mine")

        with pytest.raises(ZeroDivisionError, match="of mine"):
            je.fit(network(), blobs(), folder=tmp_path / "run", callbacks=[Broken()], **self.more)
        assert (tmp_path / "run" / "checkpoints" / "iteration-00000005").exists()
        again = je.fit(network(), blobs(), folder=tmp_path / "run", **self.more)
        whole = je.fit(network(), blobs(), **self.more)
        assert torch.equal(weights(again), weights(whole))


class TestForms:
    """Forms of data and networks that are easy to get wrong."""

    def test_channels_last_images_are_moved_not_reshaped(self):
        images = np.zeros((40, 6, 6, 3), dtype=np.uint8)
        y = np.arange(40) % 2
        images[y == 0, :, :, 0] = images[y == 1, :, :, 2] = 255  # red and blue
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 2))
        held = images[:8], y[:8]
        run = je.fit(net, (images[8:], y[8:]), validation=held, **QUICK)
        moved = torch.from_numpy(images).movedim(-1, 1).float() / 127.5 - 1
        assert torch.equal(run.data.x_held, moved[:8])
        assert torch.equal(run.data.x, moved[8:])
        assert torch.equal(run.rows(images[8:]), run.data.x)
        other = je.fit(net, (images[8:], y[8:]), validation=(images[:8].transpose(0, 3, 1, 2), y[:8]), **QUICK)
        assert torch.equal(other.data.x_held, run.data.x_held)

    def test_weights_are_averaged_alike_with_an_optimizer_of_ones_own(self):
        run = je.fit(network(), blobs(), optimizer=lambda p: torch.optim.AdamW(p, 2e-3), **QUICK)
        own = je.fit(network(), blobs(), **QUICK)
        assert run.origin.plan.optimizer.ema == own.origin.plan.optimizer.ema == 0.99

    def test_numbers_and_none_among_labels_are_numbers(self):
        codes, space = label_columns(np.array([0, 2, None, 11, -1], dtype=object), None)
        assert codes[:, 0].tolist() == [0, 2, MISSING, 11, MISSING]
        assert space.values[0][10] == "10"

    def test_few_rows_have_a_unit(self):
        x = np.random.default_rng(0).normal(size=(10, 1)) * 3
        run = je.fit(network(1, 2), (x, np.arange(10) % 2), **QUICK)
        assert bool(run.sample(4).x.isfinite().all())

    def test_another_optimizer_or_network_is_another_run(self, tmp_path):
        def made(rate=1e-3, activation=nn.SiLU, **more):
            net = nn.Sequential(nn.Linear(2, 4), activation(), nn.Linear(4, 3))
            factory = lambda p: torch.optim.SGD(p, rate)  # noqa: E731
            return je.fit(net, blobs(), folder=tmp_path / "run", optimizer=factory, **QUICK, **more)

        made()
        for change in (
            {"rate": 1e-2},
            {"activation": nn.ReLU},
            {"ema": 0.5},
            {"start_labels": "frequency", "keep_labels": 1.0},
        ):
            with pytest.raises(InputError, match="contains another run"):
                made(**change)

    def test_layers_that_are_used_twice_are_saved(self, tmp_path):
        shared = nn.Linear(8, 8)
        net = nn.Sequential(nn.Linear(2, 8), shared, nn.SiLU(), shared, nn.Linear(8, 3))
        made = je.fit(net, blobs(), folder=tmp_path / "run", **QUICK)
        x = blobs()[0][:5]
        assert torch.equal(je.load(tmp_path / "run", network=net).log_density(x), made.log_density(x))

    def test_a_loaded_run_with_its_data_judges_its_health(self, tmp_path):
        made = je.fit(network(), blobs(), folder=tmp_path / "run", **QUICK)
        assert je.load(tmp_path / "run", network=network(), data=blobs()).health() == made.health()

    def test_samples_end_without_noise_also_when_loaded(self, tmp_path):
        """Seen by two samples from the same start whose only steps have no noise: they are alike."""
        kernel, start = je.kernels.Langevin(0.02, 0.2), je.starts.UniformStart(0.0, 0.0, (2,))
        more = {**QUICK, "kernel": kernel, "folder": tmp_path / "run", "sampling_steps": 4}
        made = je.fit(network(), blobs(), denoising_steps=3, **more)
        path = made.export(tmp_path / "run.safetensors")
        for run in (made, *(je.load(where, network=network()) for where in (tmp_path / "run", path))):
            still, moved = (run.sample(50, steps=n, start=start).x for n in (3, 4))
            assert float(still.std(0).max()) < 1e-6 < float(moved.std(0).min())
        for steps, changed, said in (
            (5, {}, "the last of 4 sampling steps: give at most as many, got 5"),
            (3, {"kernel": je.kernels.MALA(0.1)}, "are steps of Langevin"),
        ):
            with pytest.raises(InputError, match=said):
                je.fit(network(), blobs(), denoising_steps=steps, **{**more, "folder": None, **changed})

    def test_an_exported_file_samples_from_its_classes_without_the_data(self, tmp_path):
        random, path = np.random.default_rng(0), tmp_path / "run.safetensors"
        images, y = random.random((60, 2, 6, 6), dtype=np.float32) * 2 - 1, np.arange(60) % 3
        net = nn.Sequential(nn.Flatten(), nn.Linear(72, 3))
        made = je.fit(net, (images, y), start=ClassGaussians(uniform=0.1), **QUICK)
        made.export(path)
        opened, given = je.load(path, network=net), {"class": 1}
        stored = opened.origin.gaussians
        assert stored is not None
        assert stored.factors.shape == (3, 72, 64)  # compact: images have 72 values
        x = opened.sample(400, given=given, start="class", steps=0).x
        assert x.shape == (400, 2, 6, 6)
        assert float(x.abs().max()) <= 1  # clamped, as the chains are
        near = made.sample(400, given=given, start="class", steps=0).x
        # Means of 400 draws each, of a standard deviation of at most .6: 6 standard errors of their difference.
        assert float((x.mean(0) - near.mean(0)).abs().max()) < 6 * 0.6 * (2 / 400) ** 0.5
        again = opened.export(tmp_path / "again.safetensors")  # what is known is passed on
        assert torch.equal(je.load(again, network=net).sample(4, seed=1).x, opened.sample(4, seed=1).x)
        half = je.load(made.export(tmp_path / "half.safetensors", half=True), network=net)
        assert half.sample(2, given=given).x.isfinite().all()
        with safe_open(path, "pt") as file:
            metadata, tensors = file.metadata(), {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
        for name, change in (
            ("means", lambda v: v[:, :-1]),
            ("factors", lambda v: v[0]),
            ("frequencies", lambda v: v * 0),
            ("rest", lambda v: v * torch.nan),
            ("other", lambda v: torch.zeros(1)),
        ):
            spoiled = {**tensors, f"start/{name}": change(tensors.get(f"start/{name}")).contiguous()}
            save_file(spoiled, path, metadata)
            with pytest.raises(InputError, match=r"is damaged: its class Gaussians"):
                je.load(path, network=net)

    def test_lazy_layers_are_opened_again(self, tmp_path):
        def net():
            return nn.Sequential(nn.LazyLinear(8), nn.SiLU(), nn.Linear(8, 3))

        made = je.fit(net(), blobs(), folder=tmp_path / "run", **QUICK)
        opened = je.load(tmp_path / "run", network=net())
        assert torch.equal(opened.log_density(blobs()[0]), made.log_density(blobs()[0]))

    def test_lists_and_datasets_of_x_alone_are_read(self):
        x, y = blobs()
        one = je.fit(network(), (x.tolist(), y.tolist()), **QUICK)
        assert torch.equal(weights(one), weights(je.fit(network(), (x, y), **QUICK)))
        alone = je.fit(network(n_out=1), TensorDataset(torch.from_numpy(x)), **QUICK)
        assert len(alone.labels) == 0


class BatchDependent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x):
        return self.inner(x - x.mean(0))


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x):
        return self.inner(x.mul_(2.0))


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x):
        return self.inner(x).detach()


class NotANumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x):
        return self.inner(x) * torch.nan


class Three(je.kernels.Kernel):
    moves_x = True

    def step(self, target, state):
        return 3


class Odd(Dataset[object]):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


X, Y = blobs(40)


@pytest.mark.parametrize(
    ("arguments", "more", "sentence"),
    [
        ((network(n_out=4), (X, Y)), {}, r"returned shape \[2, 4\]; LabelSpace\(\{'class': 3\}\) needs \[2, 3\]"),
        ((network(5), (X, Y)), {}, r"cannot take x of shape \[n, 2\]"),
        (("net", (X, Y)), {}, "a torch module that returns logits, or a JointModel, got str"),
        ((network(), (X, Y[:5])), {}, "x has 40 rows but y has 5"),
        ((network(), (X, Y + 0.5)), {}, "integers from 0, or -1 where missing"),
        ((network(), (X, Y * 10**6)), {}, "number the classes from 0"),
        ((network(), (X, np.full(40, MISSING))), {}, "no row has a label 'class'"),
        ((network(), (X, Y)), {"labels": ["a", "b"]}, "class"),
        ((network(), (X, np.array(["a", "b"] * 20))), {"labels": ["a", "c", "d"]}, "y has the value 'b'"),
        ((network(), (X, Y)), {"labels": {"a": 3, "b": 2}}, r"y has 1 column\(s\) but labels= names 2"),
        ((network(), X), {"labels": 3}, "there is no y"),
        ((network(), (X, Y, Y)), {}, "got 3 parts"),
        ((network(), DataLoader(Odd([(X[0], 0)] * 4))), {}, r"pass its dataset, loader\.dataset"),
        ((network(), (np.array([["a", "b"]] * 40), Y)), {}, "x must be numbers"),
        ((network(), (X * [1.0, np.nan], Y)), {}, "column 1 of x has no known value"),
        ((network(), Odd([(X[i], {"class": 1}) for i in range(4)])), {}, "labels of 'class' must be integers or names"),
        ((network(), X[0]), {}, r"must have shape \[n, \*event\]"),
        ((network(), (np.full_like(X, np.inf), Y)), {}, "an infinite value in row 0"),
        ((network(), (np.full_like(X, 5.0), Y)), {}, "every value of x is 5"),
        ((network(), Odd([(X[0], 0, 1)] * 4)), {}, "item 0 is a tuple of 3"),
        ((network(), Odd([(X[0], 0), (X[0, :1], 1)])), {}, "item 1 of the Dataset has shape"),
        ((network(), Odd([])), {}, "has no items"),
        ((network(), Odd([(object(), 0)] * 4)), {}, "x of item 0 is a object"),
        ((network(), (X, Y)), {"optimizer": lambda p: None}, "it returned NoneType"),
        ((network(), (X, Y)), {"kernel": "langevin"}, "takes a kernel such as Langevin"),
        ((network(), (X, Y)), {"objective": "jem"}, r"objective= takes JEM\(\)"),
        ((network(), (X, Y)), {"iterations": 0}, "iterations"),
        ((network(), (X, Y)), {"validation": 2.0}, "a fraction between 0 and 1"),
        ((network(), (X, Y)), {"augment": ["flip"]}, "needs images"),
        ((network(), (X, Y)), {"bounds": (1.0, -1.0)}, "low < high"),
        ((network(), (X, Y)), {"device": "tpu9"}, "no device called 'tpu9'"),
        ((nn.Sequential(network(), nn.BatchNorm1d(3)), (X, Y)), {}, r"fold_batch_norm\(net\)"),
        ((network().requires_grad_(False), (X, Y)), {}, "set requires_grad to train it"),
        ((BatchDependent(), (X, Y)), {}, "depends on the other rows"),
        ((InPlace(), (X, Y)), {}, "changes its input in place"),
        ((Detached(), (X, Y)), {}, "has no gradient"),
        ((network(), (X, Y)), {"bounds": (0.0, 1.0)}, "outside the box from 0 to 1"),
        ((network(), (X, Y)), {"bounds": 5}, r"bounds= takes \(low, high\)"),
        ((network(), (X, Y)), {"validation": (X[:, :1], Y)}, r"x of validation has rows of shape \(1,\)"),
        ((network(), (X * 1e30, Y)), {}, r"values beyond 1e\+06"),
        ((network(n_out=1), X), {"objective": CrossEntropy()}, "the objective needs labels, but there is no y"),
        ((network(n_out=1), X), {"objective": IGEBM()}, "the objective needs labels, but there is no y"),
        ((network(), (X, [[0], [1, 2]] * 20)), {}, "y must be one array"),
        ((network(), (X, np.full(40, np.inf))), {}, "an infinite value"),
        ((network(), (X, Y)), {"optimizer": "adam"}, "optimizer= takes a function of the parameters"),
        ((network(), (X, Y)), {"optimizer": torch.optim.LBFGS}, "LBFGS"),
        ((network(), (X, Y)), {"optimizer": torch.optim.Adam(network().parameters())}, "got Adam$"),
        (
            (network(), (X, Y)),
            {"optimizer": lambda p: torch.optim.SGD(network().parameters(), 0.1)},
            "none of the given parameters",
        ),
        ((network(), (X, Y)), {"gradients": lambda loss, parameters: None}, "must call the loss"),
        ((network(), (X, Y)), {"buffer": 5}, "buffer= takes a ReplayBuffer"),
        ((network(), (X, Y)), {"start": "x"}, "start= takes a start"),
        ((network(), (X, Y)), {"ema": 1.5}, "ema= takes a number from 0 to below 1"),
        ((network(), (X, Y)), {"noise": -1.0}, "noise= takes a number from 0"),
        ((network(), (X, Y)), {"callbacks": [Kill(signal.SIGKILL)] * 9 + [3]}, "got list$"),
        ((network(), (X, Y)), {"callbacks": [3]}, "callbacks= takes a list of callbacks"),
        ((network(), (X, Y)), {"cadence": 3}, "cadence= takes CadenceSettings"),
        ((network(), (X, Y)), {"folder": 3}, "folder= takes the path of a folder"),
        ((network(), (X, Y)), {"folder": f"{__file__}/run"}, r"cannot be created \(Not a directory\): choose another"),
        (
            (network(), (X, Y)),
            {"start": ClassGaussians},
            r"start= takes a start such as ClassGaussians\(\), got <class",
        ),
        ((network(), (X, Y)), {"kernel": Langevin, "clamp": False}, "kernel= takes a kernel such as Langevin"),
        ((network(), (X, Y)), {"kernel": Three()}, r"Three\.step must return a State and an Info, got int"),
        ((NotANumber(), (X, Y)), {}, "returns only NaN"),
        ((je.LogitModel(NotANumber(), je.LabelSpace({"class": 3})), (X, Y)), {}, "returns only NaN"),
        *(
            ((network(), (X, Y)), {name: "x"}, f"{name}= takes True or False, got 'x'")
            for name in ("guard", "clamp", "verbose", "sum_labels", "allow_batch_statistics")
        ),
        ((network(), (X, Y)), {"bounds": (-1e30, 1e30)}, r"between -1e\+06 and 1e\+06, got"),
        ((network(), (X, np.eye(3)[Y])), {}, r"a one-hot code of 3 classes.*: pass y\.argmax\(1\)"),
        ((network(), (X, Y)), {"labels": -1}, "at least 2 values, got -1"),
        ((network(), (X, Y - 5)), {}, "integers from 0, or -1 where missing, got -5"),
        ((network(), (X, Y)), {"validation": X}, r"there is no y: pass validation as \(x, y\)"),
        (
            (network(), (X, Y)),
            {"validation": (X, ["a"] * 40)},
            "the value 'a' of 'class', which the training set does not",
        ),
        ((network(n_out=1), X), {"validation": (X, Y)}, "pass x alone as validation"),
        (
            (network(3), (np.ma.array(np.zeros((40, 3), dtype=np.uint8), mask=np.eye(40, 3)), Y)),
            {},
            "masked entries, which pixels cannot have",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(arguments, more, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        je.fit(*arguments, **{**QUICK, **more})
    assert "\n" not in str(caught.value)


def test_a_gpu_that_is_missing_is_told_in_the_words_of_fit(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="torch finds no GPU for the device 'cuda': use the device 'cpu'"):
        je.fit(network(), (X, Y), **{**QUICK, "device": "cuda"})


def test_sparse_x_is_refused():
    with pytest.raises(InputError, match=r"pass x\.to_dense\(\)"):
        je.fit(network(), (torch.from_numpy(X).to_sparse(), Y), **QUICK)


def test_the_shell_says_how_a_run_of_fit_is_opened(tmp_path):
    je.fit(network(), blobs(), folder=tmp_path / "run", **QUICK)
    for words in (("score", str(tmp_path / "run"), "x.npy"), ("resume", str(tmp_path / "run"))):
        answer = call(*words)
        assert answer.status == 2
        assert "fit" in answer.err


@pytest.mark.slow
def test_defaults_are_healthy_on_points_they_were_not_chosen_on():
    run = je.fit(network(), blobs(1000), verbose=False, device="cpu")
    x, y = blobs(500, seed=7)
    assert (run.predict(x)[:, 0].numpy() == y).mean() > 0.97
    assert run.health().complaints == []


def test_columns_of_labels_go_by_their_names():
    """Fails if the columns of a data frame are taken in their order, whatever they are called."""
    x, _ = blobs()
    y = pd.DataFrame({"u": (x[:, 0] > 0).astype(int), "v": (x[:, 1] > 0).astype(int)})
    run = je.fit(network(2, 4), (x, y[["v", "u"]]), labels={"u": 2, "v": 2}, **QUICK)
    assert torch.equal(run.data.y[:, 0], (run.data.x[:, 0] > 0).long())
    drawn = run.sample(2, given=pd.DataFrame({"v": [1, 1], "u": [0, 0]}), steps=2).y
    assert drawn.tolist() == [[0, 1], [0, 1]]
    with pytest.raises(InputError, match=r"y has the columns \['banana', 'u'\]"):
        run.sample(2, given=pd.DataFrame({"banana": [1, 1], "u": [0, 0]}), steps=2)


def test_missing_values_of_all_kinds_are_taken():
    """Fails if rows of masked arrays, NA of data frames, or unknown labels by name are refused or read as values."""
    x, y = blobs()
    masked = [np.ma.masked_array(np.where(m, 1e6, row), mask=m) for row, m in zip(x, np.eye(2)[y % 2] > 0, strict=True)]
    assert rows_of_user((masked, y), None).x.isnan().any()
    frame = pd.DataFrame(x).astype("Float64")
    frame.iloc[0, 0] = pd.NA
    assert rows_of_user((frame, y), None).x.isnan().sum() == 1
    with pytest.raises(InputError, match="must hold numbers, got an array of"):
        rows_of_user((np.ma.masked_array(np.zeros(8, dtype=[("a", float)])), np.zeros(8, int)), None)
    run = je.fit(network(), (x, y), **QUICK)
    for unknown in ([1, None], np.array([1.0, np.nan]), np.ma.masked_array([1, 0], mask=[False, True]), [1, pd.NA]):
        assert run.labels.encode({"class": unknown}, 2).tolist() == [[1], [-1]]
