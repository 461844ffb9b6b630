"""training: a trainer as a checkpoint, and back, in place; on as many processes as it was made by, or on others."""

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
from jointenergy.training.checkpoints import Checkpoint
from jointenergy.training.distributed import World
from jointenergy.training.stores import Store
from jointenergy.training.trainer import Trainer


@dataclass(frozen=True)
class TrainerCourse:
    """The numbers that a trainer goes on with."""

    attempt: Natural
    steps: Annotated[int, Field(ge=0, le=COUNT)]
    learning_rate_scale: Annotated[float, Field(gt=0, le=LARGEST)]
    n_skipped: Natural
    skipped_in_row: Natural
    world_size: Annotated[int, Field(ge=1, le=COUNT)]


_COURSE = TypeAdapter(TrainerCourse)


def save(trainer: Trainer, values: dict[str, Any]) -> Checkpoint:
    """Everything: what all processes share, and the buffer and streams of each, which the first process gathers."""
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
        trainer.n_skipped,
        trainer.skipped_in_row,
        trainer.world.size,
    )
    return Checkpoint(trainer.iteration, tensors, {**asdict(course), **values})


def _own(trainer: Trainer) -> dict[str, Tensor]:
    """What each process has of its own."""
    own = {"streams/chains": trainer.chains.generator.get_state()}
    own |= {f"streams/{feed.name}": feed.generator.get_state() for feed in trainer.feeds}
    if trainer.chains.buffer is not None:
        own |= {f"buffer/{k}": v for k, v in trainer.chains.buffer.state_dict().items()}
    return own


def newest(store: Store, world: World, whose: str) -> tuple[Checkpoint, list[str]]:
    """The newest checkpoint that is whole, as the first process finds it, and what it says of damaged ones."""

    def find() -> tuple[str, list[str]]:
        if found is None:
            raise InputError(f"{whose} has no checkpoint that is whole: start the run again in a new folder")
        return checkpoints.name_of(found.iteration), messages

    found, messages = store.newest() if world.first else (None, [])
    name, messages = world.from_first(find)
    return found or store.load(name), messages


def whole(store: Store, names: Sequence[str], world: World) -> tuple[str, Checkpoint, list[str]]:
    """The last of the named checkpoints that is whole, and a sentence for each damaged one that was passed over."""

    def find() -> tuple[str, list[str]]:
        messages: list[str] = []
        for name in reversed(names):
            try:
                store.load(name)
            except InputError as error:
                messages.append(f"{error}; the one before it is used")
                continue
            return name, messages
        raise InputError("no checkpoint of the run is whole: start it again in a new folder")

    found, messages = world.from_first(find)
    return found, store.load(found), messages


def restore(trainer: Trainer, checkpoint: Checkpoint) -> str | None:
    """All of it, exactly, as if the run had never stopped; a sentence where the number or kind of processes changed."""
    values = checkpoint.values
    course = of_json(
        _COURSE, json.dumps({f.name: values[f.name] for f in fields(TrainerCourse)}), "the checkpoint is damaged"
    )
    restore_weights(trainer, checkpoint)
    trainer.attempt = course.attempt
    trainer.chains.steps = course.steps
    trainer.learning_rate_scale = course.learning_rate_scale
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
    # Streams belong to a process on a kind of device: others begin anew, at a point that no earlier one has used.
    for name, generator in generators.items():
        parts = (trainer.seed, name, "resumed", trainer.iteration, trainer.world.size, trainer.world.rank)
        generator.set_state(seeded(*parts, device=generator.device).get_state())
    return (
        f"made by {values['world_size']} process(es), resumed by {trainer.world.size} on {trainer.data.x.device.type}: "
        "random streams begin anew"
    )


def restore_weights(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Weights, averaged weights, optimizer, chains and iteration; the data order and the streams go on."""
    tensors = checkpoint.tensors
    try:
        trainer.model.load_state_dict(under(tensors, "model/"))
        trainer.ema.load_state_dict(under(tensors, "ema/"))
    except RuntimeError:
        raise InputError("the checkpoint is of another network") from None
    restore_optimizer(trainer, under(tensors, "optimizer/"))
    if trainer.chains.buffer is not None:
        shards = [under(tensors, f"ranks/{r}/buffer/") for r in range(checkpoint.values["world_size"])]
        trainer.chains.buffer.load_state_dict(shard_of(shards, trainer.world.rank, trainer.world.size))
    trainer.completions.load_state_dict(under(tensors, "completions/"))
    trainer.iteration = checkpoint.iteration
    trainer.update.skips[1] = 0


def restore_optimizer(trainer: Trainer, saved: dict[str, Tensor]) -> None:
    """Into the tensors that are there, which a recorded step goes on with; they are made where there are none yet."""
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
    # A checkpoint of before the first step has no such state: it begins at zero.
    for i, parameter in enumerate(parameters):
        for key in set(trainer.update.optimizer.state[parameter]) - found.get(i, set()):
            trainer.update.optimizer.state[parameter][key].zero_()


def shard_of(shards: list[dict[str, Tensor]], rank: int, size: int) -> dict[str, Tensor]:
    """The part of a process in the states of all shards, dealt out anew where their number has changed."""
    if len(shards) == size:
        return shards[rank]
    n_seen = sum(int(s["n_seen"]) for s in shards)
    # Used slots come first in a buffer: those of all shards before the empty ones, then every size-th to each process.
    used = [min(int(s["n_seen"]), len(s["x"])) for s in shards]
    dealt: dict[str, Tensor] = {"n_seen": torch.tensor(n_seen // size + (rank < n_seen % size))}
    for name in ("x", "y", "age"):
        full = torch.cat([s[name][:n] for s, n in zip(shards, used, strict=True)])
        empty = torch.cat([s[name][n:] for s, n in zip(shards, used, strict=True)])
        dealt[name] = torch.cat((full, empty))[rank::size]
    return dealt


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, without it."""
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
