"""Which weight an optimizer keeps a variable for."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import pytest

from ooodist.step.backward import variable_names
from ooodist.step.optimizer import optimizer_state_of

KERNEL, BIAS = (4, 4), (4,)


def kept_for(
    optimizer: keras.optimizers.Optimizer, shapes: Sequence[tuple[int, ...]]
) -> tuple[list[keras.Variable], dict[int, int]]:
    """The place of the weight of each variable that it keeps, by id, of weights of one path."""
    weights = [keras.Variable(keras.ops.zeros(shape), name="weight") for shape in shapes]
    assert len({weight.path for weight in weights}) == 1
    optimizer.build(weights)
    names = variable_names(weights)
    found = optimizer_state_of(optimizer, dict(zip(names, weights, strict=True)))
    assert [variable for variable, _ in found] == optimizer.variables
    return weights, {id(variable): names.index(name) for variable, name in found if name}


@pytest.mark.parametrize("shapes", [(KERNEL, KERNEL, KERNEL), (KERNEL, BIAS, KERNEL)])
def test_state_of_weights_of_one_path_is_told_apart(shapes: Sequence[tuple[int, ...]]) -> None:
    optimizer = keras.optimizers.SGD(momentum=0.9, use_ema=True)
    weights, kept = kept_for(optimizer, shapes)
    assert [kept[id(variable)] for variable in optimizer.momentums] == [*range(len(weights))]
    assert len(kept) == 2 * len(weights)


@pytest.mark.skipif(not hasattr(keras.optimizers, "Muon"), reason="younger Kerases alone have it")
def test_what_is_kept_for_some_of_them_goes_by_shapes() -> None:
    optimizer = keras.optimizers.Muon()
    _, kept = kept_for(optimizer, (KERNEL, BIAS, KERNEL, BIAS))
    assert [kept[id(variable)] for variable in optimizer.momentums] == [0, 1, 2, 3]
    velocities = [(at, v) for at, v in enumerate(optimizer.adam_velocities) if v is not None]
    assert [at for at, _ in velocities] == [1, 3]
    assert all(kept[id(variable)] == at for at, variable in velocities)
