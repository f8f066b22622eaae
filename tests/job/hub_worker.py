"""Two workers that train a task of KerasHub; see test_keras_hub.py.

Usage: hub_worker.py all
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import ooodist

engine = ooodist.init()

import numpy as np  # noqa: E402

from tests.job import hub_tasks  # noqa: E402
from tests.workers import check, run  # noqa: E402

BATCH = 4


@check
def strings_with_a_preprocessor_are_shared_out() -> None:
    text, classes = hub_tasks.sentences()
    size = ooodist.size()
    model = ooodist.distribute(hub_tasks.bert_of_strings(), order="planned")
    found = model.fit(text, classes, batch_size=BATCH, epochs=2, verbose=0).history
    assert int(model.optimizer.iterations) == 2 * len(text) // (BATCH * size)
    evaluated = model.evaluate(text, classes, batch_size=BATCH, return_dict=True, verbose=0)
    engine.check_equal("the history and the metrics", f"{found} {evaluated}")
    if engine.rank:
        return
    alone = hub_tasks.bert_of_strings()
    alone.optimizer.build(alone.trainable_variables)  # else Keras traces its step twice
    expected = alone.fit(text, classes, batch_size=BATCH * size, epochs=2, verbose=0).history
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4)
    held = alone.evaluate(text, classes, return_dict=True, verbose=0)
    for name in held:
        np.testing.assert_allclose(evaluated[name], held[name], rtol=1e-4)


def trains_as_one_process(
    task: Callable[[], Any], data: tuple[Any, np.ndarray], **tolerances: float
) -> None:
    """With a plan; both workers have the same history."""
    model = ooodist.distribute(task(), order="planned")
    options: dict[str, Any] = {"epochs": 2, "shuffle": False, "verbose": 0}
    found = model.fit(*data, batch_size=BATCH, **options).history
    engine.check_equal("the history", str(found))
    model.ooodist.strategy.check_replicas()
    if engine.rank:
        return
    alone = task()
    alone.optimizer.build(alone.trainable_variables)  # else Keras traces its step twice
    expected = alone.fit(*data, batch_size=BATCH * ooodist.size(), **options).history
    hub_tasks.assert_alike(found, expected, **tolerances)


@check
def a_tied_embedding() -> None:
    trains_as_one_process(hub_tasks.gpt2, hub_tasks.tokens())


@check
def low_rank_weights() -> None:
    trains_as_one_process(hub_tasks.gemma_with_lora, hub_tasks.tokens())


@check
def weights_in_bfloat16() -> None:
    trains_as_one_process(hub_tasks.llama_in_bfloat16, hub_tasks.tokens(), rtol=1e-2, atol=1e-2)


@check
def experts_whose_loss_is_of_a_workers_batch() -> None:
    trains_as_one_process(hub_tasks.mixtral, hub_tasks.tokens(), rtol=1e-2, atol=1e-2)


@check
def an_encoder_and_a_decoder() -> None:
    trains_as_one_process(hub_tasks.t5, hub_tasks.pairs())


@check
def images() -> None:
    trains_as_one_process(hub_tasks.vit, hub_tasks.images())


if __name__ == "__main__":
    run(engine, sys.argv[1:])
