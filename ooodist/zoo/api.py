"""The public class of zoos, for programs of users."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from ooodist import engines
from ooodist.config.warm_start import WarmStartConfig
from ooodist.engines.rank_0 import on_rank_0
from ooodist.errors import UserError
from ooodist.trainer.consistency.meeting import meet
from ooodist.transfer import provenance
from ooodist.transfer.graph.keras_graph import graph_of
from ooodist.transfer.provenance import WarmStart
from ooodist.util import log, yaml_dataclass
from ooodist.zoo import metrics as known
from ooodist.zoo.entry import Meta, check_meta
from ooodist.zoo.service.client import ZooClient
from ooodist.zoo.start import client_of, met, start, strategy_of
from ooodist.zoo.zoo import Found, Wanted

logger = logging.getLogger("ooodist")

_OPENING = threading.Lock()


class Zoo:
    """Trained models in a folder, in a bucket or behind a service, from which new ones start.

    ::

        zoo = ooodist.Zoo("zoo")
        zoo.warm_start(model, task="classification", batches=[(x[:64], y[:64])])
        model.fit(x, y, epochs=5)
        zoo.register(model, model.evaluate(*held_out, return_dict=True), task="classification")

    Rank 0 opens the zoo at the first call and keeps it open, which matters if it is large. Each
    call sees what others have changed, in a bucket up to ten seconds before. In a job of several
    processes, all make the same calls, and get the same results. Threads may share a zoo.

    Models may have layers of your own. Keras never loads a file of the zoo: its graph and weights
    are read from checked data, which names no code.

    Args:
        address: a folder, any address of fsspec, such as ``s3://bucket/zoo``, or ``host:port`` of a
            service (``python -m ooodist.zoo serve``).
        token_file: file with your token for a service; without it, the token is in the environment
            variable OOODIST_ZOO_TOKEN.
        certificate: PEM file with the certificate of a service or of its signer.
        timeout: seconds to wait for a service.

    Raises:
        UserError: an argument is of the wrong type or out of range. Whether there is a zoo at the
            address is found by the first call.
    """

    def __init__(
        self,
        address: str | Path,
        *,
        token_file: str | Path | None = None,
        certificate: str | Path | None = None,
        timeout: float = 30.0,
    ) -> None:
        paths = {"zoo": address, "token_file": token_file, "certificate": certificate}
        self._place: dict[str, Any] = {
            key: str(path) if isinstance(path, Path) else path for key, path in paths.items()
        }
        self._place["timeout"] = timeout
        self._config = yaml_dataclass.read_dataclass(WarmStartConfig, self._place, "Zoo")
        self._clients: dict[int, ZooClient] = {}

    def query(
        self,
        model: keras.Model,
        *,
        task: str = "",
        dataset: str = "",
        tags: Sequence[str] = (),
        count: int = 1,
    ) -> list[Found]:
        """The best parents for a model, best first.

        Similar models come first, in ten steps; among those of one step, the ones that are best by
        the metric of their task.

        Args:
            model: a built model.
            task: the exact task; empty for any.
            dataset: the exact data set; empty for any.
            tags: tags that they must all have.
            count: most models to return; 100 of a service.

        Returns:
            The models, each with its ``id``, its similarity ``score`` (above 0, at most 1) and its
            ``meta``, which has ``name``, ``task``, ``dataset``, ``tags``, ``metrics``, ``parent``.

        Raises:
            UserError: the model is not built, or the zoo does not exist, cannot be read, or refuses
                the request.
        """
        with _together("zoo.query"):
            given = {"task": task, "dataset": dataset, "tags": yaml_dataclass.plain(tags)}
            wanted = yaml_dataclass.read_dataclass(Wanted, given, "")
        found = self._on_rank_0(lambda zoo: zoo.find(graph_of(model), wanted, count))
        return [yaml_dataclass.read(Found, each) for each in found]

    def warm_start(
        self, model: keras.Model, *, batches: Sequence[Any] = (), **settings: Any
    ) -> WarmStart | None:
        """Initializes a model from its best parent: :func:`ooodist.warm_start` with this zoo."""
        config, engine = met(dict(**self._place, **settings))
        return start(model, config, engine, batches, self._opened)

    def register(
        self,
        model: keras.Model,
        metrics: Mapping[str, float],
        *,
        name: str = "",
        task: str = "",
        dataset: str = "",
        tags: Sequence[str] = (),
        access: Sequence[str] = (),
        judged_by: str = "",
    ) -> str:
        """Adds a trained model and returns its id. A folder that does not exist is created.

        The optimizer is left out, but stays with the model.

        Args:
            model: a built model.
            metrics: what was measured on held-out data (or {}), as ``model.evaluate`` returns it
                with ``return_dict=True``. Perplexity, which Keras does not have, is ``perplexity``.
            name: for people; empty for the name of the model.
            task: task, such as ``classification``; empty if unknown.
            dataset: data set that it was trained on; empty if unknown.
            tags: free-form labels.
            access: users of the service who may use it; empty for all.
            judged_by: the metric that decides how good it is; empty for that of the task (accuracy
                for ``classification``, perplexity for ``language``, RMSE for ``regression``, the
                loss for ``pretraining``) or else the first that is known.

        Raises:
            UserError: a text or a metric is not possible, the model is not built or far worse than
                five others of its task and data set, or the zoo cannot be written to.
        """
        start = provenance.start_of(model)
        with _together("zoo.register"):
            given = {
                "name": name or model.name,
                **{"task": task, "dataset": dataset, "tags": tags, "access": access},
                "metrics": _numbers(metrics),
                "parent": None if start is None else start.parent,
                "judged_by": judged_by,
            }
            meta = yaml_dataclass.read_dataclass(Meta, yaml_dataclass.plain(given), "")
            check_meta(meta)
        if metrics and known.judge_of(meta) is None:
            logger.warning(
                "zoo: model %s comes after all that were measured, as it has none of the metrics "
                "that can be compared (%s): it has %s",
                *(meta.name, ", ".join(known.KNOWN), ", ".join(metrics)),
            )
        strategy = strategy_of(model)
        with contextlib.nullcontext() if strategy is None else strategy.whole(root=0):
            return str(self._on_rank_0(lambda zoo: zoo.register(model, meta), create=True))

    def close(self) -> None:
        """Closes the zoo; another call opens it again."""
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_clients": {}}

    @contextlib.contextmanager
    def _opened(self, config: WarmStartConfig, *, create: bool = False) -> Iterator[ZooClient]:
        """Yields the zoo, which stays open."""
        process = os.getpid()  # a fork must neither use nor close SQLite's connection
        with _OPENING:
            client = self._clients.get(process)
            if client is None or not client.is_there:
                client = self._clients[process] = client_of(config, create=create)
        yield client

    def _on_rank_0(self, work: Callable[[ZooClient], Any], *, create: bool = False) -> Any:
        """What the work returns on rank 0, as plain values, on all ranks."""

        def run() -> str:
            with self._opened(self._config, create=create) as client:
                return json.dumps(yaml_dataclass.plain(work(client)))

        engine = engines.in_use()
        log.show(0 if engine is None else engine.rank)
        with contextlib.nullcontext() if engine is None else engine.agreed():
            text = on_rank_0(engine, run) or ""
        return json.loads(text if engine is None else engine.broadcast_text(text))


@contextlib.contextmanager
def _together(method: str) -> Iterator[None]:
    """Waits until all ranks have called the method; if the block fails on one, it does on all."""
    engine = engines.in_use()
    if engine is None:
        yield
        return
    meet(engine, method)
    with engine.agreed():
        yield


def _numbers(metrics: Any) -> dict[str, float]:
    """Metrics as floats. Raises UserError for what is no number."""
    if not isinstance(metrics, Mapping):
        raise UserError(
            f"metrics is {metrics!r:.80}; it must have numbers by name, as "
            "model.evaluate(..., return_dict=True) returns them"
        )
    numbers = {}
    for name, value in metrics.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError) as error:
            raise UserError(f"metrics has {value!r:.80} as {name}; it must be a number") from error
    return numbers
