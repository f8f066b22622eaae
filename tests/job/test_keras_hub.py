"""KerasHub's tasks, tiny ones, train here as with Keras."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooodist
from tests.job import hub_tasks
from tests.jobs import run_job
from tests.pipeline.jobs import run_python

# Not in the extra dev: pip would put tensorflow beside tensorflow-cpu, for tensorflow-text.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("keras_hub") is None,
    reason="keras_hub is not installed: pip install --no-deps keras-hub regex tensorflow-text",
)
needs_text = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_text") is None,
    reason="tensorflow_text is not installed: pip install --no-deps tensorflow-text",
)


@pytest.mark.parametrize(
    ("task", "data"),
    [
        (hub_tasks.gpt2, hub_tasks.tokens),
        (hub_tasks.gemma_with_lora, hub_tasks.tokens),
        (hub_tasks.llama_in_bfloat16, hub_tasks.tokens),
        (hub_tasks.mixtral, hub_tasks.tokens),
        (hub_tasks.t5, hub_tasks.pairs),
        (hub_tasks.vit, hub_tasks.images),
    ],
)
def test_a_task_trains_as_with_keras(task: Callable[[], Any], data: Callable[[], Any]) -> None:
    ooodist.init("local")
    x, y = data()
    alone, ours = task(), ooodist.distribute(task())
    alone.optimizer.build(alone.trainable_variables)  # else Keras traces its step twice
    options: dict[str, Any] = {"batch_size": 8, "epochs": 2, "class_weight": None, "verbose": 0}
    expected, found = alone.fit(x, y, **options), ours.fit(x, y, **options)
    for name in expected.history:
        np.testing.assert_allclose(found.history[name], expected.history[name], rtol=1e-5)
    assert int(ours.optimizer.iterations) == int(alone.optimizer.iterations) == 8


@needs_text
def test_two_workers_train_with_a_plan() -> None:
    worker = Path(__file__).with_name("hub_worker.py")
    job = run_job("collective", 2, worker, "all", seconds=300)
    assert job.returncode == 0, job.stdout[-6000:]
    assert len(re.findall(r"passed \w+ \(", job.stdout)) == worker.read_text().count("@check\n")


def test_two_ranks_train_in_stages() -> None:
    worker = Path(__file__).with_name("hub_pipeline_worker.py")
    job = run_python(2, worker, "all", seconds=300)
    assert job.returncode == 0, job.stdout[-6000:]
    assert len(re.findall(r"passed \w+ \(", job.stdout)) == worker.read_text().count("@check\n")
