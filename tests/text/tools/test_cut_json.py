"""Arguments cut off anywhere: what is complete of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.text.tools.json_text import complete_members
from tests.work import growth


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("", {}), ("{", {}), ('{"a', {}), ('{"a"', {}), ('{"a":', {}), ('{"a": "x', {}), ('{"a": "x\\"', {}),
        ('{"a": "x"', {"a": "x"}), ('{"a": "x", ', {"a": "x"}), ('{"a": "x", "b', {"a": "x"}),
        ('{"a": 12', {}), ('{"a": 12 ', {}), ('{"a": 12,', {"a": 12}), ('{"a": 12}', {"a": 12}),
        ('{"a": tru', {}), ('{"a": true', {"a": True}), ('{"a": null', {"a": None}),
        ('{"a": {', {"a": {}}), ('{"a": [1, 2', {"a": [1]}),
        ('{"a": [[1], {"b": "c", "d": "e', {"a": [[1], {"b": "c"}]}),
        ('{"a": {"b": "}"}, "c": "{', {"a": {"b": "}"}}), ('{"a": "x"} and so on', {"a": "x"}),
        ('{"a": NaN}', {}), ('{"a": 1e999}', {}), ('{"a": "\\ud800"}', {}),
        ("[1", {}), ('"a"', {}), ('{"a": x, "b": "c', {}), ('{"a" "b", "c', {}), ('{]', {}), ("}", {}), (",", {}),
    ],
)  # fmt: skip
def test_complete_members(text: str, members: dict[str, Any]) -> None:
    assert complete_members(text) == members


def test_every_cut_of_an_object_gives_its_beginning() -> None:
    """Members come, once and in order, and none changes but those that hold others."""
    whole = {"a": [1, 2.5, {"b": 'x"\\y'}], "c": {}, "d": None, "e": "ü\u2028", "f": {"g": [True, "h"]}}
    for text in (json.dumps(whole), json.dumps(whole, indent=1), json.dumps(whole, ensure_ascii=False)):
        sizes = []
        for cut in range(len(text) + 1):
            given = complete_members(text[:cut])
            assert list(given) == list(whole)[: len(given)]
            assert all(given[key] == whole[key] for key in list(given)[:-1])
            sizes.append(len(json.dumps(given)))
        assert sizes == sorted(sizes) and complete_members(text) == whole


HOSTILE: list[Callable[[int], str]] = [
    lambda many: '{"a": "' + "x" * many, lambda many: '{"a": "' + '\\"' * many, lambda many: '{"a":' * many,
    lambda many: "{" + " " * many, lambda many: "[" * many,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_the_work_for_long_texts_is_linear(text: Callable[[int], str]) -> None:
    assert growth(lambda many: complete_members(text(many))) < 5


@pytest.mark.long
@pytest.mark.parametrize("text", HOSTILE)
def test_long_texts_take_linear_time(text: Callable[[int], str]) -> None:
    started = time.process_time()
    complete_members(text(100_000))
    assert time.process_time() - started < 2.0
