"""Where a job is measured that is planned for other machines: in this process alone."""

from __future__ import annotations

import os
from dataclasses import replace

from ooodist.config.job import Config
from ooodist.engines import detect
from ooodist.engines.kinds import find
from ooodist.engines.kinds.local import Local
from ooodist.errors import UserError


def in_this_process(config: Config, what: str, way_out: str) -> Config:
    """The job without other workers.

    Raises UserError, with these words, if a launcher has started this process as one of several.
    """
    engine, reason = detect.detect(os.environ)
    if not find(engine).is_alone:
        raise UserError(f"{what} was started for engine {engine} ({reason}); {way_out}")
    return replace(config, engine=Local.name, workers=None)
