"""The scripts of expr/ as modules."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from tests.jobs import ROOT


def load(folder: str, name: str) -> ModuleType:
    """Returns a script of a folder; it finds those beside it, as when it is run."""
    path = ROOT / "expr" / folder
    # Other folders have scripts of the same name.
    spec = importlib.util.spec_from_file_location(f"{folder}_{name}", path / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    sys.path.insert(0, str(path))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path))
    return module
