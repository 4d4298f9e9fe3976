"""The tokenizer section of a GGUF file's metadata, checked and put into one frozen object.

Keys and token types are those of the GGUF specification (`docs/gguf.md` of ggml) and of the `gguf` package. Nothing is
taken on trust: counts, types, ids and texts are checked before anything is built from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from headrace.errors import TokenizerError
from headrace.text.byte_scheme import BYTE_TOKEN
from headrace.text.tokenizer_files import MAX_CONFIG_BYTES, MAX_TOKENIZER_BYTES

MAX_TOKENS = 2**22
"""Most tokens of a vocabulary, and most merges; the largest published vocabularies have about 2^18."""

MAX_TOKEN_CHARS = 4096
"""Longest token or merge."""

MAX_VOCABULARY_CHARS = 2**24
"""All tokens together; those of the largest published vocabularies have about 2^21."""

MAX_CHARSMAP_BYTES = 16 * 2**20
"""Largest normalization table; SentencePiece's own have up to 0.5 MiB."""

MAX_TEMPLATES = 64

_PREFIX = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
_TEMPLATE_NAMES = "tokenizer.chat_templates"

_NO_ID = (-1, 2**32 - 1)
"""How converters write that there is no such token: -1, which an unsigned field cannot hold."""

_NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # spelled like this in the format
    "pad_token": "padding_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}
_LENIENT = ("sep_token", "pad_token", "cls_token", "mask_token")
"""Tokens that no text is encoded with: published files have ids beyond the vocabulary here, which mean none."""

_DEFAULTS = {
    "llama": {"unk_token": 0, "bos_token": 1, "eos_token": 2},
    "t5": {"pad_token": 0, "eos_token": 1, "unk_token": 2},
}
"""Ids by model where the file names none; SentencePiece's own, and those of T5."""

_ENDS = ("eot_token_id", "eom_token_id")

_END_TEXTS = {
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "</s>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>",
    "<REPO>", "<reponame>", "<|file_sep|>",
}  # fmt: skip
"""Texts of control tokens that end a generation; the metadata names one or two of them, llama.cpp knows these."""

_NOT_AN_END = (
    ({"<|return|>", "<|call|>"}, "<|end|>"),  # harmony: it ends one message of several
    ({"<|calls|>", "<|flush|>"}, "<|end|>"),
    ({"<|tool_response>"}, "</s>"),
)
"""A token in the second place ends nothing where all of those in the first exist."""


class TokenType(IntEnum):
    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer of a GGUF file. Ids are positions in `tokens`; all other ids are below `len(tokens)`."""

    model: str
    """The algorithm: byte-pair with merges ("gpt2", "gemma4") or by scores ("llama"), unigram ("t5"), or another."""
    pre: str
    """The pre-tokenizer of models with merges; "default" where the file names none."""
    tokens: tuple[str, ...]
    ids: Mapping[str, int]
    """The inverse of `tokens`, whose texts are all different."""
    types: tuple[int, ...]
    """A `TokenType` for each token; CONTROL for bos and eos even if the file does not say so."""
    scores: tuple[float, ...]
    """Finite; zeros where the file has none."""
    merges: tuple[tuple[str, str], ...]
    """Pairs of tokens whose concatenation is a token, the first one merged first; no pair twice."""
    named: Mapping[str, int]
    """Ids by the names that templates use: bos_token, eos_token, unk_token, pad_token, …"""
    end_ids: frozenset[int]
    """Tokens that end a generation."""
    add_bos: bool | None
    """Whether texts begin with bos; None where the file does not say."""
    add_eos: bool | None
    add_space_prefix: bool | None
    """Whether SentencePiece puts a space before a text; it does where the file does not say."""
    remove_extra_whitespaces: bool | None
    charsmap: bytes
    """SentencePiece's precompiled normalization table; empty for none."""

    def of_type(self, *types: TokenType) -> Iterator[tuple[str, int]]:
        """Texts and ids of the tokens of these types, by id."""
        return ((self.tokens[i], i) for i, kind in enumerate(self.types) if kind in types)


def read_vocabulary(metadata: Mapping[str, Any], with_merges: bool = True) -> Vocabulary:
    """Check and convert the tokenizer section of `metadata`, whose arrays are lists, tuples or arrays of numbers.

    with_merges: False leaves out the merges, which take the most time, for those who only ask about special tokens.

    Raises TokenizerError, which names the key, for anything missing, too large, of the wrong type or inconsistent.
    """
    model = _string(metadata, "model")
    if model is None:
        raise TokenizerError(
            "the GGUF file has no tokenizer: tokenizer.ggml.model is missing; put the original model's tokenizer.json "
            "beside the file."
        )
    tokens, ids = _tokens(metadata)
    named = _named(metadata, model, len(tokens))
    adds = {end: _flag(metadata, f"add_{end}_token") for end in ("bos", "eos")}
    for end, added in adds.items():
        if added and f"{end}_token" not in named:
            raise TokenizerError(
                f"{_PREFIX}add_{end}_token of the GGUF file is true, and there is no {_PREFIX}{end}_token_id."
            )
    merges = _merges(metadata, ids) if with_merges else ()
    types = _types(metadata, model, tokens, merges, named)
    return Vocabulary(
        model=model,
        pre="gemma4" if model == "gemma4" else _string(metadata, "pre") or "default",
        tokens=tokens,
        ids=ids,
        types=tuple(types),
        scores=tuple(_numbers(metadata, "scores", len(tokens), "iuf") or [0.0] * len(tokens)),
        merges=merges,
        named=named,
        end_ids=frozenset(_ends(metadata, ids, types, named)),
        add_bos=adds["bos"],
        add_eos=adds["eos"],
        add_space_prefix=_flag(metadata, "add_space_prefix"),
        remove_extra_whitespaces=_flag(metadata, "remove_extra_whitespaces"),
        charsmap=_charsmap(metadata),
    )


def read_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name; the usual one is "default".

    Raises TokenizerError for a template that is too large or not text.
    """
    names = metadata.get(_TEMPLATE_NAMES)
    keys = {"default": _TEMPLATE}
    if names is not None:
        listed = _strings(names, _TEMPLATE_NAMES, MAX_TEMPLATES)
        keys |= {name: f"{_TEMPLATE}.{name}" for name in listed if name != "default"}
    templates = {}
    for name, key in keys.items():
        source = metadata.get(key)
        if source is not None:
            templates[name] = _text(source, key, MAX_CONFIG_BYTES)
    return templates


# ---- Tokens ----


def _tokens(metadata: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, int]]:
    key = _PREFIX + "tokens"
    if key not in metadata:
        raise TokenizerError(
            f"the GGUF file has no vocabulary: {key} is missing; put the original model's tokenizer.json "
            "beside the file."
        )
    listed = _strings(metadata[key], key, MAX_TOKENS, together=MAX_VOCABULARY_CHARS)
    if not listed:
        raise TokenizerError(f"the GGUF file has no vocabulary: {key} is empty.")
    # An empty token is a hole in the vocabulary. A name keeps the texts of all tokens different, as in llama.cpp.
    tokens = tuple(text or f"[EMPTY_{i}]" for i, text in enumerate(listed))
    ids = {text: i for i, text in enumerate(tokens)}
    if len(ids) != len(tokens):
        i, text = next((i, text) for i, text in enumerate(tokens) if ids[text] != i)
        raise TokenizerError(f"{key} of the GGUF file has {text[:80]!r} twice, as ids {i} and {ids[text]}.")
    return tokens, ids


def _types(
    metadata: Mapping[str, Any],
    model: str,
    tokens: tuple[str, ...],
    merges: Sequence[tuple[str, str]],
    named: Mapping[str, int],
) -> list[int]:
    listed = _numbers(metadata, "token_type", len(tokens), "iu")
    if listed is None:
        types = [
            int(TokenType.BYTE if model != "gpt2" and BYTE_TOKEN.fullmatch(text) else TokenType.NORMAL)
            for text in tokens
        ]
    else:
        types = listed
        last = int(max(TokenType))
        if min(types) < 0 or max(types) > last:
            wrong = next(i for i, kind in enumerate(types) if not 0 <= kind <= last)
            raise TokenizerError(
                f"{_PREFIX}token_type of the GGUF file has {types[wrong]} for token {wrong}, which is not a type."
            )
    # What a text begins or ends with is not text itself, even if the converter did not mark it; but some files name an
    # ordinary token, such as a comma: a character, or what merges make. The unknown token of a byte-level vocabulary
    # has no use.
    kinds = {"bos_token": TokenType.CONTROL, "eos_token": TokenType.CONTROL}
    if model != "gpt2":
        kinds["unk_token"] = TokenType.UNKNOWN
    unmarked = {named[name]: kind for name, kind in kinds.items() if name in named}
    unmarked = {i: kind for i, kind in unmarked.items() if types[i] != TokenType.CONTROL}
    if listed is not None and unmarked:
        texts = {tokens[i] for i in unmarked}
        ordinary = {text for text in texts if len(text) == 1} | {
            text for left, right in merges if (text := left + right) in texts
        }
        unmarked = {i: kind for i, kind in unmarked.items() if tokens[i] not in ordinary}
    for i, kind in unmarked.items():
        types[i] = kind
    return types


def _merges(metadata: Mapping[str, Any], ids: Mapping[str, int]) -> tuple[tuple[str, str], ...]:
    key = _PREFIX + "merges"
    if key not in metadata:
        return ()
    listed = _strings(metadata[key], key, MAX_TOKENS, 2 * MAX_TOKEN_CHARS + 1)
    pairs = [_pair(merge) for merge in listed]
    if not all(left in ids and right in ids and left + right in ids for left, right in pairs):
        raise _bad_merge(key, listed, pairs, ids)
    return tuple(dict.fromkeys(pairs))  # where a pair is listed twice, its first rank counts


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left:  # a space in the first place is part of the left token
        left, _, right = merge[1:].partition(" ")
        left = " " + left
    return left, right


def _bad_merge(
    key: str, listed: Sequence[str], pairs: Sequence[tuple[str, str]], ids: Mapping[str, int]
) -> TokenizerError:
    """What is wrong with the first merge that is wrong."""
    for rank, (merge, (left, right)) in enumerate(zip(listed, pairs, strict=True)):
        shown = f"{key} of the GGUF file has {merge[:80]!r} at {rank}"
        if not right:
            return TokenizerError(f"{shown}, which is not a pair.")
        for text in (left, right, left + right):
            if text not in ids:
                return TokenizerError(f"{shown}, and {text[:80]!r} is not in the vocabulary.")
    raise AssertionError("all merges are good")


# ---- Ids ----


def _named(metadata: Mapping[str, Any], model: str, count: int) -> dict[str, int]:
    named = {name: i for name, i in _DEFAULTS.get(model, {}).items() if i < count}
    for name, key in _NAMED.items():
        if _PREFIX + key in metadata:
            named.pop(name, None)
            if (i := _id(metadata, key, count, lenient=name in _LENIENT)) is not None:
                named[name] = i
    return named


def _ends(
    metadata: Mapping[str, Any], ids: Mapping[str, int], types: Sequence[int], named: Mapping[str, int]
) -> Iterator[int]:
    if "eos_token" in named:
        yield named["eos_token"]
    for key in _ENDS:
        if (i := _id(metadata, key, len(ids))) is not None:
            yield i
    structural = (TokenType.CONTROL, TokenType.USER_DEFINED)
    texts = {text for text in _END_TEXTS if text in ids and types[ids[text]] in structural}
    ruled_out = {text for present, text in _NOT_AN_END if present <= texts}
    yield from (ids[text] for text in texts - ruled_out)


def _id(metadata: Mapping[str, Any], key: str, count: int, lenient: bool = False) -> int | None:
    value = metadata.get(_PREFIX + key)
    if value is None:
        return None
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TokenizerError(f"{_PREFIX}{key} of the GGUF file is not a token id.")
    number = int(value)
    if number in _NO_ID or (lenient and not 0 <= number < count):
        return None
    if not 0 <= number < count:
        raise TokenizerError(f"{_PREFIX}{key} of the GGUF file is {number}, and there are {count} tokens.")
    return number


# ---- Values ----


def _flag(metadata: Mapping[str, Any], key: str) -> bool | None:
    value = metadata.get(_PREFIX + key)
    if value is not None and not isinstance(value, bool | np.bool_):
        raise TokenizerError(f"{_PREFIX}{key} of the GGUF file is neither true nor false.")
    return None if value is None else bool(value)


def _string(metadata: Mapping[str, Any], key: str) -> str | None:
    value = metadata.get(_PREFIX + key)
    return None if value is None else _text(value, _PREFIX + key, 256)


def _text(value: Any, key: str, max_bytes: int) -> str:
    if isinstance(value, bytes | bytearray):
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TokenizerError(f"{key} of the GGUF file is not UTF-8 text (byte {error.start}).") from error
    if not isinstance(value, str):
        raise TokenizerError(f"{key} of the GGUF file is not text.")
    if len(value) > max_bytes or len(value.encode("utf-8", "surrogatepass")) > max_bytes:
        raise TokenizerError(f"{key} of the GGUF file is longer than {max_bytes} bytes.")
    if not _is_unicode(value):
        raise TokenizerError(f"{key} of the GGUF file is not UTF-8 text.")
    return value


def _is_array(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 1
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _strings(
    value: Any, key: str, most: int, longest: int = MAX_TOKEN_CHARS, together: int = MAX_TOKENIZER_BYTES
) -> list[str]:
    if not _is_array(value):
        raise TokenizerError(f"{key} of the GGUF file is not an array of texts.")
    if len(value) > most:
        raise TokenizerError(f"{key} of the GGUF file has {len(value)} entries, more than {most}.")
    texts = [
        each if isinstance(each, str) else _text(each, f"{key}[{i}]", 4 * longest)
        for i, each in enumerate(value)
    ]
    if max(map(len, texts), default=0) > longest:
        i = next(i for i, text in enumerate(texts) if len(text) > longest)
        raise TokenizerError(f"{key}[{i}] of the GGUF file is longer than {longest} characters.")
    if sum(map(len, texts)) > together:
        raise TokenizerError(f"{key} of the GGUF file has more than {together} characters.")
    if not _is_unicode("".join(texts)):
        i = next(i for i, text in enumerate(texts) if not _is_unicode(text))
        raise TokenizerError(f"{key}[{i}] of the GGUF file is not UTF-8 text.")
    return texts


def _is_unicode(text: str) -> bool:
    """False for text with half of a surrogate pair, which is how bytes that are not UTF-8 can be decoded."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _numbers(metadata: Mapping[str, Any], key: str, count: int, kinds: str) -> list[Any] | None:
    """The first `count` numbers of an array whose numpy kind is one of `kinds`; None if there is no such array."""
    value = metadata.get(_PREFIX + key)
    if value is None:
        return None
    if not _is_array(value):
        raise TokenizerError(f"{_PREFIX}{key} of the GGUF file is not an array of numbers.")
    if len(value) < count or len(value) > MAX_TOKENS:
        raise TokenizerError(f"{_PREFIX}{key} of the GGUF file has {len(value)} entries for {count} tokens.")
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:  # arrays of different lengths inside
        raise TokenizerError(f"{_PREFIX}{key} of the GGUF file is not an array of numbers.") from error
    if array.ndim != 1 or array.dtype.kind not in kinds or not np.isfinite(array).all():
        raise TokenizerError(f"{_PREFIX}{key} of the GGUF file has entries that are not finite numbers.")
    numbers: list[Any] = array[:count].tolist()
    return numbers


def _charsmap(metadata: Mapping[str, Any]) -> bytes:
    key = _PREFIX + "precompiled_charsmap"
    value = metadata.get(key)
    if value is None:
        return b""
    if not isinstance(value, bytes) and not _is_array(value):
        raise TokenizerError(f"{key} of the GGUF file is not an array of bytes.")
    if len(value) > MAX_CHARSMAP_BYTES:
        raise TokenizerError(f"{key} of the GGUF file is larger than {MAX_CHARSMAP_BYTES} bytes.")
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    try:
        array = np.asarray(value)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ValueError
        return array.view(np.uint8).tobytes() if array.dtype.itemsize == 1 else bytes(array.tolist())
    except (ValueError, OverflowError) as error:
        raise TokenizerError(f"{key} of the GGUF file is not an array of bytes.") from error
