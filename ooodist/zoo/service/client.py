"""Uniform access to a zoo in a folder, in a bucket, or behind a service on another machine.

::

    with ZooClient("zoo.example.org:7077", certificate=Path("zoo.pem")) as zoo:
        found = zoo.find(graph, Wanted(task="image classification"))
        entry, weights = zoo.fetch(found[0].id)

gRPC is imported only for a service, so a folder or bucket needs no extra.
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
        address: ``host:port`` or ``grpc://host:port`` of a service, or the address of a zoo as in
            :class:`Zoo`.
        token: token for the service; None to use the environment variable OOODIST_ZOO_TOKEN.
        certificate: PEM file with the certificate of the service or of its signer. Without it,
            only a service on this machine is used, in plain text.
        timeout: seconds for the service to answer, or to send or receive up to 1 MiB.
        index: index file of a zoo that is used without a service; see :class:`Zoo`.
        create: whether a folder that does not exist is created, to register models, and no error.

    Raises:
        UserError: an argument is invalid, or the extra that a service needs is not installed.
            (The service is first contacted by a call.)
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        certificate: Path | None = None,
        timeout: float = 30.0,
        index: Path | None = None,
        create: bool = False,
    ) -> None:
        self._zoo: Zoo | Remote
        service = address.removeprefix(_SCHEME)
        if service != address or is_address(service):
            extra.check()
            from ooodist.zoo.service.remote import Remote

            token = token if token is not None else os.environ.get(TOKEN_VARIABLE)
            self._zoo = Remote(service, token, certificate, timeout)
        else:
            self._zoo = Zoo(address, index=index, create=create)

    def find(self, model: Graph | Outline, wanted: Wanted, count: int = 1) -> list[Found]:
        """The models most similar to this one, best first.

        Args:
            model: the model to warm-start.
            wanted: conditions on the models. (A service fills in the user.)
            count: most models to return.

        Raises:
            UserError: the zoo or the service refuses the request.
            ZooUnavailable: the service does not answer.
        """
        outline = outline_of(model) if isinstance(model, Graph) else model
        return self._zoo.query(outline, wanted, count)

    def fetch(self, model: str) -> tuple[Entry, dict[str, np.ndarray]]:
        """The entry of a model by id, and its weights by name. Raises as ``find``."""
        return self._zoo.fetch(model)

    def register(self, model: keras.Model, meta: Meta) -> str:
        """Adds a trained model to the zoo and returns its id. Raises as ``find``."""
        from ooodist.transfer.graph.keras_graph import graph_of  # imports TensorFlow

        graph = graph_of(model)
        if isinstance(self._zoo, Zoo):
            return self._zoo.add_model(model, meta, graph)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.keras"
            entries.write(file, model, meta, graph)
            return self._zoo.upload(file)

    def list(self) -> list[Row]:
        """The models that this user may use. Raises as ``find``."""
        return self._zoo.list()

    def evict(self, model: str) -> None:
        """Removes a model; a service requires an admin. Raises as ``find``."""
        self._zoo.evict(model)

    @property
    def is_there(self) -> bool:
        """Whether nobody has deleted an open zoo; of a service, its calls tell."""
        return not isinstance(self._zoo, Zoo) or self._zoo.is_there

    def close(self) -> None:
        """Closes the zoo or the connection; no more calls are possible."""
        self._zoo.close()

    def __enter__(self) -> ZooClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
