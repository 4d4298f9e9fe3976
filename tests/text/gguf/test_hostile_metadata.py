"""Metadata that are damaged or made to do harm: one sentence that names the key, and nothing else."""

from __future__ import annotations

import random
import tracemalloc
from array import array
from typing import Any

import numpy as np
import pytest

from headrace.errors import HeadraceError, RequestError, TokenizerError
from headrace.text.gguf.build import tokenizer_from_metadata
from headrace.text.gguf.charsmap import Charsmap
from headrace.text.gguf.vocabulary import MAX_TOKENS
from headrace.text.tokenizer import Tokenizer
from tests.gguf_vocabularies import CONTROL, NORMAL, UNKNOWN, scored

KEY = "tokenizer.ggml."


class Endless(list[str]):
    """An array that says that it is far larger than it is."""

    def __len__(self) -> int:
        return 2**40


def merging(**changed: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": ["<s>", "a", "b", "ab", "aba"],
        "token_type": [CONTROL, NORMAL, NORMAL, NORMAL, NORMAL],
        "merges": ["a b", "ab a"],
        "bos_token_id": 0,
        **changed,
    }
    return {KEY + key: value for key, value in metadata.items() if value is not None}


def with_scores(model: str = "llama", **changed: Any) -> dict[str, Any]:
    pieces = [
        ("<unk>", 0.0, UNKNOWN),
        ("<s>", 0.0, CONTROL),
        ("</s>", 0.0, CONTROL),
        ("a", -1.0, NORMAL),
        ("aa", -2.0, NORMAL),
    ]
    metadata = scored(pieces, model) | {KEY + key: value for key, value in changed.items()}
    return {key: value for key, value in metadata.items() if value is not None}


def test_the_metadata_are_good_before_they_are_changed() -> None:
    assert tokenizer_from_metadata(merging()).encode("aba") == [4]
    assert tokenizer_from_metadata(with_scores(add_space_prefix=False)).encode("aa") == [1, 4]


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "tokenizer.ggml.model is missing"),
    (merging(model=3), r"tokenizer\.ggml\.model of the GGUF file is not text"),
    (merging(model="x" * 300), "longer than 256 bytes"),
    (merging(pre=["gpt-2"]), r"\.pre of the GGUF file is not text"),
    (merging(tokens=None), r"\.tokens is missing"),
    (merging(tokens=[]), r"\.tokens is empty"),
    (merging(tokens="abc"), r"\.tokens of the GGUF file is not an array"),
    (merging(tokens=7), r"\.tokens of the GGUF file is not an array"),
    (merging(tokens=["a", 7, "b"]), r"\.tokens\[1\] of the GGUF file is not text"),
    (merging(tokens=["a", None]), r"\.tokens\[1\] of the GGUF file is not text"),
    (merging(tokens=["a", b"\xff\xfe"]), r"\.tokens\[1\] of the GGUF file is not UTF-8 text \(byte 0\)"),
    (merging(tokens=["a", "b\ud800"]), r"\.tokens\[1\] of the GGUF file is not UTF-8 text"),
    (merging(tokens=["a", "b" * 5000]), r"\.tokens\[1\] of the GGUF file is longer than 4096 characters"),
    (merging(tokens=["a", "b", "a", "ab"]), r"\.tokens of the GGUF file has 'a' twice, as ids 0 and 2"),
    (merging(tokens=Endless(["a"])), rf"has {2**40} entries, more than {MAX_TOKENS}"),
    (merging(token_type=[1, 1]), r"\.token_type of the GGUF file has 2 entries for 5 tokens"),
    (merging(token_type=[1, 1, 1, 1, 7]), r"\.token_type of the GGUF file has 7 for token 4"),
    (merging(token_type=[1, 1, 1, 1, -1]), r"\.token_type of the GGUF file has -1 for token 4"),
    (merging(token_type=[1.0] * 5), r"\.token_type of the GGUF file has entries"),
    (merging(token_type=["normal"] * 5), r"\.token_type of the GGUF file has entries"),
    (merging(token_type=[[1], [1, 2], 3, 4, 5]), r"\.token_type of the GGUF file is not an array of numbers"),
    (merging(token_type=[2**80] * 5), r"\.token_type of the GGUF file"),
    (merging(merges=None), "has no merges"),
    (merging(merges=[]), "has no merges"),
    (merging(merges=["ab"]), r"\.merges of the GGUF file has 'ab' at 0, which is not a pair"),
    (merging(merges=["a "]), "which is not a pair"),
    (merging(merges=[""]), "which is not a pair"),
    (merging(merges=["a b", "a c"]), r"\.merges of the GGUF file has 'a c' at 1, and 'c' is not in the vocabulary"),
    (merging(merges=["b a"]), "and 'ba' is not in the vocabulary"),
    (merging(merges=[["a", "b"]]), r"\.merges\[0\] of the GGUF file is not text"),
    (merging(bos_token_id=5), r"\.bos_token_id of the GGUF file is 5, and there are 5 tokens"),
    (merging(eos_token_id=2**63), r"\.eos_token_id of the GGUF file is 9223372036854775808"),
    (merging(eot_token_id=-7), r"\.eot_token_id of the GGUF file is -7"),
    (merging(bos_token_id="<s>"), r"\.bos_token_id of the GGUF file is not a token id"),
    (merging(bos_token_id=True), r"\.bos_token_id of the GGUF file is not a token id"),
    (merging(add_bos_token=1), r"\.add_bos_token of the GGUF file is neither true nor false"),
    (merging(add_eos_token=True), r"add_eos_token of the GGUF file is true, and there is no .*eos_token_id"),
    (merging(bos_token_id=2**32 - 1, add_bos_token=True), "there is no .*bos_token_id"),
    (merging() | {"tokenizer.chat_template": 3}, r"tokenizer\.chat_template of the GGUF file is not text"),
    (merging() | {"tokenizer.chat_template": "x" * (17 * 2**20)}, "longer than"),
    (merging() | {"tokenizer.chat_templates": ["a"] * 65}, "has 65 entries, more than 64"),
    (with_scores(scores=[1.0]), r"\.scores of the GGUF file has 1 entries for 5 tokens"),
    (with_scores(scores=[0.0] * 4 + [float("nan")]), r"\.scores of the GGUF file has entries that are not finite"),
    (with_scores(scores=[0.0] * 4 + [float("-inf")]), "not finite"),
    (with_scores(scores="12345"), r"\.scores of the GGUF file is not an array of numbers"),
    (with_scores(scores=np.zeros((5, 2))), r"\.scores of the GGUF file"),
    (with_scores(unknown_token_id=2**32 - 1), "neither a token for each byte nor an unknown token"),
    (with_scores("t5", precompiled_charsmap="text"), "precompiled_charsmap of the GGUF file is not an array of bytes"),
    (with_scores("t5", precompiled_charsmap=[1, 256]), "is not an array of bytes"),
    (with_scores("t5", precompiled_charsmap=[4] + [0] * 7), "precompiled_charsmap of the GGUF file is damaged"),
    (with_scores("t5", precompiled_charsmap=[4] + [0] * 7 + [65] * 300 + [0]), "a replacement has more than 256 bytes"),
    (with_scores("t5", tokens=["<unk>", "<s>", "</s>", "a", "a" * 257]), "has a piece of 257 characters"),
    (merging(tokens=[f"{i:04000}" for i in range(4200)]), rf"\.tokens of .* has more than {2**24} characters"),
]  # fmt: skip


@pytest.mark.parametrize(("metadata", "message"), BAD)
def test_bad_metadata_are_named(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message) as caught:
        tokenizer_from_metadata(metadata)
    assert len(str(caught.value)) < 400


def test_holes_and_repeated_merges_are_no_errors() -> None:
    tokens = ["<s>", "a", "b", "ab", "aba", "", ""]
    tokenizer = tokenizer_from_metadata(
        merging(tokens=tokens, token_type=[3, 1, 1, 1, 1, 1, 1], merges=["a b", "ab a", "a b"])
    )
    assert (tokenizer.vocab_size, tokenizer.token(6)) == (7, "[EMPTY_6]")
    assert tokenizer.encode("aba") == [4]


def test_memory_is_bounded_by_the_metadata() -> None:
    metadata = merging(tokens=[f"t{i}" for i in range(1000)], token_type=None, merges=["x y"])
    arrays = [("merges", Endless(["a b"])), ("tokens", Endless(["a"])), ("scores", [0.0] * (MAX_TOKENS + 1))]
    tracemalloc.start()
    for key, value in arrays:
        with pytest.raises(TokenizerError):
            tokenizer_from_metadata(metadata | {KEY + key: value})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**23


# ---- Anything at all ----


VALUES: list[Any] = [
    None, True, -1, 0, 3, 2**32 - 1, 2**64, 0.5, float("nan"), "", "a", "\ud800", b"\xff", [], ["a"], ["a", 1], [[]],
    [None], {}, object(), np.zeros(5), np.zeros(5, dtype=np.int32), np.arange(6, dtype=np.int8), np.array(3), range(5),
    array("f", [0.0] * 5), array("i", [1] * 5), array("i", [9] * 5), array("Q", [2**63] * 5), array("B", bytes(300)),
    ["a b"], ["a b", "b a"], [1] * 5, [float("inf")] * 5, ["x"] * 5, bytes(64), "llama", "t5", "gpt2", "gemma4", "bert",
    "x" * 5000, "é" * 100_000, "{{", "{% for x in x %}", "{{ messages[0].content }}", ["default"], ["rag", "rag"],
]  # fmt: skip
KEYS = [
    *(KEY + key for key in (
        "model", "pre", "tokens", "scores", "token_type", "merges", "bos_token_id", "eos_token_id", "unknown_token_id",
        "padding_token_id", "eot_token_id", "add_bos_token", "add_eos_token", "add_space_prefix",
        "remove_extra_whitespaces", "precompiled_charsmap",
    )),
    "tokenizer.chat_template", "tokenizer.chat_templates", "tokenizer.chat_template.rag", "tokenizer.huggingface.json",
]  # fmt: skip


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))])
def test_any_metadata_give_a_tokenizer_or_a_typed_error(seed: int) -> None:
    """Half a thousand changes to metadata of each algorithm; 10,000 in the long run."""
    rng = random.Random(seed)
    built = refused = 0
    tracemalloc.start()
    try:
        for _ in range(500 if seed == 1 else 1000):
            metadata = merging() if rng.random() < 0.4 else with_scores(rng.choice(["llama", "t5"]))
            for _ in range(rng.randrange(1, 4)):
                metadata[rng.choice(KEYS)] = _mutated(rng, metadata)
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            try:
                tokenizer = tokenizer_from_metadata(metadata)
            except TokenizerError as error:
                refused += 1
                assert len(str(error)) < 400 and "\n" not in str(error)
            else:
                built += 1
                _use(tokenizer)
            assert tracemalloc.get_traced_memory()[1] - before < 2**22
    finally:
        tracemalloc.stop()
    assert built > 20 and refused > 100


def _mutated(rng: random.Random, metadata: dict[str, Any]) -> Any:
    value = rng.choice([*VALUES, *metadata.values()])
    if isinstance(value, list) and value and rng.random() < 0.7:
        value = list(value)
        value[rng.randrange(len(value))] = rng.choice(VALUES)
    return value


def _use(tokenizer: Tokenizer) -> None:
    for text in ("", "aba aa", " é\n"):
        try:
            ids = tokenizer.encode(text)
        except HeadraceError:
            continue
        assert all(0 <= i < tokenizer.vocab_size for i in ids)
        tokenizer.decode(ids)


# ---- Templates ----


@pytest.mark.parametrize(
    "source",
    [
        "{{",
        "{% for i in range(10**9) %}{{ messages }}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
        "{{ ''.__class__.__mro__ }}",
        "{% include '/etc/passwd' %}",
        "{{ raise_exception('no') }}",
    ],
)
def test_templates_are_rendered_as_those_of_folders(source: str) -> None:
    """In the process without rights and with limits, which tests/text/templates is about."""
    tokenizer = tokenizer_from_metadata(merging() | {"tokenizer.chat_template": source})
    try:
        with pytest.raises((RequestError, TokenizerError), match=r"template|no"):
            tokenizer.apply_chat_template([{"role": "user", "content": "a"}])
    finally:
        tokenizer.close()


# ---- Normalization tables ----


def test_any_normalization_table_gives_text_or_a_typed_error() -> None:
    rng = random.Random(3)
    built = 0
    for _ in range(3000):
        units = rng.randrange(1, 60)
        kinds = rng.choices(["any", "none", "leaf"], (1, 12, 6), k=units)
        body = b"".join(_unit(rng, kind) for kind in kinds)
        data = (
            (4 * units + rng.choice([0, 0, 0, 4, -4])).to_bytes(4, "little", signed=True)
            + body
            + rng.randbytes(8)
            + b"\0"
        )
        try:
            charsmap = Charsmap(data)
        except TokenizerError:
            continue
        built += 1
        assert isinstance(charsmap.normalized("aé👍\n" * 3), str)
    assert built > 20


def _unit(rng: random.Random, kind: str) -> bytes:
    if kind == "none":
        return bytes(4)
    return rng.randbytes(4) if kind == "any" else bytes([97, 1 + rng.randrange(4), 0, 0])
