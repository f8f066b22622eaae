"""A Gantt chart of some steps, in seconds: bars on lanes, arrows between them, and curves.

::

    compute   | F 1 | F 2 | dX 2 | dW 2 |          two lanes with bars
    exchange                        \\  |--- 2 ---|   an arrow leads from dW 2 to its exchange
    memory    ___/---------------\\______________   a curve

Steps of data parallel training and of pipelines, simulated and measured, are turned into charts
in data_parallel/charts.py and pipeline/charts.py. A chart is shown as text (grid.py), as a picture
(picture.py, memory_picture.py) and as a trace for Perfetto (perfetto.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Curve = Sequence[tuple[float, int]]  # (seconds, bytes in use from then on)


@dataclass(frozen=True)
class Style:
    """How bars of a kind are shown.

    Attributes:
        color, legend: in a picture.
        category: in a trace, where it also determines the color; empty if no trace shows it.
        letter: in a text; empty if no text shows it.
    """

    color: str
    legend: str
    category: str = ""
    letter: str = ""


# By kind, as legends list them; in a picture, later ones are drawn on top of earlier ones.
# Colors are from the palette of Okabe and Ito, which color-blind people can distinguish.
STYLES = {
    "F": Style("#56b4e9", "F: forward", "F", "F"),
    "dX": Style("#e69f00", "dX: input gradient", "dX", "I"),
    "I": Style("#e69f00", "I: input gradient", "dX", "I"),
    "dW": Style("#8fd0ae", "dW: weight gradient", "dW", "W"),
    "W": Style("#8fd0ae", "W: weight gradient", "dW", "W"),
    "B": Style("#e69f00", "I and W in one", "dX and dW"),
    "moved": Style("#00714f", "dW, moved later", "dW", "L"),
    "update": Style("#777777", "update", "update", "U"),
    "middle": Style("#d9d9d9", "loss, start of a call", "middle", "M"),
    "serves": Style("#cc79a7", "CPU time of the exchange"),
    "waits": Style("#fbe3df", "waits"),
    "exchange": Style("#cc79a7", "exchange with replicas", "exchange", "X"),
    "odd": Style("#7d6bb0", "exchange, odd steps", "exchange", "X"),
    "even": Style("#b3a8d6", "exchange, even steps", "exchange", "E"),
    "exposed": Style("#d62f1f", "exchange, not hidden", "exchange", "="),
}


@dataclass(frozen=True)
class Bar:
    """Something that takes time.

    Attributes:
        lane: one of the chart's.
        kind: a key of ``STYLES``.
        name: in a trace.
        start, end: seconds.
        labels: what it is about, in the order of the chart's ``label_names``. A picture has the
            first on the bar, if there is room; a text has each on a line of its own below the bar.
        details: shown when the bar is clicked in a trace.
        darkness: how much darker its color is in a picture, 0 to 1 (black).
        row: in a picture, the row of the lane that it is drawn in, from the top, and their number.
        parts: what pictures and texts show in place of it; empty: the bar itself.
    """

    lane: str
    kind: str
    name: str
    start: float
    end: float
    labels: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    darkness: float = 0.0
    row: tuple[int, int] = (0, 1)
    parts: tuple[Bar, ...] = ()


@dataclass(frozen=True)
class Chart:
    """What happens in some steps.

    Attributes:
        name: shown above the lanes of a trace.
        lanes: from the top; for each its title in pictures and texts, where there is less room.
        bars: those of a lane may overlap.
        title: shown above a picture.
        label_names: what the labels of bars are.
        arrows: each leads from bar to bar, given as indices into ``bars``. Only traces have them.
        arrow_name: what arrows stand for.
        curves: of memory, by name. They have a picture of their own.
        background: bars that only pictures show, behind the others.
        marks: (seconds, text) of vertical lines in a picture.
        lane_inches: the largest height of a lane in a picture.
    """

    name: str
    lanes: Mapping[str, str]
    bars: Sequence[Bar]
    title: str = ""
    label_names: tuple[str, ...] = ()
    arrows: Sequence[Sequence[int]] = ()
    arrow_name: str = "gradient"
    curves: Mapping[str, Curve] = field(default_factory=dict)
    background: Sequence[Bar] = ()
    marks: Sequence[tuple[float, str]] = ()
    lane_inches: float = 0.26

    @property
    def seconds(self) -> float:
        """When the last bar ends."""
        return max((bar.end for bar in self.bars), default=0.0)

    def by_lane(self) -> dict[str, list[Bar]]:
        """What pictures and texts show on each lane, from the top: parts, if a bar has some."""
        found: dict[str, list[Bar]] = {lane: [] for lane in self.lanes}
        for bar in self.bars:
            found[bar.lane] += bar.parts or (bar,)
        return found


def styles_of(bars: Iterable[Bar]) -> list[Style]:
    """The styles of bars, as legends list them."""
    kinds = {bar.kind for bar in bars}
    return [style for kind, style in STYLES.items() if kind in kinds]
