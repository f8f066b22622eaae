"""Which positions have which variables, in one process."""

from __future__ import annotations

import keras
import pytest

from ooodist.errors import UserError
from ooodist.pipeline.ownership import Holders, holders_of_variables
from ooodist.pipeline.runtime.sharding import replicas_that_update
from ooodist.pipeline.stages import Stage, calls_of, split
from ooodist.step.backward import names_by_id
from tests.pipeline.models import MODELS


def compiled(name: str, optimizer: keras.optimizers.Optimizer | None = None) -> keras.Model:
    keras.utils.clear_session()
    model, _, _ = MODELS[name]()
    model.compile(optimizer or keras.optimizers.Adam(0.1), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def halves(model: keras.Model, at: int | None = None) -> list[Stage]:
    calls = len(calls_of(model))
    middle = calls // 2 if at is None else at
    return split(model, [range(middle), range(middle, calls)])


def by_path(held: Holders) -> dict[str, tuple[int, ...]]:
    return {variable.path: holders for variable, holders in held}


@pytest.mark.parametrize("name", ["unet", "encoder_decoder", "convolution_with_batch_norm"])
def test_each_variable_is_where_its_stage_is(name: str) -> None:
    model = compiled(name)
    stages = halves(model)
    for rank_of in ((0, 1), (1, 0), (0, 0)):
        weights, optimizer_state = holders_of_variables(model, stages, rank_of)
        assert [v for v, _ in weights] == model.variables
        assert [v for v, _ in optimizer_state] == model.optimizer.variables
        found = by_path(weights)
        for stage, position in zip(stages, rank_of, strict=True):
            for variable in stage.model.variables:
                assert position in found[variable.path], rank_of
        for variable, holders in weights:
            users = [s for s in stages if any(variable is each for each in s.model.variables)]
            assert len(holders) <= len(users), rank_of


def test_optimizer_state_is_where_its_weight_is() -> None:
    model = compiled("unet")
    weights, optimizer_state = holders_of_variables(model, halves(model), (0, 1))
    of_weight = by_path(weights)
    seen = 0
    for variable, holders in optimizer_state:
        name = variable.path.rpartition("/")[2]
        weight = next((p for p in of_weight if name.startswith(f"{p.replace('/', '_')}_")), None)
        if weight is None:  # iterations, learning rate: all have them
            assert not len(variable.shape)
            assert holders == (0, 1)
        else:
            seen += 1
            assert holders == of_weight[weight]
    assert seen == 2 * len(model.trainable_variables)


def test_tied_weights_are_on_all_ranks_that_use_them() -> None:
    model = compiled("tied_and_shared_weights")
    weights, _ = holders_of_variables(model, halves(model), (0, 1))
    assert (0, 1) in by_path(weights).values()


@pytest.mark.parametrize(("at", "replicas"), [(1, 1), (4, 2), (1, 2)])
def test_weights_of_one_path_are_told_apart(at: int, replicas: int) -> None:
    model = compiled("twins")
    trained = model.trainable_variables
    assert len({weight.path for weight in trained}) < len(trained)
    stages = halves(model, at)
    updated_by = replicas_that_update(model, stages, (0, 1), replicas)
    assert len(updated_by) == len(trained)
    weights, slots = holders_of_variables(model, stages, (0, 1), replicas, updated_by)
    positions = {id(v): {rank % 2 for rank in holders} for v, holders in weights}
    for stage in stages:
        for variable in stage.model.variables:
            assert stage.number in positions[id(variable)]
    encoder, decoder = (model.get_layer(name) for name in ("encoder", "decoder"))
    assert all(positions[id(v)] == ({0} if at == 4 else {0, 1}) for v in encoder.variables)
    assert all(positions[id(v)] == {1} for v in decoder.variables)
    of_slot = {id(v): holders for v, holders in slots}
    names = names_by_id(model)
    # Adam makes both moments of a weight, then those of the next one.
    moments = [v for v in model.optimizer.variables if len(v.shape)]
    for weight, moment in zip(trained, moments[::2], strict=True):
        replica = updated_by[names[id(weight)]]
        expected = tuple(2 * replica + position for position in sorted(positions[id(weight)]))
        assert of_slot[id(moment)] == expected


def test_statistics_of_one_layer_on_two_ranks_are_refused() -> None:
    keras.utils.clear_session()
    inputs, norm = keras.Input((3,)), keras.layers.BatchNormalization(name="norm")
    hidden = keras.layers.Dense(3)(norm(inputs))
    model = keras.Model(inputs, norm(hidden))
    model.compile(keras.optimizers.SGD(), "mse")
    model.optimizer.build(model.trainable_variables)
    stages = halves(model, at=2)
    with pytest.raises(UserError, match=r"norm/moving_mean .* rank 0 and on rank 1"):
        holders_of_variables(model, stages, (0, 1))
    holders_of_variables(model, stages, (1, 1))


class Collective(keras.optimizers.SGD):
    """Keeps a vector that belongs to no weight."""

    def build(self, variables: list[keras.Variable]) -> None:
        super().build(variables)
        self.shared = self.add_variable(shape=(3,), dtype="float32", name="of_all")


def test_optimizers_that_keep_arrays_of_all_weights_are_refused() -> None:
    model = compiled("unet", Collective(0.1))
    with pytest.raises(UserError, match=r"keeps .*of_all, of which nobody knows"):
        holders_of_variables(model, halves(model), (0, 1))


@pytest.mark.parametrize("name", ["unet", "tied_and_shared_weights"])
def test_replicas_have_weights_each_and_state_once(name: str) -> None:
    """A rank is replica x 2 + position; a weight's state is in one replica, where the weight is."""
    model = compiled(name)
    stages = halves(model)
    for replicas in (1, 2, 3):
        have_weights_each_and_state_once(model, stages, replicas)


def have_weights_each_and_state_once(
    model: keras.Model, stages: list[Stage], replicas: int
) -> None:
    rank_of = (0, 1)
    updated_by = replicas_that_update(model, stages, rank_of, replicas)
    assert updated_by.keys() == {variable.path for variable in model.trainable_variables}
    positions = by_path(holders_of_variables(model, stages, rank_of)[0])
    weights, optimizer_state = holders_of_variables(model, stages, rank_of, replicas, updated_by)
    for variable, holders in weights:
        assert holders == tuple(
            2 * r + p for r in range(replicas) for p in positions[variable.path]
        )
    seen = 0
    for variable, holders in optimizer_state:
        name_of = variable.path.rpartition("/")[2]
        path = next((p for p in updated_by if name_of.startswith(f"{p.replace('/', '_')}_")), None)
        if path is None:
            assert holders == tuple(range(2 * replicas))
        else:
            seen += 1
            assert holders == tuple(2 * updated_by[path] + p for p in positions[path])
    assert seen == 2 * len(updated_by)
    assert set(updated_by.values()) == set(range(replicas))
