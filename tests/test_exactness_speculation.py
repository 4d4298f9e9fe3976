"""Speculation changes no token and no bit of a logprob, whatever drafts and whatever else happens.

As in test_exactness.py: each request alone without speculation, and all together with it. Every case proves that drafts
were accepted, and that others were rejected.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace import build
from headrace.bench.workload import HEROES, THINGS
from headrace.build import EngineParts
from headrace.core.params import SamplingParams
from headrace.core.types import BlockCopy, NewRequest
from headrace.models.source import BUNDLED_FOLDER
from headrace.runner.branches import Branches
from headrace.runner.executor import ModelExecutor
from headrace.speculative import resting
from headrace.speculative.control import Speculation
from headrace.speculative.method import Method
from headrace.text.tokenizer import Tokenizer
from tests import needs, tiny_mtp
from tests.speculative.heads_folders import WIDE, any_eagle, near_medusa
from tests.test_exactness import PLAIN, Run, alike, each_alone, requests_for, run

needs.native()

# What drafts for which model. A model's own drafts are all right, so it drafts in fewer bits.
TARGETS: dict[str, dict[str, object]] = {
    "ngram": {"model": "tale", "speculative": "ngram"},
    "look-ups": {"model": "tale", "speculative": "history,ngram"},
    "draft model": {"model": "tale", "speculative": "tale-draft"},
    "both": {"model": "tale", "speculative": "ngram,tale-draft", "num_speculative_tokens": 5},
    "int4": {"model": "tale", "quantization": "int4", "speculative": "tale-draft"},
    "int8 KV": {"model": "tale", "kv_cache_dtype": "int8", "speculative": "tale-draft"},
    "sinks": {"model": "tale", "attention_sinks": 4, "sliding_window": 24, "speculative": "tale-draft"},
    "windows": {
        "model": "qwen2-hybrid",
        "speculative": "ngram,qwen2-hybrid",
        "speculative_quantization": "int4",
    },
    "latents": {"model": "deepseek", "speculative": "ngram,deepseek", "speculative_quantization": "int4"},
    "states": {"model": "delta", "speculative": "ngram,tale-draft"},
    "short convolutions": {"model": "convolution", "speculative": "ngram,tale-draft"},
    "medusa": {"model": "tale", "speculative": "ngram,tale-heads"},
    "medusa over states": {"model": "delta", "speculative": "delta-heads"},
    "eagle": {"model": "tale", "speculative": "tale-eagle"},
    "eagle after n-grams": {
        "model": "tale",
        "kv_cache_dtype": "int8",
        "quantization": "int4",
        "speculative": "ngram,tale-eagle",
    },
    "eagle over states": {"model": "delta", "speculative": "delta-layer"},
    "eagle beside windows": {"model": "qwen2-hybrid", "speculative": "hybrid-layer"},
    "eagle on torch": {"model": "tale", "speculative": "tale-eagle", "ops_force": "reference"},
    "mtp": {"model": "deepseek-mtp", "speculative": "mtp"},
    "mtp over states": {"model": "delta-mtp", "speculative": "mtp", "quantization": "int4"},
    "medusa on torch": {"model": "tale", "speculative": "tale-heads", "ops_force": "reference"},
    "trees": {"model": "tale", "speculative": "tale-trees"},
    "trees after n-grams": {"model": "tale", "speculative": "ngram,tale-trees"},
    "trees in int4": {"model": "tale", "quantization": "int4", "speculative": "tale-trees"},
    "trees over int8 KV": {"model": "tale", "kv_cache_dtype": "int8", "speculative": "tale-trees"},
    "trees over sinks": {
        "model": "tale",
        "attention_sinks": 4,
        "sliding_window": 24,
        "speculative": "tale-trees",
    },
    "trees over windows": {"model": "qwen2-hybrid", "speculative": "hybrid-trees"},
    "trees over latents": {"model": "deepseek", "speculative": "deepseek-trees"},
    "trees on torch": {"model": "tale", "speculative": "tale-trees", "ops_force": "reference"},
    "draft model on torch": {"model": "tale", "speculative": "tale-draft", "ops_force": "reference"},
}

CASES: dict[str, tuple[dict[str, object], Callable[[Run], bool]]] = {
    "batch mix": (PLAIN, lambda seen: seen.largest_batch >= 4),
    "chunked prefill": (
        {**PLAIN, "max_num_batched_tokens": 13, "max_num_seqs": 8}, lambda seen: seen.split_prompts >= 7,
    ),
    "prefix cache": ({"block_size": 16}, lambda seen: seen.hits >= 1),
    "everything": (
        {"block_size": 16, "num_kv_blocks": 11, "max_model_len": 150, "max_num_batched_tokens": 19,
         "max_num_seqs": 6, "preemption_victim": "cheapest", "scheduling_policy": "fair"},
        lambda seen: min(seen.preemptions + seen.dropped_blocks, seen.split_prompts) >= 1,
    ),
}  # fmt: skip


NARROW = (
    "states", "short convolutions", "medusa", "medusa over states", "medusa on torch", "eagle over states",
    "eagle beside windows", "mtp", "mtp over states",
)  # fmt: skip
"""What drafts for these knows little of them: only few tokens are allowed, so that it guesses right at times."""


WAYS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.3, "top_k": 20},
    {"temperature": 0.0, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.0, "repetition_penalty": 1.1, "top_k": 50},
    {"temperature": 0.7},
)


def asked(kind: str, n: int = 1) -> list[NewRequest]:
    """Greedy and sampled in many ways, with logprobs; some prompts repeat themselves."""
    heads = kind.startswith(("medusa", "trees", "eagle", "mtp"))
    few = [*range(20, 20 * (9 if heads else 5), 20)] if kind in NARROW or "trees" in kind else None
    made = []
    for at, (request, way) in enumerate(zip(requests_for(), WAYS, strict=True)):
        params = SamplingParams(
            **way, seed=at, n=n if at % 2 else 1, max_tokens=40, ignore_eos=True, logprobs=2,
            allowed_token_ids=few,
        )  # fmt: skip
        prompt = request.prompt[:24] * 2 if at % 3 == 0 else request.prompt
        made.append(replace(request, prompt=prompt, params=params))
    return made


def located(kind: str, tiny_models: Mapping[str, str]) -> dict[str, object]:
    options = dict(TARGETS[kind])
    for name in ("model", "speculative"):
        parts = str(options[name]).split(",")
        options[name] = ",".join(tiny_models.get(part, part) for part in parts)
    return options


@pytest.fixture(scope="module")
def folders(tiny_models: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Of the models and heads that are not bundled, by name."""
    root = tmp_path_factory.mktemp("heads")
    sizes = {
        "tale": BUNDLED_FOLDER / "tale",
        "delta": Path(tiny_models["delta"]),
        "hybrid": Path(tiny_models["qwen2-hybrid"]),
        "deepseek": Path(tiny_models["deepseek"]),
    }
    made = {}
    for name, folder in sizes.items():
        config = json.loads((folder / "config.json").read_text())
        shape = (config["vocab_size"], config["hidden_size"])
        made[f"{name}-heads"] = str(near_medusa(root / name, *shape, change=0.4))
        made[f"{name}-trees"] = str(near_medusa(root / f"{name}-trees", *shape, tree=WIDE, change=0.4))
        made[f"{name}-layer"] = str(any_eagle(root / f"{name}-layer", *shape))
    for name in ("deepseek", "delta"):
        made[f"{name}-mtp"] = str(tiny_mtp.write(root / f"{name}-mtp", name))
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(BUNDLED_FOLDER / "tale" / file, made[f"{name}-mtp"])
    return {**tiny_models, **made}


@pytest.fixture
def side_paths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of blocks that each accepted path brought back which was not the main chain."""
    found: list[int] = []
    keep = Branches.keep

    def counted(*args: Any) -> list[BlockCopy]:
        copies = keep(*args)
        if copies:
            found.append(len(copies))
        return copies

    monkeypatch.setattr(Branches, "keep", counted)
    return found


@pytest.fixture(scope="module")
def alone(folders: Mapping[str, str]) -> Callable[[str, int], Run]:
    known: dict[tuple[str, int], Run] = {}

    def of(kind: str, n: int = 1) -> Run:
        if (kind, n) not in known:
            plain = {name: value for name, value in located(kind, folders).items() if name != "speculative"}
            plain.pop("num_speculative_tokens", None)
            plain.pop("speculative_quantization", None)
            known[kind, n] = each_alone({**plain, "block_size": 16}, asked(kind, n))
        return known[kind, n]

    return of


USUAL = {
    ("both", "everything"), ("states", "everything"), ("windows", "prefix cache"), ("eagle", "everything"),
    ("trees", "everything"),
}  # fmt: skip


def combinations() -> list[object]:
    return [
        pytest.param(kind, case, marks=() if (kind, case) in USUAL else pytest.mark.long)
        for kind in TARGETS
        for case in CASES
    ]


def assert_same(kind: str, seen: Run, expected: Run) -> None:
    assert {key: tokens for key, tokens in seen.tokens.items() if tokens != expected.tokens[key]} == {}
    assert seen.tokens.keys() == expected.tokens.keys()
    if not kind.endswith("torch"):  # there products depend on the number of rows
        assert seen.logprobs == expected.logprobs


@pytest.mark.parametrize(("kind", "case"), combinations())
def test_nothing_differs(
    kind: str,
    case: str,
    folders: Mapping[str, str],
    alone: Callable[[str, int], Run],
    side_paths: list[int],
) -> None:
    options, happened = CASES[case]
    options = dict(options)
    if kind == "sinks":
        options.pop("max_model_len", None)
    options["adaptive_speculation"] = False  # else how much is drafted depends on the machine
    seen = run({**located(kind, folders), **options}, asked(kind, 2 if case == "everything" else 1))
    assert happened(seen), seen
    assert seen.accepted >= 5 and seen.drafted - seen.accepted >= 2, seen
    assert len(side_paths) >= 3 or "trees" not in kind, side_paths
    assert_same(kind, seen, alone(kind, 2 if case == "everything" else 1))


class Erratic(Speculation):
    """Decides by a clock that runs at random: it drafts, cuts drafts, tries and rests at any time."""

    def __init__(self, methods: Sequence[Method], **options: Any) -> None:
        self._ticks, self._time = random.Random(7), 0.0
        super().__init__(methods, clock=self._tick, **options)

    def _tick(self) -> float:
        self._time += self._ticks.choice((0.002, 0.1, 1.0, 5.0))
        return self._time


@pytest.mark.parametrize(
    "kind",
    [
        "eagle after n-grams",
        *(pytest.param(kind, marks=pytest.mark.long) for kind in ("both", "trees", "states")),
    ],
)
def test_how_much_is_drafted_changes_nothing(
    kind: str,
    folders: Mapping[str, str],
    alone: Callable[[str, int], Run],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by default, where each sequence gets drafts of any length, or none, as the machine's times say."""
    monkeypatch.setattr(resting, "SHORTEST", 2)
    monkeypatch.setattr(resting, "LONGEST", 6)
    monkeypatch.setattr(build, "Speculation", Erratic)
    options, happened = CASES["everything"]
    rests: list[bool] = []

    def hook(parts: EngineParts, step: int) -> None:
        assert isinstance(parts.executor, ModelExecutor) and isinstance(parts.executor.drafter, Erratic)
        rests.append(parts.executor.drafter.resting)

    seen = run({**located(kind, folders), **options}, asked(kind, 2), hook)
    assert happened(seen), seen
    changes = sum(one != other for one, other in itertools.pairwise(rests))
    assert changes >= 6 and seen.accepted >= 2 and seen.drafted - seen.accepted >= 2, (changes, seen)
    assert_same(kind, seen, alone(kind, 2))


METHODS = (
    "ngram", "history,ngram", "tale-draft", "ngram,tale-draft", "tale-medusa", "ngram,tale-medusa", "tale-eagle",
    "ngram,tale-eagle", "mtp",
)  # fmt: skip


def stories(method: str, count: int) -> list[NewRequest]:
    """Prompts of which every fourth repeats itself, sampled in every way, in turn."""
    rng, made = random.Random(count), []
    encode = Tokenizer.from_folder(BUNDLED_FOLDER / "tale").encode
    for at in range(count):
        hero, thing = rng.choice(HEROES), rng.choice(THINGS)
        text = f"Number {at}. Once there was a {hero} who wanted a {thing}. " * (1 + (at % 4 == 0))
        params = SamplingParams(
            **WAYS[at % len(WAYS)], seed=at, max_tokens=44, logprobs=1, ignore_eos=True,
            allowed_token_ids=[*range(20, 180, 20)] if method == "mtp" else None,
        )  # fmt: skip
        made.append(NewRequest(f"request-{at}", tuple(encode(text)), params))
    return made


MANY = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def stories_alone() -> Callable[[str, Sequence[NewRequest]], Run]:
    """Each request by itself: once for all methods."""
    known: dict[tuple[str, str, int], Run] = {}

    def of(model: str, some: Sequence[NewRequest]) -> Run:
        key = (model, some[0].request_id, len(some))
        if key not in known:
            known[key] = each_alone({"model": model, "block_size": 16}, some)
        return known[key]

    return of


@pytest.mark.parametrize(
    ("method", "count"), [("tale-medusa", 7), *(pytest.param(name, 200, marks=MANY) for name in METHODS)]
)
def test_many_prompts_with_preemptions(
    method: str,
    count: int,
    folders: Mapping[str, str],
    stories_alone: Callable[[str, Sequence[NewRequest]], Run],
) -> None:
    model: dict[str, Any] = {
        "model": folders["deepseek-mtp"] if method == "mtp" else "tale",
        "block_size": 16,
    }
    limits = {"num_kv_blocks": 10, "max_model_len": 160, "max_num_batched_tokens": 60, "max_num_seqs": 6}
    requests = stories(method, count)
    for first in range(0, count, 100):
        some = requests[first : first + 100]
        expected = stories_alone(model["model"], some)
        seen = run({**model, **limits, "speculative": method, "adaptive_speculation": False}, some)
        assert min(seen.accepted, seen.drafted - seen.accepted) >= len(some) // 4 and seen.preemptions, seen
        assert len(seen.tokens) == len(some)
        assert_same(method, seen, expected)


@pytest.mark.parametrize("kind", [pytest.param("both", marks=pytest.mark.long), "trees"])
def test_an_abort_beside_drafts(
    kind: str, folders: Mapping[str, str], alone: Callable[[str, int], Run]
) -> None:
    aborted = []

    def hook(parts: EngineParts, step: int) -> None:
        request = next(iter(parts.engine._by_key.get("request-2", ())), None)
        if step >= 9 and request is not None and len(request.draft) > 1:  # they are never verified
            aborted.append(request.draft_parents)
            parts.engine.abort("request-2", 9.0)

    options = {**located(kind, folders), "block_size": 16, "adaptive_speculation": False}
    seen = run(options, asked(kind), hook)
    assert len(aborted) == 1 and bool(aborted[0]) == (kind == "trees")
    expected = alone(kind, 1)
    left = [key for key in expected.tokens if key[0] != "request-2"]
    assert [seen.tokens[key] for key in left] == [expected.tokens[key] for key in left]
    assert len(seen.tokens["request-2", 0]) < 40 and seen.accepted >= 5


def test_equal_prompts_share_while_tokens_are_drafted(folders: Mapping[str, str]) -> None:
    options = {**located("draft model", folders), "block_size": 16, "adaptive_speculation": False}
    expected = each_alone({"model": "tale", "block_size": 16}, alike())
    seen = run(options, alike(), at_once=True)
    assert min(seen.forks, seen.accepted, seen.drafted - seen.accepted) >= 1
    assert seen.tokens == expected.tokens
