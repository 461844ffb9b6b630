"""A step asks the device nothing, and is the same step however it is run: line by line, compiled, recorded."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from contextvars import ContextVar
from dataclasses import astuple

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException
from torch.utils._python_dispatch import TorchDispatchMode

from jointenergy import fusing
from jointenergy.data.training import TrainingData
from jointenergy.networks.accelerated import Accelerated, hold
from jointenergy.networks.nf_wide_resnet import NFWideResNet
from jointenergy.networks.wide_resnet import WideResNet
from jointenergy.recipes.build import kernel_of, trainer_of
from jointenergy.training import measure, state
from jointenergy.training.engine import WARM, Engine, convolutions, precision_of
from jointenergy.training.recovery import raise_steps
from jointenergy.training.step import step
from jointenergy.training.trainer import Trainer
from tests.small import small
from tests.test_training_systems import images

RATE = 2e-3
TINY = ("batch_size=16", "buffer.size=64", "chain.steps=3", "iterations=100", f"optimizer.learning_rate={RATE}")
CONVOLUTIONS = ("model.network={kind='wide-resnet', depth=10, width=1}", "chain.kernel.gradient_clamp=1.0")
SYSTEMS = {
    "jem": (),
    "batches apart, augmented": (
        *CONVOLUTIONS,
        "data.separate_batches=true",
        "data.augment=['crop', 'flip', 'color', 'blur']",
        "chain.augment=['flip']",
    ),
    "as CIFAR-10 may be trained": (
        *CONVOLUTIONS,
        "data.separate_batches=true",
        "data.augment=['crop', 'cutout']",
        "data.classifier_noise=0.0",
        "objective.label_smoothing=0.1",
        "chain.keep_labels=0.5",
        "optimizer.sam=0.5",
        "optimizer.decayed=all",
    ),
    "improved cd": ("buffer.kind=reservoir", "objective.kl=0.3", "objective.entropy=0.1", "objective.energy_l2=0.1"),
    "gibbs-jem": ("chain.label_kernel=exact", "objective.log_p_x=0.0", "objective.log_p_xy=1.0"),
    "gibbs-jem as trained": ("objective=gibbs-jem", "chain.label_kernel=exact", "chain.x_steps=2"),
    "labels at T": ("objective=mixed", "chain.label_kernel=exact", "chain.label_temperature=same"),
    "labels last": ("objective=mixed", "chain.label_temperature=last"),
    "summed": ("chain.label_kernel=exact", "chain.sum_labels=true", "objective.log_p_x=0.0", "objective.log_p_xy=1.0"),
    "mixed": (
        "model.family=pair",
        "chain.label_kernel=gibbs-with-gradients",
        "objective.log_p_x=0.0",
        "objective.log_p_y_given_x=0.0",
        "objective.log_p_xy=1.0",
    ),
    "mixed, with log p(y | x)": (
        "model.family=pair",
        "chain.label_kernel=gibbs-with-gradients",
        "objective.log_p_x=0.0",
        "objective.log_p_xy=1.0",
    ),
    "single site": (
        "model.family=pair",
        "chain.label_kernel=single-site",
        "objective.log_p_x=0.0",
        "objective.log_p_y_given_x=0.0",
        "objective.log_p_xy=1.0",
    ),
    "log p(x) by enumeration": ("model.family=pair",),
    "unconditional": ("model.family=unconditional", "objective={log_p_x=1.0, log_p_y_given_x=0.0}"),
    "nf": (
        "model.network={kind='nf-wide-resnet', depth=10, width=1}",
        "optimizer.clip_adaptive=0.02",
        "optimizer.name=sgd",
        "optimizer.weight_decay=1e-4",
    ),
    "binary": ("data.dequantize=binary", "buffer.kind=none"),
    "group norm": (
        "model.network={kind='wide-resnet', depth=10, width=1, norm='group'}",
        "chain.kernel.gradient_clamp=1.0",
    ),
    "batch statistics": (
        "model.network={kind='wide-resnet', depth=10, width=1, norm='batch'}",
        "chain.kernel.gradient_clamp=1.0",
        "model.allow_batch_statistics=true",
    ),
    "spectral norm": (
        "model.family=unconditional",
        "model.network={kind='igebm-resnet', plan='a', width=0.0625}",
        "objective={log_p_x=1.0, log_p_y_given_x=0.0, energy_l2=1.0}",
        "optimizer.clip_sigma=3.0",
    ),
}
# On a CPU these starts ask which rows are of a class, on a GPU they do not.
CLASS_STARTS = {"class starts": (*SYSTEMS["nf"], "start.x=class-gaussians", "start.uniform=0.2")}
each_system = pytest.mark.parametrize("overrides", SYSTEMS.values(), ids=SYSTEMS)


class Waits(TorchDispatchMode):
    """Collects what would make the host wait for a device: a value read, or a shape that depends on one."""

    NAMES = (
        *("_local_scalar_dense", "nonzero", "unique", "_unique", "is_nonzero", "masked_select", "equal", "item"),
        *("bincount", "repeat_interleave"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        chosen = args[1] if name in ("index", "index_put", "index_put_") else ()
        by_mask = any(t is not None and t.dtype == torch.bool for t in chosen)
        if by_mask or any(name.startswith(n) for n in self.NAMES):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def data_for(overrides: tuple[str, ...], device: str = "cpu") -> TrainingData:
    data = images()
    if "data.dequantize=binary" in overrides:
        data = TrainingData((data.x > 0) * 2.0 - 1, data.y, data.x_held, data.y_held, data.labels)
    if any("unconditional" in o for o in overrides):
        data = TrainingData(data.x, data.y[:, :0], data.x_held, data.y_held[:, :0], type(data.labels).none())
    x, y, x_held, y_held = (t.to(device) for t in (data.x, data.y, data.x_held, data.y_held))
    return TrainingData(x, y, x_held, y_held, data.labels)


def made(*overrides: str, device: str = "cpu") -> Trainer:
    return trainer_of(small(*TINY, *overrides), data_for(overrides, device), 0)


def weights(trainer: Trainer) -> Tensor:
    return torch.cat([p.detach().flatten() for p in (*trainer.model.parameters(), *trainer.ema.parameters())]).cpu()


def stored(trainer: Trainer) -> Tensor:
    assert trainer.chains.buffer is not None
    return trainer.chains.buffer.state_dict()["x"].cpu()


@each_system
def test_a_step_asks_the_device_nothing(overrides):
    trainer = made(*overrides)
    assert trainer.recordable
    trainer.step()
    with Waits() as waits:
        trainer.step()
    assert waits.found == []


@each_system
def test_the_guards_look_asks_the_device_nothing_but_its_signals(overrides):
    trainer = made(*overrides)
    look = measure.Look(trainer)
    loss, moved, norm = trainer.step()
    assert moved is not None
    signals = look(loss, moved, norm)
    with Waits() as waits:
        again = look.engine()
    assert waits.found == []
    assert again.tolist() == list(astuple(signals))


def test_a_question_to_the_device_is_noticed():
    with Waits() as waits:
        x = torch.ones(3)
        bool(x[0] > 0)
        x[x > 0]
    assert len(waits.found) >= 2


@pytest.mark.parametrize(
    "overrides",
    [
        ("model.family=pair", "chain.label_kernel=exact", *SYSTEMS["mixed"][2:]),
        ("data.missing_labels=0.5", *SYSTEMS["mixed"]),
        ("data.missing_x=0.3", "chain.label_kernel=exact", "objective=mixed"),
        ("model.family=conditional", "objective=igebm"),
    ],
    ids=["enumerated labels", "missing labels", "masked x", "labels given"],
)
def test_what_looks_for_rows_is_not_recorded(overrides):
    from jointenergy.recipes.data import data_of

    recipe = small(*TINY, *overrides)
    assert not trainer_of(recipe, data_of(recipe), 0).recordable


def test_a_compiler_that_fails_is_left(monkeypatch):
    trainer = made("engine.compile=on")

    def fails(*_):
        raise TorchDynamoException("no compiler\nat all")

    for part in trainer.fast.children():
        monkeypatch.setattr(part, "call", fails)
    with monkeypatch.context() as without:
        without.setattr(fusing, "_asked", ContextVar("nobody", default=False))  # seconds, and not what is tested
        loss, moved, _ = trainer.step()
    assert moved is not None
    assert bool(loss.total.isfinite())
    assert not trainer.compiled
    assert trainer.engine.said == "networks could not be compiled and run uncompiled (no compiler)"


def test_a_compiler_that_fails_at_the_guards_look_is_left(monkeypatch):
    trainer = made("engine.compile=on")
    for part in trainer.fast.children():

        def fails_without_gradients(weights, *x, plain=part._call):
            if not torch.is_grad_enabled():
                raise TorchDynamoException("no compiler")
            return plain(weights, *x)

        monkeypatch.setattr(part, "call", fails_without_gradients)
    monkeypatch.setattr(fusing, "_asked", ContextVar("nobody", default=False))
    outcome = trainer.step()
    assert trainer.compiled
    assert math.isfinite(measure.Look(trainer)(*outcome).f_data)
    assert not trainer.compiled


def test_the_guard_looks_at_rows_that_come_next():
    """Rows that a step has just learned from would flatter it."""
    trainer = made()
    outcome = trainer.step()
    f = measure.Look(trainer)(*outcome).f_data
    ahead = trainer.feeds[0].rows_ahead[: measure.LOOK_ROWS].clone()
    with torch.no_grad():
        assert f == pytest.approx(float(trainer.model.log_density(trainer.data.x[ahead]).mean()), abs=1e-4)
    trainer.step()
    assert torch.equal(trainer.feeds[0].rows[: len(ahead)], ahead)


def test_what_fails_by_itself_is_not_hidden(monkeypatch):
    trainer = made("engine.compile=on")
    monkeypatch.setattr(trainer.engine, "body", lambda: (_ for _ in ()).throw(RuntimeError("of its own")))
    with pytest.raises(RuntimeError, match="of its own"):
        trainer.step()
    assert trainer.compiled


def test_a_process_has_room_for_the_programs_of_several_runs():
    from torch._dynamo import config

    with config.patch(recompile_limit=8):
        Accelerated(WideResNet(10, 1), compiled=True)
        assert config.recompile_limit >= 64


def test_rows_of_a_run_that_is_gone_are_let_go():
    trainer = made()
    plan = trainer.plan
    assert plan.share_at_bounds is plan.share_at_bounds
    rows = weakref.ref(trainer.data)
    del trainer, plan
    gc.collect()
    assert rows() is None


def test_a_skipped_batch_changes_nothing():
    for optimizer in ("adamw", "sgd"):
        trainer = made(f"optimizer.name={optimizer}", "optimizer.clip_norm=1.0")
        if optimizer == "adamw":
            trainer.step()
        before = weights(trainer)
        right = trainer.data.x.clone()
        trainer.data.x.fill_(torch.nan)
        trainer.step()
        trainer.step()
        assert torch.equal(before, weights(trainer))
        assert (trainer.n_skipped, trainer.skipped_in_row) == (2, 2)
        trainer.data.x.copy_(right)
        trainer.step()
        assert not torch.equal(before, weights(trainer))
        assert weights(trainer).isfinite().all()
        assert (trainer.n_skipped, trainer.skipped_in_row) == (2, 0)


# ---------------------------------------------------------------- accelerated networks

NETWORKS = {
    "plain": lambda: WideResNet(10, 1),
    "group": lambda: WideResNet(10, 1, norm="group"),
    "nf": lambda: NFWideResNet(10, 1),
}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_half_precision_is_close_and_its_result_is_not_rounded(make):
    torch.manual_seed(0)
    network = make()
    x = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    fast = Accelerated(network, torch.bfloat16)
    value, exact = fast(x), network(x)
    assert value.dtype == torch.float32
    # 8 bits of mantissa: half a percent a layer, a few percent of the spread of the logits after ten.
    assert (value - exact).abs().max() < 0.05 * exact.std()
    assert not torch.equal(value, value.bfloat16().float())
    with hold(fast):
        held = fast(x)
        assert torch.equal(held, value)
        (gradient,) = torch.autograd.grad(held.sum(), x)
        assert not any(p.grad is not None for p in network.parameters())
    (expected,) = torch.autograd.grad(exact.sum(), x)
    assert (gradient - expected).norm() < 0.05 * expected.norm()
    assert fast.held is None
    fast(x).sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_a_network_without_convolutions_keeps_its_precision():
    # Of a user's own linear layers: log-densities in the hundreds, rounded to bfloat16, are off by whole nats.
    network, x = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 2)), torch.rand(3, 4)
    assert torch.equal(Accelerated(network, torch.bfloat16)(x), network(x))


def test_a_held_network_learns_nothing():
    network = WideResNet(10, 1)
    fast = Accelerated(network, torch.bfloat16)
    with hold(fast):
        assert not fast(torch.rand(2, 3, 8, 8)).requires_grad


def precision(recipe, device):
    return precision_of(recipe.engine, kernel_of(recipe), device)


def test_precision_is_chosen():
    cpu = torch.device("cpu")
    assert precision(small(), cpu) == "float32"
    assert precision(small("engine.precision=bfloat16"), cpu) == "bfloat16"


@pytest.mark.parametrize(
    ("overrides", "capability", "wanted"),
    [
        (("chain.label_kernel=none",), (9, 0), "bfloat16"),
        (SYSTEMS["mixed"], (9, 0), "tensorfloat32"),
        (SYSTEMS["mixed"], (7, 0), "float32"),
        ((*SYSTEMS["mixed"], "engine.precision=float32"), (9, 0), "float32"),
    ],
)
def test_a_gpu_rounds_as_much_as_its_chains_bear(monkeypatch, overrides, capability, wanted):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert precision(small(*overrides), torch.device("cuda")) == wanted


@pytest.mark.parametrize(
    ("setting", "read", "inside"),
    [
        ("engine.precision=tensorfloat32", torch.get_float32_matmul_precision, "high"),
        ("engine.convolutions=tried", lambda: torch.backends.cudnn.benchmark, True),
    ],
    ids=["products", "convolutions"],
)
def test_switches_that_torch_has_for_all_are_set_back(setting, read, inside):
    before, seen = read(), []
    trainer = made(*SYSTEMS["mixed"], setting)

    def body():
        seen.append(read())
        return step(trainer)

    trainer.engine.body = body
    trainer.step()
    assert seen == [inside] != [before]
    assert read() == before


def test_convolutions_that_a_user_has_tried_stay_tried(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with convolutions(small().engine):
        assert torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.benchmark


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [CONVOLUTIONS, SYSTEMS["mixed"]], ids=["wide-resnet", "mixed"])
def test_a_compiled_step_is_the_same(overrides):
    plain, compiled = made(*overrides), made(*overrides, "engine.compile=on")
    for _ in range(3):
        plain.step()
        compiled.step()
    # Float32 on both sides, sums in another order: three steps of Adam at 2e-3 apart by rounding alone.
    torch.testing.assert_close(weights(compiled), weights(plain), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(stored(compiled), stored(plain), atol=1e-4, rtol=1e-4)


# ---------------------------------------------------------------- recorded steps


def pair(*overrides: str) -> tuple[Trainer, Trainer]:
    """Two trainers with the same streams on a GPU: line by line, and recorded."""
    plain = made(*overrides, "engine.record=off", "engine.compile=off", device="cuda")
    recorded = made(*overrides, device="cuda")
    assert recorded.engine.recorded
    return plain, recorded


def steps(trainers: tuple[Trainer, Trainer], n: int) -> None:
    for _ in range(n):
        for trainer in trainers:
            trainer.step()


def assert_same(trainers: tuple[Trainer, Trainer], atol: float) -> None:
    plain, recorded = trainers
    assert recorded.engine.said is None
    difference = (weights(recorded) - weights(plain)).abs()
    # Where a gradient is nearly zero a rounding turns its sign, and Adam makes a whole step of either: a few weights in
    # a thousand may be off (1.2 were), and none by more than such a step at each iteration.
    assert (difference > atol).float().mean() < 5e-3
    assert difference.max() < 2 * RATE * plain.iteration
    if plain.chains.buffer is not None:
        # One chain that a rounding has sent elsewhere is no error; all but a few are where they are line by line.
        far = ((stored(recorded) - stored(plain)).flatten(1).abs().amax(1) > 100 * atol).float().mean()
        assert far <= 0.05


@pytest.mark.gpu
@pytest.mark.parametrize("overrides", (SYSTEMS | CLASS_STARTS).values(), ids=SYSTEMS | CLASS_STARTS)
def test_a_recorded_step_is_the_same(monkeypatch, overrides):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # torch's own choice, which rounds
    trainers = pair(*overrides, "engine.precision=float32")
    steps(trainers, WARM + 5)
    # Float32, the same noise, other programs: eight steps of Adam at 2e-3, each weight by at most a tenth of one step.
    assert_same(trainers, 2e-4)


@pytest.mark.gpu
@each_system
def test_the_guards_look_is_replayed(overrides):
    trainer = made(*overrides, device="cuda")
    look = measure.Look(trainer)
    for _ in range(2 * WARM + 3):
        loss, moved, norm = trainer.step()
        assert moved is not None
        signals = look(loss, moved, norm)
    assert look.engine.said is None
    assert look.engine.replays
    torch.testing.assert_close(torch.tensor(astuple(signals)), look._body().cpu(), atol=1e-4, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("overrides", "precision"),
    [
        (CONVOLUTIONS, "bfloat16"),
        ((*CONVOLUTIONS, "engine.convolutions=tried"), "bfloat16"),
        (SYSTEMS["mixed"], "tensorfloat32"),
    ],
    ids=["half", "tried", "tf32"],
)
def test_lower_precision_stays_near(overrides, precision):
    plain = made(*overrides, "engine.record=off", "engine.compile=off", "engine.precision=float32", device="cuda")
    fast = made(*overrides, device="cuda")
    assert fast.precision == precision
    losses: list[list[float]] = [[], []]
    for _ in range(WARM + 5):
        for trainer, seen in zip((plain, fast), losses, strict=True):
            seen.append(trainer.step()[0].total.item())
    torch.testing.assert_close(torch.tensor(losses[1]), torch.tensor(losses[0]), atol=0.02, rtol=0.02)


@pytest.mark.gpu
def test_more_steps_are_recorded_anew():
    trainers = pair("engine.precision=float32")
    steps(trainers, WARM + 2)
    for trainer in trainers:
        raise_steps(trainer)
    steps(trainers, WARM + 2)
    assert trainers[1].engine.recordings == 2
    assert_same(trainers, 2e-4)


@pytest.mark.gpu
def test_a_rollback_copies_in_place():
    trainers = pair("engine.precision=float32")
    steps(trainers, WARM + 2)
    saved = [copy.deepcopy(state.save(trainer, {})) for trainer in trainers]
    steps(trainers, 3)
    for trainer, checkpoint in zip(trainers, saved, strict=True):
        state.restore_weights(trainer, checkpoint)
        trainer.attempt += 1
        trainer.new_streams()
    steps(trainers, 3)
    assert_same(trainers, 2e-4)


@pytest.mark.gpu
def test_a_recorded_step_skips_what_is_not_finite():
    trainer = made(device="cuda")
    for _ in range(WARM + 2):
        trainer.step()
    before, right = weights(trainer), trainer.data.x.clone()
    trainer.data.x.fill_(torch.nan)
    trainer.step()
    assert torch.equal(before, weights(trainer))
    assert (trainer.n_skipped, trainer.skipped_in_row) == (1, 1)
    trainer.data.x.copy_(right)
    trainer.step()
    assert not torch.equal(before, weights(trainer))
    assert trainer.skipped_in_row == 0


@pytest.mark.gpu
def test_what_cannot_be_recorded_runs_on_and_says_so():
    value = torch.ones((), device="cuda")
    engine = Engine(lambda: float(value), recorded=True)
    assert [engine() for _ in range(WARM + 2)] == [1.0] * (WARM + 2)
    assert engine.said is not None
    assert "line by line" in engine.said
    assert "previous error" not in engine.said
    assert float(torch.ones(3, device="cuda").sum()) == 3.0


@pytest.mark.gpu
def test_streams_go_on_where_a_recording_failed():
    def drawn(*, recorded: bool) -> list[float]:
        stream = torch.Generator(device="cuda")
        stream.manual_seed(1)
        engine = Engine(
            lambda: float(torch.rand((), device="cuda", generator=stream)),
            recorded=recorded,
            generators=lambda: [stream],
        )
        return [engine() for _ in range(WARM + 3)]

    assert drawn(recorded=True) == drawn(recorded=False)


@pytest.mark.gpu
def test_a_dropped_run_does_not_spoil_the_next_recording():
    first = made(device="cuda")
    for _ in range(WARM + 2):
        first.step()
    first.itself = first  # type: ignore[attr-defined]  # a circle, which only the collector frees
    del first
    second = made(device="cuda")
    for _ in range(WARM + 2):
        second.step()
    assert second.engine.said is None
    assert second.engine.recordings == 1
