"""The file of tokens."""

from pathlib import Path

import pytest

from ooodist.errors import UserError
from ooodist.zoo.service.tokens import read_token, read_tokens

ANNA, BOB, ROOT = "anna's-token-0123", "bob's-token-01234", "root's-token-0123"


def write(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "tokens.yaml"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_has_users_and_admins(tmp_path: Path) -> None:
    tokens = read_tokens(write(tmp_path, f"anna: {ANNA}\nroot: {ROOT}\nadmins: [root]\n"))
    assert tokens.users == {ANNA: "anna", ROOT: "root"}
    assert tokens.admins == {"root"}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o601])
def test_is_for_nobody_else(tmp_path: Path, mode: int) -> None:
    file = write(tmp_path, f"anna: {ANNA}\n", mode)
    with pytest.raises(UserError, match=rf"by others \(mode {mode:o}\); .* chmod 600 {file}"):
        read_tokens(file)
    with pytest.raises(UserError, match=rf"^--token-file can be read .* \(mode {mode:o}\)"):
        read_token(file, "--token-file")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must have lines"),
        ("- anna\n", "must have lines"),
        ("{}\n", "there is no token"),
        ("anna: hunter2\n", "the token of anna is too short"),
        ("anna: 1234567890123456\n", "user anna or its token is no text; put it in quotes"),
        (f"anna: {ANNA}\nbob: {ANNA}\n", "anna and bob have the same token"),
        (f"anna: {ANNA}\nanna: {BOB}\n", "is there twice"),
        (f"anna: {ANNA}\nadmins: [bob]\n", "admins is .*; it must be a list of users"),
        (f"anna: {ANNA}\nadmins: anna\n", "admins is anna; it must be a list of users"),
        (f"anna: {ANNA}\nadmins: [[anna]]\n", "it must be a list of users"),
        ("anna: [", "not valid YAML"),
    ],
)
def test_is_refused_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        read_tokens(write(tmp_path, text))
    assert str(tmp_path / "tokens.yaml") in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert ANNA not in str(caught.value)


def test_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none.yaml cannot be read: .*No such file"):
        read_tokens(tmp_path / "none.yaml")
