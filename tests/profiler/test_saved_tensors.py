"""What units keep for each other, against numbers worked out by hand."""

from __future__ import annotations

import keras

from ooodist.planner.costs import SavedTensor
from ooodist.profiler.saved_tensors import saved_tensors
from ooodist.profiler.step import StepToMeasure, trace_step
from tests.profiler.models import BATCH, batch, compiled, dense_chain, layers


def kept(traced: StepToMeasure) -> set[SavedTensor]:
    return set(saved_tensors(traced.step, traced.owner_of, traced.weights))


def test_dense_chain() -> None:
    wide, narrow = BATCH * 64 * 4, BATCH * 5 * 4  # bytes of a layer's output
    assert kept(trace_step(dense_chain(), batch())) == {
        # The product of a layer, until its bias is added (in a unit of its own).
        SavedTensor(wide, "F:chain/a", ("F:chain/a#2",)),
        SavedTensor(wide, "F:chain/b", ("F:chain/b#2",)),
        SavedTensor(narrow, "F:chain/c", ("F:chain/c#2",)),
        # Its output: for the next layer, for that layer's dW, and for the gradient of its own relu.
        SavedTensor(wide, "F:chain/a#2", ("F:chain/b", "dW:chain/b", "dX:chain/a")),
        SavedTensor(wide, "F:chain/b#2", ("F:chain/c", "dW:chain/c", "dX:chain/b")),
        SavedTensor(narrow, "F:chain/c#2", ("dX:chain/c",)),
        # Output gradients: for the layer's dW and the next dX.
        SavedTensor(narrow, "dX:chain/c", ("dW:chain/c", "dX:chain/b")),
        SavedTensor(wide, "dX:chain/b", ("dW:chain/b", "dX:chain/a")),
        SavedTensor(wide, "dX:chain/a", ("dW:chain/a",)),
        # Gradients of the kernels; those of the biases are too small to count.
        SavedTensor(64 * 5 * 4, "dW:chain/c", ()),
        SavedTensor(64 * 64 * 4, "dW:chain/b", ()),
        SavedTensor(32 * 64 * 4, "dW:chain/a", ()),
    }


def test_a_view_is_not_counted_again() -> None:
    model = keras.Sequential(
        [
            keras.Input((32,)),
            layers.Dense(16, name="first"),
            layers.Dense(64, use_bias=False, name="a"),
            layers.Reshape((8, 8)),
            layers.Flatten(),
            layers.Dense(5, use_bias=False, name="b"),
        ],
        name="views",
    )
    wide = BATCH * 64 * 4
    made_by_a = {t for t in kept(trace_step(compiled(model), batch())) if t.made_by == "F:views/a"}
    assert made_by_a == {SavedTensor(wide, "F:views/a", ("F:views/b", "dW:views/b/kernel"))}


def test_a_dropout_mask_is_kept_for_the_backward_pass() -> None:
    model = keras.Sequential(
        [
            keras.Input((32,)),
            layers.Dense(16, name="first"),
            layers.Dense(64, use_bias=False, name="a"),
            layers.Dropout(0.5),
            layers.Dense(5, use_bias=False, name="b"),
        ],
        name="drop",
    )
    mask = SavedTensor(BATCH * 64, "F:drop/a", ("dX:drop/a/kernel",))  # a byte an element
    assert mask in kept(trace_step(compiled(model), batch()))


def test_embeddings_have_gradients_of_full_size() -> None:
    model = keras.Sequential(
        [
            keras.Input((32,)),
            layers.Embedding(1000, 4, name="a"),
            layers.Flatten(),
            layers.Dense(5),
        ],
        name="words",
    )
    x, y = batch()
    found = kept(trace_step(compiled(model), (abs(x).astype("int32"), y)))
    assert any(t.num_bytes == 1000 * 4 * 4 and not t.used_by for t in found)


def test_accumulated_gradients_are_there_from_the_beginning() -> None:
    traced = trace_step(dense_chain(), batch(), accumulate=2)
    held = SavedTensor(64 * 64 * 4, "F:chain/a", ("dW:chain/b",))
    assert held in kept(traced)
