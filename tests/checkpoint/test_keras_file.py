"""Checkpoint files: what is in them, and what happens to damaged and half-written ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest

from ooodist.checkpoint import archive, keras_file
from ooodist.checkpoint import folder as folders
from ooodist.checkpoint.archive import KerasFile
from ooodist.checkpoint.keras_file import ModelContent
from ooodist.checkpoint.state import State, check_fits
from ooodist.errors import UserError
from ooodist.util import yaml_dataclass
from ooodist.util.process_memory import resident_bytes


def make_model(width: int = 8, optimizer: object = "adam", policy: str = "float32") -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(width, dtype=policy),
            keras.layers.BatchNormalization(dtype=policy),
            keras.layers.Dropout(0.5, dtype=policy),
            keras.layers.Dense(2, dtype=policy),
        ]
    )
    model.compile(optimizer, "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def train(model: keras.Model) -> None:
    random = np.random.default_rng(0)
    x, y = random.random((32, 4), np.float32), random.random((32, 2), np.float32)
    model.fit(x, y, epochs=1, batch_size=8, verbose=0)


def state_of(model: keras.Model, epoch: int = 1) -> State:
    return State(
        epoch=epoch,
        step=11 * epoch,
        seed=1,
        size=2,
        batch=64,
        config={"batch": 64, "output": "runs"},
        variables=keras_file.variables_of(model),
        fingerprint=keras_file.fingerprint(model),
        history=[{"epoch": 1, "loss": 0.1 + 0.2}],
        best={"monitor": "val_loss", "best": 1e-300, "wait": 0},
        versions={"keras": keras.__version__},
    )


@pytest.fixture(scope="module")
def model() -> keras.Model:
    model = make_model()
    train(model)
    return model


@pytest.fixture
def file(model: keras.Model, tmp_path: Path) -> Path:
    file = tmp_path / folders.file_name(1)
    archive.write(file, ModelContent(model, state_of(model)))
    return file


def test_it_is_a_keras_file(model: keras.Model, file: Path) -> None:
    loaded = keras.models.load_model(file)
    x = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    assert int(loaded.optimizer.iterations) == 4


def test_the_state_comes_back_exactly(model: keras.Model, file: Path) -> None:
    assert folders.read_state(file) == state_of(model)
    assert folders.latest(file.parent) == (file, state_of(model))


@pytest.mark.parametrize(
    ("optimizer", "policy"),
    [
        (lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True), "float32"),
        (lambda: keras.optimizers.Adam(use_ema=True, clipnorm=1.0), "float32"),
        (lambda: keras.optimizers.AdamW(weight_decay=1e-3), "mixed_bfloat16"),
        (
            # With a larger scale some steps overflow, and are left out, as chance has it.
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(), initial_scale=16),
            "mixed_float16",
        ),
        (lambda: keras.optimizers.RMSprop(centered=True, momentum=0.5), "float32"),
        (lambda: keras.optimizers.Ftrl(), "float32"),
        (lambda: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 9)), "float32"),
        (lambda: keras.optimizers.Muon(), "float32"),
        (lambda: keras.optimizers.Adam(gradient_accumulation_steps=3), "float32"),
    ],
)
def test_every_variable_is_restored_bit_for_bit(
    optimizer: Callable[[], keras.optimizers.Optimizer], policy: str, tmp_path: Path
) -> None:
    model = make_model(optimizer=optimizer(), policy=policy)
    train(model)
    state = state_of(model)
    archive.write(tmp_path / "a.keras", ModelContent(model, state))

    other = make_model(optimizer=optimizer(), policy=policy)
    assert keras_file.fingerprint(other) != state.fingerprint
    check_fits(keras_file.variables_of(other), state.variables, "a.keras")
    keras_file.load_variables(tmp_path / "a.keras", other, state)
    assert keras_file.fingerprint(other) == state.fingerprint
    train(model)
    train(other)
    # Dropout draws other numbers, but whatever was to be updated has been.
    assert int(other.optimizer.iterations) == int(model.optimizer.iterations)


def test_values_that_do_not_come_back_are_an_error(model: keras.Model, file: Path) -> None:
    wrong = replace(state_of(model), fingerprint="0")
    with pytest.raises(UserError, match="does not give back the values that were saved"):
        keras_file.load_variables(file, make_model(), wrong)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: make_model(width=9),
            r"has .*kernel of shape \(4, 8\), float32 where this job has .*kernel of shape \(4, 9",
        ),
        (
            lambda: make_model(optimizer="sgd"),
            r"only the checkpoint has adam\w*/.*kernel_momentum of shape",
        ),
        (
            lambda: make_model(optimizer=keras.optimizers.Adam(amsgrad=True)),
            "only this job has .*velocity_hat",
        ),
    ],
)
def test_another_model_or_optimizer_is_refused(
    model: keras.Model, make: Callable[[], keras.Model], message: str
) -> None:
    with pytest.raises(UserError, match=rf"checkpoint a\.keras is of another .*{message}"):
        check_fits(keras_file.variables_of(make()), state_of(model).variables, "a.keras")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_best_weights_travel_in_the_same_file(dtype: str, tmp_path: Path) -> None:
    model = make_model(policy=dtype)
    best = [np.asarray(value) for value in model.get_weights()]
    train(model)
    file = tmp_path / "a.keras"
    archive.write(file, ModelContent(model, state_of(model), best))
    with KerasFile(file) as whole:
        read = whole.best()
    assert read is not None
    for saved, expected in zip(read, best, strict=True):
        assert saved.dtype == expected.dtype
        np.testing.assert_array_equal(saved, expected)
    archive.write(file, ModelContent(model, state_of(model)))
    with KerasFile(file) as whole:
        assert whole.best() is None


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_named(file: Path, share: float) -> None:
    os.truncate(file, int(file.stat().st_size * share))
    with pytest.raises(UserError, match=rf"checkpoint {file} is damaged .*name an earlier one"):
        folders.read_state(file)


def test_a_changed_byte_is_found(file: Path) -> None:
    content = bytearray(file.read_bytes())
    with zipfile.ZipFile(file) as archive:
        weights = archive.getinfo("model.weights.h5")
    content[weights.header_offset + weights.file_size // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"damaged: its part model\.weights\.h5 is not whole"):
        folders.read_state(file)


def test_a_truncated_newest_is_skipped_with_a_warning(
    model: keras.Model, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    newest = file.parent / folders.file_name(2)
    newest.write_bytes(file.read_bytes()[:-100])
    assert folders.latest(file.parent)[0] == file
    assert str(newest) in caplog.text
    assert "damaged" in caplog.text
    file.unlink()
    with pytest.raises(UserError, match="there is no checkpoint that is whole in"):
        folders.latest(file.parent)


def test_writing_many_takes_no_memory(model: keras.Model, file: Path) -> None:
    """An optimizer that Keras makes in each save would keep 71 kB."""
    state = state_of(model)
    for _ in range(5):
        archive.write(file, ModelContent(model, state))
    before = resident_bytes()
    assert before is not None
    for _ in range(40):
        archive.write(file, ModelContent(model, state))
    after = resident_bytes()
    assert after is not None
    assert after - before < 40 * 20_000


def test_what_is_no_checkpoint_is_refused(model: keras.Model, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no checkpoint .*nothing\.keras; check the path"):
        folders.read_state(tmp_path / "nothing.keras")
    with pytest.raises(UserError, match=r"there is no checkpoint in .*start anew without resume"):
        folders.latest(tmp_path / "nothing")
    model.save(tmp_path / "plain.keras")
    with pytest.raises(UserError, match=r"not a checkpoint of ooodist .*give it as model\.weights"):
        folders.read_state(tmp_path / "plain.keras")
    with zipfile.ZipFile(tmp_path / "later.keras", "w") as later:
        content = {**yaml_dataclass.plain(state_of(model)), "invention": 1}
        later.writestr(archive.STATE_MEMBER, json.dumps(content))
    with pytest.raises(UserError, match="written by another ooodist: there is no key invention"):
        folders.read_state(tmp_path / "later.keras")


def test_only_the_newest_are_kept(file: Path) -> None:
    for epoch in (2, 3, 10):
        folders.duplicate(file, file.parent / folders.file_name(epoch))
    folders.duplicate(file, file.parent / folders.BEST_NAME)
    (file.parent / f"{folders.INCOMPLETE_PREFIX}x").touch()
    folders.prune(file.parent, keep=2)
    names = sorted(path.name for path in file.parent.iterdir())
    assert names == ["best.keras", "checkpoint-epoch-000003.keras", "checkpoint-epoch-000010.keras"]


def test_weights_that_are_not_finite_are_not_written(model: keras.Model, file: Path) -> None:
    before = file.read_bytes()
    kernel = model.layers[-1].kernel
    healthy = kernel.numpy()
    kernel.assign(np.where(np.arange(healthy.size).reshape(healthy.shape) == 0, np.nan, healthy))
    message = f"weight {kernel.path} is not finite at 1 of {healthy.size} places"
    try:
        with pytest.raises(UserError, match=message):
            archive.write(file, ModelContent(model, state_of(model)))
    finally:
        kernel.assign(healthy)  # the model is shared by the tests of this file
    assert file.read_bytes() == before


def test_a_failed_write_leaves_the_one_before(model: keras.Model, file: Path) -> None:
    before = file.read_bytes()
    unwritable = replace(state_of(model), config={"x": object()})
    with pytest.raises(TypeError):
        archive.write(file, ModelContent(model, unwritable))
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    with pytest.raises(UserError, match="cannot be written: "):
        archive.write(file.parent / "nowhere" / "a.keras", ModelContent(model, state_of(model)))


SAVES_FOR_EVER = """
import itertools, sys
from pathlib import Path
import keras
from ooodist.checkpoint import folder as folders
from ooodist.checkpoint import archive
from ooodist.checkpoint.keras_file import ModelContent
from tests.checkpoint.test_keras_file import make_model, state_of

model = make_model(width=400_000)
for epoch in itertools.count(1):
    state = state_of(model, epoch)
    archive.write(Path(sys.argv[1]) / folders.file_name(epoch), ModelContent(model, state))
    folders.prune(Path(sys.argv[1]), keep=1)
"""


def test_a_kill_while_saving_leaves_the_last_good_one(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", SAVES_FOR_EVER, str(tmp_path)], cwd=root, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 120
        while True:
            assert process.poll() is None
            assert time.monotonic() < deadline
            half = list(tmp_path.glob(f"{folders.INCOMPLETE_PREFIX}*"))
            try:
                if folders.checkpoints(tmp_path) and half and half[0].stat().st_size > 1_000_000:
                    break
            except FileNotFoundError:  # it was renamed at this moment
                pass
            time.sleep(0.001)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    file, state = folders.latest(tmp_path)
    assert file.name == folders.file_name(state.epoch)
