"""Measuring a job that is to be planned and not trained, on all ranks."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from ooodist import config as job_file
from ooodist.config import Config, ExchangeConfig, OrderConfig
from ooodist.engines.base import Engine
from ooodist.profile import Profile, profile_of
from ooodist.training.job import on_all_ranks
from ooodist.training.preparation import agreed, check_writable, load_and_build

logger = logging.getLogger("ooodist")


@dataclass(frozen=True)
class Measured:
    """What planning a job needs of it.

    Attributes:
        title: the model in a few words.
        profile: what its step and the network cost.
        steps_per_epoch: updates in an epoch, over which no launch reaches.
    """

    title: str
    profile: Profile
    steps_per_epoch: int


def run(config: Config, output: Path) -> tuple[int, Measured | None]:
    """Measures the job and disconnects from the other ranks.

    Args:
        config: of the job; its order and its exchanges do not matter.
        output: where rank 0 is going to write.

    Returns:
        the exit code, and what was measured: None on other ranks than 0, and if it failed. The
        process ends where others may not come along.
    """
    # The engine is set up for plans, the step is measured in stock order.
    stock = replace(config, order=OrderConfig(), exchange=ExchangeConfig(), steps_per_launch=None)
    found: list[Measured] = []

    def work(engine: Engine) -> None:
        measured = _measure(stock, engine, output)
        if engine.rank == 0:
            found.append(measured)

    code = on_all_ranks(replace(stock, order=OrderConfig(name="planned")), work)
    return code, found[0] if found and not code else None


def _measure(config: Config, engine: Engine, output: Path) -> Measured:
    engine.check_equal("the job (--config, --set)", job_file.digest(config))
    with agreed(engine):
        if engine.rank == 0:
            check_writable(output)
    data, steps, model = load_and_build(config, engine)
    profiles = config.planning.profiles
    profile = profile_of(
        model,
        next(iter(data.train)),
        engine,
        accumulate=config.accumulate,
        folder=Path(profiles) if profiles else None,
        anew=config.planning.profile_anew,
    )
    return Measured(f"{model.name}, batch {config.batch}", profile, steps // config.accumulate)
