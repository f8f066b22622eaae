"""Elastic training in a pipeline against one process: ``mpirun -np 2 pipeline_worker.py CASE...``.

Rank 0 trains the whole model by itself afterwards, with the same selections and micro-batches; the
other ranks must have what it has. Where all is selected, it is a pipeline that selects nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ooodist
from ooodist import engines
from ooodist.compat.keras_deferred import has_value
from ooodist.elastic.controller import Mask
from ooodist.elastic.optimizer_state import OptimizerState
from ooodist.elastic.selection.items import Selectable
from ooodist.elastic.stage_units import stage_of_unit
from ooodist.engines.base import Engine
from ooodist.pipeline.cutting import first_trained
from ooodist.pipeline.pipeline_strategy import Pipeline
from ooodist.step.backward import variable_names
from tests.elastic import decisions
from tests.elastic.decisions import Decision, Notes, decided
from tests.pipeline import measuring_worker
from tests.pipeline.measuring_worker import BATCH, Witness
from tests.pipeline.training_cases import EPOCHS, STEPS, Batches, Case
from tests.pipeline.training_worker import compare, compiled, measure_once, values_of

SHARE = "share"  # a case of its own
BACK = {"I", "W", "B", "SEND_B", "RECV_B"}


def adam() -> Any:
    return keras.optimizers.Adam(1e-3)


def last_stage(choice: Selectable) -> set[int]:
    """All that needs nothing of any stage but the last."""
    last = max(map(stage_of_unit, choice.path_seconds))
    return {
        *choice.head,
        *(
            number
            for number, item in enumerate(choice.items)
            if all(stage_of_unit(name) == last for name in (*item.needs, item.name + f"@{last}"))
        ),
    }


CHANGING = (
    decisions.everything,
    last_stage,
    decisions.head_and_deepest,
    decisions.every_second,
    decisions.everything,
)


@dataclass(frozen=True)
class Elastic(Case):
    """What is trained, and how; without decisions, what matters most is."""

    decisions: Sequence[Decision] = CHANGING
    rho: float = 0.999  # where something else decides, nothing is to be refused


CASES = {
    "auto": Elastic("unet", 2, 4, options={"chunks": 1}, decisions=(), rho=0.95),
    "dropout": Elastic(
        "dense_with_dropout", 2, 4, options={"schedule": "zb_h1", "recompute": True}, optimizer=adam
    ),
    "twins": Elastic(
        "twins", 2, 4, options={"schedule": "1f1b", "split": ("decoder",)}, optimizer=adam
    ),
    "clipped": Elastic(
        "unet",
        2,
        4,
        options={"schedule": "interleaved"},
        optimizer=lambda: keras.optimizers.Adam(1e-2, global_clipnorm=0.05, weight_decay=1e-3),
    ),
    "batch_norm": Elastic("convolution_with_batch_norm", 4, 2, options={"schedule": "zb_h1"}),
    "replicas": Elastic(
        "tied_and_shared_weights", 2, 4, data=2, options={"schedule": "zb_h1", "chunks": 1}
    ),
    "sharded": Elastic(
        "tied_and_shared_weights",
        2,
        2,
        data=2,
        options={"schedule": "1f1b", "chunks": 1, "shard_optimizer": True},
        optimizer=adam,
    ),
    "everything": Elastic(
        "dense_with_dropout",
        2,
        4,
        options={"schedule": "1f1b"},
        optimizer=adam,
        decisions=(decisions.everything,),
    ),
}


class Laws(Notes):
    """What holds after each step on each rank."""

    def check(self, mask: Mask) -> None:
        pipeline: Pipeline = self.model.ooodist.strategy.inner
        pipeline.engine.check_equal("the selection", f"{mask.version} {mask.digest}")
        assembly = pipeline.assembly
        assert assembly is not None
        first = first_trained(assembly.stages, mask.weights)
        assert {ran.action.kind for ran in pipeline.ran} >= {"F"}
        for stage, kind, _ in (ran.action for ran in pipeline.ran):
            # Nothing goes back to a stage that only runs forward, so it does not receive either.
            assert stage > first or kind != "SEND_B"
            assert stage >= first or kind not in BACK
        for stage, work in assembly.works.items():
            assert set(map(work.stage.name_of, work.variables)) <= mask.weights
            if stage < first:
                kept = work.cut.input_bytes, work.cut.weight_bytes, work.cut.gradient_bytes
                assert kept == (0, 0, 0)
            assert not work._saved
            assert not work._for_weights
        trained = {*assembly.gradients.variables}
        summed = {name for bucket in assembly.gradients._sums for name in bucket.weights}
        assert summed <= trained <= mask.weights


def pipelined(case: Elastic, batches: Batches, elastic: dict[str, Any] | None) -> keras.Model:
    return ooodist.pipelined(
        compiled(case, batches, case.optimizer),
        pipeline=case.pipeline,
        data=case.data,
        microbatches=case.microbatches,
        timeout=120,
        elastic=elastic,
        **case.options,
    )


def train(case: Elastic) -> tuple[keras.Model, Batches, list[Mask]]:
    batches = Batches(case)
    config = {"rho": case.rho, "renew": "2 steps", "batches": 2, "keep": 0.0}
    model = pipelined(case, batches, config)
    notes = Laws()
    replica, _ = model.ooodist.strategy.shard
    with decided(case.decisions):
        history = model.fit(batches.data(replica), epochs=EPOCHS, verbose=0, callbacks=[notes])
    assert np.isfinite(history.history["loss"]).all()
    return model, batches, notes.masks


def replayed(case: Elastic, masks: Sequence[Mask]) -> tuple[keras.Model, OptimizerState]:
    """The whole model, micro-batch after micro-batch, in this process alone."""
    batches = Batches(case)
    model = compiled(case, batches, case.optimizer)
    model.optimizer.build(model.trainable_variables)
    optimizer_state = OptimizerState(model)
    number = case.microbatches * case.data

    @tf.function(autograph=False)
    def gradients_of(inputs: Any, labels: Any) -> Any:
        x, y = batches.shaped(inputs, labels)
        with tf.GradientTape() as tape:
            loss = tf.cast(model.compute_loss(y=y, y_pred=model(x, training=True)), tf.float32)
        seed = tf.constant(1 / number)
        values = [weight.value for weight in model.trainable_variables]
        return tape.gradient(loss, values, output_gradients=seed)

    for step, mask in enumerate(masks):
        if step:
            optimizer_state.reset(masks[step - 1].weights - mask.weights)
        weights = model.trainable_variables
        sums = [tf.zeros(weight.shape, weight.dtype) for weight in weights]
        for microbatch in range(step % STEPS * number, (step % STEPS + 1) * number):
            gradients = gradients_of(*batches.microbatch(microbatch))
            sums = [s + tf.convert_to_tensor(g) for s, g in zip(sums, gradients, strict=True)]
        own = [p for p, name in enumerate(variable_names(weights)) if name in mask.weights]
        with optimizer_state.counting():
            model.optimizer.apply([sums[p] for p in own], [weights[p] for p in own])
    return model, optimizer_state


def state(model: keras.Model) -> dict[str, np.ndarray]:
    strategy = model.ooodist.strategy
    held = [*model.variables, *model.metrics_variables, *model.optimizer.variables]
    found = {f"{number} {v.path}": v.numpy() for number, v in enumerate(held) if has_value(v)}
    found |= {
        f"count {path}": v.numpy() for path, v in strategy.selective._optimizer_state.counts.items()
    }
    sums = strategy.inner.assembly.gradients.accumulators
    return found | {f"sum {path}": v.numpy() for path, v in sums.items()}


def probes_leave_no_trace(model: keras.Model, batches: Batches) -> None:
    """Measuring twice in a row finds the same, and changes nothing."""
    strategy = model.ooodist.strategy
    before = state(model)
    replica, _ = strategy.shard
    those = [batches.batch(step, replica) for step in range(2)]
    found = [strategy.controller.measure(those) for _ in range(2)]
    assert found[0] == found[1]
    after = state(model)
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name], name)
    # Each weight is measured on one rank of the pipeline, or on the one rank that updates it.
    names = variable_names(model.trainable_variables)
    measured = np.array([name in found[0].loss_change for name in names], np.int32)
    copies = 1 if strategy.inner.parallel.shard_optimizer else strategy.inner.ranks.replicas
    assert (strategy.engine.all_reduce(measured, "sum") == copies).all()


def share() -> None:
    """Each rank has the weights of its own stages at all times, also while units are measured."""
    model = ooodist.pipelined(
        lambda: measuring_worker.compiled(measuring_worker.build()),
        pipeline=2,
        microbatches=2,
        split=["witness_1"],
        schedule="1f1b",
        elastic={"rho": 0.999, "renew": "2 steps", "batches": 1},
    )
    Witness.model, Witness.seen = model, set()
    data = tf.data.Dataset.from_tensors(BATCH).repeat(2)
    with decided((decisions.everything,)):
        model.fit(data, epochs=1, verbose=0)
    Witness.model = None
    strategy = model.ooodist.strategy
    costs = strategy.selective._cost_model.units
    assert sum(unit.seconds for unit in costs.backward if unit.kind == "dW") > 0
    assert all(weight.update_seconds > 0 for weight in costs.weights)
    controller = strategy.controller
    wrong = replace(controller.config, always=("dens",))
    with pytest.raises(
        ooodist.UserError, match=r"elastic\.always names dens.* no weight is trained"
    ):
        replace(controller, config=wrong)
    own = [set[str](), set[str]()]
    for stage in strategy.inner.assembly.stages:
        own[stage.number] = {variable.path for variable in stage.model.variables}
    assert Witness.seen == own[engines.current().rank], (Witness.seen, own)
    assert all(own)
    assert not own[0] & own[1]
    strategy.close()


def is_plain_training(case: Elastic, values: dict[tuple[str, str], np.ndarray]) -> None:
    """A pipeline that selects nothing has these values after the same batches."""
    batches = Batches(case)
    plain = pipelined(case, batches, None)
    plain.fit(batches.data(0), epochs=EPOCHS, verbose=0)
    with ooodist.whole(plain):
        plain_values = values_of(plain)
    assert plain_values.keys() == values.keys()
    for path, value in plain_values.items():
        np.testing.assert_array_equal(value, values[path], str(path))
    plain.ooodist.strategy.close()


def main(name: str) -> None:
    engine: Engine = ooodist.init("mpi")
    if name == SHARE:
        share()
        print(f"held: {name}, rank {engine.rank}", flush=True)
        return
    case = CASES[name]
    measure_once(case)
    model, batches, masks = train(case)
    assert len(masks) == EPOCHS * STEPS
    assert masks[-1].version == EPOCHS * STEPS // 2
    strategy = model.ooodist.strategy
    counts = strategy.selection()["counts"]
    engine.check_equal("counts", str(counts))
    if case.decisions == CHANGING:
        assert len({mask.digest for mask in masks}) >= 3
    probes_leave_no_trace(model, batches)
    strategy.close()

    with ooodist.whole(model):
        values = values_of(model)
    if name == "everything":
        is_plain_training(case, values)
        assert set(counts.values()) == {len(masks)}
    else:
        alone = None
        if engine.rank == 0:
            alone, optimizer_state = replayed(case, masks)
            assert counts == optimizer_state.state()
        compare(values_of(alone), values, case)
    print(f"held: {name}, rank {engine.rank}", flush=True)


if __name__ == "__main__":
    for case_name in sys.argv[1:]:
        main(case_name)
