"""Sequences with the same prompt: the blocks of one hold it whole, its last, partly filled block included, and others
start from them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.request import Request
from headrace.core.table import dropped_blocks
from headrace.core.types import KVGroupSpec, Pooling

_EVERY_TOKEN = (Pooling.MEAN, Pooling.ALL)


class SamePrompts:
    """By prompt key a sequence whose blocks hold the whole prompt."""

    def __init__(self, groups: Sequence[KVGroupSpec]) -> None:
        self._groups = groups
        self._block_size = groups[0].block_size
        self._states = tuple(index for index, group in enumerate(groups) if group.is_state)
        self._holders: dict[int, Request] = {}

    def add(self, request: Request) -> None:
        """A slice that was just granted ends the prompt. Sequences that evict tokens of it share no last block."""
        if request.eviction is None or request.num_prompt <= request.eviction.budget:
            self._holders[request.prompt_key] = request

    def forget(self, request: Request) -> None:
        """Its blocks are freed, or no longer hold the whole prompt."""
        if self._holders.get(request.prompt_key) is request:
            del self._holders[request.prompt_key]

    def same(self, request: Request) -> Request | None:
        """The sequence that a request without output can share a prompt with."""
        source = self._holders.get(request.prompt_key)
        if (
            source is None
            or request.num_output
            or needs_every_token(request)
            or (request.eviction is not None and request.num_prompt > request.eviction.budget)
            or not source.has_prompt_of(request)
        ):
            return None
        return source

    def may_share(self, request: Request) -> bool:
        """Whether a sequence has the key of its prompt, with a state before the last token in each group of states."""
        source = self._holders.get(request.prompt_key)
        if source is None or request.num_output:
            return False
        return request.num_prompt == 1 or all(
            source.tables[group].branch is not None for group in self._states
        )

    def shares(self, source: Request) -> list[tuple[list[int], int]] | None:
        """For each group the blocks to start from, and how many before them are dropped; None where a window has
        moved on, or the state before the last token is not there."""
        start = source.num_prompt - 1
        end_block = -(-source.num_prompt // self._block_size)
        shares: list[tuple[list[int], int]] = []
        for spec, table in zip(self._groups, source.tables, strict=True):
            if spec.is_state:
                if start and table.branch is None:
                    return None
                shares.append(([] if table.branch is None else [table.branch], 0))
                continue
            dropped = dropped_blocks(spec, start)
            if table.dropped > dropped:  # its window has moved on
                return None
            sinks = table.live[: spec.sink_blocks] if dropped else []
            first = spec.sink_blocks + dropped if dropped else 0
            shares.append((sinks + table.live[first - table.dropped : end_block - table.dropped], dropped))
        return shares


def needs_every_token(request: Request) -> bool:
    """Whether its results come from computing each token of the prompt, so that it can share none of them."""
    return request.params.prompt_logprobs is not None or request.pooling in _EVERY_TOKEN
