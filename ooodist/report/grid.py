"""Prints a chart as text in which each column is a unit of time, so that waiting is visible.

::

    rank 0 |F-F-F-......I-W-F-I-W-I-W-|     a letter marks the start of a bar; below it are its
           |0 1 2       0 0 3 1 1 2 2 |     labels: here its micro-batch
    rank 1 |..F-F-F-..I-W-F-I-W-...

    rank 0 |FF...IWFIWIW|                   if bars are shorter than columns, a letter shows
    rank 1 |.FF.IWFIW...                    what takes up most of its column
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ooodist.report.chart import STYLES, Bar, Chart, styles_of
from ooodist.report.tables import readable_seconds

WIDTH = 120
_ENDS_ON_COLUMN = 1e-6  # columns
_WAITS, _GOES_ON = ".", "-"


def time_grid(chart: Chart, width: int = WIDTH) -> str:
    """A line for each lane and the labels of its bars, and a legend.

    Args:
        chart: the chart to show; at least one bar must take time.
        width: the largest width of the lanes' lines, in characters.
    """
    lanes = chart.by_lane()
    shown = [bar for bars in lanes.values() for bar in bars if bar.end > bar.start]
    titles = {lane: title.replace("\n", " ") for lane, title in chart.lanes.items()}
    label = max(map(len, titles.values()))
    most = width - label - len(" ||")
    unit = chart.seconds / most
    is_coarse = sum(bar.end - bar.start for bar in shown) < unit * len(shown)
    if not is_coarse:
        unit = chart.seconds / _num_columns([bar.end / chart.seconds for bar in shown], most)
    columns = round(chart.seconds / unit)
    lines = []
    for lane, bars in lanes.items():
        rows = [_coarse_row(bars, columns, unit)] if is_coarse else _rows(bars, columns, unit)
        heads = [titles[lane], *[""] * (len(rows) - 1)]
        lines += [f"{head.ljust(label)} |{row}|" for head, row in zip(heads, rows, strict=True)]
    return "\n".join([*lines, *_legend(chart, shown, unit, is_coarse=is_coarse)])


def _num_columns(ends: Sequence[float], most: int) -> int:
    """A number of columns that puts all ends (0 to 1) on column ends, else ``most``."""

    def are_on_columns(number: int) -> bool:
        places = [end * number for end in ends]
        return all(abs(place - round(place)) < _ENDS_ON_COLUMN for place in places)

    return next(filter(are_on_columns, range(most, most // 2, -1)), most)


def _rows(bars: Sequence[Bar], columns: int, unit: float) -> list[str]:
    """The rows of a lane: letters, and each of the labels."""

    def row(texts: Sequence[str], goes_on: str, idle: str) -> str:
        """Writes each text as long as its bar, over those before it; the rest is ``idle``."""
        line = [idle] * columns
        for bar, text in zip(bars, texts, strict=True):
            start, end = _columns_of(bar, unit)
            if text and end > start:
                # If there is no room, the last digits of a number are shown: they differ most.
                line[start:end] = text[start - end :].ljust(end - start, goes_on)
        return "".join(line)

    letters = row([STYLES[bar.kind].letter for bar in bars], _GOES_ON, _WAITS)
    labels = itertools.zip_longest(*(bar.labels for bar in bars), fillvalue="")
    return [letters, *(row(texts, " ", " ") for texts in labels)]


def _coarse_row(bars: Iterable[Bar], columns: int, unit: float) -> str:
    """Finds for each column the letter of what takes up most of it."""
    seconds: list[defaultdict[str, float]] = [defaultdict(float) for _ in range(columns)]
    for bar in bars:
        for column in range(int(bar.start / unit), min(columns, int(bar.end / unit) + 1)):
            shared = min(bar.end, (column + 1) * unit) - max(bar.start, column * unit)
            seconds[column][STYLES[bar.kind].letter] += shared
    shares = [{_WAITS: unit - sum(each.values()), **each} for each in seconds]
    # Of what takes as long, the last: it is drawn over the others.
    return "".join(max(reversed(each), key=each.__getitem__) for each in shares)


def _columns_of(bar: Bar, unit: float) -> tuple[int, int]:
    """The bar's first column and the one after its last; equal if it has no column."""
    return round(bar.start / unit), round(bar.end / unit)


def _legend(chart: Chart, shown: Iterable[Bar], unit: float, *, is_coarse: bool) -> Iterator[str]:
    words = []
    for style in styles_of(bar for bars in chart.by_lane().values() for bar in bars):
        name, _, more = style.legend.removeprefix(f"{style.letter}: ").partition(", ")
        words.append(f"{style.letter} {name} ({more})" if more else f"{style.letter} {name}")
    line = f"{', '.join(words)}, {_WAITS} waits; a column is {readable_seconds(unit)}"
    if is_coarse:
        yield f"{line}, and shows what takes most of it"
    else:
        yield f"{line}; below: {' and '.join(chart.label_names)} (last digits)"
        if any(start == end for start, end in (_columns_of(bar, unit) for bar in shown)):
            yield "what takes less than half a column may be left out"
    if any(bar.kind == "B" for bar in chart.bars):
        yield "I and W are one action here (B): what I computes is sent after W"
