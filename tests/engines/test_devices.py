"""Which GPU a process takes. Hosts with GPUs are imitated: TensorFlow is asked for its list."""

from __future__ import annotations

import os
from typing import Any

import pytest
import tensorflow as tf

from ooodist.engines.devices import show_own_gpu_alone, use_own_device
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
        use_own_device(local_rank, local_size)
    assert visible == ["GPU:0", "GPU:1", "GPU:2"]


def test_one_process_alone_sees_all(visible: list[Any]) -> None:
    use_own_device(0, 1)
    assert visible == []


@pytest.mark.parametrize(("local_rank", "local_size"), [(0, 5), (4, None)])
def test_more_processes_than_gpus(
    visible: list[Any], local_rank: int, local_size: int | None
) -> None:
    with pytest.raises(UserError, match="5 workers on this host, but it has 4 GPUs"):
        use_own_device(local_rank, local_size)
    assert visible == []


@pytest.mark.parametrize(
    ("named", "local_rank", "local_size", "shown"),
    [
        (None, 0, 1, None),
        (None, 2, 4, "2"),
        (None, 2, None, "2"),
        ("4,5,6,7", 1, 4, "5"),
        ("4,5", 0, 1, "4,5"),
        ("3", 1, 4, "3"),  # by the launcher
        ("-1", 1, 4, "-1"),  # none are to be used
    ],
)
def test_only_its_own_is_shown(
    monkeypatch: pytest.MonkeyPatch,
    named: str | None,
    local_rank: int,
    local_size: int | None,
    shown: str | None,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    show_own_gpu_alone(local_rank, local_size)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == shown


def test_too_few_gpus_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(
        UserError, match=r"worker 2 of this host .from 0., but CUDA_VISIBLE_DEVICES is 0,1"
    ):
        show_own_gpu_alone(2, None)
