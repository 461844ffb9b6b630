"""The rooms of the package and who may look into which, read from the sources; each checker is also fed bad ones."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "jointenergy"
SOURCE = ROOT / "src" / PACKAGE

# From the top down. A room sees every floor below its own; rooms of one floor are blind to each other.
FLOORS: list[set[str]] = [
    {"cli"},
    {"studio"},
    {"tables", "experiments"},
    {"report"},
    {"runs"},
    {"recipes"},
    {"inference", "training"},
    {"metrics"},
    {"objectives", "kernels", "buffers", "starts"},
    {"models", "networks", "data"},
    {"labels"},
    {"inputs"},
    {"files"},
    {"errors", "limits", "streams"},
    {"fusing", "input_gradients"},
]
# Where less is seen than the floors would allow: labels may raise errors and nothing else.
ONLY: dict[str, set[str]] = {"labels": {"errors", "inputs", "limits"}, "inputs": {"errors", "limits"}}
FRONT = {"__init__", "__main__"}

FORBIDDEN_IMPORTS = {"torchvision", "timm", "torch_fidelity", "torchattacks", "pytorch_ood", "netcal"}
PICKLES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill"}
TORCH_LOADS = {"torch.load", "torch.serialization.load"}
NAMES_THAT_SAY_NOTHING = {"util", "utils", "helper", "helpers", "misc"}


def room_of(path: Path) -> str:
    """The room of a file, given by its path below the package."""
    return path.parts[0].removesuffix(".py")


def visible_from(room: str) -> set[str]:
    if room in ONLY:
        return ONLY[room]
    floor = next(i for i, rooms in enumerate(FLOORS) if room in rooms)
    return set().union(*FLOORS[floor + 1 :])


def imports_of(tree: ast.AST, path: Path) -> Iterator[tuple[int, str]]:
    """Every (line, dotted name) that a file imports, wherever it stands; relative imports are made absolute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = [PACKAGE, *path.parts[:-1]]
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def check_direction(tree: ast.Module, path: Path) -> Iterator[str]:
    room = room_of(path)
    if len(path.parts) == 1 and room in FRONT:
        return
    if not any(room in rooms for rooms in FLOORS):
        yield f"{path}: the room '{room}' is on no floor; place it in FLOORS of tests/test_architecture.py."
        return
    for line, name in imports_of(tree, path):
        parts = name.split(".")
        if parts[0] != PACKAGE or name == f"{PACKAGE}.__version__":
            continue
        seen = parts[1] if len(parts) > 1 else ""
        if not any(seen in rooms for rooms in FLOORS):
            yield f"{path}:{line}: imports '{name}', which is no room of the table; import from a room itself."
        elif seen != room and seen not in visible_from(room):
            yield f"{path}:{line}: '{room}' may not look into '{seen}'."


def check_docstring(tree: ast.Module, path: Path) -> Iterator[str]:
    room = PACKAGE if len(path.parts) == 1 and room_of(path) in FRONT else room_of(path)
    first_line = (ast.get_docstring(tree) or "").partition("\n")[0]
    if not re.match(rf"{room}: \S", first_line):
        yield f"{path}: the docstring's first line must begin with '{room}: ', not {first_line[:40]!r}."


def check_forbidden_imports(tree: ast.Module, path: Path) -> Iterator[str]:
    for line, name in imports_of(tree, path):
        if name.split(".")[0] in FORBIDDEN_IMPORTS:
            yield f"{path}:{line}: imports '{name}', which this project does without."


def check_unpickling(tree: ast.Module, path: Path) -> Iterator[str]:
    """No file may run what it contains: no pickle, and torch.load only where weights_only=True is written out."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for line, name in imports_of(tree, path):
        if name.split(".")[0] in PICKLES:
            yield f"{path}:{line}: imports '{name}'; loading a pickle runs code, use safetensors."

    def dotted(node: ast.AST) -> str:
        if isinstance(node, ast.Attribute):
            return f"{dotted(node.value)}.{node.attr}"
        return names.get(node.id, node.id) if isinstance(node, ast.Name) else ""

    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    safe = {id(call.func) for call in calls if _says(call, "weights_only", True)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and dotted(node) in TORCH_LOADS and id(node) not in safe:
            yield f"{path}:{node.lineno}: torch.load must be called with weights_only=True."
    for call in calls:
        if any(word.arg == "allow_pickle" for word in call.keywords) and not _says(call, "allow_pickle", False):
            yield f"{path}:{call.lineno}: allow_pickle must be False."


def _says(call: ast.Call, keyword: str, value: bool) -> bool:
    return any(
        word.arg == keyword and isinstance(word.value, ast.Constant) and word.value.value is value
        for word in call.keywords
    )


def check_name(path: Path) -> Iterator[str]:
    for part in path.parts:
        if part.removesuffix(".py").strip("_") in NAMES_THAT_SAY_NOTHING:
            yield f"{path}: '{part}' says nothing; name the module after what it holds."


def check_file(source: str, path: Path) -> list[str]:
    """Every fault of one file of the package, given by its source and its path below the package."""
    tree = ast.parse(source)
    return [
        *check_direction(tree, path),
        *check_docstring(tree, path),
        *check_forbidden_imports(tree, path),
        *check_unpickling(tree, path),
        *check_name(path),
    ]


def check_tree(folder: Path) -> list[str]:
    files = sorted(folder.rglob("*.py"))
    return [fault for file in files for fault in check_file(file.read_text("utf-8"), file.relative_to(folder))]


def forbidden_requirements(project: dict[str, Any]) -> list[str]:
    requirements = list(chain(project["dependencies"], *project.get("optional-dependencies", {}).values()))
    names = [re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in requirements]
    return [name for name in names if re.sub(r"[-.]", "_", name).lower() in FORBIDDEN_IMPORTS]


# The package itself.


def test_the_package_keeps_the_rules():
    assert (SOURCE / "labels.py").is_file()
    faults = check_tree(SOURCE)
    assert not faults, "\n" + "\n".join(faults)


def test_nothing_around_the_package_imports_what_is_forbidden():
    folders = ("tests", "scripts", "examples", "benchmarks", "docs")
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    assert Path(__file__) in files
    faults = [
        fault
        for file in files
        for fault in (
            *check_forbidden_imports(ast.parse(file.read_text("utf-8")), file.relative_to(ROOT)),
            *check_name(file.relative_to(ROOT)),
        )
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_no_requirement_is_forbidden():
    assert forbidden_requirements(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]) == []


def test_one_class_name_serves_one_class():
    """Fails where two files of the package define classes of the same name."""
    homes: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


# The checkers themselves.


def good(room: str, rest: str = "") -> str:
    return f'"""{room}: what it holds."""\n{rest}\n'


ALLOWED = [
    ("labels.py", "from jointenergy.errors import InputError"),
    ("models/base.py", "from jointenergy.labels import MISSING\nfrom jointenergy.models.logits import X"),
    ("models/base.py", "from . import logits\nfrom .logits import X\nfrom ..labels import MISSING"),
    ("kernels/joint.py", "from jointenergy import labels, streams\nimport jointenergy.models.base"),
    ("training/step.py", "from jointenergy import objectives, kernels, buffers, starts, models, errors"),
    ("report/page.py", "from jointenergy.inference import predict\nfrom jointenergy.training import loop"),
    ("runs/run.py", "from jointenergy import inference\nfrom jointenergy.training import loop"),
    ("experiments/seeds.py", "from jointenergy.report import page\nfrom jointenergy.recipes import build"),
    ("cli/main.py", "from jointenergy.tables import X"),
    ("cli/studio.py", "from jointenergy.studio import app"),
    ("studio/app.py", "from jointenergy.runs import Run\nfrom jointenergy.report import comparison"),
    ("cli/main.py", "from jointenergy import __version__\nfrom jointenergy.recipes import run"),
    ("cli/main.py", "import torch\nimport jointenergyx\nfrom numpy import kernels"),
]
REFUSED = [
    ("errors.py", "from jointenergy.labels import MISSING", "'errors' may not look into 'labels'"),
    ("errors.py", "import jointenergy.streams", "'errors' may not look into 'streams'"),
    ("streams.py", "from .errors import InputError", "'streams' may not look into 'errors'"),
    ("labels.py", "from jointenergy import streams", "'labels' may not look into 'streams'"),
    ("labels.py", "from jointenergy.models import X", "'labels' may not look into 'models'"),
    ("models/base.py", "import jointenergy.kernels.chain as c", "'models' may not look into 'kernels'"),
    ("models/base.py", "from jointenergy.networks import X", "'models' may not look into 'networks'"),
    ("models/base.py", "from ..data import X", "'models' may not look into 'data'"),
    ("models/base.py", "from .. import buffers", "'models' may not look into 'buffers'"),
    ("models/deep/base.py", "from ...inference.rank import X", "'models' may not look into 'inference'"),
    ("models/__init__.py", "from ..starts import X", "'models' may not look into 'starts'"),
    ("kernels/chain.py", "def f():\n    import jointenergy.buffers", "'kernels' may not look into 'buffers'"),
    ("objectives/terms.py", "if X:\n    from jointenergy.kernels import Y", "'objectives' may not look into 'kernels'"),
    ("buffers.py", "from jointenergy.starts import X", "'buffers' may not look into 'starts'"),
    ("metrics/registry.py", "from jointenergy.inference import X", "'metrics' may not look into 'inference'"),
    ("metrics/calibration.py", "from jointenergy.runs import X", "'metrics' may not look into 'runs'"),
    ("training/step.py", "from jointenergy.inference import X", "'training' may not look into 'inference'"),
    ("inference/rank.py", "from jointenergy.training import X", "'inference' may not look into 'training'"),
    ("inference/rank.py", "from jointenergy import labels, report", "'inference' may not look into 'report'"),
    ("inference/rank.py", "from jointenergy.runs import X", "'inference' may not look into 'runs'"),
    ("training/loop.py", "from jointenergy.runs import X", "'training' may not look into 'runs'"),
    ("recipes/run.py", "from jointenergy.cli.main import X", "'recipes' may not look into 'cli'"),
    ("recipes/build.py", "from jointenergy.experiments import X", "'recipes' may not look into 'experiments'"),
    ("studio/app.py", "from jointenergy.cli.main import X", "'studio' may not look into 'cli'"),
    ("runs/run.py", "from jointenergy.studio import X", "'runs' may not look into 'studio'"),
    ("training/step.py", "from jointenergy.recipes import X", "'training' may not look into 'recipes'"),
    ("inference/rank.py", "import importlib\nimportlib.import_module('jointenergy.cli.main')", "may not look into"),
    ("inference/rank.py", "import jointenergy", "'jointenergy', which is no room"),
    ("inference/rank.py", "from jointenergy import JointModel", "'jointenergy.JointModel', which is no room"),
    ("attic/old.py", "", "the room 'attic' is on no floor; place it"),
    ("attic.py", "", "the room 'attic' is on no floor; place it"),
    ("models/base.py", "import torchvision.models", "'torchvision.models', which this project does without"),
    ("models/base.py", "def f():\n    from timm import X", "'timm.X', which this project does without"),
    ("models/utils.py", "", "'utils.py' says nothing"),
    ("models/_helpers/a.py", "", "'_helpers' says nothing"),
    ("data/formats.py", "import pickle", "imports 'pickle'"),
    ("data/formats.py", "from pickle import Unpickler", "imports 'pickle.Unpickler'"),
    ("data/formats.py", "import torch\ntorch.load(path)", "weights_only=True"),
    ("data/formats.py", "import torch\ntorch.load(path, weights_only=False)", "weights_only=True"),
    ("data/formats.py", "import torch\ntorch.load(path, weights_only=flag)", "weights_only=True"),
    ("data/formats.py", "import torch\ntorch.load(path, **options)", "weights_only=True"),
    ("data/formats.py", "import torch as t\nt.load(path)", "weights_only=True"),
    ("data/formats.py", "import torch\ntorch.serialization.load(path)", "weights_only=True"),
    ("data/formats.py", "from torch import load as l\nl(path)", "weights_only=True"),
    ("data/formats.py", "import torch\nload = torch.load", "weights_only=True"),
    ("data/formats.py", "import numpy as np\nnp.load(path, allow_pickle=True)", "allow_pickle must be False"),
]


@pytest.mark.parametrize(("path", "rest"), ALLOWED)
def test_allowed_imports_pass(path, rest):
    assert check_file(good(room_of(Path(path)), rest), Path(path)) == []


@pytest.mark.parametrize(("path", "rest", "fault"), REFUSED)
def test_a_bad_file_is_found_with_one_fault(path, rest, fault):
    faults = check_file(good(room_of(Path(path)), rest), Path(path))
    assert len(faults) == 1
    assert faults[0].startswith(path)
    assert fault in faults[0]


@pytest.mark.parametrize("name", ["__init__.py", "__main__.py"])
def test_the_front_sees_everything_and_speaks_for_the_package(name):
    rest = "".join(f"from jointenergy import {room}\n" for rooms in FLOORS for room in rooms)
    assert check_file(good("jointenergy", rest), Path(name)) == []
    assert len(check_file(good("models"), Path(name))) == 1


def test_the_front_of_a_room_is_held_to_its_room():
    assert check_file(good("models"), Path("models/__init__.py")) == []
    assert len(check_file(good("jointenergy"), Path("models/__init__.py"))) == 1


@pytest.mark.parametrize(
    "source",
    ["", "x = 1\n", '"""What it holds."""\n', '"""labels: of a neighbor."""\n', '"""models:"""\n', '"""models."""\n'],
)
def test_a_docstring_that_does_not_name_its_room_is_found(source):
    (fault,) = check_file(source, Path("models/base.py"))
    assert "must begin with 'models: '" in fault


def test_weights_alone_may_be_loaded():
    rest = "import torch\nimport json\nimport numpy as np\ntorch.load(path, weights_only=True)\njson.load(file)\n"
    assert check_file(good("data", rest + "np.load(path, allow_pickle=False)"), Path("data/formats.py")) == []


def test_a_tree_is_read_to_its_leaves(tmp_path):
    (tmp_path / "models" / "deep").mkdir(parents=True)
    (tmp_path / "models" / "deep" / "base.py").write_text(good("models", "import jointenergy.cli"))
    (tmp_path / "labels.py").write_text(good("labels"))
    assert check_tree(tmp_path) == ["models/deep/base.py:2: 'models' may not look into 'cli'."]


def test_a_forbidden_requirement_is_found():
    project = {"dependencies": ["torch>=2", "Torch-Fidelity>=1"], "optional-dependencies": {"x": ["timm[y]", "numpy"]}}
    assert forbidden_requirements(project) == ["Torch-Fidelity", "timm"]
