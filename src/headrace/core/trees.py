"""Trees of drafts, as parents: for each drafted token the index of its parent among the drafts.

The parent of a draft that follows the last known token is -1. Parents come before their children, so the first n drafts
of a tree are a tree as well. () stands for a chain, in which each draft follows the one before. The main chain of a
tree is made of first children: its KV goes where a chain's would.
"""

from __future__ import annotations

from collections.abc import Sequence

Draft = tuple[tuple[int, ...], tuple[int, ...]]
"""Drafted tokens, and their parents."""


def is_chain(parents: Sequence[int]) -> bool:
    """Whether each draft follows the one before."""
    return all(parent == index - 1 for index, parent in enumerate(parents))


def is_tree(parents: Sequence[int], count: int) -> bool:
    """Whether these are the parents of `count` drafts."""
    return not parents or (
        len(parents) == count and all(-1 <= parent < index for index, parent in enumerate(parents))
    )


def depths(parents: Sequence[int]) -> list[int]:
    """How many drafts lead to each, itself included."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def depth(parents: Sequence[int], count: int) -> int:
    """Of the deepest of the first `count` drafts, which is how many places in the KV cache they take."""
    return max(depths(parents[:count]), default=0) if parents else count


def main_chain(parents: Sequence[int]) -> list[int]:
    """The drafts of the main chain."""
    found: list[int] = []
    last = -1
    for index, parent in enumerate(parents):
        if parent == last:
            found.append(index)
            last = index
    return found


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """The drafts from the last known token to `node`, which is the last of them."""
    found = []
    while node >= 0:
        found.append(node)
        node = parents[node]
    return found[::-1]


def cut(tokens: tuple[int, ...], parents: tuple[int, ...], most_depth: int, *, chain: bool = False) -> Draft:
    """A draft without what is deeper than `most_depth`; with `chain`, only its main chain."""
    if not parents:
        return tokens[:most_depth], ()
    if chain:
        return tuple(tokens[node] for node in main_chain(parents)[:most_depth]), ()
    return subtree(tokens, parents, [node for node, deep in enumerate(depths(parents)) if deep <= most_depth])


def subtree(tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]) -> Draft:
    """The drafts `nodes`, in an order in which the parent of each comes before it, as a draft of their own."""
    new = {node: at for at, node in enumerate(nodes)}
    new[-1] = -1
    kept = tuple(new[parents[node]] for node in nodes)
    return tuple(tokens[node] for node in nodes), () if is_chain(kept) else kept


def holds_path(tokens: Sequence[int], parents: Sequence[int], path: Sequence[int]) -> bool:
    """Whether the tokens of `path` lead from the last known token to some draft."""
    if not parents:
        return tuple(tokens[: len(path)]) == tuple(path)
    ends = {-1}
    for token in path:
        ends = {node for node, parent in enumerate(parents) if parent in ends and tokens[node] == token}
    return bool(ends)
