"""Runs what a program becomes, of each section of the pages, on all ranks, and checks its results.

python tests/docs/snippets_worker.py FOLDER
"""

# ruff: noqa: E402 - ooodist.init comes before Keras is imported
from __future__ import annotations

import io
import os
import sys
import zlib
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import ooodist

ooodist.init()

import keras
import numpy as np
import tensorflow as tf

from tests.docs.snippets import Snippet, snippets

RANK, SIZE = ooodist.rank(), ooodist.size()
random = np.random.default_rng(1)
X = random.normal(size=(64, 4)).astype("float32")
Y = random.integers(0, 3, (64, 1))


def build() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="softmax")])


def given() -> dict[str, Any]:
    """The names that the code of a section finds."""
    keras.utils.set_random_seed(RANK)  # each rank begins with other weights
    optimizer, model = keras.optimizers.Adam(), build()
    optimizer.build(model.trainable_variables)
    own = slice(RANK * 32, RANK * 32 + 32)
    steps: list[int] = []
    keras.utils.set_random_seed(RANK)  # for models that the code builds
    return {
        "ooodist": ooodist,
        "keras": keras,
        "tf": tf,
        "build": build,
        "model": model,
        "optimizer": optimizer,
        "loss_of": keras.losses.SparseCategoricalCrossentropy(),
        "x": X,
        "y": Y,
        "batches": [(X[own][:16], Y[own][:16]), (X[own][16:], Y[own][16:])][RANK:],
        "step": lambda inputs, targets: steps.append(len(inputs)),
        "steps_done": steps,
        "own": tf.constant([[RANK + 1.0]]),
        "score": RANK / 2,
        "tensor": tf.fill([3], RANK + 7.0),
    }


def trained(found: dict[str, Any]) -> None:
    """The model has other weights than before, and all ranks have the same."""
    weights = b"".join(weight.tobytes() for weight in found["model"].get_weights())
    keras.utils.set_random_seed(0)
    assert weights != b"".join(weight.tobytes() for weight in build().get_weights())
    checksums = ooodist.allgather_object(zlib.crc32(weights))
    assert checksums == [checksums[0]] * SIZE


def started(found: dict[str, Any]) -> None:
    assert found["printed"] == f"worker {RANK} of {SIZE}, {RANK} of {SIZE} here\n"


def fitted(found: dict[str, Any]) -> None:
    trained(found)
    losses = ooodist.allgather_object(found["history"].history["loss"])
    assert losses == [losses[0]] * SIZE
    assert found["model"].optimizer.iterations == 64 // 16 // SIZE


def warmed_up(found: dict[str, Any]) -> None:
    trained(found)
    done = found["steps"]  # of 3 * steps
    assert done == 64 // 16 // SIZE
    np.testing.assert_allclose(found["model"].optimizer.learning_rate, 1e-3 * (1 + (SIZE - 1) / 3))


def wrote(found: dict[str, Any]) -> None:
    trained(found)
    ooodist.barrier()
    assert Path("checkpoint-1.keras").exists()
    assert len(Path("log.csv").read_text().splitlines()) == 2


def exchanged_less(found: dict[str, Any]) -> None:
    trained(found)
    assert found["model"].optimizer.iterations == 64 // 8 // SIZE // 2


def reduced(found: dict[str, Any]) -> None:
    ranks = np.arange(SIZE) + 1.0
    assert found["mean"].numpy().tolist() == [[ranks.mean()]]
    assert found["total"].numpy().tolist() == [[ranks.sum()]]
    assert found["every"].numpy().tolist() == [[rank] for rank in ranks]


def shared(found: dict[str, Any]) -> None:
    assert found["state"] == {"epoch": 3, "best": 0.98}
    assert found["scores"] == [{"rank": rank, "score": rank / 2} for rank in range(SIZE)]
    assert found["variable"].numpy().tolist() == [7.0] * 3


def waited(found: dict[str, Any]) -> None:
    assert [2, 1][RANK] == len(found["batches"])
    assert found["steps_done"] == [16]


def saved(found: dict[str, Any]) -> None:
    ooodist.barrier()
    kept = keras.saving.load_model("model.keras").get_weights()
    if RANK == 0:
        for weight, own in zip(kept, found["model"].get_weights(), strict=True):
            np.testing.assert_array_equal(weight, own)


def as_one_process(found: dict[str, Any]) -> None:
    trained(found)
    keras.utils.set_random_seed(0)  # as rank 0
    model = build()
    model.compile("adam", "mse", jit_compile=False)
    model.fit(X, Y, batch_size=64, verbose=0)
    for weight, own in zip(model.get_weights(), found["model"].get_weights(), strict=True):
        np.testing.assert_allclose(weight, own, rtol=1e-5, atol=1e-6)


def compared_all(found: dict[str, Any]) -> None:
    a, b = X, X[:, ::-1]
    own = slice(RANK * 32, RANK * 32 + 32)
    scores = tf.matmul(a, b, transpose_b=True)
    expected = keras.losses.sparse_categorical_crossentropy(np.arange(64), scores, from_logits=True)
    found_here = found["contrastive"](tf.constant(a[own]), tf.constant(b[own]))
    np.testing.assert_allclose(found_here, expected[own], rtol=1e-5)


CHECKS: dict[tuple[str, str], Callable[[dict[str, Any]], None]] = {
    ("from_horovod", "Start"): started,
    ("from_horovod", "Train with fit"): fitted,
    ("from_horovod", "Warm up the learning rate"): warmed_up,
    ("from_horovod", "Write files on rank 0"): wrote,
    ("from_horovod", "Exchange less"): exchanged_less,
    ("from_horovod", "Reduce and gather tensors"): reduced,
    ("from_horovod", "Share values"): shared,
    ("from_horovod", "Wait for each other"): waited,
    ("from_tf_distribute", "Save on one worker"): saved,
    ("from_one_process", "Train with fit"): as_one_process,
    ("from_one_process", "A loss that compares samples"): compared_all,
}


def check(snippet: Snippet) -> None:
    found = given()
    if "for inputs, targets in batches:" in snippet.after and "[:steps]" not in snippet.after:
        found["batches"] = found["batches"][:1]  # as many on all ranks
    # TensorFlow's AutoGraph reads the source of a tf.function.
    file = Path(f"{snippet.page}-{snippet.heading}-{RANK}.py")
    file.write_text(snippet.after, "utf-8")
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(snippet.after, str(file), "exec"), found)
    found["printed"] = printed.getvalue()
    CHECKS.get((snippet.page, snippet.heading), trained)(found)
    print(f"passed {snippet.page}: {snippet.heading}", flush=True)


os.chdir(sys.argv[1])
known = [(snippet.page, snippet.heading) for snippet in snippets()]
assert set(CHECKS) <= set(known)
done: set[str] = set()
for each in snippets():
    if each.after in done and (each.page, each.heading) not in CHECKS:
        print(f"passed {each.page}: {each.heading}", flush=True)  # on another page
        continue
    check(each)
    done.add(each.after)
