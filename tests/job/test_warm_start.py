"""Jobs with the key ``warm_start`` in this process: what they find, register, and go on with."""

from __future__ import annotations

import csv
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest

from ooodist import engines
from ooodist.checkpoint import folder as folders
from ooodist.config import job as job_file
from ooodist.data import kinds
from ooodist.elastic import timing
from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.job import warm_start as warm_job
from ooodist.job.preparation import PreparedJob, set_up
from ooodist.job.run import train
from ooodist.profiler.folder import Calibration
from ooodist.transfer import provenance
from ooodist.transfer.graph.operators import outline_of
from ooodist.zoo.entry import Meta
from ooodist.zoo.metrics import judge_of
from ooodist.zoo.zoo import Row, Wanted, Zoo
from tests.zoo.starts import meta, network, zoo_of

SMALL = [
    "batch=128",
    "report.tensorboard=false",
    "optimizer={name: adam, learning_rate: 0.003}",
]
PARENT, CHILD = "model={name: mlp, layers: [16]}", "model={name: mlp, layers: [24, 24]}"
STEPS = 11  # of an epoch


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    yield engines.init("local")
    keras.config.set_dtype_policy("float32")  # jobs set it for the whole process


def run(output: Path, *overrides: str, resume: bool = False) -> PreparedJob:
    config = job_file.load(None, [*SMALL, *overrides, f"output={output}"])
    config = replace(config, checkpoint=replace(config.checkpoint, resume=resume))
    job = set_up(config, engines.current())
    train(job, time.monotonic())
    return job


def rows_of(zoo: Path) -> list[Row]:
    with Zoo(zoo) as models:
        return models.list()


def history(folder: Path) -> list[dict[str, str]]:
    with (folder / "history.csv").open() as file:
        return list(csv.DictReader(file))


def weights(folder: Path) -> list[np.ndarray]:
    return keras.models.load_model(folder / "model.keras").get_weights()


@pytest.fixture(scope="module")
def cold(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a zoo, and the output of the job that has put a model into it."""
    folder = tmp_path_factory.mktemp("cold")
    run(folder / "out", PARENT, "epochs=4", f"warm_start={{zoo: {folder / 'zoo'}, tags: [a, b]}}")
    return folder


@pytest.fixture(scope="module")
def fresh(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a job without a zoo."""
    folder = tmp_path_factory.mktemp("fresh")
    run(folder, CHILD, "epochs=1")
    return folder


@pytest.fixture
def zoo(cold: Path, tmp_path: Path) -> Path:
    """The zoo for one test alone."""
    shutil.copytree(cold / "zoo", tmp_path / "zoo")
    return tmp_path / "zoo"


# What is registered


def test_a_finished_job_is_in_the_zoo_with_its_accuracy(cold: Path) -> None:
    [row] = rows_of(cold / "zoo")
    assert (row.meta.name, row.meta.task, row.meta.dataset) == ("mlp", "classification", "digits")
    assert row.meta.tags == ("a", "b")
    assert row.meta.parent is None
    assert row.meta.metrics["accuracy"] == pytest.approx(
        float(history(cold / "out")[-1]["val_accuracy"])
    )
    assert row.meta.metrics["accuracy"] > 0.5
    with Zoo(cold / "zoo") as models:
        _, values = models.fetch(row.id)
    trained = keras.models.load_model(cold / "out" / "model.keras")
    assert len(values) == len(trained.weights)
    for value, weight in zip(values.values(), trained.get_weights(), strict=True):
        np.testing.assert_array_equal(value, weight)


def test_a_wider_and_deeper_job_starts_from_it(
    cold: Path,
    fresh: Path,
    zoo: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    [parent] = rows_of(zoo)
    with caplog.at_level(logging.INFO, logger="ooodist"):
        run(tmp_path / "warm", CHILD, "epochs=1", f"warm_start.zoo={zoo}")
    printed = capsys.readouterr().out

    line, lower_rate = (m for m in caplog.messages if m.startswith("warm start: "))
    assert "for 200 updates" in lower_rate
    assert f"starts from mlp ({parent.id}), score " in line
    assert f"warm start   {parent.id}, score " in printed
    [child] = [row for row in rows_of(zoo) if row.id != parent.id]
    assert child.meta.parent == parent.id
    assert f"registered   {child.id} in {zoo}" in printed
    warm, without = (
        float(history(folder)[0]["val_accuracy"]) for folder in (tmp_path / "warm", fresh)
    )
    print(f"accuracy after an epoch: {warm:.3f} warm, {without:.3f} cold")
    assert warm > without
    assert warm > float(history(cold / "out")[-1]["val_accuracy"]) - 0.05


def test_a_cold_job_says_so(cold: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = f"warm_start={{zoo: {cold / 'zoo'}, task: language, register: false}}"
    run(tmp_path / "out", PARENT, "epochs=1", wanted)
    assert "warm start   none: it started cold" in capsys.readouterr().out


def test_a_job_that_is_complete_is_registered_if_it_was_not(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As when there was no zoo at its end."""
    run(tmp_path / "out", PARENT, "epochs=1")
    printed = capsys.readouterr().out
    assert "warm start" not in printed
    assert "registered" not in printed
    run(tmp_path / "out", PARENT, "epochs=1", f"warm_start.zoo={tmp_path / 'zoo'}", resume=True)
    [row] = rows_of(tmp_path / "zoo")
    accuracy = float(history(tmp_path / "out")[-1]["val_accuracy"])
    assert row.meta.metrics["accuracy"] == pytest.approx(accuracy)


def test_the_jobs_own_task_and_data_set_are_wanted(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    zoo = zoo_of(tmp_path / "zoo", network(), metas=[meta(dataset="stripes")])
    run(tmp_path / "one", PARENT, "epochs=1", f"warm_start={{zoo: {zoo}, register: false}}")
    [line] = [m for m in caplog.messages if "starts cold" in m]
    assert "has no model of task classification, dataset digits that is similar" in line
    caplog.clear()
    wanted = f"warm_start={{zoo: {zoo}, dataset: any, least_score: 0, register: false}}"
    run(
        tmp_path / "two",
        "model={name: resnet20, width: 4, blocks_per_stage: 1}",
        "epochs=1",
        wanted,
    )
    assert not [m for m in caplog.messages if "starts cold" in m]


def test_what_the_zoo_refuses_does_not_spoil_the_job(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its accuracy is far below that of all others of the task and data set."""
    models = [network(seed=seed) for seed in range(12)]
    metas = [meta(f"{n}", 0.98 + n / 1000, dataset="digits") for n in range(12)]
    zoo = zoo_of(tmp_path / "zoo", *models, metas=metas)
    bad = ["optimizer.learning_rate=0", PARENT, "epochs=1"]
    run(tmp_path / "one", *bad, f"warm_start={{zoo: {zoo}, task: any, dataset: any}}")
    assert len(rows_of(Path(zoo))) == len(models)
    [line] = [m for m in caplog.messages if "was not added" in m]
    assert line.startswith(f"warm start: the trained model was not added to the zoo {zoo}: ")
    assert (tmp_path / "one" / "model.keras").exists()
    required = f"warm_start={{zoo: {zoo}, required: true, least_score: 0}}"
    with pytest.raises(UserError, match="the trained model was not added to the zoo"):
        run(tmp_path / "two", *bad, required)


SMALL_DATA = "data={name: synthetic, num_samples: 64, "
LANGUAGE = [
    f"{SMALL_DATA}input_shape: [8], dtype: int32, vocabulary: 16}}",
    "model={name: lstm, width: 8}",
]
REGRESSION = [
    f"{SMALL_DATA}input_shape: [4], target_shape: [1]}}",
    "model={name: mlp, layers: [8]}",
]


@pytest.mark.parametrize(
    ("job", "name", "of_loss"),
    [(LANGUAGE, "perplexity", math.exp), (REGRESSION, "rmse", math.sqrt)],
    ids=["language", "regression"],
)
def test_a_job_without_an_accuracy_is_judged_by_what_its_loss_says(
    job: list[str], name: str, of_loss: Callable[[float], float], engine: Engine, tmp_path: Path
) -> None:
    """The better one of two is the parent of the next, though its number is smaller."""
    for epochs in (1, 20):
        rows = [
            "batch=16",
            f"epochs={epochs}",
            f"warm_start={{zoo: {tmp_path / 'zoo'}, least_score: 1}}",
        ]
        run(tmp_path / f"{epochs}", *job, *rows)
        loss = float(history(tmp_path / f"{epochs}")[-1]["val_loss"])
        row = max(rows_of(tmp_path / "zoo"), key=lambda row: row.created)
        assert row.meta.judged_by == name
        assert row.meta.metrics["loss"] == pytest.approx(loss)
        assert row.meta.metrics[name] == pytest.approx(of_loss(loss))
    first, second = sorted(rows_of(tmp_path / "zoo"), key=lambda row: row.created)
    assert second.meta.metrics[name] < first.meta.metrics[name]
    with Zoo(tmp_path / "zoo") as zoo:
        wanted = Wanted(second.meta.task)
        outline = outline_of(zoo.entry(first.id).graph)
        assert [each.id for each in zoo.query(outline, wanted, 2)] == [second.id, first.id]


def measured(result: dict[str, float], *overrides: str, model: Any = None) -> dict[str, float]:
    config = job_file.load(None, [*SMALL, PARENT, *overrides])
    data = kinds.load(config.data, batch=8, rank=0, size=1, seed=1)
    return warm_job._measured(config, data, model or network(), result)


def test_only_possible_values_are_registered() -> None:
    assert measured({}) == {}
    assert measured({"loss": 0.5}) == {"loss": 0.5}
    assert measured({"loss": 0.5, "accuracy": float("nan")}) == {"loss": 0.5}
    assert measured({"loss": float("inf"), "accuracy": 75.0}) == {}
    result = {"loss": 0.5, "accuracy": 0.25, "top_accuracy": 0.5}
    assert measured(result) == result
    assert judge_of(Meta(metrics=result)) == "accuracy"
    result = measured({"sparse_top_k_categorical_accuracy": 0.5})
    assert judge_of(Meta(metrics=result)) == "sparse_top_k_categorical_accuracy"


def test_no_perplexity_of_another_loss() -> None:
    assert measured({"loss": 2.0}, *LANGUAGE)["perplexity"] == math.exp(2.0)
    assert measured({"loss": 1e5}, *LANGUAGE)["perplexity"] == math.exp(700.0)
    regularized = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(2, kernel_regularizer="l2", name="dense")]
    )
    assert measured({"loss": 2.0}, *LANGUAGE, model=regularized) == {"loss": 2.0}
    assert measured({"loss": 2.0}, *REGRESSION, "loss=mean_absolute_error") == {"loss": 2.0}
    keras_name = {"root_mean_squared_error": 3.0}
    assert measured(keras_name, *REGRESSION) == keras_name | {"rmse": 3.0}


@pytest.mark.parametrize(
    ("judge", "more", "message"),
    [
        ("acuracy", [], r"judged_by is acuracy \(did you mean accuracy\?\); .* loss, accuracy "),
        ("auc", [], "judged_by is auc"),
        (
            "cosine_similarity",
            [*REGRESSION, "batch=16", "metrics=[cosine_similarity]"],
            r"compare: loss, rmse \(",
        ),
        ("accuracy", ["metrics=[]"], "judged_by is accuracy"),
        ("accuracy", [*REGRESSION, "batch=16"], "judged_by is accuracy; .* compare: loss, rmse"),
    ],
)
def test_what_a_job_does_not_measure_cannot_judge_it(
    judge: str, more: list[str], message: str, engine: Engine, tmp_path: Path
) -> None:
    """It ends before it trains."""
    wanted = f"warm_start={{zoo: {tmp_path / 'zoo'}, judged_by: {judge}}}"
    with pytest.raises(UserError, match=message):
        run(tmp_path / "out", PARENT, *more, wanted)
    assert not (tmp_path / "out" / "history.csv").exists()


def test_another_metric_may_judge_a_job(engine: Engine, tmp_path: Path) -> None:
    metrics = "metrics=[accuracy, {name: sparse_top_k_categorical_accuracy, k: 3}]"
    judge = "sparse_top_k_categorical_accuracy"
    wanted = f"warm_start={{zoo: {tmp_path / 'zoo'}, judged_by: {judge}}}"
    run(tmp_path / "out", PARENT, "epochs=1", metrics, wanted)
    [row] = rows_of(tmp_path / "zoo")
    assert judge_of(row.meta) == judge
    assert row.meta.metrics[judge] > row.meta.metrics["accuracy"]


# What is required


def test_required_ends_the_job_before_it_trains(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"warm_start\.required is true, but there is no warm start"
    ):
        run(tmp_path / "out", PARENT, f"warm_start={{zoo: {tmp_path / 'zoo'}, required: true}}")
    assert not (tmp_path / "out" / "model.keras").exists()


def test_a_zoo_that_cannot_be_used_at_all(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    run(tmp_path / "out", PARENT, "epochs=1", f"warm_start.zoo={tmp_path / 'file' / 'zoo'}")
    found = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert [line.partition(" zoo ")[0] for line in found] == [
        "warm start: the training starts cold: there is no",
        "warm start: the trained model was not added to the",
    ], found
    assert (tmp_path / "out" / "model.keras").exists()


# Probing


def test_probing_on_the_jobs_own_data(
    cold: Path, zoo: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two untrained models are said to be better than the trained one."""
    [parent] = rows_of(zoo)
    shape = keras.models.load_model(cold / "out" / "model.keras")
    with Zoo(zoo) as models:
        for seed in (1, 2):
            keras.utils.set_random_seed(seed)
            fresh = keras.models.clone_model(shape)
            models.add_model(
                fresh, replace(parent.meta, name=f"fresh {seed}", metrics={"accuracy": 0.99})
            )
    before = rows_of(zoo)
    start = f"warm_start={{zoo: {zoo}, register: false, probe_steps: 5"
    caplog.set_level(logging.INFO, "ooodist")
    job = run(tmp_path / "out", CHILD, "epochs=1", f"{start}}}")
    found = provenance.start_of(job.model)
    assert found is not None
    assert found.parent == parent.id
    assert "warm start: losses after 5 steps: " in caplog.text
    assert [row.id for row in rows_of(zoo)] == [row.id for row in before]


# Resuming

WARM = "warm_start={zoo: ZOO, register: false, lower_rate: 0.9, ramp_steps: 30}"


class Begun(NamedTuple):
    """A job that was trained for 4 epochs, and one that stopped after 2: in the middle of the ramp.

    Its zoo is gone: who goes on asks no zoo.
    """

    folder: Path
    settings: list[str]
    whole: PreparedJob
    half: PreparedJob

    def assert_same_after_resuming(self, tmp_path: Path, *changed: str) -> None:
        parts = tmp_path / "parts"
        shutil.copytree(self.folder / "parts", parts)
        keras.utils.set_random_seed(99)  # a new process knows nothing of the old one
        other = run(parts, *self.settings, *changed, "epochs=4", resume=True)
        found = provenance.start_of(other.model)
        assert found is not None
        for mine, its in zip(weights(self.folder / "whole"), weights(parts), strict=True):
            np.testing.assert_array_equal(mine, its)
        if changed:
            return
        assert history(parts) == history(self.folder / "whole")
        states = [folders.latest(folder)[1] for folder in (self.folder / "whole", parts)]
        assert states[0].fingerprint == states[1].fingerprint
        starts = [state.warm_start or {} for state in states]
        assert {**starts[0], "seconds": {}} == {**starts[1], "seconds": {}}
        assert starts[0]["parent"]
        for mine, its in zip(
            self.whole.model.optimizer.variables, other.model.optimizer.variables, strict=True
        ):
            np.testing.assert_array_equal(mine, its, err_msg=mine.path)


def begun(cold: Path, folder: Path, *overrides: str) -> Begun:
    zoo = folder / "zoo"
    shutil.copytree(cold / "zoo", zoo)
    settings = [CHILD, WARM.replace("ZOO", str(zoo)), *overrides]
    whole = run(folder / "whole", *settings, "epochs=4")
    half = run(folder / "parts", *settings, "epochs=2")
    shutil.rmtree(zoo)
    return Begun(folder, settings, whole, half)


@pytest.fixture(scope="module")
def usual(cold: Path, tmp_path_factory: pytest.TempPathFactory) -> Begun:
    return begun(cold, tmp_path_factory.mktemp("begun"))


def test_a_resumed_run_is_the_uninterrupted_one(usual: Begun, tmp_path: Path) -> None:
    usual.assert_same_after_resuming(tmp_path)
    assert not (usual.folder / "zoo").exists()


def test_so_with_a_schedule_scaled_losses_and_early_stopping(cold: Path, tmp_path: Path) -> None:
    rate = "{schedule: cosine_decay, initial_learning_rate: 3e-3, decay_steps: 44}"
    overrides = [
        f"optimizer.learning_rate={rate}",
        "early_stopping={monitor: val_accuracy, patience: 9, restore_best_weights: true}",
        "precision=mixed_float16",
        "accumulate=2",
    ]
    begun(cold, tmp_path / "job", *overrides).assert_same_after_resuming(tmp_path)


# Either of the numbers alone would be seen.
@pytest.mark.parametrize(
    "changed",
    [["warm_start=null"], ["warm_start.lower_rate=0.3", "warm_start.ramp_steps=5"]],
    ids=["none", "another"],
)
def test_who_goes_on_has_the_rate_that_was_begun_with(
    changed: list[str], usual: Begun, tmp_path: Path
) -> None:
    usual.assert_same_after_resuming(tmp_path, *changed)


def test_the_rates_are_those_of_the_ramp(usual: Begun) -> None:
    start = provenance.start_of(usual.half.model)
    assert start is not None
    expected = 0.003 * (1 - 0.9 * start.carried * (1 - 2 * STEPS / 30))
    assert int(usual.half.model.optimizer.iterations) == 2 * STEPS
    assert float(usual.half.model.optimizer.learning_rate) == pytest.approx(expected, rel=1e-5)
    rows = history(usual.folder / "parts")
    if "learning_rate" in rows[-1]:
        assert float(rows[-1]["learning_rate"]) == pytest.approx(expected, rel=1e-5)


def test_a_cold_job_is_resumed_cold(fresh: Path, zoo: Path, tmp_path: Path) -> None:
    """Though there is a model now from which it could start."""
    shutil.copytree(fresh, tmp_path / "out")
    job = run(tmp_path / "out", CHILD, "epochs=2", f"warm_start.zoo={zoo}", resume=True)
    assert provenance.start_of(job.model) is None
    assert folders.latest(tmp_path / "out")[1].warm_start is None


# With elastic training


@pytest.fixture
def equal_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs that are the same in each run: calibrated, they would never be."""
    monkeypatch.setattr(timing, "calibrated", lambda *_, **__: (Calibration(1.0, 1.0), ()))


@pytest.mark.usefixtures("equal_costs")
def test_what_was_not_copied_is_trained_first(engine: Engine, tmp_path: Path) -> None:
    """New blocks in each stage, in the first epoch of two. Then importance alone counts again."""
    net = "model={name: resnet20, width: 4, blocks_per_stage: N}"
    run(tmp_path / "out", net.replace("N", "1"), "epochs=1", f"warm_start.zoo={tmp_path / 'zoo'}")
    elastic = (
        "{rho: 0.75, renew: 1 epochs, batches: 1, keep: 0, smoothing: 0, not_copied_epochs: N}"
    )
    new: dict[int, list[int]] = {}
    for epochs in (0, 1):
        job = run(
            tmp_path / f"{epochs}",
            net.replace("N", "2"),
            "epochs=2",
            f"elastic={elastic.replace('N', str(epochs))}",
            f"planning.profiles={tmp_path / 'profiles'}",
            f"warm_start={{zoo: {tmp_path / 'zoo'}, register: false}}",
        )
        state: Any = folders.latest(tmp_path / f"{epochs}")[1].selection
        choice = job.model.ooodist.strategy.controller.cost_model.choice
        start = provenance.start_of(job.model)
        assert start is not None
        not_copied = choice.numbers(start.not_copied)
        new[epochs] = [len(not_copied & {*each["selected"]}) for each in state["renewals"]]
        for renewal in state["renewals"]:
            assert renewal["predicted"] <= 0.75 * choice.full_seconds * (1 + 1e-6)
    print(f"selected of {len(not_copied)} that were not copied: {new}")
    assert 0 < len(not_copied) < len(choice.items)
    assert new[1][0] > new[0][0]
    assert new[1][1] < new[1][0]
