"""The code of the pages that say how to move a program: before, and after."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.jobs import ROOT

PAGES = ("from_horovod", "from_tf_distribute", "from_keras_distribution", "from_one_process")
NOT_RUN = {"A model too large for one device"}  # it needs MPI: examples/pipeline.py


class Snippet(NamedTuple):
    """A section's two programs."""

    page: str
    heading: str
    before: str
    after: str


def snippets() -> list[Snippet]:
    """Those of all pages, in their order."""
    found = []
    for page in PAGES:
        text = (ROOT / f"docs/{page}.md").read_text("utf-8")
        for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
            heading, rest = section.split("\n", 1)
            if heading not in NOT_RUN:
                before, after = re.findall(
                    r"^```python\n(.*?)^```$", rest, re.DOTALL | re.MULTILINE
                )
                found.append(Snippet(page, heading, before, after))
    return found
