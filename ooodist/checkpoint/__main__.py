"""``python -m ooodist.checkpoint``: from checkpoints in parts to Keras files and back."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from ooodist.errors import UserError
from ooodist.util import program
from ooodist.util.program import Parser, refused

EXAMPLES = """\
examples:
  # the newest whole checkpoint of a pipeline as a file for keras.models.load_model
  python -m ooodist.checkpoint merge runs/gpt model.keras

  # a certain one
  python -m ooodist.checkpoint merge runs/gpt/checkpoint-epoch-000007 model.keras

  # the way back, and going on from there
  python -m ooodist.checkpoint split model.keras runs/gpt-start
  mpirun -np 8 python -m ooodist.train --config job.yaml --set checkpoint.resume=runs/gpt-start

One variable at a time is in memory. The model's own classes are not needed.
exit code: 0 when the output is complete, 2 for what you can put right, 1 for anything else.
"""


def main(arguments: Sequence[str]) -> int:
    """Does what the command line asks for and returns the exit code."""
    try:
        options = _parse(arguments)
        if options.command == "merge":
            _merge(options.folder, options.file)
        else:
            _split(options.file, options.folder)
    except UserError as error:
        return refused(error)
    return 0


def _merge(folder: Path, file: Path) -> None:
    # Imported late: --help needs nothing of TensorFlow's.
    from ooodist.checkpoint.convert import find, merge

    if file.suffix != ".keras":
        raise UserError(f"FILE is {file}; its name must end with .keras, or Keras does not load it")
    _check_is_new("FILE", file)
    source = find(folder, "FOLDER")
    if not source.is_dir():
        raise UserError(f"FOLDER is {folder}: {source} is one Keras file already; copy it")
    merge(source, file)
    print(f"{file}: the model of {source}")


def _split(file: Path, folder: Path) -> None:
    from ooodist.checkpoint.convert import split

    if file.is_dir():
        raise UserError(f"FILE is {file}, which is a folder; give a Keras file")
    _check_is_new("FOLDER", folder)
    split(file, folder)
    print(f"{folder}: the model of {file}, in parts")


def _check_is_new(option: str, path: Path) -> None:
    """Raises UserError if something is at this path, or nothing can be."""
    if path.exists():
        raise UserError(f"{option} is {path}, which is there already; delete it, or give another")
    if not path.parent.is_dir():
        raise UserError(f"{option} is {path}, but there is no folder {path.parent}; make it first")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m ooodist.checkpoint",
        description="Convert between checkpoints in parts, which pipelines write, and Keras files.",
        epilog=EXAMPLES,
    )
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=Parser
    )
    one = commands.add_parser("merge", help="write a checkpoint in parts as one Keras file")
    one.add_argument(
        "folder", metavar="FOLDER", type=Path, help="a checkpoint in parts, or an output folder"
    )
    one.add_argument("file", metavar="FILE", type=Path, help="the Keras file to write")
    other = commands.add_parser("split", help="write a Keras file as a checkpoint in parts")
    other.add_argument(
        "file", metavar="FILE", type=Path, help="a checkpoint.keras or merged file of ooodist"
    )
    other.add_argument("folder", metavar="FOLDER", type=Path, help="the checkpoint to write")
    return parser.parse_args(arguments)


command = functools.partial(program.run, main)  # ooodist-checkpoint

if __name__ == "__main__":
    sys.exit(command())
