"""Plain values to YAML and back, and text that is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.util.strict_yaml import MOST_CHARACTERS, dump, parse

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10
)


@given(values)
def test_any_plain_value_survives_yaml(value: Any) -> None:
    assert parse(dump(value), "test") == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E3", 1e3),
        ("-.5", -0.5),
        ("1_000", 1000),
        ("010", "010"),
        ("no", "no"),
        ("'1e-3'", "1e-3"),
        ("2024-01-01", "2024-01-01"),
        ("12:30", "12:30"),
        ("~", None),
        ("", None),
        (".inf", float("inf")),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    parsed = parse(text, "test")
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mode: [fast", "f.yaml, line 1: this is not valid YAML"),
        ("rate: 1\nrate: 2", "f.yaml, line 2: this is not valid YAML: key 'rate' is there twice"),
        ("inner:\n  size: 1\n  size: 1", "line 3"),
        ("? [a]\n: 1", "a key must be a word"),
        ("a: !!python/object/apply:os.getcwd []", "this is not valid YAML: could not determine"),
        ("a: \x00", "this is not valid YAML"),
        ("&a [*a]", "this is not valid YAML"),
        ("a:\n  - " + "x" * (MOST_CHARACTERS + 1), "f.yaml, line 2: this is not valid YAML: xxx"),
        (
            "a: " + "9" * 5000,
            "99999999999999999999... has 5,000 characters; a value may have 4,096",
        ),
    ],
)
def test_text_that_is_not_plain_yaml_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text, "f.yaml")
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["\x85", "a\u2028b", " \u2029\n", "1e-3", "no", "\n\n", "-"])
def test_any_text_survives(text: str) -> None:
    assert parse(dump({"text": text}), "a test") == {"text": text}
