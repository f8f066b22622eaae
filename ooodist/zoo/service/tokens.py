"""Who may ask a zoo's service: tokens, and the users that they belong to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ooodist.errors import UserError
from ooodist.util import strict_yaml

TOKEN_VARIABLE = "OOODIST_ZOO_TOKEN"  # of the environment: where clients find theirs
SHORTEST_TOKEN = 16  # letters
_TOKEN = re.compile(rf"[!-~]{{{SHORTEST_TOKEN},}}")  # what a header of HTTP can hold


@dataclass(frozen=True)
class Tokens:
    """Who may ask.

    Attributes:
        users: the user of each token.
        admins: users who may evict models.
    """

    users: Mapping[str, str]
    admins: frozenset[str] = frozenset()


def read_token(file: Path, said: str) -> str:
    """The one token in a file; ``said``: how an error about the file begins. Raises UserError."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{said} cannot be read: {error}") from error


def read_tokens(file: Path) -> Tokens:
    """Tokens from a YAML file with a line ``user: token`` for each user.

    The key ``admins`` is no user, but a list of those who may evict models.

    Raises:
        UserError: others can read the file, or something in it is wrong.
    """
    try:
        mode = file.stat().st_mode
    except OSError as error:
        raise UserError(f"tokens {file} cannot be read: {error}") from error
    if mode & 0o077:
        raise UserError(
            f"tokens {file} can be read or written by others (mode {mode & 0o777:o}); "
            f"protect it: chmod 600 {file}"
        )
    content = strict_yaml.parse_file(file, "tokens")
    if not isinstance(content, dict):
        raise UserError(f"tokens {file}: it must have lines `user: token`")
    admins = content.pop("admins", [])
    users: dict[str, str] = {}
    for user, token in content.items():
        # The message must not show the token: it may be right but for a letter.
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
    """Raises UserError, which begins with ``place``, for tokens that are none or can be guessed."""
    if not tokens or not all(tokens.values()):
        raise UserError(f"{place}there is no token, or one without a user; give each user one")
    for token, user in tokens.items():
        if not _TOKEN.fullmatch(token):
            raise UserError(
                f"{place}the token of {user} is too short or has other than plain letters, digits "
                f"and signs; it must have at least {SHORTEST_TOKEN} of them, as "
                "`python -c 'import secrets; print(secrets.token_urlsafe(32))'` prints"
            )
