"""What the engine accepts it can run: requests drawn from all fields together, on the real engine."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headrace.build import EngineParts, assemble
from headrace.config import EngineConfig
from headrace.core.grammar import Grammar
from headrace.core.params import RequestOutputKind, SamplingParams
from headrace.core.types import FinishReason, NewRequest, Output, Pooling
from headrace.errors import RequestError
from headrace.runner.sampling.output import INFINITE_LOGITS, NAN_LOGITS, NO_LOGITS
from headrace.runner.sampling.row_faults import NOT_SAMPLED, NOT_STARTED
from headrace.serving.engine.stepper import Stepper
from tests import needs

VOCAB = 2048  # of the bundled model
INTERNAL = (NOT_SAMPLED, NOT_STARTED, NAN_LOGITS, INFINITE_LOGITS, NO_LOGITS, "the executor")
"""Prefixes of errors that no request may cause."""

token = st.one_of(st.integers(0, 5), st.integers(0, VOCAB - 1), st.just(VOCAB - 1))
ids = st.lists(token, max_size=6).map(tuple)
text = st.one_of(st.sampled_from(["a", " the", ".", "é"]), st.text(st.characters(codec="utf-8"), max_size=3))
timeout = st.one_of(st.none(), st.sampled_from([0.02, 100.0, 7 * 86_400.0]))


def near(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers in a range, at its ends and as close to 0 as they get."""
    edges = [edge for edge in (low, high, 0.0, 5e-324, 1e-45, 1e-38, 1e-10, 1e-3, 1.0) if low <= edge <= high]
    return st.one_of(st.sampled_from(edges), st.floats(low, high))


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), strategy, strategy)


GRAMMARS = [
    Grammar("choice", '["red", "green"]'),
    Grammar("json_object"),
    Grammar("regex", "[ab]*"),
    Grammar("lark", 'start: "a" start | "b"'),
]
PARAMS: dict[str, st.SearchStrategy[Any]] = {
    "n": st.sampled_from([1, 2, 5]),
    "temperature": near(0.0, 100.0),
    "top_k": st.sampled_from([0, -1, 1, 2, 7, VOCAB, VOCAB + 1, 2**31 - 1]),
    "top_p": near(5e-324, 1.0),
    "min_p": near(0.0, 1.0),
    "repetition_penalty": near(0.01, 100.0),
    "presence_penalty": near(-2.0, 2.0),
    "frequency_penalty": near(-2.0, 2.0),
    "logit_bias": maybe(st.dictionaries(token, near(-100.0, 100.0), max_size=4)),
    "allowed_token_ids": maybe(st.lists(token, min_size=1, max_size=6).map(tuple)),
    "banned_token_ids": maybe(ids),
    "bad_words": st.lists(st.lists(token, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
    "seed": maybe(st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)])),
    "max_tokens": st.sampled_from([None, 0, 1, 2, 9, 200, 2**31 - 1]),
    "min_tokens": st.sampled_from([0, 1, 3]),
    "stop": st.lists(text.filter(bool), max_size=3).map(tuple),
    "stop_token_ids": ids,
    "include_stop_str_in_output": st.booleans(),
    "ignore_eos": st.booleans(),
    "logprobs": maybe(st.sampled_from([0, 1, 5, 64])),
    "prompt_logprobs": maybe(st.sampled_from([0, 1, 5, 64])),
    "skip_special_tokens": st.booleans(),
    "output_kind": st.sampled_from(RequestOutputKind),
    "grammar": maybe(st.sampled_from(GRAMMARS)),
}
PROMPT = st.one_of(
    st.lists(token, min_size=1, max_size=5).map(tuple),
    st.integers(1, 40).map(lambda count: (3, 1, 4) * count),  # beginnings to share, and more than one step
)
REQUEST: dict[str, st.SearchStrategy[Any]] = {
    "prompt": PROMPT,
    "priority": st.sampled_from([0, 1, -(2**31) + 1, 2**31 - 1]),
    "user": text,
    "cache_salt": text,
    "weight": near(1e-3, 1e3),
    "queue_timeout_s": timeout,
    "timeout_s": timeout,
    "pooling": st.sampled_from(Pooling),
    "cache_pin_tokens": st.sampled_from([1, 8, 40, 2**31 - 1]),
    "cache_pin_ttl_s": near(1e-3, 3600.0),
}
PIN = ("cache_pin_tokens", "cache_pin_ttl_s")  # one without the other is refused
WILD = st.one_of(
    st.sampled_from(
        [0, 129, -1, 65, VOCAB, 2**31, 2**63, 1e-38, float("nan"), float("inf"), "\ud800", "x" * 1025, None]
    ),
    st.floats(width=32),
    st.just((VOCAB,)),
    st.just(()),
    st.just({VOCAB: 1.0}),
)
"""Values that most fields refuse, and that cannot be run if accepted by mistake."""


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """The fields of a request; "params" holds those of its parameters, of which most are as by default."""
    fields = {name: draw(REQUEST[name]) for name in draw(some(REQUEST))} | {"prompt": draw(PROMPT)}
    fields |= {name: draw(REQUEST[name]) for name in PIN if any(other in fields for other in PIN)}
    params = {name: draw(PARAMS[name]) for name in draw(some(PARAMS))}
    params.setdefault("max_tokens", 6)
    if "pooling" in fields:
        params |= {"max_tokens": 0, "n": 1, "min_tokens": 0}
    if draw(st.integers(0, 9)) == 0:
        kind = draw(st.sampled_from([fields, params]))
        kind[draw(st.sampled_from(sorted(REQUEST if kind is fields else PARAMS)))] = draw(WILD)
    return {**fields, "params": params}


def some(names: dict[str, Any]) -> st.SearchStrategy[list[str]]:
    """About a third of the names."""
    return st.randoms(use_true_random=False).map(lambda rng: [name for name in names if rng.random() < 1 / 3])


def test_every_field_is_drawn() -> None:
    assert set(PARAMS) == {field.name for field in dataclasses.fields(SamplingParams)}
    assert {*REQUEST, "request_id", "submission", "params"} == {
        field.name for field in dataclasses.fields(NewRequest)
    }


class Machine:
    """An engine with the memory of a few requests, put together again after a step that failed."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        self._parts: EngineParts | None = None
        self._time = 0.0

    def _clock(self) -> float:
        """Each look takes a millisecond, on every machine: requests have deadlines."""
        self._time += 0.001
        return self._time

    def run(self, drawn: list[dict[str, Any]]) -> None:
        parts = self._parts = self._parts or assemble(
            EngineConfig(
                model="tale", num_threads=1, block_size=8, num_kv_blocks=40, max_model_len=256, max_num_seqs=6,
                max_num_batched_tokens=32,
            )
        )  # fmt: skip
        stepper = Stepper(parts.engine, parts.executor, self._clock)
        names = [name for at, fields in enumerate(drawn) if self._add(parts, name := f"r{at}", fields)]
        outputs: list[Output] = []
        try:
            while parts.engine.has_work:
                outputs += stepper.step().outputs
        except BaseException:
            self._parts = None
            raise
        for name in names:
            self._check(name, [output for output in outputs if output.request_id == name])
        stats = parts.engine.stats()
        assert stats.free_blocks == stats.total_blocks
        self.events["preemptions"] = stats.scheduler.preemptions

    def _add(self, parts: EngineParts, name: str, fields: dict[str, Any]) -> bool:
        try:
            new = NewRequest(name, **{**fields, "params": SamplingParams(**fields["params"])})
            parts.engine.add(new, self._clock())
        except RequestError:
            self.events["refused"] += 1
            return False
        for field in (*fields["params"], *fields):
            self.events[field] += 1
        self.events["accepted"] += 1
        return True

    def _check(self, name: str, outputs: list[Output]) -> None:
        ends = [output for output in outputs if output.finish_reason is not None]
        assert len(ends) == len({output.index for output in outputs})
        for end in ends:
            self.events[f"ended by {end.finish_reason}"] += 1
            if end.finish_reason is FinishReason.ERROR:
                assert end.error is not None and not end.error.startswith(INTERNAL), (name, end.error)


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    needs.package("llguidance")
    yield Machine()


def run_examples(machine: Machine, count: int) -> None:
    @settings(
        max_examples=count,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],  # shrinking would load a model for each attempt that fails
        database=None,
    )
    @given(st.lists(requests(), min_size=1, max_size=5))
    def run(drawn: list[dict[str, Any]]) -> None:
        machine.run(drawn)

    run()


def test_what_is_accepted_can_be_run(machine: Machine) -> None:
    run_examples(machine, 60)
    missing = [name for name in (*PARAMS, *REQUEST) if not machine.events[name]]
    assert not missing, f"never accepted with {missing}"
    assert machine.events["accepted"] > 30 and machine.events["refused"] > 10


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_what_is_accepted_can_be_run_thousands_of_times(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    run_examples(machine, 4000)
    assert machine.events["preemptions"]
    with capsys.disabled():
        print("\n" + ", ".join(f"{name} {count}" for name, count in sorted(machine.events.items())))
