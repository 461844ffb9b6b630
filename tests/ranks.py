"""What each process of a test of distributed training does: `python -m tests.ranks FOLDER DEVICE CASE ...`.

Processes find each other by a file in the folder, so tests that run side by side have no port to fight for. A case that
holds in a process leaves `CASE.RANK` in the folder.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from jointenergy.buffers import Drawn
from jointenergy.errors import InputError
from jointenergy.kernels import Target
from jointenergy.labels import MISSING
from jointenergy.objectives import Batch, Draws, Samples
from jointenergy.recipes import run_folder
from jointenergy.recipes.build import trainer_of
from jointenergy.recipes.data import data_of
from jointenergy.recipes.schema import Recipe, read
from jointenergy.streams import seeded
from jointenergy.training.chains import Moved
from jointenergy.training.distributed import Parted, World, end_alone, join, leave
from jointenergy.training.statistics import running
from jointenergy.training.trainer import Trainer
from tests.small import JOINT, Before, next_of, small

TINY = (
    "model.network.hidden=[16]",
    "chain.steps=2",
    "chain.sampling_steps=3",
    "buffer.size=200",
    "cadence.log=10",
    "cadence.checkpoint=20",
)
ALL = slice(None)

Case = Callable[[World, torch.device, Path], None]


def flat(tensors: object) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])  # type: ignore[attr-defined]


def same(world: World, *tensors: Tensor) -> bool:
    """Whether tensors are the same in all processes, bit for bit; a NaN is a NaN."""
    return all(torch.equal(t.nan_to_num(nan=-1e30), p.nan_to_num(nan=-1e30)) for t in tensors for p in world.gather(t))


def weights(trainer: Trainer) -> tuple[Tensor, Tensor]:
    return flat(trainer.model.parameters()), flat(trainer.ema.parameters())


def made(recipe: Recipe, world: World, device: torch.device) -> Trainer:
    return trainer_of(recipe, data_of(recipe, device=device), 0, world=world)


# ---------------------------------------------------------------- (a) processes stay together


def steps(world: World, device: torch.device, folder: Path) -> None:
    """Weights and averaged weights are equal after each step; buffers, streams and rows are each process's own."""
    trainer = made(small(*TINY), world, device)
    alone = made(small(*TINY), World(), device)
    assert same(world, *weights(trainer))
    for _ in range(10):
        before = weights(trainer)[0].clone()
        whole = alone.feeds[0].order.next()
        assert torch.equal(trainer.feeds[0].order.ahead(), whole)
        loss, _moved, norm = trainer.step()
        assert same(world, *weights(trainer), norm, loss.total.detach(), *loss.parts.values())
        assert not torch.equal(weights(trainer)[0], before)
    assert trainer.chains.buffer is not None
    assert trainer.chains.buffer.capacity == 200 // world.size
    mine = trainer.chains.buffer.state_dict()["x"]
    other = world.gather(mine)[(world.rank + 1) % world.size]
    assert not (mine[:, None] == other[None]).all(2).any(), "two processes have the same chain"
    for generator in (trainer.chains.generator, trainer.feeds[0].generator):
        assert not same(world, generator.get_state())


def shared_states(world: World, device: torch.device, folder: Path) -> None:
    """Completions of rows, and running statistics of data, are the same in all processes."""
    settings = small(*TINY, "data.missing_x=0.3", "data.missing_labels=0.5", "chain.label_kernel=exact", *JOINT)
    trainer = made(settings, world, device)
    begun = {k: v.clone() for k, v in trainer.completions.state_dict().items()}
    for _ in range(3):
        trainer.step()
    assert same(world, *weights(trainer))
    assert any(name.endswith("/x") for name in begun)
    for name, now in trainer.completions.state_dict().items():
        assert same(world, now), name
        moved = (now != begun[name]).flatten(1).any(1)
        assert int(moved.sum()) > 2 * settings.batch_size, "rows of other processes are left behind"
    layer = nn.BatchNorm1d(2, device=device)
    running(layer)[0].fill_(world.rank)
    world.mean(running(layer))
    assert layer.running_mean is not None
    assert layer.running_mean.tolist() == [(world.size - 1) / 2] * 2


# ---------------------------------------------------------------- (b) gradients are those of one process


def injected(trainer: Trainer, rows: slice) -> None:
    """Give the trainer its rows of one fixed batch and of one fixed set of chains, in float64.

    Its halves differ in how many labels are missing, how many chains are sick, and where the chains are.
    """
    device = trainer.data.x.device
    trainer.model.double()
    trainer.ema.double()
    x, y = trainer.data.x[:64].double(), trainer.data.y[:64].clone()
    y[:20] = MISSING
    for feed in trainer.feeds:
        feed.batch = lambda: Batch(x[rows], y[rows])  # type: ignore[method-assign]
    generator = seeded("chains", device=device)
    begin = torch.rand(64, 64, generator=generator, device=device, dtype=torch.float64) * 2 - 1
    begin[:32] /= 10
    drawn = Drawn.fresh(begin, trainer.chains.fresh(64).y[:1].expand(64, 1).clone())
    trainer.chains.generator = generator
    moved = trainer.chains.move(Target(trainer.model), drawn, drawn, known=trainer.chains.known)
    sick = torch.zeros(64, dtype=torch.bool, device=device)
    sick[:3] = sick[40:55] = True
    part = Drawn(drawn.x[rows], drawn.y[rows], drawn.age[rows])
    there = torch.where(sick[:, None], drawn.x, moved.state.x)[rows]
    before = None if moved.moved_from is None else moved.moved_from.rows(rows)
    ours = Moved(part, moved.state.rows(rows), sick[rows], part, there, moved_from=before)
    trainer.move = lambda given, n: ours  # type: ignore[method-assign]
    trainer.chains.store = lambda moved: None  # type: ignore[method-assign]


def gradient(trainer: Trainer, rows: slice) -> tuple[Tensor, Tensor]:
    """The gradient of a step with injected rows, and its loss with the parts."""
    injected(trainer, rows)
    loss, _moved, _norm = trainer.step()
    return flat(p.grad for p in trainer.model.parameters()), flat([loss.total, *loss.parts.values()])


def average_of_averages(trainer: Trainer) -> None:
    """A broken twin: each process divides by its own number of chains that are well."""
    right = trainer.draws_of

    def draws_of(*arguments: object) -> Draws:
        draws = right(*arguments)
        parts = {f.name: getattr(draws, f.name) for f in fields(draws)}
        return Draws(**{k: replace(v, divisor=None) if isinstance(v, Samples) else v for k, v in parts.items()})

    trainer.draws_of = draws_of  # type: ignore[method-assign, assignment]


OBJECTIVES = (
    ("objective.energy_l2=0.1", "objective.kl=0.3", "model.domain=reals", "optimizer.weight_prior=1.0"),
    ("chain.label_kernel=exact", "objective.log_p_x=0.0", "objective.log_p_xy=1.0"),
)


def gradients(world: World, device: torch.device, folder: Path) -> None:
    """The same positives and negatives give the gradient of one process with all of them, to 1e-6 and far below."""
    share = 64 // world.size
    mine = slice(share * world.rank, share * (world.rank + 1))
    for overrides in OBJECTIVES:
        recipe = small(*TINY, *overrides)
        one, loss = gradient(made(recipe, World(), device), ALL)
        many, its_loss = gradient(made(recipe, world, device), mine)
        assert one.abs().max() > 0.01
        torch.testing.assert_close(many, one, rtol=0, atol=1e-12)
        torch.testing.assert_close(its_loss, loss, rtol=0, atol=1e-12)
        broken = made(recipe, world, device)
        average_of_averages(broken)
        assert (gradient(broken, mine)[0] - one).abs().max() > 1e-5, "the test would not see a wrong divisor"


# ---------------------------------------------------------------- (e) the guard decides for all


def faults(world: World, device: torch.device, folder: Path) -> None:
    """A fault in the last process alone: all skip, purge and roll back alike, and stay together."""
    struck = world.rank == world.size - 1
    recipe = small(*TINY, "iterations=80", "chain.clamp=false", "cadence.check=80")
    run = run_folder.create(folder / "faults", recipe, 0, device=device, world=world)
    trainer, right = run.trainer, run.trainer.data.x.clone()
    seen: list[tuple[int, int, int]] = []
    kept = weights(trainer)[0]

    def before_step(trainer: Trainer) -> None:
        nonlocal kept
        at = (trainer.attempt, trainer.iteration)
        assert same(world, *weights(trainer), torch.tensor(at))
        if struck:  # one bad batch, then nothing but bad ones until the run is set back
            bad = at == (0, 12) or (trainer.attempt == 0 and trainer.iteration >= 40)
            trainer.data.x.copy_(right.new_full((), torch.nan) if bad else right)
        if struck and at == (0, 22):
            assert trainer.chains.buffer is not None
            state = trainer.chains.buffer.state_dict()
            state["x"].fill_(1e6)
            trainer.chains.buffer.load_state_dict(state)
        if at == (0, 12):
            kept = weights(trainer)[0].clone()
        if at == (0, 13):
            assert torch.equal(kept, weights(trainer)[0]), "a batch of NaN in one process changed the weights"
        seen.append((*at, trainer.n_skipped))

    run.callbacks.append(Before(before_step))
    run.fit()
    assert same(world, *weights(trainer))
    assert (0, 13, 1) in seen
    assert trainer.attempt == 1
    assert trainer.iteration == 80
    assert same(world, torch.tensor([s for s in seen if s[0] == 0]), torch.tensor(run.interventions))
    if world.first:
        events = [json.loads(line) for line in (folder / "faults" / "events.jsonl").read_text().splitlines()]
        told = {e["event"]: e for e in events}
        # Swept, not only the 68 that three draws meet; 1 in 20 of those drawn begins anew by itself.
        assert told["purge"]["chains"] > 85, told
        assert "non-finite" in told["rollback"]["says"], told
        assert told["rollback"]["rolled_back_at"] == 65, told
        assert [e["event"] for e in events].count("rollback") == 1


# ---------------------------------------------------------------- (c, d) runs that stop and go on


def more_processes(world: World, device: torch.device, folder: Path) -> None:
    """A run of one process goes on in this many; a copy of what they made of it is left for one process again."""
    alone = run_folder.reopen(folder / "one", device=device) if world.first else None
    world.wait()
    run = run_folder.reopen(folder / "one", device=device, world=world)
    trainer = run.trainer
    rows = torch.cat(world.gather(next_of(trainer.feeds[0])[1])).cpu()
    assert trainer.chains.buffer is not None
    chains = torch.cat(world.gather(trainer.chains.buffer.state_dict()["x"]))
    if alone is not None:
        assert torch.equal(rows, alone.trainer.feeds[0].order.next())  # the data order goes on
        assert alone.trainer.chains.buffer is not None
        before = alone.trainer.chains.buffer.state_dict()["x"]
        assert not torch.equal(before, chains)
        assert torch.equal(before.unique(dim=0), chains.unique(dim=0))
    assert len(chains) == 200
    assert not same(world, trainer.chains.generator.get_state())

    def copy(trainer: Trainer) -> None:
        if world.first and trainer.iteration == 80:
            shutil.copytree(folder / "one", folder / "copy")

    run.callbacks.append(Before(copy))
    run.fit()
    assert same(world, *weights(trainer))


def whole_and_resumed(world: World, device: torch.device, folder: Path) -> None:
    """An unbroken run of the recipe in `broken`, and that run from where it is to its end."""
    resumed = run_folder.reopen(folder / "broken", device=device, world=world)
    run_folder.create(
        folder / "whole", read(folder / "broken" / run_folder.RECIPE), 0, device=device, world=world
    ).fit()
    resumed.fit()


# ---------------------------------------------------------------- what goes wrong


def errors(world: World, device: torch.device, folder: Path) -> None:
    """What the first process cannot do is an error of all, and each of them can go on from it."""
    with pytest.raises(OSError, match="nowhere"):
        world.from_first(lambda: (folder / "nowhere" / "file").write_text(""))
    with pytest.raises(InputError, match="nowhere"):
        world.from_first(refuse)
    assert world.from_first(lambda: 7) == 7


def refuse() -> int:
    raise InputError("this goes nowhere")


def lost(world: World, device: torch.device, folder: Path) -> None:
    """The last case: all but the first process end, and the first learns of it in one sentence."""
    if world.first:
        with pytest.raises(Parted, match=r"^another process of the run has ended .*$"):
            world.wait()
    (folder / f"lost.{world.rank}").touch()
    end_alone(0)


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (steps, shared_states, gradients, faults, more_processes, whole_and_resumed, errors, lost)
}


def main() -> None:
    folder, kind, *names = sys.argv[1:]
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=size)
    world, device = join(kind)
    for name in names:
        CASES[name](world, device, Path(folder))
        (Path(folder) / f"{name}.{rank}").touch()
    leave()


if __name__ == "__main__":
    main()
