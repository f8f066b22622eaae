"""Provides a model's profile: a stored one, or a new one that all ranks measure together."""

from __future__ import annotations

import logging
import platform
import time
from dataclasses import replace

import keras
import numpy as np

from ooodist.engines.base import Engine
from ooodist.planner.costs import LowRankCosts, Network, StepCosts
from ooodist.profiler import folder as profiles
from ooodist.profiler.compute import measure_step
from ooodist.profiler.conditions import present_conditions
from ooodist.profiler.folder import Profile
from ooodist.profiler.low_rank import measure_low_rank
from ooodist.profiler.network import measure_network, still_holds
from ooodist.profiler.state import preserved
from ooodist.profiler.step import StepToMeasure, as_tensors, trace_step
from ooodist.settings.sections import PlanningConfig
from ooodist.step.execution import Batch
from ooodist.util import yaml_dataclass

logger = logging.getLogger("ooodist")

STEP_TOLERANCE = 0.25  # by how much a step may differ, relatively, from when it was measured


def profile_of(
    model: keras.Model,
    batch: Batch,
    engine: Engine,
    settings: PlanningConfig,
    *,
    accumulate: int = 1,
    low_rank: bool = False,
    traced: StepToMeasure | None = None,
    digest: str | None = None,
    step_seconds: float | None = None,
) -> Profile:
    """The costs of this model's step and its exchanges. All ranks call it together.

    A stored profile of the same conditions is used if a training step takes as long as it did when
    it was measured. Without one, the network is that of another model's profile. A stored network
    is measured again if an exchange does not take as long as it says. The model stays as it is.

    Args:
        model: a compiled model, the same on all ranks.
        batch: one batch as its data set yields it.
        engine: the engine in use.
        settings: where profiles are kept, and whether to measure even if there is one.
        accumulate: batches per update.
        low_rank: whether to have the costs of gradients in low rank, which take 0.5 s more.
        traced: the step of this model, batch and ``accumulate``, if it was traced already.
        digest: the model's, if it is known; then a step is traced only if one must be measured.
        step_seconds: what a training step takes now, by default; None: it has not been trained.

    Returns:
        the same profile on all ranks, with the step costs of the slowest rank.

    Raises:
        UserError: the model cannot be measured, or differs between ranks; on all ranks.
    """

    def step() -> StepToMeasure:
        nonlocal traced
        if traced is None:
            with engine.agreed():
                traced = trace_step(model, batch, accumulate=accumulate)
        return traced

    batches = (as_tensors(batch),) * accumulate
    conditions = present_conditions(model, digest or step().digest, batches, engine)
    engine.check_equal("the model (its units)", conditions.model)
    engine.check_equal("the shapes of a batch", str(conditions.inputs))

    folder = profiles.folder_of(settings.profiles)
    known, network = None, None
    if engine.rank == 0 and not settings.profile_anew:
        known = profiles.find(folder, model.name, conditions)
        if known is None:
            network = profiles.network_of_others(folder, conditions)
        elif not _is_as_fast(known, step_seconds):
            known = None
    text = engine.broadcast_text("" if known is None else yaml_dataclass.dump(known))
    if text:
        profile = profiles.from_yaml(text, "of rank 0")
        if not still_holds(engine, profile.network):
            profile = replace(profile, network=_measure_network(engine, step()), elastic=None)
        elif not low_rank or profile.costs.low_rank != LowRankCosts():
            return profile
    else:
        text = engine.broadcast_text("" if network is None else yaml_dataclass.dump(network))
        measured = step()
        engine.barrier()  # so that ranks that share a host compete from the beginning
        with engine.agreed():
            costs = measure_step(measured)
        network = yaml_dataclass.read_text(Network, text, "network of rank 0") if text else None
        if network is None or not still_holds(engine, network):
            network = _measure_network(engine, measured)
        profile = Profile(
            name=model.name,
            measured=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            host=platform.node(),
            conditions=conditions,
            network=network,
            costs=_of_the_slowest(costs, engine),
            step_seconds=step_seconds,
        )
    if low_rank and profile.costs.low_rank == LowRankCosts():
        with engine.agreed():
            thin = measure_low_rank(profile.costs.weights)
        profile = replace(profile, costs=replace(profile.costs, low_rank=thin))
    # The conditions and the date are those of rank 0.
    profile = profiles.from_yaml(engine.broadcast_text(yaml_dataclass.dump(profile)), "of rank 0")
    if engine.rank == 0:
        keep(settings, profile)
    return profile


def _is_as_fast(known: Profile, step_seconds: float | None) -> bool:
    """Whether a step takes as long as when the profile was measured, as far as both are known."""
    if step_seconds is None or known.step_seconds is None:
        return True
    if abs(step_seconds - known.step_seconds) <= STEP_TOLERANCE * known.step_seconds:
        return True
    logger.info(
        "profile: a step takes %.2f ms, and took %.2f ms on %s: measuring again",
        step_seconds * 1e3,
        known.step_seconds * 1e3,
        known.measured,
    )
    return False


def _measure_network(engine: Engine, traced: StepToMeasure) -> Network:
    with preserved(traced.variables):
        return measure_network(engine, traced.run)


def _of_the_slowest(costs: StepCosts, engine: Engine) -> StepCosts:
    """The costs of the rank whose step takes longest, which the others wait for."""
    seconds = engine.gather(np.array(costs.compute_seconds + costs.launch_seconds))
    slowest = int(seconds.argmax())
    if engine.size > 1:
        logger.info(
            "profile: a step takes %.2f ms on rank %d, the slowest, and %.2f ms on rank %d",
            seconds.max() * 1e3,
            slowest,
            seconds.min() * 1e3,
            int(seconds.argmin()),
        )
    text = engine.broadcast_text(yaml_dataclass.dump(costs), root=slowest)
    return yaml_dataclass.read_text(StepCosts, text, "costs")


def keep(settings: PlanningConfig, profile: Profile) -> None:
    """Writes a profile to the folder of profiles; warns if that is not possible."""
    folder = profiles.folder_of(settings.profiles)
    try:
        file = profiles.write(folder, profile)
    except OSError as error:
        logger.warning(
            "profile: it cannot be kept in %s (%s), so it will be measured again next time; "
            "set planning.profiles to a folder that can be written to",
            folder,
            error.strerror,
        )
    else:
        logger.info("profile: written to %s", file)
