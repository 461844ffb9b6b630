"""training: save a trainer as a checkpoint and restore it in place, on the same or another number of processes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.files.schema import Natural, of_json
from jointenergy.limits import COUNT, LARGEST
from jointenergy.streams import seeded
from jointenergy.training import checkpoints
from jointenergy.training.chains import with_step_size
from jointenergy.training.checkpoints import Checkpoint
from jointenergy.training.distributed import World
from jointenergy.training.stores import Store
from jointenergy.training.trainer import Trainer


@dataclass(frozen=True)
class TrainerCourse:
    """The plain values of a trainer's state."""

    attempt: Natural
    steps: Annotated[int, Field(ge=0, le=COUNT)]
    learning_rate_scale: Annotated[float, Field(gt=0, le=LARGEST)]
    step_size: Annotated[float, Field(gt=0, le=LARGEST)] | None
    """Of the chains' moves of x, where it is adapted."""
    n_skipped: Natural
    skipped_in_row: Natural
    world_size: Annotated[int, Field(ge=1, le=COUNT)]


_COURSE = TypeAdapter(TrainerCourse)


def save(trainer: Trainer, values: dict[str, Any]) -> Checkpoint:
    """Save everything: the shared state, and the buffers and streams of all processes, gathered by the first."""
    tensors: dict[str, Tensor] = {}
    tensors |= {f"model/{k}": v for k, v in trainer.model.state_dict().items()}
    tensors |= {f"ema/{k}": v for k, v in trainer.ema.state_dict().items()}
    for i, state in trainer.update.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{i}/{k}": torch.as_tensor(v) for k, v in state.items()}
    for feed in trainer.feeds:
        tensors |= {f"order/{feed.name}/{k}": v for k, v in feed.order.state_dict().items()}
    tensors |= {f"completions/{k}": v for k, v in trainer.completions.state_dict().items()}
    for name, value in _own(trainer).items():
        for rank, part in enumerate(trainer.world.gather_at_first(value)):
            tensors[f"ranks/{rank}/{name}"] = part
    course = TrainerCourse(
        trainer.attempt,
        trainer.chains.steps,
        trainer.learning_rate_scale,
        trainer.chains.step_size if trainer.plan.adapted else None,
        trainer.n_skipped,
        trainer.skipped_in_row,
        trainer.world.size,
    )
    return Checkpoint(trainer.iteration, tensors, {**asdict(course), **values})


def _own(trainer: Trainer) -> dict[str, Tensor]:
    """Return the state of this process only."""
    own = {"streams/chains": trainer.chains.generator.get_state()}
    own |= {f"streams/{feed.name}": feed.generator.get_state() for feed in trainer.feeds}
    if trainer.chains.buffer is not None:
        own |= {f"buffer/{k}": v for k, v in trainer.chains.buffer.state_dict().items()}
    return own


def newest(store: Store, world: World, whose: str) -> tuple[Checkpoint, list[str]]:
    """Find the newest intact checkpoint in the first process, with messages about damaged ones."""

    def find() -> tuple[str, list[str]]:
        if found is None:
            raise InputError(f"{whose} has no intact checkpoint: train again in a new folder")
        return checkpoints.name_of(found.iteration), messages

    found, messages = store.newest() if world.first else (None, [])
    name, messages = world.from_first(find)
    return found or store.load(name), messages


def whole(store: Store, names: Sequence[str], world: World) -> tuple[str, Checkpoint, list[str]]:
    """Return the last intact one of the named checkpoints, with a message for each damaged one that was skipped."""

    def find() -> tuple[str, list[str]]:
        messages: list[str] = []
        for name in reversed(names):
            try:
                store.load(name)
            except InputError as error:
                messages.append(f"{error}; using the previous one")
                continue
            return name, messages
        raise InputError("the run has no intact checkpoint: train again in a new folder")

    found, messages = world.from_first(find)
    return found, store.load(found), messages


def restore(trainer: Trainer, checkpoint: Checkpoint) -> str | None:
    """Restore everything exactly; return a message if the number of processes or the device type changed."""
    values = checkpoint.values
    course = of_json(
        _COURSE, json.dumps({f.name: values[f.name] for f in fields(TrainerCourse)}), "the checkpoint is damaged"
    )
    restore_weights(trainer, checkpoint)
    trainer.attempt = course.attempt
    trainer.chains.steps = course.steps
    trainer.learning_rate_scale = course.learning_rate_scale
    trainer.chains.kernel = with_step_size(trainer.chains.kernel, course.step_size)
    trainer.update.skips.copy_(torch.tensor((course.n_skipped, course.skipped_in_row)))
    for feed in trainer.feeds:
        feed.order.load_state_dict(under(checkpoint.tensors, f"order/{feed.name}/"))
    streams = under(checkpoint.tensors, f"ranks/{min(trainer.world.rank, values['world_size'] - 1)}/streams/")
    generators = {"chains": trainer.chains.generator} | {feed.name: feed.generator for feed in trainer.feeds}
    same_device = all(streams[k].numel() == g.get_state().numel() for k, g in generators.items())
    if values["world_size"] == trainer.world.size and same_device:
        for name, generator in generators.items():
            generator.set_state(streams[name])
        return None
    # Random streams belong to a process and a device type: others restart at a point that was never used.
    for name, generator in generators.items():
        parts = (trainer.seed, name, "resumed", trainer.iteration, trainer.world.size, trainer.world.rank)
        generator.set_state(seeded(*parts, device=generator.device).get_state())
    return (
        f"saved by {values['world_size']} process(es), resumed by {trainer.world.size} on "
        f"{trainer.data.x.device.type}; random streams restarted"
    )


def restore_weights(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Restore weights, averaged weights, optimizer, chains and iteration, but not the data order and the streams."""
    tensors = checkpoint.tensors
    try:
        trainer.model.load_state_dict(under(tensors, "model/"))
        trainer.ema.load_state_dict(under(tensors, "ema/"))
    except RuntimeError:
        raise InputError("the checkpoint belongs to another network") from None
    restore_optimizer(trainer, under(tensors, "optimizer/"))
    if trainer.chains.buffer is not None:
        shards = [under(tensors, f"ranks/{r}/buffer/") for r in range(checkpoint.values["world_size"])]
        trainer.chains.buffer.load_state_dict(shard_of(shards, trainer.world.rank, trainer.world.size))
    trainer.completions.load_state_dict(under(tensors, "completions/"))
    trainer.iteration = checkpoint.iteration
    trainer.update.skips[1] = 0


def restore_optimizer(trainer: Trainer, saved: dict[str, Tensor]) -> None:
    """Restore into the existing tensors, which a recorded step uses, creating them if needed."""
    parameters = trainer.update.parameters
    found: dict[int, set[str]] = {}
    for name, value in saved.items():
        index, key = name.split("/")
        parameter = parameters[int(index)]
        own = trainer.update.optimizer.state[parameter]
        if key in own:
            own[key].copy_(value)
        else:
            like = parameter if value.shape == parameter.shape else value.to(parameter.device)
            own[key] = torch.empty_like(like).copy_(value)
        found.setdefault(int(index), set()).add(key)
    # A checkpoint before the first step has no such state: it starts at zero.
    for i, parameter in enumerate(parameters):
        for key in set(trainer.update.optimizer.state[parameter]) - found.get(i, set()):
            trainer.update.optimizer.state[parameter][key].zero_()


def shard_of(shards: list[dict[str, Tensor]], rank: int, size: int) -> dict[str, Tensor]:
    """Return one process's part of all shards, redistributed if the number of processes has changed."""
    if len(shards) == size:
        return shards[rank]
    n_seen = sum(int(s["n_seen"]) for s in shards)
    # Used slots come first in a buffer: concatenate those of all shards, then deal them out in turn.
    used = [min(int(s["n_seen"]), len(s["x"])) for s in shards]
    dealt: dict[str, Tensor] = {"n_seen": torch.tensor(n_seen // size + (rank < n_seen % size))}
    for name in ("x", "y", "age"):
        full = torch.cat([s[name][:n] for s, n in zip(shards, used, strict=True)])
        empty = torch.cat([s[name][n:] for s, n in zip(shards, used, strict=True)])
        dealt[name] = torch.cat((full, empty))[rank::size]
    return dealt


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, without the prefix."""
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
