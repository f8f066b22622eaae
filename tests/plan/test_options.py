"""The options of python -m ooodist.plan."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.plan.options import parse, parse_memory, whole_number
from ooodist.planner.pipeline.plan import AUTO, NAMES


@given(st.integers(1, 1 << 20), st.sampled_from(["B", "KiB", "MiB", "GiB", "TiB"]))
def test_sizes(number: int, unit: str) -> None:
    power = ["B", "KiB", "MiB", "GiB", "TiB"].index(unit)
    assert (
        parse_memory(f"{number}{unit}")
        == parse_memory(f" {number} {unit}")
        == (number * 1024**power)
    )


def test_sizes_may_have_a_fraction() -> None:
    assert parse_memory("1.5KiB") == 1536


@pytest.mark.parametrize("text", ["12", "12GB", "0GiB", "0.0B", "-1GiB", "GiB", "1e3B", "1 G"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UserError, match=f"^--memory is {text}; it must be a number and one of"):
        parse_memory(text)


@given(st.integers(0, 1 << 40))
def test_whole_numbers(number: int) -> None:
    assert whole_number(str(number), "--pipeline", least=0) == number
    with pytest.raises(UserError, match=f"--pipeline is {number}; .* at least {number + 1}"):
        whole_number(str(number), "--pipeline", least=number + 1)


@pytest.mark.parametrize("text", ["", "x", "1.0", "-1", "+1", "1e3"])
def test_what_is_no_whole_number(text: str) -> None:
    with pytest.raises(UserError, match="it must be a whole number of at least 0"):
        whole_number(text, "--pipeline", least=0)


def test_lists_of_words_and_numbers() -> None:
    options = parse(["--pipeline", "4", "8", "--schedule", "auto", "1f1b", "--memory", "1GiB"])
    assert (options.pipeline, options.schedule) == ([4, 8], ["auto", "1f1b"])
    assert (options.microbatches, options.chunks, options.memory) == (None, None, 1 << 30)


@pytest.mark.parametrize("arguments", [["--pipeline"], ["--pipelines", "4"], ["--pipe", "4"]])
def test_mistakes_are_one_line(arguments: list[str]) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*--help shows what there is$"):
        parse(arguments)


def test_help_shows_pipelines_and_all_schedules(capsys: Any) -> None:
    with pytest.raises(SystemExit) as end:
        parse(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    words = shown.replace(",", " ").split()
    for name in (AUTO, *NAMES):
        assert name in words
    for part in (
        "--costs layers.yaml --pipeline 4 --microbatches 8",
        "--microbatches 8 16 32 --chunks 1 2",
        "--set parallel.schedule=plans/schedule.csv",
    ):
        assert part in shown
