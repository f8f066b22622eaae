"""Each rank writes what it has, and reads what it needs; see test_together.py.

Ranks have no values of the variables that others write, so that none can be read by mistake.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest

from ooodist import engines
from ooodist.checkpoint import folder as folders
from ooodist.checkpoint import keras_file, parallel_write
from ooodist.checkpoint.parts import Parts
from ooodist.compat.keras_deferred import has_value, release, set_value
from ooodist.engines.base import Engine
from ooodist.errors import SharedError
from ooodist.trainer.resume import Source, restore_own
from tests.checkpoint.examples import assert_same, make_model, state_of, values_of


def writers_of(model: keras.Model, size: int) -> dict[int, int]:
    """Deals the variables out to the ranks; those of the optimizer that all have are left out."""
    kept = [variable for variable in keras_file.kept(model) if len(variable.shape)]
    return {id(variable): index % size for index, variable in enumerate(kept)}


def keep_own(model: keras.Model, writers: dict[int, int], rank: int) -> None:
    """Frees the values that other ranks have."""
    for variable in keras_file.kept(model):
        if writers.get(id(variable), rank) != rank:
            release(variable, f"rank {writers[id(variable)]}")


def check_writing(engine: Engine, folder: Path, model: keras.Model) -> None:
    """What all have written is the whole model."""
    expected, writers = values_of(model), writers_of(model, engine.size)
    best = [value + 1 for value in model.get_weights()]
    own_best = [
        value if writers[id(weight)] == engine.rank else None
        for weight, value in zip(model.weights, best, strict=True)
    ]
    keep_own(model, writers, engine.rank)
    parallel_write.write(engine, folder, model, state_of(), writers, own_best)
    with Parts(folder) as parts:
        assert len(parts.manifest.sizes) == engine.size
        for index, value in enumerate(expected):
            assert_same(parts.read(index), value)
        for index, value in enumerate(best):
            assert_same(parts.read_best(index), np.asarray(value))


def check_failure(engine: Engine, folder: Path, model: keras.Model) -> None:
    """What fails on the last rank fails on all, and the checkpoint of this name stays."""
    writers, last = writers_of(model, engine.size), engine.size - 1
    weight = next(w for w in model.trainable_weights if writers[id(w)] == last)
    if engine.rank == last:
        weight.assign(np.full(weight.shape, np.nan))
    keep_own(model, writers, engine.rank)
    message = f"^rank {last}: weight {weight.path} is not finite at "
    with pytest.raises(SharedError, match=message):
        parallel_write.write(engine, folder, model, state_of(4), writers)
    engine.barrier()
    assert folders.read_state(folder).epoch == 3
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def check_restoring(engine: Engine, folder: Path, model: keras.Model) -> None:
    """Each rank gets the values that it owns, divided otherwise than when they were written."""
    expected = values_of(model)
    kept = keras_file.kept(model)
    owner = {id(v): (index + 1) // 2 % engine.size for index, v in enumerate(kept) if len(v.shape)}
    for variable in kept:
        variable.assign(np.zeros(variable.shape))
        if owner.get(id(variable), engine.rank) != engine.rank:
            release(variable, "another rank")
    model.optimizer.learning_rate = 0.25  # the job's
    source = Source(folder, folders.read_state(folder))
    best_weights = restore_own(engine, source, model)
    assert int(model.optimizer.iterations.numpy()) == 2
    assert best_weights is not None
    for index, (variable, value) in enumerate(zip(kept, expected, strict=True)):
        is_own = owner.get(id(variable), engine.rank) == engine.rank
        assert has_value(variable) == is_own
        if is_own and variable.path != "adam/learning_rate":
            assert_same(np.asarray(variable.numpy()), value)
        if index < len(model.weights):
            assert (best_weights[index] is not None) == is_own
    assert float(model.optimizer.learning_rate) == 0.25


def check_refusals(engine: Engine, folder: Path, model: keras.Model) -> None:
    """Another model, or a checkpoint that one rank does not see, ends all."""
    state = folders.read_state(folder)
    first, *others = state.variables
    renamed = replace(state, variables=(replace(first, path="words/embeddings"), *others))
    message = r"it has words/embeddings of shape .* where this job has embedding/embeddings"
    with pytest.raises(SharedError, match=message):
        restore_own(engine, Source(folder, renamed), model)
    seen = folder if engine.rank == 0 else folder / "nowhere"
    with pytest.raises(SharedError, match=f"rank {engine.size - 1} does not see the checkpoint"):
        restore_own(engine, Source(seen, state), model)


def main() -> None:
    engine = engines.init("mpi")
    folder = Path(sys.argv[1]) / folders.parts_name(3)
    model = make_model()
    values = values_of(model)
    for check in (check_writing, check_failure, check_restoring, check_refusals):
        for variable, value in zip(keras_file.kept(model), values, strict=True):
            set_value(variable, value)
        check(engine, folder, model)
    print(f"rank {engine.rank} is done", flush=True)
    engines.shutdown()


if __name__ == "__main__":
    main()
