"""One client for a folder and for a service: the same answers."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import keras
import numpy as np
import pytest

from ooodist.errors import UserError
from ooodist.step.backward import variable_names
from ooodist.transfer.graph.keras_graph import graph_of
from ooodist.transfer.graph.operators import Operator, outline_of
from ooodist.zoo.entry import Meta
from ooodist.zoo.service import remote
from ooodist.zoo.service.client import ZooClient, ZooUnavailable
from ooodist.zoo.service.server import Service, serve
from ooodist.zoo.service.tokens import TOKEN_VARIABLE
from ooodist.zoo.zoo import Wanted, Zoo
from tests.zoo.serving import ANNA, BOB, ROOT, TOKENS, make_model


def weights_of(model: keras.Model) -> dict[str, np.ndarray]:
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    names = variable_names(variables)
    return {name: np.asarray(each) for name, each in zip(names, variables, strict=True)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "zoo"


@pytest.fixture
def service(folder: Path) -> Iterator[Service]:
    zoo = Zoo(str(folder))
    with serve(zoo, "127.0.0.1:0", tokens=TOKENS, admins=["root"]) as service:
        yield service
    zoo.close()


@pytest.fixture(params=["folder", "service"])
def connect(request: pytest.FixtureRequest, folder: Path) -> Callable[[], ZooClient]:
    """Makes clients, of the folder itself or of a service for it."""
    if request.param == "folder":
        return lambda: ZooClient(str(folder), create=True)
    service: Service = request.getfixturevalue("service")
    return lambda: ZooClient(service.address, token=ROOT)


class TestFolderAndService:
    def test_a_model_comes_back_bit_for_bit(self, connect: Callable[[], ZooClient]) -> None:
        model = make_model()
        meta = Meta("small", "toy", "none", ("a", "b"), metrics={"accuracy": 0.75})
        with connect() as zoo:
            added = zoo.register(model, meta)
        with connect() as zoo:
            (found,) = zoo.find(graph_of(make_model()), Wanted(task="toy"))
            entry, weights = zoo.fetch(found.id)
        assert found.id == added
        assert found.score == pytest.approx(1.0)
        assert found.meta == entry.meta == meta
        assert outline_of(entry.graph) == outline_of(graph_of(model))
        right = weights_of(model)
        assert weights.keys() == right.keys()
        for name, values in right.items():
            assert weights[name].dtype == values.dtype
            assert weights[name].tobytes() == values.tobytes()

    def test_the_best_come_first(self, connect: Callable[[], ZooClient]) -> None:
        with connect() as zoo:
            for units in (8, 16, 64):
                zoo.register(make_model(units), Meta(f"{units} units"))
            found = zoo.find(outline_of(graph_of(make_model(16))), Wanted(), count=3)
            assert found[0].meta.name == "16 units"
            assert [each.score for each in found] == sorted(
                (each.score for each in found), reverse=True
            )
            assert len(zoo.find(graph_of(make_model()), Wanted(), count=2)) == 2

    def test_models_of_another_task_are_not_found(self, connect: Callable[[], ZooClient]) -> None:
        with connect() as zoo:
            zoo.register(make_model(), Meta("small", "toy"))
            assert zoo.find(graph_of(make_model()), Wanted(task="work")) == []

    def test_models_are_listed_and_evicted(self, connect: Callable[[], ZooClient]) -> None:
        with connect() as zoo:
            assert zoo.list() == []
            added = [zoo.register(make_model(units), Meta(f"{units}")) for units in (8, 9)]
            assert {row.id: row.meta.name for row in zoo.list()} == dict(
                zip(added, "89", strict=True)
            )
            zoo.evict(added[0])
            assert [row.id for row in zoo.list()] == added[1:]

    @pytest.mark.parametrize("model", ["missing", "../x", "", "0" * 64])
    def test_a_model_that_is_not_there(self, connect: Callable[[], ZooClient], model: str) -> None:
        with connect() as zoo:
            for ask in (zoo.fetch, zoo.evict):
                with pytest.raises(UserError):
                    ask(model)

    def test_wrong_meta_data_are_refused(self, connect: Callable[[], ZooClient]) -> None:
        with connect() as zoo:
            with pytest.raises(UserError, match=r"accuracy is 75"):
                zoo.register(make_model(), Meta("small", metrics={"accuracy": 75}))
            assert zoo.list() == []

    def test_the_optimizer_stays_with_the_model(self, connect: Callable[[], ZooClient]) -> None:
        model = make_model()
        model.compile("adam", "mse")
        with connect() as zoo:
            zoo.register(model, Meta())
        assert model.optimizer is not None


class TestService:
    def test_the_token_comes_from_the_environment(
        self, service: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with ZooClient(f"grpc://{service.address}") as zoo:
            with pytest.raises(UserError, match=f"needs a token; .*{TOKEN_VARIABLE}"):
                zoo.list()
            monkeypatch.setenv(TOKEN_VARIABLE, ANNA)
        with ZooClient(f"grpc://{service.address}") as zoo:
            assert zoo.list() == []
        with (
            ZooClient(service.address, token="another-token-0123") as zoo,
            pytest.raises(UserError, match="is not one of this service; give your token"),
        ):
            zoo.list()

    def test_a_token_that_no_header_can_hold_is_refused(self, service: Service) -> None:
        for token in ("", "a b", "a\r\nb: c", "ä"):
            with pytest.raises(UserError, match="the token of the zoo has blanks"):
                ZooClient(service.address, token=token)

    def test_users_use_what_they_may(self, service: Service) -> None:
        with ZooClient(service.address, token=BOB) as bob:
            private = bob.register(make_model(), Meta("bob's", access=("bob",)))
            assert bob.fetch(private)[0].meta.name == "bob's"
            with pytest.raises(UserError, match="bob may not evict models"):
                bob.evict(private)
        with ZooClient(service.address, token=ANNA) as anna:
            assert anna.list() == []
            assert anna.find(graph_of(make_model()), Wanted(user="bob")) == []
            with pytest.raises(UserError, match="there is no model"):
                anna.fetch(private)

    def test_many_clients_at_once(self, service: Service) -> None:
        models = [make_model(units) for units in range(4, 12)]
        outline = outline_of(graph_of(models[0]))
        with ZooClient(service.address, token=ANNA) as zoo:
            added = [zoo.register(model, Meta(model.name)) for model in models]

        def ask(number: int) -> bool:
            with ZooClient(service.address, token=ANNA) as zoo:
                assert zoo.find(outline, Wanted(), count=8)
                _, weights = zoo.fetch(added[number])
                right = weights_of(models[number])
                return all(np.array_equal(weights[name], right[name]) for name in right)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(ask, [*range(8)] * 2))

    def test_one_client_in_many_threads(self, service: Service) -> None:
        with ZooClient(service.address, token=ANNA) as zoo:
            added = zoo.register(make_model(), Meta())
            with ThreadPoolExecutor(8) as pool:
                fetched = list(pool.map(lambda _: zoo.fetch(added)[1], range(16)))
        assert all(each.keys() == fetched[0].keys() for each in fetched)

    def test_no_file_is_left(self, service: Service, tmp_path: Path) -> None:
        (tmp_path / "temporary").mkdir()
        before, tempfile.tempdir = tempfile.tempdir, str(tmp_path / "temporary")
        try:
            with ZooClient(service.address, token=ANNA) as zoo:
                zoo.fetch(zoo.register(make_model(), Meta()))
                with pytest.raises(UserError):
                    zoo.fetch("missing")
        finally:
            tempfile.tempdir = before
        assert list((tmp_path / "temporary").iterdir()) == []

    def test_too_large_an_outline_is_not_sent(self, service: Service) -> None:
        with (
            ZooClient(service.address, token=ANNA) as zoo,
            pytest.raises(UserError, match="the model has 30000 operators"),
        ):
            zoo.find((Operator("Dense"),) * 30_000, Wanted())

    def test_a_transfer_may_take_longer_than_the_timeout(self, service: Service) -> None:
        """It is the seconds without any byte that are limited: here 32 MiB, at 20 MiB/s."""
        with (
            _slow_road(service.address, 20 * 2**20) as road,
            ZooClient(road, token=ANNA, timeout=1.0) as zoo,
        ):
            start = time.monotonic()
            added = zoo.register(make_model(1_000_000), Meta())
            assert time.monotonic() - start > 1.0
            start = time.monotonic()
            _, weights = zoo.fetch(added)
            assert time.monotonic() - start > 1.0
        assert sum(values.nbytes for values in weights.values()) > 30e6

    def test_a_large_file_may_be_looked_at_for_longer(self, folder: Path) -> None:
        """Once it has arrived, the service checks every byte before it answers."""

        class Thorough(Zoo):
            def add(self, file: Path | BinaryIO, **options: Any) -> str:
                time.sleep(1.5)
                return super().add(file, **options)

        with (
            contextlib.closing(Thorough(str(folder))) as zoo,
            serve(zoo, "127.0.0.1:0", tokens=TOKENS) as service,
            ZooClient(service.address, token=ANNA, timeout=1.0) as client,
        ):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(remote, "_STARTING_SECONDS", 0.0)
                with pytest.raises(ZooUnavailable, match="did not go on for 1 s"):
                    client.register(make_model(), Meta("small"))
            client.register(make_model(1_000_000), Meta("large"))


@contextlib.contextmanager
def _slow_road(address: str, bytes_per_second: int) -> Iterator[str]:
    """An address that leads to another one, with so many bytes a second each way."""
    host, port = address.split(":")

    def carry(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while some := source.recv(2**16):
                time.sleep(len(some) / bytes_per_second)
                target.sendall(some)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection((host, int(port)))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=carry, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


class TestAddress:
    @pytest.mark.parametrize("address", ["grpc://", "grpc://host", "grpc:///zoo", "grpc://h:99999"])
    def test_of_a_service_must_be_whole(self, address: str) -> None:
        with pytest.raises(UserError, match="it must be host:port"):
            ZooClient(address)

    def test_of_a_folder_that_looks_like_a_service(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UserError, match=r"there is no zoo \./localhost:7077"):
            ZooClient("./localhost:7077")
        with ZooClient("./localhost:7077", create=True) as zoo:
            assert zoo.list() == []

    def test_of_a_folder_whose_index_is_elsewhere(self, zoo: Zoo, tmp_path: Path) -> None:
        added = zoo.add_model(make_model(), Meta("small"))
        with ZooClient(zoo.address, index=tmp_path / "elsewhere.sqlite") as client:
            client.fetch(added)
            assert [(row.id, row.uses) for row in client.list()] == [(added, 1)]
        assert [(row.id, row.uses) for row in zoo.list()] == [(added, 0)]
