"""How likely drafts are to be right, by method, kind, depth and sequence."""

from __future__ import annotations

from collections.abc import Sequence

_NEW = 0.05
_OWN_NEW = 0.15
_PRIOR = 6.0
"""A sequence's own rate counts as much as the common one after so many drafts."""
_FIRST_RATE = 0.6


class Rates:
    """Of one kind of drafts: the probability that the token at each depth is right where those before it are."""

    __slots__ = ("_by_depth", "_counts", "mean")

    def __init__(self) -> None:
        self._by_depth: list[float] = []
        self._counts: list[int] = []
        self.mean = _FIRST_RATE

    def add(self, verified: int, accepted: int) -> None:
        """`accepted` of `verified` tokens of a draft were right, the first ones."""
        for depth in range(min(verified, accepted + 1)):
            if depth == len(self._by_depth):
                self._by_depth.append(self._by_depth[-1] if self._by_depth else _FIRST_RATE)
                self._counts.append(0)
            self._counts[depth] += 1
            right = float(depth < accepted)
            weight = max(_NEW, 1 / (self._counts[depth] + 2))
            self._by_depth[depth] += (right - self._by_depth[depth]) * weight
            self.mean += (right - self.mean) * _NEW

    def at(self, depth: int) -> float:
        """The rate at a depth; beyond those seen it is the last one's."""
        if not self._by_depth:
            return _FIRST_RATE
        return self._by_depth[min(depth, len(self._by_depth) - 1)]


class NodeRates:
    """Of the nodes of a tree: the probability that each is right where its parent is."""

    __slots__ = ("_counts", "_rates")

    def __init__(self, guesses: Sequence[float]) -> None:
        self._rates = list(guesses)
        self._counts = [0] * len(guesses)

    def add(self, node: int, right: bool) -> None:
        self._counts[node] += 1
        weight = max(_NEW, 1 / (self._counts[node] + _PRIOR))
        self._rates[node] += (right - self._rates[node]) * weight

    def at(self, node: int) -> float:
        return self._rates[node]


class Own:
    """One sequence's drafts beside the common rate: its share of right ones over the expected share."""

    __slots__ = ("_expected", "_right")

    def __init__(self) -> None:
        self._right = self._expected = _PRIOR

    def add(self, rates: Rates, verified: int, accepted: int) -> None:
        for depth in range(min(verified, accepted + 1)):
            self.observe(depth < accepted, rates.at(depth))

    def observe(self, right: bool, expected: float) -> None:
        """A token was right or not, which had the probability `expected` for other sequences."""
        self._right += right - self._right * _OWN_NEW / _PRIOR
        self._expected += expected - self._expected * _OWN_NEW / _PRIOR

    @property
    def factor(self) -> float:
        return self._right / max(self._expected, 1e-6)


def node_chances(rates: NodeRates, own: Own, parents: Sequence[int], nodes: Sequence[int]) -> list[float]:
    """For each of the nodes, with these parents among them, the probability that it and all before it are right."""
    found: list[float] = []
    factor = own.factor
    for parent, node in zip(parents, nodes, strict=True):
        before = 1.0 if parent < 0 else found[parent]
        found.append(before * min(0.99, max(0.001, rates.at(node) * factor)))
    return found


def chances(rates: Rates, own: Own, most: int) -> list[float]:
    """For each number of drafted tokens the probability that all of them are right."""
    found, chance, factor = [], 1.0, own.factor
    for depth in range(most):
        chance *= min(0.99, max(0.001, rates.at(depth) * factor))
        found.append(chance)
    return found
