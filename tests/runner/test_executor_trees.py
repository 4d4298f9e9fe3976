"""The executor verifies trees of drafts: a model whose every logit depends on the whole memory that a token can see."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.core.engine import Engine
from headrace.core.params import SamplingParams
from headrace.core.policy import SchedulerConfig
from headrace.core.trees import Draft
from headrace.core.types import BlockCopy, KVGroupSpec, NewRequest, Output, Retention, TokenLogprobs
from headrace.runner.block_tables import all_tables
from headrace.runner.drafting import Drafted
from headrace.runner.executor import ModelExecutor
from headrace.runner.sampling.output import NO_TOKEN, SampleOutput
from headrace.runner.sampling.state import SampleRow
from headrace.runner.sampling.token_masks import TokenMasks
from headrace.runner.step import GroupTables, Step

VOCAB, DEPTH, BRANCHES = 12, 5, 6
GROUPS = {
    "full": (KVGroupSpec("full", 60, 4, scratch=2 * BRANCHES),),
    "windows": (
        KVGroupSpec("full", 60, 4, scratch=2 * BRANCHES),
        KVGroupSpec("window", 60, 4, Retention.WINDOW, 7, scratch=2 * BRANCHES),
        KVGroupSpec("sinks", 60, 4, Retention.SINKS, 6, 3, scratch=2 * BRANCHES),
    ),
    "few blocks": (KVGroupSpec("full", 26, 4, scratch=2 * BRANCHES),),
    "single places": (KVGroupSpec("full", 300, 1, scratch=DEPTH * BRANCHES),),
}


class Model:
    """One layer: a token's key is its id and position, its output a hash of all keys that it sees, in their order."""

    vocab_size = VOCAB

    def __init__(self, groups: Sequence[KVGroupSpec]) -> None:
        self._groups = groups
        self._memory: list[dict[int, tuple[int, int]]] = [{} for _ in groups]  # slot -> (position, id)
        self._hidden = np.empty((0, 1), dtype=np.float32)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        for copy in copies:
            size, memory = self._groups[copy.group].block_size, self._memory[copy.group]
            for offset in range(size):
                found = memory.get(copy.source * size + offset)
                if found is not None:
                    memory[copy.target * size + offset] = found

    def forward(self, step: Step) -> NDArray[np.float32]:
        assert len(step.cu_q) - 1 <= 4 + BRANCHES
        for group, memory in zip(step.groups, self._memory, strict=True):
            assert isinstance(group, GroupTables)
            written = set()
            for token, slot in enumerate(group.slots.tolist()):
                more = [] if step.more is None else range(step.more[token], step.more[token + 1])
                for place in [
                    slot,
                    *(int(group.more_slots[at]) for at in more if group.more_slots is not None),
                ]:
                    assert place < 0 or place not in written
                    written.add(place)
                    memory[place] = (int(step.positions[token]), int(step.ids[token]))
        seen = [self._seen(step, token) for token in range(len(step.ids))]
        logits = np.zeros((len(step.logits_rows), VOCAB), dtype=np.float32)
        for row, token in enumerate(step.logits_rows.tolist()):
            rng = random.Random(str(seen[token]))
            logits[row] = [rng.random() for _ in range(VOCAB)]
        if step.hidden_rows is not None:
            self._hidden = np.array(
                [[hash(seen[token]) % 65521] for token in step.hidden_rows], dtype=np.float32
            )
        return logits

    def _seen(self, step: Step, token: int) -> tuple[object, ...]:
        segment = int(np.searchsorted(step.cu_q, token, side="right")) - 1
        position = int(step.positions[token])
        found: list[object] = []
        for spec, group, memory in zip(self._groups, step.groups, self._memory, strict=True):
            assert isinstance(group, GroupTables)
            first = 0 if spec.window is None else max(0, position - spec.window + 1)
            for at in (*range(min(spec.sinks, first)), *range(first, position + 1)):
                logical = at // spec.block_size
                entry = logical if logical < spec.sink_blocks else logical - int(group.dropped[segment])
                block = int(group.block_tables[segment, entry])
                key = memory[block * spec.block_size + at % spec.block_size]
                assert key[0] == at, f"position {at} holds that of {key[0]}"
                found.append(key)
        return tuple(found)

    def hidden(self) -> NDArray[np.float32]:
        return self._hidden

    def embed(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        raise AssertionError("nothing asks for it")

    def head(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        raise AssertionError("nothing asks for it")


class Greedy:
    """The best token, and its logit as the log-probability."""

    def sample(
        self, logits: NDArray[np.float32], rows: Sequence[SampleRow], at: Sequence[int] | None = None,
        masks: TokenMasks | None = None,
    ) -> SampleOutput:  # fmt: skip
        found = logits if at is None else logits[list(at)]
        tokens = found.argmax(axis=1).tolist()
        logprobs = tuple(
            TokenLogprobs(token, float(row[token]), 1) for token, row in zip(tokens, found, strict=True)
        )
        return SampleOutput(tokens, logprobs)

    def exclude(self, logits: NDArray[np.float32], rows: Sequence[int], tokens: Sequence[int]) -> None:
        raise AssertionError("nothing asks for it")

    def score(
        self, logits: NDArray[np.float32], first: int, targets: Sequence[int], k: int
    ) -> tuple[TokenLogprobs, ...]:
        return tuple(
            TokenLogprobs(token, float(logits[first + at][token]), 1) for at, token in enumerate(targets)
        )


class Trees:
    """Proposes trees in which what will follow stands somewhere, as far as `right` knows it."""

    needs_hidden, needs_states = True, False

    def __init__(self, right: dict[tuple[int, ...], list[int]], seed: int) -> None:
        self._right, self._rng = right, random.Random(seed)
        self.hidden: dict[tuple[int, ...], float] = {}  # by the tokens that it follows
        self.beside = 0

    resting = False

    def rests(self, sequences: int, *, decoding: bool) -> bool:
        return False

    def draft(self, sequences: Sequence[Drafted], tokens: int) -> list[Draft]:
        return [self._draft(one) for one in sequences]

    def _draft(self, one: Drafted) -> Draft:
        if one.hidden is not None:
            self.hidden[tuple(one.tokens)] = float(one.hidden[0])
        text = next(
            (text for prompt, text in self._right.items() if tuple(one.tokens[: len(prompt)]) == prompt), []
        )
        tokens: list[int] = []
        parents: list[int] = []
        depths: list[int] = []
        on_path = {-1: 0}  # nodes of the right path, and how many tokens lead to them
        for _ in range(self._rng.randint(0, 9) if one.room else 0):
            parent = self._rng.choice([-1, *range(len(tokens))])
            depth = 1 + (depths[parent] if parent >= 0 else 0)
            if depth > one.room:
                continue
            known = len(one.tokens) + depth - 1
            token = self._rng.randrange(VOCAB)
            if parent in on_path and known < len(text) and self._rng.random() < 0.6:
                token = text[known]
            if any(other == parent and tokens[at] == token for at, other in enumerate(parents)):
                continue
            if parent in on_path and known < len(text) and token == text[known]:
                on_path[len(tokens)] = depth
                self.beside += parent in parents
            tokens.append(token)
            parents.append(parent)
            depths.append(depth)
        return tuple(tokens), tuple(parents)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        raise AssertionError("it has no KV")

    def release(self, request_id: int) -> None:
        pass


def run(
    kind: str,
    drafter: Trees | None,
    requests: Sequence[NewRequest],
    branches: int = BRANCHES,
    **changes: object,
) -> tuple[dict[tuple[str, int], list[tuple[int, float]]], Engine]:
    """Each completion's tokens with their log-probabilities."""
    outputs, engine = outputs_of(kind, drafter, requests, branches, **changes)
    found: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for output in outputs:
        assert output.error is None
        own = found.setdefault((output.request_id, output.index), [])
        own += [(one.token, one.logprob) for one in output.logprobs]
    return found, engine


def outputs_of(
    kind: str,
    drafter: Trees | None,
    requests: Sequence[NewRequest],
    branches: int = BRANCHES,
    sampler: Greedy | None = None,
    **changes: object,
) -> tuple[list[Output], Engine]:
    """All outputs, in order."""
    groups = GROUPS[kind]
    config = SchedulerConfig(**{  # type: ignore[arg-type]
        "max_num_seqs": 4, "max_num_batched_tokens": 30, "max_model_len": 90, "vocab_size": VOCAB,
        "max_draft": 0 if drafter is None else DEPTH, **changes,
    })  # fmt: skip
    engine = Engine(config, groups)
    executor = ModelExecutor(
        Model(groups),
        sampler or Greedy(),
        all_tables(groups, 4 + branches),
        max_seqs=4,
        drafter=drafter,
        branches=branches,
    )
    for request in requests:
        engine.add(request, 0.0)
    found: list[Output] = []
    for _ in range(2000):
        if not engine.has_work:
            break
        found += engine.finish(executor.execute(engine.begin(0.0)), 0.0)
    assert not engine.has_work
    return found, engine


def asked(count: int = 4) -> list[NewRequest]:
    return [
        NewRequest(
            f"r{at}", tuple((at * 5 + place) % VOCAB for place in range(5 + 3 * at)),
            SamplingParams(max_tokens=40, temperature=0.0, logprobs=0, n=1 + at % 2),
        )
        for at in range(count)
    ]  # fmt: skip


CASES: dict[str, dict[str, object]] = {
    "room for all": {},
    "small steps": {"max_num_batched_tokens": 9},
    "one at a time": {"max_num_seqs": 1},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", GROUPS)
def test_trees_change_no_token(kind: str, case: str) -> None:
    plain, _ = run(kind, None, asked())
    prompts = {request.request_id: request.prompt for request in asked()}
    right = {
        prompts[name]: [*prompts[name], *(token for token, _ in own)] for (name, _), own in plain.items()
    }
    drafter = Trees(right, seed=len(kind))
    found, engine = run(kind, drafter, asked(), **CASES[case])
    assert found == plain
    stats = engine.stats().scheduler
    assert kind != "few blocks" or case == "one at a time" or stats.preemptions > 0
    assert stats.accepted_tokens >= 20 and stats.draft_tokens > 2 * stats.accepted_tokens
    assert drafter.beside >= 10


@pytest.mark.parametrize("branches", [0, 1])
def test_branches_for_which_there_is_no_scratch_are_not_verified(branches: int) -> None:
    plain, _ = run("full", None, asked(1))
    (prompt,) = [request.prompt for request in asked(1)]
    right = {prompt: [*prompt, *(token for token, _ in plain["r0", 0])]}
    found, engine = run("full", Trees(right, seed=3), asked(1), branches)
    assert found == plain and engine.stats().scheduler.accepted_tokens > 0


class FailsAt(Greedy):
    """It cannot choose the token at output position 9."""

    def sample(
        self, logits: NDArray[np.float32], rows: Sequence[SampleRow], at: Sequence[int] | None = None,
        masks: TokenMasks | None = None,
    ) -> SampleOutput:  # fmt: skip
        found = super().sample(logits, rows, at, masks)
        bad = [index for index, row in enumerate(rows) if row.position == 9]
        for index in bad:
            found.tokens[index] = NO_TOKEN
        return SampleOutput(found.tokens, found.logprobs, dict.fromkeys(bad, "nothing is left"))


class Chains(Trees):
    """Proposes what will follow."""

    def _draft(self, one: Drafted) -> Draft:
        ((_, text),) = self._right.items()
        known = len(one.tokens)
        return tuple(text[known : known + one.room]), ()


@pytest.mark.parametrize("stops", [False, True])
def test_a_token_that_cannot_be_chosen_costs_none_before_it(stops: bool) -> None:
    plain, _ = run("full", None, asked(1))
    (request,) = asked(1)
    text = [token for token, _ in plain["r0", 0]]
    if stops:  # with the last token that can be chosen
        first = text.index(text[8])
        params = replace(request.params, stop_token_ids=(text[8],), min_tokens=first + 1 if first < 8 else 0)
        request = replace(request, params=params)
    seen = []
    for drafter in (None, Chains({request.prompt: [*request.prompt, *text]}, seed=0)):
        outputs, engine = outputs_of("full", drafter, [request], sampler=FailsAt())
        tokens = [token for output in outputs for token in output.tokens]
        seen.append((tokens, outputs[-1].finish_reason, outputs[-1].error))
        assert drafter is None or engine.stats().scheduler.accepted_tokens >= 5
    assert seen[0] == seen[1] and seen[0][0] == text[:9]
    assert seen[0][2] == (None if stops else "nothing is left")


class Broken(Trees):
    """Fails in every step but the tenth."""

    steps = 0

    def draft(self, sequences: Sequence[Drafted], tokens: int) -> list[Draft]:
        self.steps += 1
        if self.steps != 10:
            raise RuntimeError("a fault that comes back")
        return super().draft(sequences, tokens)


def test_a_drafter_that_fails_costs_no_token_and_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    plain, _ = run("full", None, asked())
    drafter = Broken({}, seed=0)
    found, _ = run("full", drafter, asked())
    assert found == plain and drafter.steps > 60
    said = [record.getMessage() for record in caplog.records]
    counts = [1, 2, 4, 8, 1, 2, 4, 8, 16, 32, 64]
    assert said == [f"drafting failed in {count} steps in a row" for count in counts[: len(said)]]
    assert len(said) >= 10


def test_a_drafter_gets_the_state_of_the_accepted_token() -> None:
    plain, states = Trees({}, seed=0), Trees({}, seed=1)
    text, _ = run("full", plain, asked(1), max_draft=DEPTH)
    (prompt,) = [request.prompt for request in asked(1)]
    states._right = {prompt: [*prompt, *(token for token, _ in text["r0", 0])]}
    _, engine = run("full", states, asked(1))
    assert engine.stats().scheduler.accepted_tokens > 5
    both = plain.hidden.keys() & states.hidden.keys()
    assert len(both) > 10 and all(plain.hidden[key] == states.hidden[key] for key in both)
