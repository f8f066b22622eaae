"""Which modules import each other: none, and no pair of folders more than the ones named here.

Imports for type checkers alone do not count; those inside of functions do.
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

# What is left: rules for layers walk through the layers in a layer, inside of a function.
TWO_WAY_MODULES = {("ooodist.transfer.graph.keras_graph", "ooodist.transfer.graph.keras_layers")}
# What is left: folders, of which each imports the other. Take pairs away; add none.
TWO_WAY_FOLDERS = {
    ("elastic", "pipeline"),
    ("elastic", "training"),
    ("pipeline", "training"),
    ("profile", "training"),
    ("report", "training"),
    ("training", "warmup"),
}


def _imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that run, whenever they do."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        yield from _imports(node)


def _imported(module: str) -> set[str]:
    found = set()
    for node in _imports(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in FILES else str(node.module) for name in names}
    return found & FILES.keys() - {module}


IMPORTED = {module: _imported(module) for module in FILES}


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {
        module: {other for other in others if (module, other) not in TWO_WAY_MODULES}
        for module, others in IMPORTED.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"these modules import each other: {error.args[1]}") from error


def _folder(module: str) -> str | None:
    """The folder of a module; None for those beside the folders."""
    return module.split(".")[1] if FILES[module].parent != ROOT else None


def test_no_further_folders_import_each_other() -> None:
    edges = {
        (_folder(module), _folder(other)) for module, others in IMPORTED.items() for other in others
    }
    pairs = {(a, b) for a, b in edges if a and b and a < b and (b, a) in edges}
    assert pairs == TWO_WAY_FOLDERS


def test_folders_at_the_bottom_import_no_other() -> None:
    for module, others in IMPORTED.items():
        if _folder(module) in ("backprop", "compat", "data", "models", "schedule"):
            folders = {_folder(other) for other in others}
            assert folders <= {None, "compat", _folder(module)}, module
