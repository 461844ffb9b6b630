"""Examples in docstrings run as they are printed, and every public class and function of the rooms below has one."""

import doctest
import importlib
import inspect
import pkgutil

import pytest
import torch

import jointenergy

ROOMS = ("kernels", "objectives")
"""Rooms whose public classes and functions all have an example."""


def modules() -> list[str]:
    """Every module of the package, but those that run when imported."""
    found = pkgutil.walk_packages(jointenergy.__path__, "jointenergy.")
    return [m.name for m in found if not m.name.endswith("__main__")]


def examples_of(thing: object, name: str) -> list[doctest.DocTest]:
    module = importlib.import_module(getattr(thing, "__module__", None) or name)
    found = doctest.DocTestFinder(exclude_empty=True, recurse=True).find(thing, name, module=module)
    return [test for test in found if test.examples]


def public(room: str) -> dict[str, object]:
    """The classes and functions that a room shows: those of `__all__`, or all of its own without an underscore."""
    module = importlib.import_module(f"jointenergy.{room}")
    names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    things = {name: getattr(module, name) for name in names}
    return {
        name: thing
        for name, thing in things.items()
        if (inspect.isclass(thing) or inspect.isfunction(thing)) and thing.__module__.startswith(module.__name__)
    }


@pytest.mark.parametrize("name", modules())
def test_examples_run(name):
    """Fails where an example of a docstring prints something else than it says, or raises."""
    module = importlib.import_module(name)
    runner, said = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False), []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for test in examples_of(module, name):
            runner.run(test, out=said.append)
    assert not said, "".join(said)


@pytest.mark.parametrize("room", ROOMS)
def test_public_names_have_an_example(room):
    """Fails for a public class or function without an example in its docstring."""
    assert not [name for name, thing in public(room).items() if ">>>" not in (thing.__doc__ or "")]
