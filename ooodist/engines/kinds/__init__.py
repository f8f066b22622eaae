"""All kinds of engines, by name: ooodist's own, and those of packages that are installed.

A package adds its engine by an entry point::

    [project.entry-points."ooodist.engines"]
    mine = "my_package.my_module:MyKind"
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import metadata
from types import MappingProxyType

from ooodist.engines.kinds.byteps import Byteps
from ooodist.engines.kinds.collective import Collective
from ooodist.engines.kinds.horovod import Horovod
from ooodist.engines.kinds.kind import Kind
from ooodist.engines.kinds.local import Local
from ooodist.engines.kinds.mpi import Mpi
from ooodist.errors import UserError

__all__ = ["GROUP", "Kind", "find", "for_pipelines", "kinds", "launched_as", "names", "traits"]

GROUP = "ooodist.engines"
_OWN = (Local(), Collective(), Horovod(), Byteps(), Mpi())


@functools.cache
def kinds() -> Mapping[str, Kind]:
    """All kinds by name.

    Raises:
        UserError: one that a package has added cannot be loaded, is no kind, or has the name of
            another.
    """
    found: dict[str, Kind] = {kind.name: kind for kind in _OWN}
    for point in metadata.entry_points(group=GROUP):
        where = f"entry point {point.name} = {point.value} of {GROUP}"
        try:
            kind = point.load()()
        except Exception as error:  # of code that is not ours
            raise UserError(
                f"{where}: {type(error).__name__}: {error}; correct or uninstall the package"
            ) from error
        if not isinstance(kind, Kind) or kind.name != point.name:
            raise UserError(f"{where}: it must be a Kind (ooodist.engines.kinds) of that name")
        if kind.name in found:
            raise UserError(f"{where}: there is another engine of that name")
        found[kind.name] = kind
    return MappingProxyType(found)


def names() -> tuple[str, ...]:
    """The names of all kinds."""
    return tuple(kinds())


def find(name: str) -> Kind:
    """The kind of this name. Raises UserError if there is none."""
    if name not in kinds():
        raise UserError(f"engine is {name!r}; it must be one of {', '.join(kinds())}")
    return kinds()[name]


def traits(name: str) -> Kind:
    """The kind of this name; one like TensorFlow's collectives if it is not installed here.

    For costs and plans, which may come from elsewhere.
    """
    return kinds().get(name) or Collective()


def launched_as(name: str) -> Kind:
    """The kind that launchers start under this name: its own, or that of a way by ``mpirun``.

    Raises:
        UserError: there is none.
    """
    ways = (kind for kind in kinds().values() if name in kind.by_mpirun)
    return next(ways, None) or find(name)


def for_pipelines() -> Kind:
    """The kind whose ranks send each other messages."""
    return next(kind for kind in kinds().values() if kind.runs_pipelines)
