"""What a profile depends on, as this machine has it."""

from __future__ import annotations

import platform
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from ooodist.engines.local import LocalEngine
from ooodist.profiler.conditions import Conditions, present_conditions, processor
from tests.profiler.models import batch, dense_chain

CPUINFO = """\
processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: {model}
model name\t: AMD EPYC
stepping\t: 1

processor\t: 1
cpu family\t: 26
model name\t: another
"""


def with_cpuinfo(monkeypatch: pytest.MonkeyPatch, text: str | None) -> str:
    def read_text(path: Path, **_: object) -> str:
        assert path == Path("/proc/cpuinfo")
        if text is None:
            raise FileNotFoundError(path)
        return text

    monkeypatch.setattr(Path, "read_text", read_text)
    return processor()


def test_generations_of_one_name_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    one = with_cpuinfo(monkeypatch, CPUINFO.format(model=1))
    assert one == "AMD EPYC (cpu family 25, model 1, stepping 1)"
    assert with_cpuinfo(monkeypatch, CPUINFO.format(model=17)) != one


@pytest.mark.parametrize("text", [None, "", "CPU implementer\t: 0x41\n"])
def test_a_processor_without_a_name(monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    assert with_cpuinfo(monkeypatch, text) == platform.machine()


def test_a_name_without_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_cpuinfo(monkeypatch, "model name\t: A CPU\n") == "A CPU"


def conditions(model: keras.Model) -> Conditions:
    return present_conditions(model, "digest", [batch()], LocalEngine())


def test_a_profile_outlives_numpy_but_not_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    model = dense_chain()
    now = conditions(model)
    monkeypatch.setattr(np, "__version__", "9.9.9")
    assert conditions(model) == now
    monkeypatch.setattr(tf, "__version__", "9.9.9")
    other = conditions(model)
    assert other.differences(now) == [
        f"versions.tensorflow: 9.9.9, not {now.versions['tensorflow']}"
    ]


def test_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    model = dense_chain()
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    default = conditions(model)
    assert default.machine.processor == processor()
    assert default.machine.onednn is None
    assert default.workers == 1
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    forced = conditions(model)
    assert forced.differences(default) == ["machine.onednn: 1, not None"]
    assert forced.digest() != default.digest()
