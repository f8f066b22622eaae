"""A step of a pipeline as text in which a column is a unit of time, so that bubbles are seen.

::

    rank 0 |F-F-F-......I-W-F-I-W-I-W-|     a letter is where an action begins, and below it
           |0 1 2       0 0 3 1 1 2 2 |     stands its micro-batch (and its stage, if ranks have
    rank 1 |..F-F-F-..I-W-F-I-W-...         several)

    rank 0 |FF...IWFIWIW|                   if there are more actions than columns, a letter is
    rank 1 |.FF.IWFIW...                    what takes most of its column
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from ooodist.report.pipeline.bars import Bar, bars, joins_gradients
from ooodist.report.pipeline.outcomes import Simulated, readable_seconds

WIDTH = 120
_ENDS_ON_COLUMN = 1e-6  # columns
_WAITS, _GOES_ON = ".", "-"


def time_grid(simulated: Simulated, width: int = WIDTH) -> str:
    """One to three lines for each rank, and a legend.

    Args:
        simulated: of which at least one action takes time.
        width: of the lines of ranks, at most, in characters.
    """
    lanes = [[bar for bar in lane if bar.end > bar.start] for lane in bars(simulated)]
    label = len(f"rank {len(lanes) - 1}")
    most = width - label - len(" ||")
    unit = simulated.seconds / most
    all_bars = list(chain(*lanes))
    is_coarse = sum(bar.end - bar.start for bar in all_bars) < unit * len(all_bars)
    if not is_coarse:
        ends = [bar.end / simulated.seconds for bar in all_bars]
        unit = simulated.seconds / _num_columns(ends, most)
    columns = round(simulated.seconds / unit)
    lines = []
    for rank, lane in enumerate(lanes):
        if is_coarse:
            rows = [_coarse_row(lane, columns, unit)]
        else:
            rows = _rows(lane, columns, unit, with_stages=simulated.chunks > 1)
        titles = [f"rank {rank}", *[""] * (len(rows) - 1)]
        lines += [f"{title.ljust(label)} |{row}|" for title, row in zip(titles, rows, strict=True)]
    return "\n".join([*lines, *_legend(simulated, all_bars, unit, is_coarse=is_coarse)])


def _num_columns(ends: Sequence[float], most: int) -> int:
    """As many as there may be; or less, if all ends (0 to 1) then are ends of columns."""

    def are_on_columns(number: int) -> bool:
        places = [end * number for end in ends]
        return all(abs(place - round(place)) < _ENDS_ON_COLUMN for place in places)

    return next(filter(are_on_columns, range(most, most // 2, -1)), most)


def _rows(lane: Sequence[Bar], columns: int, unit: float, *, with_stages: bool) -> list[str]:
    """Letters, micro-batches and stages."""

    def letter(bar: Bar, length: int) -> str:
        return bar.kind.ljust(length, _GOES_ON)

    def microbatch(bar: Bar, length: int) -> str:
        return _last_digits(None if bar.action is None else bar.action.microbatch, length)

    def stage(bar: Bar, length: int) -> str:
        return _last_digits(None if bar.action is None else bar.action.stage, length)

    def row(text: Callable[[Bar, int], str], idle: str) -> str:
        """The text of each bar is as long as the bar."""
        line = ""
        for bar in lane:
            start, end = _columns_of(bar, unit)
            if end > start:
                line = line.ljust(start, idle) + text(bar, end - start)
        return line.ljust(columns, idle)

    below = (microbatch, stage) if with_stages else (microbatch,)
    return [row(letter, _WAITS), *(row(text, " ") for text in below)]


def _coarse_row(lane: Iterable[Bar], columns: int, unit: float) -> str:
    """For each column the letter of what takes most of it."""
    seconds: list[defaultdict[str, float]] = [defaultdict(float) for _ in range(columns)]
    for bar in lane:
        for column in range(int(bar.start / unit), min(columns, int(bar.end / unit) + 1)):
            shared = min(bar.end, (column + 1) * unit) - max(bar.start, column * unit)
            seconds[column][bar.kind] += shared
    for each in seconds:
        each[_WAITS] = unit - sum(each.values())
    return "".join(max(each, key=each.__getitem__) for each in seconds)


def _columns_of(bar: Bar, unit: float) -> tuple[int, int]:
    """The first, and the one behind the last; the same if there is no column for it."""
    return round(bar.start / unit), round(bar.end / unit)


def _last_digits(number: int | None, length: int) -> str:
    """As many as there is room for."""
    return ("" if number is None else str(number))[-length:].ljust(length)


def _legend(
    simulated: Simulated, all_bars: Iterable[Bar], unit: float, *, is_coarse: bool
) -> Iterator[str]:
    words = ["F forward", "I input gradient", "W weight gradient"]
    if any(simulated.timeline.updates):
        words.append("U update")
    line = f"{', '.join(words)}, {_WAITS} waits; a column is {readable_seconds(unit)}"
    if is_coarse:
        yield f"{line}, and shows what takes most of it"
    else:
        below = "micro-batch and stage" if simulated.chunks > 1 else "micro-batch"
        yield f"{line}; below: {below} (last digits)"
        columns = (_columns_of(bar, unit) for bar in all_bars)
        if any(start == end for start, end in columns):
            yield "what takes less than half a column may be left out"
    if joins_gradients(simulated):
        yield "I and W are one action here (B): what I computes is sent after W"
