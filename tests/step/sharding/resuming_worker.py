"""One worker of the jobs in test_sharded.py that save checkpoints, and go on from them.

Usage: resuming_worker.py FOLDER save|resume
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import numpy as np

import ooodist

engine = ooodist.init()

import keras  # noqa: E402

from ooodist.checkpoint import folder as folders  # noqa: E402
from ooodist.config import job as job_file  # noqa: E402
from ooodist.job.preparation import set_up  # noqa: E402
from ooodist.job.run import train  # noqa: E402

SAMPLES_A_STEP = 32


def trained(output: Path, *overrides: str) -> list[np.ndarray]:
    """Runs a job, and returns all state at its end, which its Keras file has, too."""
    keras.backend.clear_session()
    given = [
        "model={name: mlp, layers: [16, 16]}",
        "optimizer={name: adam, learning_rate: 0.01}",
        f"batch={SAMPLES_A_STEP // engine.size}",
        "steps_per_epoch=4",
        "report={tensorboard: false}",
        "exchange.low_rank=1",
        f"output={output}",
        *overrides,
    ]
    ready = set_up(job_file.load(None, given), engine)
    train(ready, 0.0)
    with ooodist.whole(ready.model):
        variables = [*ready.model.weights, *ready.model.optimizer.variables]
        found = [np.array(variable.numpy()) for variable in variables]
    if engine.rank == 0:
        saved = keras.models.load_model(output / "model.keras")
        assert_same(found, [v.numpy() for v in (*saved.weights, *saved.optimizer.variables)])
    return found


def assert_same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def save(folder: Path) -> None:
    """Trains two epochs, also after one was saved in the middle of an epoch."""
    often = ("epochs=2", "checkpoint.every_steps=3", "checkpoint.background=false")
    whole = trained(folder / "whole", *often)
    assert_same(whole, trained(folder / "part", *often, "shard_optimizer=true"))
    saved = [path for _, path in folders.checkpoints(folder / "part")]
    for path in saved:
        parts = sorted(part.name for part in path.iterdir())
        assert parts == ["manifest.json", *(f"part-{rank}.npz" for rank in range(engine.size))]


# Of what was saved, by whom it is resumed; four more are tried with as many workers as saved it.
PAIRS = {
    folders.file_name(1, 2): [("whole", True), ("part", False)],
    folders.file_name(2, 0): [("part", True), ("whole", False)],
}


def resume(folder: Path) -> None:
    """Goes on from both kinds, from the end of an epoch and from its middle, with both kinds."""
    for place, pairs in PAIRS.items():
        all_pairs = list(product(("whole", "part"), (True, False)))
        found = []
        for source, shards in all_pairs if engine.size == 2 else pairs:
            file = folder / source / (place if source == "whole" else Path(place).stem)
            output = folder / f"{engine.size}-{source}-{shards}-{place}"
            go_on = (f"checkpoint.resume={file}", "checkpoint.new_world_size=true")
            shard = f"shard_optimizer={str(shards).lower()}"
            found.append(trained(output, *go_on, "epochs=3", shard))
        for other in found[1:]:
            assert_same(found[0], other)


if __name__ == "__main__":
    {"save": save, "resume": resume}[sys.argv[2]](Path(sys.argv[1]))
    ooodist.shutdown()
