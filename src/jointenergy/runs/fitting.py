"""runs: `fit` trains your network on your data and returns a run."""

from __future__ import annotations

import copy
import math
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from jointenergy.buffers import Buffer
from jointenergy.data import CorrelatedNoise, Dataset, GaussianNoise, View
from jointenergy.data.augmentations import Change
from jointenergy.data.training import Pixels, TrainingData
from jointenergy.errors import InputError
from jointenergy.files.locks import is_free, only_writer
from jointenergy.files.reading import told
from jointenergy.inference import Aids
from jointenergy.inputs import check_count, is_number
from jointenergy.kernels import BlockGibbs, Kernel, Langevin
from jointenergy.limits import INTEGER, ITERATIONS
from jointenergy.models import Box, Domain, EnergyModel, JointModel, LogitModel
from jointenergy.networks.batch_norm import has_batch_norm
from jointenergy.objectives import Objective, Term
from jointenergy.runs import description
from jointenergy.runs.origin import Origin, Sampling
from jointenergy.runs.run import Run
from jointenergy.runs.thresholds import Thresholds
from jointenergy.runs.user_data import (
    LARGEST,
    LabelNames,
    UserRows,
    candidate_shapes,
    domain_of,
    rows_of_user,
    training_data,
)
from jointenergy.starts import Start, StartSpec, XStart
from jointenergy.training import checkpoints, defaults
from jointenergy.training.callbacks import Callback, Printed
from jointenergy.training.chains import ACCEPTED, with_step_size
from jointenergy.training.checkpoints import Checkpoint
from jointenergy.training.distributed import device_of
from jointenergy.training.loop import Diverged, Interrupted, Loop
from jointenergy.training.plan import Gradients, OptimizerFactory, Plan, clamped, make_plan
from jointenergy.training.recovery import FIRST
from jointenergy.training.settings import CadenceSettings, EngineSettings, OptimizerSettings
from jointenergy.training.state import under
from jointenergy.training.stores import Store
from jointenergy.training.trainer import Trainer

PROBED = 2  # rows that a network is tested on before training


def fit(
    model: nn.Module,
    data: object,
    *,
    labels: LabelNames | None = None,
    validation: float | int | object = 0.1,
    bounds: tuple[float, float] | None = None,
    objective: Objective | Term | None = None,
    label_objective: Objective | Term | None = None,
    kernel: Kernel | None = None,
    clamp: bool = True,
    steps: int | None = None,
    sampling_steps: int | None = None,
    denoising_steps: int = 0,
    completion_steps: int = 10,
    buffer: Buffer | Literal["auto"] | None = "auto",
    start: StartSpec | XStart | Start | None = None,
    start_labels: Literal["uniform", "frequency"] = "uniform",
    optimizer: OptimizerSettings | OptimizerFactory | None = None,
    gradients: Gradients | None = None,
    iterations: int | None = None,
    batch_size: int | None = None,
    ema: float | None = None,
    dequantize: Pixels = "none",
    augment: Sequence[str | Change] = (),
    noise: float | None = None,
    classifier_noise: float | None = None,
    chain_augment: Sequence[str | Change] = (),
    augment_every: int = 0,
    keep_labels: float = 0.0,
    sum_labels: bool = False,
    folder: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
    guard: bool = True,
    allow_batch_statistics: bool = False,
    cadence: CadenceSettings | None = None,
    engine: EngineSettings | None = None,
    seed: int = 0,
    device: str = "auto",
    verbose: bool = True,
) -> Run:
    """Train a joint energy-based model and return it as a `Run`.

    `fit(net, (x, y))` is enough: other settings are chosen from the data and printed.

    Parameters
    ----------
    model
        A network that returns logits (without y: one value per row), trained or not, or a `JointModel`. `fit` trains a
        copy, in eval mode, in which rows must not depend on each other; with `allow_batch_statistics` a `JointModel`
        keeps its mode.
    data
        (x, y), x alone, a torch `Dataset` of such items, or a data set of `jointenergy.data`. Arrays, tensors, data
        frames or lists: x has uint8 pixels or floats, with NaN for unknown entries; y has integers or names, one column
        per label, with -1 (`MISSING`), NaN or None for missing labels. Masked entries of an array are missing.
    labels
        The class names, their number, or a mapping from label to values; default: inferred from y.
    validation
        A share or number of rows to hold out, or held-out data of the same form. They determine health, thresholds
        and the best checkpoint.
    bounds
        The range (low, high) of x. uint8 pixels are scaled to it. A `data.View` with levels is the range of the logits
        of dequantized pixels.
    objective
        `JEM()`, `GibbsJEM()`, `Mixed()`, `IGEBM()`, `CrossEntropy()`, without chains `ScoreMatching()`, `NCE()` or
        `Discrepancy()`, or a weighted sum of terms.
    label_objective
        Terms computed on separate, augmented batches: usually `LogPYGivenX()`.
    kernel, clamp, steps, sampling_steps, denoising_steps
        The transition of the chains. In a box, a Langevin kernel without bounds is clamped unless `clamp=False`. The
        last `denoising_steps` of a sample's steps are Langevin steps without noise.
    buffer, start, start_labels
        Where chains are stored (None: every chain starts fresh), and where fresh chains start.
    optimizer, gradients, iterations, batch_size, ema
        A function of the parameters that returns a torch optimizer, or `OptimizerSettings`. The guard scales its rates.
        `gradients` replaces the backward pass: `SharpnessAware()`, or a function of your own.
    dequantize, augment, noise, classifier_noise
        Changes of the data each time a row is used. With a `label_objective`, its batches alone are augmented, and
        `classifier_noise` is the noise on them, where it is not the `noise` of the density's batches.
    chain_augment, augment_every, keep_labels, sum_labels
        Changes of chains drawn from the buffer, the share of chains that keep the label they began with, and whether
        the loss averages over the labels of chains.
    folder
        The run folder. After an interruption the same call resumes; for a finished run it returns the result.
    callbacks, guard, cadence, engine, seed, device, verbose
        Callbacks and trackers, whether the guard is on, how often health is checked, and how training is computed.

    Returns
    -------
    Run
        The run with the averaged (EMA) weights of the best healthy checkpoint.
    """
    where = device_of(device)
    _check_arguments(
        bounds=bounds,
        kernel=kernel,
        buffer=buffer,
        start=start,
        start_labels=start_labels,
        optimizer=optimizer,
        gradients=gradients,
        ema=ema,
        dequantize=dequantize,
        noise=noise,
        augment_every=augment_every,
        denoising_steps=denoising_steps,
        keep_labels=keep_labels,
        classifier_noise=classifier_noise,
        folder=folder,
        callbacks=callbacks,
        cadence=cadence,
        engine=engine,
        clamp=clamp,
        guard=guard,
        verbose=verbose,
        sum_labels=sum_labels,
        allow_batch_statistics=allow_batch_statistics,
    )
    known = _prepared(model, data, labels, validation, bounds, objective)
    _check_network(known.model, allow_batch_statistics=allow_batch_statistics)
    trained, rows, view = known.model, known.data.to(where), known.bounds
    trained = trained.to(where).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if not allow_batch_statistics:
        trained = trained.eval()
        _check_values(trained, rows.x[:PROBED])
    numbers = defaults.default_settings(trained, rows, view, on_gpu=where.type == "cuda")
    settings = numbers["optimizer"] if optimizer is None else optimizer
    n_iterations = check_count(
        "iterations", numbers["iterations"] if iterations is None else iterations, most=ITERATIONS
    )
    if isinstance(settings, OptimizerSettings) and ema is not None:
        settings = replace(settings, ema=ema)
    spec = defaults.default_start(trained, rows) if start is None else start
    moves = kernel or defaults.default_kernel(trained, known.objective, rows, view)
    plan = make_plan(
        trained,
        rows,
        objective=known.objective,
        label_objective=None if label_objective is None else _objective(label_objective),
        kernel=within(moves, view, trained) if clamp else moves,
        bounds=view,
        iterations=n_iterations,
        batch_size=check_count("batch_size", numbers["batch_size"] if batch_size is None else batch_size),
        steps=check_count("steps", numbers["steps"] if steps is None else steps),
        sampling_steps=check_count(
            "sampling_steps", numbers["sampling_steps"] if sampling_steps is None else sampling_steps
        ),
        denoising_steps=int(denoising_steps),
        completion_steps=check_count("completion_steps", completion_steps),
        buffer=numbers["buffer"] if buffer == "auto" else buffer,
        start=spec,
        start_labels=start_labels,
        dequantize=dequantize,
        augment=augment,
        noise=numbers["noise"] if noise is None else noise,
        classifier_noise=classifier_noise,
        chain_augment=chain_augment,
        augment_every=augment_every,
        keep_labels=keep_labels,
        sum_labels=sum_labels,
        optimizer=settings,
        gradients=gradients,
        cadence=cadence or defaults.default_cadence(n_iterations),
        engine=engine,
        seed=check_count("seed", seed, least=0, most=INTEGER),
        guarded=guard,
        adapted=kernel is None and defaults.adapts(trained, known.objective, rows),
    )
    if not isinstance(settings, OptimizerSettings):
        plan = replace(plan, optimizer=OptimizerSettings(ema=numbers["optimizer"].ema if ema is None else ema))
    place = None if folder is None else Path(folder)
    with _locked(place):
        loop = _loop(plan, place, known, spec)
        loop.callbacks = [*callbacks, *([Printed("fit")] if verbose else [])]
        if verbose:
            _say(known, plan, spec, where, loop)
        if not loop.complete and (diverged := _trained(loop)) is not None:
            if loop.last_healthy == FIRST:
                raise diverged
            warnings.warn(f"{diverged}; returning the last healthy weights", stacklevel=2)
    return _run(loop, spec, place)


def train_plan(
    plan: Plan, *, callbacks: Sequence[Callback] = (), prepare: Callable[[Trainer], None] = lambda _: None
) -> tuple[Loop, Diverged | None]:
    """Train in memory with a complete plan; return the reason if the run diverged beyond recovery.

    `prepare` receives the trainer before training, for example to load earlier weights.
    """
    trainer = Trainer(plan)
    prepare(trainer)
    loop = Loop(trainer, callbacks=list(callbacks))
    loop.begin()
    return loop, _trained(loop)


def _check_arguments(**given: Any) -> None:  # noqa: ANN401 (whatever a user passes)
    """Refuse arguments of a wrong type."""

    def check(name: str, fine: bool, takes: str) -> None:
        if given[name] is not None and not fine:
            said = repr(given[name])
            raise InputError(f"{name}= takes {takes}, got {type(given[name]).__name__ if len(said) > 60 else said}")

    bounds, optimizer, folder = given["bounds"], given["optimizer"], given["folder"]
    pair = isinstance(bounds, tuple | list) and len(bounds) == 2
    pair = pair and all(is_number(b) and abs(b) <= LARGEST for b in bounds)
    check("bounds", pair, f"(low, high), the range of x, between {-LARGEST:g} and {LARGEST:g}")
    check("kernel", isinstance(given["kernel"], Kernel), "a kernel such as Langevin(1.0, 0.01)")
    check("buffer", given["buffer"] == "auto" or isinstance(given["buffer"], Buffer), "a ReplayBuffer(10_000), or None")
    start = given["start"]
    starts = not isinstance(start, type) and (hasattr(start, "bind") or hasattr(start, "draw"))
    check("start", starts, "a start such as ClassGaussians()")
    check("start_labels", given["start_labels"] in ("uniform", "frequency"), "'uniform' or 'frequency'")
    factory = callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer)
    takes = "a function of the parameters, such as lambda p: torch.optim.AdamW(p, 1e-3), or OptimizerSettings"
    check("optimizer", factory or isinstance(optimizer, OptimizerSettings), takes)
    check("gradients", callable(given["gradients"]), "a function of the loss and the parameters")
    endless = float("inf")
    numbers = {"ema": 1.0, "noise": endless, "classifier_noise": endless}
    numbers |= {"augment_every": endless, "denoising_steps": endless}
    for name, high in numbers.items():
        check(name, is_number(given[name]) and 0 <= given[name] < high, f"a number from 0 to below {high:g}")
    share = given["keep_labels"]
    check("keep_labels", is_number(share) and 0 <= share <= 1, "a share of chains, from 0 to 1")
    check("dequantize", given["dequantize"] in ("none", "bytes", "binary"), "'none', 'bytes' or 'binary'")
    check("folder", isinstance(folder, str | Path) and not Path(folder).is_file(), "the path of a folder")
    listed = isinstance(given["callbacks"], Sequence) and all(isinstance(c, Callback) for c in given["callbacks"])
    check("callbacks", listed, "a list of callbacks, each a jointenergy.Callback")
    check("cadence", isinstance(given["cadence"], CadenceSettings), "CadenceSettings")
    check("engine", isinstance(given["engine"], EngineSettings), "EngineSettings")
    for name in ("clamp", "guard", "verbose", "sum_labels", "allow_batch_statistics"):
        check(name, isinstance(given[name], bool), "True or False")


# The model and rows from the user's arguments.


class _Known:
    """A copy of the user's model, and the rows in its shape."""

    def __init__(
        self,
        model: JointModel,
        data: TrainingData,
        bounds: View,
        objective: Objective,
        family: str,
        notes: Sequence[str],
    ) -> None:
        self.model, self.data, self.bounds, self.objective = model, data, bounds, objective
        self.family, self.notes = family, tuple(notes)


def _prepared(
    model: nn.Module,
    data: object,
    labels: LabelNames | None,
    validation: float | int | object,
    bounds: tuple[float, float] | None,
    objective: Objective | Term | None,
) -> _Known:
    if not isinstance(model, nn.Module):
        raise InputError(f"fit takes a torch module that returns logits, or a JointModel, got {type(model).__name__}")
    if isinstance(data, TrainingData):
        if not isinstance(model, JointModel):
            raise InputError("prepared data need a JointModel, which defines labels and range")
        view = _view(bounds) if bounds is not None else domain_of(data.x, _box(model))[1]
        chosen = defaults.default_objective(model) if objective is None else _objective(objective)
        return _Known(copy.deepcopy(model), data, view, chosen, "model", ())
    rows = rows_of_user(data, labels if not isinstance(model, JointModel) else _own_labels(model, labels))
    own = _box(model) if isinstance(model, JointModel) else None
    domain, view = domain_of(rows.x, _view(bounds) if bounds is not None else own)
    notes: list[str] = []
    asked = None if objective is None else _objective(objective)
    if isinstance(model, JointModel):
        built, family = copy.deepcopy(model), "model"
        shape = model.event_shape or tuple(rows.x.shape[1:])
    else:
        inferred = labels is None and not isinstance(data, Dataset)
        built, shape, family, said = _model_of(
            copy.deepcopy(model), rows, domain, view, asked, one_hot=inferred and _one_hot(rows.y)
        )
        notes += [said] if said else []
    found = training_data(rows, domain if not isinstance(model, JointModel) else model.domain, view, validation, shape)
    if len(rows.labels) == 0 and asked is not None and any(t.labeled_only for t in asked.terms):
        raise InputError("the objective needs labels, but there is no y: pass data as (x, y), or train LogPX()")
    return _Known(built, found, view, asked or defaults.default_objective(built), family, notes)


def _own_labels(model: JointModel, labels: LabelNames | None) -> LabelNames | None:
    if labels is not None:
        raise InputError("a JointModel defines its labels: leave out labels=")
    return model.labels if len(model.labels) else None


def _view(bounds: tuple[float, float]) -> View:
    low, high = (float(b) for b in bounds)
    if not low < high:
        raise InputError(f"bounds must be (low, high) with low < high, got {bounds}")
    return View(low, high, bounds.levels if isinstance(bounds, View) else None)


def _box(model: JointModel) -> tuple[float, float] | None:
    return (model.domain.low, model.domain.high) if isinstance(model.domain, Box) else None


def _one_hot(y: Tensor) -> bool:
    """Tell whether labels look like the one-hot code of a class."""
    return y.shape[1] > 2 and bool(((y == 0) | (y == 1)).all()) and bool((y.sum(1) == 1).all())


def _model_of(
    network: nn.Module, rows: UserRows, domain: Domain, bounds: View, objective: Objective | None, *, one_hot: bool
) -> tuple[JointModel, tuple[int, ...], str, str]:
    """Wrap a network as a model, with x in the first shape that it accepts."""
    # Training p(x | y) only leaves an unknown normalizer for each label.
    open_levels = {"log_p_x_given_y", "denoising_score_matching", "energy_discrepancy", "energy_l2", "kl"}
    alone = objective is not None and {t.name for t in objective.terms} <= open_levels
    labels = rows.labels
    # Cast the copy to float32, like x.
    network = network.float().cpu().eval()
    first: Exception | None = None
    for said, x in candidate_shapes(rows.x[:PROBED]):
        shape = tuple(x.shape[1:])
        probe = (bounds.of_pixels(x) if x.dtype == torch.uint8 else x.nan_to_num()).float()
        model: JointModel
        if len(labels) == 0:
            model, family = EnergyModel(network, domain=domain, event_shape=shape), "energy"
        else:
            normalizer: Literal["joint", "conditional"] = "conditional" if alone else "joint"
            model = LogitModel(network, labels, domain=domain, event_shape=shape, normalizer=normalizer)
            family = "logits"
        try:
            _probe(model, probe)
            if one_hot:
                _check_one_logit_per_label(network, probe, len(labels))
        except InputError:
            raise  # the shape is right, but the output does not fit the labels
        except Exception as error:  # user code may raise anything
            first = first or error
            continue
        return model, shape, family, f"x is passed to the network {said}" if said else ""
    reason = str(first).partition("\n")[0] or type(first).__name__
    raise InputError(f"the network cannot take x of shape [n, {', '.join(map(str, rows.x.shape[1:]))}]: {reason}")


def _probe(model: JointModel, x: Tensor) -> None:
    """Test the network on two rows: the output must have a gradient, and rows must be independent."""
    y = torch.zeros(len(x), len(model.labels), dtype=torch.int64)
    before = x.clone()
    value = model.log_density_unchecked(x, y)
    if not torch.equal(x, before):
        raise InputError("the network changes its input in place: make its first layer work on a copy")
    if any(p.requires_grad for p in model.parameters()) and not value.requires_grad:
        raise InputError("the output of the network has no gradient: do not detach it or compute it under no_grad")
    with torch.no_grad():
        alone = torch.cat([model.log_density_unchecked(x[i : i + 1], y[i : i + 1]) for i in range(len(x))])
    if not torch.allclose(value.detach(), alone, rtol=1e-3, atol=1e-3) and bool(value.isfinite().all()):
        raise InputError(
            "the value of a row depends on the other rows, so it has no density of its own: use a network without "
            "batch statistics"
        )


@torch.no_grad()
def _check_one_logit_per_label(network: nn.Module, x: Tensor, n_labels: int) -> None:
    """Refuse a classifier of one-hot labels, whose logits would be read as those of binary labels."""
    output = network(x)
    if isinstance(output, Tensor) and tuple(output.shape) == (len(x), n_labels):
        raise InputError(
            f"y is a one-hot code of {n_labels} classes, the number of the network's logits: pass y.argmax(1), or name "
            "binary labels with labels="
        )


@torch.no_grad()
def _check_values(model: JointModel, x: Tensor) -> None:
    """Refuse a network that returns only NaN."""
    y = torch.zeros(len(x), len(model.labels), dtype=torch.int64, device=x.device)
    if bool(model.log_density_unchecked(x, y).isnan().all()):
        raise InputError("the network returns only NaN for the first rows: check its weights and layers")


def _objective(given: Objective | Term) -> Objective:
    if isinstance(given, Term):
        return Objective((given,))
    if not isinstance(given, Objective):
        raise InputError(f"objective= takes JEM() or a sum of terms such as LogPX(), got {given!r}")
    return given


def _check_network(model: JointModel, *, allow_batch_statistics: bool) -> None:
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError("no parameter of the network requires a gradient: set requires_grad to train it")
    if has_batch_norm(model) and not allow_batch_statistics:
        raise InputError(
            "batch norm makes each row's density depend on the other rows: fold it into fixed weights first, with "
            "net = jointenergy.networks.fold_batch_norm(net)"
        )


def within(kernel: Kernel, bounds: View, model: JointModel) -> Kernel:
    """Restrict a kernel to the model's box: Langevin is clamped, exact kernels reject proposals outside."""
    if not isinstance(model.domain, Box):
        return kernel
    if isinstance(kernel, Langevin) and kernel.bounds is None:
        return replace(kernel, bounds=(bounds[0], bounds[1]))
    if isinstance(kernel, BlockGibbs):
        return replace(kernel, x_kernel=within(kernel.x_kernel, bounds, model))
    return kernel


# The run folder, and training in it.


def _description(
    known: _Known, plan: Plan, spec: StartSpec | XStart | Start, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Describe all settings of a run, without weights and rows."""
    labels = plan.model.labels
    return {
        "format": 1,
        "family": known.family,
        "labels": dict(zip(labels.names, labels.values, strict=True)),
        "event_shape": list(plan.data.event_shape),
        "bounds": [*plan.bounds, *([plan.bounds.levels] if plan.bounds.levels else [])],
        "domain": description.describe(plan.model.domain),
        "normalizer": plan.model.normalizer,
        "tensors": {name: list(t.shape) for name, t in plan.model.state_dict().items()},
        "data": description.digest(plan.data),
        "objectives": [[description.describe(t) for t in o.terms] for o in plan.objectives],
        "density": plan.of_density,
        "kernel": description.describe(plan.kernel),
        "start": description.describe(spec),
        "buffer": description.describe(plan.buffer),
        "changes": description.describe([list(c) for c in plan.changes]),
        "optimizer": description.describe(plan.optimizer)
        if plan.make_optimizer is None
        else {**description.of_optimizer(optimizer), "ema": plan.optimizer.ema},
        "gradients": description.describe(plan.gradients),
        "network": description.of_network(plan.model),
        "chain_augment": description.describe(list(plan.chain_augment)),
        "start_labels": type(plan.start.label_start).__name__,
        "cadence": description.describe(plan.cadence),
        **{
            name: getattr(plan, name)
            for name in (
                *("iterations", "batch_size", "steps", "sampling_steps", "completion_steps", "augment_every"),
                *("denoising_steps", "keep_labels", "sum_labels", "seed", "guarded"),
            )
        },
    }


def _loop(plan: Plan, folder: Path | None, known: _Known, spec: StartSpec | XStart | Start) -> Loop:
    """Create a new run, or reopen that of the folder."""
    loop = Loop(Trainer(plan), folder)
    about = _description(known, plan, spec, loop.trainer.update.optimizer)
    if folder is None or is_free(folder):
        if folder is not None:
            description.write(folder, about)
        loop.begin()
        return loop
    before = description.read(folder)
    if (other := description.difference(before, about)) is not None:
        raise InputError(
            f"{folder} contains another run ({other}): choose another folder, or pass the settings of that run"
        )
    if not loop.store.names():
        loop.begin()
        return loop
    with told(f"the checkpoints of {folder} are damaged or from another version of jointenergy"):
        loop.resume()
    return loop


@contextmanager
def _locked(folder: Path | None) -> Iterator[None]:
    """Lock the folder, and refuse one that cannot be created."""
    with ExitStack() as held:
        if folder is not None:
            try:
                held.enter_context(only_writer(folder))
            except OSError as error:
                raise InputError(
                    f"folder= takes a folder that can be written, but {folder} cannot be created "
                    f"({error.strerror}): choose another"
                ) from None
        yield


@contextmanager
def _saved_on_interrupt(loop: Loop) -> Iterator[None]:
    """On Ctrl-C, save and stop after the current iteration; a second Ctrl-C stops at once."""
    if loop.folder is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(*_: object) -> None:
        loop.stop = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _trained(loop: Loop) -> Diverged | None:
    """Train to the end; return the reason if the run diverged beyond recovery."""
    try:
        with _saved_on_interrupt(loop):
            loop.fit()
    except Interrupted as stopped:
        then = "nothing is saved without folder=" if loop.folder is None else "call fit again to continue"
        raise KeyboardInterrupt(f"{stopped}; {then}") from None
    except Diverged as diverged:
        return diverged
    return None


def _say(known: _Known, plan: Plan, spec: object, device: torch.device, loop: Loop) -> None:
    """Print the settings that were chosen."""
    data, labels, trainer = plan.data, plan.model.labels, loop.trainer
    terms = [f"{t.weight:g} {t.name}" for o in plan.objectives for t in o.terms]
    box = f"; chains stay in [{plan.bounds[0]:.3g}, {plan.bounds[1]:.3g}]" if clamped(plan.kernel, plan.model) else ""
    moves = _moves(plan, trainer.chains.step_size)
    chains = (
        f"{moves}, {plan.steps} steps ({plan.sampling_steps} of a sample), start {spec}, buffer {plan.buffer}"
        if plan.uses_chains
        else f"no chains in training; samples by {moves}, {plan.sampling_steps} steps, start {spec}"
    )
    lines = [
        f"{len(data.x):,} rows of shape {data.event_shape}, {len(data.x_held):,} held out, {labels!r}",
        *known.notes,
        f"{_domain(plan)}; {_noise(plan)}",
        f"objective {' + '.join(terms)}",
        chains + box,
        f"{_optimizer(plan)}, averaged weights {plan.optimizer.ema:g}",
        f"batches of {plan.batch_size}, {plan.iterations:,} iterations on {device.type}, health checked every "
        f"{plan.cadence.check:,}",
    ]
    if loop.trainer.iteration:
        lines.append("the run is complete" if loop.complete else f"resuming at iteration {loop.trainer.iteration:,}")
    for line in lines:
        print(f"fit: {line}")


def _moves(plan: Plan, step_size: float | None) -> str:
    if not plan.adapted:
        return str(plan.kernel)
    labels = f"{plan.kernel.y_kernel}, then " if isinstance(plan.kernel, BlockGibbs) else ""
    adapted = f" adapted to accept {ACCEPTED:.0%}" if plan.uses_chains else ""
    return f"{labels}MALA in the shape of a class, step size {step_size:.3g}{adapted}"


def _domain(plan: Plan) -> str:
    domain = plan.model.domain
    if isinstance(domain, Box):
        return f"domain [{domain.low:.3g}, {domain.high:.3g}]"
    reals = f"domain R^{math.prod(plan.data.event_shape)}"
    if domain.scale is None:
        return f"{reals} without a reference"
    form = " with a full covariance" if isinstance(domain.scale, tuple) else ""
    return f"{reals}, Gaussian reference of standard deviation {domain.width:.3g}{form}"


def _noise(plan: Plan) -> str:
    for change in plan.changes[0]:
        if isinstance(change, GaussianNoise):
            return f"noise on data {change.scale:.3g}"
        if isinstance(change, CorrelatedNoise):
            scales = change.root.square().sum(0).sqrt()
            return f"noise on data {float(scales.min()):.3g} to {float(scales.max()):.3g}"
    return "no noise on data"


def _optimizer(plan: Plan) -> str:
    """Name the optimizer, with the settings that differ from those of `OptimizerSettings()`."""
    if plan.make_optimizer is not None:
        return "your optimizer"
    own, usual = plan.optimizer, OptimizerSettings()
    said = [f"{own.name}, learning_rate {own.learning_rate:g}"]
    for name in (f.name for f in fields(own) if f.name not in ("name", "learning_rate", "ema")):
        if (value := getattr(own, name)) != getattr(usual, name):
            said.append(f"{name} {value:g}" if is_number(value) else f"{name} {value}")
    return ", ".join(said)


def _run(loop: Loop, spec: StartSpec | XStart | Start, folder: Path | None) -> Run:
    """Create the run from the averaged weights of the best healthy checkpoint."""
    plan = loop.trainer.plan
    name, checkpoint, notes = best_of(loop.store, loop.where)
    plan = replace(plan, kernel=with_step_size(plan.kernel, checkpoint.values["step_size"]))
    model = copy.deepcopy(loop.trainer.ema)
    model.load_state_dict(under(checkpoint.tensors, "ema/"))
    path = None if folder is None else folder / "checkpoints" / name
    store, verdict = loop.store, loop.verdict
    notes = [*notes, *loop.trainer.warnings]
    if verdict is not None and not verdict.healthy:
        notes.append(f"the run is not healthy: {'; '.join(verdict.complaints)}")
    return run_of(
        model.requires_grad_(False).eval(),
        plan,
        spec,
        "the run of fit" if folder is None else f"the run {folder}",
        path,
        lambda: store.load(name).tensors,
        notes,
    )


def best_of(store: Store, whose: str) -> tuple[str, Checkpoint, list[str]]:
    """Return the best healthy checkpoint, or the newest intact one with a note."""
    best, notes = store.best(), []
    if best is None:
        notes.append(f"{whose} has no healthy checkpoint")
    else:
        try:
            return best, store.load(best), []
        except InputError as error:
            notes.append(f"the best weights cannot be read ({error})")
    newest, _ = store.newest()
    if newest is None:
        raise InputError(f"{whose} has no intact checkpoint: train it again in a new folder")
    notes[-1] += f": using the weights of iteration {newest.iteration}, whose density may be meaningless"
    return checkpoints.name_of(newest.iteration), newest, notes


def run_of(
    model: JointModel,
    plan: Plan,
    spec: StartSpec | XStart | Start,
    name: str,
    checkpoint: Path | None,
    read_tensors: Callable[[], dict[str, Tensor]],
    notes: Sequence[str],
) -> Run:
    """Create a run from a plan, in memory or in a folder."""
    data = plan.data
    origin = Origin(
        name,
        data.labels,
        data.event_shape,
        data.x.device,
        None,
        plan.seed,
        None,
        checkpoint,
        density=plan.of_density,
        read_data=lambda: data,
        make_plan=lambda _: plan,
        read_tensors=read_tensors,
    )
    every = plan.augment_every if plan.chain_augment else 0
    changes = plan.chain_augment if every else ()
    aids = Aids(augmentations=changes, augment_every=every, denoise_for=plan.denoising_steps)
    sampling = Sampling.of(plan.kernel, plan.sampling_steps, aids, spec)
    thresholds = Thresholds()
    if checkpoint is not None:
        thresholds = Thresholds(checkpoint.parent.parent, checkpoints.checksum(checkpoint))
    return Run(model, origin, sampling, plan.bounds, thresholds, notes)
