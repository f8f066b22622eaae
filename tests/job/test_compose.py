"""Job files and scripts become the same: a Training, and by it a strategy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import keras
import pytest

import ooodist
from ooodist import engines
from ooodist.config import job as job_file
from ooodist.data_parallel.compiled_strategy import CompiledDataParallel
from ooodist.data_parallel.data_parallel_strategy import DataParallel
from ooodist.job.building import load_and_build

MODEL = "model={name: mlp, layers: [4]}"


@pytest.mark.parametrize(
    ("keys", "keywords", "kind"),
    [
        ([], {}, CompiledDataParallel),
        (
            ["order={name: first_k, k: 1}", "accumulate=2", "exchange={credit: 2, wire: float16}"],
            {"order": "first_k", "k": 1, "accumulate": 2, "credit": 2, "wire": "float16"},
            DataParallel,
        ),
        (
            ["on_nan=skip", "steps_per_execution=2"],
            {"on_nan": "skip", "steps_per_execution": 2},
            None,
        ),
        (["elastic.rho=0.5"], {"elastic": {"rho": 0.5}}, None),
    ],
)
def test_a_job_and_a_script_train_alike(
    keys: list[str], keywords: dict[str, Any], kind: type | None
) -> None:
    engine = engines.init("local")
    config = job_file.load(None, [MODEL, "timeout=90", *keys])
    _, _, of_job = load_and_build(config, engine)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    # What a job has, and a script has to ask for.
    of_script = ooodist.distribute(model, **keywords, sum_rows=True, jit_compile=False)
    ours, theirs = (each.ooodist.strategy for each in (of_job, of_script))
    assert ours.training.timeout == 90  # only pipelines have such a keyword
    assert replace(ours.training, timeout=None) == theirs.training
    assert type(ours) is type(theirs)
    assert kind is None or type(ours.inner) is kind
