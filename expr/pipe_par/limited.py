"""A model that no single process may hold: trained, saved, resumed otherwise, evaluated, merged.

    python expr/pipe_par/limited.py [--layers 36] [--width 1024] [--limit 0.5]
                                        [--folder DIR]

The kernel limits each process to a part of what the model's weights and Adam's state take
(RLIMIT_DATA: all private memory, TensorFlow's own included). One process fails; four ranks of a
pipeline train five steps under the same limit. Two pipelines of two ranks, which need more, resume
and evaluate without it, and the checkpoint is merged into one file under it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from memory import VARIABLES
from mpirun import environment

STEPS, BATCH, LENGTH, VOCABULARY = 5, 8, 16, 2048
PROCESS_BYTES = 600_000_000  # Python, TensorFlow, MPI, graphs; not the code of libraries
STACK_BYTES = 1 << 20  # of each thread, which the limit counts in full
BYTES_A_WEIGHT = 3 * 4  # itself and Adam's two moments, in float32


def job(layers: int, width: int, output: Path) -> list[str]:
    """The job's settings, as options of ooodist.train."""
    settings = [
        f"model={{name: gpt, layers: {layers}, width: {width}, heads: {width // 64}}}",
        f"data={{name: synthetic, input_shape: [{LENGTH}], dtype: int32, "
        f"vocabulary: {VOCABULARY}, num_samples: {STEPS * BATCH}}}",
        f"batch={BATCH}",
        f"steps_per_epoch={STEPS}",
        "optimizer={name: adam, learning_rate: 0.0001}",
        "report.tensorboard=false",
        "timeout=600",
    ]
    return ["--output", str(output), *(part for each in settings for part in ("--set", each))]


def run(what: str, command: list[str], limit: int | None, *, fails: bool = False) -> None:
    """Runs a command, with a limit for each process that it starts, and tells how it went."""
    began = time.monotonic()
    if limit is not None:
        at = command.index(sys.executable)
        command = [
            *command[:at],
            "prlimit",
            f"--data={limit}",
            f"--stack={STACK_BYTES}",
            *command[at:],
        ]
    done = subprocess.run(
        command,
        env=environment(VARIABLES),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if bool(done.returncode) != fails:
        sys.exit(f"{what}: exit code {done.returncode}\n{done.stdout[-6000:]}")
    shown = "no limit" if limit is None else f"{limit / 1e6:.0f} MB a process"
    outcome = "fails, as it must" if fails else "done"
    print(f"| {what} | {shown} | {time.monotonic() - began:.0f} s | {outcome} |", flush=True)


def train(ranks: int, options: list[str], parallel: str | None = None) -> list[str]:
    """A command that trains."""
    started = [sys.executable, "-m", "ooodist.train", *options]
    if parallel is None:
        return started
    mpirun = ["mpirun", "-np", str(ranks), "--bind-to", "none", "--oversubscribe"]
    return [*mpirun, *started, "--set", f"parallel={parallel}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--limit", type=float, default=0.5, help="part of weights and state")
    parser.add_argument("--folder", type=Path, help="for the checkpoints (default: temporary)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ooodist-limited-") as temporary:
        folder = options.folder or Path(temporary)
        weights = 12 * options.layers * options.width**2  # and a little more
        limit = int(BYTES_A_WEIGHT * weights * options.limit)
        memory = f"memory_bytes: {limit - PROCESS_BYTES}"
        given = job(options.layers, options.width, folder / "run")
        print(f"{weights / 1e6:.0f} million weights\n\n| | limit | time | |\n|---|---|---|---|")
        alone = job(options.layers, options.width, folder / "alone")
        run("one process", train(1, alone), limit, fails=True)
        run(
            "4 stages, 5 steps, saved",
            train(
                4,
                [*given, "--set", "epochs=1"],
                f"{{pipeline: 4, microbatches: 4, chunks: 1, {memory}}}",
            ),
            limit,
        )
        others = ["--set", "checkpoint.new_world_size=true"]  # other random numbers are all right
        run(
            "resumed on 2 x 2, 5 more steps, evaluated",
            train(
                4,
                [*given, "--set", "epochs=2", "--set", f"batch={BATCH // 2}", "--resume", *others],
                "{pipeline: 2, data: 2, microbatches: 4, shard_optimizer: true}",
            ),
            None,
        )
        merge = [sys.executable, "-m", "ooodist.checkpoint", "merge"]
        run("merged", [*merge, str(folder / "run"), str(folder / "model.keras")], limit // 4)


if __name__ == "__main__":
    main()
