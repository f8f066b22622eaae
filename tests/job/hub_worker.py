"""Two workers that train a task of KerasHub; see test_keras_hub.py.

Usage: hub_worker.py all
"""

from __future__ import annotations

import sys

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


if __name__ == "__main__":
    run(engine, sys.argv[1:])
