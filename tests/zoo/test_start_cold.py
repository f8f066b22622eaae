"""A model stays as it is, with one line in the log, if the zoo has nothing for it or is broken."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import ooodist
from ooodist.errors import UserError
from ooodist.transfer.provenance import start_of
from tests.zoo.starts import (
    CLASSES,
    PIXELS,
    assert_same,
    batches,
    compiled,
    difference,
    free_port,
    network,
    outputs,
    state,
    stripes,
    trained,
    warnings_of,
    zoo_of,
)

X, Y = stripes(16, seed=7)


@pytest.fixture(scope="module")
def parent() -> keras.Model:
    return trained(network())


@pytest.fixture(scope="module")
def zoo(parent: keras.Model, tmp_path_factory: pytest.TempPathFactory) -> str:
    return zoo_of(tmp_path_factory.mktemp("zoo"), parent)


def empty_folder(folder: Path) -> dict[str, Any]:
    return {"zoo": str(folder)}


def no_folder(folder: Path) -> dict[str, Any]:
    return {"zoo": str(folder / "typo" / "zoo")}


def unreachable(folder: Path) -> dict[str, Any]:
    return {"zoo": f"127.0.0.1:{free_port()}", "timeout": 5.0}


def below_a_file(folder: Path) -> dict[str, Any]:
    (folder / "file").write_text("no folder")
    return {"zoo": str(folder / "file" / "zoo")}


def no_permission(folder: Path) -> dict[str, Any]:
    if os.geteuid() == 0:
        pytest.skip("nothing is forbidden to root")
    (folder / "zoo").mkdir(mode=0)
    return {"zoo": str(folder / "zoo")}


def no_driver(folder: Path) -> dict[str, Any]:
    return {"zoo": "nosuch://bucket/zoo"}


def no_token(folder: Path) -> dict[str, Any]:
    return {"zoo": zoo_of(folder, network()), "token_file": str(folder / "none")}


def token_of_bytes(folder: Path) -> dict[str, Any]:
    (folder / "token").touch(0o600)
    (folder / "token").write_bytes(b"\xff\xfe")
    return {"zoo": zoo_of(folder, network()), "token_file": str(folder / "token")}


def plain_text_to_another_machine(folder: Path) -> dict[str, Any]:
    return {"zoo": "zoo.example.org:7077"}


def nothing_alike(folder: Path) -> dict[str, Any]:
    other = keras.Sequential([keras.Input((3,)), layers.PReLU()])
    return {"zoo": zoo_of(folder, other)}


def damaged(folder: Path) -> dict[str, Any]:
    """Its weights: the index still knows the model, and its size is right."""
    zoo = zoo_of(folder, network())
    [file] = folder.glob("*.keras")
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle - 2000 : middle + 2000] = bytes(4000)
    file.write_bytes(content)
    return {"zoo": zoo}


def gone(folder: Path) -> dict[str, Any]:
    zoo = zoo_of(folder, network())
    [file] = folder.glob("*.keras")
    file.unlink()
    return {"zoo": zoo}


COLD: dict[Callable[[Path], dict[str, Any]], str] = {
    empty_folder: "has no model that is similar",
    no_folder: "there is no zoo ",
    unreachable: "cannot be reached",
    below_a_file: "there is no zoo ",
    no_permission: "zoo",
    no_driver: "nosuch",
    no_token: "warm_start.token_file is ",
    token_of_bytes: "warm_start.token_file is ",
    plain_text_to_another_machine: "give the certificate of the service",
    nothing_alike: "has a score of 0.0",
    damaged: "",
    gone: "has no model that is similar",
}


@pytest.mark.parametrize("make", COLD, ids=lambda make: make.__name__)
def test_cold_with_one_line(
    make: Callable[[Path], dict[str, Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = make(tmp_path)
    model = compiled(network(seed=5))
    before = state(model)
    caplog.clear()
    assert ooodist.warm_start(model, **given, batches=batches(1)) is None
    [line] = warnings_of(caplog)
    assert line.startswith("warm start: the training starts cold: ")
    assert COLD[make] in line
    assert "\n" not in line
    assert_same(state(model), before)
    assert start_of(model) is None
    assert not (tmp_path / "typo").exists()
    model.optimizer.learning_rate = 0.25  # it is no schedule


@pytest.mark.parametrize("make", COLD, ids=lambda make: make.__name__)
def test_required(make: Callable[[Path], dict[str, Any]], tmp_path: Path) -> None:
    given = make(tmp_path)
    model = compiled(network(seed=5))
    before = state(model)
    with pytest.raises(UserError) as caught:
        ooodist.warm_start(model, **given, required=True)
    message = str(caught.value)
    assert message.startswith(
        f"warm_start.required is true, but there is no warm start from {given['zoo']}: "
    )
    assert COLD[make] in message
    assert_same(state(model), before)
    assert start_of(model) is None


def test_a_file_that_is_no_model_does_not_hide_the_others(
    parent: keras.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    zoo = zoo_of(tmp_path, parent)
    (tmp_path / "broken-000000000000.keras").write_bytes(b"no archive")
    model = network(seed=5)
    assert ooodist.warm_start(model, zoo) is not None
    assert difference(outputs(model, X), outputs(parent, X)) == 0
    [line] = warnings_of(caplog)
    assert "broken-000000000000.keras is left out" in line


class Unbuilt(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.head = layers.Dense(CLASSES)

    def call(self, x: Any) -> Any:
        return self.head(x)


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize(
    "make", [Unbuilt, lambda: keras.Sequential([layers.Dense(3)])], ids=["subclass", "sequential"]
)
def test_a_model_that_was_never_built(
    make: Callable[[], keras.Model],
    required: bool,
    zoo: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = make()
    if required:
        with pytest.raises(UserError, match=r"no warm start from .*; build it, or call it"):
            ooodist.warm_start(model, zoo, required=True)
        return
    assert ooodist.warm_start(model, zoo) is None
    [line] = warnings_of(caplog)
    assert "has no weights yet; build it, or call it once" in line


def test_what_fails_at_the_end_leaves_the_weights_too(
    zoo: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch fits the model's first layer not, which shows once its weights are assigned."""
    model = compiled(network(6, 2, seed=5))
    before = state(model)
    wrong = [(np.zeros((4, PIXELS, PIXELS, 3), np.float32), np.zeros(4, np.int32))]
    assert ooodist.warm_start(model, zoo, batches=wrong) is None
    [line] = warnings_of(caplog)
    assert line.startswith("warm start: the training starts cold: ")
    assert_same(state(model), before)
    with pytest.raises(UserError, match=r"warm_start\.required is true"):
        ooodist.warm_start(model, zoo, batches=wrong, required=True)
    assert_same(state(model), before)


# Settings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"taks": "x"}, "there is no key warm_start.taks (did you mean task?)"),
        ({"least_score": 1.5}, "warm_start.least_score is 1.5; it must be a number, 0 to 1"),
        ({"probe_steps": -1}, "warm_start.probe_steps is -1; it must be a whole number"),
        ({"lower_rate": 1.0}, "warm_start.lower_rate is 1.0; it must be a number, 0 to 0.99"),
        ({"ramp_steps": 0}, "warm_start.ramp_steps is 0; it must be a whole number, at least 1"),
        ({"required": "yes"}, "warm_start.required is yes"),
        ({"tags": "small"}, "warm_start.tags is small; it must be a list"),
        ({"timeout": 0}, "warm_start.timeout is 0"),
    ],
)
def test_wrong_settings_are_refused_even_if_nothing_is_required(
    wrong: dict[str, Any], message: str, zoo: str
) -> None:
    model = network(seed=5)
    before = state(model)
    with pytest.raises(UserError) as caught:
        ooodist.warm_start(model, zoo, **wrong)
    assert message in str(caught.value)
    assert_same(state(model), before)
