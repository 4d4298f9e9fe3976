"""Which tokens to draft, or to verify: those that bring the most tokens a second. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.speculative.clock import Curve


class Candidate(NamedTuple):
    """A token that may be drafted, or verified, next."""

    chance: float  # that it and all before it are right; never above its parent's
    index: int  # type: ignore[assignment]  # of its sequence; hides tuple.index
    node: int  # among the sequence's candidates
    parent: int  # a node, or -1
    depth: int  # from 0


def chain(index: int, found: Sequence[float]) -> list[Candidate]:
    """The candidates of sequence `index` whose tokens follow each other, each with its chance."""
    return [Candidate(chance, index, depth, depth - 1, depth) for depth, chance in enumerate(found)]


def tree(
    index: int, parents: Sequence[int], depths: Sequence[int], found: Sequence[float]
) -> list[Candidate]:
    """The same for a tree, see core.trees."""
    return [
        Candidate(chance, index, node, parent, depth - 1)
        for node, (parent, depth, chance) in enumerate(zip(parents, depths, found, strict=True))
    ]


def choose(
    candidates: Sequence[Candidate], base: int, steps: Curve, rounds: Curve | None, branches: int
) -> list[Candidate]:
    """Those that give the most tokens a second, in falling order of the probability that they are accepted.

    Without drafts the step has `base` tokens. `steps`: its seconds by tokens; `rounds`: those of drafting a token for
    so many sequences, None where the candidates are drafted already. There can be so many `branches`, which begin
    wherever a token has another child. All are taken where no step was measured yet.
    """
    plain = steps.seconds(base)
    order: list[Candidate] = []
    best = None if plain is None else base / plain
    expected, drafting, taken = float(base), 0.0, 0
    deepest: dict[int, int] = {}  # of each sequence
    rows: dict[int, int] = {}  # how many sequences draft so deep
    inside: set[tuple[int, int]] = set()  # (sequence, node)
    grown: set[tuple[int, int]] = set()  # those with a child
    for one in sorted(candidates, key=lambda one: -one.chance):
        parent = (one.index, one.parent)
        if (one.parent >= 0 and parent not in inside) or (parent in grown and not branches):
            continue
        branches -= parent in grown
        grown.add(parent)
        inside.add((one.index, one.node))
        order.append(one)
        if best is None or plain is None:
            taken = len(order)
            continue
        expected += one.chance
        if one.depth == deepest.get(one.index, 0):  # one more sequence drafts this deep
            deepest[one.index] = one.depth + 1
            before = rows.get(one.depth, 0)
            rows[one.depth] = before + 1
            if rounds is not None:
                drafting += rounds.seconds(before + 1) or 0.0
                drafting -= (rounds.seconds(before) or 0.0) if before else 0.0
        rate = expected / ((steps.seconds(base + len(order)) or plain) + drafting)
        if rate > best:
            best, taken = rate, len(order)
    return order[:taken]


def worth(candidates: Sequence[Candidate], base: int, steps: Curve, rounds: Curve | None) -> float:
    """Tokens a second with the best of one sequence's candidates, as `choose` takes them without branches."""
    chosen = choose(candidates, base, steps, rounds, 0)
    seconds = steps.seconds(base + len(chosen)) or 1.0
    if rounds is not None:
        seconds += len(chosen) * (rounds.seconds(1) or 0.0)
    return (base + sum(one.chance for one in chosen)) / seconds
