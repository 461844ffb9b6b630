"""buffers: replay and reservoir buffers of joint states."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.inputs import check_count, check_x, is_number
from jointenergy.labels import MISSING, Given, LabelSpace
from jointenergy.limits import GIB, memory

__all__ = ["Buffer", "Drawn", "ReplayBuffer", "ReservoirBuffer"]


@final
@dataclass(frozen=True, eq=False)
class Drawn:
    """Joint states on the way between a buffer and a chain.

    Parameters
    ----------
    x
        States, `[n, *event]`.
    y
        Labels, int64 `[n, L]`.
    age
        The number of chain steps that each state has made, int64 `[n]`.
    slots
        Where in the buffer each state came from; None for fresh states.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> states = je.buffers.Drawn.fresh(torch.zeros(4, 2), torch.zeros(4, 1, dtype=torch.int64))
    >>> len(states), states.slots is None
    (4, True)
    """

    x: Tensor
    y: Tensor
    age: Tensor
    slots: Tensor | None = None

    @classmethod
    def fresh(cls, x: Tensor, y: Tensor) -> Drawn:
        """Create states that have made no step and belong to no slot."""
        return cls(x, y, torch.zeros(len(x), dtype=torch.int64, device=x.device))

    def replaced(self, rows: Tensor, fresh: Drawn) -> Drawn:
        """Replace the chosen rows, bool `[n]`, by fresh states; a restarted chain keeps its slot."""
        x = torch.where(rows.view(-1, *(1,) * (self.x.ndim - 1)), fresh.x, self.x)
        return Drawn(x, torch.where(rows[:, None], fresh.y, self.y), torch.where(rows, fresh.age, self.age), self.slots)

    def __len__(self) -> int:
        return len(self.x)


class Buffer(ABC):
    """Base class of buffers: joint states in numbered slots, which are filled in order.

    Without an event shape a buffer is a specification, such as `ReplayBuffer(10_000, restart=0.05)`, that `fit` binds
    to its data. States are copied in and out, on the buffer's device. A seed gives the same slots on every device.

    Parameters
    ----------
    capacity
        The number of slots.
    event_shape
        The shape of one row of x; None for a specification.
    labels
        The label variables; None for no labels.
    restart
        The fraction of chains that are restarted at each draw.
    dtype
        The dtype of x.
    device
        Where states are kept.

    Examples
    --------
    >>> import jointenergy as je
    >>> issubclass(je.ReplayBuffer, je.buffers.Buffer)
    True
    """

    def __init__(
        self,
        capacity: int,
        event_shape: Sequence[int] | None = None,
        labels: LabelSpace | None = None,
        *,
        restart: float = 0.05,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        check_count("a buffer's capacity", capacity)
        if not (is_number(restart) and 0 <= restart <= 1):
            raise InputError(f"restart is the fraction of chains to restart, between 0 and 1, got {restart!r}")
        self.restart = restart
        self.bound = event_shape is not None
        if not dtype.is_floating_point:
            raise InputError(f"a buffer holds continuous x, so its dtype must be a floating one, got {dtype}")
        self.capacity = capacity
        self.event_shape = tuple(event_shape or ())
        self.labels = labels or LabelSpace.none()
        self.dtype = dtype
        self.device = torch.device(device)
        # One spare row: states that are not kept are written there, which avoids waiting for the device.
        rows = capacity + 1 if self.bound else 0
        size = rows * (math.prod(self.event_shape) * torch.empty((), dtype=dtype).element_size() + 8 * len(self.labels))
        if size > memory():
            raise InputError(
                f"a buffer of {rows:,} chains takes {size / GIB:,.0f} GiB, more than this machine has: make it smaller"
            )
        self._all_x = torch.zeros(rows, *self.event_shape, dtype=dtype, device=device)
        self._all_y = torch.full((rows, len(self.labels)), MISSING, dtype=torch.int64, device=device)
        self._all_age = torch.zeros(rows, dtype=torch.int64, device=device)
        self._x, self._y, self._age = self._all_x[:capacity], self._all_y[:capacity], self._all_age[:capacity]
        self._n_seen = torch.zeros((), dtype=torch.int64, device=device)
        self._full = False

    def bind(
        self, event_shape: Sequence[int], labels: LabelSpace, *, capacity: int, device: torch.device | str
    ) -> Self:
        """Return a new, empty buffer of this kind for states of a shape; this one stays unchanged."""
        return type(self)(capacity, event_shape, labels, restart=self.restart, device=device)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.capacity}, restart={self.restart})"

    @property
    def n_seen(self) -> int:
        """The number of states ever stored as new, not counting those written back to their slots."""
        return int(self._n_seen)

    def __len__(self) -> int:
        if self._full:  # without asking the device
            return self.capacity
        n = self.n_seen
        self._full = n >= self.capacity
        return min(n, self.capacity)

    @final
    def store(self, states: Drawn, *, generator: torch.Generator | None = None) -> None:
        """Store states. The kind of buffer decides which older ones they replace."""
        x, y, age = self._checked(states)
        slots = None if states.slots is None else self._checked_slots(states.slots, len(x))
        self.store_unchecked(Drawn(x, y, age, slots), generator=generator)

    @abstractmethod
    def store_unchecked(self, states: Drawn, *, generator: torch.Generator | None = None) -> None:
        """Do the same as `store` for internal callers; it does not wait for the device."""

    @final
    def draw(self, n: int, *, generator: torch.Generator, given: Given = None) -> Drawn:
        """Draw `n` states from different slots, uniformly among all slots or among those that match `given`.

        Rows with the fewest matching slots choose first. If demands overlap, this order may refuse a batch that another
        assignment could serve.

        Parameters
        ----------
        n
            The number of states.
        generator
            Source of randomness.
        given
            Labels to match: a mapping for all rows, or a tensor `[n, L]` with MISSING for any.
        """
        check_count("n, the number of states to draw,", n)
        if n > len(self):
            raise InputError(
                f"the buffer holds {len(self):,} states and {n:,} were asked for: "
                "store more states before drawing, or start fresh chains"
            )
        if given is None or len(self.labels) == 0:
            return self.draw_unchecked(n, generator=generator)
        slots = self._assigned(self.labels.given(given, n, self.device).to(self.device), generator)
        return Drawn(self._x[slots], self._y[slots], self._age[slots], slots)

    @final
    def draw_unchecked(self, n: int, *, generator: torch.Generator) -> Drawn:
        """Do the same as `draw` for internal callers that ask for no more states than there are."""
        slots = torch.randperm(len(self), generator=generator, device=generator.device)[:n].to(self.device)
        return Drawn(self._x[slots], self._y[slots], self._age[slots], slots)

    @final
    def draw_matching(self, given: Tensor, *, generator: torch.Generator) -> tuple[Drawn, Tensor]:
        """Draw a state for each row of labels, from different slots: a matching one, or else any other.

        Also returns the rows without a match, bool `[n]`: restart their chains.
        """
        if len(given) > len(self):
            raise InputError(f"the buffer holds {len(self):,} states and {len(given):,} were asked for")
        wanted = self.labels.given(given, len(given), self.device).to(self.device)
        order = self._shuffled(len(self), generator)
        free = torch.ones(len(self), dtype=torch.bool, device=self.device)
        slots = torch.full((len(wanted),), -1, dtype=torch.int64, device=self.device)
        patterns, pattern_of_row = wanted.unique(dim=0, return_inverse=True)
        for p, pattern in enumerate(patterns):
            rows = (pattern_of_row == p).nonzero()[:, 0]
            candidates = order[(self._agrees(pattern) & free)[order]][: len(rows)]
            slots[rows[: len(candidates)]] = candidates
            free[candidates] = False
        unmatched = slots < 0
        slots[unmatched] = order[free[order]][: int(unmatched.sum())]
        return Drawn(self._x[slots], self._y[slots], self._age[slots], slots), unmatched

    @final
    def matching(self, given: Mapping[str, int | str]) -> Tensor:
        """Return the slots, in order, whose states match the given labels; a missing label matches nothing."""
        return self._agrees(self.labels.encode(given, device=self.device)[0]).nonzero()[:, 0]

    @final
    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of the buffer's content, for checkpoints."""
        n_seen = self._n_seen.cpu()
        return {"x": self._x.clone(), "y": self._y.clone(), "age": self._age.clone(), "n_seen": n_seen}

    @final
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned; a mismatch raises and changes nothing."""
        own = self.state_dict()
        if set(state) != set(own):
            raise InputError(f"a buffer's state has the entries {sorted(own)}, got {sorted(state)}")
        for name, tensor in own.items():
            if state[name].shape != tensor.shape or state[name].dtype != tensor.dtype:
                raise InputError(
                    f"{name!r} of the saved buffer is {state[name].dtype} of shape {tuple(state[name].shape)} where "
                    f"this buffer has {tensor.dtype} of shape {tuple(tensor.shape)}: build it with the saved settings"
                )
        self.labels.check(state["y"])
        if int(state["n_seen"]) < 0:
            raise InputError(f"'n_seen' of the saved buffer must not be negative, got {int(state['n_seen'])}")
        for name, target in (("x", self._x), ("y", self._y), ("age", self._age)):
            target.copy_(state[name].detach())
        self._n_seen.copy_(state["n_seen"])
        self._full = False

    def _checked(self, states: Drawn) -> tuple[Tensor, Tensor, Tensor]:
        x, age = states.x.detach().to(self.device), states.age.to(self.device)
        if x.ndim != len(self.event_shape) + 1 or x.shape[1:] != self.event_shape:
            raise InputError(f"the buffer holds x of shape [n, *{self.event_shape}], got {tuple(x.shape)}")
        if x.dtype != self.dtype:
            raise InputError(f"the buffer holds x of {self.dtype}, got {x.dtype}: convert it with x.to({self.dtype})")
        if age.shape != x.shape[:1] or age.dtype != torch.int64:
            raise InputError(f"ages must be torch.int64 of shape ({len(x)},), got {age.dtype} {tuple(age.shape)}")
        check_x(x)
        return x, self.labels.check(states.y, len(x)).to(self.device), age

    def _checked_slots(self, slots: Tensor, n: int) -> Tensor:
        if slots.shape != (n,) or slots.dtype != torch.int64:
            raise InputError(f"slots must be torch.int64 of shape ({n},), got {slots.dtype} {tuple(slots.shape)}")
        slots = slots.to(self.device)
        ordered = slots.sort().values
        if ((ordered < 0) | (ordered >= len(self))).any():
            raise InputError(f"slots must lie among the {len(self):,} in use: store new states without slots")
        if (ordered[1:] == ordered[:-1]).any():
            raise InputError("two states name the same slot: a slot keeps one state, so draw without replacement")
        return slots

    def _shuffled(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.randperm(n, generator=generator, device=generator.device).to(self.device)

    def _agrees(self, pattern: Tensor) -> Tensor:
        return ((pattern == MISSING) | (self._y[: len(self)] == pattern)).all(1)

    def _assigned(self, wanted: Tensor, generator: torch.Generator) -> Tensor:
        patterns, pattern_of_row = wanted.unique(dim=0, return_inverse=True)
        agreeing = [self._agrees(pattern) for pattern in patterns]
        n_agreeing = [int(agrees.sum()) for agrees in agreeing]
        free = torch.ones(len(self), dtype=torch.bool, device=self.device)
        slots = torch.empty(len(wanted), dtype=torch.int64, device=self.device)
        for p in sorted(range(len(patterns)), key=n_agreeing.__getitem__):
            rows = (pattern_of_row == p).nonzero()[:, 0]
            candidates = (agreeing[p] & free).nonzero()[:, 0]
            if len(rows) > len(candidates):
                raise InputError(self._refusal(patterns[p], n_agreeing[p], len(candidates)))
            slots[rows] = candidates[self._shuffled(len(candidates), generator)[: len(rows)]]
            free[slots[rows]] = False
        return slots

    def _refusal(self, pattern: Tensor, n_agreeing: int, n_free: int) -> str:
        named = self.labels.decode(pattern[None])[0].items()
        what = ", ".join(f"{name}={value}" for name, value in named)
        if n_agreeing == 0:
            return f"none of the {len(self):,} stored states match {what}: start fresh chains"
        taken = f" and {n_agreeing - n_free:,} of those are taken by other rows" if n_free < n_agreeing else ""
        remedy = f"ask for at most {n_free:,}, or start fresh chains" if n_free else "start fresh chains"
        return f"only {n_agreeing:,} of the {len(self):,} stored states match {what}{taken}: {remedy}"


@final
class ReplayBuffer(Buffer):
    """Keep persistent chains. States return to their own slots; new ones fill free slots, then replace the oldest.

    Takes the arguments of `Buffer`.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> from jointenergy.buffers import Drawn
    >>> buffer = je.ReplayBuffer(100, event_shape=(2,), labels=je.LabelSpace({"class": 3}))
    >>> buffer.store(Drawn.fresh(torch.zeros(8, 2), torch.zeros(8, 1, dtype=torch.int64)))
    >>> states = buffer.draw(4, generator=torch.Generator().manual_seed(0))
    >>> len(buffer), states.x.shape
    (8, torch.Size([4, 2]))
    """

    def store_unchecked(self, states: Drawn, *, generator: torch.Generator | None = None) -> None:
        """Write states with slots back, and others as new ones; the generator is not used."""
        slots, x, y, age = states.slots, states.x, states.y, states.age
        if slots is None:
            # A batch larger than the buffer keeps its last states, so that no slot is written twice in one call.
            numbers = self._n_seen + torch.arange(len(x), device=self.device)
            slots, x, y, age = (t[-self.capacity :] for t in (numbers % self.capacity, x, y, age))
            self._n_seen += len(states)
        self._x[slots], self._y[slots], self._age[slots] = x, y, age


# Not final: tests derive deliberately broken versions from it.
class ReservoirBuffer(Buffer):
    """Keep a uniform sample, without replacement, of all states ever stored (Vitter's algorithm R).

    Takes the arguments of `Buffer`.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> from jointenergy.buffers import Drawn
    >>> buffer = je.ReservoirBuffer(10, event_shape=(2,))
    >>> states = Drawn.fresh(torch.zeros(50, 2), torch.zeros(50, 0, dtype=torch.int64))
    >>> buffer.store(states, generator=torch.Generator().manual_seed(0))
    >>> len(buffer), buffer.n_seen
    (10, 50)
    """

    def store_unchecked(self, states: Drawn, *, generator: torch.Generator | None = None) -> None:
        """Count every state as new, also one with slots; the generator decides which are kept."""
        if generator is None:
            raise InputError("a reservoir draws at random which states it keeps: give it a generator")
        n = len(states)
        numbers = self._n_seen + torch.arange(n, device=self.device)
        slots = self._slots_of_new(numbers, generator).clamp(max=self.capacity)
        # Rows with the same slot all write the state of the row that stays, so their order does not matter.
        rows = self._survivor_of(slots)
        self._all_x[slots], self._all_y[slots], self._all_age[slots] = states.x[rows], states.y[rows], states.age[rows]
        self._n_seen += n

    def _slots_of_new(self, numbers: Tensor, generator: torch.Generator) -> Tensor:
        """State number t (from 0) fills slot t or, once all are full, one of t + 1; past the capacity it is dropped."""
        # A 62-bit integer modulo t + 1 is uniform up to t / 2^62 and needs no float64, which not every device has.
        bits = torch.randint(1 << 62, numbers.shape, generator=generator, device=generator.device)
        return torch.where(numbers < self.capacity, numbers, bits.to(self.device) % (numbers + 1))

    def _survivor_of(self, slots: Tensor) -> Tensor:
        """Return for each row the one that stays in its slot: the last one with that slot."""
        numbers = torch.arange(len(slots), device=slots.device)
        last = torch.zeros(self.capacity + 1, dtype=torch.int64, device=slots.device)
        return last.scatter_reduce(0, slots, numbers, "amax")[slots]
