"""What a training is told goes together, or one message says what does not, and why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.errors import UserError
from ooodist.planner.data_parallel.plan import InLowRank, Plan
from ooodist.settings.elastic import ElasticConfig
from ooodist.settings.sections import ExchangeConfig, ParallelConfig
from ooodist.settings.training import REFUSED, Training

# For each name of Training.given, settings by which it is given.
GIVEN: dict[str, dict[str, Any]] = {
    "order": {"order": ["a"]},
    "plan": {"order": "priority"},
    "given plan": {"plan_file": "plan.yaml", "order": "planned"},
    "fixed order": {"order": "first_k", "k": 2},
    "order that is not planned": {"order": "first_k"},
    "credit": {"exchange": {"credit": 1}},
    "bucket_bytes": {"exchange": {"bucket_bytes": 0}},
    "wire": {"exchange": {"wire": "float16"}},
    "given wire": {"exchange": {"wire": "float16"}},
    "float32": {},
    "wire of all": {"exchange": {"wire": "float16"}},
    "planned wire": {"exchange": {"wire": "planned"}, "order": "planned"},
    "no error_feedback": {"exchange": {"error_feedback": False}},
    "exchange": {"exchange": {"rows": "never"}},
    "steps_per_execution": {"steps_per_execution": 2},
    "accumulate": {"accumulate": 2},
    "low_rank": {"exchange": {"low_rank": 4}},
    "given low_rank": {"exchange": {"low_rank": 4}},
    "fixed low_rank": {"exchange": {"low_rank": 4}},
    "planned low_rank": {"exchange": {"low_rank": "auto"}, "order": "planned"},
    "no low_rank": {},
    "low_rank_after": {"exchange": {"low_rank_after": 10}},
    "skip": {"on_nan": "skip"},
    "features": {"features": (SimpleNamespace(name="noise", refuses={}, summary=str),)},
    "elastic": {"elastic": ElasticConfig()},
    "jit_compile": {"jit_compile": True},
    "shard_optimizer": {"shard_optimizer": True},
    "pipeline": {"parallel": ParallelConfig(pipeline=2, microbatches=2)},
}


def made(*settings: dict[str, Any]) -> Training:
    exchange: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for each in settings:
        exchange |= each.get("exchange", {})
        others |= {name: value for name, value in each.items() if name != "exchange"}
    return Training(**others, exchange=ExchangeConfig(**exchange))


@pytest.mark.parametrize(("one", "other"), REFUSED)
def test_what_does_not_go_together_is_refused_with_the_reason(one: str, other: str) -> None:
    with pytest.raises(UserError) as error:
        made(GIVEN[one], GIVEN[other])
    text = str(error.value)
    assert ", but " in text
    assert text.endswith(tuple(REFUSED.values()))
    assert REFUSED[one, other] in text


@given(st.sets(st.sampled_from(sorted(GIVEN.keys() - {"no error_feedback"})), max_size=3))
def test_all_else_is_allowed(names: set[str]) -> None:
    chosen = [GIVEN[name] for name in sorted(names)]
    try:
        training = made(*chosen)
    except UserError:
        return  # the table says why: the test above
    told = training.given()
    assert not [pair for pair in REFUSED if told.keys() >= set(pair)]


def test_a_plan_brings_its_own_wire_and_steps() -> None:
    plan = Plan("x", None, (), steps_per_execution=4, wire="float16")
    training = Training(order=plan, steps_per_execution=4)
    assert training.wire == "float16"
    with pytest.raises(UserError, match="on_nan is skip, but wire is float16"):
        Training(order=plan, on_nan="skip")
    with pytest.raises(UserError, match="steps_per_execution is 2, but the order is a plan"):
        Training(order=plan, steps_per_execution=2)


def test_a_plan_may_have_both_low_rank_and_a_wire() -> None:
    """As those have that are found: what cannot travel in low rank may travel in 16 bits."""
    plan = Plan("x", None, (), wire="float16", low_rank=(InLowRank(4, ("w",)),))
    training = Training(order=plan)
    assert (training.wire, training.low_rank) == ("float16", "auto")
    with pytest.raises(UserError, match=r"low_rank is 4, but wire is float16"):
        made({"exchange": {"low_rank": 4, "wire": "float16"}})


def test_ranks_compare_what_they_were_told() -> None:
    def first(units: Any) -> Any:
        return units

    told = Training(order=first, accumulate=2).arguments
    assert "first" in told
    assert " at 0x" not in told
    assert told != Training(order=first).arguments
