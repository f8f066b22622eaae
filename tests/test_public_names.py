"""The names of ``import ooodist``: loaded when they are used, and known to type checkers."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import rlcompleter
from pathlib import Path

import pytest

import ooodist


def _imported_for_type_checkers() -> dict[str, str]:
    """Each name with its module."""
    tree = ast.parse(Path(ooodist.__file__).read_text())
    (block, *_) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    return {
        alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_type_checkers_find_the_names_where_they_are() -> None:
    known = _imported_for_type_checkers()
    home_of = {
        name: module for name, module in known.items() if name in ooodist.__all__
    }  # others are for annotations
    lazy = set(ooodist.__all__) - vars(ooodist).keys()
    assert lazy <= home_of.keys()
    for name, module in home_of.items():
        found = getattr(ooodist, name)
        assert found is getattr(importlib.import_module(module), name)
        assert inspect.getdoc(found)


def test_another_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="module 'ooodist' has no attribute 'distribution'"):
        _ = ooodist.distribution  # type: ignore[attr-defined]


def test_completion_shows_the_public_names_alone() -> None:
    found = rlcompleter.Completer({"ooodist": ooodist}).attr_matches("ooodist.")
    names = {name.removeprefix("ooodist.").rstrip("()") for name in found}
    assert names == set(ooodist.__all__)
    assert "__version__" in dir(ooodist)


def test_the_reference_has_all_names() -> None:
    page = (Path(__file__).parents[1] / "docs/api.md").read_text("utf-8")
    assert sorted(re.findall(r"^::: ooodist\.(\w+)$", page, re.MULTILINE)) == sorted(
        ooodist.__all__
    )


def test_the_documentation_names_what_there_is() -> None:
    root = Path(__file__).parents[1]
    options = inspect.signature(ooodist.distribute).parameters
    for page in (root / "README.md", root / "examples/README.md", *(root / "docs").glob("*.md")):
        text = page.read_text("utf-8")
        for name in re.findall(r"(?<![\w./-])ooodist\.([A-Za-z]\w*)\(", text):
            assert name in ooodist.__all__, (page.name, name)
        for given in re.findall(r"ooodist\.distribute\(model, (\w+)=", text):
            assert given in options, (page.name, given)
