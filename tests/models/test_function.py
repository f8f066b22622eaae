"""model: package.module:function"""

import re
from pathlib import Path

import pytest

from ooodist.errors import UserError
from ooodist.models import FunctionConfig, build

from .samples import images

MODULE = """
import keras

WIDTH = 3

def dense(width, classes=5):
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Dense(width)(keras.layers.Flatten()(inputs))
    return keras.Model(inputs, keras.layers.Dense(classes)(x), name="mine")

class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.flatten = keras.layers.Flatten()
        self.dense = keras.layers.Dense(5)

    def call(self, inputs):
        return self.dense(self.flatten(inputs))

def nothing():
    pass

def fails():
    raise ZeroDivisionError("inside")
"""


@pytest.fixture(autouse=True)
def _user_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user_model_module.py").write_text(MODULE)
    (tmp_path / "user_model_broken.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_gets_its_arguments() -> None:
    config = FunctionConfig(function="user_model_module:dense", arguments={"width": 7})
    model = build(config, images())
    assert model.name == "mine"
    assert model.count_params() == (8 * 8 * 3 + 1) * 7 + (7 + 1) * 5


def test_subclassed_model_has_its_weights() -> None:
    model = build(FunctionConfig(function="user_model_module:Subclassed"), images())
    assert model.built
    assert [tuple(v.shape) for v in model.trainable_variables] == [(192, 5), (5,)]


def test_start_weights(tmp_path: Path) -> None:
    config = FunctionConfig(function="user_model_module:Subclassed")
    first = build(config, images())
    first.save_weights(tmp_path / "first.weights.h5")
    weights = str(tmp_path / "first.weights.h5")
    second = build(
        FunctionConfig(function="user_model_module:Subclassed", weights=weights), images()
    )
    assert (second.dense.kernel.numpy() == first.dense.kernel.numpy()).all()


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("not_a_module:make", {}, "no Python module 'not_a_module'; start in the folder"),
        ("user_model_module.deeper:make", {}, "no Python module 'user_model_module.deeper'"),
        ("user_model_module:dence", {}, "has no 'dence'"),
        ("user_model_module:WIDTH", {}, "WIDTH is a int; it must be a function"),
        ("user_model_module:nothing", {}, "returned NoneType; it must return a keras.Model"),
        ("user_model_module:dense", {}, "missing a required argument: 'width'"),
        (
            "user_model_module:dense",
            {"width": 7, "depth": 2},
            "dense(width, classes=5) cannot be called with the arguments "
            "{'width': 7, 'depth': 2}: got an unexpected keyword argument 'depth'",
        ),
    ],
)
def test_wrong_functions(function: str, arguments: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        build(FunctionConfig(function=function, arguments=arguments), images())


@pytest.mark.parametrize("function", ["module", "module:", ":make", "my module:make", "a:b:c"])
def test_name_that_is_no_function(function: str) -> None:
    with pytest.raises(UserError, match=re.escape("write package.module:function")):
        FunctionConfig(function=function)


def test_errors_inside_the_users_code_keep_their_traceback() -> None:
    with pytest.raises(ZeroDivisionError, match="inside"):
        build(FunctionConfig(function="user_model_module:fails"), images())
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        build(FunctionConfig(function="user_model_broken:make"), images())
