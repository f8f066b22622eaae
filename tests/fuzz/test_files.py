"""Whatever a checkpoint or a file of a zoo has, it is read, or refused with one clear message."""

from __future__ import annotations

import io
import shutil
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from ooodist.checkpoint import archive
from ooodist.checkpoint import folder as folders
from ooodist.checkpoint.keras_file import ModelContent
from ooodist.checkpoint.parts import MANIFEST_NAME
from ooodist.zoo import entry
from ooodist.zoo.service import zoo_pb2
from ooodist.zoo.service.messages import parsed
from tests.checkpoint.examples import make_model, state_of, write_parts
from tests.fuzz.examples import fuzzed, scratch
from tests.fuzz.mutations import blobs
from tests.fuzz.test_texts import holds
from tests.zoo.entries import chain, write_plain


@cache
def checkpoints() -> tuple[Path, Path]:
    """A valid checkpoint of each form."""
    folder = scratch()
    model = make_model()
    archive.write(folder / "whole.keras", ModelContent(model, state_of()))
    write_parts(folder / "parts", model)
    return folder / "whole.keras", folder / "parts"


@cache
def zoo_entry() -> bytes:
    file = scratch() / "entry.keras"
    write_plain(file, chain([2, 3, 4]))
    return file.read_bytes()


@fuzzed(st.data())
def test_checkpoints_of_whole_models(data: st.DataObject) -> None:
    file = scratch() / "mutated.keras"
    file.write_bytes(data.draw(blobs(checkpoints()[0].read_bytes())))
    holds(lambda: folders.read_state(file))


@fuzzed(st.data())
def test_checkpoints_in_parts(data: st.DataObject) -> None:
    folder = scratch() / "mutated"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(checkpoints()[1], folder)
    file = folder / data.draw(st.sampled_from([MANIFEST_NAME, "part-0.npz"]))
    file.write_bytes(data.draw(blobs(file.read_bytes())))
    if data.draw(st.booleans()):
        (folder / "part-1.npz").write_bytes(file.read_bytes())
    holds(lambda: folders.read_state(folder))


@fuzzed(st.data())
def test_files_of_a_zoo(data: st.DataObject) -> None:
    content = data.draw(blobs(zoo_entry()))
    holds(lambda: entry.read(io.BytesIO(content)))
    holds(lambda: entry.read_for_index(io.BytesIO(content)))
    holds(lambda: entry.read_with_weights(io.BytesIO(content)))


@fuzzed(blobs(b"\x0a\x03abc\x12\x02\x08\x01" * 5) | st.binary(max_size=64))
def test_messages_of_the_service(message: bytes) -> None:
    for kind in (zoo_pb2.QueryRequest, zoo_pb2.FetchRequest, zoo_pb2.RegisterRequest):
        holds(lambda kind=kind: parsed(kind.FromString, message, 1 << 20))
