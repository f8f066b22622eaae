"""The commands of README.md and docs/ work as they stand, with the files of examples/.

They run in a folder that has only examples/, by the installed ooodist: in CI that is a wheel. With
an installed Python 3.13 they run by a wheel on it, too.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from expr.lab import netlab
from ooodist import train
from ooodist.config import job as job_file
from ooodist.errors import UserError
from ooodist.launcher import local
from ooodist.plan import data_parallel, pipelines
from ooodist.plan import options as plan_options
from tests import environments
from tests.fork_server import fast_python
from tests.jobs import ROOT

FIRST = ("README.md", "docs/start.md")  # before all other pages
PAGES = {
    page: (ROOT / page).read_text("utf-8")
    for page in dict.fromkeys(
        [
            *FIRST,
            *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")),
            "examples/README.md",
        ]
    )
}
PROGRAMS = ("python", "horovodrun", "mpirun", "ooodist-", "examples/", "scripts/", "git")
LAUNCHERS = ("horovodrun", "mpirun", "bpslaunch")  # that ooodist-engines installs
NEEDED = {  # what a command that names these needs, and what installs it
    "horovodrun": ("horovod", "ooodist-engines horovod"),
    "mpirun": ("mpi4py", "ooodist-engines mpi"),
    "bpslaunch": ("byteps", "ooodist-engines byteps"),
    "hugging_face.py": ("datasets", "pip install datasets"),
    "ray_train.py": ("ray", "pip install 'ray[train]'"),
}
# Commands that are not run here, by how they begin, and what tests them. Their options, files and
# keys are checked all the same.
NOT_RUN = {
    "git clone": "it has brought this folder",
    "scripts/quickstart.sh": "tests/test_quickstart.py",
    "ooodist-engines": "tests/engines/test_install_engines.py",
    "horovodrun -np 2 python -m ooodist.": "tests/plan",
    "python -m ooodist.plan --config": "tests/plan",
    "python -m ooodist.plan --costs examples/costs.yaml --devices": "tests/plan",
    "python -m ooodist.plan --costs examples/costs.yaml --pipeline 8": "tests/plan",
    "python launch/netlab.py": "tests/expr/lab/test_netlab.py",
    "mpirun -np 2 python -m ooodist.train": "tests/pipeline",
    "python -m ooodist.checkpoint": "tests/checkpoint",
    "mpirun -np 8 python -m ooodist.train": "tests/emulation/test_emulate.py",
    "mpirun -np 32": "tests/job/test_division.py",
    "python -m ooodist.train --set 'model={name: resnet20, width: 8, blocks_per_stage: 1}": (
        "tests/job/test_fine_tuning.py"
    ),
    "python -m ooodist.train --set 'model={name: resnet20, width:": "tests/zoo",
    "python -m ooodist.train --help": "tests/test_train.py",
    "python -m ooodist.train --print-config": "tests/config",
    "python examples/optuna_search.py": "tests/test_searches.py",
    "python examples/keras_tuner_search.py": "tests/test_searches.py",
    "python examples/zoo_search.py": "tests/test_searches.py",
    "python examples/zoo_keras_tuner.py": "tests/test_searches.py",
    "python -m ooodist.train --config examples/job.yaml --output runs/tracked": (
        "tests/test_tracking.py"
    ),
    "python -m ooodist.train --config examples/augmented.yaml": "tests/data/kinds/test_layers.py",
    "ooodist-launch -np 2 -- python -m ooodist.train --config examples/fine_tune.yaml": (
        "tests/job/test_fine_tuning.py"
    ),
    "ooodist-launch -np 2 -- python -m ooodist.train": "tests/data",
    "python -m ooodist.launch --engine horovod --hosts": "tests/launcher/ssh",
}
SAYS = {  # some of what those that are run say
    "python examples/warm_start.py": "warm start: starts from model",
    "horovodrun": "engine horovod",
    "ooodist-launch -np 2 examples/custom_loop.py": "epoch 3: loss",
    "ooodist-launch -np 2 examples/recommender.py": "as rows",
    "ooodist-launch -np 2 examples/synthetic_benchmark.py": "Total img/sec on 2 workers",
    "ooodist-launch -np 2 examples/hugging_face.py": "29/29",  # half of 57 batches
    "python examples/ray_train.py": "model in ",
    "examples/bpslaunch.sh": "engine byteps (DMLC_ROLE=worker, DMLC_NUM_WORKER=2): rank 0 of 2",
}


def sections() -> dict[str, list[str]]:
    """The commands in the pages' blocks, each in one line, by page and heading."""
    found: dict[str, list[str]] = {}
    for page, text in PAGES.items():
        for part in re.split(r"^## ", text, flags=re.MULTILINE):
            heading, section = part.split("\n", 1)
            found[f"{page}: {heading}"] = [
                re.sub(r"  +", " ", line)
                for language, block in re.findall(
                    r"^```(\w*)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE
                )
                if not language and block.startswith(PROGRAMS)
                for line in block.replace("\\\n", "").splitlines()
            ]
    return found


COMMANDS = [command for commands in sections().values() for command in commands]


def of(command: str, table: dict[str, str]) -> str | None:
    """The value for the entry of a table with which a command begins."""
    return next((value for begin, value in table.items() if command.startswith(begin)), None)


def is_run(command: str) -> bool:
    """Whether it is run here."""
    return of(command, NOT_RUN) is None


def path_of(python: str) -> str:
    """The PATH with which a Python's environment is activated."""
    return f"{Path(python).parent}:{os.environ['PATH']}"


@pytest.fixture
def run(python: str, tmp_path: Path) -> Callable[[str], str]:
    """Runs a command in a folder that has what the pages name; returns what it printed."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "bin").mkdir()
    scripts = {}
    variables = {"PYTHONPATH": ""}
    if python == sys.executable:
        variables = {}  # whoever runs the tests may have chosen another checkout
        scripts = {
            "python": fast_python(),
            "horovodrun": f"{fast_python()} {Path(python).with_name('horovodrun')}",
            # The launcher has the real Python, as its ranks are other process groups.
            "ooodist-launch": f'{python} -c \'import sys; sys.executable = "{fast_python()}"\n'
            "from ooodist.launch import command; sys.exit(command())'",
        }
    for name, script in scripts.items():
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec {script} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables |= {
        "PATH": f"{tmp_path / 'bin'}:{path_of(python)}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "DMLC_PS_ROOT_PORT": str(port),
        "HOME": str(tmp_path),  # profiles of this machine's user stay as they are
    }

    def run(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}"
        return done.stdout

    return run


@pytest.mark.parametrize(
    "heading", [heading for heading, commands in sections().items() if any(map(is_run, commands))]
)
def test_the_commands_of_a_section_work_as_they_stand(
    heading: str, python: str, run: Callable[[str], str]
) -> None:
    for command in filter(is_run, sections()[heading]):
        for name, (package, installing) in NEEDED.items():
            if name in command and not (
                (environments.packages_of(Path(python)) / package).exists()
                and (name not in LAUNCHERS or shutil.which(name, path=path_of(python)))
            ):
                pytest.skip(f"{python} has no {package} or no {name}: {installing}")
        assert (of(command, SAYS) or "") in run(command)


def test_options_files_and_keys_of_all_commands_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for command in COMMANDS:
        check(shlex.split(command, comments=True))


def check(words: Sequence[str]) -> None:
    """Reads a command of jobs, plans or launchers as the program would; raises what that raises."""
    readers: dict[str, Callable[[list[str]], object]] = {
        "ooodist-launch": local._parse,
        "launch/netlab.py": netlab._parse,
        "ooodist.launch": local._parse,
        "ooodist.plan": check_plan,
        "ooodist.train": check_train,
    }
    for index, word in enumerate(words):
        if word in readers and words[index + 1] != "--help":
            readers[word](list(words[index + 1 :]))


def check_train(arguments: Sequence[str]) -> None:
    options = train._parse(arguments)
    if options.emulate:
        train._check_emulate(options)
        job_file.load_parallel(options.config, options.overrides)
    else:
        train._config(options)


def check_plan(arguments: Sequence[str]) -> None:
    options = plan_options.parse(arguments)
    if options.costs:
        pipelines.check_kind_of_costs(options)
        return
    config = job_file.load(options.config, options.set)
    if not pipelines.is_asked_for(options, config):
        data_parallel.with_options(options, config)


@pytest.mark.parametrize(
    "command",
    [
        "python -m ooodist.train --config job.yaml",
        "mpirun -np 2 python -m ooodist.train --set epoch=3",
        "ooodist-launch -np 2 --engine mpi -- python -m ooodist.train --batch 3",
        "python -m ooodist.plan --costs costs.yaml --pipeline 4",
    ],
)
def test_what_is_wrong_in_a_command_is_found(command: str) -> None:
    with pytest.raises(UserError):
        check(command.split())


def test_files_that_commands_name_are_there_and_each_example_is_named() -> None:
    words = [word for command in COMMANDS for word in shlex.split(command, comments=True)]
    named = {word for word in words if re.match(r"(examples|launch|scripts)/", word)}
    files = [name for name in named if name.endswith(".yaml")]
    texts = " ".join([*words, *((ROOT / name).read_text("utf-8") for name in files)])
    named |= {f"examples/{name}.py" for name in re.findall(r"examples\.(\w+):", texts)}
    for name in named:
        assert (ROOT / name).is_file(), name
    programs = {f"examples/{path.name}" for path in (ROOT / "examples").iterdir()}
    notebooks = {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.ipynb")}
    assert programs - notebooks - {"examples/README.md"} <= named


def test_every_reason_is_for_a_command_and_every_test_is_there() -> None:
    for begin in [*NOT_RUN, *SAYS]:
        assert any(command.startswith(begin) for command in COMMANDS), begin
    for reason in NOT_RUN.values():
        assert not reason.startswith("tests/") or (ROOT / reason).exists(), reason


def test_engines_are_installed_before_their_launchers_are_used() -> None:
    text = "".join(PAGES.values())
    for launcher in LAUNCHERS:
        first = re.search(rf"^{launcher} |/{launcher}|`{launcher}`", text, re.MULTILINE)
        assert first
        assert text.index("ooodist-engines") < first.start()
