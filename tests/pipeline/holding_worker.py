"""What each rank has of a model: ``mpirun -np 2|4 python holding_worker.py FOLDER CASE...``.

The model has a weight that the first and the last stage share, dropout, and batch normalization.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ooodist
from ooodist import engines
from ooodist.compat.keras_deferred import has_value
from ooodist.errors import UserError
from ooodist.trainer.callbacks import SeedEachEpoch

VOCABULARY, WIDTH, BATCH = 11, 8, 8
FIRST_SPLIT, SECOND_SPLIT = ("dense_1",), ("dense_2",)


class Tied(keras.layers.Layer):
    """Scores words with the embedding that has made them."""

    def __init__(self, embedding: keras.layers.Embedding) -> None:
        super().__init__(name="tied")
        self._embedding = embedding

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.matmul(inputs, self._embedding.embeddings, transpose_b=True)

    def get_config(self) -> dict[str, Any]:
        return {"embedding": keras.saving.serialize_keras_object(self._embedding)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Tied:
        return cls(keras.saving.deserialize_keras_object(config["embedding"]))


def build(width: int = WIDTH) -> keras.Model:
    keras.utils.set_random_seed(4)
    words = keras.Input((3,), dtype="int32")
    embedding = keras.layers.Embedding(VOCABULARY, width, name="embedding")
    hidden = embedding(words)
    for number in range(4):
        hidden = keras.layers.Dense(width, activation="tanh", name=f"dense_{number}")(hidden)
        hidden = keras.layers.BatchNormalization(name=f"norm_{number}")(hidden)
    hidden = keras.layers.Dropout(0.1, name="dropout")(hidden)
    model = keras.Model(words, Tied(embedding)(hidden))
    model.compile(
        keras.optimizers.Adam(0.01, use_ema=True, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)],
    )
    return model


def data() -> tf.data.Dataset:
    words = np.random.default_rng(engines.current().rank // 2).integers(
        0, VOCABULARY, (5 * BATCH, 3), np.int32
    )
    return tf.data.Dataset.from_tensor_slices((words, (words + 1) % VOCABULARY)).batch(BATCH)


def pipelined(model: Any, **options: Any) -> keras.Model:
    replicas = engines.current().size // 2
    given = {"split": FIRST_SPLIT, "schedule": "zb_h1", "timeout": 20} | options
    return ooodist.pipelined(model, pipeline=2, data=replicas, microbatches=4, **given)


def values_of(model: keras.Model) -> dict[str, np.ndarray]:
    every = [*model.variables, *model.optimizer.variables]
    return {v.path: v.numpy() for v in every if "seed_generator" not in v.path}


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)


def raises(match: str, call: Callable[[], Any]) -> None:
    with pytest.raises(UserError, match=re.escape(match)):
        call()


def own(model: keras.Model, first: set[str]) -> None:
    """Asserts that this rank has its stage's variables alone, in model and optimizer.

    Args:
        model: trained.
        first: numbers of the dense and norm layers in the first stage.
    """
    is_first = model.ooodist.strategy.ranks.position == 0
    for variable in (*model.variables, *model.optimizer.variables):
        layer = variable.path.replace("/", "_")
        numbers = [number for number in "0123" if f"_{number}_" in layer]
        expected = True  # the embedding, and what the optimizer has once
        if numbers:
            expected = (numbers[0] in first) == is_first
        elif "seed_generator" in layer:
            expected = not is_first
        assert has_value(variable) == expected, variable.path


def moves(_folder: Path) -> None:
    """A function's model trains as the built one, and never has more than its stages.

    They change between two fits: values go to where they are needed.
    """
    keras.utils.clear_session()
    built = pipelined(build())
    keras.utils.clear_session()
    model = pipelined(build)
    assert not any(map(has_value, model.variables))
    assert all(map(has_value, model.optimizer.variables))  # which is not built yet
    for each in (built, model):
        each.fit(data(), epochs=2, callbacks=[SeedEachEpoch(3, 0)], verbose=0)  # as a job does
        own(each, {"0"})
    with ooodist.whole(built), ooodist.whole(model):
        assert all(map(has_value, model.variables))
        same(values_of(model), values_of(built))
        engines.current().check_equal("losses", str(float(np.sum(model.get_weights()[0]))))
    own(model, {"0"})
    strategy = model.ooodist.strategy
    strategy.close()
    strategy.parallel = replace(strategy.parallel, split=SECOND_SPLIT)
    for each in (built, model):
        each.fit(data(), verbose=0)
    own(built, {"0"})
    own(model, {"0", "1"})
    with ooodist.whole(built), ooodist.whole(model):
        expected = values_of(built)
        for path, value in values_of(model).items():
            np.testing.assert_allclose(value, expected[path], 1e-4, 1e-6, err_msg=path)
    compiled_again(model)
    for each in (built, model):
        each.ooodist.strategy.close()


def compiled_again(model: keras.Model) -> None:
    """A new optimizer has state for this rank's weights alone; weights stay."""
    before = [value.copy() for value in model.get_weights()]
    model.compile(keras.optimizers.SGD(0.0, momentum=0.9), model.loss)
    model.fit(data(), verbose=0)
    own(model, {"0", "1"})
    for weight, value, old in zip(model.weights, model.get_weights(), before, strict=True):
        if weight.trainable:
            np.testing.assert_array_equal(value, old)


def saving(folder: Path) -> None:
    """Nothing saves a part as if it were all; what Keras' callbacks save is the whole model."""
    keras.utils.clear_session()
    model = pipelined(build)
    strategy, rank = model.ooodist.strategy, engines.current().rank
    best, file = folder / "best.keras", folder / f"part-{rank}.keras"
    callbacks = [
        keras.callbacks.ModelCheckpoint(best, monitor="loss"),
        keras.callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=False),
        keras.callbacks.EarlyStopping("loss", patience=9, restore_best_weights=True),
    ]
    model.fit(data(), epochs=2, callbacks=callbacks, verbose=0)
    own(model, {"0"})
    raises("with ooodist.whole(model)", lambda: model.save(file))
    raises("with ooodist.whole(model)", lambda: model.save_weights(folder / "x.weights.h5"))
    assert not file.exists()
    absent = next((v for v in model.variables if not has_value(v)), None)
    assert absent is not None
    raises("this rank does not have it", absent.numpy)
    parts = model.get_weights()
    assert [bool(np.isnan(part).any()) for part in parts if part.dtype == np.float32] == [
        not has_value(v) for v in model.weights if v.dtype == "float32"
    ]
    model.set_weights(parts)
    with ooodist.whole(model):
        expected = values_of(model)
        if rank == 0:
            model.save(file)
            saved = keras.models.load_model(file, {"Tied": Tied}, compile=False)
            for one, other in zip(saved.weights, model.weights, strict=True):
                np.testing.assert_array_equal(one.numpy(), other.numpy())
    if rank == 0:
        assert keras.models.load_model(best, {"Tied": Tied}, compile=False).count_params()
    strategy.close()
    # A new job goes on where the last one ended: nothing is left to train.
    keras.utils.clear_session()
    resumed = pipelined(build)
    resumed.fit(
        data(),
        epochs=2,
        callbacks=[keras.callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=False)],
        verbose=0,
    )
    own(resumed, {"0"})
    with ooodist.whole(resumed):
        for path, value in values_of(resumed).items():
            if "learning_rate" not in path:
                # fit ends with the averages, which the last backup does not have.
                assert path in expected
                assert np.isfinite(value).all()
        assert int(resumed.optimizer.iterations.numpy()) == int(expected["adam/iteration"])
    resumed.ooodist.strategy.close()


def wrong(_folder: Path) -> None:
    """Functions that cannot build a model in parts, or build another one on each rank."""
    rank = engines.current().rank

    def with_values() -> keras.Model:
        model = build()
        model.set_weights([np.zeros(weight.shape) for weight in model.weights])
        return model

    raises("sets values of its variables", lambda: pipelined(with_values))
    raises("returns a int", lambda: pipelined(lambda: 3))
    if hasattr(keras.optimizers, "MultiOptimizer"):  # not in all versions of Keras
        several = build()
        by_layer = keras.optimizers.OptimizerMap(keras.optimizers.Adam())
        several.compile(keras.optimizers.MultiOptimizer(by_layer), several.loss)
        raises("take a single optimizer", lambda: pipelined(several))
    keras.utils.clear_session()

    raises(
        "the model differs between ranks: its variable number",
        lambda: pipelined(lambda: build(WIDTH + rank)).fit(data(), verbose=0),
    )


def started(_folder: Path) -> None:
    """Rank 0 sets weights of the whole model, before there are stages and after it.

    A weight that it sets alone, while all train, is told.
    """
    rank = engines.current().rank

    def random_weights() -> None:
        if rank == 0:
            random = np.random.default_rng(7)
            for variable in model.trainable_variables:
                variable.assign(random.normal(size=variable.shape))

    def check() -> None:
        random = np.random.default_rng(7)
        for variable in model.trainable_variables:
            value = random.normal(size=variable.shape)
            if has_value(variable):
                np.testing.assert_array_equal(variable.numpy(), np.float32(value))

    keras.utils.clear_session()
    model = pipelined(build)
    model.optimizer.learning_rate = 0.0
    model.optimizer.use_ema = False
    strategy = model.ooodist.strategy
    for _ in range(2):
        with strategy.starting_on_rank_0():
            assert (rank != 0) != all(map(has_value, model.variables))
            random_weights()
        model.fit(data(), verbose=0)
        own(model, {"0"})
        check()
        with strategy.starting_on_rank_0():
            if rank == 0:
                for variable in model.trainable_variables:
                    variable.assign(tf.zeros_like(variable.value))

    class Meddler(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if rank == 0:
                model.layers[1].embeddings.assign_add(tf.ones((VOCABULARY, WIDTH)))

    def meddle() -> None:
        raises(
            "weight embedding/embeddings is not the same",
            lambda: model.fit(data(), callbacks=[Meddler()], verbose=0),
        )

    meddle()
    strategy.close()

    def frozen() -> keras.Model:
        model = build()
        model.layers[1].trainable = False  # both stages have it
        return model

    keras.utils.clear_session()
    model = pipelined(frozen)
    model.fit(data(), verbose=0)
    meddle()
    model.ooodist.strategy.close()


def sharded(folder: Path) -> None:
    """The state of a weight is on one rank, wherever it moves; numbers are as if all had it."""
    keras.utils.clear_session()
    models = []
    for shards in (False, True):
        keras.utils.clear_session()
        models.append(pipelined(build, shard_optimizer=shards))
    reference, model = models
    swap = keras.callbacks.SwapEMAWeights()
    for method in (model.fit, model.evaluate, model.predict):
        raises("SwapEMAWeights swaps", lambda m=method: m(data(), callbacks=[swap], verbose=0))
    from mpi4py import MPI  # here: it starts MPI

    from ooodist.engines.communicator import Communicator

    used: list[Communicator] = []
    for split in (FIRST_SPLIT, SECOND_SPLIT):
        for each in models:
            strategy = each.ooodist.strategy
            strategy.close()
            strategy.parallel = replace(strategy.parallel, split=split)
            # fit ends with the averages, which the ranks with the state of a weight have.
            each.fit(data(), epochs=2, callbacks=[SeedEachEpoch(3, 0)], verbose=0)
            strategy.check_replicas()
        assert all(each.comm == MPI.COMM_NULL for each in used)  # of stages that were replaced
        assembly = strategy.assembly
        used = [assembly.transport.communicator, *assembly.gradients.communicators]
        assert not any(each.comm == MPI.COMM_NULL for each in used)
        state = [v for v in model.optimizer.variables if len(v.shape)]
        held = np.array([has_value(v) for v in state], np.int64)
        tied = np.array(["embedding" in v.path for v in state])
        total = engines.current().all_reduce(held, "sum")
        assert (total == np.where(tied, 2, 1)).all(), total  # both ends of one pipeline have it
        with ooodist.whole(reference), ooodist.whole(model):
            same(values_of(model), values_of(reference))
    expected = int(model.optimizer.iterations.numpy())
    backup = keras.callbacks.BackupAndRestore(folder / "sharded", delete_checkpoint=False)
    model.fit(data(), callbacks=[backup], verbose=0)
    for each in models:
        each.ooodist.strategy.close()
    keras.utils.clear_session()
    resumed = pipelined(build, shard_optimizer=True, split=SECOND_SPLIT)
    backup = keras.callbacks.BackupAndRestore(folder / "sharded", delete_checkpoint=False)
    resumed.fit(data(), epochs=2, callbacks=[backup], verbose=0)
    resumed.ooodist.strategy.check_replicas()
    with ooodist.whole(resumed):
        assert int(resumed.optimizer.iterations.numpy()) == expected + 2 * 5
    resumed.ooodist.strategy.close()


CASES = {case.__name__: case for case in (moves, saving, started, wrong, sharded)}
REPLICATED = ("sharded",)  # with two pipelines


if __name__ == "__main__":
    ooodist.init("mpi")
    for name in sys.argv[2:]:
        CASES[name](Path(sys.argv[1]))
        print(f"held: {name}, rank {engines.current().rank}", flush=True)
