"""A zoo, wherever it is: a folder or bucket, or a service on another machine.

::

    with ZooClient("zoo.example.org:7077", certificate=Path("zoo.pem")) as zoo:
        found = zoo.find(graph, Wanted(task="image classification"))
        entry, weights = zoo.fetch(found[0].id)

gRPC is imported only for a service: a folder or bucket needs no extra.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ooodist.transfer.graph.graph import Graph
from ooodist.transfer.graph.operators import Outline, outline_of
from ooodist.zoo import entry as entries
from ooodist.zoo.entry import Entry, Meta
from ooodist.zoo.service import extra
from ooodist.zoo.service.addresses import is_address
from ooodist.zoo.service.tokens import TOKEN_VARIABLE
from ooodist.zoo.service.unavailable import ZooUnavailable
from ooodist.zoo.zoo import Found, Row, Wanted, Zoo

if TYPE_CHECKING:
    import keras

    from ooodist.zoo.service.remote import Remote

__all__ = ["ZooClient", "ZooUnavailable"]

_SCHEME = "grpc://"


class ZooClient:
    """Finds, fetches and registers models.

    Args:
        address: ``host:port`` or ``grpc://host:port`` of a service; or where a zoo is, as
            :class:`Zoo` takes it.
        token: for the service; if None, that in the environment variable OOODIST_ZOO_TOKEN.
        certificate: a PEM file with the certificate of the service or of who signed it. Without
            one, only a service on this machine is asked, in plain text.
        timeout: seconds for the service to answer, or to send or take up to 1 MiB.
        index: file of the index of a zoo that is not asked through a service; see :class:`Zoo`.

    Raises:
        UserError: one of these cannot be used, or the extra that a service needs is not
            installed. (Whether the service is there shows in the calls.)
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        certificate: Path | None = None,
        timeout: float = 30.0,
        index: Path | None = None,
    ) -> None:
        self._zoo: Zoo | Remote
        service = address.removeprefix(_SCHEME)
        if service != address or is_address(service):
            extra.check()
            from ooodist.zoo.service.remote import Remote

            token = token if token is not None else os.environ.get(TOKEN_VARIABLE)
            self._zoo = Remote(service, token, certificate, timeout)
        else:
            self._zoo = Zoo(address, index=index)

    def find(self, model: Graph | Outline, wanted: Wanted, count: int = 1) -> list[Found]:
        """The models that are most like this one, best first.

        Args:
            model: to be warmed up.
            wanted: which models will do. (A service fills in the user.)
            count: at most so many.

        Raises:
            UserError: the zoo or the service says no.
            ZooUnavailable: there is no answer.
        """
        outline = outline_of(model) if isinstance(model, Graph) else model
        return self._zoo.query(outline, wanted, count)

    def fetch(self, model: str) -> tuple[Entry, dict[str, np.ndarray]]:
        """What is known of the model with this id, and its weights by name. Raises as ``find``."""
        return self._zoo.fetch(model)

    def register(self, model: keras.Model, meta: Meta) -> str:
        """Puts a trained model into the zoo and returns its id. Raises as ``find``."""
        from ooodist.transfer.graph.keras_graph import graph_of  # imports TensorFlow

        graph = graph_of(model)
        if isinstance(self._zoo, Zoo):
            return self._zoo.add_model(model, meta, graph)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.keras"
            entries.write(file, model, meta, graph)
            return self._zoo.upload(file)

    def list(self) -> list[Row]:
        """The models that there are for this user. Raises as ``find``."""
        return self._zoo.list()

    def evict(self, model: str) -> None:
        """Removes a model; a service lets only its admins. Raises as ``find``."""
        self._zoo.evict(model)

    def close(self) -> None:
        """Nothing can be asked any more."""
        self._zoo.close()

    def __enter__(self) -> ZooClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
