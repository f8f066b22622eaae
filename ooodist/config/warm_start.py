"""The ``warm_start`` section of a job. Nothing here imports TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ooodist.util.yaml_dataclass import Range


@dataclass(frozen=True)
class WarmStartConfig:
    """Starts the job from the weights of a similar trained model. ``zoo``: a folder, an fsspec URL
    (such as ``s3://bucket/zoo``), or ``host:port`` of ``python -m ooodist.zoo serve``. ``task``,
    ``dataset``: consider only models for these; empty: the job's own, ``any``: all. ``tags``:
    consider only models that have all of them. ``least_score``: ignore less similar models.
    ``probe_steps``: train the best three for this many steps and take the best of them.
    ``lower_rate``: lower the learning rate at first by this share times the share of weights
    carried over. ``ramp_steps``: within how many steps it recovers. ``required``: end the job if no
    model matches, instead of a cold start. ``register``: add the trained model to the zoo.
    ``judged_by``: the metric that decides how good it is; empty: accuracy for classification,
    perplexity for language models, RMSE for regression, the loss for pre-training.
    ``token_file``: the token for a zoo service (or set the variable OOODIST_ZOO_TOKEN);
    ``certificate``: the service's certificate or its authority's; ``timeout``: seconds to wait for
    the service."""

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
    judged_by: str = ""
    token_file: str | None = None
    certificate: str | None = None
    timeout: Annotated[float, Range(0.1)] = 30.0
