"""Requests with grammars at a real engine process: compiled beside the steps, held while followed, never in the way."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from headrace.core.grammar import Grammar
from headrace.core.params import SamplingParams
from headrace.core.types import FinishReason, NewRequest, Output
from headrace.errors import InvalidParams, Overloaded
from headrace.serving.client.child import ENGINE_COMMAND
from headrace.serving.client.process import ProcessClient
from headrace.serving.client.source import arrivals
from headrace.serving.grammar import gate as grammar_gate
from headrace.serving.grammar import queue as grammar_queue
from headrace.serving.grammar.gate import GrammarGate
from headrace.serving.requests.generation import Generation
from headrace.text.grammar_store import GrammarStore
from headrace.text.tokenizer import Tokenizer
from tests import needs
from tests.serving.read import read
from tests.waiting import LONG_S

needs.package("llguidance")

OPTIONS: dict[str, object] = {"model": "tale", "num_threads": 1, "max_model_len": 512}
SCHEMA = {
    "type": "object",
    "properties": {
        "animal": {"enum": ["fox", "cat"]},
        "legs": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["animal", "legs"],
    "additionalProperties": False,
}
FEW_TOKENS = 100
"""More than an engine gives that compiles between its steps, and fewer than one gives meanwhile that does not."""


def hard(number: int) -> Grammar:
    """Takes about half a second to compile, and never the same one twice."""
    return Grammar("json_schema", {"type": "integer", "multipleOf": 99_991 - 2 * number})


def heavy(number: int) -> Grammar:
    """Takes about a tenth of a second in the engine's process, once it has been tried out."""
    names = [f"p{number}_{i}" for i in range(600)]
    properties = {name: {"type": "integer"} for name in names}
    return Grammar(
        "json_schema",
        {"type": "object", "properties": properties, "required": names, "additionalProperties": False},  # type: ignore[arg-type]
    )


def request(name: str, grammar: Grammar | None = None, **params: Any) -> NewRequest:
    return NewRequest(
        name, (7, 8, 9), SamplingParams(grammar=grammar, **{"max_tokens": 60, "seed": 1} | params)
    )


def with_engine(
    body: Callable[[ProcessClient], Awaitable[None]], command: Sequence[str] = ENGINE_COMMAND
) -> None:
    async def run() -> None:
        client = await ProcessClient.start(OPTIONS, command=command)
        try:
            await body(client)
            stats = await client.stats()
            while stats.running or stats.waiting:
                await asyncio.sleep(0.01)
                stats = await client.stats()
            assert stats.free_blocks == stats.total_blocks
        finally:
            await client.aclose()

    asyncio.run(run())


async def text_of(client: ProcessClient, tokenizer: Tokenizer, new: NewRequest) -> list[str]:
    generation = await Generation.start(client, tokenizer, new)
    result = await read(generation, tokenizer)
    assert all(output.finish_reason == "stop" for output in result.outputs)
    return [output.text for output in result.outputs]


def test_outputs_follow_their_grammars_and_bad_grammars_are_refused(tokenizer: Tokenizer) -> None:
    async def body(client: ProcessClient) -> None:
        layout = {"x-guidance": {"whitespace_flexible": False}}  # which the server's own layout overrides
        schema = Grammar("json_schema", SCHEMA | layout)
        texts, choices, again = await asyncio.gather(
            text_of(client, tokenizer, request("a", schema, n=3, temperature=1.0, max_tokens=200)),
            text_of(client, tokenizer, request("b", Grammar("choice", ["yes", "no"]))),
            text_of(client, tokenizer, request("c", Grammar("regex", "x{3}"))),
        )
        for text in texts:
            made = json.loads(text)
            assert made["animal"] in ("fox", "cat") and 1 <= made["legs"] <= 9
        assert choices[0] in ("yes", "no") and again == ["xxx"]
        for _ in range(2):  # compiled, then remembered
            with pytest.raises(InvalidParams, match="unclosed"):
                await client.submit(request("d", Grammar("regex", "[")))
        assert await text_of(client, tokenizer, request("d", Grammar("regex", "x{3}"))) == ["xxx"]

    with_engine(body)


def test_a_grammar_that_cannot_be_followed_fails_its_request_alone(tokenizer: Tokenizer) -> None:
    async def body(client: ProcessClient) -> None:
        ambiguous = Grammar("lark", 'start: e\ne: e e e | e e | "a" | "a" "a" | ("a" e)+\n')
        failing = await Generation.start(
            client, tokenizer, request("a", ambiguous, max_tokens=400, ignore_eos=True)
        )
        neighbour = asyncio.ensure_future(
            text_of(client, tokenizer, request("b", Grammar("regex", "[ab]{90}"), max_tokens=99))
        )
        (output,) = (await read(failing, tokenizer)).outputs
        assert output.finish_reason == "error" and "too much time" in str(output.error)
        assert set(output.text) == {"a"}
        assert len((await neighbour)[0]) == 90

    with_engine(body)


def test_aborting_what_is_being_compiled(tokenizer: Tokenizer) -> None:
    async def body(client: ProcessClient) -> None:
        await text_of(client, tokenizer, request("warm", Grammar("regex", "w")))
        waiting = [asyncio.ensure_future(client.submit(request(f"h{i}", hard(i)))) for i in range(2)]
        await asyncio.sleep(0.1)
        with pytest.raises(InvalidParams, match="already running"):
            await client.submit(request("h0", hard(0)))
        waiting[0].cancel()  # in the worker
        waiting[1].cancel()  # after it
        await asyncio.wait(waiting)
        # Both names are free again, and nothing is left of the requests.
        assert await text_of(client, tokenizer, request("h0", Grammar("regex", "y"))) == ["y"]
        assert await text_of(client, tokenizer, request("h1", Grammar("regex", "z"))) == ["z"]

    with_engine(body)


# Compiles where it should not: in the engine's own thread, between two steps.
ON_THE_STEP_PATH = (
    "import sys; from headrace.cli import main; from headrace.serving.grammar import gate;"
    "gate.GrammarGate.submit = lambda self, new, now: self._store.get(new.params.grammar) is not None;"
    "main(['engine-process', *sys.argv[1:]])"
)


async def tokens_meanwhile(client: ProcessClient, tokenizer: Tokenizer) -> int:
    """Tokens of one request while others bring grammars that are hard to compile."""
    await text_of(client, tokenizer, request("warm", Grammar("regex", "w")))
    stream = await client.submit(request("neighbour", ignore_eos=True, max_tokens=480))
    await anext(arrivals(stream))
    expected = [hard(0), heavy(0), heavy(1), hard(1)]
    new_requests = [request(f"h{i}", grammar, max_tokens=1) for i, grammar in enumerate(expected)]
    others = asyncio.gather(*map(client.submit, new_requests), return_exceptions=True)
    tokens = 0
    async for step in arrivals(stream):
        if others.done():
            break
        tokens += sum(len(output.tokens) for output in step)
    client.abort("neighbour")
    outcomes = await others
    assert (
        sum(isinstance(outcome, InvalidParams) for outcome in outcomes) <= 2
    )  # a heavy one may be refused for its time
    return tokens


@pytest.mark.parametrize("planted", [False, pytest.param(True, marks=pytest.mark.long)])
def test_compiling_does_not_affect_other_requests(tokenizer: Tokenizer, planted: bool) -> None:
    tokens: list[int] = []

    async def body(client: ProcessClient) -> None:
        tokens.append(await tokens_meanwhile(client, tokenizer))

    command = (sys.executable, "-P", "-c", ON_THE_STEP_PATH) if planted else ENGINE_COMMAND
    with_engine(body, command)
    print(f"{tokens[0]} tokens")
    assert (tokens[0] < FEW_TOKENS) == planted, tokens


# ---- The gate by itself ----


def settle(gate: GrammarGate) -> list[Any]:
    deadline = time.monotonic() + LONG_S
    found: list[Any] = []
    while gate.busy:
        found += gate.take(time.monotonic())
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


@pytest.fixture
def store(tokenizer: Tokenizer) -> GrammarStore:
    return GrammarStore(tokenizer, 2048, tokenizer.eos_ids, limit=2)


def test_a_grammar_is_kept_while_a_request_follows_it(store: GrammarStore) -> None:
    gate = GrammarGate(store, None)
    kept, other = Grammar("regex", "kept"), Grammar("regex", "other")
    assert not gate.submit(request("a", kept, n=2), 5.0) and not gate.submit(request("b", other), 5.0)
    assert [error for _, _, error in settle(gate)] == [None, None]
    gate.note(
        [Output("b", 0, finish_reason=FinishReason.STOP), Output("a", 1, finish_reason=FinishReason.STOP)]
    )
    for i in range(4):
        store.get(Grammar("regex", f"later{i}"))
    assert store.known(kept) is not None and store.known(other) is None
    assert gate.submit(request("c", kept), 5.0)  # compiled already
    gate.note([Output("a", 0, finish_reason=FinishReason.ABORT)])
    gate.let_go("c")
    for i in range(4):
        store.get(Grammar("regex", f"more{i}"))
    assert store.known(kept) is None


def test_too_many_waiting_are_refused(store: GrammarStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_queue, "MAX_WAITING", 3)
    gate = GrammarGate(store, None)
    for i in range(3):
        gate.submit(request(f"r{i}", heavy(i)), 5.0)
    with pytest.raises(Overloaded, match="too many"):
        gate.submit(request("r3", heavy(3)), 5.0)
    assert gate.abort("r2") and not gate.abort("r2") and not gate.abort("unknown")
    assert not gate.submit(request("r3", Grammar("regex", "a")), 5.0)
    assert {new.request_id for new, _, _ in settle(gate)} == {"r0", "r1", "r3"}


def test_grammars_of_too_much_memory_are_refused(
    store: GrammarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_gate, "MAX_HELD_BYTES", 100)
    gate = GrammarGate(store, None)
    first, second = (store.get(Grammar("regex", letter), size=60) for letter in "ab")
    for name in ("a", "a2"):  # one grammar counts once
        assert gate.submit(request(name, Grammar("regex", "a")), 5.0)
    with pytest.raises(Overloaded, match="memory"):
        gate.submit(request("b", Grammar("regex", "b")), 5.0)
    gate.let_go("a")
    gate.let_go("a2")
    assert gate.submit(request("b", Grammar("regex", "b")), 5.0)
    assert first.size == second.size == 60


def test_an_internal_error_is_returned(store: GrammarStore, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def start(self) -> None:
            pass

        def close(self) -> None:
            pass

        def check(self, grammar: Grammar) -> int:
            raise RuntimeError("planted")

    gate = GrammarGate(store, Broken)  # type: ignore[arg-type]
    gate.submit(request("a", Grammar("regex", "a")), 5.0)
    ((_, arrival, error),) = settle(gate)
    assert arrival == 5.0
    assert isinstance(error, InvalidParams) and "planted" not in str(error)
    assert "planted" in caplog.text


def test_a_model_without_tokenizer_or_end_follows_no_grammar(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidParams, match="tokenizer"):
        GrammarStore(None, 2048, frozenset({1})).get(Grammar("regex", "a"))
    with pytest.raises(InvalidParams, match="end-of-sequence"):
        GrammarStore(tokenizer, 2048, frozenset({5000})).get(Grammar("regex", "a"))
