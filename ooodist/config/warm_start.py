"""The key ``warm_start`` of a job. Nothing here imports TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ooodist.util.yaml_dataclass import Range


@dataclass(frozen=True)
class WarmStartConfig:
    """The job starts from the weights of a similar trained model. ``zoo``: a folder, an address
    that fsspec knows (as ``s3://bucket/zoo``), or ``host:port`` of ``python -m ooodist.zoo serve``.
    ``task``, ``dataset``: only models for these; empty: the job's own, ``any``: all. ``tags``:
    only models that have them all. ``least_score``: models that are less similar are left alone.
    ``probe_steps``: the best three are trained for so many steps, and the best of them is taken.
    ``lower_rate``: the learning rate begins lower by this share of what was carried over, and
    reaches its own after ``ramp_steps``. ``required``: without a match the job ends; otherwise it
    starts cold. ``register``: the trained model is added to the zoo. ``token_file``: for a
    service (or the variable OOODIST_ZOO_TOKEN); ``certificate``: its own or its authority's;
    ``timeout``: seconds to wait for it."""

    zoo: str
    task: str = ""
    dataset: str = ""
    tags: tuple[str, ...] = ()
    least_score: Annotated[float, Range(0, 1)] = 0.1
    probe_steps: Annotated[int, Range(0)] = 0
    lower_rate: Annotated[float, Range(0, 0.99)] = 0.5
    ramp_steps: Annotated[int, Range(1)] = 200
    required: bool = False
    register: bool = True
    token_file: str | None = None
    certificate: str | None = None
    timeout: Annotated[float, Range(0.1)] = 30.0
