"""Two ranks that train tasks of KerasHub in two stages; see test_keras_hub.py.

Usage: mpirun -np 2 python hub_pipeline_worker.py all
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import ooodist

engine = ooodist.init("mpi")

import keras  # noqa: E402
import numpy as np  # noqa: E402

from tests.job import hub_tasks  # noqa: E402
from tests.workers import check, run  # noqa: E402

BATCH, MICROBATCHES = 8, 2


def trains_as_one_process(
    task: Callable[[], Any],
    data: tuple[Any, np.ndarray],
    microbatches: int = 1,
    **tolerances: float,
) -> None:
    """Rank 0 knows what one process computes, by as many micro-batches for each update."""
    model = ooodist.pipelined(task, pipeline=2, microbatches=MICROBATCHES, schedule="1f1b")
    options: dict[str, Any] = {"epochs": 2, "shuffle": False, "verbose": 0}
    found = model.fit(*data, batch_size=BATCH, **options).history
    if engine.rank:
        return
    alone = task()
    if microbatches > 1:
        rate = float(alone.optimizer.learning_rate)
        summed = keras.optimizers.SGD(rate, gradient_accumulation_steps=microbatches)
        alone.compile(summed, alone.loss, metrics=["accuracy"], jit_compile=False)
    expected = alone.fit(*data, batch_size=BATCH // microbatches, **options).history
    # KerasHub adds a metric, which it makes with a model of language.
    assert len(found) > 2 or task is hub_tasks.vit
    hub_tasks.assert_alike(found, expected, **tolerances)


@check
def an_embedding_that_both_stages_have() -> None:
    trains_as_one_process(hub_tasks.gpt2, hub_tasks.tokens())


@check
def a_frozen_embedding_that_both_stages_have() -> None:
    trains_as_one_process(hub_tasks.gemma_with_lora, hub_tasks.tokens())


@check
def experts_whose_loss_is_of_a_micro_batch() -> None:
    trains_as_one_process(hub_tasks.mixtral, hub_tasks.tokens(), MICROBATCHES)


@check
def weights_in_bfloat16() -> None:
    trains_as_one_process(hub_tasks.llama_in_bfloat16, hub_tasks.tokens(), rtol=1e-2, atol=1e-2)


@check
def an_encoder_and_a_decoder() -> None:
    trains_as_one_process(hub_tasks.t5, hub_tasks.pairs())


@check
def images() -> None:
    trains_as_one_process(hub_tasks.vit, hub_tasks.images())


if __name__ == "__main__":
    run(engine, sys.argv[1:])
