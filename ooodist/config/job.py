"""Reads the job file, with every key that ``python -m ooodist.train --config FILE`` accepts.

    config = load(Path("job.yaml"), overrides=["batch=32", "optimizer.learning_rate=0.01"])

An empty file trains ResNet-20 on the handwritten digits. Nothing here imports TensorFlow before
all keys that can be checked without it have been checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from ooodist.config.named_arguments import (
    NamedArguments,
    checked_by,
    read_all_named,
    split_name,
    write_all_named,
    write_named,
)
from ooodist.config.warm_start import WarmStartConfig
from ooodist.engines.kinds import for_pipelines, names
from ooodist.errors import UserError
from ooodist.planner.data_parallel.plan import Plan
from ooodist.settings.elastic import ElasticConfig
from ooodist.settings.sections import (
    CheckpointConfig,
    EarlyStoppingConfig,
    ExchangeConfig,
    OrderConfig,
    ParallelConfig,
    PlanningConfig,
    ReportConfig,
)
from ooodist.settings.training import OnNan, StepsPerExecution, Training
from ooodist.util import strict_yaml, yaml_dataclass
from ooodist.util.digest import hex_digest
from ooodist.util.user_functions import names_a_function
from ooodist.util.yaml_dataclass import Count, Range, did_you_mean

if TYPE_CHECKING:
    Engine = str
else:
    Engine = Literal[("auto", *names())]
LARGEST_SEED = 2**31 - 1  # leaves room for the seeds of the ranks, which NumPy limits to 32 bits
MOST_CHARACTERS = 200_000  # of a job file, a hundred times a long one; to read more takes long
LONGEST_STALL = 10**6  # seconds: 11 days

DEFAULTS: dict[str, Any] = {
    "model": {"name": "resnet20"},
    "data": {"name": "digits"},
    "optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9},
}


def _read_model(value: Any, path: str) -> Any:
    from ooodist import models  # imports Keras

    name, settings = split_name(value, path, list(models.MODELS))
    cls = models.config_class(name)
    given = settings | {"function": name} if cls is models.FunctionConfig else settings
    return yaml_dataclass.read_dataclass(cls, given, path)


def _read_data(value: Any, path: str) -> Any:
    from ooodist.config.data import KINDS, FunctionConfig

    name, settings = split_name(value, path, list(KINDS))
    if ":" in name:
        return yaml_dataclass.read_dataclass(FunctionConfig, settings | {"function": name}, path)
    if name not in KINDS:
        raise UserError(
            f"{path}.name is {name}{did_you_mean(name, list(KINDS))}; it must be one of "
            f"{', '.join(KINDS)}, or your own package.module:function"
        )
    return yaml_dataclass.read_dataclass(KINDS[name], settings, path)


def _write_kind(config: Any) -> dict[str, Any]:
    """A model's or data's settings; a user's function takes the place of the name."""
    settings: dict[str, Any] = yaml_dataclass.plain(config)
    if "function" in settings:
        settings["name"] = settings.pop("function")
    return settings


_read_optimizer = checked_by("keras_objects.check_optimizer")
_read_loss = checked_by("keras_objects.check_loss", optional=True)
_read_metrics = checked_by("keras_objects.check_metric", is_list=True, optional=True)
_read_callbacks = checked_by("keras_callbacks.check_callback", is_list=True)


def _read_features(value: Any, path: str) -> tuple[NamedArguments, ...]:
    named = read_all_named(value, path)
    for index, each in enumerate(named):
        if not names_a_function(each.name):
            raise UserError(f"{path}[{index}].name is {each.name}; it must be package.module:class")
    return tuple(named)


@dataclass(frozen=True, kw_only=True)
class Config:
    """A training job; every key has a default. ``engine``: what sums over the workers; ``auto``:
    the one that the launcher has set up. ``workers``: if given, the number of processes that must
    have been started. ``model``: what is trained. ``data``: what it is trained on. ``batch``:
    samples per worker and step (a pipeline is one worker; with ``parallel.devices``, samples of all
    workers together). ``epochs``: passes over the data. ``steps_per_epoch``: null: all batches of
    the data. ``optimizer``: any Keras optimizer and its arguments; ``learning_rate`` is a number or
    a Keras schedule. ``loss``, ``metrics``: null: those of the data's task. ``callbacks``: Keras's
    by name, with their arguments as further keys, or ``package.module:function``, which is called
    with them and returns one or a list. ``features``: ``package.module:class`` of what else is done
    with the gradients of each step (``ooodist.Feature``), with its arguments.
    ``steps_per_execution``: training steps traced into one function: the exchange of one overlaps
    the forward pass of the next; null is the plan's choice, or 1 without a plan. ``accumulate``:
    batches per update and exchange. ``recurrent_gradients``:
    ``after_loop`` computes the weight gradients of LSTM, GRU and SimpleRNN layers by one matrix
    product over all times, which an order can put off, and which is rounded otherwise.
    ``shard_optimizer``: each worker keeps the optimizer's state for a slice of each weight, and
    updates it for all (ZeRO stage 1); pipelines have ``parallel.shard_optimizer``.
    ``jit_compile``: whether XLA compiles the steps, which then have no order; ``auto`` tries both
    and keeps the faster way. ``on_nan``: what happens if a gradient is not finite: ``stop`` ends
    the job and names step, rank and weight; ``skip``: all ranks leave the step out, 100 in a row at
    most; ``ignore``: no check. ``precision``: Keras's dtype policy. ``seed``: of initial
    weights, shuffling and dropout. ``output``: the folder for what is written; if not given,
    ``runs/`` and the kind of the data. ``timeout``: seconds without progress after which the job
    ends; null: ten times the longest step so far, and 60 at least."""

    engine: Engine = "auto"
    workers: Count | None = None
    model: Any = field(metadata={"reader": _read_model, "writer": _write_kind})
    data: Any = field(metadata={"reader": _read_data, "writer": _write_kind})
    batch: Count = 64
    epochs: Count = 10
    steps_per_epoch: Count | None = None
    optimizer: NamedArguments = field(
        metadata={"reader": _read_optimizer, "writer": write_named},
    )
    loss: NamedArguments | None = field(
        default=None, metadata={"reader": _read_loss, "writer": write_named}
    )
    metrics: tuple[NamedArguments, ...] | None = field(
        default=None, metadata={"reader": _read_metrics, "writer": write_all_named}
    )
    callbacks: tuple[NamedArguments, ...] = field(
        default=(), metadata={"reader": _read_callbacks, "writer": write_all_named}
    )
    features: tuple[NamedArguments, ...] = field(
        default=(), metadata={"reader": _read_features, "writer": write_all_named}
    )
    order: OrderConfig = OrderConfig()
    planning: PlanningConfig = PlanningConfig()
    steps_per_execution: StepsPerExecution = field(
        default=None, metadata={"was": "steps_per_launch"}
    )
    accumulate: Count = 1
    recurrent_gradients: Literal["in_loop", "after_loop"] = "in_loop"
    jit_compile: Literal["auto"] | bool = False
    parallel: ParallelConfig | None = None
    elastic: ElasticConfig | None = None
    shard_optimizer: bool = False
    warm_start: WarmStartConfig | None = field(default=None, metadata={"was": "warmup"})
    exchange: ExchangeConfig = ExchangeConfig()
    on_nan: OnNan = "stop"
    precision: Literal["float32", "mixed_float16", "mixed_bfloat16"] = "float32"
    seed: Annotated[int, Range(0, LARGEST_SEED)] = 1
    output: str = "runs/digits"
    checkpoint: CheckpointConfig = CheckpointConfig()
    early_stopping: EarlyStoppingConfig | None = None
    report: ReportConfig = ReportConfig()
    timeout: Annotated[float, Range(1, LONGEST_STALL)] | None = field(
        default=None, metadata={"was": "stall_limit"}
    )

    def __post_init__(self) -> None:
        for name, path in (
            ("output", self.output),
            ("planning.profiles", self.planning.profiles),
            ("order.plan", self.order.plan),
            ("checkpoint.resume", self.checkpoint.resume),
            ("checkpoint.copy_to", self.checkpoint.copy_to),
            ("report.metrics", self.report.metrics),
        ):
            if isinstance(path, str) and (not path.strip() or "\0" in path):
                raise UserError(f"{name} is {path!r}; it must be a path, as runs/mine")
        if self.parallel is not None:
            self._check_parallel(self.parallel)
        elif self.engine == for_pipelines().name:
            raise UserError(
                f"engine is {self.engine}, which runs pipelines, but there is no key parallel; "
                "give it, as {pipeline: 2, microbatches: 4}, or take horovod, byteps or collective"
            )
        if self.warm_start is not None and getattr(self.model, "weights", None) is not None:
            raise UserError(
                f"model.weights is {self.model.weights} and warm_start.zoo is "
                f"{self.warm_start.zoo}, which would replace them; leave one of them out"
            )
        self.training()

    def training(self, plan: Plan | None = None, features: Sequence[Any] = ()) -> Training:
        """What of the job is about its steps.

        Args:
            plan: what ``order.plan`` names, once it is read.
            features: what ``features`` names, once they are made.

        Raises:
            UserError: some of it does not go together.
        """
        is_elastic = self.elastic is not None and not self.elastic.is_full
        return Training(
            order=self.order.name if plan is None else plan,
            k=self.order.k,
            plan_file=self.order.plan if plan is None else None,
            steps_per_execution=self.steps_per_execution,
            accumulate=self.accumulate,
            exchange=self.exchange,
            planning=self.planning,
            parallel=self.parallel,
            elastic=self.elastic if is_elastic else None,
            shard_optimizer=self.shard_optimizer,
            features=tuple(features),
            on_nan=self.on_nan,
            jit_compile=self.jit_compile,
            sum_rows=True,  # it trains alike with any number of workers
            timeout=self.timeout,
        )

    def _check_parallel(self, parallel: ParallelConfig) -> None:
        if self.batch % parallel.microbatches:
            raise UserError(
                f"batch is {self.batch}, which cannot be split into {parallel.microbatches} "
                "micro-batches of one size; make batch a multiple of parallel.microbatches"
            )
        if self.engine not in ("auto", for_pipelines().name):
            raise UserError(
                f"engine is {self.engine}, but pipelines run over MPI; set engine to "
                f"{for_pipelines().name} or auto"
            )
        if self.workers not in (None, parallel.ranks):
            raise UserError(
                f"workers is {self.workers}, but parallel has {parallel.ranks} processes; leave "
                "workers out"
            )


def load(file: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Reads a job from a file (None: the default job), with overrides ``key.key=YAML value``.

    Raises UserError.
    """
    return yaml_dataclass.read_dataclass(Config, _with_defaults(_given(file, overrides)), "")


def load_parallel(
    file: Path | None, overrides: Sequence[str] = ()
) -> tuple[ParallelConfig, float | None]:
    """Reads only ``parallel`` and ``timeout`` of a job, and checks the names of the other keys.

    It imports neither TensorFlow nor Keras. Raises UserError, also if there is no ``parallel``.
    """
    settings = _given(file, overrides)
    yaml_dataclass.check_fields(settings, Config, "")
    hints = get_type_hints(Config, include_extras=True)
    parallel = yaml_dataclass.read(hints["parallel"], settings.get("parallel"), "parallel")
    if parallel is None:
        raise UserError(
            "parallel is missing; give the job a pipeline, as parallel: {pipeline: 4, "
            "microbatches: 8}"
        )
    given = settings.get("timeout", Config.timeout)
    return parallel, yaml_dataclass.read(hints["timeout"], given, "timeout")


def loads(text: str) -> Config:
    """Reads a job from YAML text. Raises UserError."""
    settings = _group_of_keys(strict_yaml.parse(text, "the job"), "the job")
    return yaml_dataclass.read_dataclass(Config, _with_defaults(settings), "")


def to_yaml(config: Config) -> str:
    """All keys of the job as YAML, from which :func:`loads` makes an equal config."""
    return yaml_dataclass.dump(config)


def digest(config: Config) -> str:
    """A digest of all keys of the job."""
    return hex_digest(to_yaml(config))


def _with_defaults(given: dict[str, Any]) -> dict[str, Any]:
    settings = DEFAULTS | given
    data = settings["data"]
    kind = data.get("name") if isinstance(data, dict) else data
    return {"output": f"runs/{kind}"} | settings if isinstance(kind, str) else settings


def _given(file: Path | None, overrides: Sequence[str]) -> dict[str, Any]:
    """The settings in a file, changed by the overrides."""
    value = None
    if file is not None:
        value = strict_yaml.parse_file(file, "--config", most_characters=MOST_CHARACTERS)
    settings = _group_of_keys(value, str(file))
    for override in overrides:
        _override(settings, override)
    return settings


def _group_of_keys(settings: Any, source: str) -> dict[str, Any]:
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise UserError(f"{source}: a job file has lines as `batch: 64`, this one has none")
    return settings


def _override(settings: dict[str, Any], override: str) -> None:
    """Changes ``settings`` by ``key.key=value``."""
    key, equals, text = override.partition("=")
    *groups, last = key.strip().split(".")
    if not equals or not all([*groups, last]):
        raise UserError(
            f"--set {override}: it must be key=value, for example --set optimizer.momentum=0.9"
        )
    value = strict_yaml.parse(text, f"--set {key}")
    here = settings
    for depth, group in enumerate(groups):
        # `--set optimizer.momentum=0` changes the default optimizer if the file names none;
        # `--set optimizer.name=adam` replaces it.
        default = DEFAULTS.get(group, {}) if depth == 0 and last != "name" else {}
        inner = here.get(group)
        if isinstance(inner, str) and group in DEFAULTS and depth == 0:
            inner = {"name": inner}
        elif inner is None:
            inner = dict(default)
        if not isinstance(inner, dict):
            raise UserError(
                f"--set {override}: {'.'.join(groups[: depth + 1])} is {inner}, which has no keys"
            )
        here[group] = inner
        here = inner
    here[last] = value
