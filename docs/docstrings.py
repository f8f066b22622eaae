"""Shows what docstrings have of reStructuredText, which Markdown does not: a hook of MkDocs."""

from __future__ import annotations

import re
from typing import Any


def on_page_content(html: str, /, **_: Any) -> str:
    """MkDocs calls it with each page in HTML.

    Roles such as ``:func:`` are left out before code; ``::`` before a block becomes a colon.
    """
    html = re.sub(r":(?:func|class|meth|mod|attr|data):(?=<code>)", "", html)
    return html.replace("::</p>", ":</p>")
