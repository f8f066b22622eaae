"""One worker of the jobs in test_planned.py: plans carried out, on all ranks together.

Usage: plan_worker.py NAME...   (names of functions below)
"""

from __future__ import annotations

import functools
import itertools
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ooodist

engine = ooodist.init(planned=True)

import keras  # noqa: E402

from ooodist import engines  # noqa: E402
from ooodist.data_parallel import data_parallel_strategy  # noqa: E402
from ooodist.graph.ops import ancestors, producers  # noqa: E402
from ooodist.planner.data_parallel import plan as plans  # noqa: E402
from ooodist.planner.data_parallel.plan import Plan, carried_exchanges  # noqa: E402
from ooodist.profiler import network as measuring  # noqa: E402
from ooodist.settings.sections import PlanningConfig  # noqa: E402
from ooodist.step.backward import TracedStep  # noqa: E402
from ooodist.trainer import trial  # noqa: E402
from tests.job import random_plans  # noqa: E402

layers = keras.layers
BATCH = 4
# This is about what becomes of plans, not about good ones.
measuring.REPEATS = 1
measuring.RUN_SECONDS = measuring.COMPUTE_SECONDS = measuring.BESIDE_SECONDS = 0.02
measuring.MOST_BYTES, measuring.MOST_AT_A_TIME, measuring.TINY_AT_A_TIME = 1 << 16, 2, 2
measuring.CHECK_TOLERANCE = 1e9  # or a busy machine would have the network measured for each plan
limits_of = data_parallel_strategy.limits_of
data_parallel_strategy.limits_of = lambda *given, **named: replace(
    limits_of(*given, **named), evaluations=200
)
PROFILES = tempfile.mkdtemp()  # removed with the job


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(3)
    x = numbers.normal(size=(count, 8, 8, 3)).astype(np.float32)
    return x, (x.mean(axis=(1, 2)) @ np.ones((3,)) > 0).astype(np.int32)


def model() -> keras.Model:
    keras.backend.clear_session()  # so that every model has the same names
    keras.utils.set_random_seed(100)
    image = keras.Input((8, 8, 3))
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(image)
    y = layers.Conv2D(8, 3, padding="same")(layers.BatchNormalization()(x))
    x = layers.Flatten()(layers.ReLU()(layers.Add()([x, y])))
    x = layers.Dropout(0.2, seed=4)(layers.Dense(16, activation="relu")(x))
    made = keras.Model(image, layers.Dense(2)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"], jit_compile=False)
    return made


def trained(made: keras.Model) -> list[np.ndarray]:
    """The state after 7 steps of a distributed model."""
    x, y = images(7 * BATCH * engine.size)
    made.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    assert int(made.optimizer.iterations) == 7
    weights = b"".join(v.numpy().tobytes() for v in made.trainable_variables)
    engine.check_equal("weights", weights)
    return [v.numpy() for v in (*made.trainable_variables, *made.optimizer.variables)]


@functools.cache
def baseline() -> tuple[list[np.ndarray], TracedStep, dict[str, int]]:
    """Without a plan: the state after training, the step, and the sizes of all weights."""
    made = ooodist.distribute(model())
    state = trained(made)
    sizes = {v.path: int(np.prod(v.shape)) for v in made.trainable_variables}
    return state, made.ooodist.strategy.inner.backward.steps[0], sizes


def random_plan(seed: int) -> Plan:
    _, step, sizes = baseline()
    return random_plans.random_plan(step, sizes, engine, seed)


def assert_same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def issued(plan: Plan) -> list[str]:
    """The exchanges of a call's first step: first those that the call before has left."""
    names = [exchange.name for exchange in plan.exchanges]
    carried = [names[number] for number in carried_exchanges(plan)]
    if plan.steps_per_execution > 1:
        return [*carried, *names]
    return [*carried, *(name for name in names if name not in carried)]


# With some weights carried, in launches of two steps; and with none carried (see below).
OF_EACH_ENGINE = (5, 6)
# As many in flight as there are, and with some carried.
OF_TWO_COLLECTIVE = (1, 4)


def any_plan_leaves_the_numbers_alone() -> None:
    # What a plan does to a step is alike with each engine and any number of workers.
    more = OF_TWO_COLLECTIVE if (engine.name, engine.size) == ("collective", 2) else ()
    for seed in (*OF_EACH_ENGINE, *more):
        plan = random_plan(seed)
        if seed == 6:
            plan = replace(plan, credit=2, steps_per_execution=2)
        made = ooodist.distribute(model(), order=plan)
        state = trained(made)
        traced = made.ooodist.strategy.inner.backward.steps[0]
        assert traced.order == plan.order
        assert [e.name for e in traced.exchanges] == issued(plan)
        if engine.name == "byteps":  # the smallest place goes first; the keys are those of others
            own = traced.exchanges[len(carried_exchanges(plan)) :]
            places = [e.op.get_attr("place") for e in own]
            assert places == sorted(set(places))
        elif seed == 6:
            assert_each_waits_until_the_last_is_handed_over(made, plan)
        assert made.ooodist.strategy.steps_per_execution == plan.steps_per_execution
        if engine.size == 2:  # with more, an addition's order depends on the place in a bucket
            assert_same(state, baseline()[0])
            continue
        for ours, theirs in zip(state, baseline()[0], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def assert_each_waits_until_the_last_is_handed_over(made: keras.Model, plan: Plan) -> None:
    """In the graph there is a way from what one exchange sends to what the next one sends.

    The way begins at the very op behind which the engine has it: two that wait for the same
    completion would otherwise be handed over in any order.
    """
    exchanged = [e for step in made.ooodist.strategy.inner.backward.steps for e in step.exchanges]
    launches = [list(same) for _, same in itertools.groupby(exchanged, lambda e: e.op.graph)]
    # 7 steps are launches of two, and one of the last step alone.
    assert {len(launch) // len(plan.exchanges) for launch in launches} == {1, 2}
    for launch in launches:
        for before, after in itertools.pairwise(launch):
            assert before.op.inputs[0].op in ancestors(producers(after.op.inputs[0].op))


def plans_that_are_made_here_are_carried_out() -> None:
    """In float32, as the baseline trains; in 16 bits, with what is lost kept."""
    settings = PlanningConfig(profiles=PROFILES, max_steps_per_execution=2, trial=False)
    for order, wire in (
        ("planned", "float32"),
        ("first_k", "float32"),
        ("priority", "bfloat16"),
        ("planned", "planned"),
    ):
        made = ooodist.distribute(model(), order=order, wire=wire, planning=settings)
        state = trained(made)
        inner = made.ooodist.strategy.inner
        planned = inner.planned
        assert planned is not None
        assert planned.costs is not None
        plan = planned.plan
        assert plan.predicted is not None
        assert plan.engine == engine.name
        engine.check_equal("plan", plan.digest())
        traced = inner.backward.steps[0]
        assert traced.order == plan.order
        assert [e.name for e in traced.exchanges] == issued(plan)
        _, _, sizes = baseline()
        if wire == "float32":
            assert not plan.narrow
            assert_same(state, baseline()[0])
            continue
        if wire != "planned":
            assert plan.wire == wire
            assert set(plan.narrow) == sizes.keys()
        assert inner.rank_state.values("residual").keys() == set(plan.narrow)
        for exchange in traced.exchanges:
            width = 2 if exchange.weights[0] in plan.narrow else 4
            parts = next(e.parts for e in plan.exchanges if e.weights == exchange.weights)
            whole = width * sum(sizes[name] for name in exchange.weights)
            assert abs(exchange.num_bytes - whole / parts) <= plans.ALIGNMENT


def plans_are_found_and_tried_while_it_trains() -> None:
    x, y = images(7 * BATCH * engine.size)  # no whole number of launches

    def fitted(made: keras.Model, epochs: int) -> list[np.ndarray]:
        options = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "epochs": epochs}
        made.fit(x, y, **options)
        return [variable.numpy() for variable in [*made.variables, *made.optimizer.variables]]

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(trial, "LAUNCHES", 3)
        monkeypatch.setattr(trial, "ROUNDS", 2)
        monkeypatch.setattr(trial, "GAIN", 1.0)  # no plan is that fast
        settings = PlanningConfig(profiles=PROFILES, max_steps_per_execution=2, share=1e9)
        made = ooodist.distribute(model(), order="planned", planning=settings)
        fitted(made, 1)
        assert made.ooodist.strategy.is_trying
        epochs = 1
        while made.ooodist.strategy.is_trying:  # searches go on beside it, and each has its trial
            state = fitted(made, 5)
            epochs += 5
    live = made.ooodist.strategy
    assert live.tried == "default"
    assert live.planned is None
    assert not live.is_trying
    plans_tried = [backward for name, (backward, _) in live._ways.items() if name != "default"]
    assert plans_tried
    assert all(backward.steps and backward.plan for backward in plans_tried)  # they were traced
    assert live.backward.steps
    assert live.backward.steps[0].order is None
    assert_same(state, fitted(ooodist.distribute(model()), epochs))
    made.compile(keras.optimizers.SGD(0.1), made.loss, jit_compile=False)
    fitted(made, 1)
    assert made.ooodist.strategy.inner.tried == "default"  # and nothing was planned again


def what_is_too_short_to_plan_for_trains_by_default() -> None:
    x, y = images(30 * BATCH * engine.size)
    made = ooodist.distribute(model(), order="planned")
    made.fit(x, y, batch_size=BATCH, verbose=0)
    assert made.ooodist.strategy.inner.tried is None
    assert not made.ooodist.strategy.is_trying
    assert made.ooodist.strategy.inner.planned is None


def plans_that_do_not_fit_are_refused() -> None:
    x, y = images(BATCH * engine.size)
    plan = random_plan(1)
    _, _, sizes = baseline()

    def refused(plan: Plan, match: str) -> None:
        with pytest.raises(ooodist.UserError, match=match):
            ooodist.distribute(model(), order=plan).fit(x, y, batch_size=BATCH, verbose=0)

    refused(replace(plan, workers=9), f"for 9 workers .* has {engine.size}")
    refused(replace(plan, model="0123"), "for another model")
    refused(replace(plan, model="", exchanges=plan.exchanges[1:]), "leaves out|lacks part")
    refused(replace(plan, order=("dW:none",)), "no unit 'dW:none'")
    weight = list(sizes)[1]  # a bias
    others = [e for e in plan.exchanges if weight not in e.weights]
    left = {*sizes} - {w for e in others for w in e.weights} - {weight}
    crumbs = [plans.PlannedExchange((weight,), part, 99) for part in range(99)]
    rest = [plans.PlannedExchange((name,)) for name in sorted(left)]
    refused(replace(plan, exchanges=(*others, *rest, *crumbs)), "into 99 parts")
    for options in ({"credit": 1}, {"bucket_bytes": 0}, {"steps_per_execution": 77}):
        with pytest.raises(ooodist.UserError, match=r"leave (it|them) out"):
            ooodist.distribute(model(), order=plan, **options)


def one_plan_file_for_all() -> None:
    from ooodist.data_parallel.planning import shared_plan

    plan = random_plan(2)
    with tempfile.TemporaryDirectory() as folder:  # another one on each rank
        file = Path(folder) / "plan.yaml"
        if engine.rank == 0:
            plans.write(plan, file)
        assert shared_plan(lambda: plans.read(file), engine) == plan
        with pytest.raises(ooodist.UserError, match="cannot be read"):
            shared_plan(lambda: plans.read(Path(folder) / "none.yaml"), engine)


CHECKS = (
    any_plan_leaves_the_numbers_alone,
    plans_that_are_made_here_are_carried_out,
    plans_are_found_and_tried_while_it_trains,
    what_is_too_short_to_plan_for_trains_by_default,
    plans_that_do_not_fit_are_refused,
    one_plan_file_for_all,
)

if __name__ == "__main__":
    for check in CHECKS:
        if check.__name__ in sys.argv[1:]:
            check()
            engine.barrier()
            if engine.rank == 0:
                print(f"passed {check.__name__}", flush=True)
    engines.shutdown()
