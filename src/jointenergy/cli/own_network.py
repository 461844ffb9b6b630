"""cli: the network of a run of `fit` or `wrap`, which is in the user's code: `--network MODULE:NAME` names it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from jointenergy.errors import InputError
from jointenergy.files.reading import reason_of
from jointenergy.labels import nearest

if TYPE_CHECKING:
    from torch import nn


FILE = "network_of_the_user"  # the name of a .py file's module: its own may be that of another


def network_named(text: str) -> nn.Module:
    """Return the network that `text` names: MODULE:NAME, as `nets:make` or `code/nets.py:make`.

    NAME is a torch module, or a function or class that makes one when it is called without arguments. The module is
    imported, so its code runs: it is what the user names on the command line, never what a file of a run names.
    """
    from torch import nn

    place, _, name = text.rpartition(":")
    if not place or not name:
        raise InputError(f"--network takes MODULE:NAME, such as nets:make or code/nets.py:make, got {text!r}")
    module = _module(place)
    if not hasattr(module, name):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise InputError(f"{place} has nothing called {name!r}: {nearest(name, public)}")
    found = getattr(module, name)
    if callable(found) and not isinstance(found, nn.Module):
        try:
            found = found()
        except (Exception, SystemExit) as error:  # user code may raise anything
            raise InputError(f"--network {text} could not be called without arguments: {reason_of(error)}") from error
    if not isinstance(found, nn.Module):
        raise InputError(
            f"--network {text} must be a torch module, or a function without arguments that returns one, got "
            f"{type(found).__name__}"
        )
    return found


def _module(place: str) -> ModuleType:
    """Import a module by its name, or a .py file as Python runs it: its folder comes first on the path."""
    path = Path(place)
    if path.suffix == ".py" and not path.is_file():
        raise InputError(f"there is no file {place} for --network")
    folder = str(path.resolve().parent) if path.suffix == ".py" else ""
    try:
        if not folder:
            return importlib.import_module(place)
        spec = importlib.util.spec_from_file_location(FILE, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[FILE] = module  # where dataclasses look for it
        sys.path.insert(0, folder)
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(folder)
    except (Exception, SystemExit) as error:  # user code may raise anything
        remedy = "" if folder else ": name a module on the Python path, or a .py file"
        raise InputError(f"{place} of --network cannot be imported, {reason_of(error)}{remedy}") from error
    return module
