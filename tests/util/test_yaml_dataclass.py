"""Dataclasses to YAML and back, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.util.strict_yaml import parse
from ooodist.util.yaml_dataclass import (
    LARGEST_INTEGER,
    Checked,
    Count,
    Fraction,
    Range,
    dump,
    read,
    read_file,
    read_text,
    write_file,
)
from tests.util.test_strict_yaml import values


@dataclass(frozen=True)
class Inner:
    name: ClassVar[str] = "inner"
    size: Annotated[int, Range(1, 8)]
    parts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outer:
    mode: Literal["fast", "slow"] = "fast"
    rate: float = 0.5
    flag: bool = False
    text: str | None = None
    either: bool | str = False
    inner: Inner | None = None
    inners: dict[str, Inner] = field(default_factory=dict)
    free: Mapping[str, Any] = field(default_factory=dict)


integers = st.integers(-LARGEST_INTEGER, LARGEST_INTEGER)
inners = st.builds(Inner, size=st.integers(1, 8), parts=st.lists(integers, max_size=3).map(tuple))


@given(
    st.builds(
        Outer,
        mode=st.sampled_from(["fast", "slow"]),
        rate=st.floats(allow_nan=False),
        flag=st.booleans(),
        text=st.none() | st.text(),
        either=st.booleans() | st.text(),
        inner=st.none() | inners,
        inners=st.dictionaries(st.text(), inners, max_size=2),
        free=st.dictionaries(st.text(), values, max_size=2),
    )
)
def test_any_dataclass_survives_yaml(outer: Outer) -> None:
    settings = parse(dump(outer), "test")
    for inner in filter(None, [settings["inner"], *settings["inners"].values()]):
        assert inner.pop("name") == "inner"
    assert read(Outer, settings) == outer


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mod": "fast"}, "there is no key mod (did you mean mode?); the job has mode, rate"),
        ({3: 4}, "there is no key 3; the job has mode"),
        ({"mode": "fats"}, "mode is fats (did you mean fast?); it must be one of fast, slow"),
        ({"mode": True}, "mode is true; it must be one of fast, slow"),
        ({"rate": "0.1"}, "rate is '0.1'; it must be a number"),
        ({"rate": True}, "rate is true; it must be a number"),
        ({"rate": 10**400}, "too large for a number"),
        ({"rate": -(10**400)}, "too large for a number"),
        ({"inner": {"size": 1, "parts": [2**63]}}, "parts[0] is 9223372036854775808, which is too"),
        ({"flag": 1}, "flag is 1; it must be true or false"),
        ({"text": 1}, "text is 1; it must be text or null"),
        ({"either": 1}, "either is 1; it must be true or false or text"),
        ({"inner": 3}, "inner is 3; it must be a group of keys or null"),
        ({"inner": {}}, "inner.size is missing; it must be a whole number, 1 to 8"),
        ({"inner": {"size": 9}}, "inner.size is 9; it must be a whole number, 1 to 8"),
        ({"inner": {"size": 1, "sise": 1}}, "there is no key inner.sise (did you mean size?)"),
        ({"inner": {"size": 1, "parts": 1}}, "inner.parts is 1; it must be a list, each item a"),
        ({"inner": {"size": 1, "parts": [1, "x"]}}, "inner.parts[1] is x; it must be a whole"),
        ({"inners": {"a": {"size": 0}}}, "inners.a.size is 0; it must be a whole number"),
        ({"inners": {1: {"size": 1}}}, "key 1 of inners is 1; it must be text"),
        ([], "the whole file is []; it must be a group of keys"),
        ({"rate": "x" * 200}, "xxx...; it must be"),
    ],
)
def test_errors_name_key_value_and_what_is_allowed(settings: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        read(Outer, settings)
    assert message in str(caught.value)


def test_an_int_is_a_float() -> None:
    assert type(read(Outer, {"rate": 1}).rate) is float


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_nan_and_infinity_are_in_no_range(number: str) -> None:
    for bounds in (Range(0), Range(0, 1)):
        with pytest.raises(UserError, match=re.escape(str(bounds))):
            read(Annotated[float, bounds], float(number), "x")


@given(st.floats(-1, 2))
def test_an_open_range_leaves_out_its_upper_bound(value: float) -> None:
    bounds = Range(0, 1, is_open=True)
    assert bounds.contains(value) is (0 <= value < 1)
    assert str(bounds) == "at least 0 and less than 1"


@dataclass(frozen=True)
class Settings(Checked):
    keys_at: ClassVar[str] = "job.part"

    size: Count = 1
    share: Fraction = 0.5
    parts: tuple[Count, ...] = ()
    inner: Inner | None = None
    by_hand: Any = field(default=None, metadata={"reader": str})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 0}, "job.part.size is 0; it must be a whole number, at least 1"),
        ({"size": 2j}, "job.part.size is 2j; it must be a whole number"),
        ({"share": 1.0}, "job.part.share is 1.0; it must be a number, at least 0 and less than 1"),
        ({"parts": (1, 0)}, "job.part.parts[1] is 0; it must be a whole number"),
        ({"inner": 3}, "job.part.inner is 3; it must be a group of keys or null"),
    ],
)
def test_settings_check_themselves_where_a_program_makes_them(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as caught:
        Settings(**given)
    assert str(caught.value).startswith(message)


def test_settings_that_are_right_stay_as_they_are() -> None:
    inner = Inner(99)  # not checked by itself, and so not here
    made = Settings(size=2, share=0, parts=(1, 2), inner=inner, by_hand=object)
    assert (made.size, made.share, made.parts) == (2, 0, (1, 2))
    assert made.inner is inner
    assert made.by_hand is object
    assert replace(made, size=3) == Settings(3, 0, (1, 2), inner, object)


def test_a_key_that_was_renamed_is_named() -> None:
    @dataclass(frozen=True)
    class Renamed:
        steps_per_execution: int = field(default=1, metadata={"was": "steps_per_launch"})

    with pytest.raises(
        UserError, match=r"^a\.steps_per_launch is called a\.steps_per_execution now$"
    ):
        read(Renamed, {"steps_per_launch": 2}, "a")


def test_a_dataclass_survives_a_file_and_text(tmp_path: Path) -> None:
    outer = Outer(rate=2.5, text="größer", free={"a": [1, None]})
    write_file(outer, tmp_path / "outer.yaml")
    assert read_file(Outer, tmp_path / "outer.yaml", "--outer") == outer
    assert read_text(Outer, dump(outer), "a test") == outer
    with pytest.raises(UserError, match=r"^a test, line 1: this is not valid YAML"):
        read_text(Outer, "}", "a test")
