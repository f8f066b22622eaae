"""The conditions of a profile: its measured costs hold as long as all of them are the same."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import ooodist
from ooodist.engines.base import Engine
from ooodist.engines.kinds import find
from ooodist.step.execution import Batch
from ooodist.util import yaml_dataclass
from ooodist.util.digest import hex_digest
from ooodist.util.packages import version


@dataclass(frozen=True)
class Machine:
    """The hardware of one rank.

    Attributes:
        processor: the model of the CPU.
        gpus: the models of the GPUs that the rank uses.
        cores: the number of cores that it may run on.
        onednn: the value of ``TF_ENABLE_ONEDNN_OPTS``, which selects TensorFlow's CPU kernels;
            null: TensorFlow decides by the processor.
    """

    processor: str
    gpus: tuple[str, ...]
    cores: int
    onednn: str | None


@dataclass(frozen=True)
class Conditions:
    """The conditions under which a profile was measured.

    Attributes:
        model: digest of the model (see :func:`ooodist.graph.digest.model_digest`).
        inputs: dtype and shape of each tensor of a batch.
        accumulate: batches per update.
        precision: the model's Keras dtype policy.
        optimizer: the class name of the optimizer.
        engine, workers: name of the engine, and how many workers exchange with it.
        machine: the machine of rank 0.
        versions: versions of the libraries that do the work; a traced step does not call NumPy.
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
        """8 hexadecimal digits that identify the conditions."""
        return hex_digest(yaml_dataclass.dump(self), 8)

    def has_network_of(self, other: Conditions) -> bool:
        """Whether an exchange costs as much in both, whatever the models are."""
        mine, others = (
            (each.engine, each.workers, each.machine, each.versions) for each in (self, other)
        )
        return mine == others

    def differences(self, other: Conditions) -> list[str]:
        """What differs, as ``machine.cores: 2, not 4`` (2 in ``self``, 4 in ``other``)."""
        mine, others = yaml_dataclass.plain(self), yaml_dataclass.plain(other)
        found = yaml_dataclass.differences(mine, others)
        return [f"{key}: {own}, not {others}" for key, own, others in found]


def present_conditions(
    model: keras.Model, digest: str, batches: Sequence[Batch], engine: Engine
) -> Conditions:
    """This rank's conditions for a model that is about to be measured.

    Args:
        model: compiled.
        digest: of the model (see :func:`ooodist.graph.digest.model_digest`).
        batches: the batches of an update, as tensors.
        engine: the engine in use.
    """
    leaves = [leaf for leaf in tf.nest.flatten(batches[0]) if leaf is not None]
    return Conditions(
        model=digest,
        inputs=tuple(f"{leaf.dtype.name} {tuple(leaf.shape)}" for leaf in leaves),
        accumulate=len(batches),
        precision=model.dtype_policy.name,
        optimizer=type(model.optimizer).__name__,
        engine=engine.name,
        workers=engine.size,
        machine=_machine(),
        versions=_versions_of_step(engine.name),
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
    """The CPU's model and its numbers, because clouds use one name for several."""
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


def _versions_of_step(engine: str) -> dict[str, str]:
    package = find(engine).package
    found = versions() | ({} if package is None else {package: version(package)})
    del found["numpy"]
    return found
