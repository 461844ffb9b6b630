"""Buffers: one contract for both kinds, the reservoir's distribution, slots, ages, and what they refuse."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from jointenergy.buffers import Buffer, Drawn, ReplayBuffer, ReservoirBuffer
from jointenergy.errors import InputError
from jointenergy.labels import MISSING, Given, LabelSpace

LABELS = LabelSpace({"Smiling": 2, "hair": ["black", "brown", "gray"]})
EVENT = (2, 3)
KINDS: list[type[Buffer]] = [ReplayBuffer, ReservoirBuffer]
each_kind = pytest.mark.parametrize("kind", KINDS)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbered(first: int, n: int, labels: LabelSpace = LABELS, dtype: torch.dtype = torch.float32) -> Drawn:
    """Fresh states whose x says which state they are, with labels that run through all configurations."""
    numbers = torch.arange(first, first + n)
    configurations = labels.enumerate()
    x = numbers.to(dtype).view(-1, 1, 1).expand(n, *EVENT).clone()
    return Drawn.fresh(x, configurations[numbers % len(configurations)])


def filled(kind: type[Buffer], n: int = 12, capacity: int = 12, **settings) -> Buffer:
    buffer = kind(capacity, EVENT, LABELS, **settings)
    buffer.store(numbered(0, n, dtype=buffer.dtype), generator=seeded(7))
    return buffer


def numbers_of(states: Drawn) -> list[int]:
    return [int(v) for v in states.x[:, 0, 0]]


# ---------------------------------------------------------------- contract


@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("given", [None, {"Smiling": 1}, torch.tensor([[MISSING, 0]] * 4)], ids=["any", "name", "rows"])
def test_draws_have_the_declared_shapes_and_dtypes(kind, dtype, given):
    drawn = filled(kind, dtype=dtype).draw(4, generator=seeded(), given=given)
    assert drawn.x.shape == (4, *EVENT)
    assert drawn.x.dtype == dtype
    assert drawn.y.shape == (4, 2)
    assert drawn.y.dtype == torch.int64
    assert drawn.age.shape == (4,)
    assert drawn.age.dtype == torch.int64
    assert drawn.slots is not None
    assert drawn.slots.shape == (4,)
    assert drawn.slots.dtype == torch.int64
    assert len(drawn) == 4


@each_kind
def test_global_random_state_stays_and_equal_generators_agree(kind):
    before = torch.get_rng_state()
    first, second = filled(kind, 30), filled(kind, 30)
    one, other = first.draw(5, generator=seeded(3)), second.draw(5, generator=seeded(3))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.y, other.y)
    assert torch.equal(one.age, other.age)


@each_kind
@pytest.mark.parametrize("given", [None, {"hair": "gray"}, torch.full((4, 2), MISSING)], ids=["any", "name", "rows"])
def test_no_slot_is_drawn_twice_in_a_batch(kind, given):
    buffer = filled(kind)
    for seed in range(50):
        drawn = buffer.draw(4, generator=seeded(seed), given=given)
        assert drawn.slots is not None
        assert len(drawn.slots.unique()) == 4


@each_kind
def test_states_enter_and_leave_as_copies(kind):
    buffer = kind(5, EVENT, LABELS)
    states = numbered(0, 5)
    states.x.requires_grad_(True)
    buffer.store(states, generator=seeded())
    content = buffer.state_dict()
    assert not content["x"].requires_grad

    def unchanged() -> bool:
        return all(torch.equal(a, b) for a, b in zip(buffer.state_dict().values(), content.values(), strict=True))

    drawn = buffer.draw(5, generator=seeded())
    for tensor in (states.x.detach(), states.y, states.age, drawn.x, drawn.y, drawn.age, *buffer.state_dict().values()):
        tensor.fill_(1)
        assert unchanged()
    kept = drawn.x.clone()
    buffer.store(numbered(50, 40), generator=seeded())
    assert torch.equal(drawn.x, kept)


@each_kind
def test_rows_that_are_given_labels_get_them(kind):
    buffer = filled(kind, 40, 40)
    named = buffer.draw(6, generator=seeded(), given={"Smiling": 1, "hair": "gray"})
    assert named.y.tolist() == [[1, 2]] * 6
    given = torch.tensor([[1, MISSING], [MISSING, MISSING], [0, 2], [MISSING, 1], [0, 2], [1, MISSING]])
    before = given.clone()
    for seed in range(20):
        drawn = buffer.draw(6, generator=seeded(seed), given=given)
        assert ((given == MISSING) | (drawn.y == given)).all()
        assert drawn.slots is not None
        assert len(drawn.slots.unique()) == 6
        # The labels belong to the states that were drawn with them.
        assert torch.equal(drawn.y, LABELS.enumerate()[torch.tensor(numbers_of(drawn)) % 6])
    assert torch.equal(given, before)


@each_kind
def test_the_rows_with_fewest_matches_choose_first(kind):
    # 12 states, two of each configuration: the free rows come first in the batch and would often take the gray ones.
    given = torch.tensor([[MISSING, MISSING]] * 6 + [[MISSING, 2]] * 2 + [[0, 2]] * 2)
    for seed in range(20):
        drawn = filled(kind).draw(10, generator=seeded(seed), given=given)
        assert ((given == MISSING) | (drawn.y == given)).all()


@each_kind
def test_a_missing_label_matches_only_any(kind):
    buffer = kind(4, EVENT, LABELS)
    states = numbered(0, 4)
    y = torch.tensor([[MISSING, 2], [1, MISSING], [MISSING, MISSING], [1, 2]])
    buffer.store(Drawn.fresh(states.x, y), generator=seeded())
    assert buffer.matching({"hair": "gray"}).tolist() == [0, 3]
    assert buffer.matching({"Smiling": 1}).tolist() == [1, 3]
    assert buffer.matching({"Smiling": 1, "hair": 2}).tolist() == [3]
    assert buffer.matching({"Smiling": 0}).tolist() == []
    assert buffer.matching({}).tolist() == [0, 1, 2, 3]


@each_kind
@pytest.mark.parametrize("labels", [LabelSpace.none(), LabelSpace({"digit": 3})], ids=["none", "one"])
def test_no_label_and_one_label(kind, labels):
    buffer = kind(6, (1,), labels)
    y = torch.zeros(6, 0, dtype=torch.int64) if not len(labels) else torch.arange(6) % 3  # [n] is accepted when L = 1
    buffer.store(Drawn.fresh(torch.zeros(6, 1), y), generator=seeded())
    nothing: list[Given] = [None, {}, torch.full((2, len(labels)), MISSING)]
    for given in nothing:
        assert buffer.draw(2, generator=seeded(), given=given).y.shape == (2, len(labels))
    if len(labels):
        assert buffer.draw(2, generator=seeded(), given={"digit": 2}).y.tolist() == [[2], [2]]


@each_kind
def test_length_counts_what_is_stored(kind):
    buffer = kind(5, EVENT, LABELS)
    lengths = []
    for n in (2, 2, 3, 9):
        buffer.store(numbered(0, n), generator=seeded())
        lengths.append((len(buffer), buffer.n_seen))
    assert lengths == [(2, 2), (4, 4), (5, 7), (5, 16)]


@each_kind
def test_a_round_trip_of_the_state_continues_the_same(kind):
    buffer = filled(kind, 17)
    copy = kind(12, EVENT, LABELS)
    copy.load_state_dict(buffer.state_dict())
    assert (len(copy), copy.n_seen) == (12, 17)
    drawn = []
    for b in (buffer, copy):
        generator = seeded(5)
        b.store(numbered(60, 7), generator=generator)
        drawn.append(b.draw(12, generator=generator, given={}))
    for name in ("x", "y", "age", "slots"):
        assert torch.equal(getattr(drawn[0], name), getattr(drawn[1], name))


# ---------------------------------------------------------------- slots and ages


def test_states_go_back_to_their_slots_with_their_ages():
    buffer = filled(ReplayBuffer)
    first = buffer.draw(5, generator=seeded(1))
    buffer.store(Drawn(first.x + 100, 1 - first.y.clamp(max=1), first.age + 20, first.slots), generator=seeded())
    buffer.store(Drawn(first.x + 200, first.y, first.age + 25, first.slots), generator=seeded())
    everything = buffer.draw(12, generator=seeded(2))
    assert first.slots is not None
    assert everything.slots is not None
    moved = set(first.slots.tolist())
    for slot, number, age, y in zip(
        everything.slots.tolist(), numbers_of(everything), everything.age.tolist(), everything.y.tolist(), strict=True
    ):
        assert (number, age) == ((slot + 200, 25) if slot in moved else (slot, 0))
        assert y == LABELS.enumerate()[slot % 6].tolist()
    assert buffer.n_seen == 12


def test_new_states_fill_up_and_then_replace_the_oldest():
    buffer = ReplayBuffer(4, EVENT, LABELS)
    contents = []
    for first, n in ((0, 3), (3, 2), (5, 4), (9, 11)):  # the last batch is larger than the buffer: its end stays
        buffer.store(numbered(first, n))
        contents.append([int(v) for v in buffer.state_dict()["x"][:, 0, 0]])
    assert contents == [[0, 1, 2, 0], [4, 1, 2, 3], [8, 5, 6, 7], [16, 17, 18, 19]]


def test_a_reservoir_counts_states_with_slots_as_new():
    buffer = filled(ReservoirBuffer)
    buffer.store(buffer.draw(5, generator=seeded()), generator=seeded())
    assert buffer.n_seen == 17


def test_restarted_rows_are_fresh_and_keep_their_slots():
    drawn = filled(ReplayBuffer).draw(12, generator=seeded())
    drawn = Drawn(drawn.x, drawn.y, drawn.age + 10, drawn.slots)
    kept = drawn.x.clone()
    fresh = Drawn.fresh(torch.full((12, *EVENT), -1.0), torch.full((12, 2), MISSING))
    new = torch.arange(12) % 3 == 1
    mixed = drawn.replaced(new, fresh)
    assert torch.equal(mixed.x, torch.where(new[:, None, None], fresh.x, drawn.x))
    assert torch.equal(mixed.y, torch.where(new[:, None], fresh.y, drawn.y))
    assert torch.equal(mixed.age, torch.where(new, 0, 10))
    assert mixed.slots is drawn.slots
    assert torch.equal(drawn.x, kept)


# ---------------------------------------------------------------- distributions


def p_value(counts: Tensor) -> float:
    """Of a chi-square test that all cells are equally likely."""
    expected = counts.sum() / len(counts)
    return float(chi2.sf(float(((counts - expected) ** 2 / expected).sum()), len(counts) - 1))


# A right program fails a statistical test with this probability, over seeds; the seeds are fixed.
FALSE_FAILURE = 1e-6


@each_kind
@pytest.mark.parametrize("given", [None, {"Smiling": 1}], ids=["any", "given"])
def test_every_matching_slot_is_drawn_equally_often(kind, given):
    # 2,000 draws of 2 of 12 (or of 6) slots. Draws without replacement spread less than multinomial counts, so the
    # true rate of false failures is below FALSE_FAILURE; detects (power > .99) a slot that is
    # drawn half again as often as the others.
    buffer, generator = filled(kind), seeded(11)
    slots = [buffer.draw(2, generator=generator, given=given).slots for _ in range(2000)]
    counts = torch.cat([s for s in slots if s is not None]).bincount(minlength=12).double()
    matching = buffer.matching(given or {})
    assert counts.sum() == counts[matching].sum()
    assert p_value(counts[matching]) > FALSE_FAILURE


class ConstantReservoir(ReservoirBuffer):
    """Mutant: a new state replaces a random one with a constant probability, so old ones die out."""

    def _slots_of_new(self, numbers, generator):
        bits = torch.randint(2 * self.capacity, numbers.shape, generator=generator)
        return torch.where(numbers < self.capacity, numbers, bits)


class FrozenCountReservoir(ReservoirBuffer):
    """Mutant: all states of a batch count as the first of it, so a batch's later ones enter too often."""

    def _slots_of_new(self, numbers, generator):
        bits = torch.randint(1 << 62, numbers.shape, generator=generator)
        return torch.where(numbers < self.capacity, numbers, bits % (numbers[:1] + 1))


class FirstWinsReservoir(ReservoirBuffer):
    """Mutant: of two states of a batch that hit the same slot, the first stays."""

    def _survivor_of(self, slots):
        return (slots.numel() - 1 - super()._survivor_of(slots.flip(0))).flip(0)


def subset_p_value(kind: type[ReservoirBuffer]) -> float:
    """Whether, over independent runs, all 15 pairs of 6 states are equally likely to be what a buffer of 2 holds."""
    runs, batches = 3000, (1, 4, 1)  # the second batch fills the last empty slot and goes on
    generator, held = seeded(2024), []
    y = torch.zeros(6, 0, dtype=torch.int64)
    everything = Drawn.fresh(torch.arange(6.0)[:, None], y)
    for _ in range(runs):
        buffer, first = kind(2, (1,), LabelSpace.none()), 0
        for n in batches:
            part = slice(first, first + n)
            buffer.store(Drawn(everything.x[part], y[part], everything.age[part]), generator=generator)
            first += n
        held.append(tuple(sorted(int(v) for v in buffer.state_dict()["x"][:, 0])))
    return p_value(torch.tensor([held.count(pair) for pair in itertools.combinations(range(6), 2)]).double())


def test_a_reservoir_is_a_uniform_sample_of_everything_ever_stored():
    # The pairs are the whole distribution of the content, so this is all that algorithm R promises. False-failure rate
    # FALSE_FAILURE; detects (power > .99) pair probabilities that are off by 20 % (root mean square).
    assert subset_p_value(ReservoirBuffer) > FALSE_FAILURE


@pytest.mark.parametrize("mutant", [ConstantReservoir, FrozenCountReservoir, FirstWinsReservoir])
def test_broken_reservoirs_are_found(mutant):
    assert subset_p_value(mutant) < FALSE_FAILURE


def test_of_two_states_that_hit_one_slot_the_later_stays():
    buffer = ReservoirBuffer(3, EVENT, LABELS)
    assert buffer._survivor_of(torch.tensor([2, 0, 3, 2, 0, 3, 2])).tolist() == [6, 4, 5, 6, 4, 5, 6]


def test_what_a_reservoir_does_not_keep_touches_no_slot():
    buffer = filled(ReservoirBuffer, 12)
    assert isinstance(buffer, ReservoirBuffer)
    before = buffer.state_dict()
    buffer._slots_of_new = lambda numbers, generator: torch.full_like(numbers, 12)  # type: ignore[method-assign]
    buffer.store(numbered(30, 4), generator=seeded())
    assert all(torch.equal(before[name], after) for name, after in buffer.state_dict().items() if name != "n_seen")


# ---------------------------------------------------------------- what they refuse


def refusals() -> list[tuple[str, Callable[[], object], str]]:
    few = filled(ReplayBuffer, 5)  # configurations 0 to 4: three with Smiling=0, two with Smiling=1
    state = few.state_dict()
    twice = Drawn(numbered(0, 2).x, numbered(0, 2).y, torch.zeros(2, dtype=torch.int64), torch.tensor([1, 1]))
    unused = Drawn(twice.x, twice.y, twice.age, torch.tensor([1, 5]))
    crossing = torch.tensor([[1, 0]] + [[1, MISSING]] * 2)
    g = seeded()
    return [
        ("capacity", lambda: ReplayBuffer(0, EVENT, LABELS), "capacity must be an integer of at least 1, got 0"),
        ("integers", lambda: ReplayBuffer(2, EVENT, LABELS, dtype=torch.int64), "must be a floating one"),
        ("no rows", lambda: few.draw(0, generator=g), "must be an integer of at least 1, got 0"),
        ("too many", lambda: few.draw(6, generator=g), "the buffer holds 5 states and 6 were asked for: store more"),
        ("empty", lambda: ReservoirBuffer(3, EVENT, LABELS).draw(1, generator=g), "the buffer holds 0 states"),
        (
            "few match",
            lambda: few.draw(3, generator=g, given={"Smiling": 1}),
            "only 2 of the 5 stored states match Smiling=1: ask for at most 2, or start fresh chains",
        ),
        (
            "none match",
            lambda: few.draw(1, generator=g, given={"Smiling": 1, "hair": "gray"}),
            "none of the 5 stored states match Smiling=1, hair=gray: start fresh chains",
        ),
        (
            "taken",
            lambda: few.draw(3, generator=g, given=crossing),
            "only 2 of the 5 stored states match Smiling=1 and 1 of those are taken by other rows: ask for at most 1,",
        ),
        ("unknown label", lambda: few.draw(1, generator=g, given={"Smilng": 1}), "did you mean 'Smiling'"),
        ("unknown value", lambda: few.matching({"hair": "red"}), "has no value 'red'"),
        ("given rows", lambda: few.draw(2, generator=g, given=crossing), "labels have 3 rows where x has 2"),
        (
            "event",
            lambda: few.store(Drawn.fresh(torch.zeros(2, 3), torch.zeros(2, 2).long()), generator=g),
            "the buffer holds x of shape [n, *(2, 3)], got (2, 3)",
        ),
        ("dtype", lambda: few.store(numbered(0, 2, dtype=torch.float64), generator=g), "float32, got torch.float64"),
        ("rows", lambda: few.store(Drawn.fresh(numbered(0, 2).x, twice.y[:1]), generator=g), "1 rows where x has 2"),
        ("age", lambda: few.store(Drawn(twice.x, twice.y, twice.age[:1]), generator=g), "ages must be torch.int64"),
        ("same slot", lambda: few.store(twice, generator=g), "two states name the same slot"),
        ("unused slot", lambda: few.store(unused, generator=g), "among the 5 in use"),
        (
            "slots",
            lambda: few.store(Drawn(twice.x, twice.y, twice.age, torch.zeros(2)), generator=g),
            "slots must be torch.int64 of shape (2,), got torch.float32 (2,)",
        ),
        ("state names", lambda: few.load_state_dict({"x": state["x"]}), "['age', 'n_seen', 'x', 'y'], got ['x']"),
        (
            "state shape",
            lambda: ReplayBuffer(3, EVENT, LABELS).load_state_dict(state),
            "'x' of the saved buffer is torch.float32 of shape (12, 2, 3) where this buffer has torch.float32 of",
        ),
        ("probability", lambda: ReplayBuffer(3, restart=1.5), "between 0 and 1, got 1.5"),
        ("no number", lambda: ReplayBuffer(3, restart=math.nan), "between 0 and 1, got nan"),
    ]


@pytest.mark.parametrize(("call", "sentence"), [pytest.param(c, s, id=i) for i, c, s in refusals()])
def test_what_does_not_fit_is_refused_in_one_sentence(call, sentence):
    with pytest.raises(InputError) as caught:
        call()
    assert sentence in str(caught.value)


# ---------------------------------------------------------------- devices


@pytest.mark.gpu
@each_kind
def test_a_seed_gives_the_same_states_on_every_device(kind):
    contents = []
    for device in ("cpu", "cuda"):
        buffer, generator = kind(6, EVENT, LABELS, device=device), seeded(3)  # the generator stays on the CPU
        for first in range(0, 40, 8):
            buffer.store(numbered(first, 8), generator=generator)
        drawn = buffer.draw(3, generator=generator)
        assert drawn.x.device.type == device
        buffer.store(drawn, generator=generator)
        contents.append({name: tensor.cpu() for name, tensor in buffer.state_dict().items()})
    assert all(torch.equal(contents[0][name], contents[1][name]) for name in contents[0])
    on_cuda = torch.Generator("cuda").manual_seed(0)
    assert filled(kind).draw(4, generator=on_cuda, given={"Smiling": 1}).x.device.type == "cpu"
    copy = kind(6, EVENT, LABELS)
    copy.load_state_dict(buffer.state_dict())
    assert torch.equal(copy.state_dict()["x"], buffer.state_dict()["x"].cpu())
