"""The names by which all ranks know weights."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ooodist.step.backward import names_by_id, variable_names
from tests.pipeline.models import MODELS


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "b", "a", "a"], ["a", "b", "a#2", "a#3"]),
        (["a", "a", "a#2"], ["a", "a#3", "a#2"]),
        (["a#2", "a", "a"], ["a#2", "a", "a#3"]),
        (["a", "a", "a#2", "a#2"], ["a", "a#3", "a#2", "a#2#2"]),
    ],
)
def test_names_are_unique_and_paths_where_these_are(paths: list[str], names: list[str]) -> None:
    assert variable_names([SimpleNamespace(path=path) for path in paths]) == names


def test_each_variable_of_a_model_has_a_name() -> None:
    model, *_ = MODELS["twins"]()
    names = names_by_id(model)
    assert len({*names.values()}) == len(model.variables) > len({v.path for v in model.variables})
    trained = [names[id(weight)] for weight in model.trainable_variables]
    assert trained == variable_names(model.trainable_variables)
