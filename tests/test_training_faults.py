"""The guard against injected faults: each ruins a run without the guard and does not with it; nothing else wakes it.

All faults of a recipe strike the same run at the same healthy checkpoint: it is trained once, and copies of its folder,
which resume exactly, go on with a fault each. The unharmed run is the one that went on without any.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from jointenergy.errors import InputError
from jointenergy.recipes import run_folder
from jointenergy.training import checkpoints, loop
from tests.faults import FAULTS
from tests.small import STEADY, SYSTEMS, Before, accuracy, agreement, reopened, small, trained, trained_with_a_copy

AT = 450  # where the faults strike
SEED = 0

# What the guard says about each fault: the kind of the event and its sentence.
SAID = {
    "learning rate": ("rollback", r"the gradient norm is|f\(data\) (jumped|and f\(samples\) are)|not finite|the gap"),
    "nan batch": ("skip", r"^skipped 1 batch with a non-finite loss or gradient$"),
    "wild buffer": ("purge", r"^restarted [45]\d\d diverged chains$"),
    "weights times ten": ("rollback", r"the gradient norm is .* 30 times its median"),
    "crippled sampler": ("steps", r"drift away from data"),
}


@dataclass(frozen=True)
class Unharmed:
    """A run without a fault, what it came to, and a copy of it at `AT`."""

    run: loop.Loop
    copy: Path
    accuracy: float
    agreement: float


def unharmed_run(folder: Path, *overrides: str) -> Unharmed:
    run = trained_with_a_copy(folder / "unharmed", folder / "copy", AT, *STEADY, *overrides, seed=SEED)
    return Unharmed(run, folder / "copy", accuracy(run), agreement(run))


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> Unharmed:
    """Clamped chains, as the recipe has them."""
    found = unharmed_run(tmp_path_factory.mktemp("unharmed"))
    check_unharmed(found)
    at = checkpoints.load(found.copy / "checkpoints" / f"iteration-{AT:08d}")
    assert at.values["recovery"]["healthy"][-1] == f"iteration-{AT:08d}"
    assert found.run.interventions == 0
    return found


def events_of(run: loop.Loop, since: int = 0) -> list[dict[str, object]]:
    """What the guard wrote, each event at the iteration where it was noticed."""
    path = run.journal.events_path
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [e for e in events if e.get("rolled_back_at", e["iteration"]) >= since]


def is_healthy(run: loop.Loop) -> bool:
    return run.health is not None and run.health.healthy


def has_chains(run: loop.Loop) -> bool:
    """Whether the energies of persistent chains are those of data; how they look is not asked."""
    return run.health is not None and not {"finite", "persistent"} & {sign for sign, _ in run.health.signs}


def ruin_of(run: loop.Loop, unharmed: Unharmed, well: Callable[[loop.Loop], bool]) -> str | None:
    """How a run without a guard ends, in a sentence; None if it ends well."""
    try:
        run.fit()
    except InputError as error:
        if "NaN" not in str(error):
            raise
        return str(error)  # a run of NaN may end by itself
    if not well(run):
        return "not healthy"
    return "worse" if accuracy(run) < unharmed.accuracy - 0.05 else None


def check_fault(name: str, unharmed: Unharmed, folder: Path, well: Callable[[loop.Loop], bool] = is_healthy) -> None:
    alone = reopened(unharmed.copy, folder / "unguarded", FAULTS[name](AT), guarded=False)
    assert ruin_of(alone, unharmed, well) is not None

    run = reopened(unharmed.copy, folder / "guarded", FAULTS[name](AT), guarded=True)
    run.fit()
    kind, sentence = SAID[name]
    told = [e for e in events_of(run, since=AT) if e["event"] == kind and re.search(sentence, str(e["says"]))]
    assert told, events_of(run, since=AT)
    assert told[0].get("rolled_back_at", told[0]["iteration"]) <= AT + 300  # type: ignore[operator]
    # A rollback goes to a healthy checkpoint, and the copy was one: never to the beginning.
    assert all(e["iteration"] >= AT for e in events_of(run) if e["event"] == "rollback")  # type: ignore[operator]
    assert well(run), run.health
    assert accuracy(run) > unharmed.accuracy - 0.01
    assert agreement(run) > unharmed.agreement - 0.05


def check_unharmed(unharmed: Unharmed, well: Callable[[loop.Loop], bool] = is_healthy) -> None:
    assert well(unharmed.run), unharmed.run.health
    assert unharmed.accuracy > 0.96
    assert unharmed.agreement > 0.9


@pytest.mark.parametrize(
    "name",
    [
        "weights times ten",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("learning rate", "nan batch", "crippled sampler")),
    ],
)
def test_fault(name, unharmed, tmp_path):
    check_fault(name, unharmed, tmp_path)


@pytest.mark.parametrize("name", ["nan batch", "wild buffer"])
def test_what_needs_no_history_is_noticed_in_a_short_run(name, tmp_path, unchecked):
    short = ("iterations=30", "chain.steps=2", "cadence.check=30", "cadence.checkpoint=30", "chain.clamp=false")
    run = run_folder.create(tmp_path / "run", small("model.network.hidden=[16]", *short), SEED)
    run.callbacks.append(Before(FAULTS[name](10)))
    run.fit()
    kind, sentence = SAID[name]
    assert [e for e in events_of(run) if e["event"] == kind and re.search(sentence, str(e["says"]))], events_of(run)
    assert all(bool(p.isfinite().all()) for p in run.trainer.model.parameters())


@pytest.mark.slow
def test_wild_buffer(tmp_path):
    # Without clamping, as JEM was run: clamped chains forget where they came from in one step. Its samples take longer.
    unharmed = unharmed_run(tmp_path, "chain.clamp=false", "cadence.check=10000")
    check_unharmed(unharmed, has_chains)
    check_fault("wild buffer", unharmed, tmp_path, has_chains)


@pytest.mark.parametrize(
    ("system", "seed"),
    [("jem", SEED + 1), *(pytest.param(name, SEED, marks=pytest.mark.slow) for name in ("gibbs-jem", "mixed"))],
)
def test_no_false_alarm(system, seed, tmp_path):
    # The guard compares a run with its own history from iteration 200 on; checks of health come at 150, 300 and 400.
    run = trained(tmp_path / "run", *STEADY, "iterations=400", *SYSTEMS[system], seed=seed)
    assert run.interventions == 0, events_of(run)
    assert run.trainer.attempt == 0
    assert run.trainer.chains.steps == run.trainer.plan.steps
