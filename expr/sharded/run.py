"""Memory and time of a sharded optimizer beside a whole one: see README.md.

    python expr/sharded/run.py [--engines collective horovod] [--models bert bert_base]
    python expr/sharded/run.py --rate 850Mbit           # root: only times, with plans

Each two rows of memory.csv are the ranks of a job. For steps.csv, both kinds take turns in one
job: some steps of the one, then as many of the other. With a rate, they do so on an emulated
network, each with a plan of its own, and steps go to network.csv.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
MODELS = {
    "bert": "{name: bert_12, layers: 4, width: 512, heads: 8}",
    "bert_base": "{name: bert_12}",
}
STEPS, TURNS = 6, 5
RESULT = "result,"  # how the lines begin that workers print for the tables
MEMORY = ("engine", "model", "optimizer", "rank", "state_mb", "peak_mb")
TIMES = ("engine", "model", "optimizer", "turn", "seconds_per_step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engines", nargs="+", default=["collective", "horovod"])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rate", help="of an emulated network, as given to launch/netlab.py")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(*options.worker)
        return
    memory, times = [], []
    for engine in options.engines:
        if options.rate:
            times += job(engine, options.rate, "times", "bert", "both", "planned")
            continue
        for model in options.models:
            for kind in ("whole", "sharded"):
                memory += job(engine, None, "memory", model, kind, "inorder")
        times += job(engine, None, "times", "bert", "both", "inorder")
    if options.rate:
        write(HERE / "network.csv", TIMES, times)
    else:
        write(HERE / "memory.csv", MEMORY, sorted(memory))
        write(HERE / "steps.csv", TIMES, times)
    for row in sorted(memory):
        print(*row)
    for engine in options.engines:
        for kind in ("whole", "sharded"):
            seconds = [float(row[-1]) for row in times if (row[0], row[2]) == (engine, kind)]
            print(engine, kind, f"{statistics.median(seconds):.3f} s a step")


def job(engine: str, rate: str | None, *work: str) -> list[list[str]]:
    """Runs a job of two workers, and returns the rows that they print."""
    program = ["launch/netlab.py", "--rate", rate] if rate else ["launch/local.py"]
    launcher = [sys.executable, *program, "-np", "2", "--engine", engine, "--"]
    worker = [sys.executable, str(Path(__file__).resolve()), "--worker", *work]
    done = subprocess.run(
        [*launcher, *worker], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    lines = [line.partition(RESULT)[2] for line in done.stdout.splitlines() if RESULT in line]
    return [[engine, *line.split(",")] for line in lines]


def write(file: Path, header: tuple[str, ...], rows: list[list[str]]) -> None:
    """Writes a table."""
    with file.open("w", newline="", encoding="utf-8") as target:
        csv.writer(target, lineterminator="\n").writerows([header, *rows])


def work(what: str, name: str, kind: str, order: str) -> None:
    """One worker of a job."""
    import ooodist

    engine = ooodist.init()
    import keras

    from ooodist.compat.keras_deferred import has_value
    from ooodist.config import job as job_file
    from ooodist.job.preparation import load_and_build

    class EachStep(keras.callbacks.Callback):
        """Notes when steps end, and the peak of the memory from the first one on."""

        ooodist_reads_no_weights = True

        def on_train_begin(self, logs: Any = None) -> None:
            self.ends: list[float] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.ends.append(time.perf_counter())
            if batch == 0:
                Path("/proc/self/clear_refs").write_text("5")  # the peak is that from now on
            status = Path("/proc/self/status").read_text().split("VmHWM:")[1]
            self.peak_kb = int(status.split()[0])
            slots = [v for v in self.model.optimizer.variables if has_value(v)]
            self.state_bytes = sum(v.numpy().nbytes for v in slots)

    def trained(kind: str, turns: int) -> Iterator[EachStep]:
        config = job_file.load(
            None,
            [
                f"model={MODELS[name]}",
                "data={name: synthetic, input_shape: [64], dtype: int32, vocabulary: 8192, "
                "num_samples: 512}",
                "batch=8",
                f"steps_per_epoch={STEPS}",
                "optimizer={name: adam, learning_rate: 0.0001}",
                f"shard_optimizer={str(kind == 'sharded').lower()}",
                f"order.name={order}",
                *(["planning.trial=false", "steps_per_execution=1"] if order == "planned" else []),
            ],
        )
        data, steps, model = load_and_build(config, engine)
        for _ in range(turns):
            look = EachStep()
            model.fit(data.train, steps_per_epoch=steps, verbose=0, callbacks=[look])
            yield look

    if what == "memory":
        (look,) = trained(kind, turns=1)
        row = (name, kind, engine.rank, look.state_bytes / 1e6, look.peak_kb * 1024 / 1e6)
        print(RESULT + "{},{},{},{:.1f},{:.0f}".format(*row), flush=True)
    else:
        kinds = ("whole", "sharded")
        for turn, both in enumerate(zip(*(trained(k, TURNS) for k in kinds), strict=True)):
            for one, look in zip(kinds, both, strict=True):
                seconds = (look.ends[-1] - look.ends[0]) / (STEPS - 1)
                if engine.rank == 0 and turn > 0:  # the first one traces
                    print(f"{RESULT}{name},{one},{turn},{seconds:.4f}", flush=True)
    ooodist.shutdown()


if __name__ == "__main__":
    main()
