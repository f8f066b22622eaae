"""The table and the figure of weak_scaling.csv: ``python expr/pipe_par/weak_scaling_report.py``.

Writes weak_scaling_results.md, weak_scaling.png and weak_scaling.svg beside the file.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import emulated_report
import matplotlib.pyplot as plt
from emulated_report import Result, result_of, verdict
from make_costs import SENTENCES

LINKS = {"nvlink": "NVLink-like", "hosts": "hosts of 8 devices, 10 GbE-like between"}
ROWS = {
    **emulated_report.ROWS,
    "modulo": "fast-forward and modulo, tuned",
    "fast_forward": "fast-forward",
}
COLORS = {**emulated_report.COLORS, "1f1b": "#555555", "fast_forward": "#cc79a7"}
STYLES = {1: "-", 2: "--", 4: ":"}  # by the number of replicas
Setting = tuple[str, int]  # link, devices
Row = tuple[int, str]  # replicas, name


def read(file: Path) -> dict[Setting, dict[Row, Result]]:
    """The results by setting and row, as they are in the file."""
    lines: dict[Setting, dict[Row, list[dict[str, str]]]] = defaultdict(lambda: defaultdict(list))
    with file.open(newline="", encoding="utf-8") as opened:
        for line in csv.DictReader(opened):
            setting = line["link"], int(line["devices"])
            lines[setting][int(line["replicas"]), line["row"]].append(line)
    found = {
        setting: {row: result_of(those) for row, those in rows.items()}
        for setting, rows in lines.items()
    }
    return dict(sorted(found.items(), key=lambda item: (list(LINKS).index(item[0][0]), item[0][1])))


def speed(devices: int, result: Result, seconds: float) -> float:
    """Sentences per second of the devices, for the seconds of a stretched step."""
    return SENTENCES * devices * result.factor / seconds


def table(results: Mapping[Setting, Mapping[Row, Result]]) -> str:
    """A line for each row of each setting, as Markdown."""
    lines = [
        "| links | devices | pipeline x replicas | schedule | stages a device "
        "| sentences/s, simulated | measured | error | over 1F1B | bubble, simulated | measured "
        "| memory of the largest rank (GB) |",
        "|" + "---|" * 12,
    ]
    for (link, devices), rows in results.items():
        base = rows[1, "1f1b"]
        base_speed = speed(devices, base, base.median)
        for (replicas, row), result in rows.items():
            measured = speed(devices, result, result.median)
            lines.append(
                f"| {LINKS[link]} | {devices} | {devices // replicas} x {replicas} | {ROWS[row]} "
                f"| {result.stages} | {speed(devices, result, result.simulated):.0f} "
                f"| {measured:.0f} | {result.error:+.1%} "
                f"| {measured / base_speed:.2f}x | {result.simulated_bubble:.1%} "
                f"| {result.bubble:.1%} | {result.peak_bytes / 1e9:.2f} |"
            )
    return "\n".join(lines) + "\n"


def goals(results: Mapping[Setting, Mapping[Row, Result]]) -> str:
    """Whether predictions are within 3 %, and ``auto`` is the fastest schedule, as Markdown."""
    every = [result for rows in results.values() for result in rows.values()]
    worst = max((result.error for result in every), key=abs)
    within = sum(abs(result.error) <= 0.03 for result in every)
    lines = [
        "| what | goal | found | |",
        "|---|---|---|---|",
        f"| error of the simulation, largest | 3 % | {worst:+.1%} ({within} of {len(every)} rows "
        f"within 3 %) | {verdict(abs(worst) <= 0.03)} |",
    ]
    for (link, devices), rows in results.items():
        alone = {row: result for (replicas, row), result in rows.items() if replicas == 1}
        least = min(result.simulated / result.factor for result in alone.values())
        auto = alone["auto"]
        behind = auto.simulated / auto.factor / least - 1
        lines.append(
            f"| auto behind the fastest schedule, simulated: {LINKS[link]}, {devices} devices "
            f"| 0.2 % | {behind:.2%} | {verdict(behind <= 0.002)} |"
        )
    return "\n".join(lines) + "\n"


def draw(results: Mapping[Setting, Mapping[Row, Result]], file: Path) -> None:
    """A panel for each link: sentences a second over devices, a line a row. PNG and SVG."""
    links = [link for link in LINKS if any(setting[0] == link for setting in results)]
    figure, all_axes = plt.subplots(
        1, len(links), figsize=(6.2 * len(links), 5.4), squeeze=False, layout="constrained"
    )
    for axes, link in zip(all_axes[0], links, strict=True):
        settings = {devices: rows for (at, devices), rows in results.items() if at == link}
        for replicas, row in dict.fromkeys(row for rows in settings.values() for row in rows):
            points = [
                (devices, rows[replicas, row])
                for devices, rows in settings.items()
                if (replicas, row) in rows
            ]
            axes.plot(
                [devices for devices, _ in points],
                [speed(devices, result, result.median) for devices, result in points],
                color=COLORS[row],
                linestyle=STYLES[replicas],
                marker="o",
                markersize=3.5,
                label=ROWS[row] + (f", {replicas} replicas" if replicas > 1 else ""),
            )
            axes.plot(
                [devices for devices, _ in points],
                [speed(devices, result, result.simulated) for devices, result in points],
                color="black",
                linestyle="none",
                marker="_",
                markersize=7,
            )
        axes.set_xticks(list(settings))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("devices; BERT has 1.5 times as many layers")
        axes.set_ylabel("sentences a second (dash: simulated)")
        axes.set_title(LINKS[link], fontsize=10)
    marks = {
        label: line
        for axes in all_axes[0]
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        marks.values(), marks, loc="outside lower center", ncols=4, frameon=False, fontsize=8
    )
    for suffix in (".png", ".svg"):
        figure.savefig(file.with_suffix(suffix), dpi=150)
    plt.close(figure)


def write(file: Path) -> None:
    """All of it, beside a file that weak_scaling.py wrote."""
    results = read(file)
    machines = {result.processor for rows in results.values() for result in rows.values()}
    text = "\n".join((goals(results), table(results)))
    text += f"\nMachine: {'; '.join(sorted(machines))}.\n"
    file.with_name("weak_scaling_results.md").write_text(text, encoding="utf-8")
    draw(results, file)
    print(goals(results))


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "weak_scaling.csv")
