"""How many files and functions of ooodist one flow goes through, and how deep.

    python launch/local.py -np 2 --engine collective -- python expr/flows/count.py gradient
    mpirun -np 2 python expr/flows/count.py action
    python launch/local.py -np 2 --engine collective -- python expr/flows/count.py selection
    python expr/flows/count.py start

Rank 0 prints what Python's profiler saw in its main thread: calls into files of ooodist, in one
call of the function in which the flow begins (FLOWS). Keras's and TensorFlow's frames do not count.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import keras
import numpy as np

import ooodist

ROOT = str(Path(ooodist.__file__).parent)


class Counter:
    """Counts what runs while it is watching.

    Attributes:
        functions: (file, name) of each function of ooodist that was entered.
        deepest: the most frames of ooodist that were on the stack at a time.
    """

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()
        self.deepest = 0
        self._depth = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, watched in its first call."""

        def watched(*args: Any, **named: Any) -> Any:
            if self.functions:
                return function(*args, **named)
            sys.setprofile(self._event)
            try:
                return function(*args, **named)
            finally:
                sys.setprofile(None)

        return watched

    def _event(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(ROOT):
            return
        if event == "call":
            self._depth += 1
            self.functions.add((code.co_filename, code.co_qualname))
            self.deepest = max(self.deepest, self._depth)
        elif event == "return":
            self._depth -= 1


def _model(width: int = 8) -> keras.Model:
    keras.utils.set_random_seed(1)
    numbers = keras.Input((4,))
    hidden = keras.layers.Dense(width, activation="relu")(numbers)
    hidden = keras.layers.Dense(width, activation="relu")(hidden)
    model = keras.Model(numbers, keras.layers.Dense(2)(hidden))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _fit(model: keras.Model) -> None:
    x = np.random.default_rng(0).standard_normal((64, 4)).astype("float32")
    model.fit(x, np.arange(64) % 2, batch_size=8, epochs=1, verbose=0)


def gradient(counter: Counter) -> None:
    """A step of data parallel training is traced, its gradients ordered and exchanged."""
    from ooodist.training.launch import Launch

    ooodist.init()
    Launch.__call__ = counter.around(Launch.__call__)
    _fit(ooodist.distribute(_model(), order="first_k", k=1))


def action(counter: Counter) -> None:
    """A step of a pipeline, whose stages are cut already."""
    from ooodist.pipeline.assembly import Assembly

    ooodist.init("mpi")
    Assembly.step = counter.around(Assembly.step)
    _fit(ooodist.pipelined(_model(), pipeline=2, microbatches=2, schedule="1f1b"))


def selection(counter: Counter) -> None:
    """Elastic training selects for the first time."""
    from ooodist.elastic.controller import Controller

    ooodist.init()
    Controller.renew = counter.around(Controller.renew)
    _fit(ooodist.distribute(_model(), elastic={"rho": 0.9}))


def start(counter: Counter) -> None:
    """A model starts from a narrower one of a zoo."""
    from ooodist.warmup.entry import Meta
    from ooodist.warmup.zoo import Zoo

    with tempfile.TemporaryDirectory() as folder:
        with Zoo(folder) as zoo:
            zoo.add_model(_model(), Meta(task="classification", accuracy=0.9))
        counter.around(ooodist.warm_start)(_model(12), folder, task="classification")


FLOWS = {each.__name__: each for each in (gradient, action, selection, start)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("flow", choices=FLOWS)
    flow = parser.parse_args().flow
    counter = Counter()
    FLOWS[flow](counter)
    if ooodist.engines.in_use() is None or ooodist.rank() == 0:
        files = {file for file, _ in counter.functions}
        print(
            f"| {flow} | {len(files)} | {len(counter.functions)} | {counter.deepest} |", flush=True
        )
    ooodist.shutdown()


if __name__ == "__main__":
    main()
