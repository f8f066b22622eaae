"""Models to match, and the best of all ways to match two small ones.

Nothing here uses the matcher. Series-parallel models are made from nested series, from which what
encloses each operator is known, and a matching is whatever keeps the conditions in :func:`fits`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ooodist.transfer.graph.operators import Operator, Outline

Nested = list["str | list[Nested]"]  # a series of kinds of operators and of lists of branches


@dataclass(frozen=True)
class Model:
    """A model, and for each operator the (parallel, branch) that enclose it, outermost first."""

    outline: Outline
    enclosing: tuple[tuple[tuple[int, int], ...], ...]


def random_series(
    generator: random.Random, size: int, kinds: str, *, ends_with_operators: bool
) -> Nested:
    """Returns a series of so many operators, of which no two parallels follow one another."""
    series: Nested = []
    while size:
        room = size - 1 if ends_with_operators else size
        may_fork = room > 0 and (isinstance(series[-1], str) if series else not ends_with_operators)
        inside = generator.randint(1, room) if room else 0
        # A branch that is nothing but a parallel would be part of the one around it.
        if may_fork and (series or inside < size) and generator.random() < 0.6:
            series.append(random_branches(generator, inside, kinds))
            size -= inside
        else:
            series.append(generator.choice(kinds))
            size -= 1
    return series


def random_branches(generator: random.Random, size: int, kinds: str) -> list[Nested]:
    """Returns at least two branches of so many operators in all, of which one may be empty."""
    branches: list[Nested] = []
    while size:
        part = generator.randint(1, size)
        branches.append(random_series(generator, part, kinds, ends_with_operators=False))
        size -= part
    if len(branches) == 1 or generator.random() < 0.3:
        branches.insert(generator.randint(0, len(branches)), [])
    return branches


def random_model(generator: random.Random, size: int, kinds: str = "ABC") -> Model:
    """Returns a series-parallel model with one input and one output."""
    return model_of(
        random_series(generator, size, kinds, ends_with_operators=True), generator=generator
    )


def model_of(series: Nested, generator: random.Random | None = None) -> Model:
    """Returns the model that is this series. Sizes are random if there is a generator."""
    outline: list[Operator] = []
    enclosing: list[tuple[tuple[int, int], ...]] = []
    parallels = 0

    def add(part: Nested, reads: tuple[int, ...], around: tuple[tuple[int, int], ...]) -> list[int]:
        """Adds a series; returns what stands behind it reads."""
        nonlocal parallels
        ends = list(reads)
        for element in part:
            if isinstance(element, str):
                outline.append(Operator(element, tuple(ends), random_shapes(element, generator)))
                enclosing.append(around)
                ends = [len(outline) - 1]
            else:
                parallels += 1
                number, fork, ends = parallels, tuple(ends), []
                for branch, inside in enumerate(element):
                    ends += add(inside, fork, (*around, (number, branch)))
                ends = sorted(set(ends))
        return ends

    add(series, (), ())
    return Model(tuple(outline), tuple(enclosing))


def random_shapes(kind: str, generator: random.Random | None) -> tuple[tuple[int, ...], ...]:
    """Returns two sizes for A, one for B, with or without another for C, none for others."""

    def size() -> int:
        return generator.randint(1, 4) if generator else 2

    if kind == "A":
        return ((size(), size()),)
    if kind == "B":
        return ((size(),),)
    if kind == "C":
        return ((size(), size()), (size(),)) if size() > 2 else ((size(), size()),)
    return ()


def mass(operator: Operator) -> int:
    return 1 + sum(math.prod(shape) for shape in operator.shapes)


def gain(child: Outline, parent: Outline, one: int, other: int) -> float:
    """Returns what a pair adds to the score, straight from the definition."""
    u, v = child[one], parent[other]
    similar, whole = 2.0, 2.0  # the one of each
    same_ranks = [len(shape) for shape in u.shapes] == [len(shape) for shape in v.shapes]
    for a, b in zip(u.shapes, v.shapes, strict=True) if same_ranks else ():
        both = math.prod(a) + math.prod(b)
        whole += both
        product = math.prod(min(x, y) / max(x, y) for x, y in zip(a, b, strict=True))
        similar += both * (1 + 3 * product) / 4
    if not same_ranks:
        whole = mass(u) + mass(v)
    share = min(mass(u) / sum(map(mass, child)), mass(v) / sum(map(mass, parent)))
    return similar / whole * share


def ancestors(outline: Outline) -> list[set[int]]:
    """Returns for each operator all that it depends on."""
    found: list[set[int]] = []
    for each in outline:
        found.append(set(each.inputs).union(*(found[read] for read in each.inputs)))
    return found


def fits(child: Model, parent: Model, pairs: list[tuple[int, int]]) -> bool:
    """Whether the last pair fits the others, and itself."""
    one, other = pairs[-1]
    if child.outline[one].op != parent.outline[other].op:
        return False
    if len(child.enclosing[one]) != len(parent.enclosing[other]):
        return False
    before, before_there = ancestors(child.outline), ancestors(parent.outline)
    for earlier, earlier_there in pairs[:-1]:
        if earlier_there == other:
            return False
        if (earlier in before[one]) != (earlier_there in before_there[other]):
            return False
        if (one in before[earlier]) != (other in before_there[earlier_there]):
            return False
    # What encloses the operators corresponds one to one, parallels as well as their branches.
    around = {
        (ours, theirs)
        for a, b in pairs
        for mine, yours in zip(child.enclosing[a], parent.enclosing[b], strict=True)
        for ours, theirs in ((mine, yours), ((mine[0],), (yours[0],)))
    }
    return len(around) == len({a for a, _ in around}) == len({b for _, b in around})


def matchings(
    child: Model, parent: Model, pairs: list[tuple[int, int]] | None = None, start: int = 0
) -> Iterator[list[tuple[int, int]]]:
    """Yields all ways to match the operators from ``start`` on, beside the pairs there are."""
    pairs = pairs or []
    yield pairs
    for one in range(start, len(child.outline)):
        for other in range(len(parent.outline)):
            more = [*pairs, (one, other)]
            if fits(child, parent, more):
                yield from matchings(child, parent, more, one + 1)


def best_score(child: Model, parent: Model) -> float:
    """Returns the largest sum of gains of all matchings."""
    gains = {
        (one, other): gain(child.outline, parent.outline, one, other)
        for one in range(len(child.outline))
        for other in range(len(parent.outline))
        if child.outline[one].op == parent.outline[other].op
    }
    return max(sum(map(gains.__getitem__, pairs)) for pairs in matchings(child, parent))


def renumbered(outline: Outline, generator: random.Random) -> tuple[Outline, list[int]]:
    """The model in another topological order, inputs in another order; the new numbers."""
    new: dict[int, int] = {}
    ready = [number for number, each in enumerate(outline) if not each.inputs]
    while ready:
        number = ready.pop(generator.randrange(len(ready)))
        new[number] = len(new)
        for reader, each in enumerate(outline):
            if number in each.inputs and new.keys() >= set(each.inputs):
                ready.append(reader)
    operators = []
    for number in new:  # in their new order
        inputs = [new[read] for read in outline[number].inputs]
        generator.shuffle(inputs)
        operators.append(Operator(outline[number].op, tuple(inputs), outline[number].shapes))
    return tuple(operators), [new[number] for number in range(len(outline))]


def random_graph(generator: random.Random, size: int) -> Outline:
    """Any graph without cycles, with several inputs, outputs and parts."""
    operators = []
    for number in range(size):
        near = range(max(0, number - 4), number)
        inputs = generator.sample(near, min(len(near), generator.choice([0, 1, 1, 1, 2, 2, 3])))
        shapes = ((generator.randint(1, 3),),) if generator.random() < 0.5 else ()
        operators.append(Operator(generator.choice("AB"), tuple(inputs), shapes))
    return tuple(operators)


class Net:
    """Adds operators one by one; each method returns the number of the last."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []

    def add(self, op: str, *inputs: int, shapes: Sequence[tuple[int, ...]] = ()) -> int:
        self.operators.append(Operator(op, inputs, tuple(shapes)))
        return len(self.operators) - 1

    def unit(self, at: int, ins: int, outs: int, size: int = 3) -> int:
        """Convolution, batch norm, ReLU. What reads the input is of a kind of its own."""
        first = self.operators[at].op == "InputLayer"
        at = self.add("Conv2D<input" if first else "Conv2D", at, shapes=[(size, size, ins, outs)])
        at = self.add("BatchNormalization", at, shapes=[(outs,)] * 4)
        return self.add("ReLU", at)

    def head(self, at: int, ins: int, classes: int = 10) -> Outline:
        at = self.add("GlobalAveragePooling2D", at)
        self.add("Dense", at, shapes=[(ins, classes), (classes,)])
        return tuple(self.operators)


def plain_net(widths: Sequence[int]) -> Outline:
    """Blocks of convolution, batch norm and ReLU in a row."""
    net = Net()
    at, ins = net.add("InputLayer"), 3
    for width in widths:
        at, ins = net.unit(at, ins, width), width
    return net.head(at, ins)


def residual_net(widths: Sequence[int]) -> Outline:
    """A stem and a block of each width; where it changes, with a projection in its shortcut."""
    net = Net()
    at = net.unit(net.add("InputLayer"), 3, widths[0])
    ins = widths[0]
    for width in widths:
        main = net.unit(at, ins, width)
        main = net.add("Conv2D", main, shapes=[(3, 3, width, width)])
        main = net.add("BatchNormalization", main, shapes=[(width,)] * 4)
        if width != ins:
            at = net.add("Conv2D", at, shapes=[(1, 1, ins, width)])
            at = net.add("BatchNormalization", at, shapes=[(width,)] * 4)
        at, ins = net.add("ReLU", net.add("Add", main, at)), width
    return net.head(at, ins)


def dense_net(layers: int, growth: int) -> Outline:
    """Each layer reads all that are before it."""
    net = Net()
    made = [net.unit(net.add("InputLayer"), 3, growth)]
    at, ins = made[0], growth
    for _ in range(layers):
        made.append(net.unit(at, ins, growth))
        at, ins = net.add("Concatenate", *made), ins + growth
    return net.head(at, ins)


def inception_net(widths: Sequence[int]) -> Outline:
    """Blocks of four branches."""
    net = Net()
    at, ins = net.add("InputLayer"), 3
    for width in widths:
        at = net.add(
            "Concatenate",
            net.unit(at, ins, width, 1),
            net.unit(net.unit(at, ins, width, 1), width, 2 * width),
            net.unit(net.unit(net.unit(at, ins, width, 1), width, width), width, width),
            net.unit(net.add("MaxPooling2D", at), ins, width, 1),
        )
        ins = 5 * width
    return net.head(at, ins)


def several_of_each(size: int) -> list[Outline]:
    """Nets of all kinds."""
    return [
        plain_net([8 * size] * size),
        residual_net([8] * size + [16] * size),
        dense_net(size, 12),
        inception_net([size + 4] * size),
        model_of([[["A", "B"] * size, ["A"]], "B", [["A"], []], "A"]).outline,
        random_graph(random.Random(size), 5 * size),
    ]


def zoo_of(count: int, most: int = 150) -> list[Outline]:
    """Different models of 50 to 150 operators of all kinds."""
    generator = random.Random(count)
    outlines: list[Outline] = []
    while len(outlines) < count:
        width = generator.choice([8, 12, 16, 24, 32, 48, 64])
        depth = generator.randint(1, 50)
        stages = [width << (3 * at // depth) for at in range(depth)]
        kind = generator.choice(["plain", "residual", "inception", "dense", "random"])
        if kind == "dense":
            outline = dense_net(depth, width)
        elif kind == "random":
            outline = random_model(generator, generator.randint(50, most)).outline
        else:
            net = {"plain": plain_net, "residual": residual_net, "inception": inception_net}[kind]
            outline = net(stages)
        if 50 <= len(outline) <= most:
            outlines.append(outline)
    return outlines
