"""A single process."""

from ooodist.engines.kinds.kind import Kind


class Local(Kind):
    """Exchanges nothing."""

    name = "local"
    engine = "ooodist.engines.local:LocalEngine"
    is_alone = True
