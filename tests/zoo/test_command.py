"""python -m ooodist.zoo, as people start it."""

from __future__ import annotations

import importlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import keras
import pytest
from keras import layers

from ooodist.util.program import USER_ERROR_CODE
from ooodist.zoo import __main__ as program
from ooodist.zoo.entry import Meta, read
from ooodist.zoo.zoo import Zoo
from tests.fork_server import fast_python
from tests.zoo.entries import chain, write_plain

ROOT = Path(__file__).parent.parent
JOB = """\
model: {name: mlp, layers: [32, 16]}
data: {name: digits}
batch: 32
"""
TOKEN = "a-token-of-twenty-signs"


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """The model of the job but for one width, as its user saved it."""
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Flatten(name="flat"),
            layers.Dense(32, activation="relu", name="first"),
            layers.Dense(24, activation="relu", name="second"),
            layers.Dense(10, name="head"),
        ],
        name="mine",
    )
    model.compile("adam", "mse")
    model.save(tmp_path / "mine.keras")
    return tmp_path / "mine.keras"


def start(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [fast_python(), "-m", "ooodist.zoo", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """In this process, which has imported TensorFlow already."""
    code = program.main([str(each) for each in arguments])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


def error_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert program.main([str(each) for each in arguments]) == USER_ERROR_CODE
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("ooodist: error: ")
    return line


def cells(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()]


@pytest.fixture
def filled(tmp_path: Path) -> tuple[Path, list[str]]:
    """A zoo of three models, made without Keras."""
    folder = tmp_path / "zoo"
    added = []
    with Zoo(folder) as zoo:
        for name, widths, found in (("a", [4, 8], 0.5), ("b", [4, 9], None), ("c", [2], 0.25)):
            file = tmp_path / f"{name}.keras"
            metrics = {} if found is None else {"accuracy": found}
            write_plain(file, chain(widths), Meta(name, "t", "d", metrics=metrics))
            added.append(zoo.add(file))
    return folder, added


# A whole life


def test_a_model_is_added_found_shown_and_deleted(model_file: Path, tmp_path: Path) -> None:
    """In processes of their own, as people do it."""
    zoo = tmp_path / "zoo"
    about = ["--task", "image classification", "--dataset", "digits", "--tags", "small, 2026"]
    done = start("add", model_file, "--zoo", zoo, *about, "--accuracy", "0.98", "--name", "My Net")
    assert done.returncode == 0, done.stderr
    model = done.stdout.strip()
    assert model.startswith("my-net-")
    meta = read(zoo / f"{model}.keras").meta
    assert meta == Meta(
        "My Net", "image classification", "digits", ("small", "2026"), (), {"accuracy": 0.98}
    )

    (tmp_path / "job.yaml").write_text(JOB)
    done = start("query", tmp_path / "job.yaml", "--zoo", zoo, "--dataset", "digits")
    assert done.returncode == 0, done.stderr
    heading, found = done.stdout.splitlines()
    assert heading.split() == ["id", "score", "accuracy", "task", "data", "set", "parameters"]
    name, score, accuracy, *_, parameters = found.split()
    assert (name, accuracy, parameters) == (model, "0.9800", "3,122")
    assert 0.5 < float(score) < 1

    done = start("evict", model, "--zoo", zoo)
    assert done.stdout == f"{model} is no longer in {zoo}\n"
    assert not list(zoo.glob("*.keras"))


def test_the_same_model_has_score_1(
    model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zoo = tmp_path / "zoo"
    model = run(capsys, "add", model_file, "--zoo", zoo).strip()
    assert model.startswith("mine-")  # the name of the file
    assert run(capsys, "add", model_file, "--zoo", zoo).strip() == model
    table = cells(run(capsys, "query", model_file, "--zoo", zoo))
    assert table[1][:2] == [model, "1.000"]
    assert "no model of the zoo is like" in run(
        capsys, "query", model_file, "--zoo", zoo, "--task", "other"
    )


def test_the_list_has_a_line_a_model_and_totals(
    filled: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    zoo, models = filled
    heading, *rows, total = cells(run(capsys, "list", "--zoo", zoo))
    assert heading[:2] == ["id", "accuracy"]
    assert [row[0] for row in rows] == sorted(models)
    by_model = {row[0]: row for row in rows}
    today = time.strftime("%Y-%m-%d")
    assert by_model[models[0]][1:] == ["0.5000", "t", "d", "40", "0.0", "0", today]
    assert by_model[models[1]][1:] == ["t", "d", "45", "0.0", "0", today]
    assert total[:2] == ["models:", "3"]


def test_an_empty_zoo_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "models: 0" in run(capsys, "list", "--zoo", tmp_path)


def test_a_model_is_shown_with_its_operators(
    filled: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    zoo, models = filled
    text = run(capsys, "show", models[0], "--zoo", zoo)
    facts = dict(line.split(maxsplit=1) for line in text.split("\n\n")[0].splitlines()[:3])
    assert facts == {"id": models[0], "name": "a", "task": "t"}
    assert "access    everybody" in text
    assert "accuracy  0.5000" in text
    assert cells(text)[-1] == ["1", "layer1", "Dense", "0", "kernel", "4x8,", "bias", "8"]
    assert len(text.split("\n\n")[1].splitlines()) == 3


def test_metrics_in_their_own_direction_are_added_and_shown(
    model_file: Path, filled: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    zoo, models = filled
    there = ["--zoo", zoo, "--task", "language", "--metric", "accuracy=0.4"]
    worse, better = (
        run(capsys, "add", model_file, *there, "--metric", f"perplexity={each}").strip()
        for each in (23.456, 9)
    )
    table = cells(run(capsys, "query", model_file, "--zoo", zoo, "--task", "language"))
    assert table[0][2] == "perplexity"
    assert [row[:3] for row in table[1:]] == [[better, "1.000", "9.000"], [worse, "1.000", "23.46"]]
    heading, *rows, _ = cells(run(capsys, "list", "--zoo", zoo))
    assert heading[1] == "metric"
    by_model = {row[0]: row[1:3] for row in rows}
    assert by_model[models[0]] == ["accuracy", "0.5000"]
    assert by_model[worse] == ["perplexity", "23.46"]
    text = run(capsys, "show", worse, "--zoo", zoo)
    assert "perplexity 23.46\n" in text
    assert "judged by perplexity\n" in text
    other = ["--metric", "perplexity=5", "--judged-by", "accuracy"]
    judged = run(capsys, "add", model_file, *there, *other).strip()
    assert "judged by accuracy\n" in run(capsys, "show", judged, "--zoo", zoo)


def test_several_models_are_deleted(
    filled: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    zoo, models = filled
    run(capsys, "evict", *models[:2], "--zoo", zoo)
    assert {file.stem for file in zoo.glob("*.keras")} == {models[2]}


def test_a_capacity_makes_the_least_valuable_leave(
    model_file: Path, filled: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    zoo, _ = filled
    new = run(
        capsys, "add", model_file, "--zoo", zoo, "--accuracy", 1, "--capacity-bytes", 41_000
    ).strip()
    left = {file.stem for file in zoo.glob("*.keras")}
    assert new in left
    assert sum(file.stat().st_size for file in zoo.glob("*.keras")) <= 41_000
    message = error_of(capsys, "add", model_file, "--zoo", zoo, "--capacity-bytes", 9_000)
    assert "raise the capacity" in message


def test_the_index_is_where_it_is_told_to_be(
    filled: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that may not be written to, or where SQLite must not: only models are read there."""
    zoo, models = filled
    for file in zoo.glob("index.sqlite*"):
        file.unlink()
    index = ["--index", tmp_path / "here" / "index.sqlite"]
    assert "models: 3" in run(capsys, "list", "--zoo", zoo, *index)
    assert "name      a" in run(capsys, "show", models[0], "--zoo", zoo, *index)
    run(capsys, "evict", models[0], "--zoo", zoo, *index)
    assert {file.name for file in zoo.iterdir()} == {f"{model}.keras" for model in models[1:]}
    assert index[1].is_file()


def test_who_may_use_it_is_kept(
    model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = run(capsys, "add", model_file, "--zoo", tmp_path, "--access", "alice, bob").strip()
    assert "access    alice, bob" in run(capsys, "show", model, "--zoo", tmp_path)


# Starting


def test_list_show_and_evict_start_without_tensorflow(filled: tuple[Path, list[str]]) -> None:
    zoo, models = filled
    for arguments in (["list"], ["show", models[0]], ["evict", models[0]]):
        check = (
            "import sys\nfrom ooodist.zoo import __main__ as zoo\n"
            "assert zoo.main(sys.argv[1:]) == 0\n"
            "assert not {'tensorflow', 'keras'} & set(sys.modules)"
        )
        command = [sys.executable, "-c", check, *arguments, "--zoo", str(zoo)]
        begin = time.perf_counter()
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
        assert time.perf_counter() - begin < 10


def test_the_examples_of_the_help_can_be_parsed() -> None:
    done = start("--help")
    assert done.returncode == 0
    text = done.stdout.partition("examples:")[2].replace("\\\n", " ")
    examples = [
        shlex.split(line.partition("ooodist.zoo ")[2])
        for line in text.splitlines()
        if "python -m ooodist.zoo" in line
    ]
    assert {program._parse(example).command for example in examples} == set(program.commands)


# Errors


WRONG = [
    (["list", "--zoo", "{folder}/none"], "there is no zoo {folder}/none; check the path"),
    (["show", "x", "--zoo", "{folder}"], "there is no model 'x' in {folder}"),
    (["evict", "x", "--zoo", "{folder}"], "there is no model 'x'"),
    (["add", "x.keras", "--zoo", "{folder}"], "there is no model x.keras; check the path"),
    (["add", "x.keras", "--zoo", "{folder}", "--accuracy", "98"], "accuracy is 98.0; it must be 0"),
    (["add", "x.keras", "--zoo", "{folder}", "--accuracy", "nan"], "accuracy is nan; it must be 0"),
    (["add", "x.keras", "--zoo", "{folder}", "--accuracy", "x"], "invalid float value: 'x'"),
    (["add", "x", "--zoo", "{folder}", "--metric", "acuracy=1"], "acuracy are good (did you mean"),
    (["add", "x", "--zoo", "{folder}", "--metric", "f1"], "--metric f1: it must be NAME=NUMBER"),
    (["add", "x", "--zoo", "{folder}", "--metric", "f1=x"], "f1=x: it must be NAME=NUMBER"),
    (["add", "x", "--zoo", "{folder}", "--metric", "rmse=-1"], "rmse is -1.0; it must be at least"),
    (["add", "x", "--zoo", "{folder}", "--metric", "auc=1", "--metric", "auc=0"], "given twice"),
    (["add", "x", "--zoo", "{folder}", "--judged-by", "f1"], "judged_by is 'f1'"),
    (["add", "x.keras", "--zoo", "{folder}", "--task", "a\nb"], "task is 'a\\nb'"),
    (["add", "x.keras", "--zoo", "{folder}", "--capacity-bytes", "0"], "it must be at least 1"),
    (["query", "x.keras", "--zoo", "{folder}"], "there is no model x.keras"),
    (["query", "x.yaml", "--zoo", "{folder}"], "x.yaml"),
    (["list"], "the following arguments are required: --zoo"),
    (["lst", "--zoo", "{folder}"], "invalid choice: 'lst'"),
    (["list", "--zoo", "none://x"], "Protocol not known: none"),
    (["list", "--zoo", "[::1]:1", "--token-file", "{folder}/none"], "--token-file {folder}/none"),
    (["list", "--zoo", "localhost:1", "--index", "x"], "--index is given to the service"),
    (["add", "x", "--zoo", "localhost:1", "--index", "x"], "--index is given to the service"),
    (["list", "--zoo", "{folder}", "--index", "/proc/x/i"], "the index /proc/x/i of the zoo"),
    (["serve", "--zoo", "127.0.0.1:1"], "give the folder that is to be served"),
    (["add", "x", "--zoo", "localhost:1", "--capacity-bytes", "9"], "is given to the service"),
    ([], "the following arguments are required: COMMAND"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_what_a_user_can_put_right_is_one_line_and_code_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [each.format(folder=tmp_path) for each in arguments]
    assert message.format(folder=tmp_path) in error_of(capsys, *given)


def test_a_file_that_keras_cannot_load_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.keras").write_text("no model")
    message = error_of(capsys, "add", tmp_path / "x.keras", "--zoo", tmp_path / "zoo")
    assert f"model {tmp_path}/x.keras cannot be loaded" in message


def test_code_in_a_model_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = keras.Sequential(
        [keras.Input((2,)), layers.Lambda(lambda x: x + 1, name="code"), layers.Dense(2, name="d")]
    )
    model.save(tmp_path / "code.keras")
    message = error_of(capsys, "add", tmp_path / "code.keras", "--zoo", tmp_path / "zoo")
    assert "cannot be loaded" in message
    assert "ambda" in message


# The service


@pytest.fixture
def served(filled: tuple[Path, list[str]], tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Its address, and a file with a token of an admin."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(f"alice: {TOKEN}\nadmins: [alice]\n")
    tokens.chmod(0o600)
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(f"{TOKEN}\n")
    command = [sys.executable, "-m", "ooodist.zoo", "serve", "--zoo", str(filled[0])]
    command += ["--address", address, "--tokens", str(tokens)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "with 3 models is served at" in process.stdout.readline()
    yield address, token
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "no longer served" in output


def test_the_same_commands_use_a_service(
    served: tuple[str, Path],
    filled: tuple[Path, list[str]],
    model_file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    address, token = served
    zoo, models = filled
    there = ["--zoo", address, "--token-file", token]
    assert "models: 3" in run(capsys, "list", *there)
    new = run(capsys, "add", model_file, "--name", "over the net", *there).strip()
    assert new.startswith("over-the-net-")
    assert (zoo / f"{new}.keras").is_file()
    table = cells(run(capsys, "query", model_file, *there))
    assert table[1][:2] == [new, "1.000"]
    assert "name      over the net" in run(capsys, "show", new, *there)
    run(capsys, "evict", models[0], "--zoo", f"grpc://{address}", "--token-file", token)
    assert "models: 3" in run(capsys, "list", *there)


def test_a_wrong_token_is_a_user_error(
    served: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong"
    wrong.touch(0o600)
    wrong.write_text("another-token-of-twenty")
    assert "token" in error_of(capsys, "list", "--zoo", served[0], "--token-file", wrong)


def test_no_home_folder_is_needed_for_a_folder(
    filled: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fast_python()  # whose server imports Keras, which makes a folder, once
    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    done = start("list", "--zoo", filled[0])
    assert done.returncode == 0, done.stderr
    assert "none" not in os.listdir(tmp_path)


# Classes of one's own

OWN = """\
from os import getcwd

import keras

class Scaled(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, x):
        return x * self.scale

def doubled(x):
    return 2 * x
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A model with a layer and a function of a module that is not imported."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "layers_of_mine.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(folder))
    module = importlib.import_module("layers_of_mine")
    model = keras.Sequential(
        [keras.Input((4,)), module.Scaled(name="own"), layers.Dense(2, module.doubled, name="head")]
    )
    model.save(folder / "mine.keras")
    del sys.modules["layers_of_mine"]
    yield folder / "mine.keras"
    sys.modules.pop("layers_of_mine", None)


def test_classes_of_ones_own_come_from_the_module_that_is_named(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zoo, named = tmp_path / "zoo", ["--custom-objects", "layers_of_mine"]
    model = run(capsys, "add", own, "--zoo", zoo, *named).strip()
    assert "layers_of_mine" in sys.modules
    assert cells(run(capsys, "query", own, "--zoo", zoo, *named))[1][:2] == [model, "1.000"]
    assert "Scaled" in run(capsys, "show", model, "--zoo", zoo)
    assert program._custom_objects("layers_of_mine").keys() == {"Scaled", "doubled"}


def test_a_file_names_no_module(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = error_of(capsys, "add", own, "--zoo", tmp_path / "zoo")
    assert "cannot be loaded" in message
    assert "--custom-objects names" in message
    assert "layers_of_mine" not in sys.modules


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("none_of_mine.layers", "--custom-objects none_of_mine.layers: there is no Python module"),
        ("", "--custom-objects is ; it must be a module"),
        ("../mine.py", "--custom-objects is ../mine.py; it must be a module"),
    ],
)
def test_a_module_that_is_none_is_named(
    module: str, message: str, model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zoo = model_file.parent / "zoo"
    named = ["--zoo", zoo, "--custom-objects", module]
    assert message in error_of(capsys, "add", model_file, *named)
    (model_file.parent / "job.yaml").write_text(JOB)
    zoo.mkdir(exist_ok=True)
    message = error_of(capsys, "query", model_file.parent / "job.yaml", *named)
    assert "--custom-objects is for a .keras file" in message
