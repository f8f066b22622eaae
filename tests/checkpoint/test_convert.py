"""From parts to a Keras file and back: the same to the last bit, in the memory of one variable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

from ooodist.checkpoint import archive, convert, keras_file
from ooodist.checkpoint import folder as folders
from ooodist.checkpoint.archive import KerasFile
from ooodist.checkpoint.arrays import Writer
from ooodist.checkpoint.keras_file import ModelContent
from ooodist.checkpoint.parts import Manifest, Parts, part_name, write_manifest
from ooodist.checkpoint.state import Variable
from ooodist.errors import UserError
from tests.checkpoint.examples import assert_same, make_model, state_of, values_of, write_parts
from tests.jobs import ROOT

OPTIMIZERS: list[tuple[Callable[[], keras.optimizers.Optimizer], str]] = [
    (lambda: keras.optimizers.Adam(use_ema=True, amsgrad=True), "float32"),
    (lambda: keras.optimizers.SGD(0.1, momentum=0.9), "bfloat16"),
    (
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(), initial_scale=16),
        "mixed_float16",
    ),
]


def content_of(file: Path) -> dict[str, np.ndarray | str]:
    """All arrays and names of layers in a weights file."""
    found: dict[str, np.ndarray | str] = {}

    def visit(path: str, node: h5py.Group | h5py.Dataset) -> None:
        if isinstance(node, h5py.Dataset):
            found[path] = node[()]
        for key, value in node.attrs.items():
            found[f"{path}.{key}"] = str(value)

    with (
        zipfile.ZipFile(file) as whole,
        whole.open(archive.WEIGHTS_MEMBER) as member,
        h5py.File(member) as weights,
    ):
        weights.visititems(visit)
    return found


@pytest.mark.parametrize(("optimizer", "policy"), OPTIMIZERS)
def test_a_merged_file_is_what_keras_would_have_written(
    optimizer: Callable[[], keras.optimizers.Optimizer], policy: str, tmp_path: Path
) -> None:
    model = make_model(optimizer, policy)
    write_parts(tmp_path / "parts", model)
    convert.merge(tmp_path / "parts", tmp_path / "merged.keras")
    archive.write(tmp_path / "plain.keras", ModelContent(model, state_of()))

    merged, plain = content_of(tmp_path / "merged.keras"), content_of(tmp_path / "plain.keras")
    assert merged.keys() == plain.keys()
    for place, value in plain.items():
        if isinstance(value, str):
            assert merged[place] == value, place
        else:
            assert_same(np.asarray(merged[place]), value)
    with (
        zipfile.ZipFile(tmp_path / "merged.keras") as one,
        zipfile.ZipFile(tmp_path / "plain.keras") as other,
    ):
        assert sorted(one.namelist()) == sorted(other.namelist())
        assert one.read("config.json") == other.read("config.json")
    states = [archive.read_state(tmp_path / f"{name}.keras") for name in ("merged", "plain")]
    assert states[0] == states[1]

    loaded = keras.models.load_model(tmp_path / "merged.keras")
    for variable, value in zip(keras_file.kept(loaded), values_of(model), strict=True):
        assert_same(np.asarray(variable.numpy()), value)
    x = np.arange(12, dtype=np.int32).reshape(2, 6) % 11
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


@pytest.mark.parametrize("has_best", [False, True])
def test_there_and_back(has_best: bool, tmp_path: Path) -> None:
    model = make_model(policy="bfloat16")
    best = [weight.numpy() for weight in model.weights] if has_best else None
    model.weights[0].assign(model.weights[0] + 1)
    archive.write(tmp_path / "a.keras", ModelContent(model, state_of(), best))
    convert.split(tmp_path / "a.keras", tmp_path / "parts")
    with Parts(tmp_path / "parts") as parts:
        parts.verify()
        for index, value in enumerate(values_of(model)):
            assert_same(parts.read(index), value)
        assert parts.num_best == len(best or ())
        for index, value in enumerate(best or ()):
            assert_same(parts.read_best(index), value)
    convert.merge(tmp_path / "parts", tmp_path / "b.keras")
    assert archive.read_state(tmp_path / "b.keras") == archive.read_state(tmp_path / "a.keras")
    with KerasFile(tmp_path / "a.keras") as a, KerasFile(tmp_path / "b.keras") as b:
        one, other = a.best(), b.best()
    assert (one is None) == (not has_best)
    for mine, theirs in zip(one or (), other or (), strict=True):
        assert_same(mine, theirs)


def test_the_weights_of_the_best_epoch(tmp_path: Path) -> None:
    """A job that restores them has a model of no epoch, which cannot be gone on from."""
    model = make_model()
    best = [np.asarray(weight.numpy()) for weight in model.weights]
    model.weights[0].assign(model.weights[0] + 1)
    write_parts(tmp_path / "parts", model, best_weights=best)
    convert.merge(tmp_path / "parts", tmp_path / "best.keras", best=True)
    loaded = keras.models.load_model(tmp_path / "best.keras")
    for weight, value in zip(loaded.weights, best, strict=True):
        assert_same(np.asarray(weight.numpy()), value)
    assert int(loaded.optimizer.iterations) == 2
    with pytest.raises(UserError, match="is not a checkpoint of ooodist"):
        archive.read_state(tmp_path / "best.keras")


@keras.saving.register_keras_serializable("tests")
class Vocabulary(keras.layers.Layer):
    """A layer that saves an array and a file that are no variables."""

    def __init__(self, words: tuple[str, ...] = (), **arguments: object) -> None:
        super().__init__(**arguments)
        self.words = list(words)
        self.numbers = np.arange(len(words))

    def call(self, inputs: object) -> object:
        return inputs

    def save_own_variables(self, store: dict[str, object]) -> None:
        store["numbers"] = self.numbers

    def load_own_variables(self, store: dict[str, object]) -> None:
        self.numbers = np.asarray(store["numbers"])

    def save_assets(self, folder: str) -> None:
        (Path(folder) / "words.txt").write_text("\n".join(self.words), encoding="utf-8")

    def load_assets(self, folder: str) -> None:
        self.words = (Path(folder) / "words.txt").read_text(encoding="utf-8").split("\n")


def test_what_layers_save_beside_variables(tmp_path: Path) -> None:
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(2)(Vocabulary(("eins", "zwölf"), name="vocabulary")(inputs))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    write_parts(tmp_path / "parts", model)
    convert.merge(tmp_path / "parts", tmp_path / "a.keras")
    convert.split(tmp_path / "a.keras", tmp_path / "again")
    convert.merge(tmp_path / "again", tmp_path / "b.keras")
    loaded = keras.models.load_model(tmp_path / "b.keras").get_layer("vocabulary")
    assert loaded.words == ["eins", "zwölf"]
    np.testing.assert_array_equal(loaded.numbers, [0, 1])


def test_what_cannot_be_split(tmp_path: Path) -> None:
    model = make_model()
    model.save(tmp_path / "plain.keras")
    with pytest.raises(UserError, match=r"plain\.keras is not a checkpoint of ooodist"):
        convert.split(tmp_path / "plain.keras", tmp_path / "parts")
    archive.write(tmp_path / "a.keras", ModelContent(model, state_of()))
    with zipfile.ZipFile(tmp_path / "a.keras") as whole:
        state = json.loads(whole.read(archive.STATE_MEMBER))
    state["fingerprint"] = "0" * 64
    model.save(tmp_path / "b.keras")
    with zipfile.ZipFile(tmp_path / "b.keras", "a") as whole:
        whole.writestr(archive.STATE_MEMBER, json.dumps(state))
    with pytest.raises(UserError, match=r"b\.keras does not have the values that were saved"):
        convert.split(tmp_path / "b.keras", tmp_path / "parts")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.keras", "b.keras", "plain.keras"]


def test_what_ranks_keep_is_kept(tmp_path: Path) -> None:
    model = make_model()
    residuals = {
        f"residual/{model.weights[0].path}": np.arange(6, dtype=np.float32).reshape(3, 2),
        "low_rank/scalar": np.ones(3, np.float64),
    }
    archive.write(tmp_path / "a.keras", ModelContent(model, state_of(), by_rank=residuals))
    convert.split(tmp_path / "a.keras", tmp_path / "parts")
    convert.merge(tmp_path / "parts", tmp_path / "b.keras")
    for path in (tmp_path / "parts", tmp_path / "b.keras"):
        with folders.open_checkpoint(path) as saved:
            found = saved.by_rank()
        assert found.keys() == residuals.keys()
        for name, expected in residuals.items():
            np.testing.assert_array_equal(found[name], expected, strict=True)


def test_a_damaged_part_leaves_the_file_before(tmp_path: Path) -> None:
    write_parts(tmp_path / "parts", make_model())
    (tmp_path / "a.keras").write_bytes(b"before")
    part = tmp_path / "parts" / part_name(0)
    content = bytearray(part.read_bytes())
    content[5000] ^= 1
    part.write_bytes(content)
    with pytest.raises(UserError, match=r"part-0\.npz is damaged"):
        convert.merge(tmp_path / "parts", tmp_path / "a.keras")
    assert (tmp_path / "a.keras").read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.keras", "parts"]


NUM_VARIABLES, VARIABLE_BYTES = 64, 4 << 20


def test_neither_takes_the_memory_of_the_model(tmp_path: Path) -> None:
    """A model of 256 MiB, for which the commands may take half of that, with Python itself."""
    size = VARIABLE_BYTES // 4
    places = [f"layers/dense_{index}/vars/0" for index in range(NUM_VARIABLES)]
    variables = tuple(Variable(place, (size,), "float32", (place,)) for place in places)
    folder = tmp_path / folders.parts_name(1)
    folder.mkdir()
    with Writer(folder / part_name(0)) as writer:
        entries = [
            writer.write(place, np.full(size, index, np.float32))
            for index, place in enumerate(places)
        ]
    sizes = {part_name(0): (folder / part_name(0)).stat().st_size}
    state = replace(state_of(), variables=variables)
    write_manifest(folder, Manifest(state, "{}", "{}", sizes, tuple(entries), tuple(entries)))
    file = tmp_path / "a.keras"
    for command, *paths in (("merge", folder, file), ("split", file, tmp_path / "parts")):
        done = run_command(command, *paths)
        assert done.returncode == 0, done.stderr
        peak = int(done.stdout.splitlines()[-1]) * 1024
        assert peak < NUM_VARIABLES * VARIABLE_BYTES / 2, f"{command}: {peak / 2**20:.0f} MiB"
    with KerasFile(file) as whole, Parts(tmp_path / "parts") as parts:
        np.testing.assert_array_equal(whole.read(7), np.full(size, 7, np.float32))
        np.testing.assert_array_equal(parts.read_best(9), np.full(size, 9, np.float32))


RUN = """
import sys
from pathlib import Path
from ooodist.checkpoint.__main__ import main
code = main(sys.argv[1:])
assert "tensorflow" not in sys.modules
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
sys.exit(code)
"""


def run_command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a command, which prints its peak memory in KiB at the end."""
    return subprocess.run(
        [sys.executable, "-c", RUN, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
