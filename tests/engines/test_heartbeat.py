"""The limit of silence, and the variables by which libraries have the same."""

from __future__ import annotations

import pytest

from ooodist.engines.heartbeat import HEARTBEAT, heartbeat_seconds, heartbeat_settings
from ooodist.engines.kinds import find
from ooodist.errors import UserError


@pytest.mark.parametrize(
    ("engine", "given", "expected"),
    [
        ("horovod", {}, {"HOROVOD_GLOO_TIMEOUT_SECONDS": "30"}),
        ("byteps", {HEARTBEAT: "2.5"}, {"PS_HEARTBEAT_TIMEOUT": "3"}),
        ("collective", {HEARTBEAT: "2.5"}, {}),
    ],
)
def test_all_engines_have_the_same_limit_of_silence(
    engine: str, given: dict[str, str], expected: dict[str, str]
) -> None:
    assert heartbeat_settings(find(engine), given) == expected


@pytest.mark.parametrize("given", ["0", "-1", "nan", "inf", "long"])
def test_a_wrong_limit_of_silence(given: str) -> None:
    with pytest.raises(UserError, match=f"^{HEARTBEAT} is '{given}'; it must be a number"):
        heartbeat_seconds({HEARTBEAT: given})
