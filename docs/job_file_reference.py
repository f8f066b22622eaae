"""Writes the reference of job files from the dataclasses that read them: a hook of MkDocs.

In the page ``docs/job_file.md``, the comment ``<!-- reference -->`` becomes a section for each
group of keys: what they are for, and a table of the keys with what they take, their defaults and
meanings. The words are those of the docstrings, which have ``key``: meaning, and of comments behind
the fields.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any, get_type_hints

from ooodist.config.data import KINDS, FeatureConfig
from ooodist.config.job import DEFAULTS, Config
from ooodist.config.warm_start import WarmStartConfig
from ooodist.settings import sections
from ooodist.settings.elastic import ElasticConfig
from ooodist.util.yaml_dataclass import described, dump

PAGE, MARK = "docs/job_file.md", "<!-- reference -->"
GROUPS: dict[str, type] = {
    "": Config,
    "order": sections.OrderConfig,
    "planning": sections.PlanningConfig,
    "exchange": sections.ExchangeConfig,
    "parallel": sections.ParallelConfig,
    "elastic": ElasticConfig,
    "warm_start": WarmStartConfig,
    "checkpoint": sections.CheckpointConfig,
    "early_stopping": sections.EarlyStoppingConfig,
    "report": sections.ReportConfig,
}


def on_page_markdown(markdown: str, /, *, page: Any, **_: Any) -> str:
    """MkDocs calls it with the text of each page."""
    if page.file.src_uri != PAGE:
        return markdown
    assert MARK in markdown, f"{PAGE} lacks {MARK}"
    return markdown.replace(MARK, "\n\n".join(reference()))


def reference() -> Iterator[str]:
    """The sections, as Markdown."""
    for name, cls in GROUPS.items():
        yield section(f"`{name}`" if name else "All keys", cls, "##")
    yield models()
    yield "## `data`\n\nThe key `name` chooses the kind of data, which has the other keys."
    for name, cls in KINDS.items():
        title = "package.module:function" if name == "function" else name
        yield section(f"`name: {title}`", cls, "###")
        if name == "tfrecord":
            yield section("`features`, each of them", FeatureConfig, "####")


def section(title: str, cls: type, level: str) -> str:
    """A heading, what a group of keys is for, and a table of its keys."""
    intro, meaning = words(cls)
    hints = get_type_hints(cls, include_extras=True)
    rows = [
        (
            f"`{field.name}`",
            takes(cls, field, hints[field.name]),
            default(cls, field),
            words(GROUPS[field.name])[0] if is_group(cls, field) else meaning.get(field.name, ""),
        )
        for field in fields(cls)
    ]
    return "\n\n".join(
        [f"{level} {title}", intro, table(("key", "takes", "default", "meaning"), rows)]
    )


def models() -> str:
    """The section of the key ``model``."""
    from ooodist.models import MODELS, FunctionConfig  # imports Keras
    from ooodist.models.base import ModelConfig

    named = {name: entry.config for name, entry in MODELS.items()}
    rows = [
        (
            f"`{name}`",
            plain_words(inspect.getdoc(cls) or ""),
            ", ".join(f"`{field.name}`: {default(cls, field)}" for field in fields(cls)),
        )
        for name, cls in {**named, "package.module:function": FunctionConfig}.items()
    ]
    bases = {base: None for cls in named.values() for base in cls.__mro__[1:]}
    shared = [
        plain_words(base.__doc__ or "")
        for base in bases
        if issubclass(base, ModelConfig) and base not in named.values()
    ]
    return "\n\n".join(
        [
            "## `model`\n\nThe key `name` chooses the model, which has the other keys.",
            table(("name", "model", "keys and their defaults"), rows),
            *shared,
        ]
    )


def fields(cls: type) -> list[dataclasses.Field[Any]]:
    """The keys of a group; a function's name stands under ``name``."""
    named_by_itself = "function" if getattr(cls, "name", "").endswith("function") else ""
    return [field for field in dataclasses.fields(cls) if field.name != named_by_itself]


def is_group(cls: type, field: dataclasses.Field[Any]) -> bool:
    """Whether a key of the job is a group of keys that has a section of its own here."""
    return cls is Config and field.name in GROUPS


def words(cls: type) -> tuple[str, dict[str, str]]:
    """What a group is for, and the meaning of each key that has one."""
    keys = "|".join(field.name for field in dataclasses.fields(cls))
    doc = plain_words(inspect.getdoc(cls) or "")
    intro, *parts = re.split(rf"(?:(?<=[.;] )|^)((?:`(?:{keys})`(?:, |(?=:)))+): ", doc)
    meaning: dict[str, str] = {}
    for heading, text in zip(parts[::2], parts[1::2], strict=True):
        for key in re.findall(r"`(\w+)`", heading):
            meaning[key] = text.strip().rstrip(".;")
    comments = re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(cls), re.MULTILINE)
    return intro.strip(), {**dict(comments), **meaning}


def plain_words(doc: str) -> str:
    """A docstring as one paragraph of Markdown."""
    return " ".join(doc.replace("``", "`").split())


def takes(cls: type, field: dataclasses.Field[Any], hint: Any) -> str:
    """What values a key takes."""
    if is_group(cls, field) or (cls is Config and field.name in ("model", "data")):
        nothing = " or null" if field.default is None else ""
        return f"[the keys below](#{field.name}){nothing}"
    if "reader" in field.metadata:
        of_keras = "Keras's name, or a group of `name` and its arguments"
        return f"a list, each item {of_keras}" if "tuple[" in str(hint) else of_keras
    if "FeatureConfig" in str(hint):
        return "a group of [features](#features-each-of-them)"
    return described(hint)


def default(cls: type, field: dataclasses.Field[Any]) -> str:
    """A key's default; empty where it must be given."""
    if cls is Config and field.name in DEFAULTS:
        return f"`{shown(DEFAULTS[field.name])}`"
    if is_group(cls, field) and field.default is not None:
        return "theirs"
    if field.default_factory is not dataclasses.MISSING:
        return f"`{shown(field.default_factory())}`"
    if field.default is dataclasses.MISSING:
        return "must be given"
    return f"`{shown(field.default)}`"


def shown(value: Any) -> str:
    """A value as in a job file, in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    return dump(value).removesuffix("\n...\n").strip()


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("*.txt", "\\*.txt") for line in lines)
