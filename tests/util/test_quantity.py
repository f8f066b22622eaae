"""Numbers with units, as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.util.quantity import BITS_PER_SECOND, BYTES, SECONDS, parse, read


@given(st.integers(0, 1 << 40), st.sampled_from([*BYTES]))
def test_a_number_and_a_unit(number: int, unit: str) -> None:
    assert parse(f"{number}{unit}", BYTES) == number * BYTES[unit]
    assert read(f" {number}\t{unit}\n", "--memory", BYTES, "12GiB") == number * BYTES[unit]


@pytest.mark.parametrize(("text", "seconds"), [("1.5ms", 1.5e-3), (".5s", 0.5), ("2.us", 2e-6)])
def test_fractions(text: str, seconds: float) -> None:
    assert parse(text, SECONDS) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "10", "Gbit", "10GB", "10gbit", "-1Gbit", "1e3Gbit", "1 Gbit", "1Gbit ", "٣Gbit"]
)
def test_what_is_none(text: str) -> None:
    assert parse(text, BITS_PER_SECOND) is None


@pytest.mark.parametrize("text", ["", "1 0Gbit", "1Gbit 2", "fast"])
def test_the_error_names_what_is_allowed(text: str) -> None:
    with pytest.raises(UserError) as caught:
        read(text, "--rate", {"Mbit": 1e6, "Gbit": 1e9}, "10Gbit")
    assert str(caught.value) == (
        f"--rate is {text}; it must be a number and one of Mbit, Gbit, as 10Gbit"
    )


def test_zero_where_it_must_be_more() -> None:
    assert read("0s", "--latency", SECONDS, "1ms") == 0
    with pytest.raises(UserError, match=r"--latency is 0s; .*, more than 0, as 1ms$"):
        read("0s", "--latency", SECONDS, "1ms", positive=True)
