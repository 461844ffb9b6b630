"""Help that helps: an example below the help of each command, and advice at the end of a run that is not healthy."""

import shlex
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from jointenergy.buffers import ReplayBuffer
from jointenergy.cli.examples import EXAMPLES
from jointenergy.cli.main import COMMANDS, app, load_command
from jointenergy.cli.training import _advice
from jointenergy.objectives import JEM, EnergyL2, Mixed
from jointenergy.training.advice import REMEDIES, changes
from jointenergy.training.callbacks import Event, Printed
from jointenergy.training.health import Health
from tests.small import trained
from tests.test_runs import TINY
from tests.test_training_health import LABELS, Gaussians, plan_of

DRIFTING = Health(finite=True, auroc_fresh=0.99, auroc_fresh_long=0.99)


def test_every_command_has_an_example():
    assert list(EXAMPLES) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_parses_and_is_shown(name):
    """Fails for an option that is gone, an argument that is missing, or an example that the help does not show."""
    program, first, *words = shlex.split(EXAMPLES[name])
    assert [program, first] == ["jointenergy", name]
    shown = " ".join(CliRunner().invoke(app, [name, "--help"]).output.split())
    assert f"Example: {EXAMPLES[name]}" in shown
    command = load_command(name)
    if hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    command.make_context(name, words)


def test_commands_within_a_command_have_an_example_too():
    for name, command in load_command("data").commands.items():
        assert command.epilog.startswith(f"Example: jointenergy data {name}")
        command.make_context(name, shlex.split(command.epilog)[4:])


def plan(objective=None):
    buffer = ReplayBuffer(100, event_shape=(6,), labels=LABELS)
    return replace(plan_of(Gaussians()), objectives=(objective or JEM() + EnergyL2(),), buffer=buffer)


def test_the_two_settings_most_worth_changing_are_those_of_most_signs():
    lost = Health(finite=False)
    assert [change.recipe for change in changes(lost, plan())] == ["optimizer.learning_rate", "chain.kernel.step_size"]
    assert [change.recipe for change in changes(DRIFTING, plan())] == ["chain.steps", "objective.energy_l2"]
    assert changes(Health(finite=True), plan()) == []


def test_what_the_run_lacks_is_not_advised():
    """Fails if weights of terms that the objective lacks, or a buffer that the run lacks, are named."""
    assert [change.recipe for change in changes(DRIFTING, plan(JEM()))] == ["chain.steps", "buffer.restart"]
    mislabeled = Health(finite=True, agreement=0.1)
    assert [change.recipe for change in changes(mislabeled, plan(Mixed()))] == ["iterations"]
    without = replace(plan(JEM()), buffer=None)
    assert [change.recipe for change in changes(DRIFTING, without)] == ["chain.steps"]


def test_every_sign_has_two_settings():
    for _, first, then in REMEDIES.values():
        assert first != then


def test_advice_names_the_settings_and_the_page():
    said = _advice(Health(finite=False), plan())
    assert "lower optimizer.learning_rate, then lower chain.kernel.step_size" in said
    assert "docs/how-to/health.md" in said


def test_fit_ends_with_the_verdict_and_what_to_change(tmp_path, capsys):
    """Fails if a run that is not healthy ends without a word on it."""
    loop = trained(tmp_path / "run", *TINY, "iterations=4", "cadence.check=4")
    assert loop.verdict is not None
    assert not loop.verdict.healthy
    capsys.readouterr()
    Printed("fit").on_end(loop)
    said = capsys.readouterr().out
    assert "[fit] the run is not healthy: " in said
    assert "[fit] to change first: " in said


def test_a_terminal_shows_one_bar_that_is_drawn_again(tmp_path, capsys, monkeypatch):
    """Fails if a bar fills the screen with lines, is wider than it, or stays in front of an event."""
    loop = trained(tmp_path / "run", *TINY, "iterations=4", "cadence.check=4")
    monkeypatch.setenv("COLUMNS", "40")
    for terminal, ends in ((False, ""), (True, "\r\x1b[2K")):
        capsys.readouterr()
        monkeypatch.setattr(sys.stdout, "isatty", lambda terminal=terminal: terminal)
        for _ in range(3):
            Printed("fit").on_log(loop, {"loss": 0.5, "gap": 0.1, "accuracy": 0.9})
        said = capsys.readouterr().out
        assert said.count("\n") == 3
        assert said.count("\r\x1b[2K[fit] ") == 3 * terminal
        assert all(len(line.removeprefix(ends)) < 40 for line in said.split("\n") if terminal)
        Printed("fit").on_event(loop, Event("purge", 3, "restarted 1 diverged chain"))
        assert capsys.readouterr().out == f"{ends}[fit] iteration 3: restarted 1 diverged chain\n"
