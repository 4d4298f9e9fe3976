"""A way to draft: what `control.Speculation` asks of n-grams, draft models and heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.core.record import record
from headrace.core.types import BlockCopy
from headrace.runner.drafting import Drafted


@record
class Proposal:
    """Tokens that may follow a sequence. Those of one `kind` are about as likely to be right as each other.

    With `parents` they are a tree, see core.trees, and `nodes` says for each which node of the method's outline it is.
    """

    tokens: tuple[int, ...] = ()
    kind: int = 0
    parents: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()


@record
class Outline:
    """The largest tree that a method drafts: its first n nodes are the best tree of n, as far as it knows.

    parents: see core.trees; () where trees have another shape each time, and the number of a node says only how sure
    the method is of it. rates: of each number the probability that such a node is right where its parent is, as a
    first guess.
    """

    parents: tuple[int, ...]
    rates: tuple[float, ...]

    @property
    def is_dynamic(self) -> bool:
        return not self.parents


NOTHING = Proposal()


class Method(Protocol):
    """Drafts tokens, and keeps what it needs of each sequence."""

    @property
    def name(self) -> str: ...

    @property
    def free(self) -> bool:
        """Drafting costs next to nothing, so it may draft more than will be verified."""
        ...

    @property
    def needs_hidden(self) -> bool:
        """Whether it reads `Drafted.hidden`."""
        ...

    @property
    def needs_states(self) -> bool:
        """Whether it reads `Drafted.states`."""
        ...

    @property
    def outline(self) -> Outline | None:
        """Of the trees that it drafts where `Drafted.nodes` is more than 0; None if it only drafts chains."""
        ...

    def propose(self, sequences: Sequence[Drafted]) -> list[Proposal]:
        """For each sequence at most `room` tokens one after the other, and `nodes` in all where that is not 0. Called
        after a step with every sequence whose slice was run, but not after every step: see `pass_over`."""
        ...

    def pass_over(self, sequences: Sequence[Drafted]) -> None:
        """Called in place of `propose` after a step where nothing is asked of it: with all sequences whose slice was
        run."""
        ...

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copies of blocks in its own KV groups, counted from the first of these."""
        ...

    def release(self, request_id: int) -> None:
        """The sequence has ended, or starts over. Unknown ones are ignored."""
        ...
