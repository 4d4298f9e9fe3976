"""Drafts from earlier outputs: what they find, whose they are, and that they are forgotten in time."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace import LLM, SamplingParams
from headrace.core.types import NewSequence, SeqSlice
from headrace.runner.drafting import Drafted
from headrace.runner.sampling.state import SequenceState
from headrace.speculative import history
from headrace.speculative.history import SIZE, HistoryMethod

ME, OTHER, SALTED = ("me", ""), ("other", ""), ("me", "salt")
TEXT = list(range(100, 160))


class Run:
    """One sequence whose output grows step by step."""

    def __init__(
        self, method: HistoryMethod, number: int, prompt: list[int], owner: tuple[str, str] = ME
    ) -> None:
        self.method, self.number, self.owner = method, number, owner
        self.tokens = list(prompt)
        self.state = SequenceState(
            NewSequence(SamplingParams(), tuple(prompt), len(prompt), 0, frozenset()), 1000
        )

    def emit(self, tokens: list[int], room: int = 8) -> tuple[int, ...]:
        """What is drafted after these."""
        self.tokens += tokens
        self.state.extend(tokens)
        work = SeqSlice(self.number, (0,), 0, sample=True)
        one = Drafted(
            self.number, 0, work, self.tokens, len(self.tokens) - 1, 0, room, 0, self.state, self.owner
        )
        (found,) = self.method.propose([one])
        return found.tokens

    def end(self) -> None:
        self.method.release(self.number)


def told(
    method: HistoryMethod, number: int = 0, tokens: list[int] = TEXT, owner: tuple[str, str] = ME
) -> None:
    run = Run(method, number, [1, 2, 3], owner)
    for token in tokens:
        run.emit([token])
    run.end()


def test_what_was_written_before_is_drafted_as_long_as_it_goes_on() -> None:
    method = HistoryMethod()
    told(method)
    run = Run(method, 1, [7])
    assert run.emit(TEXT[:3]) == ()
    assert run.emit(TEXT[3:4]) == tuple(TEXT[4:12])
    assert run.emit(TEXT[4:10], room=3) == tuple(TEXT[10:13])
    assert run.emit([5]) == ()
    assert run.emit(TEXT[20 : 20 + SIZE]) == tuple(TEXT[24:32])
    assert run.emit(TEXT[24:58]) == tuple(TEXT[58:]), "a draft ends where the output did"


def test_the_end_of_a_prompt_is_looked_up_and_prompts_are_not_kept() -> None:
    method = HistoryMethod()
    told(method)
    assert Run(method, 1, TEXT[:3]).emit([TEXT[3]]) == tuple(TEXT[4:12])
    run = Run(method, 2, [50, 51, 52, 53, 54, 55])
    run.emit([9])
    run.end()
    assert Run(method, 3, [50, 51, 52]).emit([53]) == ()


def test_nothing_is_told_to_others() -> None:
    method = HistoryMethod()
    told(method)
    for owner in (OTHER, SALTED, ("", "")):
        assert Run(method, 1, [7], owner).emit(TEXT[:10]) == ()
        method.release(1)
    told(method, 2, [*TEXT[:4], 9, 9, 9, 9], OTHER)
    assert Run(method, 3, [7]).emit(TEXT[:4]) == tuple(TEXT[4:12])
    assert Run(method, 4, [7], OTHER).emit(TEXT[:4]) == (9, 9, 9, 9)


def test_the_latest_output_is_followed() -> None:
    method = HistoryMethod()
    told(method)
    told(method, 1, [*TEXT[:4], 8, 8, 8])
    assert Run(method, 2, [7]).emit(TEXT[:4]) == (8, 8, 8)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_TOKENS", 1000)
    monkeypatch.setattr(history, "MOST_USERS", 3)
    method, rng = HistoryMethod(), random.Random(0)
    for number in range(60):
        told(
            method,
            number,
            [rng.randrange(900) for _ in range(rng.randrange(300))],
            (f"user {number % 7}", ""),
        )
        assert len(method._histories) <= 3
        for kept in method._histories.values():
            assert len(kept.young.tokens) + len(kept.old.tokens) <= 1000 + 2
            assert len(kept.young.places) + len(kept.old.places) <= 1000
    told(method, 99, TEXT)
    told(method, 100, [*range(5000, 6200)])
    assert Run(method, 101, [7]).emit([*range(6000, 6004)]) == tuple(range(6004, 6012))
    assert Run(method, 102, [7]).emit(TEXT[:4]) == (), "what is old is forgotten"
    assert not method._followers.keys() - {101, 102}


def test_a_second_answer_is_drafted_from_the_first_and_has_the_same_bits() -> None:
    prompt, params = "Once upon a time", SamplingParams(max_tokens=40, temperature=0.7, seed=3, logprobs=0)
    options: dict[str, Any] = {
        "num_threads": 1,
        "show_progress": False,
        "num_kv_blocks": 40,
        "max_num_seqs": 4,
    }
    (expected,) = LLM("tale", **options).generate(prompt, params)
    llm = LLM("tale", speculative="history", adaptive_speculation=False, **options)
    for accepted in (0, 25):
        (found,) = llm.generate(prompt, params)
        assert found.outputs[0].token_ids == expected.outputs[0].token_ids
        assert found.outputs[0].logprobs == expected.outputs[0].logprobs
        assert found.metrics.num_accepted_tokens >= accepted
