"""Prints a pipeline step as text in which each column is a unit of time, so bubbles are visible.

::

    rank 0 |F-F-F-......I-W-F-I-W-I-W-|     a letter marks the start of an action; below it is
           |0 1 2       0 0 3 1 1 2 2 |     its micro-batch (and its stage, if ranks have
    rank 1 |..F-F-F-..I-W-F-I-W-...         several)

    rank 0 |FF...IWFIWIW|                   if bars are shorter than columns, a letter shows
    rank 1 |.FF.IWFIW...                    what takes up most of its column
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from ooodist.report.pipeline.bars import EXCHANGE_TITLE, Bar, joins_gradients, lanes
from ooodist.report.pipeline.outcomes import Simulated, readable_seconds

WIDTH = 120
_ENDS_ON_COLUMN = 1e-6  # columns
_WAITS, _GOES_ON = ".", "-"


def time_grid(simulated: Simulated, width: int = WIDTH) -> str:
    """One to three lines for each rank, and a legend.

    Args:
        simulated: the plan and step to show; at least one action must take time.
        width: the largest width of the ranks' lines, in characters.
    """
    shown = [
        (lane.title, [bar for bar in lane.bars if bar.end > bar.start]) for lane in lanes(simulated)
    ]
    label = max(len(title) for title, _ in shown)
    most = width - label - len(" ||")
    unit = simulated.seconds / most
    all_bars = [bar for _, lane in shown for bar in lane]
    is_coarse = sum(bar.end - bar.start for bar in all_bars) < unit * len(all_bars)
    if not is_coarse:
        ends = [bar.end / simulated.seconds for bar in all_bars]
        unit = simulated.seconds / _num_columns(ends, most)
    columns = round(simulated.seconds / unit)
    lines = []
    for name, lane in shown:
        if is_coarse:
            rows = [_coarse_row(lane, columns, unit)]
        else:
            rows = _rows(lane, columns, unit, with_stages=simulated.chunks > 1)
            if name == EXCHANGE_TITLE:
                del rows[1:]
        titles = [name, *[""] * (len(rows) - 1)]
        lines += [f"{title.ljust(label)} |{row}|" for title, row in zip(titles, rows, strict=True)]
    return "\n".join([*lines, *_legend(simulated, all_bars, unit, is_coarse=is_coarse)])


def _num_columns(ends: Sequence[float], most: int) -> int:
    """A number of columns that puts all ends (0 to 1) on column ends, else ``most``."""

    def are_on_columns(number: int) -> bool:
        places = [end * number for end in ends]
        return all(abs(place - round(place)) < _ENDS_ON_COLUMN for place in places)

    return next(filter(are_on_columns, range(most, most // 2, -1)), most)


def _rows(lane: Sequence[Bar], columns: int, unit: float, *, with_stages: bool) -> list[str]:
    """The rows of a lane: letters, micro-batches and, if wanted, stages."""

    def letter(bar: Bar, length: int) -> str:
        return bar.kind.ljust(length, _GOES_ON)

    def microbatch(bar: Bar, length: int) -> str:
        return _last_digits(None if bar.action is None else bar.action.microbatch, length)

    def stage(bar: Bar, length: int) -> str:
        return _last_digits(None if bar.action is None else bar.action.stage, length)

    def row(text: Callable[[Bar, int], str], idle: str) -> str:
        """Joins the texts of the bars, each as long as its bar, and fills gaps with ``idle``."""
        line = ""
        for bar in lane:
            start, end = _columns_of(bar, unit)
            if end > start:
                line = line.ljust(start, idle) + text(bar, end - start)
        return line.ljust(columns, idle)

    below = (microbatch, stage) if with_stages else (microbatch,)
    return [row(letter, _WAITS), *(row(text, " ") for text in below)]


def _coarse_row(lane: Iterable[Bar], columns: int, unit: float) -> str:
    """Finds for each column the letter of what takes up most of it."""
    seconds: list[defaultdict[str, float]] = [defaultdict(float) for _ in range(columns)]
    for bar in lane:
        for column in range(int(bar.start / unit), min(columns, int(bar.end / unit) + 1)):
            shared = min(bar.end, (column + 1) * unit) - max(bar.start, column * unit)
            seconds[column][bar.kind] += shared
    for each in seconds:
        each[_WAITS] = unit - sum(each.values())
    return "".join(max(each, key=each.__getitem__) for each in seconds)


def _columns_of(bar: Bar, unit: float) -> tuple[int, int]:
    """The bar's first column and the one after its last; equal if it has no column."""
    return round(bar.start / unit), round(bar.end / unit)


def _last_digits(number: int | None, length: int) -> str:
    """The last digits of the number, padded or cut to ``length``."""
    return ("" if number is None else str(number))[-length:].ljust(length)


def _legend(
    simulated: Simulated, all_bars: Iterable[Bar], unit: float, *, is_coarse: bool
) -> Iterator[str]:
    words = ["F forward", "I input gradient", "W weight gradient"]
    if any(simulated.timeline.updates):
        words.append("U update")
    if any(simulated.timeline.exchanges):
        words.append("X exchange with replicas")
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
