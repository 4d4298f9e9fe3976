"""When nothing is drafted at all: what drafting has lost is paid back by steps in which nothing of it runs."""

from __future__ import annotations

TRUST = 6.0
"""What drafting may lose before it rests, in steps without drafts of one sequence, and less of larger batches, where it
pays less often; half of it after each time, down to LEAST_TRUST."""
LEAST_TRUST = 1.0
CREDIT = 2.0
"""What drafting has gained counts up to so much more than it may lose: so it rests soon after it ceases to pay."""
FIRST_SHARE, SHARE = 0.01, 0.005
"""A rest is so long that what was lost before it is this share of it: the first ones are shorter, as chance may have
made them; each that follows a rest without gains in between halves the share."""
SHORTEST, LONGEST = 32, 1 << 14
FEW = 8
"""Drafting begins with one of so many sequences."""
RECENT_STATES = 256
"""So many steps before a rest ends, layers get the model's states again: older ones they would forget."""


class Rest:
    """Of batches of about one size. All amounts are steps without drafts.

    Drafting goes on as long as it has credit, which is what it gains, less what it loses. Then it rests. It begins, and
    begins again, with few sequences, as drafters have to read what they missed, and goes on with more as it gains.
    """

    __slots__ = ("_credit", "_doubled", "_first", "_net", "_trust", "left", "turn")

    def __init__(self, sequences: int = 1) -> None:
        self.left = 0  # steps still to rest
        self.turn = 0  # rests so far
        self._doubled = 0
        self._first = max(LEAST_TRUST, TRUST / max(1, sequences.bit_length()))
        self._trust = self._credit = self._first
        self._net = 0.0  # since the last rest

    def width(self, sequences: int) -> int:
        """For how many of so many sequences drafts may be made."""
        return max(1, sequences // FEW) << self._doubled

    def invest(self, lost: float) -> None:
        """So much was lost in a step before which drafters read what they had missed. It is paid back, but says
        nothing of what drafting brings from now on."""
        self._net -= lost

    def add(self, gained: float, *, verified: bool = False) -> None:
        """Drafting has brought so many steps, or cost them; `verified`: in a step with drafts."""
        if verified and gained > 0 and self._doubled < FEW.bit_length():
            self._doubled += 1
        self._net += gained
        self._credit = min(self._first + CREDIT, self._credit + gained)
        if self._credit == self._first + CREDIT:
            self._trust = self._first
        if self._credit <= 0:
            self.begin()

    def begin(self) -> None:
        """Rest from now on."""
        share = max(SHARE, FIRST_SHARE * self._trust / TRUST)
        self.left = round(min(LONGEST, max(SHORTEST, -self._net / share)))
        self._trust = max(LEAST_TRUST, self._trust / 2)
        self._credit, self._net = self._trust, 0.0
        self._doubled, self.turn = 0, self.turn + 1
