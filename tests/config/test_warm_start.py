"""The key ``warm_start`` of a job file."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ooodist
from ooodist.config import job
from ooodist.config.warm_start import WarmStartConfig
from ooodist.errors import UserError
from ooodist.util import yaml_dataclass

ZOO = "warm_start.zoo=zoo"
texts = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=20)
configs = st.builds(
    WarmStartConfig,
    zoo=texts,
    task=texts,
    dataset=texts,
    tags=st.lists(texts, max_size=3).map(tuple),
    least_score=st.floats(0, 1),
    probe_steps=st.integers(0, 1000),
    lower_rate=st.floats(0, 0.99),
    ramp_steps=st.integers(1, 10**6),
    required=st.booleans(),
    register=st.booleans(),
    token_file=st.none() | texts,
    certificate=st.none() | texts,
    timeout=st.floats(0.1, 1e6),
)


def test_without_the_key_a_job_starts_cold() -> None:
    assert job.load(None).warm_start is None


def test_the_example_of_the_readme(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("warm_start: {zoo: /data/zoo, task: classification, tags: [small, digits]}\n")
    found = job.load(file).warm_start
    assert found == WarmStartConfig("/data/zoo", "classification", tags=("small", "digits"))


def test_the_zoo_is_all_that_must_be_given() -> None:
    found = job.load(None, [ZOO]).warm_start
    assert found == WarmStartConfig("zoo")
    assert (found.required, found.register, found.probe_steps) == (False, True, 0)


@given(configs)
def test_any_config_survives_yaml(config: WarmStartConfig) -> None:
    whole = replace(job.load(None), warm_start=config)
    again = job.loads(job.to_yaml(whole))
    assert again.warm_start == config
    assert job.digest(again) == job.digest(whole)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("warm_start=zoo", "warm_start is zoo; it must be"),
        ("warm_start={}", "warm_start.zoo is missing; it must be text"),
        ("warm_start.zo=x", "there is no key warm_start.zo (did you mean zoo?)"),
        ("warm_start={zoo: 3}", "warm_start.zoo is 3; it must be text"),
        ("warm_start={zoo: z, tag: [a]}", "there is no key warm_start.tag (did you mean tags?)"),
        ("warm_start={zoo: z, tags: a}", "warm_start.tags is a; it must be a list"),
        ("warm_start={zoo: z, task: 3}", "warm_start.task is 3; it must be text"),
        (
            "warm_start={zoo: z, least_score: 1.1}",
            "warm_start.least_score is 1.1; it must be a number",
        ),
        ("warm_start={zoo: z, least_score: .nan}", "warm_start.least_score is .nan; it must be"),
        (
            "warm_start={zoo: z, probe_steps: -1}",
            "warm_start.probe_steps is -1; it must be a whole number",
        ),
        (
            "warm_start={zoo: z, lower_rate: 1}",
            "warm_start.lower_rate is 1; it must be a number, 0 to 0.99",
        ),
        (
            "warm_start={zoo: z, ramp_steps: 0}",
            "warm_start.ramp_steps is 0; it must be a whole number",
        ),
        ("warm_start={zoo: z, required: maybe}", "warm_start.required is maybe"),
        (
            "warm_start={zoo: z, timeout: 0}",
            "warm_start.timeout is 0; it must be a number, at least 0.1",
        ),
        ("warm_start={zoo: z, pickle: true}", "there is no key warm_start.pickle"),
    ],
)
def test_mistakes(override: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        job.load(None, [override])
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_weights_from_a_file_would_be_replaced() -> None:
    with pytest.raises(UserError) as caught:
        job.load(None, ["model.weights=old.keras", ZOO])
    assert str(caught.value) == (
        "model.weights is old.keras and warm_start.zoo is zoo, which would replace them; leave one "
        "of them out"
    )
    assert job.load(None, ["model.weights=old.keras"]).warm_start is None


def test_a_model_function_has_no_weights_to_replace() -> None:
    """The name is looked up in no more than the job file."""
    found = job.load(None, ["model=tests.wrong_jobs:fails_on_rank_1", ZOO])
    assert found.warm_start == WarmStartConfig("zoo")


@pytest.mark.parametrize("epochs", [0, 1, 5])
def test_epochs_of_what_was_not_copied(epochs: int) -> None:
    override = f"elastic={{rho: 0.5, not_copied_epochs: {epochs}}}"
    elastic = job.load(None, [override]).elastic
    assert elastic is not None
    assert elastic.not_copied_epochs == epochs


def test_epochs_cannot_be_less_than_none() -> None:
    with pytest.raises(UserError, match=r"elastic\.not_copied_epochs is -1; it must be a whole"):
        job.load(None, ["elastic={rho: 0.5, not_copied_epochs: -1}"])


def test_all_keys_are_explained() -> None:
    """In the docstring, which is what people read of a key."""
    for field in fields(WarmStartConfig):
        assert f"``{field.name}``" in (WarmStartConfig.__doc__ or ""), field.name


def test_the_function_takes_the_same_settings() -> None:
    given: dict[str, Any] = {"zoo": "zoo", "tags": ["a"], "probe_steps": 3, "required": True}
    from_file = job.load(None, ["warm_start={zoo: zoo, tags: [a], probe_steps: 3, required: true}"])
    assert (
        yaml_dataclass.read_dataclass(WarmStartConfig, given, "warm_start") == from_file.warm_start
    )


def test_it_is_read_without_tensorflow_and_grpc() -> None:
    program = (
        "import sys\n"
        "from ooodist import errors\n"
        "from ooodist.config import job as config\n"
        "try: config.load(None, ['batch=0', 'warm_start.zoo=zoo'])\n"
        "except errors.UserError: pass\n"
        "print([name in sys.modules for name in ('tensorflow', 'keras', 'grpc')])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == "[False, False, False]"


def test_the_name_is_in_the_package() -> None:
    assert callable(ooodist.warm_start)
    assert "warm_start" in ooodist.__all__
