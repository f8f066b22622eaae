"""Plans as YAML and back, parts of gradients, and which plan files are refused."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from ooodist.errors import UserError
from ooodist.planner.data_parallel import plan as plans
from ooodist.planner.data_parallel.plan import (
    ALIGNMENT,
    Plan,
    PlannedExchange,
    Prediction,
    carried_exchanges,
    check_exchanges,
    from_yaml,
    narrow_exchanges,
    split_evenly,
    with_carried,
)
from ooodist.util.yaml_dataclass import LARGEST_INTEGER, dump

numbers = st.floats(0, allow_nan=False)
counts = st.integers(1, LARGEST_INTEGER)


@st.composite
def exchanges(draw: DrawFn) -> tuple[PlannedExchange, ...]:
    found = []
    names = draw(st.lists(st.text(), unique=True, max_size=6))
    while names:
        parts = draw(st.integers(1, 3))
        count = draw(st.integers(1, len(names))) if parts == 1 else 1
        members, names = tuple(names[:count]), names[count:]
        found += [
            PlannedExchange(members, part, parts, draw(st.booleans())) for part in range(parts)
        ]
    return tuple(draw(st.permutations(found)))


any_plan = st.builds(
    Plan,
    name=st.text(),
    order=st.none() | st.lists(st.text(), max_size=5).map(tuple),
    exchanges=exchanges(),
    credit=st.none() | counts,
    by_urgency=st.booleans(),
    partition_bytes=st.none() | counts,
    steps_per_execution=counts,
    model=st.text(),
    engine=st.text(),
    workers=counts,
    predicted=st.none()
    | st.builds(Prediction, numbers, numbers, numbers, st.integers(0, LARGEST_INTEGER)),
)


@given(any_plan)
def test_any_plan_survives_yaml(plan: Plan) -> None:
    again = from_yaml(dump(plan), "test")
    assert again == plan
    assert again.digest() == plan.digest()


def test_write_and_read(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    plans.write(PLAN, file)
    assert plans.read(file) == PLAN
    assert list(tmp_path.iterdir()) == [file]


PLAN = Plan(
    name="planned",
    order=("dX:b", "dW:b", "dW:a"),
    exchanges=(
        PlannedExchange(("a",), 0, 2),
        PlannedExchange(("b", "c")),
        PlannedExchange(("a",), 1, 2),
    ),
)


HALF = replace(PLAN, exchanges=(*PLAN.exchanges[:2], PlannedExchange(("a",), 1, 2, carried=True)))


def test_digest_is_of_what_is_carried_out() -> None:
    assert replace(PLAN, predicted=Prediction(1.0, 2.0, 3.0)).digest() == PLAN.digest()
    others = [
        replace(PLAN, order=None),
        replace(PLAN, order=PLAN.order[::-1] if PLAN.order else None),
        replace(PLAN, exchanges=PLAN.exchanges[::-1]),
        replace(PLAN, credit=1),
        replace(PLAN, by_urgency=True),
        replace(PLAN, partition_bytes=4096),
        replace(PLAN, steps_per_execution=2),
        with_carried(PLAN, ("a",)),
        HALF,
        replace(PLAN, model="other"),
    ]
    assert len({plan.digest() for plan in [PLAN, *others]}) == 1 + len(others)


def test_a_file_from_before_exchanges_could_be_carried_carries_none() -> None:
    text = dump(PLAN)
    assert "  carried: false\n" in text
    old = text.replace("  carried: false\n", "")
    assert from_yaml(old, "test") == PLAN
    assert from_yaml(f"{old}carried: []\n", "test") == PLAN


def test_older_files_name_the_weights_that_are_carried() -> None:
    text = dump(PLAN).replace("  carried: false\n", "")
    assert from_yaml(f"{text}carried: [c, b]\n", "test") == with_carried(PLAN, ("b", "c"))
    assert from_yaml(f"{text}carried: [a]\n", "test") == with_carried(PLAN, ("a",))


def test_what_is_narrow_is_so_as_a_whole_and_in_a_wire() -> None:
    exchanges = (PlannedExchange(("a", "b")), PlannedExchange(("c",), 0, 2))
    exchanges = (*exchanges, PlannedExchange(("c",), 1, 2))
    plan = Plan("x", None, exchanges, wire="bfloat16", narrow=("c",))
    check_exchanges(plan)
    assert narrow_exchanges(plan) == [1, 2]
    for narrow, message in (
        (("a", "c"), "narrow has a, whose exchange a+1 also has b; name all weights of a bucket"),
        (("d",), "narrow has d, which the plan does not exchange"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            check_exchanges(replace(plan, narrow=narrow))
    with pytest.raises(UserError, match="narrow has c, but wire does not say in which dtype"):
        check_exchanges(replace(plan, wire=None))


def test_what_is_carried() -> None:
    assert (carried_exchanges(PLAN), PLAN.carried) == ([], ())
    for weights, numbers in ((("a",), [0, 2]), (("c", "b"), [1]), (("c", "a", "b"), [0, 1, 2])):
        plan = with_carried(PLAN, weights)
        assert carried_exchanges(plan) == numbers
        assert {*plan.carried} == {*weights}
        assert with_carried(plan, ()) == PLAN
    check_exchanges(HALF)
    assert (carried_exchanges(HALF), HALF.carried) == ([2], ("a",))


def test_names_of_exchanges() -> None:
    assert [exchange.name for exchange in PLAN.exchanges] == ["a[0/2]", "b+1", "a[1/2]"]


@given(st.integers(1, 5000), st.sampled_from([1, 2, 4, 8, 16]), st.data())
def test_parts_are_even_aligned_and_together_the_whole(
    num_elements: int, item_bytes: int, data: st.DataObject
) -> None:
    blocks = -(-num_elements * item_bytes // ALIGNMENT)
    parts = data.draw(st.integers(1, blocks))
    sizes = split_evenly(num_elements, item_bytes, parts)
    assert len(sizes) == parts
    assert sum(sizes) == num_elements
    assert min(sizes) > 0
    assert all(start * item_bytes % ALIGNMENT == 0 for start in itertools.accumulate(sizes[:-1]))
    # Two differ by no more than a block, and by what the last block lacks.
    assert (max(sizes) - min(sizes)) * item_bytes < 2 * ALIGNMENT
    assert max(sizes) == sizes[0]


@pytest.mark.parametrize(
    ("num_elements", "item_bytes", "parts"), [(16, 4, 2), (17, 4, 3), (0, 4, 1), (100, 4, 0)]
)
def test_refuses_more_parts_than_there_are_blocks(
    num_elements: int, item_bytes: int, parts: int
) -> None:
    with pytest.raises(ValueError, match=f"{num_elements} elements of {item_bytes} bytes"):
        split_evenly(num_elements, item_bytes, parts)


WRONG_FILES = [
    ("[1, 2]", "mine.yaml is no plan"),
    ("name: p\norder: [", "mine.yaml, line 2: this is not valid YAML"),
    ("name: p\norder: null", "mine.yaml: exchanges is missing"),
    ("name: p\norder: null\nexchanges: []\ncredits: 4", "did you mean credit?"),
    ("name: p\norder: null\nexchanges: []\ncredit: 0", "credit is 0; it must be"),
    ("name: p\norder: 3\nexchanges: []", "order is 3"),
    (
        "name: p\norder: null\nexchanges:\n- {weights: [a], part: -1, parts: 2}",
        "exchanges[0].part is -1",
    ),
    ("name: p\norder: null\nexchanges:\n- {weights: []}", "an exchange without weights"),
    (
        "name: p\norder: null\nexchanges:\n- {weights: [a], part: 2, parts: 2}",
        "exchange a[2/2] has part 2 of 2",
    ),
    (
        "name: p\norder: null\nexchanges:\n- {weights: [a, b], part: 0, parts: 2}",
        "part 0 of 2 of 2 weights",
    ),
    (
        "name: p\norder: null\nexchanges:\n- {weights: [a]}\n- {weights: [a, b]}",
        "does not have each part of a once",
    ),
    (
        "name: p\norder: null\nexchanges:\n- {weights: [a]}\n- {weights: [a], part: 0, parts: 2}",
        "does not have each part of a once",
    ),
    (
        "name: p\norder: null\nexchanges:\n- {weights: [a], part: 1, parts: 3}",
        "1 of the 3 parts of a, and lacks part 0",
    ),
    (
        "name: p\norder: null\nexchanges:\n- {weights: [a], part: 0, parts: 1000000000000}",
        "1 of the 1000000000000 parts of a, and lacks part 1;",
    ),
    (
        "name: p\norder: null\nexchanges:\n- {weights: [a, b, c]}\ncarried: [c, a]",
        "carried has a, c, whose exchange a+2 also has b; name all weights of a bucket, or none",
    ),
    (
        "name: p\norder: null\nexchanges:\n- {weights: [a]}\ncarried: [a, d]",
        "carried has d, which the plan does not exchange; take it out",
    ),
    ("name: p\norder: null\nexchanges: []\ncarried: a", "carried is a"),
    (
        "name: p\norder: null\nexchanges:\n- {weights: [a], carried: true}\ncarried: [a]",
        "carried has a, but exchanges of the plan say themselves",
    ),
    (
        "name: p\norder: null\nexchanges:\n- {weights: [a], carried: [a]}",
        "exchanges[0].carried is - a; it must be true or false",
    ),
]


@pytest.mark.parametrize(("text", "message"), WRONG_FILES)
def test_refuses_wrong_files_and_says_which(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=re.escape(message)) as raised:
        plans.read(file)
    assert str(file) in str(raised.value)


def test_refuses_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name in ("none.yaml", "binary.yaml"):
        with pytest.raises(UserError, match=f"plan .*{name} cannot be read"):
            plans.read(tmp_path / name)
