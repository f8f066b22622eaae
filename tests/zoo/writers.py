"""Processes that add models to a zoo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ADD = """\
import sys
from pathlib import Path
from ooodist.zoo.zoo import Zoo
address, index, *files = sys.argv[1:]
zoo = Zoo(address, index=Path(index) if index else None)
print("ready", flush=True)
for file in files:
    print(zoo.add(Path(file)), flush=True)
"""


def start(address: object, *files: Path, index: Path | None = None) -> subprocess.Popen[str]:
    """Prints "ready", and the id of each model when it is added.

    Args:
        address: of the zoo.
        files: to add.
        index: of the zoo, if another than usual.
    """
    command = [sys.executable, "-c", ADD, str(address), str(index or ""), *map(str, files)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
