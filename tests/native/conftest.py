"""Which cases of the slow portable set the usual run takes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
FEW = 4
"""Portable cases of a test that are all in the usual run; of more it takes every third."""


def is_portable(item: pytest.Item) -> bool:
    case = getattr(item, "callspec", None)
    return case is not None and any(
        isinstance(one, str) and one == "portable" for one in case.params.values()
    )


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The sets are compiled from the same code. Shapes and formats matter to the best one, which takes all of them."""
    portable = [
        item
        for item in items
        if FOLDER in item.path.parents and is_portable(item) and item.get_closest_marker("long") is None
    ]
    names = [item.nodeid.partition("[")[0] for item in portable]
    count, seen = Counter(names), Counter[str]()
    for item, name in zip(portable, names, strict=True):
        if count[name] > FEW and seen[name] % 3:
            item.add_marker(pytest.mark.long)
        seen[name] += 1
