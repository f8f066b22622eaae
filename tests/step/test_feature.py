"""A feature of a program's own: trained with, refused beside others, kept in checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import ooodist
from ooodist import engines
from ooodist.checkpoint.archive import KerasFile
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from tests.job.test_distribute import data, make
from tests.job.test_run import run
from tests.step.noise import GradientNoise

pytestmark = pytest.mark.usefixtures("local_engine")
JOB = "features=[{name: tests.step.noise:GradientNoise, stddev: 0.1}]"


@pytest.fixture
def engine() -> Iterator[Engine]:
    yield engines.current()
    keras.config.set_dtype_policy("float32")  # jobs set it for the whole process


class Halved(ooodist.Feature):
    def gradients(self, names: Any, gradients: Any) -> Any:
        self.names = list(names)
        return [gradient / 2 for gradient in gradients]


class Doubled(ooodist.Feature):
    def gradients(self, names: Any, gradients: Any) -> Any:
        return [gradient * 2 for gradient in gradients]


def trained(*features: ooodist.Feature, epochs: int = 1) -> list[np.ndarray]:
    x, y = data()
    model = ooodist.distribute(make(), features=features)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0, epochs=epochs)
    return [np.array(weight) for weight in model.get_weights()]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_gradients_pass_through_all_features_in_turn() -> None:
    halved = Halved()
    plain = trained()
    assert same(trained(halved, Doubled()), plain)
    assert not same(trained(halved), plain)
    assert len(halved.names) == len(make().trainable_variables)
    assert all(name.endswith(("/kernel", "/bias", "/gamma", "/beta")) for name in halved.names)


def test_a_job_names_one_and_goes_on_with_its_state(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run(engine, tmp_path / "whole", JOB, "epochs=2")
    assert "feature gradient noise of 0.1" in caplog.text
    run(engine, tmp_path / "parts", JOB, "epochs=1")
    run(engine, tmp_path / "parts", JOB, "epochs=2", resume=True)
    files = [next((tmp_path / name).glob("*2.keras")) for name in ("whole", "parts")]
    states = []
    for file in files:
        with KerasFile(file) as saved:
            states.append(saved.by_rank()["GradientNoise/steps"])
    np.testing.assert_array_equal(*states)
    assert states[0].shape == (1,)
    assert states[0] > 0
    run(engine, tmp_path / "parts", "epochs=3", resume=True)
    assert "resuming without GradientNoise/steps" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"wire": "float16"}, "feature GradientNoise, but wire is float16: 16 bits would round"),
        ({"features": GradientNoise(0.1)}, "it must be a list of ooodist.Feature objects"),
        ({"features": [GradientNoise]}, "it must be a list of ooodist.Feature objects"),
        ({"features": [Halved(), Halved()]}, "features has two called Halved"),
        ({"jit_compile": True}, "jit_compile is True, but features are GradientNoise"),
    ],
)
def test_what_does_not_go_together(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ooodist.distribute(make(), **{"features": [GradientNoise(0.1)], **settings})


def test_gradients_keep_their_shapes() -> None:
    class First(ooodist.Feature):
        def gradients(self, names: Any, gradients: Any) -> Any:
            return gradients[:1]

    with pytest.raises(UserError, match=r"feature First: gradients returns 1 gradients of the sh"):
        trained(First())


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("features=[noise]", r"features\[0\].name is noise; it must be package.module:class"),
        ("features=[tests.job.test_distribute:make]", "it must be an ooodist.Feature"),
        (
            "features=[{name: tests.step.noise:GradientNoise, std: 1}]",
            "cannot be called with the arguments {'std': 1}",
        ),
    ],
)
def test_keys_that_name_none(key: str, message: str, engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        run(engine, tmp_path, key)
