"""Whatever a text file has, it is read, or refused with one clear message."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import strategies as st

from expr.lab.shaping import parse_delay, parse_rate
from ooodist.config import job as job_file
from ooodist.errors import UserError
from ooodist.launcher.ssh.listed import read_hosts
from ooodist.plan.options import parse_memory
from ooodist.planner.cluster import parse_bandwidth, parse_latency
from ooodist.planner.data_parallel import plan as plans
from ooodist.planner.data_parallel.plan import Plan, PlannedExchange
from ooodist.planner.pipeline import actions
from ooodist.planner.pipeline.layer_costs import read_model_costs
from ooodist.planner.pipeline.named.schedules import one_forward_one_backward
from ooodist.profiler import folder as profiles
from ooodist.util import yaml_dataclass
from ooodist.zoo.service.tokens import read_tokens
from tests.fuzz.examples import fuzzed, scratch
from tests.fuzz.mutations import texts, yaml_texts
from tests.jobs import ROOT
from tests.profiler.test_storage import PROFILE

JOBS = [
    job_file.to_yaml(job_file.load(None, overrides))
    for overrides in (
        ["order={name: first_k, k: 2}", "warm_start.zoo=zoo", "checkpoint.copy_to=s3://a/b"],
        ["model={name: gpt, layers: 2}", "data=text", "parallel={pipeline: 2, microbatches: 4}"],
        ["elastic={rho: 0.5}", "metrics=[accuracy]", "early_stopping={patience: 3}"],
        ["on_nan=skip", "early_stopping={patience: 3}"],
        [
            "optimizer={name: adam, learning_rate: {schedule: cosine_decay, "
            "initial_learning_rate: 0.1, decay_steps: 9}}",
            "order={name: planned}",
            "exchange.wire=planned",
        ],
    )
]
PLAN = yaml_dataclass.dump(
    Plan(
        "planned",
        ("dX:b", "dW:b", "dW:a"),
        (
            PlannedExchange(("b",)),
            PlannedExchange(("a",), 0, 2),
            PlannedExchange(("a",), 1, 2, carried=True),
        ),
        credit=2,
        steps_per_execution=2,
    )
)
SCHEDULE = actions.to_csv(one_forward_one_backward(2, 4))
COSTS = (ROOT / "expr/pipe_par/costs/bert_12_halves.yaml").read_text()
TOKENS = yaml.safe_dump({"alice": "k7" * 20, "bob": "q9w" * 12, "admins": ["alice"]})
HOSTS = "a:2\n# two more\nuser@b.example slots=2\n10.0.0.7\n"


def holds(read: Callable[[], Any]) -> None:
    """It is read, or refused with a message."""
    with contextlib.suppress(UserError):
        read()


@fuzzed(st.one_of(texts(JOBS), yaml_texts(JOBS)))
def test_job_files(text: str) -> None:
    holds(lambda: job_file.loads(text))


KEYS = ["batch", "model.name", "parallel", "exchange.wire", "optimizer.learning_rate", "on_nan", ""]


@fuzzed(texts([f"{key}=3" for key in KEYS] + ["a.b.c.d=[1, {b: 2}]", "model={name: mlp}"]))
def test_overrides(text: str) -> None:
    holds(lambda: job_file.load(None, [text]))


@fuzzed(st.one_of(texts([PLAN]), yaml_texts([PLAN])))
def test_plans(text: str) -> None:
    holds(lambda: plans.from_yaml(text, "plan.yaml"))


@fuzzed(texts([SCHEDULE]))
def test_schedules(text: str) -> None:
    holds(lambda: actions.from_csv(text, "schedule.csv"))


@fuzzed(st.one_of(texts([COSTS]), yaml_texts([COSTS])))
def test_costs_of_pipelines(text: str) -> None:
    holds(lambda: in_file(text, read_model_costs))


PROFILE_TEXT = yaml_dataclass.dump(PROFILE)


@fuzzed(st.one_of(texts([PROFILE_TEXT]), yaml_texts([PROFILE_TEXT])))
def test_profiles(text: str) -> None:
    holds(lambda: profiles.from_yaml(text, "profile.yaml"))


@fuzzed(st.one_of(texts([TOKENS]), yaml_texts([TOKENS])))
def test_tokens(text: str) -> None:
    holds(lambda: in_file(text, read_tokens))


@fuzzed(texts([HOSTS]))
def test_hosts(text: str) -> None:
    holds(lambda: in_file(text, lambda file: read_hosts(str(file))))
    holds(lambda: read_hosts(text))


@pytest.mark.parametrize(
    "parse", [parse_rate, parse_delay, parse_memory, parse_bandwidth, parse_latency]
)
def test_quantities(parse: Callable[[str], Any]) -> None:
    @fuzzed(texts(["10Gbit", "20ms", "12GiB", "1.5e3", "30us", "0.1 Mbit"]))
    def read(text: str) -> None:
        holds(lambda: parse(text))

    read()


def test_a_rate_that_no_number_holds() -> None:
    """As fuzzing has found."""
    with pytest.raises(UserError, match="give a number with Kbit"):
        parse_rate("9" * 400 + "Mbit")


def in_file(text: str, read: Callable[[Path], Any]) -> Any:
    """Reads a file of this text, as far as it can be written."""
    file = scratch() / "file"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    file.chmod(0o600)
    return read(file)
