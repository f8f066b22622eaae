"""``ooodist.warm_start`` on one process: what a model gets, and when it stays as it is."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import ooodist
from ooodist import engines
from ooodist.config.warm_start import WarmStartConfig
from ooodist.engines.local import LocalEngine
from ooodist.errors import UserError
from ooodist.transfer.provenance import start_of
from ooodist.zoo.service.server import serve
from ooodist.zoo.start import PROBED, start
from ooodist.zoo.zoo import Zoo
from tests.zoo.starts import (
    DATASET,
    SAME,
    TAGS,
    TASK,
    assert_same,
    batches,
    compiled,
    difference,
    meta,
    network,
    outputs,
    state,
    stripes,
    trained,
    warnings_of,
    zoo_of,
)

X, Y = stripes(16, seed=7)
TOKEN = "anna's-token-0123"


@pytest.fixture(scope="module")
def parent() -> keras.Model:
    return trained(network())


@pytest.fixture(scope="module")
def zoo(parent: keras.Model, tmp_path_factory: pytest.TempPathFactory) -> str:
    return zoo_of(tmp_path_factory.mktemp("zoo"), parent)


# What the model gets


def test_the_same_architecture_gets_the_parents_weights(parent: keras.Model, zoo: str) -> None:
    model = compiled(network(seed=5))
    found = ooodist.warm_start(model, zoo)
    assert found is not None
    assert (found.name, found.score, found.carried) == ("parent", pytest.approx(1), 1.0)
    assert {each.action for each in found.tensors} == {"copied"}
    for mine, its in zip(model.get_weights(), parent.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, its)


@pytest.mark.parametrize(("width", "blocks"), [(9, 1), (6, 2), (8, 2)])
def test_a_larger_model_computes_what_the_parent_does(
    parent: keras.Model, zoo: str, width: int, blocks: int
) -> None:
    model = compiled(network(width, blocks, seed=5))
    cold = outputs(model, X)
    assert ooodist.warm_start(model, zoo) is not None
    assert difference(outputs(model, X), outputs(parent, X)) < SAME
    assert difference(cold, outputs(parent, X)) > 0.1


def test_what_was_done_is_told(
    parent: keras.Model, zoo: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = network(9, 2, seed=5)
    with caplog.at_level(logging.INFO, logger="ooodist"):
        found = ooodist.warm_start(model, zoo)
    assert found is not None
    assert start_of(model) is found
    with Zoo(zoo) as models:
        assert [row.id for row in models.list()] == [found.parent]
    assert {each.name for each in found.tensors} == {weight.path for weight in model.weights}
    actions = {each.name: each.action for each in found.tensors}
    assert actions["head/kernel"] == "widened"
    assert actions["head/bias"] == "copied"
    assert "head/kernel" in found.not_copied
    assert "head/bias" not in found.not_copied
    assert 0 < found.carried < 1
    assert {"query", "fetch", "transform", "compare"} == set(found.seconds)
    [line] = [r.getMessage() for r in caplog.records if "warm start: starts from" in r.getMessage()]
    assert f"warm start: starts from parent ({found.parent}), score {found.score:.2f}, " in line
    assert "widened" in line


def test_the_learning_rate_begins_lower_by_what_was_carried_over(zoo: str) -> None:
    model = compiled(network(9, seed=5), keras.optimizers.Adam(0.5))
    found = ooodist.warm_start(model, zoo, lower_rate=0.8, ramp_steps=10)
    assert found is not None
    assert float(model.optimizer.learning_rate) == pytest.approx(0.5 * (1 - 0.8 * found.carried))
    model.optimizer.iterations.assign(10)
    assert float(model.optimizer.learning_rate) == 0.5


def test_without_a_lower_rate_the_optimizer_is_left_alone(zoo: str) -> None:
    model = compiled(network(seed=5), keras.optimizers.Adam(0.5))
    before = [variable.path for variable in model.optimizer.variables]
    assert ooodist.warm_start(model, zoo, lower_rate=0) is not None
    assert [variable.path for variable in model.optimizer.variables] == before
    model.optimizer.learning_rate = 0.25


def test_a_model_that_is_not_compiled_starts_too(parent: keras.Model, zoo: str) -> None:
    model = network(seed=5)
    assert ooodist.warm_start(model, zoo) is not None
    assert difference(outputs(model, X), outputs(parent, X)) == 0


def test_what_was_registered_with_mixed_precision_fits_a_plain_model(tmp_path: Path) -> None:
    parent = network(dtype="mixed_float16")
    model = network(seed=5)
    assert ooodist.warm_start(model, zoo_of(tmp_path, parent)) is not None
    for mine, its in zip(model.get_weights(), parent.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, its)


def test_generators_of_random_numbers_stay_the_models_own(tmp_path: Path) -> None:
    parent = network(dropout=0.5, seed=1)
    for _ in range(3):
        parent(X, training=True)
    model = network(dropout=0.5, seed=2)
    before = model.get_layer("dropout").seed_generator.state.numpy().copy()
    assert ooodist.warm_start(model, zoo_of(tmp_path, parent)) is not None
    np.testing.assert_array_equal(model.get_layer("dropout").seed_generator.state, before)


def test_new_batch_norms_are_calibrated_on_the_first_batch(parent: keras.Model, zoo: str) -> None:
    parent = keras.models.clone_model(parent)  # its statistics move below
    model = compiled(network(6, 2, seed=5))
    [first, *others] = batches(3)
    found = ooodist.warm_start(model, zoo, batches=[first, *others])
    assert ooodist.warm_start(parent, zoo) is not None
    assert found is not None
    new = model.get_layer("norm1")
    assert float(np.abs(new.moving_mean).max()) > 0
    ours, theirs = (outputs(each, first[0], training=True) for each in (model, parent))
    assert difference(ours, theirs) < 1e-4


def test_with_an_engine_of_one_process(parent: keras.Model, zoo: str) -> None:
    model = network(seed=5)
    assert start(model, WarmStartConfig(zoo), LocalEngine(), []) is not None
    assert difference(outputs(model, X), outputs(parent, X)) == 0


def test_before_and_after_an_engine_was_in_use(zoo: str) -> None:
    assert engines.in_use() is None or engines.in_use() is engines.current()
    assert ooodist.warm_start(network(seed=5), zoo) is not None
    assert engines.init("local") is engines.in_use()
    assert ooodist.warm_start(network(seed=5), zoo) is not None


# Which parent


def test_the_most_similar_is_the_parent(tmp_path: Path) -> None:
    like, unlike = network(9, 2, seed=1), network(3, 1, seed=2)
    metas = [meta("like", 0.8), meta("unlike", 0.9)]
    found = ooodist.warm_start(network(9, 2), zoo_of(tmp_path, like, unlike, metas=metas))
    assert found is not None
    assert found.name == "like"


def test_of_two_that_are_as_similar_the_more_accurate_one_is(tmp_path: Path) -> None:
    metas = [meta("good", 0.9), meta("better", 0.95), meta("unknown", None)]
    zoo = zoo_of(tmp_path, *(network(seed=seed) for seed in (1, 2, 3)), metas=metas)
    found = ooodist.warm_start(network(), zoo)
    assert found is not None
    assert found.name == "better"


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ({}, "a"),  # empty: warm_start has no job that knows a task
        ({"task": "any", "dataset": "any"}, "a"),
        ({"task": "language"}, "b"),
        ({"dataset": "words"}, "b"),
        ({"dataset": "words", "task": "any"}, "b"),
        ({"tags": ["x"]}, "a"),
        ({"tags": ["x", "y"]}, "b"),
        ({"tags": ("y",), "task": "language"}, "b"),
        ({"task": "regression"}, None),
        ({"task": "classification", "dataset": "words"}, None),
        ({"tags": ["x", "z"]}, None),
    ],
)
def test_only_models_that_are_wanted(
    tmp_path: Path, wanted: dict[str, Any], name: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    metas = [
        meta("a", 0.9, tags=("x",)),
        meta("b", 0.8, tags=("x", "y"), task="language", dataset="words"),
    ]
    zoo = zoo_of(tmp_path, network(seed=1), network(seed=2), metas=metas)
    found = ooodist.warm_start(network(), zoo, **wanted)
    assert (found and found.name) == name
    if name is None:
        [line] = warnings_of(caplog)
        for key, value in wanted.items():
            assert f"{key} {value if isinstance(value, str) else ' '.join(value)}" in line


@pytest.mark.parametrize(("more", "is_found"), [(-0.01, True), (0.01, False)])
def test_the_least_score(
    parent: keras.Model,
    zoo: str,
    more: float,
    is_found: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    score = ooodist.warm_start(network(8, 2), zoo).score  # type: ignore[union-attr]
    assert 0.1 < score < 0.9
    found = ooodist.warm_start(network(8, 2), zoo, least_score=score + more)
    assert (found is not None) == is_found
    if not is_found:
        [line] = warnings_of(caplog)
        assert f"parent, has a score of {score:.2f}, and warm_start.least_score is " in line


# A service


def test_from_a_service(
    parent: keras.Model, zoo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(f"{TOKEN}\n")
    with Zoo(zoo) as models, serve(models, "127.0.0.1:0", tokens={TOKEN: "anna"}) as service:
        for given in ({"token_file": str(token)}, {}):
            if not given:
                monkeypatch.setenv("OOODIST_ZOO_TOKEN", TOKEN)
            model = network(seed=5)
            found = ooodist.warm_start(model, service.address, required=True, **given)
            assert found is not None
            for mine, its in zip(model.get_weights(), parent.get_weights(), strict=True):
                np.testing.assert_array_equal(mine, its)
        token.write_text("another-token-0123")
        with pytest.raises(UserError, match="give your token"):
            ooodist.warm_start(model, service.address, required=True, token_file=str(token))


# Probing


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The best of these models is said to be the least accurate one."""
    folder = tmp_path_factory.mktemp("three")
    models = [network(seed=11), trained(network(seed=12), 60), network(seed=13), network(seed=14)]
    names = ["fresh 1", "trained", "fresh 2", "never probed"]
    accuracies = [0.93, 0.91, 0.92, 0.9]
    metas = [meta(name, value) for name, value in zip(names, accuracies, strict=True)]
    return zoo_of(folder, *models, metas=metas)


def test_probing_takes_the_best_of_three(three: str, caplog: pytest.LogCaptureFixture) -> None:
    without = ooodist.warm_start(compiled(network()), three)
    model = compiled(network())
    with caplog.at_level(logging.INFO, logger="ooodist"):
        found = ooodist.warm_start(model, three, probe_steps=4, batches=batches())
    assert without is not None
    assert found is not None
    assert (without.name, found.name) == ("fresh 1", "trained")
    assert found.seconds["probe"] > 0
    [line] = [r.getMessage() for r in caplog.records if "losses after" in r.getMessage()]
    assert line.count(",") == PROBED - 1
    with Zoo(three) as zoo:
        values = zoo.fetch(found.parent)[1]
    for weight in model.weights:
        np.testing.assert_array_equal(weight, values[weight.path])
    assert int(model.optimizer.iterations) == 0


def test_probing_without_a_loss(three: str, caplog: pytest.LogCaptureFixture) -> None:
    model = network(seed=5)
    before = state(model)
    assert ooodist.warm_start(model, three, probe_steps=4, batches=batches()) is None
    [line] = warnings_of(caplog)
    assert "compile it before the warm start, or leave probe_steps out" in line
    assert_same(state(model), before)


def test_probing_without_batches_is_said_to_have_no_effect(
    three: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = ooodist.warm_start(compiled(network()), three, probe_steps=4)
    assert found is not None
    assert found.name == "fresh 1"
    assert warnings_of(caplog) == ["warm start: probe_steps has no effect without batches"]


def test_one_candidate_is_not_probed(parent: keras.Model, zoo: str) -> None:
    found = ooodist.warm_start(compiled(network()), zoo, probe_steps=4, batches=batches())
    assert found is not None
    assert "probe" not in found.seconds


def test_the_names_are_those_of_the_sample() -> None:
    """What other tests here take for granted."""
    assert (meta().task, meta().dataset, meta().tags) == (TASK, DATASET, TAGS)
