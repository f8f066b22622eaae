"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from tests import environments, fork_server, slow, thorough

# On a GPU the same operation may be computed by several algorithms, one of which is picked by its
# time, and products of float32 are rounded to 10 bits: what is compared bit by bit would differ.
ON_A_GPU = {
    "TF_DETERMINISTIC_OPS": "1",
    "NVIDIA_TF32_OVERRIDE": "0",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # several tests share it
    "OOODIST_COLLECTIVE": "ring",  # so do their workers
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu", action="store_true", help="train on this host's first GPU")
    parser.addoption("--thorough", action="store_true", help="1,000 examples of each property")


def pytest_configure(config: pytest.Config) -> None:
    # Before anything imports TensorFlow, and for the processes that tests start.
    if config.getoption("--gpu"):
        os.environ.update(ON_A_GPU, CUDA_VISIBLE_DEVICES="0")
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    thorough.load_profile(thorough=config.getoption("--thorough"))
    if not hasattr(config, "workerinput"):  # of pytest-xdist, which sends its reports to the first
        config.pluginmanager.register(slow.Watch())


def pytest_collection_finish() -> None:
    gc.freeze()  # TensorFlow and all tests stay: else each collection looks at a million objects
    gc.set_threshold(fork_server.GARBAGE)


def _run(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    runner = item.config.pluginmanager.getplugin("runner")
    return runner.pytest_runtest_protocol(item, nextitem)


fork_server.make_room(_run)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    return _run(item, nextitem)


@pytest.fixture(scope="module", autouse=True)
def _old_objects_stay() -> Iterator[None]:
    """Keras frees no train function, and each clear_session() would look at all of them."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", params=["this", "3.13"])
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """This Python, then a 3.13 that has ooodist from a wheel, if there is one with TensorFlow."""
    if request.param == "this":
        return sys.executable
    return environments.python_3_13(tmp_path_factory.mktemp("python"))


@pytest.fixture
def local_engine() -> Iterator[None]:
    """The engine of one process is in use."""
    import keras

    import ooodist

    ooodist.init("local")
    yield
    keras.backend.clear_session()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server that imitates S3 on this machine."""
    from moto.server import ThreadedMotoServer  # takes a second, and few tests need it

    running = ThreadedMotoServer("127.0.0.1", port=0)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The address of an empty bucket."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # no settings of whoever runs the tests
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    name = f"bucket-{tmp_path.name.replace('_', '-').lower()}"[:63].rstrip("-")
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir(name)
    return f"s3://{name}"
