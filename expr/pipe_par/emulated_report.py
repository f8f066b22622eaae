"""The tables and the figure of emulated.csv: ``python expr/pipe_par/emulated_report.py [FILE]``.

Writes emulated_results.md, emulated.png and emulated.svg beside the file.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BASE = "1f1b"
ROWS = {
    "gpipe": "GPipe",
    BASE: "1F1B",
    "interleaved": "interleaved 1F1B, tuned",
    "zb_h1": "ZB-H1",
    "zb_h2": "ZB-H2",
    "zb_v": "ZB-V",
    "modulo": "modulo, tuned",
    "auto_equal_memory": "auto, memory of 1F1B",
    "auto": "auto",
}
COLORS = {
    "gpipe": "#999999",
    "interleaved": "#56b4e9",
    "zb_h1": "#e8b04a",
    "zb_h2": "#d98032",
    "zb_v": "#b5651d",
    "modulo": "#c9a0dc",
    "auto_equal_memory": "#8fd0ae",
    "auto": "#2e8b57",
}
MODELS = {"bert_24": "BERT-24", "bert_48": "BERT-48"}
LINKS = {"nvlink": "NVLink-like", "10gbe": "10 GbE-like"}

Setting = tuple[str, str, int, int]  # model, link, devices, micro-batches


@dataclass(frozen=True)
class Result:
    """The repeats of one row of one setting; seconds as they passed, stretched by the factor.

    Attributes:
        simulated: of a step.
        bubble, overhead: the medians over the repeats.
        peak_bytes: of the rank that keeps most.
        chunks: stages a rank.
        placement: of the stages on the ranks.
    """

    seconds: tuple[float, ...]
    simulated: float
    bubble: float
    simulated_bubble: float
    overhead: float
    peak_bytes: int
    chunks: int
    placement: str
    factor: float
    processor: str

    @property
    def stages(self) -> str:
        """Stages a device, and that they are placed as a V if they are."""
        return f"{self.chunks}{'' if self.placement == 'in turn' else ', V'}"

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def error(self) -> float:
        """Of the simulation, as a share of what was measured."""
        return self.simulated / self.median - 1


def read(file: Path) -> dict[Setting, dict[str, Result]]:
    """The results by setting and row, small settings first, rows in the order of ROWS."""
    lines: dict[Setting, dict[str, list[dict[str, str]]]] = {}
    with file.open(newline="", encoding="utf-8") as opened:
        for line in csv.DictReader(opened):
            setting = line["model"], line["link"], int(line["ranks"]), int(line["microbatches"])
            lines.setdefault(setting, defaultdict(list))[line["row"]].append(line)
    return {
        setting: {row: result_of(lines[setting][row]) for row in ROWS if row in lines[setting]}
        for setting in sorted(lines, key=_place)
    }


def _place(setting: Setting) -> tuple[int, int, str, int]:
    model, link, ranks, microbatches = setting
    return ranks, microbatches, model, list(LINKS).index(link)


def result_of(lines: Sequence[Mapping[str, str]]) -> Result:
    """The result of the lines of one row of one setting."""

    def median(name: str) -> float:
        return statistics.median(float(line[name]) for line in lines)

    return Result(
        seconds=tuple(float(line["seconds"]) for line in lines),
        simulated=median("simulated"),
        bubble=median("bubble"),
        simulated_bubble=median("simulated_bubble"),
        overhead=median("overhead"),
        peak_bytes=int(lines[0]["peak_bytes"]),
        chunks=int(lines[0]["chunks"]),
        placement=lines[0]["placement"],
        factor=float(lines[0]["factor"]),
        processor=lines[0]["processor"],
    )


def summary(results: Mapping[Setting, Mapping[str, Result]]) -> str:
    """A line for each setting, as Markdown: measured speed-ups over 1F1B."""
    lines = [
        f"| | devices | micro-batches | {' | '.join(ROWS[row] for row in COLORS)} "
        "| largest error of the simulation |",
        "|" + "---|" * (len(COLORS) + 4),
    ]
    for (model, link, ranks, microbatches), rows in results.items():
        base = rows[BASE].median
        cells = [f"{base / rows[row].median:.2f}x" if row in rows else "-" for row in COLORS]
        worst = max((result.error for result in rows.values()), key=abs)
        lines.append(
            f"| {MODELS[model]}, {LINKS[link]} | {ranks} | {microbatches} | {' | '.join(cells)} "
            f"| {worst:+.1%} |"
        )
    return "\n".join(lines) + "\n"


def table(results: Mapping[Setting, Mapping[str, Result]]) -> str:
    """A line for each row of each setting, as Markdown. Milliseconds are those of the devices."""
    lines = [
        "| | devices x micro-batches | schedule | stages a device | ms a step, simulated "
        "| measured (least to most) | error | over 1F1B | bubble, simulated | measured "
        "| memory, of 1F1B's | overhead of an action, ms as they passed |",
        "|" + "---|" * 12,
    ]
    for (model, link, ranks, microbatches), rows in results.items():
        base = rows[BASE]
        for row, result in rows.items():
            scale = 1e3 / result.factor
            low, high = min(result.seconds), max(result.seconds)
            lines.append(
                f"| {MODELS[model]}, {LINKS[link]} | {ranks} x {microbatches} | {ROWS[row]} "
                f"| {result.stages} | {result.simulated * scale:.2f} "
                f"| {result.median * scale:.2f} ({low * scale:.2f} to {high * scale:.2f}) "
                f"| {result.error:+.1%} | {base.median / result.median:.2f}x "
                f"| {result.simulated_bubble:.1%} | {result.bubble:.1%} "
                f"| {result.peak_bytes / base.peak_bytes:.2f} | {result.overhead * 1e3:.2f} |"
            )
    return "\n".join(lines) + "\n"


def verdict(is_met: bool) -> str:
    return "met" if is_met else "**missed**"


def bars(results: Mapping[Setting, Mapping[str, Result]]) -> str:
    """What was to be reached, and what was, as Markdown."""
    lines = ["| what | at least, or at most | measured | |", "|---|---|---|---|"]
    lines += [
        f"| {what} | {wanted} | {found} | {verdict(is_met)} |"
        for what, wanted, found, is_met in _bars(results)
    ]
    return "\n".join(lines) + "\n"


def _bars(
    results: Mapping[Setting, Mapping[str, Result]],
) -> Iterator[tuple[str, str, str, bool]]:
    for (model, link, ranks, microbatches), rows in results.items():
        where = f"{MODELS[model]}, {LINKS[link]}, {ranks} x {microbatches}"
        if (ranks, microbatches) == (8, 16):
            gain = rows[BASE].median / rows["auto_equal_memory"].median
            yield f"auto over 1F1B, equal memory: {where}", "1.20x", f"{gain:.2f}x", gain >= 1.2
        if (ranks, microbatches) == (4, 4):
            gain = rows["gpipe"].median / rows["auto"].median
            yield f"auto over GPipe: {where}", "1.40x", f"{gain:.2f}x", gain >= 1.4
    every = [result for rows in results.values() for result in rows.values()]
    worst = max((result.error for result in every), key=abs)
    within = sum(abs(result.error) <= 0.03 for result in every)
    found = f"{worst:+.1%} ({within} of {len(every)} rows within 3 %)"
    yield "error of the simulation, largest", "3 %", found, abs(worst) <= 0.03
    overhead = max(result.overhead for result in every) * 1e3
    yield "overhead of an action, largest", "0.5 ms", f"{overhead:.2f} ms", overhead < 0.5


def draw(results: Mapping[Setting, Mapping[str, Result]], file: Path) -> None:
    """A panel for each link: speed-up over 1F1B by setting, a bar a row. Writes PNG and SVG."""
    links = [link for link in LINKS if any(setting[1] == link for setting in results)]
    figure, all_axes = plt.subplots(
        len(links), 1, figsize=(11, 0.8 + 2.9 * len(links)), squeeze=False, layout="constrained"
    )
    width = 0.84 / len(COLORS)
    for axes, link in zip(all_axes[:, 0], links, strict=True):
        settings = [setting for setting in results if setting[1] == link]
        for at, setting in enumerate(settings):
            rows = results[setting]
            base = rows[BASE]
            for number, row in enumerate(COLORS):
                if row not in rows:
                    continue
                result, x = rows[row], at + (number - (len(COLORS) - 1) / 2) * width
                height = base.median / result.median
                low, high = base.median / max(result.seconds), base.median / min(result.seconds)
                spread = [[height - low], [high - height]]
                axes.bar(x, height, width, color=COLORS[row], yerr=spread, ecolor="#444444")
                simulated = base.simulated / result.simulated
                axes.plot(x, simulated, marker="_", color="black", markersize=7)
        axes.axhline(1, color="#555555", linewidth=0.8)
        names = [f"{MODELS[model]}\n{ranks} x {many}" for model, _, ranks, many in settings]
        axes.set_xticks(range(len(settings)), names)
        axes.set_ylim(bottom=0.6)
        axes.set_ylabel("speed-up over 1F1B")
        axes.set_title(f"{LINKS[link]}; devices x micro-batches", fontsize=10)
    marks = [plt.Rectangle((0, 0), 1, 1, color=color) for color in COLORS.values()]
    marks.append(plt.Line2D([], [], color="black", marker="_", linestyle="none"))
    labels = [*(ROWS[row] for row in COLORS), "simulated"]
    figure.legend(marks, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    for suffix in (".png", ".svg"):
        figure.savefig(file.with_suffix(suffix), dpi=150)
    plt.close(figure)


def write(file: Path) -> None:
    """All of it, beside a file that emulated.py wrote."""
    results = read(file)
    text = "\n".join((bars(results), summary(results), table(results)))
    machines = {result.processor for rows in results.values() for result in rows.values()}
    text += f"\nMachine: {'; '.join(sorted(machines))}.\n"
    file.with_name("emulated_results.md").write_text(text, encoding="utf-8")
    draw(results, file)
    print(f"{bars(results)}\n{summary(results)}")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "emulated.csv")
