"""The reference of job files has every key, with its meaning."""

from __future__ import annotations

import dataclasses
import importlib.util
from types import SimpleNamespace

import pytest

from ooodist.config.job import Config
from ooodist.settings import sections
from tests.jobs import ROOT

SPEC = importlib.util.spec_from_file_location(
    "job_file_reference", ROOT / "docs/job_file_reference.py"
)
assert SPEC
assert SPEC.loader
reference = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reference)


def rows(cls: type) -> dict[str, list[str]]:
    """The cells of each key's row."""
    lines = reference.section("Title", cls, "##").splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
    return {first.strip("`"): others for first, *others in cells}


@pytest.mark.parametrize("group", sorted(set(reference.GROUPS) - {"early_stopping"}))
def test_each_key_has_what_it_takes_its_default_and_its_meaning(group: str) -> None:
    cls = reference.GROUPS[group]
    found = rows(cls)
    assert list(found) == [field.name for field in dataclasses.fields(cls)]
    for key, cells in found.items():
        assert len(cells) == 3, f"{group}.{key} has no meaning in the docstring of {cls}"


def test_all_groups_of_the_job_are_there() -> None:
    groups = {
        field.name
        for field in dataclasses.fields(Config)
        if any(name in str(field.type) for name in vars(sections) if name.endswith("Config"))
        or "ElasticConfig" in str(field.type)
        or "WarmStartConfig" in str(field.type)
    }
    assert {"", *groups} == set(reference.GROUPS)


def test_rows_say_what_the_dataclass_says() -> None:
    assert rows(sections.CheckpointConfig)["keep"] == [
        "a whole number, at least 1",
        "`3`",
        "how many of the newest to keep",
    ]
    assert rows(Config)["warm_start"][1] == "`null`"
    assert rows(Config)["data"][1] == "`{name: digits}`"


def test_only_the_page_of_job_files_gets_it() -> None:
    other = SimpleNamespace(file=SimpleNamespace(src_uri="README.md"))
    assert reference.on_page_markdown("text", page=other) == "text"
    page = SimpleNamespace(file=SimpleNamespace(src_uri=reference.PAGE))
    with pytest.raises(AssertionError, match="lacks <!-- reference -->"):
        reference.on_page_markdown("text", page=page)
    assert reference.MARK in (ROOT / reference.PAGE).read_text("utf-8")
