"""The notebooks of examples/ run from their first to their last cell."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import ROOT

nbclient = pytest.importorskip("nbclient", reason="pip install nbclient ipykernel")


def executed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Runs a notebook in a folder; returns all outputs of its cells. A cell that fails raises."""
    import nbformat

    monkeypatch.setenv("HOME", str(folder))
    notebook = nbformat.read(ROOT / "examples" / name, as_version=4)
    nbformat.validate(notebook)
    client = nbclient.NotebookClient(
        notebook, timeout=200, resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def test_a_notebook_trains_and_starts_two_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = executed("training.ipynb", tmp_path, monkeypatch)
    printed = "".join(output.get("text", "") for output in outputs)
    assert "rank 0 of 2" in printed
    assert "accuracy" in outputs[-1]["data"]["text/plain"]  # of the model that they have saved


def test_a_notebook_draws_schedules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / "examples/costs.yaml", tmp_path)
    outputs = executed("plans.ipynb", tmp_path, monkeypatch)
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda p: p.name)
def test_notebooks_are_kept_without_outputs(path: Path) -> None:
    import nbformat

    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
