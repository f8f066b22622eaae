"""Plans pipelines for ``python -m ooodist.plan``, from the costs of layers or from a job."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ooodist.config.job import Config
from ooodist.errors import UserError
from ooodist.plan.described import described_hosts, described_link
from ooodist.plan.measuring import in_this_process
from ooodist.plan.options import ALL, output_of
from ooodist.plan.sizes import settings_of, with_devices_of
from ooodist.planner.pipeline.layer_costs import ModelCosts, read_model_costs
from ooodist.planner.pipeline.plan import AUTO, NAMES
from ooodist.report.pipeline.outcomes import PipelineSubject, Setting
from ooodist.report.still_running import still_running
from ooodist.settings.sections import ParallelConfig
from ooodist.util import strict_yaml, yaml_dataclass
from ooodist.util.program import refuse_given

logger = logging.getLogger("ooodist")


def has_pipeline(options: argparse.Namespace) -> bool:
    """Whether the options say into how many ranks a pipeline is divided.

    ``--devices`` alone does not: with ``--hosts``, it describes a cluster of data parallel workers.
    """
    return bool(options.pipeline or (options.devices and options.microbatches))


def is_asked_for(options: argparse.Namespace, config: Config) -> bool:
    """Whether a pipeline is to be planned for a job.

    Raises UserError if there are options of pipelines but no pipeline.
    """
    parallel = config.parallel
    if has_pipeline(options) or (
        parallel is not None and (parallel.pipeline > 1 or parallel.devices is not None)
    ):
        return True
    _refuse_without_pipeline(options)
    return False


def check_options(options: argparse.Namespace) -> None:
    """Raises UserError for options of data-parallel training."""
    refuse_given(
        options,
        (
            "--workers",
            "--servers",
            "--steps-per-execution",
            "--carried",
            "--wire",
            "--low-rank",
            "--engine",
        ),
        "{} is of data parallel training, and this is a pipeline, whose ranks are --pipeline or "
        "parallel.pipeline, and its replicas --data; leave the one or the other out",
    )


def check_kind_of_costs(options: argparse.Namespace) -> None:
    """Raises UserError unless the file has costs of layers with --pipeline, of a step without."""
    value = strict_yaml.parse_file(options.costs, "--costs")
    if not isinstance(value, dict):
        return  # reading the file will report the error
    if "layers" in value and not has_pipeline(options):
        raise UserError(
            f"--costs {options.costs} has the costs of layers, which are for pipelines; give "
            "--pipeline 4 --microbatches 8, or a file with the costs of a step (forward, backward, "
            "weights)"
        )
    if "layers" not in value and "backward" in value and has_pipeline(options):
        raise UserError(
            f"--costs {options.costs} has the costs of a step of data parallel training, but "
            "--pipeline needs those of layers (key layers), which planning a pipeline with "
            "--config measures; leave --pipeline out, or give such a file"
        )
    if not has_pipeline(options):
        _refuse_without_pipeline(options)


def plan_costs(options: argparse.Namespace) -> str:
    """Plans from the costs in a file and returns the text to print. Raises UserError."""
    check_options(options)
    costs = read_model_costs(options.costs)
    settings = settings_of(options, ParallelConfig(data=costs.replicas))
    names = _names(options, ParallelConfig())
    costs = _described(options, costs, costs.memory_limit)
    subject = PipelineSubject(
        options.costs.stem,
        {setting.microbatches: costs for setting in settings},
        hosts=described_hosts(options, costs.link),
    )
    return _plan(subject, settings, names, output_of(options))


def plan_job(options: argparse.Namespace, config: Config) -> tuple[int, str]:
    """Measures the layers of a job and plans; returns the exit code and the text to print.

    There is no text if measuring has failed. Raises UserError.
    """
    check_options(options)
    parallel = config.parallel or ParallelConfig()
    if parallel.devices is not None:
        options, parallel = with_devices_of(options, parallel)
    settings = settings_of(options, parallel)
    names = _names(options, parallel)
    numbers = list(dict.fromkeys(setting.microbatches for setting in settings))
    samples = config.batch  # of a step
    size = None  # of a micro-batch, if all settings have the same
    if options.devices:
        samples *= parallel.data
        size = _split(samples, settings[0].microbatches * settings[0].replicas)
        batches = {number: number * size for number in numbers}
    else:
        for number in numbers:
            _split(samples, number)
        batches = dict.fromkeys(numbers, samples)
    empty = ModelCosts((), recompute=parallel.recompute)
    described = _described(options, empty, parallel.memory_bytes)
    hosts = described_hosts(options, described.link)
    output = output_of(options, config.output)
    config = replace(config, parallel=None, batch=size or config.batch)
    config = in_this_process(
        config, "a pipeline is planned in one process, but this one", "start it with plain python"
    )
    # Imported late, because it imports TensorFlow, which takes seconds.
    from ooodist.job import measurement

    code, measured = measurement.measure_layers_of(
        config, parallel.split, [1] if size else numbers, output
    )
    if code:
        return code, ""
    described = replace(described, has_barrier=measured.has_barrier)
    costs = {
        number: replace(described, layers=measured.layers[1 if size else number])
        for number in numbers
    }
    subject = PipelineSubject(f"{measured.model}, batch {samples}", costs, batches, hosts)
    return 0, _plan(subject, settings, names, output)


def _split(samples: int, microbatches: int) -> int:
    """The samples of a micro-batch. Raises UserError if they would differ in size."""
    if samples % microbatches:
        raise UserError(
            f"batch is {samples}, which cannot be split into {microbatches} micro-batches of one "
            "size; make batch a multiple of them, as with --set batch="
            f"{microbatches * max(1, samples // microbatches)}"
        )
    return samples // microbatches


def _plan(
    subject: PipelineSubject, settings: Sequence[Setting], names: Sequence[str], output: Path
) -> str:
    # Imported late, as Matplotlib loads slowly and errors in the options need not wait for it.
    from ooodist.report.pipeline.planned import plan_pipelines

    logger.setLevel(logging.INFO)
    with still_running("simulating and drawing schedules"):
        return plan_pipelines(subject, settings, names, output)


def _names(options: argparse.Namespace, parallel: ParallelConfig) -> list[str]:
    """The names of the schedules; by default all, and the job's file if it names one."""
    names: list[str] = options.schedule or [ALL, parallel.schedule]
    for name in names:
        if name not in (ALL, AUTO, *NAMES) and not name.endswith(".csv"):
            near = yaml_dataclass.did_you_mean(name, [ALL, AUTO, *NAMES])
            raise UserError(
                f"--schedule is {name}{near}; it must be {ALL}, {AUTO}, some of "
                f"{', '.join(NAMES)}, or a file as schedule.csv"
            )
    every = [(*NAMES, AUTO) if name == ALL else (name,) for name in names]
    return list(dict.fromkeys(name for each in every for name in each))


def _described(options: argparse.Namespace, costs: ModelCosts, limit: int | None) -> ModelCosts:
    """The costs with the options' link and memory limit; ``limit`` is the default limit."""
    costs = replace(costs, memory_limit=options.memory or limit)
    link = described_link(options)
    if link is None:
        return costs
    return replace(costs, link=link, links=None, replica_link=None)


def _refuse_without_pipeline(options: argparse.Namespace) -> None:
    refuse_given(
        options,
        ("--data", "--microbatches", "--chunks", "--schedule", "--shard-optimizer"),
        "{} is of a pipeline, and there is none; give --pipeline 4 as well, or a job with "
        "parallel.pipeline",
    )
