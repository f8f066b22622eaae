"""``python -m ooodist.zoo``: manages a zoo of trained models; see ``--help``."""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooodist.errors import UserError
from ooodist.util import program
from ooodist.util.program import Parser, refused

if TYPE_CHECKING:
    import keras

    from ooodist.zoo.entry import Meta
    from ooodist.zoo.service.client import ZooClient
    from ooodist.zoo.zoo import Zoo

EXAMPLES = """\
examples:
  # add a trained model, with what is known of it
  python -m ooodist.zoo add model.keras --zoo zoo --name resnet20 --task "image classification" \\
      --dataset digits --tags small,2026 --accuracy 0.98
  python -m ooodist.zoo add gpt.keras --zoo zoo --task language --metric perplexity=23.4

  # the best starts for a model, or for that of a job
  python -m ooodist.zoo query model.keras --zoo zoo --task "image classification" --count 5
  python -m ooodist.zoo query job.yaml --zoo s3://bucket/zoo

  # what there is, all that is known of one model, and without two of them
  python -m ooodist.zoo list --zoo zoo
  python -m ooodist.zoo show resnet20-3f2a9c81d0aa --zoo zoo
  python -m ooodist.zoo evict resnet20-3f2a9c81d0aa mlp-19e0b4a7725c --zoo zoo

  # for other machines: there, the address is that of the service
  python -m ooodist.zoo serve --zoo zoo --address 0.0.0.0:7077 --tokens tokens.yaml \\
      --certificate zoo.pem --key zoo-key.pem
  python -m ooodist.zoo list --zoo zoo.example.org:7077 --token-file token --certificate zoo.pem

exit code: 0 when it is done, 2 for what you can put right, 1 for anything else.
"""


def main(arguments: Sequence[str]) -> int:
    """Runs the given command line and returns the exit code."""
    try:
        options = _parse(arguments)
        commands[options.command](options)
    except UserError as error:
        return refused(error)
    return 0


def _add(options: argparse.Namespace) -> None:
    from ooodist.zoo.entry import Meta, check_meta

    meta = Meta(
        name=options.name or options.model.stem,
        task=options.task,
        dataset=options.dataset,
        tags=_words(options.tags),
        access=_words(options.access),
        metrics=_metrics(options),
        judged_by=options.judged_by,
    )
    check_meta(meta)  # before TensorFlow is imported, which takes seconds
    if _is_service(options.zoo):
        if options.capacity_bytes is not None:
            raise UserError("--capacity-bytes is given to the service, as it is started")
        with _client(options) as client:
            print(client.register(_load(options), meta))
        return
    with _zoo(options) as zoo:
        print(zoo.add_model(_load(options), meta))


def _query(options: argparse.Namespace) -> None:
    from ooodist.zoo.zoo import Wanted

    with _client(options) as client:
        # Imported late, because TensorFlow takes seconds to load.
        from ooodist.transfer.graph.keras_graph import graph_of

        is_job = options.model.suffix in (".yaml", ".yml")
        if is_job and options.custom_objects is not None:
            raise UserError("--custom-objects is for a .keras file; a job builds its model itself")
        model = _build(options.model) if is_job else _load(options)
        wanted = Wanted(options.task, options.dataset, _words(options.tags))
        found = client.find(graph_of(model), wanted, options.count)
        parameters = {row.id: row.parameters for row in client.list()}
    heading, judged = _judged([each.meta for each in found])
    lines = [["id", "score", heading, "task", "data set", "parameters"]]
    for each, metric in zip(found, judged, strict=True):
        meta = each.meta
        number = f"{parameters[each.id]:,}" if each.id in parameters else ""
        score = f"{each.score:.3f}"
        lines.append([each.id, score, metric, meta.task, meta.dataset, number])
    print(_table(lines, left=(0, 3, 4)) if found else "no model of the zoo is like this one")


def _list(options: argparse.Namespace) -> None:
    with _client(options) as client:
        rows = client.list()
    heading, judged = _judged([row.meta for row in rows])
    lines = [["id", heading, "task", "data set", "parameters", "MiB", "uses", "added"]]
    for row, metric in zip(rows, judged, strict=True):
        meta = row.meta
        added = time.strftime("%Y-%m-%d", time.localtime(row.created))
        numbers = [f"{row.parameters:,}", f"{row.bytes / 2**20:.1f}", str(row.uses), added]
        lines.append([row.id, metric, meta.task, meta.dataset, *numbers])
    total = sum(row.bytes for row in rows) / 2**20
    lines.append([f"models: {len(rows)}", "", "", "", "", f"{total:.1f}", "", ""])
    print(_table(lines, left=(0, 2, 3)))


def _show(options: argparse.Namespace) -> None:
    from ooodist.zoo.metrics import judge_of

    if _is_service(options.zoo):
        with _client(options) as client:
            entry, _ = client.fetch(options.id)
    else:
        with _zoo(options, create=False) as zoo:
            entry = zoo.entry(options.id)  # without the weights
    meta = entry.meta
    facts = [
        ("id", options.id),
        ("name", meta.name),
        ("task", meta.task),
        ("data set", meta.dataset),
        ("tags", ", ".join(meta.tags)),
        ("access", ", ".join(meta.access) or "everybody"),
        *((name, _number(value)) for name, value in meta.metrics.items()),
        ("judged by", judge_of(meta) or ""),
        ("parent", meta.parent or ""),
    ]
    print("\n".join(f"{key:<9} {value}".rstrip() for key, value in facts), end="\n\n")
    lines = [["", "operator", "kind", "reads", "weights"]]
    for number, node in enumerate(entry.graph.nodes):
        weights = [f"{weight.kind} {'x'.join(map(str, weight.shape))}" for weight in node.weights]
        reads = " ".join(map(str, node.inputs))
        lines.append([str(number), node.name, node.op, reads, ", ".join(weights)])
    print(_table(lines, left=(1, 2, 3, 4)))


def _evict(options: argparse.Namespace) -> None:
    with _client(options) as client:
        for model in options.ids:
            client.evict(model)
            print(f"{model} is no longer in {options.zoo}")


def _serve(options: argparse.Namespace) -> None:
    if _is_service(options.zoo):
        raise UserError(f"--zoo is {options.zoo}, a service; give the folder that is to be served")
    from ooodist.zoo.service import extra

    extra.check()
    from ooodist.zoo.service.server import serve_forever

    with _zoo(options) as zoo:
        serve_forever(zoo, options.address, options.tokens, options.certificate, options.key)


commands: dict[str, Callable[[argparse.Namespace], None]] = {
    "add": _add,
    "query": _query,
    "list": _list,
    "show": _show,
    "evict": _evict,
    "serve": _serve,
}


def _is_service(address: str) -> bool:
    from ooodist.zoo.service.addresses import is_address

    return address.startswith("grpc://") or is_address(address)


def _client(options: argparse.Namespace) -> ZooClient:
    from ooodist.zoo.service.client import ZooClient
    from ooodist.zoo.service.tokens import read_token

    token = None
    if options.token_file is not None:
        token = read_token(options.token_file, f"--token-file {options.token_file}")
    if _is_service(options.zoo) and options.index is not None:
        raise UserError("--index is given to the service, as it is started")
    certificate, index = options.certificate, options.index
    return ZooClient(options.zoo, token=token, certificate=certificate, index=index)


def _zoo(options: argparse.Namespace, *, create: bool = True) -> Zoo:
    from ooodist.zoo.zoo import Zoo

    capacity = getattr(options, "capacity_bytes", None)
    if capacity is not None and capacity < 1:
        raise UserError(f"--capacity-bytes is {capacity}; it must be at least 1")
    return Zoo(options.zoo, capacity_bytes=capacity, index=options.index, create=create)


def _load(options: argparse.Namespace) -> keras.Model:
    """Loads the user's own model; no other kind of file is ever passed to Keras."""
    file: Path = options.model
    if not file.is_file():
        raise UserError(f"there is no model {file}; check the path")
    import keras

    objects = _custom_objects(options.custom_objects)
    try:
        return keras.models.load_model(file, compile=False, safe_mode=True, custom_objects=objects)
    except Exception as error:  # Keras raises many types for files it cannot load
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"model {file} cannot be loaded ({reason}); give a .keras file that "
            "keras.models.load_model opens; classes of your own are of the module that "
            "--custom-objects names, as package.module"
        ) from error


def _custom_objects(module: str | None) -> dict[str, Any]:
    """The classes and functions that the user's module has of its own package, by name."""
    if module is None:
        return {}
    from ooodist.util.user_functions import users_module

    if not all(map(str.isidentifier, module.split("."))):
        raise UserError(f"--custom-objects is {module}; it must be a module, as package.module")
    package = module.partition(".")[0]
    return {
        name: each
        for name, each in vars(users_module(module, f"--custom-objects {module}")).items()
        if callable(each) and f"{getattr(each, '__module__', None)}.".startswith(f"{package}.")
    }


def _build(file: Path) -> keras.Model:
    """Builds the model of a job as its training would."""
    from ooodist.config import job as job_file

    config = job_file.load(file)
    import keras

    from ooodist import models
    from ooodist.data import kinds

    keras.config.set_dtype_policy(config.precision)
    return models.build(
        config.model, kinds.load(config.data, batch=config.batch, rank=0, size=1, seed=config.seed)
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _metrics(options: argparse.Namespace) -> dict[str, float]:
    """The metrics of the options ``--metric`` and ``--accuracy``."""
    from ooodist.util.yaml_dataclass import did_you_mean
    from ooodist.zoo.metrics import KNOWN, kind_of

    short = [] if options.accuracy is None else [f"accuracy={options.accuracy}"]
    found: dict[str, float] = {}
    for given in [*short, *options.metric]:
        name, _, value = given.partition("=")
        if kind_of(name) is None:
            raise UserError(
                f"--metric {given}: it is not known which values of {name} are good"
                f"{did_you_mean(name, [*KNOWN])}; its name must be, or end in, one of "
                f"{', '.join(KNOWN)}"
            )
        if name in found:
            raise UserError(f"--metric {given}: {name} is given twice; leave one of them out")
        try:
            found[name] = float(value)
        except ValueError as error:
            raise UserError(f"--metric {given}: it must be NAME=NUMBER, as f1_score=0.9") from error
    return found


def _judged(metas: Sequence[Meta]) -> tuple[str, list[str]]:
    """The metric that decides for each model, as the heading and the cells of a column."""
    from ooodist.zoo.metrics import judge_of

    judges = [judge_of(meta) for meta in metas]
    names = {judge for judge in judges if judge is not None}
    cells = []
    for judge, meta in zip(judges, metas, strict=True):
        number = "" if judge is None else _number(meta.metrics[judge])
        cells.append(f"{judge} {number}" if number and len(names) > 1 else number)
    return (names.pop() if len(names) == 1 else "metric"), cells


def _number(value: float) -> str:
    return f"{value:#.4g}"


def _table(lines: Sequence[Sequence[str]], left: Sequence[int]) -> str:
    from ooodist.report.tables import aligned

    return aligned(lines, left)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m ooodist.zoo",
        description="Trained models from which new ones start.",
        epilog=EXAMPLES,
    )
    each = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add = _command(each, "add", "put a trained model into the zoo; prints its id")
    add.add_argument("model", metavar="MODEL.keras", type=Path, help="as Keras saved it")
    add.add_argument("--name", default="", help="for people; else the name of the file")
    add.add_argument(
        "--metric",
        metavar="NAME=NUMBER",
        action="append",
        default=[],
        help="measured on data it was not trained on, as perplexity=23.4; for each metric",
    )
    add.add_argument("--accuracy", type=float, help="short for --metric accuracy=NUMBER")
    add.add_argument(
        "--judged-by",
        metavar="NAME",
        default="",
        help="the metric that decides how good it is; else that of its task",
    )
    add.add_argument(
        "--access", metavar="USERS", default="", help="who may use it, as a,b; else everybody"
    )
    query = _command(each, "query", "the best starts for a model")
    query.add_argument(
        "model", metavar="MODEL.keras|JOB.yaml", type=Path, help="the model, or a job that has it"
    )
    query.add_argument("--count", type=int, default=10, help="models to show at most")
    for command, what in ((add, "it"), (query, "those")):
        command.add_argument(
            "--custom-objects",
            metavar="MODULE",
            help="package.module of your own layers and functions; it is imported",
        )
        command.add_argument("--task", default="", help=f"of {what}, as 'image classification'")
        command.add_argument("--dataset", default="", help=f"of {what}")
        command.add_argument("--tags", default="", help=f"of {what}, as a,b")
    _command(each, "list", "all models")
    _command(each, "show", "all that is known of a model").add_argument("id", metavar="ID")
    _command(each, "evict", "delete models").add_argument("ids", metavar="ID", nargs="+")
    serve = _command(each, "serve", "let other machines use the zoo", is_client=False)
    serve.add_argument("--address", default="127.0.0.1:7077", help="host:port to listen on")
    serve.add_argument("--tokens", metavar="FILE", type=Path, help="YAML, one line user: token")
    serve.add_argument("--certificate", metavar="FILE", type=Path, help="PEM, for TLS")
    serve.add_argument("--key", metavar="FILE", type=Path, help="PEM, of the certificate")
    for command in (add, serve):
        command.add_argument(
            "--capacity-bytes",
            metavar="BYTES",
            type=int,
            help="that the models may have together; the least valuable ones leave",
        )
    return parser.parse_args(arguments)


def _command(each: Any, name: str, text: str, *, is_client: bool = True) -> Parser:
    command: Parser = each.add_parser(name, help=text, description=text)
    command.add_argument(
        "--zoo",
        metavar="ADDRESS",
        required=True,
        help="folder, s3://bucket/folder or the like" + (", or host:port" if is_client else ""),
    )
    command.add_argument(
        "--index",
        metavar="FILE",
        type=Path,
        help="where the index is, on a disk of this machine; for a folder on a network drive",
    )
    if is_client:
        command.add_argument("--token-file", metavar="FILE", type=Path, help="for a service")
        command.add_argument("--certificate", metavar="FILE", type=Path, help="of a service")
    return command


command = functools.partial(program.run, main)  # ooodist-zoo

if __name__ == "__main__":
    sys.exit(command())
