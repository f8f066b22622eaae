"""Loads the scripts of expr/elastic, which are no package."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from tests.jobs import ROOT

FOLDER = ROOT / "expr/elastic"


def load(name: str) -> ModuleType:
    """Returns a script as a module; it finds those beside it, as when it is run."""
    spec = importlib.util.spec_from_file_location(f"elastic_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    sys.path.insert(0, str(FOLDER))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module
