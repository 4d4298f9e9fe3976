"""Look-up in what the engine wrote before: answers to like questions often go on alike.

Only outputs of the same user under the same cache salt are looked at, as in the prefix cache, so that the time of an
answer reveals nothing of what others were sent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from headrace.core.types import BlockCopy
from headrace.runner.drafting import Drafted
from headrace.speculative.method import NOTHING, Proposal

SIZE = 4
"""Tokens that must be equal before an output is followed."""
MOST_TOKENS = 1 << 15
"""Of one user's outputs, about; older ones are forgotten. An entry takes some 250 bytes."""
MOST_USERS = 32
"""The users whose last output is the oldest are forgotten beyond so many."""
_BORDER = -1  # between two outputs: no token
_FACTOR = 2  # an occurrence of n equal tokens is followed for at most so many times n tokens


class Outputs:
    """Tokens of outputs, one after the other, and the last place after each `SIZE` tokens in a row."""

    __slots__ = ("places", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.places: dict[tuple[int, ...], int] = {}

    def add(self, output: Sequence[int]) -> None:
        first = len(self.tokens)
        self.tokens += output
        for end in range(first + SIZE, len(self.tokens) + 1):
            self.places[tuple(self.tokens[end - SIZE : end])] = end
        self.tokens.append(_BORDER)


class History:
    """One user's outputs in two generations: once the younger one is full, the older one is forgotten."""

    __slots__ = ("old", "young")

    def __init__(self) -> None:
        self.young, self.old = Outputs(), Outputs()

    def add(self, output: Sequence[int]) -> None:
        part = MOST_TOKENS // 4  # a generation has at most two of them
        for first in range(0, len(output), part):
            self.young.add(output[first : first + part])
            if len(self.young.tokens) >= part:
                self.young, self.old = Outputs(), self.young

    def find(self, last: tuple[int, ...]) -> tuple[Outputs, int] | None:
        """The outputs in which these tokens stand, and the place after them."""
        for outputs in (self.young, self.old):
            place = outputs.places.get(last)
            if place is not None:
                return outputs, place
        return None


class _Follower:
    """Of one sequence: how many of its tokens were read, and the place in earlier outputs that it follows."""

    __slots__ = ("at", "length", "outputs", "read")

    def __init__(self, read: int) -> None:
        self.read = read
        self.outputs: Outputs | None = None
        self.at = self.length = 0

    def follow(self, tokens: Sequence[int], history: History) -> None:
        for end in range(self.read + 1, len(tokens) + 1):
            if self.outputs is not None and self.outputs.tokens[self.at] == tokens[end - 1]:
                self.at, self.length = self.at + 1, self.length + 1
                continue
            self.outputs, self.length = None, 0
            found = history.find(tuple(tokens[end - SIZE : end])) if end >= SIZE else None
            if found is not None:
                (self.outputs, self.at), self.length = found, SIZE
        self.read = len(tokens)

    def continuation(self, count: int) -> tuple[int, ...]:
        if self.outputs is None:
            return ()
        found = self.outputs.tokens[self.at : self.at + min(count, _FACTOR * self.length)]
        return tuple(found[: found.index(_BORDER)] if _BORDER in found else found)


class HistoryMethod:
    """Drafts what followed the last tokens in earlier outputs of the same user; satisfies `method.Method`."""

    name, free, needs_hidden, needs_states, outline = "history", True, False, False, None

    def __init__(self) -> None:
        self._histories: OrderedDict[tuple[str, str], History] = OrderedDict()  # the last used last
        self._followers: dict[int, tuple[_Follower, Drafted]] = {}

    def propose(self, sequences: Sequence[Drafted]) -> list[Proposal]:
        return [self._propose(one) for one in sequences]

    def _propose(self, one: Drafted) -> Proposal:
        follower, _ = self._followers.get(one.request_id, (None, None))
        if follower is None:
            follower = _Follower(max(0, len(one.tokens) - SIZE))
        self._followers[one.request_id] = follower, one
        if not one.room:
            return NOTHING
        history = self._histories.get(one.owner)
        if history is None:
            follower.read = len(one.tokens)
            return NOTHING
        follower.follow(one.tokens, history)
        tokens = follower.continuation(one.room)
        return Proposal(tokens, follower.length.bit_length())

    def pass_over(self, sequences: Sequence[Drafted]) -> None:
        """It reads what it missed when it is asked again."""

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """There is no KV."""

    def release(self, request_id: int) -> None:
        """Remember the output. That of a preempted sequence, which starts again, is remembered up to there."""
        _, one = self._followers.pop(request_id, (None, None))
        if one is None:
            return
        output = one.tokens[len(one.tokens) - one.state.num_output :]
        if len(output) <= SIZE:
            return
        history = self._histories.setdefault(one.owner, History())
        self._histories.move_to_end(one.owner)
        history.add(output)
        if len(self._histories) > MOST_USERS:
            self._histories.popitem(last=False)
