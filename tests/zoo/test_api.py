"""``ooodist.Zoo`` on one process: with a folder, and with a service for it."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import ooodist
from ooodist import engines
from ooodist.config.warm_start import WarmStartConfig
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.transfer import provenance
from ooodist.zoo import api
from ooodist.zoo.service.client import ZooClient
from ooodist.zoo.service.server import serve
from ooodist.zoo.zoo import Zoo
from tests.pipeline.jobs import run_python
from tests.ranks_in_threads import on_ranks
from tests.zoo.entries import Adder
from tests.zoo.serving import ANNA, TOKENS
from tests.zoo.starts import (
    SAME,
    batches,
    compiled,
    difference,
    network,
    outputs,
    stripes,
    trained,
    warnings_of,
)

X, Y = stripes(64, seed=7)


@pytest.fixture
def openings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of the zoos that are opened."""
    found: list[str] = []
    opening = api.client_of

    def client_of(config: WarmStartConfig, *, create: bool = False) -> ZooClient:
        found.append(config.zoo)
        return opening(config, create=create)

    monkeypatch.setattr(api, "client_of", client_of)
    return found


@pytest.fixture(params=["folder", "service"])
def zoo(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ooodist.Zoo]:
    folder = tmp_path / "zoo"
    if request.param == "folder":
        yield ooodist.Zoo(folder)
        return
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(ANNA)
    with Zoo(folder) as models, serve(models, "127.0.0.1:0", tokens=TOKENS) as service:
        yield ooodist.Zoo(service.address, token_file=token, timeout=60)


def measured(model: keras.Model) -> dict[str, float]:
    found: dict[str, float] = model.evaluate(X, Y, return_dict=True, verbose=0)
    return found


def test_a_model_is_registered_found_and_started_from(zoo: ooodist.Zoo, tmp_path: Path) -> None:
    parent = trained(network())
    said = {"task": "stripes", "dataset": "mine", "tags": ["a", "b"]}
    added = zoo.register(parent, measured(parent), **said, name="The parent")
    child = compiled(network(9, 2, seed=5))
    (found,) = zoo.query(child, task="stripes", dataset="mine", tags=("a",), count=5)
    assert (found.id, found.meta.name, found.meta.tags) == (added, "The parent", ("a", "b"))
    assert found.meta.metrics == pytest.approx(measured(parent))
    assert 0 < found.score < 1
    assert zoo.query(child, task="other") == []
    start = zoo.warm_start(child, task="stripes", batches=batches(1), lower_rate=0)
    assert start is not None
    assert start.parent == added
    assert difference(outputs(child, X), outputs(parent, X)) < SAME
    grandchild = zoo.register(child, measured(child), task="stripes")
    assert child.optimizer is not None
    with Zoo(tmp_path / "zoo") as models:
        assert models.entry(grandchild).meta.parent == added
        assert models.entry(grandchild).meta.name == child.name


def test_the_metric_that_decides_can_be_chosen(zoo: ooodist.Zoo) -> None:
    model = network()
    for judge, best in (("", "b"), ("auc", "a")):
        for name, accuracy, auc in (("a", 0.5, 0.75), ("b", 0.6, 0.7)):
            metrics = {"accuracy": accuracy, "auc": auc}
            zoo.register(model, metrics, name=name, task=f"by {judge}", judged_by=judge)
        assert zoo.query(model, task=f"by {judge}")[0].meta.name == best


def test_it_stays_open_and_shows_what_others_change(
    zoo: ooodist.Zoo, tmp_path: Path, openings: list[str], add: Adder
) -> None:
    own = zoo.register(network(), {}, task="t")
    assert [each.id for each in zoo.query(network(), count=9)] == [own]
    with Zoo(tmp_path / "zoo") as models:
        other = add(models, [4, 8], op="Conv2D")
        assert {each.id for each in zoo.query(network(), count=9)} == {own, other}
        models.evict(own)
        assert [each.id for each in zoo.query(network(), count=9)] == [other]
    assert zoo.warm_start(network(), task="none") is None
    start = zoo.warm_start(network(), required=True, least_score=0)
    assert start is not None
    assert start.parent == other
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: zoo.query(network(), count=9), range(8)))
    assert {each.id for some in found for each in some} == {other}
    assert len(openings) == 1
    zoo.close()
    zoo.close()
    assert len(zoo.query(network())) == 1
    assert len(openings) == 2


def test_a_copy_for_another_process_opens_it_itself(zoo: ooodist.Zoo, openings: list[str]) -> None:
    model = network()
    added = zoo.register(model, {})
    assert [each.id for each in pickle.loads(pickle.dumps(zoo)).query(model)] == [added]
    if ":" in openings[0]:
        return  # gRPC itself cannot go on in a fork
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        found = [each.id for each in zoo.query(model)]
        os._exit(0 if found == [added] and len(openings) == 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [each.id for each in zoo.query(model)] == [added]
    assert len(openings) == 2


def test_a_folder_that_is_deleted_is_missed_and_made_again(tmp_path: Path) -> None:
    zoo = ooodist.Zoo(tmp_path / "zoo")
    zoo.register(network(), {})
    shutil.rmtree(tmp_path / "zoo")
    with pytest.raises(UserError, match="there is no zoo"):
        zoo.query(network())
    added = zoo.register(network(7), {})
    assert [each.id for each in zoo.query(network(), count=9)] == [added]


def test_a_service_is_found_again_a_second_after_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OOODIST_ZOO_TOKEN", ANNA)
    with Zoo(tmp_path / "zoo") as models:
        with serve(models, "127.0.0.1:0", tokens=TOKENS) as service:
            zoo = ooodist.Zoo(service.address)
            added = zoo.register(network(), {})
        end = time.monotonic() + 7
        while time.monotonic() < end:  # by default, gRPC would next try after two or three more
            with pytest.raises(UserError, match="cannot be reached"):
                zoo.query(network())
            time.sleep(0.2)
        with serve(models, service.address, tokens=TOKENS):
            time.sleep(1.5)
            assert [each.id for each in zoo.query(network())] == [added]


class Scaled(layers.Layer):
    """A layer of a user, of which nothing is known."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, x: Any) -> Any:
        return x * self.scale


def with_own_layer(width: int) -> keras.Model:
    keras.utils.set_random_seed(width)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            Scaled(name="own"),
            layers.Dense(width, "relu", name="hidden"),
            layers.Dense(2, name="head"),
        ]
    )
    model.layers[0].scale.assign(np.arange(1.0, 5.0) * width)
    return model


def test_models_with_layers_of_ones_own(zoo: ooodist.Zoo) -> None:
    parent, child = with_own_layer(8), with_own_layer(16)
    added = zoo.register(parent, {})
    assert [each.id for each in zoo.query(child)] == [added]
    start = zoo.warm_start(child, required=True)
    assert start is not None
    np.testing.assert_array_equal(child.layers[0].scale, parent.layers[0].scale)
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    assert difference(outputs(child, x), outputs(parent, x)) < SAME


def test_metrics_are_numbers_of_any_kind(tmp_path: Path) -> None:
    zoo = ooodist.Zoo(tmp_path)
    metrics = {"loss": np.float32(0.5), "accuracy": keras.ops.convert_to_tensor(0.25), "mae": 1}
    zoo.register(network(), metrics)
    assert zoo.query(network())[0].meta.metrics == {"loss": 0.5, "accuracy": 0.25, "mae": 1.0}


def test_metrics_that_cannot_be_compared_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    zoo = ooodist.Zoo(tmp_path)
    zoo.register(network(), {"loss": 1.0, "hinge": 1.0})
    zoo.register(network(7), {})
    assert warnings_of(caplog) == []
    zoo.register(network(8), {"acuracy": 0.9})
    [line] = warnings_of(caplog)
    assert line.endswith("it has acuracy")
    assert "loss" in line


@pytest.mark.parametrize(
    ("metrics", "said", "message"),
    [
        ([0.5, 0.9], {}, r"metrics is \[0\.5, 0\.9\]; .*return_dict=True"),
        ({"f1_score": [0.1, 0.2]}, {}, r"metrics has \[0\.1, 0\.2\] as f1_score"),
        ({"accuracy": "good"}, {}, "metrics has 'good' as accuracy; it must be a number"),
        ({"accuracy": 75}, {}, r"accuracy is 75\.0; it must be 0 to 1"),
        ({"loss": float("nan")}, {}, "loss is nan"),
        ({"loss": 1.0}, {"judged_by": "accuracy"}, "judged_by is 'accuracy'; .*loss"),
        ({}, {"tags": "small"}, "tags is small; it must be a list"),
        ({}, {"name": "a\nb"}, "name is"),
    ],
)
def test_what_cannot_be_registered_is_refused(
    metrics: Any, said: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        ooodist.Zoo(tmp_path / "zoo").register(network(), metrics, **said)
    assert not (tmp_path / "zoo").exists()


def test_a_place_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Zoo\.timeout is 0; it must be a number, at least 0\.1"):
        ooodist.Zoo(tmp_path, timeout=0)
    with pytest.raises(UserError, match=r"Zoo\.zoo is 3; it must be text"):
        ooodist.Zoo(3)  # type: ignore[arg-type]
    zoo = ooodist.Zoo(tmp_path / "none")
    with pytest.raises(UserError, match="there is no zoo"):
        zoo.query(network())
    assert zoo.warm_start(network()) is None
    with pytest.raises(UserError, match="has no weights yet"):
        zoo.register(keras.Sequential([layers.Dense(2)]), {})


def test_what_a_query_cannot_ask_is_refused(tmp_path: Path) -> None:
    zoo = ooodist.Zoo(tmp_path)
    with pytest.raises(UserError, match="count is 0; it must be at least 1"):
        zoo.query(network(), count=0)
    with pytest.raises(UserError, match="tags is small; it must be a list"):
        zoo.query(network(), tags="small")


def test_ranks_that_do_not_do_the_same_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    zoo = ooodist.Zoo(tmp_path)
    monkeypatch.setattr(engines, "in_use", lambda: engines.current())

    def other_methods(engine: Engine) -> None:
        zoo.query(network()) if engine.rank else zoo.register(network(), {})

    first, second = on_ranks(monkeypatch, other_methods)
    assert "rank 0 calls zoo.register, but rank 1 calls zoo.query at the same time" in str(first)
    assert "rank 1 calls zoo.query, but rank 0 calls zoo.register at the same time" in str(second)

    def other_metrics(engine: Engine) -> None:
        zoo.register(network(), {"accuracy": 2.0 if engine.rank else 0.5})

    for error in on_ranks(monkeypatch, other_metrics):
        assert "accuracy is 2.0; it must be" in str(error)


def test_the_function_is_the_method(tmp_path: Path) -> None:
    zoo = ooodist.Zoo(tmp_path)
    zoo.register(trained(network()), {}, task="t")
    models = [compiled(network(seed=5)) for _ in range(2)]
    ooodist.warm_start(models[0], str(tmp_path), task="t", required=True)
    zoo.warm_start(models[1], task="t", required=True)
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(one, other)
    assert provenance.start_of(models[0]) is not None


def test_a_pipeline_registers_its_whole_model(tmp_path: Path) -> None:
    """Each rank has trained only its own half."""
    job = run_python(
        2, Path(__file__).with_name("pipeline_worker.py"), tmp_path / "zoo", seconds=120
    )
    assert job.returncode == 0, job.stdout[-4000:]
    assert job.stdout.count("is done") == 2
