"""Errors of other programs in one line."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import tensorflow as tf

from ooodist.errors import SharedError, UserError, brief


def raised(function, *arguments) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any
        function(*arguments)
    return caught.value


def broken_generator():
    yield 1
    raise ValueError("sample 1 is broken")


def test_a_python_error_names_its_place() -> None:
    line = test_a_python_error_names_its_place.__code__.co_firstlineno
    error = raised(lambda: {}["a"])
    assert brief(error) == f"KeyError: 'a' (test_errors.py, line {line + 2})"


def test_the_place_is_in_the_program_and_not_in_a_library(tmp_path: Path) -> None:
    error = raised(zipfile.ZipFile, tmp_path / "none.zip")
    assert brief(error).startswith("FileNotFoundError: [Errno 2] No such file or directory: ")
    assert "(test_errors.py, line " in brief(error)


def test_an_error_of_our_own_code_has_no_place() -> None:
    assert brief(UserError("batch is 0")) == "UserError: batch is 0"


def test_a_generator_of_a_data_set_is_named_with_its_own_error() -> None:
    data = tf.data.Dataset.from_generator(
        broken_generator, output_signature=tf.TensorSpec((), tf.int32)
    )
    error = raised(list, data)
    assert "Traceback" in str(error)
    line = broken_generator.__code__.co_firstlineno + 2
    assert brief(error) == f"ValueError: sample 1 is broken (test_errors.py, line {line})"


def test_a_tensorflow_error_is_one_line() -> None:
    error = raised(tf.reshape, tf.zeros(3), [2])
    found = brief(error)
    assert found.startswith("InvalidArgumentError: Input to reshape is a tensor with 3 values")
    assert "\n" not in found
    assert "Op:" not in found
    assert "function_node" not in found


def test_a_text_over_several_lines_becomes_one() -> None:
    assert brief(RuntimeError("a\n  b\n\nc")) == "RuntimeError: a b c"


def test_a_shared_error_is_a_user_error() -> None:
    assert issubclass(SharedError, UserError)
