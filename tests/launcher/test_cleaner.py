"""What cleans up after a job, and who looks after it."""

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

from ooodist.launcher import cleaner
from ooodist.launcher.cleaner import Cleaner

from .conftest import Launchers, python, wait_until


def test_a_folder_that_others_clear_as_well(tmp_path: Path) -> None:
    folder = tmp_path / "session"
    ends = time.monotonic() + 0.5

    def use() -> None:  # as Open MPI's daemons do, for a while after their ranks
        while time.monotonic() < ends:
            with suppress(OSError):
                for name in "abcdefgh":
                    (folder / name).mkdir(parents=True)
                for name in "abcdefgh":
                    (folder / name).rmdir()

    user = threading.Thread(target=use)
    user.start()
    time.sleep(0.05)
    with Cleaner() as started:
        started.add_folder(folder)
    user.join()
    cleaner._clean_up([("files", str(folder)), ("folder", str(folder))])
    assert not folder.exists()


def test_a_cleaner_that_is_killed_is_replaced(launchers: Launchers) -> None:
    family = (
        "import subprocess, time; subprocess.Popen(['sleep', '600']); print('ready', flush=True)"
    )
    launcher = launchers.start(
        "-np", "1", "--engine", "local", *python(f"{family}; time.sleep(600)")
    )
    assert launcher.stdout is not None
    assert launcher.stderr is not None

    def helpers() -> list[int]:
        return [key for key, line in launchers.processes().items() if "cleaner.py" in line]

    def wait_for_one() -> None:  # one that has just been started has no command line yet
        wait_until(lambda: len(helpers()) == 1, lambda: str(launchers.processes()))

    launcher.stdout.readline()
    for _ in range(2):
        wait_for_one()
        os.kill(*helpers(), signal.SIGKILL)
        assert "cleans up after this job was ended; a new one" in launcher.stderr.readline()
    wait_for_one()
    launcher.kill()  # now the new one has to do all of it


def test_what_is_left_when_a_cleaner_was_killed_unnoticed(tmp_path: Path) -> None:
    with Cleaner() as started:
        started.add_folder(tmp_path / "folder")
        (tmp_path / "folder").mkdir()
        started._process.kill()
        started._process.wait()
        started.add_files(str(tmp_path / "file"))  # nobody reads it
        (tmp_path / "file_1").touch()
    assert not list(tmp_path.iterdir())
