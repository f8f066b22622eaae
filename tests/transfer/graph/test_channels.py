"""Which units belong together: laws of joining and cutting layouts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ooodist.transfer.graph import channels
from ooodist.transfer.graph.channels import Layout, Numbering, Stretch, Units

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=5)


def layout_of(sizes: Sequence[int]) -> Layout:
    return tuple(Stretch(Units(size)) for size in sizes)


@st.composite
def two_of_one_size(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    first, second = draw(SIZES), draw(SIZES)
    missing = sum(first) - sum(second)
    return first + [-missing] * (missing < 0), second + [missing] * (missing > 0)


def units_of(layout: Layout) -> list[tuple[int, int]]:
    """For each index of an axis the unit that it is."""
    return [
        (id(stretch.units), unit)
        for stretch in channels.leaves(layout)
        for unit in range(stretch.units.size)
        for _ in range(stretch.inner)
    ]


# Joining


@given(two_of_one_size())
def test_joined_axes_run_over_the_same_units(sizes: tuple[list[int], list[int]]) -> None:
    one, other = map(layout_of, sizes)
    channels.join(one, other)
    assert units_of(one) == units_of(other)
    assert channels.size_of(one) == sum(sizes[0])
    assert sum(stretch.size for stretch in channels.leaves(one)) == sum(sizes[0])
    assert len(set(units_of(one))) == sum(sizes[0])  # no two of an axis became one
    borders = {sum(part[:end]) for part in sizes for end in range(1, len(part) + 1)}
    assert len(channels.leaves(one)) == len(borders)  # split no more than needed


@given(two_of_one_size(), st.booleans())
def test_joining_is_symmetric(sizes: tuple[list[int], list[int]], turned: bool) -> None:
    one, other = map(layout_of, sizes)
    channels.join(*((other, one) if turned else (one, other)))
    straight, back = map(layout_of, sizes)
    channels.join(straight, back)
    parts = [[each.size for each in channels.leaves(layout)] for layout in (one, straight)]
    assert parts[0] == parts[1]


@given(two_of_one_size())
def test_joining_again_changes_nothing(sizes: tuple[list[int], list[int]]) -> None:
    one, other = map(layout_of, sizes)
    channels.join(one, other)
    before = units_of(one)
    channels.join(one, other)
    channels.join(other, one)
    channels.join(one, one)
    assert units_of(one) == units_of(other) == before


@given(two_of_one_size(), st.booleans(), st.booleans())
def test_what_a_norm_averages_stays_so(
    sizes: tuple[list[int], list[int]], first: bool, second: bool
) -> None:
    """Whichever of two axes it is that a norm averages."""
    one, other = map(layout_of, sizes)
    for layout, is_averaged in ((one, first), (other, second)):
        if is_averaged:
            channels.average(layout)
    channels.join(one, other)
    assert {each.units.averaged for each in channels.leaves(one)} == {first or second}


@given(two_of_one_size(), SIZES)
def test_joining_is_transitive(sizes: tuple[list[int], list[int]], third: list[int]) -> None:
    one, other = map(layout_of, sizes)
    total = sum(sizes[0])
    last = layout_of([*third, total])  # longer; its first part is as long
    (front, _) = channels.cut(last, [total, sum(third)]) or ((), ())
    channels.join(one, other)
    channels.join(other, front)
    assert units_of(one) == units_of(front) == units_of(last)[:total]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8), st.data())
def test_any_number_of_joins_ends_with_axes_that_are_whole(
    joins: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Units may occur several times on an axis: those of one stretch on two places become one."""
    units = [Units(data.draw(st.integers(1, 4))) for _ in range(4)]
    layouts: list[Layout] = []
    for _ in range(4):
        chosen = data.draw(st.lists(st.sampled_from(units), min_size=1, max_size=3))
        layouts.append(tuple(map(Stretch, chosen)))
    sizes = [channels.size_of(layout) for layout in layouts]
    for one, other in joins:
        channels.join(layouts[one], layouts[other])
        if sizes[one] == sizes[other]:
            assert units_of(layouts[one]) == units_of(layouts[other])
    assert [len(units_of(layout)) for layout in layouts] == sizes


@given(SIZES, SIZES)
def test_axes_of_different_sizes_are_frozen(first: list[int], second: list[int]) -> None:
    second = [*second, sum(first)]
    one, other = layout_of(first), layout_of(second)
    channels.join(one, other)
    assert {s.units.kind for s in channels.leaves((*one, *other))} == {"fixed"}
    assert (len(one), len(other)) == (len(first), len(second))


def test_places_and_copies_must_be_the_same() -> None:
    units = Units(6)
    cases = [
        channels.on_grid(channels.new(3), (2,)),
        (Stretch(Units(3), inner=2),),
    ]
    for layout in cases:
        plain = channels.of(units)
        channels.join(plain, layout)
        assert {s.units.kind for s in channels.leaves((*plain, *layout))} == {"fixed"}


def test_what_is_stronger_stays() -> None:
    """The units of the model's inputs and outputs stay these; a mean stays a mean."""
    for kinds in (("units", "output"), ("output", "units")):
        one, other = (channels.new(4, kind) for kind in kinds)
        channels.average(other)
        channels.join(one, other)
        (stretch,) = channels.leaves(one)
        assert stretch.units.kind == "output"
        assert stretch.units.averaged
    inputs = channels.new(4, "input")
    channels.freeze(inputs, "output")
    assert inputs[0].units.kind == "input"


def test_a_padded_shortcut_splits_the_branch() -> None:
    shortcut = (Stretch(Units(16)), Stretch(Units(16)))
    branch = channels.new(32)
    channels.join(shortcut, branch)
    assert [each.size for each in channels.leaves(branch)] == [16, 16]


# Cutting


@given(st.data(), SIZES)
def test_the_parts_of_a_cut_make_the_whole(data: st.DataObject, sizes: list[int]) -> None:
    layout = layout_of(sizes)
    ends = data.draw(st.sets(st.integers(1, max(1, sum(sizes) - 1)), max_size=4))
    borders = sorted({0, sum(sizes)} | {end for end in ends if end < sum(sizes)})
    lengths = [end - start for start, end in itertools.pairwise(borders)]
    parts = channels.cut(layout, lengths)
    assert parts is not None
    assert [channels.size_of(part) for part in parts] == lengths
    assert [unit for part in parts for unit in units_of(part)] == units_of(layout)
    assert {stretch.units.kind for stretch in channels.leaves(layout)} == {"units"}


def test_a_cut_that_cannot_be_freezes() -> None:
    for layout, sizes in (
        (channels.new(4), [2, 3]),
        (channels.new(4), [4, 0]),
        ((Stretch(Units(3), inner=2),), [3, 3]),
    ):
        assert channels.cut(layout, sizes) is None
        assert {stretch.units.kind for stretch in channels.leaves(layout)} == {"fixed"}


def test_units_that_occur_twice_are_cut_at_both_places() -> None:
    units = Units(4)
    layout = (Stretch(units), Stretch(units))
    one, other = channels.cut(layout, [3, 5]) or ((), ())
    assert [each.size for each in channels.leaves(one)] == [3]
    assert [each.size for each in channels.leaves(other)] == [1, 3, 1]


# Grids


@given(SIZES, st.lists(st.integers(1, 3), max_size=3))
def test_an_axis_is_there_once_for_each_place(sizes: list[int], grid: list[int]) -> None:
    layout = layout_of(sizes)
    flat = channels.on_grid(layout, tuple(grid))
    places = 1
    for size in grid:
        places *= size
    assert channels.size_of(flat) == places * sum(sizes)
    assert units_of(flat) == units_of(layout) * places
    if places > 1:
        assert [s.place for s in flat[:: len(sizes)]] == sorted({s.place for s in flat})


def test_a_grid_of_a_grid_is_fixed() -> None:
    flat = channels.on_grid(channels.on_grid(channels.new(3), (2,)), (2,))
    assert channels.size_of(flat) == 12
    assert [(s.units.kind, s.size) for s in flat] == [("fixed", 12)]


# Numbers


@given(two_of_one_size())
def test_the_numbers_of_spaces_are_those_of_units(sizes: tuple[list[int], list[int]]) -> None:
    one, other = map(layout_of, sizes)
    channels.join(one, other)
    numbering = Numbering()
    first, second = numbering.segments(one), numbering.segments(other)
    assert first == second
    assert [segment.space for segment in first] == list(range(len(numbering.spaces)))
    assert sum(space.size for space in numbering.spaces) == sum(sizes[0])


def test_nobody_knows_how_many() -> None:
    assert channels.new(None) == ()
    assert channels.size_of(()) == 0
    channels.freeze(())
    channels.join((), ())
