"""Drafters in order: the first one that has something to say about a sequence drafts for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.core.types import BlockCopy
from headrace.runner.drafting import Drafted, Drafter


class ChainDrafter:
    """Asks each drafter for the sequences that the ones before it said nothing about; satisfies
    `runner.drafting.Drafter`.

    Every drafter sees every sequence in every step, with no room where it is not asked.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = tuple(drafters)

    def draft(self, sequences: Sequence[Drafted]) -> list[tuple[int, ...]]:
        drafts: list[tuple[int, ...]] = [()] * len(sequences)
        for drafter in self.drafters:
            open_ones = [
                replace(one, room=0) if draft else one for one, draft in zip(sequences, drafts, strict=True)
            ]
            drafts = [draft or found for draft, found in zip(drafts, drafter.draft(open_ones), strict=True)]
        return drafts

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        for drafter in self.drafters:
            drafter.copy_blocks(copies)

    def release(self, request_id: int) -> None:
        for drafter in self.drafters:
            drafter.release(request_id)
