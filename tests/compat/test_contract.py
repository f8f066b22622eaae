"""Every function of ooodist.compat has a contract, and a broken one says what changed."""

from __future__ import annotations

import ast
from pathlib import Path

import keras
import pytest

from ooodist import compat
from ooodist.compat.keras_model import layers_of
from tests.compat.contract import Contract


def test_every_function_has_a_contract() -> None:
    tests = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    functions = [
        f"{file.stem}.{statement.name}"
        for file in Path(compat.__file__).parent.glob("*.py")
        for statement in ast.parse(file.read_text()).body
        if isinstance(statement, ast.FunctionDef)
    ]
    assert functions
    assert [name for name in functions if f" {name}," not in tests] == []


def test_a_broken_contract_names_the_version_and_the_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(keras.Layer, "_flatten_layers")
    contract = Contract(
        "Layer._flatten_layers", "keras", layers_of, lambda: layers_of(keras.Layer())
    )
    with pytest.raises(AssertionError) as caught:
        contract.hold()
    message = str(caught.value)
    assert f"keras {keras.__version__} has changed Layer._flatten_layers" in message
    assert "ooodist.compat.keras_model.layers_of" in message
    assert "also those inside others" in message
