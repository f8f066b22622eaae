"""Detects from the environment which engine this process was started for; needs no TensorFlow."""

from collections.abc import Mapping

from ooodist.engines import kinds
from ooodist.engines.kinds.kind import Launched
from ooodist.engines.kinds.started import SLURM_SIZE, number, slurm_tasks
from ooodist.errors import UserError
from ooodist.util.quantity import counted


def detect(environ: Mapping[str, str]) -> tuple[str, str]:
    """The engine that the environment asks for, and why.

    Raises:
        UserError: a variable has an invalid value, or several processes were started that would
            train without each other.
    """
    named = environ.get("OOODIST_ENGINE")
    if named is not None:
        return check_name(named, "OOODIST_ENGINE"), f"OOODIST_ENGINE={named}"
    found = _launched(environ)
    for engine, (size, reason, on_purpose) in found.items():
        if kinds.find(engine).is_detected and (size > 1 or on_purpose):
            return engine, reason
    _refuse_strangers(environ)
    return "local", "no launcher, such as ooodist-launch, has set its variables"


def choose(
    engine: str, environ: Mapping[str, str], workers: int | None, to_start: int | None = None
) -> tuple[str, str]:
    """The engine to use, and why: ``engine``, or the detected one if that is "auto".

    Args:
        workers: the number of workers that the user expects, if given.
        to_start: how many processes an error tells to start; None: ``workers``, or else 2.

    Raises:
        UserError: the environment does not fit the engine, so that, for example, each process
            would train on its own.
    """
    if check_name(engine, "engine") == "auto":
        name, reason = detect(environ)
    else:
        name, reason = engine, f"engine: {engine}"
    found, kind = _launched(environ), kinds.find(name)
    kind.check_role(environ)
    if name not in found and not kind.is_alone and (workers != 1 or kind.has_servers):
        others = "".join(f", but {each.reason} (engine {other})" for other, each in found.items())
        by_slurm = slurm_tasks(environ) and kind.starter is not None
        to_start = to_start or workers or 2
        start = _slurm_launch(name) if by_slurm else kind.launch_command(to_start)
        raise UserError(
            f"{reason}, but this process was not started by a launcher of {name}{others}; start "
            f"it with: {start}" + ("" if found else " (or take engine: local)")
        )
    if kind.is_alone:
        for other, (size, why, _) in found.items():
            if size > 1:
                raise UserError(
                    f"{reason}, but this process is one of {size} of engine {other} ({why}): each "
                    f"would train on its own; take engine: {other} (or auto), or start one "
                    "process with plain python"
                )
    elif name in found:  # before the ranks know each other, and would wait for each other to end
        check_size(name, found[name].size, environ, workers)
    return name, reason


def check_size(name: str, size: int, environ: Mapping[str, str], workers: int | None) -> None:
    """Raises UserError if ``size`` differs from what the user or the launcher said."""
    if workers is not None and workers != size:
        raise UserError(
            f"workers is {workers}, but engine {name} runs {size}: start "
            f"{counted(workers, 'process', 'es')}, set workers to {size}, or leave it out"
        )
    if "OOODIST_SIZE" in environ and number(environ, "OOODIST_SIZE") != size:
        raise UserError(
            f"the launcher started {environ['OOODIST_SIZE']} workers (OOODIST_SIZE), but "
            f"engine {name} sees {size}; remove variables of another launcher from the environment"
        )


def check_name(engine: str, where: str) -> str:
    """Checks that an engine's name is known, and passes it on. Raises UserError."""
    allowed = kinds.names() if where == "OOODIST_ENGINE" else ("auto", *kinds.names())
    if engine not in allowed:
        raise UserError(f"{where} is {engine!r}; it must be one of {', '.join(allowed)}")
    return engine


def _launched(environ: Mapping[str, str]) -> dict[str, Launched]:
    """Finds the engines whose launchers have set variables, the likeliest first."""
    every = [*kinds.kinds().values()][::-1]
    every.sort(key=lambda kind: not kind.is_detected)
    found = {kind.name: kind.launched(environ) for kind in every}
    return {name: each for name, each in found.items() if each is not None}


def _slurm_launch(engine: str) -> str:
    return f"srun … python -m ooodist.launcher.slurm --engine {engine} -- python my_training.py"


def _refuse_strangers(environ: Mapping[str, str]) -> None:
    """Raises UserError if processes were started together that cannot find each other."""
    kind = next(kind for kind in kinds.kinds().values() if kind.sums)
    size, why, start = slurm_tasks(environ), f"srun ({SLURM_SIZE})", _slurm_launch(kind.name)
    if size < 2 and {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environ.keys():
        size = number(environ, "WORLD_SIZE")
        why, start = "torchrun (WORLD_SIZE)", kind.launch_command(size)
    if size > 1:
        raise UserError(
            f"this process is one of {size} that were started by {why}, which does not join them: "
            f"each would train on its own; start them with: {start}, or take engine: local, if "
            "that is what you want"
        )
