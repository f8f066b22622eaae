"""The job file: defaults, overrides, round trip, and one clear error for each mistake."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooodist.config import job
from ooodist.config.job import Config
from ooodist.config.named_arguments import NamedArguments
from ooodist.errors import UserError
from ooodist.settings.elastic import ElasticConfig
from ooodist.settings.sections import (
    EarlyStoppingConfig,
    OrderConfig,
    ParallelConfig,
    PlanningConfig,
)
from tests.thorough import few

EXAMPLE = """
engine: collective
workers: 2
model: {name: resnet20, width: 8}
data: {name: digits, augment: true}
batch: 32
optimizer:
  name: AdamW
  learning_rate: {schedule: cosine_decay, initial_learning_rate: 1e-2, decay_steps: 100}
  weight_decay: 1e-4
  global_clipnorm: 1
loss: {name: sparse_categorical_crossentropy, ignore_class: 3}
metrics: [accuracy, {name: sparse_top_k_categorical_accuracy, k: 3}]
order: {name: first_k, k: 4}
early_stopping: {monitor: val_accuracy, patience: 5}
checkpoint: {resume: runs/old/checkpoint-epoch-000003.keras}
"""


@pytest.mark.parametrize(
    ("settings", "folder"),
    [
        ([], "runs/digits"),
        (["data=text"], "runs/text"),
        (["data={name: text, sequence_length: 8}"], "runs/text"),
        (["data=text", "output=mine"], "mine"),
    ],
)
def test_the_output_is_named_after_the_data(settings: list[str], folder: str) -> None:
    config = job.load(None, settings)
    assert config.output == folder
    assert job.loads(job.to_yaml(config)) == config


def test_the_default_job_is_digits_with_resnet20() -> None:
    config = job.load(None)
    assert (config.model.name, config.data.name) == ("resnet20", "digits")
    assert config.optimizer.name == "sgd"
    assert job.loads("") == config


def test_a_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(EXAMPLE)
    config = job.load(file)
    assert config.model.width == 8
    assert config.data.augment is True
    assert config.optimizer.name == "adamw"
    assert config.optimizer.arguments["learning_rate"]["initial_learning_rate"] == 0.01
    assert config.metrics is not None
    assert config.metrics[1] == NamedArguments("sparse_top_k_categorical_accuracy", {"k": 3})
    assert config.order == OrderConfig("first_k", 4)
    assert config.early_stopping == EarlyStoppingConfig("val_accuracy", patience=5)
    assert job.loads(job.to_yaml(config)) == config


def test_users_own_functions() -> None:
    text = "model: my.models:small\ndata: {name: 'my.data:load', arguments: {n: 3}}"
    text += "\ncallbacks: ['my.reports:make', {name: 'my.reports:other', rate: 2}]"
    config = job.loads(text)
    made = NamedArguments("my.reports:make"), NamedArguments("my.reports:other", {"rate": 2})
    assert config.callbacks == made
    assert config.model.function == "my.models:small"
    assert (config.data.function, config.data.arguments) == ("my.data:load", {"n": 3})
    assert job.loads(job.to_yaml(config)) == config


@pytest.mark.parametrize(
    ("overrides", "of_config"),
    [
        (["batch=8"], lambda c: c.batch == 8),
        (["optimizer.learning_rate=1e-3"], lambda c: c.optimizer.arguments["momentum"] == 0.9),
        (["optimizer.name=adam"], lambda c: c.optimizer.arguments == {}),
        (["optimizer=adam", "optimizer.beta_1=0.8"], lambda c: c.optimizer.name == "adam"),
        (["model.width=32"], lambda c: (c.model.name, c.model.width) == ("resnet20", 32)),
        (["model=mlp", "model.layers=[4, 4]"], lambda c: c.model.layers == (4, 4)),
        (["early_stopping.patience=3"], lambda c: c.early_stopping.patience == 3),
        (["order={name: first_k, k: 2}"], lambda c: c.order.k == 2 and not c.order.is_a_plan),
        (["order.name=first_k"], lambda c: c.order.is_a_plan),
        (["order.name=planned"], lambda c: c.order.is_a_plan and c.steps_per_execution is None),
        (["order={name: planned, plan: x.yaml}"], lambda c: c.order.plan == "x.yaml"),
        (["order.name=planned", "exchange.wire=planned"], lambda c: c.exchange.wire == "planned"),
        (
            ["order={name: planned, plan: x}", "exchange.error_feedback=false"],
            lambda c: not c.exchange.error_feedback,  # the plan may have a wire
        ),
        (["report.trace=4", "report.csv=false"], lambda c: c.report.trace == 4),
        (["elastic.rho=0.4"], lambda c: c.elastic == ElasticConfig(rho=0.4)),
        (["elastic={}"], lambda c: c.elastic.interval == (200, "step")),
        (["elastic.renew=1 step"], lambda c: c.elastic.interval == (1, "step")),
        (["elastic.renew=3 epochs"], lambda c: c.elastic.interval == (3, "epoch")),
        (["elastic.renew=plateau"], lambda c: c.elastic.interval == (1, "plateau")),
        (["elastic.always=[stem, head]"], lambda c: c.elastic.always == ("stem", "head")),
        (["elastic.rho=1"], lambda c: c.elastic.is_full),
        (["elastic.select=full"], lambda c: c.elastic.is_full),
        (["elastic=null"], lambda c: c.elastic is None),
        (["output=a=b"], lambda c: c.output == "a=b"),
        (
            ["callbacks=[TerminateOnNaN, {name: ReduceLROnPlateau, factor: 0.5}]"],
            lambda c: (
                c.callbacks
                == (
                    NamedArguments("terminate_on_nan"),
                    NamedArguments("reduce_lr_on_plateau", {"factor": 0.5}),
                )
            ),
        ),
    ],
)
def test_overrides(overrides: list[str], of_config: Any) -> None:
    assert of_config(job.load(None, overrides))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["order.name=planned", "exchange.credit=2"],
            "credit is 2, but the order is pl",
        ),
        (
            ["order={name: planned, plan: x}", "steps_per_execution=2"],
            "but the order is x: a plan has its own",
        ),
        (
            ["order={name: planned, plan: x}", "exchange.wire=float16"],
            "wire is float16, but the order is x: a plan has its own",
        ),
        (["exchange.wire=planned"], "wire is planned, but the order is inorder: no plan is made"),
        (
            ["exchange.error_feedback=false"],
            "but wire is float32: nothing is lost",
        ),
        (["exchange.wire=float8"], "exchange.wire is float8 (did you mean"),
    ],
)
def test_settings_that_a_plan_has_itself(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        job.load(None, overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["order.name=planned"],
        ["order.name=priority"],
        ["order.name=first_k"],
        # All is trained, always: there is one selection alone.
        ["order={name: first_k, k: 2}", "elastic.rho=1"],
        ["order={name: planned, plan: x.yaml}", "elastic.select=full"],
    ],
)
def test_orders_of_elastic_training(overrides: list[str]) -> None:
    config = job.load(None, ["elastic.rho=0.5", *overrides])
    assert job.loads(job.to_yaml(config)) == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("order={name: first_k, k: 2}", "weights, but the order is first_k with k = 2:"),
        ("order={name: planned, plan: x.yaml}", "weights, but the order is x.yaml:"),
    ],
)
def test_orders_that_are_for_one_selection_alone(override: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        job.load(None, ["elastic.rho=0.5", override])
    assert message in str(caught.value)
    assert "let it be found: order planned, priority" in str(caught.value)


rates = st.floats(0, 1) | st.builds(
    lambda rate, steps: {
        "schedule": "cosine_decay",
        "initial_learning_rate": rate,
        "decay_steps": steps,
    },
    st.floats(0, 1),
    st.integers(1, 10**6),
)
paths = st.text(min_size=1).filter(lambda path: path.strip() and "\0" not in path)
optimizers = st.builds(
    lambda rate, decay: NamedArguments("sgd", {"learning_rate": rate, "weight_decay": decay}),
    rates,
    st.none() | st.floats(0, 1),
)


@given(
    optimizers,
    st.sampled_from([[], ["model=mlp"], ["model=gpt"], ["data=text"], ["model=a.b:c"]]),
    st.integers(1, 2**40),
    paths,
    st.booleans() | paths,
    st.none() | st.builds(EarlyStoppingConfig, monitor=st.text(), baseline=st.none() | st.floats()),
)
def test_any_config_survives_yaml(
    optimizer: NamedArguments,
    overrides: list[str],
    batch: int,
    output: str,
    resume: bool | str,
    early_stopping: EarlyStoppingConfig | None,
) -> None:
    config = replace(
        job.load(None, overrides),
        optimizer=optimizer,
        batch=batch,
        output=output,
        checkpoint=replace(Config.checkpoint, resume=resume),
        early_stopping=early_stopping,
    )
    again = job.loads(job.to_yaml(config))
    assert job.to_yaml(again) == job.to_yaml(config)
    if early_stopping is None or early_stopping.baseline == early_stopping.baseline:  # not NaN
        assert again == config
    assert job.digest(again) == job.digest(config)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("callbacks=terminate_on_nan", "callbacks is terminate_on_nan; it must be a list"),
        ("callbacks=[csv_loger]", "callbacks[0].name is csv_loger (did you mean csv_logger?)"),
        ("callbacks=[csv_logger]", "callbacks[0].filename is missing; csv_logger needs it"),
        (
            "callbacks=[a.b:c, {name: csv_logger, file: x}]",
            "there is no key callbacks[1].file (did you mean filename?); csv_logger has filename",
        ),
        ("callbacks=[early_stopping]", "in a job file, take the key early_stopping"),
        ("callbacks=['a.b:']", "callbacks[0].name is a.b:; it must be package.module:function"),
        ("bach=3", "there is no key bach (did you mean batch?); the job has engine"),
        ("batch=0", "batch is 0; it must be a whole number, at least 1"),
        ("batch=4.5", "batch is 4.5; it must be a whole number"),
        ("batch=many", "batch is many; it must be a whole number"),
        ("batch.size=3", "batch is size: 3; it must be a whole number"),
        ("epochs=-1", "epochs is -1; it must be a whole number, at least 1"),
        ("engine=horovd", "engine is horovd (did you mean horovod?); it must be one of auto"),
        ("workers=0", "workers is 0; it must be a whole number, at least 1 or null"),
        ("seed=-1", "seed is -1; it must be a whole number, 0 to 2147483647"),
        (
            "precision=float16",
            "precision is float16 (did you mean float32?); it must be one of float32, mixed_",
        ),
        ("order={name: inorder, plan: x.yaml}", "order.name is inorder and order.plan is x.yaml"),
        ("order={name: fastest}", "order.name is fastest; it must be one of inorder, first_k"),
        ("planning.memory_bytes=0", "planning.memory_bytes is 0; it must be"),
        ("order.k=3", "order.name is inorder and order.k is 3"),
        ("order={name: first_k, k: -1}", "order.k is -1; it must be a whole number, at least 0"),
        ("early_stopping.patience=x", "early_stopping.patience is x; it must be a whole number"),
        ("timeout=0.5", "timeout is 0.5; it must be a number, 1 to 1000000"),
        ("timeout=.inf", "timeout is .inf; it must be a number, 1 to 1000000"),
        (
            "steps_per_execution=100000",
            "steps_per_execution is 100000; it must be a whole number, 1 to",
        ),
        (
            "planning.max_steps_per_execution=1000",
            "planning.max_steps_per_execution is 1000; it must be",
        ),
        ("report.trace=1000000", "report.trace is 1000000; it must be a whole number, 0 to 1000"),
        ("output=''", "output is ''; it must be a path"),
        ('output="a\\0b"', "output is 'a\\x00b'; it must be a path"),
        ("planning.profiles=' '", "planning.profiles is ' '; it must be a path"),
        ("order={name: planned, plan: ''}", "order.plan is ''; it must be a path"),
        ("checkpoint.resume=''", "checkpoint.resume is ''; it must be a path"),
        ("batch=" + "9" * 400, ", which is too large; it must be 9223372036854775807 at most"),
        ("batch=" + "9" * 10_000, "99999999999999999999... has 10,000 characters; a value may"),
        ("model=" + "x" * 20_000, "--set model, line 1: this is not valid YAML: xxxxxxxxxxxxxxx"),
        ("optimizer.clipnorm=-1", "optimizer.clipnorm is -1; it must be at least 0"),
        ("optimizer.global_clipnorm=0", "optimizer.global_clipnorm is 0; it must be more than 0"),
        ("optimizer.weight_decay=.inf", "optimizer.weight_decay is inf; it must be at least 0"),
        (
            "optimizer.learning_rate={schedule: cosine_decay, initial_learning_rate: -1, "
            "decay_steps: 3}",
            "optimizer.learning_rate.initial_learning_rate is -1; it must be at least 0",
        ),
        ("data.name=digit", "data.name is digit (did you mean digits?); it must be one of digits"),
        ("data={name: npz}", "data.path is missing; it must be text"),
        ("data.validation_fraction=1.5", "data.validation_fraction is 1.5"),
        ("data={augment: true}", "data.name is missing; give the name: one of digits"),
        ("model.name=resnet21", "(did you mean resnet20?)"),
        ("model.widht=3", "there is no key model.widht (did you mean width?); model has weights"),
        ("model.width=0", "model.width is 0; it must be a whole number, at least 1"),
        ("model=3", "model is 3; it must be text or a group of keys"),
        ("optimizer.name=sdg", "optimizer.name is sdg (did you mean sgd?); a Keras optimizer is"),
        ("optimizer.name=multi_optimizer", "optimizer.name is multi_optimizer"),
        ("optimizer.momentun=0", "there is no key optimizer.momentun (did you mean momentum?)"),
        ("optimizer.momentum=x", "optimizer.momentum is x; it must be a number"),
        ("optimizer.clipnorm=x", "optimizer.clipnorm is x; it must be a number or a list or null"),
        ("optimizer.learning_rate=-1", "optimizer.learning_rate is -1; it must be at least 0"),
        ("optimizer.learning_rate=.nan", "optimizer.learning_rate is nan; it must be at least"),
        ("optimizer.learning_rate={a: 1}", "optimizer.learning_rate.schedule is missing"),
        (
            "optimizer.learning_rate={schedule: cosine}",
            "optimizer.learning_rate.schedule is cosine (did you mean cosine_decay?)",
        ),
        (
            "optimizer.learning_rate={schedule: cosine_decay, initial_learning_rate: 1}",
            "optimizer.learning_rate.decay_steps is missing; cosine_decay needs it",
        ),
        ("elastic.rho=1.5", "elastic.rho is 1.5; it must be a number, 0 to 1"),
        ("elastic.rho=-0.1", "elastic.rho is -0.1; it must be a number, 0 to 1"),
        ("elastic.roh=0.5", "there is no key elastic.roh (did you mean rho?)"),
        ("elastic.renew=200", "elastic.renew is 200; it must be "),
        ("elastic.renew=often", "elastic.renew is often; it must be as 200 steps, 2 epochs, or p"),
        ("elastic.renew=0 steps", "elastic.renew is 0 steps; it must be as 200 steps"),
        ("elastic.renew=-1 epochs", "elastic.renew is -1 epochs; it must be as 200 steps"),
        ("elastic.renew=2 hours", "elastic.renew is 2 hours; it must be as 200 steps"),
        ("elastic.renew=1.5 epochs", "elastic.renew is 1.5 epochs; it must be as 200 steps"),
        ("elastic.batches=0", "elastic.batches is 0; it must be a whole number, at least 1"),
        ("elastic.smoothing=1", "elastic.smoothing is 1; it must be a number, 0 to 0.99"),
        ("elastic.select=all", "elastic.select is all; it must be one of importance, full, head"),
        ("elastic.cache=0", "elastic.cache is 0; it must be a whole number, at least 1"),
        ("elastic=0.5", "elastic is 0.5; it must be"),
        ("loss=mean_square_error", "loss.name is mean_square_error (did you mean mean_squared"),
        ("loss={name: huber, delt: 1}", "there is no key loss.delt (did you mean delta?)"),
        ("metrics=[acuracy]", "metrics[0].name is acuracy (did you mean accuracy?)"),
        ("metrics=accuracy", "metrics is accuracy; it must be a list"),
        ("batch", "--set batch: it must be key=value"),
        ("=3", "--set =3: it must be key=value"),
        ("a..b=3", "--set a..b=3: it must be key=value"),
        ("batch=[1", "--set batch, line 1: this is not valid YAML"),
    ],
)
def test_mistakes(override: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        job.load(None, [override])
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- 1\n- 2", "a job file has lines as"),
        (b"batch: 64\nbatch: 32", "line 2: this is not valid YAML: key 'batch' is there twice"),
        (b"\xff\xfe\x00", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_unreadable_files(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "job.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=str(file)) as caught:
        job.load(file)
    assert message in str(caught.value)


def test_aliases_that_stand_for_too_much_end_at_once() -> None:
    """Nine lines of nine aliases each are a billion values; the job file is written out whole."""
    lines = ["  a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    text = "model:\n name: a.b:c\n arguments:\n" + "\n".join(lines)
    start = time.process_time()
    with pytest.raises(UserError, match="more than 1,000,000 values, or its aliases stand for"):
        job.loads(text)
    assert time.process_time() - start < 1


def test_aliases_may_be_used() -> None:
    config = job.loads("model: {name: a.b:c, arguments: {a: &x [1, 2], b: *x}}")
    assert config.model.arguments == {"a": [1, 2], "b": [1, 2]}


def test_overriding_inside_a_value_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("batch: 3")
    with pytest.raises(UserError, match=r"--set batch\.size=1: batch is 3, which has no keys"):
        job.load(file, ["batch.size=1"])


def test_most_mistakes_are_found_without_tensorflow() -> None:
    program = (
        "import sys\n"
        "from ooodist import errors\n"
        "from ooodist.config import job as config\n"
        "try: config.load(None, ['batch=0', 'model=mlp'])\n"
        "except errors.UserError: print('tensorflow' in sys.modules, 'keras' in sys.modules)"
    )
    start = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == "False False"
    assert time.monotonic() - start < 5  # about 0.3 s on an idle machine


def test_a_pipeline_is_read_alone_and_without_keras(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("model: no such\nparallel: {pipeline: 4, schedule: zb_h1}\ntimeout: 5\n")
    program = (
        "import pathlib, sys\n"
        "from ooodist.config import job as config\n"
        f"found = config.load_parallel(pathlib.Path({str(file)!r}), ['parallel.microbatches=8'])\n"
        "print(found, 'tensorflow' in sys.modules, 'keras' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    parallel = ParallelConfig(pipeline=4, microbatches=8, schedule="zb_h1")
    assert result.stdout.strip() == f"{(parallel, 5.0)} False False"


@few(20)
@given(
    st.builds(
        ParallelConfig,
        pipeline=st.integers(1, 64),
        data=st.integers(1, 8),
        microbatches=st.integers(1, 64),
        schedule=st.sampled_from(["auto", "1f1b", "zb_v", "mine.csv"]),
        split=st.none() | st.lists(st.text()).map(tuple),
        memory_bytes=st.none() | st.integers(1, 2**62),
    ),
    st.floats(1, 1e6),
)
def test_a_pipeline_is_that_of_the_whole_job(parallel: ParallelConfig, timeout: float) -> None:
    batch = 3 * parallel.microbatches
    whole = replace(job.load(None), parallel=parallel, timeout=timeout, batch=batch)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.yaml"
        file.write_text(job.to_yaml(whole), encoding="utf-8")
        assert job.load_parallel(file) == (parallel, timeout)


def test_the_default_stall_limit_of_a_pipeline() -> None:
    found = job.load_parallel(None, ["parallel.pipeline=2"])
    assert found == (ParallelConfig(pipeline=2), Config.timeout)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("batch=3", "parallel is missing; give the job a pipeline, as parallel: {pipeline: 4"),
        ("paralel.pipeline=3", "there is no key paralel (did you mean parallel?); the job has"),
        ("parallel.pipeline=0", "parallel.pipeline is 0; it must be a whole number, at least 1"),
        ("parallel=3", "parallel is 3; it must be"),
        ("parallel.schedule=zbh1", "parallel.schedule is zbh1 (did you mean zb_h1?)"),
        ("parallel={costs: a.yaml, split: [b]}", "parallel.costs is a.yaml, by which stages"),
        ("parallel.devices=0", "parallel.devices is 0; it must be a whole number, at least 1"),
        ("parallel={devices: 8, data: 2}", "parallel.data is given, but parallel.devices is 8"),
        ("parallel={devices: 8, pipeline: 4}", "parallel.pipeline is given, but parallel.devices"),
        ("parallel={devices: 8, split: [b]}", "parallel.split is given, but parallel.devices is"),
        ("parallel={devices: 8, schedule: a.csv}", "parallel.schedule is a.csv, which is for one"),
    ],
)
def test_mistakes_of_a_pipeline(override: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        job.load_parallel(None, [override])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("steps_per_launch", "steps_per_execution"),
        ("warmup", "warm_start"),
        ("stall_limit", "timeout"),
        ("planning.max_steps_per_launch", "planning.max_steps_per_execution"),
    ],
)
def test_a_key_that_was_renamed_is_answered_with_the_new_one(old: str, new: str) -> None:
    with pytest.raises(UserError, match=rf"^{old} is called {new} now$"):
        job.load(None, [f"{old}=1"])


def test_a_stall_limit_that_is_too_short() -> None:
    with pytest.raises(UserError, match=r"timeout is 0\.5; it must be a number, 1 to"):
        job.load_parallel(None, ["parallel.pipeline=2", "timeout=0.5"])


@pytest.mark.parametrize(
    ("given", "schedule", "elastic", "message"),
    [
        ({"share": 0.5}, "zb_h1", False, "planning.share is given, but parallel.schedule is zb_h1"),
        ({"trial": False}, "mine.csv", False, "planning.trial is given, but parallel.schedule is"),
        ({"share": 0.5}, "auto", True, "planning.share is given, but with elastic"),
        ({"profiles": "here"}, "auto", False, "planning.profiles is given, but a pipeline keeps"),
        ({"profile_anew": True}, "auto", False, "planning.profile_anew is given"),
        ({"memory_bytes": 9}, "auto", False, "a pipeline's ranks is parallel.memory_bytes"),
        ({"max_steps_per_execution": 2}, "auto", False, "a pipeline trains step by step"),
        ({"share": 0.5, "trial": False}, "auto", False, None),
        ({"trial": False}, "auto", True, None),
    ],
)
def test_what_planning_means_for_a_pipeline(
    given: dict[str, Any], schedule: str, elastic: bool, message: str | None
) -> None:
    planning = PlanningConfig(**given)
    if message is None:
        planning.check_for_pipelines(schedule, elastic=elastic)
        return
    with pytest.raises(UserError) as caught:
        planning.check_for_pipelines(schedule, elastic=elastic)
    assert message in str(caught.value)


def test_a_job_file_that_is_far_too_long(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("".join(f"key_{number}: {number}\n" for number in range(100_000)))
    began = time.monotonic()
    with pytest.raises(UserError, match=r"job.yaml has [\d,]+ characters; .* 200,000 at most"):
        job.load(file, [])
    assert time.monotonic() - began < 5  # not half a minute
