"""Access tokens of a zoo's service, and the users that they belong to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ooodist.errors import UserError
from ooodist.util import strict_yaml

TOKEN_VARIABLE = "OOODIST_ZOO_TOKEN"  # environment variable with a client's token
SHORTEST_TOKEN = 16  # characters
_TOKEN = re.compile(rf"[!-~]{{{SHORTEST_TOKEN},}}")  # what an HTTP header can hold


@dataclass(frozen=True)
class Tokens:
    """The tokens that a service accepts.

    Attributes:
        users: user by token.
        admins: users who may evict models.
    """

    users: Mapping[str, str]
    admins: frozenset[str] = frozenset()


def check_private(file: Path, said: str) -> None:
    """Raises UserError, beginning with ``said``, for a file that is not its owner's alone."""
    try:
        mode = file.stat().st_mode
    except OSError as error:
        raise UserError(f"{said} cannot be read: {error}") from error
    if mode & 0o077:
        raise UserError(
            f"{said} can be read or written by others (mode {mode & 0o777:o}); "
            f"protect it: chmod 600 {file}"
        )


def read_token(file: Path, said: str) -> str:
    """The token in a file. Raises UserError, which begins with ``said``."""
    check_private(file, said)
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{said} cannot be read: {error}") from error


def read_tokens(file: Path) -> Tokens:
    """Reads tokens from a YAML file with a line ``user: token`` for each user.

    The key ``admins`` is not a user, but lists the users who may evict models.

    Raises:
        UserError: other users can access the file, or its content is invalid.
    """
    check_private(file, f"tokens {file}")
    content = strict_yaml.parse_file(file, "tokens")
    if not isinstance(content, dict):
        raise UserError(f"tokens {file}: it must have lines `user: token`")
    admins = content.pop("admins", [])
    users: dict[str, str] = {}
    for user, token in content.items():
        # The message must not show the token, which may be almost right.
        if not isinstance(user, str) or not isinstance(token, str):
            raise UserError(f"tokens {file}: user {user} or its token is no text; put it in quotes")
        if token in users:
            raise UserError(
                f"tokens {file}: {users[token]} and {user} have the same token; "
                "give each user one of its own"
            )
        users[token] = user
    if not isinstance(admins, list) or not all(each in users.values() for each in admins):
        raise UserError(
            f"tokens {file}: admins is {admins}; it must be a list of users that the file has"
        )
    check_tokens(users, f"tokens {file}: ")
    return Tokens(users, frozenset(admins))


def check_tokens(tokens: Mapping[str, str], place: str = "") -> None:
    """Raises UserError, beginning with ``place``, for missing, invalid or guessable tokens."""
    if not tokens or not all(tokens.values()):
        raise UserError(f"{place}there is no token, or one without a user; give each user one")
    for token, user in tokens.items():
        if not _TOKEN.fullmatch(token):
            raise UserError(
                f"{place}the token of {user} is too short or has other than plain letters, digits "
                f"and signs; it must have at least {SHORTEST_TOKEN} of them, as "
                "`python -c 'import secrets; print(secrets.token_urlsafe(32))'` prints"
            )
