"""Detects from the environment which engine this process was started for; needs no TensorFlow."""

import json
from collections.abc import Mapping

from ooodist.errors import UserError
from ooodist.util.quantity import counted

ENGINES = ("local", "collective", "horovod", "byteps", "mpi")
_LAUNCH = {
    "collective": "python -m ooodist.launch -np {size} --engine collective -- "
    "python -m ooodist.train …",
    "horovod": "horovodrun -np {size} python -m ooodist.train …",
    "byteps": "python -m ooodist.launch -np {size} --engine byteps -- python -m ooodist.train …",
    "mpi": "mpirun -np {size} python -m ooodist.train …",
}
# Variables that hold the number of processes: those of horovodrun (gloo), Open MPI, other MPIs.
_HOROVOD_SIZES = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
_SLURM_SIZE = "SLURM_STEP_NUM_TASKS"
_FIRST_SPECIAL_STEP = 0xFFFFFFF0  # of Slurm: batch scripts, interactive shells


def detect(environ: Mapping[str, str]) -> tuple[str, str]:
    """Returns the engine that the environment asks for, and why.

    Raises:
        UserError: a variable has an invalid value, or several processes were started that would
            train without each other.
    """
    named = environ.get("OOODIST_ENGINE")
    if named is not None:
        return check_name(named, "OOODIST_ENGINE"), f"OOODIST_ENGINE={named}"
    found = _launched(environ)
    for engine, (size, reason) in found.items():
        # HOROVOD_SIZE=1 means that somebody started one process on purpose.
        if size > 1 or reason.startswith(("HOROVOD", "DMLC")):
            return engine, reason
    _refuse_strangers(environ)
    return "local", "no launcher, such as ooodist-launch, has set its variables"


def choose(
    engine: str, environ: Mapping[str, str], workers: int | None, to_start: int | None = None
) -> tuple[str, str]:
    """Returns the engine to use, and why: ``engine``, or the detected one if that is "auto".

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
    found = _launched(environ)
    if name == "byteps" and environ.get("DMLC_ROLE", "worker") != "worker":
        raise UserError(
            f"DMLC_ROLE={environ['DMLC_ROLE']}: this process is to be no worker; start it as "
            "python -c 'import byteps.server'"
        )
    if name not in found and name != "local" and (workers != 1 or name == "byteps"):
        others = "".join(f", but {why} (engine {other})" for other, (_, why) in found.items())
        by_slurm = _slurm_tasks(environ) and name != "mpi"
        start = _slurm_launch(name) if by_slurm else _launch(name, to_start or workers)
        raise UserError(
            f"{reason}, but this process was not started by a launcher of {name}{others}; start "
            f"it with: {start}" + ("" if found else " (or take engine: local)")
        )
    if name == "local":
        for other, (size, why) in found.items():
            if size > 1:
                raise UserError(
                    f"{reason}, but this process is one of {size} of engine {other} ({why}): each "
                    f"would train on its own; take engine: {other} (or auto), or start one "
                    "process with plain python"
                )
    elif name in found:  # before the ranks know each other, and would wait for each other to end
        check_size(name, found[name][0], environ, workers)
    return name, reason


def check_size(name: str, size: int, environ: Mapping[str, str], workers: int | None) -> None:
    """Raises UserError if ``size`` differs from what the user or the launcher said."""
    if workers is not None and workers != size:
        raise UserError(
            f"workers is {workers}, but engine {name} runs {size}: start "
            f"{counted(workers, 'process', 'es')}, set workers to {size}, or leave it out"
        )
    if "OOODIST_SIZE" in environ and _number(environ, "OOODIST_SIZE") != size:
        raise UserError(
            f"the launcher started {environ['OOODIST_SIZE']} workers (OOODIST_SIZE), but "
            f"engine {name} sees {size}; remove variables of another launcher from the environment"
        )


def check_name(engine: str, where: str) -> str:
    """Returns ``engine`` if it is a known name; raises UserError otherwise."""
    allowed = ENGINES if where == "OOODIST_ENGINE" else ("auto", *ENGINES)
    if engine not in allowed:
        raise UserError(f"{where} is {engine!r}; it must be one of {', '.join(allowed)}")
    return engine


def cluster(environ: Mapping[str, str]) -> tuple[list[str], int] | None:
    """Reads the addresses of all workers and this process's rank from TF_CONFIG; None without it.

    A chief counts as the first worker. Raises UserError if TF_CONFIG is invalid.
    """
    text = environ.get("TF_CONFIG")
    if not text:
        return None
    try:
        config = json.loads(text)
        jobs = config.get("cluster", {})
        if not jobs:
            return None
        addresses = [str(address) for job in ("chief", "worker") for address in jobs.get(job, [])]
        task, index = config["task"]["type"], int(config["task"]["index"])
        place = index + (len(jobs.get("chief", [])) if task == "worker" else 0)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"TF_CONFIG cannot be read ({type(error).__name__}: {error}): {text}; it must be like "
            '{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}'
        ) from error
    if task not in ("chief", "worker") or not 0 <= index < len(jobs.get(task, [])):
        raise UserError(
            f'TF_CONFIG: task is {task} {index}, which is no "chief" or "worker" of its cluster '
            f"{jobs}; correct it, or unset TF_CONFIG if it is not for this program"
        )
    return addresses, place


def _launched(environ: Mapping[str, str]) -> dict[str, tuple[int, str]]:
    """Returns the engines whose launchers set variables, with (number of processes, reason)."""
    found = {}
    for variable in _HOROVOD_SIZES:
        if variable in environ:
            size = _number(environ, variable)
            found["horovod"] = (size, f"{variable}={size}")
            if variable != _HOROVOD_SIZES[0]:
                found["mpi"] = found["horovod"]  # comes second: only taken if it is asked for
            break
    else:
        if "PMIX_RANK" in environ and (tasks := _slurm_tasks(environ)):  # srun --mpi=pmix
            found["horovod"] = found["mpi"] = (tasks, f"PMIX_RANK, {_SLURM_SIZE}={tasks}")
    if environ.get("DMLC_ROLE"):
        size = _number(environ, "DMLC_NUM_WORKER")
        reason = f"DMLC_ROLE={environ['DMLC_ROLE']}, DMLC_NUM_WORKER={size}"
        local = _number(environ, "BYTEPS_LOCAL_SIZE") if "BYTEPS_LOCAL_SIZE" in environ else 1
        if local != 1:
            reason += f", BYTEPS_LOCAL_SIZE={local}"
        found["byteps"] = (size * local, reason)
    if workers := cluster(environ):
        size = len(workers[0])
        found["collective"] = (size, f"TF_CONFIG with {counted(size, 'worker')}")
    return found


def _launch(engine: str, size: int | None) -> str:
    return _LAUNCH[engine].format(size=size or 2)


def _slurm_launch(engine: str) -> str:
    return f"srun … python -m ooodist.launcher.slurm --engine {engine} -- python my_training.py"


def _slurm_tasks(environ: Mapping[str, str]) -> int:
    """Returns how many processes srun has started together with this one; 0 if it has not."""
    step = environ.get("SLURM_STEP_ID", "")
    if _SLURM_SIZE not in environ or (step.isdigit() and int(step) >= _FIRST_SPECIAL_STEP):
        return 0  # the shell of salloc has the variables of its allocation alone
    return _number(environ, _SLURM_SIZE)


def _refuse_strangers(environ: Mapping[str, str]) -> None:
    """Raises UserError if processes were started together that cannot find each other."""
    size, why, start = _slurm_tasks(environ), f"srun ({_SLURM_SIZE})", _slurm_launch("collective")
    if size < 2 and {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environ.keys():
        size = _number(environ, "WORLD_SIZE")
        why, start = "torchrun (WORLD_SIZE)", _launch("collective", size)
    if size > 1:
        raise UserError(
            f"this process is one of {size} that were started by {why}, which does not join them: "
            f"each would train on its own; start them with: {start}, or take engine: local, if "
            "that is what you want"
        )


def _number(environ: Mapping[str, str], variable: str) -> int:
    text = environ.get(variable, "")
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"{variable} is {text!r}; it must be the number of workers, from 1")
    return int(text)
