"""Which GPU a process takes. Hosts with GPUs are imitated: TensorFlow is asked for its list."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from ooodist.engines.gpu import use_own_gpu
from ooodist.errors import UserError


@pytest.fixture
def visible(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was made visible, on a host with four GPUs."""
    gpus = ["GPU:0", "GPU:1", "GPU:2", "GPU:3"]
    seen: list[Any] = []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _kind: gpus)
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda gpu, _kind: seen.append(gpu))
    return seen


@pytest.mark.parametrize("local_size", [4, 3, None])
def test_each_process_has_its_own(visible: list[Any], local_size: int | None) -> None:
    for local_rank in range(3):
        use_own_gpu(local_rank, local_size)
    assert visible == ["GPU:0", "GPU:1", "GPU:2"]


def test_one_process_alone_sees_all(visible: list[Any]) -> None:
    use_own_gpu(0, 1)
    assert visible == []


@pytest.mark.parametrize(("local_rank", "local_size"), [(0, 5), (4, None)])
def test_more_processes_than_gpus(
    visible: list[Any], local_rank: int, local_size: int | None
) -> None:
    with pytest.raises(UserError, match="5 workers on this host, but it has 4 GPUs"):
        use_own_gpu(local_rank, local_size)
    assert visible == []
