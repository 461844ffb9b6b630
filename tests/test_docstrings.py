"""Examples in docstrings run, and every public class and function of the rooms below has one."""

import doctest
import importlib
import inspect
from pathlib import Path
from types import ModuleType

import pytest
import torch

from jointenergy import kernels

SOURCE = Path(__file__).parent.parent / "src"
MODULES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>>" in path.read_text()
]
# Rooms whose public classes and functions, those of `__all__`, all have an example.
ROOMS = ("buffers", "errors", "kernels", "labels", "models", "networks", "objectives", "starts")


def failures(module: ModuleType) -> str:
    """What doctest reports of the examples in a module; empty if all are right."""
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    reported: list[str] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for test in doctest.DocTestFinder().find(module, module.__name__):
            runner.run(test, out=reported.append)
    return "".join(reported)


def without_example(room: str) -> list[str]:
    """The public classes and functions of a room that have no example."""
    module = importlib.import_module(f"jointenergy.{room}")
    public = {name: getattr(module, name) for name in module.__all__}
    kinds = {name: thing for name, thing in public.items() if inspect.isclass(thing) or inspect.isfunction(thing)}
    return [name for name, thing in kinds.items() if ">>>" not in (thing.__doc__ or "")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    """Fails where an example raises or prints something else than the docstring shows."""
    assert not failures(importlib.import_module(name))


@pytest.mark.parametrize("room", ROOMS)
def test_public_names_have_an_example(room):
    """Fails for a public class or function without an example in its docstring."""
    assert not without_example(room)


def test_wrong_and_absent_examples_are_found(monkeypatch):
    """Fails where the checks above no longer see anything."""
    assert failures(ModuleType("wrong", ">>> 1 + 1\n3\n"))
    monkeypatch.setattr(kernels.Langevin, "__doc__", "Move x.")
    assert without_example("kernels") == ["Langevin"]
