"""The folder in which profiles are kept, one YAML file each."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path

from ooodist.engines.base import Engine
from ooodist.errors import UserError
from ooodist.planner.costs import Network, StepCosts
from ooodist.profiler.conditions import Conditions
from ooodist.settings.sections import PlanningConfig
from ooodist.util import yaml_dataclass
from ooodist.util.replacing import replacing

logger = logging.getLogger("ooodist")

MOST_READ = 3  # profiles of other models; a large one takes half a second
DEFAULT_FOLDER = "~/.cache/ooodist/profiles"


@dataclass(frozen=True)
class Calibration:
    """Factors from the costs of a profile to the seconds of elastic steps.

    Attributes:
        fixed: of what every step computes.
        selectable: of what a selection may leave out.
        exchange: the settings with which ``waiting`` was measured; "" with one worker.
        waiting: of the simulated wait for the exchange.
    """

    fixed: float
    selectable: float
    exchange: str = ""
    waiting: float = 1.0


@dataclass(frozen=True)
class Profile:
    """The measured costs of a model's step and of a network.

    Attributes:
        name: the name of the model.
        measured: when it was measured, in UTC, as 2027-01-31T09:00:00Z.
        host: the host that rank 0 ran on.
        conditions: the conditions under which it was measured.
        network: the costs of exchanges with the engine, on the slowest rank.
        costs: the costs of a step, on the slowest rank.
        step_seconds: seconds of a training step by default, just before; None: it was not trained.
        elastic: how these differ from elastic steps; None if there were none.
    """

    name: str
    measured: str
    host: str
    conditions: Conditions
    network: Network
    costs: StepCosts
    step_seconds: float | None = None
    elastic: Calibration | None = None

    @property
    def model(self) -> str:
        """Digest of the model, as in plans."""
        return self.conditions.model


def folder_of(setting: str | None) -> Path:
    """The folder that ``planning.profiles`` names; None: the default one."""
    return Path(setting or DEFAULT_FOLDER).expanduser()


def from_yaml(text: str, source: str) -> Profile:
    """Reads a profile from YAML text. Raises UserError, which names ``source`` as its origin."""
    try:
        return yaml_dataclass.read_text(Profile, text, source)
    except UserError as error:
        raise UserError(f"profile {source}: {error}; delete it, to measure again") from error


def file_name(name: str, conditions: Conditions) -> str:
    """A file name such as ``resnet20-horovod-2-workers-1f0c9a3e.yaml``."""
    end = _end(conditions.engine, conditions.workers)
    return f"{_as_file_name(name)}{end}-{conditions.digest()}.yaml"


def find(folder: Path, name: str, conditions: Conditions) -> Profile | None:
    """Finds the profile that was measured under these conditions; if there is none, logs why.

    Args:
        folder: the folder of profiles; need not exist.
        name: the name of the model.
        conditions: the present conditions.
    """
    file = folder / file_name(name, conditions)
    profile = _read(file) if file.exists() else None
    if profile is not None and profile.conditions == conditions:
        logger.info("profile: %s, measured %s", file, profile.measured)
        return profile
    others = sorted(folder.glob(f"{_as_file_name(name)}-*.yaml"), key=_age)
    known = [(other, _read(other)) for other in others if other != file]
    for other, found in known:
        if found is not None:
            logger.info(
                "profile: %s does not count here: %s",
                other,
                "; ".join(conditions.differences(found.conditions)),
            )
            break
    logger.info("profile: none in %s is for this model, machine and job: measuring", folder)
    return None


def network_of_others(folder: Path, conditions: Conditions) -> Network | None:
    """The newest network that was measured with another model, on the same machine and engine."""
    if conditions.workers == 1:
        return None
    files = folder.glob(f"*{_end(conditions.engine, conditions.workers)}-*.yaml")
    for file in sorted(files, key=_age)[:MOST_READ]:
        profile = _read(file)
        if profile is not None and profile.conditions.has_network_of(conditions):
            logger.info("profile: the network is that of %s, measured %s", file, profile.measured)
            return profile.network
    return None


def is_kept(settings: PlanningConfig, name: str | None, engine: Engine) -> bool:
    """Whether a profile of a model of this name (None: any) may be used, by its file's name."""
    end = _end(engine.name, engine.size)
    stem = f"*{end}" if name is None else _as_file_name(name) + end
    files = folder_of(settings.profiles).glob(f"{stem}-*.yaml")
    return not settings.profile_anew and next(files, None) is not None


def write(folder: Path, profile: Profile) -> Path:
    """Writes a profile atomically and returns its file. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / file_name(profile.name, profile.conditions)
    with replacing(file) as temporary:
        yaml_dataclass.write_file(profile, temporary)
    return file


def _read(file: Path) -> Profile | None:
    """Reads a profile; warns and returns None if the file cannot be read."""
    try:
        return from_yaml(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        logger.warning("profile %s cannot be read (%s) and does not count", file, error)
    except UserError as error:
        logger.warning("%s", error)
    return None


def _age(file: Path) -> float:
    """A sort key that puts the newest file first."""
    try:
        return -file.stat().st_mtime
    except OSError:  # deleted in the meantime
        return 0.0


def _end(engine: str, workers: int) -> str:
    return f"-{engine}-{workers}-worker{'s' if workers > 1 else ''}"


def _as_file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "_", name)
