"""What a profile depends on: measured costs hold as long as all of it is the same."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import ooodist
from ooodist.engines.base import Engine
from ooodist.profiler.step import StepToMeasure
from ooodist.util import yaml_dataclass
from ooodist.util.digest import hex_digest


@dataclass(frozen=True)
class Machine:
    """Of one rank.

    Attributes:
        processor: the model of the CPU.
        gpus: models of the GPUs that the rank uses.
        cores: that it may run on.
        onednn: the variable that chooses TensorFlow's kernels on CPUs; null: by the processor.
    """

    processor: str
    gpus: tuple[str, ...]
    cores: int
    onednn: str | None


@dataclass(frozen=True)
class Conditions:
    """What a profile was measured under.

    Attributes:
        model: digest of the model (see :func:`ooodist.graph.digest.model_digest`).
        inputs: dtype and shape of each tensor of a batch.
        accumulate: batches an update.
        precision: Keras's dtype policy.
        optimizer: its class.
        engine, workers: that exchange.
        machine: that of rank 0.
        versions: of the libraries that do the work.
    """

    model: str
    inputs: tuple[str, ...]
    accumulate: int
    precision: str
    optimizer: str
    engine: str
    workers: int
    machine: Machine
    versions: dict[str, str]

    def digest(self) -> str:
        """8 hexadecimal digits that differ when anything does."""
        return hex_digest(yaml_dataclass.dump(self), 8)

    def differences(self, other: Conditions) -> list[str]:
        """What differs, as ``machine.cores: 2, not 4`` (of ``self``, not of ``other``)."""
        mine, others = yaml_dataclass.plain(self), yaml_dataclass.plain(other)
        found = yaml_dataclass.differences(mine, others)
        return [f"{key}: {own}, not {others}" for key, own, others in found]


def present_conditions(model: keras.Model, traced: StepToMeasure, engine: Engine) -> Conditions:
    """Those of a model that is about to be measured, on this rank."""
    leaves = [leaf for leaf in tf.nest.flatten(traced.batches[0]) if leaf is not None]
    return Conditions(
        model=traced.digest,
        inputs=tuple(f"{leaf.dtype.name} {tuple(leaf.shape)}" for leaf in leaves),
        accumulate=len(traced.batches),
        precision=model.dtype_policy.name,
        optimizer=type(model.optimizer).__name__,
        engine=engine.name,
        workers=engine.size,
        machine=_machine(),
        versions=_versions_with(engine.name),
    )


def _machine() -> Machine:
    details = [
        tf.config.experimental.get_device_details(gpu)
        for gpu in tf.config.get_visible_devices("GPU")
    ]
    gpus = tuple(str(detail.get("device_name", "GPU")) for detail in details)
    onednn = os.environ.get("TF_ENABLE_ONEDNN_OPTS")
    return Machine(processor(), gpus, len(os.sched_getaffinity(0)), onednn)


def processor() -> str:
    """The model of the CPU, with its numbers: under one name a cloud has several generations."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    first: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        first.setdefault(key.strip(), value.strip())
    if "model name" not in first:
        return platform.machine()
    numbers = [f"{key} {first[key]}" for key in ("cpu family", "model", "stepping") if key in first]
    return f"{first['model name']} ({', '.join(numbers)})" if numbers else first["model name"]


def versions() -> dict[str, str]:
    """Of the packages that decide the numbers."""
    return {
        "ooodist": ooodist.__version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
    }


def _versions_with(engine: str) -> dict[str, str]:
    is_package = engine in ("horovod", "byteps")  # the others are part of TensorFlow
    return versions() | ({engine: metadata.version(engine)} if is_package else {})
