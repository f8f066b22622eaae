"""``python -m ooodist.checkpoint``, as a person uses it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from ooodist.checkpoint import archive, keras_file
from ooodist.checkpoint import folder as folders
from ooodist.checkpoint.__main__ import main
from ooodist.checkpoint.parts import part_name
from tests.checkpoint.examples import assert_same, make_model, state_of, values_of, write_parts
from tests.jobs import ROOT


@pytest.fixture(scope="module")
def model() -> keras.Model:
    return make_model()


@pytest.fixture(scope="module")
def written(model: keras.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a job with two checkpoints."""
    output = tmp_path_factory.mktemp("command")
    for epoch in (1, 2):
        write_parts(output / folders.parts_name(epoch), model, state=state_of(epoch))
    return output


@pytest.fixture
def output(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "out"))


def test_from_an_output_folder_and_back(
    model: keras.Model, output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, parts = tmp_path / "model.keras", tmp_path / "start"
    assert main(["merge", str(output), str(file)]) == 0
    assert archive.read_state(file).epoch == 2
    loaded = keras.models.load_model(file)
    for variable, value in zip(keras_file.kept(loaded), values_of(model), strict=True):
        assert_same(variable.numpy().astype(value.dtype), value)
    assert main(["split", str(file), str(parts)]) == 0
    assert folders.read_state(parts).epoch == 2
    said = capsys.readouterr().out
    assert said == f"{file}: the model of {output}/checkpoint-epoch-000002\n" + (
        f"{parts}: the model of {file}, in parts\n"
    )


def test_from_a_certain_checkpoint(output: Path, tmp_path: Path) -> None:
    assert main(["merge", str(output / folders.parts_name(1)), str(tmp_path / "a.keras")]) == 0
    assert archive.read_state(tmp_path / "a.keras").epoch == 1


def test_a_damaged_newest_is_skipped(
    output: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (output / folders.parts_name(2) / part_name(0)).unlink()
    assert main(["merge", str(output), str(tmp_path / "a.keras")]) == 0
    assert archive.read_state(tmp_path / "a.keras").epoch == 1
    assert "its part part-0.npz is missing" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND; python -m ooodist.checkpoint --help"),
        (["mix"], "invalid choice: 'mix'"),
        (["merge", "out"], "required: FILE; python -m ooodist.checkpoint merge --help"),
        (["merge", "out", "a.h5"], "FILE is a.h5; its name must end with .keras"),
        (["merge", "out", "there.keras"], "FILE is there.keras, which is there already"),
        (["merge", "out", "x/a.keras"], "FILE is x/a.keras, but there is no folder x; make it"),
        (["merge", "nowhere", "a.keras"], "FOLDER is nowhere, which does not exist"),
        (["merge", "empty", "a.keras"], "FOLDER: there is no checkpoint in empty; give the output"),
        (["merge", "there.keras", "a.keras"], "there.keras is one Keras file already; copy it"),
        (["merge", "out/best-epoch-000002", "a.keras"], "its part part-0.npz is missing"),
        (["split", "out", "new"], "FILE is out, which is a folder; give a Keras file"),
        (["split", "there.keras", "empty"], "FOLDER is empty, which is there already"),
        (["split", "there.keras", "new"], "checkpoint there.keras is damaged"),
        (["split", "nothing.keras", "new"], "there is no checkpoint nothing.keras; check the path"),
    ],
)
def test_what_a_person_gets_wrong(
    output: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(output.parent)
    Path("there.keras").write_bytes(b"no archive")
    Path("empty").mkdir()
    folders.duplicate(output / folders.parts_name(2), output / "best-epoch-000002")
    (output / "best-epoch-000002" / part_name(0)).unlink()
    before = sorted(Path().rglob("*"))
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("ooodist: error: ")
    assert message in error
    assert error.count("\n") == 1
    assert sorted(Path().rglob("*")) == before


def test_help() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ooodist.checkpoint", "--help"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "python -m ooodist.checkpoint merge runs/gpt model.keras\n" in done.stdout
