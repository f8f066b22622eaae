"""ARCHITECTURE.md lists what ooodist replaces of Keras and TensorFlow, and nothing else.

What the source assigns is found by reading it: attributes of objects that are not its own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import keras
import pytest
import tensorflow as tf

import ooodist

ROOT = Path(ooodist.__file__).parent
ARCHITECTURE = Path(__file__).parents[1] / "ARCHITECTURE.md"

# Public settings: setting them is what they are for.
SETTINGS = {
    "learning_rate",
    "stop_training",
    "auto_shard_policy",  # of tf.data.Options
    "deterministic",
    "enabled",
    "daemon",  # of threads
    "daemon_threads",
    "disable_thread_spinning",  # of a new ConfigProto
    "num_workers",  # of the command line's
    "restype",  # of functions of ctypes
    "stderr",  # where they are closed
    "stdout",
    "use_listings_cache",  # of fsspec's files
}
# ooodist's own class has an attribute that Keras's has, too.
OWN = {("elastic/data_parallel.py", "steps_per_execution")}
MADE_BY_A_GENERATOR = {"zoo/service/zoo_pb2.py"}
# Files that compute the name of an attribute, and where it comes from.
COMPUTING = {
    "compat/keras_optimizer.py",  # its own strings
    "trainer/callbacks.py",  # puts back what it has replaced
    "trainer/given/arguments.py",  # the arguments of KerasMethod, which is searched for
    "transfer/provenance.py",  # a constant of its own: where a model has come from
}
COMPUTED = "?"
SETTERS = {"setattr", "delattr", "object.__setattr__", "KerasMethod"}  # (object, name, …)

Found = tuple[str, str]
"""A file below ooodist/, and the name of an attribute that it assigns or deletes."""


def _of_keras() -> set[str]:
    """All attributes of the kinds of objects that training is made of."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization()])
    model.compile(keras.optimizers.Adam(use_ema=True), "mse")
    model.optimizer.build(model.trainable_variables)
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    things = (model, *model.layers, model.optimizer, scaling, model.weights[0])
    others = (keras.losses.MeanSquaredError(), keras.metrics.Mean(), tf.GradientTape())
    return {name for thing in (*things, *others) for name in dir(thing)}


def _own(trees: dict[str, ast.Module]) -> set[str]:
    """The attributes of ooodist's own classes."""
    found = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                for each in node.body:
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                        found.add(each.target.id)
                    elif isinstance(each, ast.FunctionDef):
                        found.add(each.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found |= {node.attr} if _is_self(node.value) else set()
    return found


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _is_vars(node: ast.expr, names: set[str]) -> bool:
    """Whether this is ``vars(something)``, or one of the names that were given to such."""
    if isinstance(node, ast.Name):
        return node.id in names
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "vars"


def _names(node: ast.expr, loops: dict[str, list[str]]) -> list[str]:
    """The values that a name may have: a constant, or what a loop runs over."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    return loops.get(ast.unparse(node), [COMPUTED])


def _assigned(tree: ast.Module) -> Iterator[str]:
    """The attributes of other objects that a module assigns or deletes, however it does."""
    nodes = list(ast.walk(tree))
    dictionaries = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and _is_vars(node.value, set())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    loops = {
        ast.unparse(node.target): [ast.literal_eval(each) for each in node.iter.elts]
        for node in nodes
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Tuple)
        if all(isinstance(each, ast.Constant) for each in node.iter.elts)
    }
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) in SETTERS:
            if not _is_self(node.args[0]):
                yield from _names(node.args[1], loops)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "replaced":
            if not _is_self(node.args[0]):
                yield from (each.arg for each in node.keywords if each.arg is not None)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "signal.signal":
            if isinstance(node.args[0], ast.Attribute):
                yield node.args[0].attr
        elif isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
            if isinstance(node, ast.Attribute) and not _is_self(node.value):
                yield node.attr
            elif isinstance(node, ast.Subscript) and _is_vars(node.value, dictionaries):
                yield from _names(node.slice, loops)


@pytest.fixture(scope="module")
def found() -> set[Found]:
    trees = {str(f.relative_to(ROOT)): ast.parse(f.read_text()) for f in ROOT.rglob("*.py")}
    of_keras, own = _of_keras(), _own(trees)
    return {
        (file, name)
        for file, tree in trees.items()
        if file not in MADE_BY_A_GENERATOR
        for name in _assigned(tree)
        if name not in SETTINGS and (file, name) not in OWN
        if file.startswith("compat/") or name in of_keras or name not in own
    }


@pytest.fixture(scope="module")
def listed() -> set[Found]:
    """What the table lists."""
    _, _, rest = ARCHITECTURE.read_text().partition("## What is replaced at run time\n")
    table, _, _ = rest.partition("\n## ")
    pairs = set()
    for line in table.splitlines():
        if line.startswith("| ") and not line.startswith("| what |"):
            what, where = line.split("|")[1:3]
            pairs |= {
                (file, name.rpartition(".")[2])
                for file in re.findall(r"`([\w/]+\.py)`", where)
                for name in re.findall(r"`([\w.]+)`", what)
            }
    return pairs


def test_all_that_is_replaced_is_listed(found: set[Found], listed: set[Found]) -> None:
    missing = found - listed - {(file, COMPUTED) for file in COMPUTING}
    assert not missing, f"assigned, but not in the table: {sorted(missing)}"


def test_all_that_is_listed_is_replaced(found: set[Found], listed: set[Found]) -> None:
    computed = {
        (file, name)
        for file, name in listed
        if file in COMPUTING and f'"{name}"' in (ROOT / file).read_text()
    }
    stale = listed - found - computed
    assert not stale, f"in the table, but not assigned: {sorted(stale)}"
