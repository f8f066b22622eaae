"""One worker of the jobs in test_distributed.py: elastic training, on all ranks together.

Usage: worker.py NAME...   (names of functions below)
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ooodist

engine = ooodist.init(planned=True)

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from ooodist.elastic import data_parallel  # noqa: E402
from ooodist.elastic.auto import rounds  # noqa: E402
from ooodist.elastic.controller import Mask  # noqa: E402
from ooodist.elastic.data_parallel import SelectiveDataParallel  # noqa: E402
from ooodist.elastic.importance import Measured, Probe  # noqa: E402
from ooodist.elastic.optimizer_state import OptimizerState  # noqa: E402
from ooodist.engines.local import LocalEngine  # noqa: E402
from ooodist.planner.costs import Network  # noqa: E402
from ooodist.planner.data_parallel.plan import (  # noqa: E402
    PlannedExchange,
    PlanWithCosts,
    with_carried,
)
from ooodist.profiler import storage  # noqa: E402
from ooodist.settings.sections import PlanningConfig  # noqa: E402
from ooodist.step.backward import OrderedBackward  # noqa: E402
from ooodist.step.carried import CarriedGradients, CarriedUpdates, Carrying  # noqa: E402
from ooodist.step.exchange import GradientExchange  # noqa: E402
from ooodist.step.execution import Execution  # noqa: E402
from tests.elastic.decisions import CHANGING, Notes, decided  # noqa: E402
from tests.workers import check, images, run  # noqa: E402

# Measuring takes a minute on two cores. With a network as slow as this one any rho is feasible,
# however fast the machine is.
slow = Network(
    engine.name,
    engine.size,
    latency=1e-4,
    seconds_per_byte=1e-6,
    by_urgency=engine.name == "byteps",
)
storage.measure_network = lambda *_: slow
storage.still_holds = lambda *_: True
SelectiveDataParallel._calibrated = lambda _, cost_model, __: (
    cost_model
)  # the true network would be seen

layers = keras.layers
rank, size = engine.rank, engine.size
BATCH, STEPS = 4, 16
ELASTIC = {"rho": 0.8, "renew": "4 steps", "batches": 2, "keep": 0.0}
PROFILES = tempfile.TemporaryDirectory()
PLANNING = PlanningConfig(profiles=PROFILES.name, max_steps_per_execution=2)


def momentum() -> Any:
    return keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.5)


def adamax() -> Any:
    schedule = keras.optimizers.schedules.CosineDecay(1e-3, 40)
    return keras.optimizers.Adamax(schedule, weight_decay=0.01, clipnorm=1.0)


def small_and_wide() -> keras.Model:
    """Residual, and layers whose gradients are large.

    The batch norm is frozen, as statistics are each rank's own.
    """
    image = keras.Input((8, 8, 3))
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(image)
    norm = layers.BatchNormalization()
    norm.trainable = False
    y = layers.Conv2D(8, 3, padding="same")(norm(x))
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(layers.Add()([x, y])))
    for _ in range(3):
        x = layers.Dense(64, activation="relu")(x)
    return keras.Model(image, layers.Dense(2)(x))


def compiled(make: Callable[[], keras.Model], seed: int, optimizer: Any) -> keras.Model:
    keras.backend.clear_session()  # so that every model has the same names
    keras.utils.set_random_seed(seed)
    made = make()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(optimizer, loss, jit_compile=False)
    return made


def values(made: keras.Model) -> dict[str, np.ndarray]:
    """Of the weights, and of what the optimizer keeps for each."""
    return {v.path: v.numpy() for v in (*made.trainable_variables, *made.optimizer.variables)}


def assert_close(
    ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray], relative: float = 1e-6
) -> None:
    """Over all together, in the Euclidean norm."""
    assert ours.keys() == theirs.keys()
    far = np.sqrt(sum(float(np.sum((ours[name] - theirs[name]) ** 2.0)) for name in ours))
    scale = np.sqrt(sum(float(np.sum(value**2.0)) for value in theirs.values()))
    assert far <= relative * scale, f"relative difference {far / scale:.2e} > {relative:.0e}"


class Exchanges(Notes):
    """Checks that of each step only what is selected is computed and exchanged.

    Attributes:
        most: exchanges of one step.
    """

    most = 0

    def check(self, mask: Mask) -> None:
        engine.check_equal("the selection", f"{mask.version} {mask.digest}")
        step = self.model.ooodist.strategy.inner.backward.steps[-1]
        self.most = max(self.most, len(step.exchanges))
        exchanged = [name for exchange in step.exchanges for name in exchange.weights]
        assert set(exchanged) == mask.weights
        assert {name for unit in step.backward for name in unit.variables} == mask.weights


def train(
    make: Callable[[], keras.Model], optimizer: Any, **options: Any
) -> tuple[keras.Model, list[Mask]]:
    """All steps on all ranks, with other weights on each before; and the selections."""
    accumulate = options.get("accumulate", 1)
    x, y = images(STEPS * BATCH * size * accumulate)
    made = compiled(make, 100 + rank, optimizer)
    ooodist.distribute(made, planning=PLANNING, **options)
    notes = Exchanges()
    before = len(engine.exchanges())
    made.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[notes])
    others = ("ooodist.", "profile.", "logs.")
    names = [name for name in engine.exchanges()[before:] if not name.startswith(others)]
    if engine.name == "byteps":  # each costs memory of its servers
        assert len(names) <= notes.most, f"{names} for {notes.most} exchanges at most"
    engine.check_equal("weights", b"".join(value.tobytes() for value in values(made).values()))
    assert len(notes.masks) == int(made.optimizer.iterations) == STEPS
    state = made.ooodist.strategy.selection()
    for renewal in state["renewals"]:
        del renewal["seconds"]
    engine.check_equal("what is selected, and why", str(state))
    return made, notes.masks


def replayed(
    make: Callable[[], keras.Model], optimizer: Any, masks: list[Mask], batch: int
) -> tuple[keras.Model, OptimizerState]:
    """The same selections in this process alone, on the batches of all ranks."""
    x, y = images(len(masks) * batch)
    alone = compiled(make, 100, optimizer)
    alone.optimizer.build(alone.trainable_variables)
    optimizer_state = OptimizerState(alone)
    launches: dict[str, Execution] = {}
    for step, mask in enumerate(masks):
        if step:
            optimizer_state.reset(masks[step - 1].weights - mask.weights)
        if mask.digest not in launches:
            exchange = GradientExchange(LocalEngine())
            backward = OrderedBackward(exchange, selected=mask.weights)
            launches[mask.digest] = Execution(alone, backward, updating=optimizer_state.counting)
        those = slice(step * batch, (step + 1) * batch)
        launches[mask.digest]([(tf.constant(x[those]), tf.constant(y[those]))])
    return alone, optimizer_state


def trains_as_one_process(optimizer: Callable[[], Any], **options: Any) -> keras.Model:
    with decided(CHANGING):
        made, masks = train(small_and_wide, optimizer(), **options)
    assert len({mask.digest for mask in masks}) == len(CHANGING) - 1
    if rank == 0:  # all have the same weights
        batch = BATCH * size * options.get("accumulate", 1)
        alone, optimizer_state = replayed(small_and_wide, optimizer(), masks, batch)
        assert_close(values(made), values(alone))
        assert made.ooodist.strategy.selection()["counts"] == optimizer_state.state()
    return made


@check
def equals_one_process() -> None:
    """Tensors are dropped and come back, and a launch is traced again that was forgotten."""
    trains_as_one_process(momentum, elastic={**ELASTIC, "cache": 2}, steps_per_execution=2)


@check
def selections_travel_in_16_bits() -> None:
    """What a tensor has lost is added when it is selected again."""
    with decided(CHANGING):
        made, masks = train(small_and_wide, momentum(), elastic=ELASTIC, wire="float16")
    backward = made.ooodist.strategy.inner.backward
    shapes = {weight.path: weight.shape for weight in made.trainable_variables}
    num_bytes = {name: 2 * math.prod(shape) for name, shape in shapes.items()}
    for exchange in backward.steps[-1].exchanges:
        assert exchange.num_bytes == sum(num_bytes[name] for name in exchange.weights)
    kept = made.ooodist.strategy.inner.rank_state.values("residual")
    assert kept.keys() == set.union(*(set(mask.weights) for mask in masks))
    if rank == 0:
        alone, _ = replayed(small_and_wide, momentum(), masks, BATCH * size)
        assert_close(values(made), values(alone), relative=1e-3)
        with pytest.raises(AssertionError, match="relative difference"):
            assert_close(values(made), values(alone))  # it was rounded


@check
def planned_selections_carry_exchanges() -> None:
    """The numbers are those of whole calls, and theirs are those of one process.

    A new selection takes over when nothing is left.
    """
    options = {"elastic": ELASTIC, "order": "planned", "accumulate": 2}
    whole = trains_as_one_process(adamax, **options)
    left: list[int] = []
    plain_plan, plain_keep = data_parallel.planned_for, Carrying.keep

    def carrying(*arguments: Any) -> PlanWithCosts:
        planned = plain_plan(*arguments)
        # Each by itself: what measured costs join may be all.
        names = dict.fromkeys(name for each in planned.plan.exchanges for name in each.weights)
        exchanges = tuple(PlannedExchange((name,)) for name in names)
        plan = replace(planned.plan, exchanges=exchanges, steps_per_execution=1)
        return replace(planned, plan=with_carried(plan, tuple(names)[1:]))

    def keep(self: Carrying, updates: CarriedUpdates, what: CarriedGradients) -> None:
        left.append(len(updates.names))
        plain_keep(self, updates, what)

    data_parallel.planned_for, Carrying.keep = carrying, keep
    Exchanges.ooodist_reads_no_weights = True
    try:
        with decided(CHANGING):
            carried, masks = train(small_and_wide, adamax(), **options)
    finally:
        data_parallel.planned_for, Carrying.keep = plain_plan, plain_keep
        del Exchanges.ooodist_reads_no_weights
    assert len(left) == STEPS
    assert len(set(left)) > 1  # selections leave more or less
    assert len({mask.digest for mask in masks}) == len(CHANGING) - 1
    for name, value in values(whole).items():
        np.testing.assert_array_equal(values(carried)[name], value, name)
    counts = [made.ooodist.strategy.selection()["counts"] for made in (whole, carried)]
    assert counts[0] == counts[1]


@check
def selects_alike_though_data_differ() -> None:
    """What each rank measures differs, what is selected by it does not."""
    found: list[Measured] = []
    plain = Probe.__call__

    def noted(probe: Probe, batches: Any) -> Measured:
        found.append(plain(probe, batches))
        return found[-1]

    Probe.__call__ = noted
    try:
        made, masks = train(small_and_wide, momentum(), elastic=ELASTIC)
    finally:
        Probe.__call__ = plain
    assert len(found) == STEPS // 4 == masks[-1].version
    for measured in found:
        own = np.array([change for _, change in sorted(measured.loss_change.items())])
        highest, lowest = engine.all_reduce(own, "max"), engine.all_reduce(own, "min")
        assert (highest > lowest).any()
    choice = made.ooodist.strategy.controller.cost_model.choice
    for renewal in made.ooodist.strategy.controller.renewals:
        assert set(choice.head) <= set(renewal.selected)
        assert renewal.predicted <= 0.8 * made.ooodist.strategy.controller.full_seconds * (1 + 1e-6)


@check
def rho_auto_begins_without_elastic_and_all_measure_before_the_same_step() -> None:
    """Though one rank is slower. No bit differs from a training in full."""
    x, y = images(20 * BATCH * size)
    fit: dict[str, Any] = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    found = []
    for elastic in (None, {**ELASTIC, "rho": "auto"}):
        made = compiled(small_and_wide, 100 + rank, momentum())
        ooodist.distribute(made, planning=PLANNING, elastic=elastic)
        slow = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda *_, **__: time.sleep(0.02 * rank)
        )
        least, rounds.MOST_LOST = rounds.MOST_LOST, 1e6
        try:
            made.fit(x, y, callbacks=[slow], **fit)
        finally:
            rounds.MOST_LOST = least
        found.append(values(made))
    for name, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][name])
    state = made.ooodist.strategy.selection()
    assert state["steps"][0] == 20
    engine.check_equal("what rounds have found", str(state["auto"]))


@check
def what_goes_wrong_on_one_rank_while_it_selects_ends_all() -> None:
    """Before anything is traced, so before anything is exchanged; and all go on together."""
    broadcast_text = engine.broadcast_text

    def fails(_: Any) -> Any:
        raise ValueError("no luck")

    def changed(text: str, root: int = 0) -> str:
        received = broadcast_text(text, root)
        if rank == size - 1 and received.startswith('{"weights"'):
            decision = json.loads(received)
            return json.dumps({**decision, "weights": decision["weights"][1:]})
        return received

    x, y = images(STEPS * BATCH * size)
    made = compiled(small_and_wide, 100, momentum())
    ooodist.distribute(made, planning=PLANNING, elastic=ELASTIC)
    with decided([fails]), pytest.raises(ooodist.UserError, match="rank 0: ValueError: no luck"):
        made.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    engine.broadcast_text = changed
    try:
        with pytest.raises(ooodist.UserError) as caught:
            made.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    finally:
        del engine.broadcast_text
    wrong = rf"the selection of tensors differs between ranks: ranks \[{size - 1}\]"
    assert caught.match(wrong)
    assert made.ooodist.strategy.inner.backward.steps == []
    assert int(made.optimizer.iterations) == 0
    engine.check_equal("the message", str(caught.value))


@check
def what_cannot_be_is_refused_on_all_ranks() -> None:
    x, y = images(BATCH * size)
    for elastic, message in (
        ({"rho": 0.01}, "elastic.rho is 0.01, but .* the smallest feasible rho is 0"),
        ({"rho": 0.9, "always": ["dens"]}, r"elastic.always names dens \(did you mean dense"),
    ):
        made = compiled(small_and_wide, 100, momentum())
        ooodist.distribute(made, planning=PLANNING, elastic=elastic)
        with pytest.raises(ooodist.UserError, match=message) as caught:
            made.fit(x, y, batch_size=BATCH, verbose=0)
        engine.check_equal("the message", str(caught.value))
        assert int(made.optimizer.iterations) == 0


if __name__ == "__main__":
    run(engine, sys.argv[1:])
