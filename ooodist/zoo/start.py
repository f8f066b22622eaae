"""Warm starts: a model starts from the transformed weights of a similar, trained one.

::

    zoo -- most similar, most accurate --> parent -- transformed --> the model's weights
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from ooodist import engines
from ooodist.config.warm_start import WarmStartConfig
from ooodist.engines.base import Engine
from ooodist.engines.rank_0 import on_rank_0
from ooodist.errors import UserError
from ooodist.step import replicas
from ooodist.step.backward import named_variables
from ooodist.trainer.consistency.meeting import meet
from ooodist.trainer.strategy import Strategy
from ooodist.transfer import answers as questioning
from ooodist.transfer import provenance, rate
from ooodist.transfer.answers import Answers
from ooodist.transfer.calibration import calibrate
from ooodist.transfer.graph.keras_graph import graph_of
from ooodist.transfer.graph.operators import outline_of
from ooodist.transfer.mapping.transform import Transformed, transform
from ooodist.transfer.matching.match import match, prepare
from ooodist.transfer.probe import probe
from ooodist.transfer.provenance import WarmStart
from ooodist.util import log, yaml_dataclass
from ooodist.zoo.service.client import ZooClient
from ooodist.zoo.service.tokens import read_token
from ooodist.zoo.zoo import Found, Wanted

logger = logging.getLogger("ooodist")

ANY = "any"
PROBED = 3  # models to probe; the best one becomes the parent
MOST_DEPARTURES = 3  # to log; the result lists all of them

Opened = Callable[[WarmStartConfig], contextlib.AbstractContextManager[ZooClient]]
"""Opens the zoo that settings name, or has it open."""


def client_of(config: WarmStartConfig, *, create: bool = False) -> ZooClient:
    """Opens the zoo that the settings name, as :class:`ZooClient` does."""
    token = None
    if config.token_file is not None:
        said = f"warm_start.token_file is {config.token_file}, which"
        token = read_token(Path(config.token_file), said)
    certificate = None if config.certificate is None else Path(config.certificate)
    return ZooClient(
        config.zoo, token=token, certificate=certificate, timeout=config.timeout, create=create
    )


def warm_start(
    model: keras.Model,
    zoo: str,
    *,
    batches: Sequence[Any] = (),
    **settings: Any,
) -> WarmStart | None:
    """Initializes a model with the transformed weights of a similar model from a zoo.

    The outputs equal those of the parent if possible; the log and the result have the difference
    and its reason.

    In a job of several processes, all must call it: rank 0 queries the zoo and broadcasts the
    weights. A compiled model starts at a lower learning rate, in proportion to the share carried.

    Args:
        model: a built model; if it is not compiled, the learning rate stays as it is.
        zoo: a folder, any address of fsspec, or ``host:port`` of a service.
        batches: (x, y) pairs as the training data yields them. New batch norms are calibrated on
            the first one; candidates are probed on all of them.
        **settings: other keys of :class:`ooodist.config.warm_start.WarmStartConfig`, such as
            ``task``, ``dataset``, ``tags``, ``probe_steps`` or ``required``.

    Returns:
        What was done; None if the model starts cold (the log has the reason).

    Raises:
        UserError: a setting is wrong, or ``required`` is true and there is no parent.
    """
    config, engine = met({"zoo": zoo} | settings)
    return start(model, config, engine, batches)


def met(settings: Mapping[str, Any]) -> tuple[WarmStartConfig, Engine | None]:
    """The settings of :func:`warm_start`, and the engine, once all ranks have called it."""
    given = yaml_dataclass.plain(settings)  # tags may be a tuple
    config = yaml_dataclass.read_dataclass(WarmStartConfig, given, "warm_start")
    engine = engines.in_use()
    log.show(0 if engine is None else engine.rank)
    if engine is not None:
        meet(engine, "warm_start")
    return config, engine


def start(
    model: keras.Model,
    config: WarmStartConfig,
    engine: Engine | None,
    batches: Sequence[Any],
    opened: Opened = client_of,
) -> WarmStart | None:
    """Does the work of :func:`warm_start`, with settings that were already read."""
    text, error = "", None
    strategy = strategy_of(model)
    whole = contextlib.nullcontext() if strategy is None else strategy.starting_on_rank_0()
    with whole:
        try:
            found = on_rank_0(engine, lambda: _start(model, config, batches, opened))
            text = "" if found is None else json.dumps(yaml_dataclass.plain(found))
        except UserError as caught:
            error = str(caught)
    if engine is not None:
        engine.agree(error)
        text = engine.broadcast_text(text)
    if error is not None:
        raise UserError(error)
    if not text:
        return None
    result = provenance.read(json.loads(text))
    if engine is not None and (strategy is None or strategy.has_whole_model):
        replicas.broadcast_variables(engine, list(named_weights(model).values()))
    go_on(model, result)
    return result


def strategy_of(model: keras.Model) -> Strategy | None:
    """The strategy of a model that ooodist trains; None for others."""
    strategy: Strategy | None = getattr(getattr(model, "ooodist", None), "strategy", None)
    return strategy


def go_on(model: keras.Model, start: WarmStart) -> None:
    """Records a warm start on a model and lowers its learning rate; also for resumed training."""
    provenance.note(model, start)
    if getattr(model, "optimizer", None) is not None:
        rate.lower_at_first(model, start.lower_rate, start.ramp_steps)


def _start(
    model: keras.Model, config: WarmStartConfig, batches: Sequence[Any], opened: Opened
) -> WarmStart | None:
    """Runs on the rank that queries the zoo; raises UserError only if a parent is required."""
    variables = named_weights(model)
    own = {name: np.array(variable.numpy()) for name, variable in variables.items()}
    try:
        return _from_zoo(model, own, config, batches, opened)
    except Exception as error:  # a broken zoo must not prevent training
        for name, value in own.items():
            variables[name].assign(value)
        if config.required:
            raise UserError(
                f"warm_start.required is true, but there is no warm start from {config.zoo}: "
                f"{error}"
            ) from error
        logger.warning("warm start: the training starts cold: %s", reason_of(error))
        logger.debug("warm start failed", exc_info=True)
        return None


def reason_of(error: Exception) -> str:
    """The message of an error, with its type unless it is a UserError."""
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"


def _from_zoo(
    model: keras.Model,
    own: Mapping[str, np.ndarray],
    config: WarmStartConfig,
    batches: Sequence[Any],
    opened: Opened,
) -> WarmStart:
    """Warm-starts the model; if this fails, its weights may already have changed."""
    graph = graph_of(model)
    outline = outline_of(graph)
    child = prepare(outline)
    clock = _Clock()
    with opened(config) as client:
        wanted = Wanted(
            task="" if config.task == ANY else config.task,
            dataset="" if config.dataset == ANY else config.dataset,
            tags=config.tags,
        )
        probes = config.probe_steps > 0 and bool(batches)
        if config.probe_steps and not batches:
            logger.warning("warm start: probe_steps has no effect without batches")
        found = client.find(outline, wanted, PROBED if probes else 1)
        clock.lap("query")
        similar = [each for each in found if each.score >= config.least_score]
        if not similar:
            raise UserError(_nobody(config, found))
        candidates: list[tuple[Found, Transformed]] = []
        answers: dict[str, Answers | None] = {}
        for each in similar:
            entry, values = client.fetch(each.id)
            clock.lap("fetch")
            pairs = match(child, prepare(outline_of(entry.graph))).pairs
            answers[each.id] = entry.answers
            candidates.append((each, transform(graph, own, entry.graph, values, pairs)))
            clock.lap("transform")
    best = 0
    if len(candidates) > 1:
        losses = probe(model, [each.values for _, each in candidates], batches, config.probe_steps)
        best = int(np.argmin(losses))
        clock.lap("probe")
    parent, transformed = candidates[best]
    take_over(model, transformed, batches)
    clock.lap("transform")
    difference, exact = compare(model, transformed, answers[parent.id])
    clock.lap("compare")
    result = WarmStart(
        parent.id,
        parent.meta.name,
        parent.score,
        transformed.carried,
        transformed.report,
        config.lower_rate * transformed.carried,
        config.ramp_steps,
        clock.seconds,
        exact,
        difference,
        transformed.departures,
    )
    _log(result)
    return result


def compare(
    model: keras.Model, transformed: Transformed, answers: Answers | None
) -> tuple[float | None, bool]:
    """Tells whether a model computes the same function as its parent.

    Args:
        model: the model, with its start weights.
        transformed: the transformation that produced these weights.
        answers: outputs of the parent for known inputs; None if unknown.

    Returns:
        The largest difference of outputs, as a share of the largest output (None if unknown), and
        whether the function is the same.
    """
    found = None if answers is None else questioning.difference(model, answers)
    if answers is None or found is None:
        return None, not transformed.departures
    in_half = answers.in_half or questioning.computes_in_half(model)
    return found, found <= (questioning.SAME_IN_HALF if in_half else questioning.SAME)


def take_over(model: keras.Model, transformed: Transformed, batches: Sequence[Any]) -> None:
    """Assigns the start weights to a model and calibrates it on the first batch, if any."""
    variables = named_weights(model)
    for name, value in transformed.values.items():
        variables[name].assign(value)
    if batches:
        calibrate(model, transformed.inserted_norms, batches[0])


def named_weights(model: keras.Model) -> dict[str, keras.Variable]:
    """The weights of a model by their names in the graph."""
    return {
        name: variable
        for name, variable in named_variables(model).items()
        if "seed_generator_state" not in name
    }


def _nobody(config: WarmStartConfig, found: Sequence[Found]) -> str:
    wanted = ", ".join(
        f"{key} {value}"
        for key, value in (
            ("task", config.task),
            ("dataset", config.dataset),
            ("tags", " ".join(config.tags)),
        )
        if value
    )
    if not found:
        return f"{config.zoo} has no model{f' of {wanted}' if wanted else ''} that is similar"
    return (
        f"the most similar model of {config.zoo}, {found[0].meta.name or found[0].id}, has a score "
        f"of {found[0].score:.2f}, and warm_start.least_score is {config.least_score:g}"
    )


def _log(start: WarmStart) -> None:
    actions: Counter[str] = Counter(each.action for each in start.tensors)
    if not start.exact and "identity" in actions:  # each layer is one, but the rest is not exact
        actions["inserted"] = actions.pop("identity")
    logger.info(
        "warm start: starts from %s (%s), score %.2f, with %.0f %% of the parameters from there: "
        "%s tensors; %s; %s",
        start.name or "a model",
        start.parent,
        start.score,
        100 * start.carried,
        ", ".join(f"{number} {action}" for action, number in actions.most_common()),
        _function_of(start),
        ", ".join(f"{what} {seconds:.2f} s" for what, seconds in start.seconds.items()),
    )
    if not start.exact:
        more = len(start.departures) - MOST_DEPARTURES
        logger.warning(
            "warm start: the model does not compute what its parent does: %s%s",
            "; ".join(start.departures[:MOST_DEPARTURES])
            or "a setting of a layer, which both have, is another one",
            f"; and {more} more" if more > 0 else "",
        )


def _function_of(start: WarmStart) -> str:
    """Says in words whether the model computes the same function as its parent."""
    said = "the function is the parent's" if start.exact else "not exact"
    if start.difference is None:
        return f"{said} (not measured: the zoo has no answers of the parent that fit)"
    by = "off by" if start.exact else "its answers to random inputs are off by"
    return f"{said}, {by} {start.difference:.2g} of the largest"


class _Clock:
    """Adds up the seconds that each kind of work takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, what: str) -> None:
        now = time.perf_counter()
        self.seconds[what] = self.seconds.get(what, 0.0) + now - self._last
        self._last = now
