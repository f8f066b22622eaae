"""Imports go one way: no module imports itself by way of others, no folder one above it.

And the core imports nothing of the zoo, of recipes or of the lab, which stand on it. Imports inside
of functions count, and those for type checkers alone do between folders.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import ooodist

ROOT = Path(ooodist.__file__).parent
FILES = {
    ".".join(("ooodist", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): file
    for file in ROOT.rglob("*.py")
}

# From the top: each imports only what stands below it.
LAYERS = (
    ("train", "plan", "launch", "install_engines"),
    ("job", "emulation"),
    ("zoo",),
    ("elastic",),
    ("transfer",),
    ("pipeline",),
    ("data_parallel",),
    ("trainer",),
    ("checkpoint",),
    ("report",),
    ("profiler",),
    ("step",),
    ("data",),
    ("config", "launcher"),
    ("settings",),
    ("models", "planner"),
    ("engines", "graph"),
    ("util",),
    ("compat",),
    ("errors",),
)
LAYER_OF = {name: layer for layer, names in enumerate(LAYERS) for name in names}
# Houses that stand on the core, which is the rest, and can each be taken away from it.
HOUSES = {
    "zoo": ("zoo", "transfer"),
    "recipes": (
        *("config", "models", "data.kinds", "data.tokens", "job"),
        *("train", "plan", "launch", "install_engines"),
    ),
    "lab": ("emulation",),
}
HEAVY = ("import tensorflow", "import keras", "from keras", "from tensorflow")
TREES = {module: ast.parse(file.read_text()) for module, file in FILES.items()}
MOST_MODULES = 15  # in a folder; then it holds more than one thing


def _imports(tree: ast.AST, *, for_types: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that run, whenever they do; and those for type checkers, if wanted."""
    for node in ast.iter_child_nodes(tree):
        is_for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if is_for_types and not for_types:
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        yield from _imports(node, for_types=for_types)


def _imported(module: str, *, for_types: bool) -> set[str]:
    found = set()
    for node in _imports(TREES[module], for_types=for_types):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in FILES else str(node.module) for name in names}
    return found & FILES.keys() - {module}


IMPORTED = {module: _imported(module, for_types=True) for module in FILES}


def test_no_module_imports_itself_by_way_of_others() -> None:
    try:
        run = {module: _imported(module, for_types=False) for module in FILES}
        TopologicalSorter(run).prepare()
    except CycleError as error:
        raise AssertionError(f"these modules import each other: {error.args[1]}") from error


def _room(module: str) -> str:
    """The folder below ooodist/ that a module is in, or the module itself if it is in none."""
    return module.split(".")[1]


def test_imports_go_down() -> None:
    upward = [
        (module, other)
        for module, others in IMPORTED.items()
        for other in others
        if "ooodist" not in (module, other)  # the public names
        and _room(module) != _room(other)
        and LAYER_OF[_room(module)] >= LAYER_OF[_room(other)]
    ]
    assert upward == []


def _house(module: str) -> str:
    """The house that a module stands in."""
    path = f"{module.removeprefix('ooodist.')}."
    for house, folders in HOUSES.items():
        if path.startswith(tuple(f"{folder}." for folder in folders)):
            return house
    return "core"


def test_the_core_stands_alone() -> None:
    of_others = [
        (module, other)
        for module, others in IMPORTED.items()
        for other in others
        if module != "ooodist" and _house(module) == "core" != _house(other)
    ]
    assert of_others == []
    assert {_house(module) for module in FILES} == {"core", *HOUSES}


def test_all_rooms_are_known() -> None:
    assert {_room(module) for module in FILES if module != "ooodist"} == LAYER_OF.keys()


def test_plans_and_job_files_need_no_tensorflow() -> None:
    # What makes optimizers of their names is imported when one is made.
    names = {f"ooodist.config.keras_{what}" for what in ("callbacks", "layers", "objects")}
    for module, file in ((module, file) for module, file in FILES.items() if module not in names):
        if file.relative_to(ROOT).parts[0] in (
            "planner",
            "settings",
            "config",
            "util",
            "errors.py",
        ):
            imported = [ast.unparse(node) for node in TREES[module].body]
            assert not [line for line in imported if line.startswith(HEAVY)], file


def test_folders_hold_one_thing() -> None:
    for folder in {file.parent for file in FILES.values()}:
        modules = [file for file in folder.glob("*.py") if file.name != "__init__.py"]
        assert len(modules) <= MOST_MODULES, folder


def test_one_module_imports_mpi() -> None:
    """All else exchanges by its communicators. The other one checks what was installed."""
    importing = {
        module
        for module, tree in TREES.items()
        for node in _imports(tree, for_types=True)
        if "mpi4py" in ast.unparse(node)
    }
    assert importing == {"ooodist.engines.communicator", "ooodist.install_engines.check_exchange"}
