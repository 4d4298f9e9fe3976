"""Which drafts were right: those that lead where sampling without drafts leads."""

from __future__ import annotations

from headrace.core.types import SeqSlice
from headrace.runner.sampling.output import SampleOutput


def assumed(work: SeqSlice) -> list[tuple[int, ...]]:
    """The drafts before each sample of a slice: after its last known token, and after each of its drafts."""
    drafts = work.tokens[work.known :]
    paths: list[tuple[int, ...]] = [()]
    if not work.draft_parents:
        return paths + [drafts[:count] for count in range(1, len(drafts) + 1)]
    for token, parent in zip(drafts, work.draft_parents, strict=True):
        paths.append((*paths[parent + 1], token))
    return paths


def follow(work: SeqSlice, samples: SampleOutput, first: int, count: int) -> list[int]:
    """The samples that count, of the `count` of a slice from `first` on: the one after the last known token, and then
    after each draft that is what was sampled."""
    drafts = work.tokens[work.known :]
    path: list[int] = []
    if not work.draft_parents:
        for index in range(count):
            path.append(first + index)
            if index < len(drafts) and samples.tokens[first + index] != drafts[index]:
                break
        return path
    children: dict[tuple[int, int], int] = {}
    for node, (token, parent) in enumerate(zip(drafts, work.draft_parents, strict=True)):
        children.setdefault((parent, token), node)
    at: int | None = -1
    while at is not None:
        path.append(first + 1 + at)
        at = children.get((at, samples.tokens[path[-1]]))
    return path
