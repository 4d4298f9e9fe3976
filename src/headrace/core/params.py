"""Sampling parameters of one request, validated once at the border."""

from __future__ import annotations

import enum
import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from headrace.core.grammar import Grammar, is_unicode
from headrace.errors import InvalidParams

MAX_N = 128
MAX_LOGPROBS = 64
DEFAULT_MAX_LOGPROBS = 20
"""What an engine admits unless its `max_logprobs` says otherwise; vLLM's default."""
MAX_STOP_STRINGS = 64
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_CHARS = 8192
"""Of all stop strings of a request together."""
MAX_BAD_WORDS = 512
MAX_BAD_WORD_CHARS = 1024
MAX_BAD_CHARS = 4096
"""Of all bad words together."""
MAX_BAD_SEQUENCES = 2 * MAX_BAD_WORDS
MAX_TOKEN_LIST = 65_536
MAX_SEED = 2**63 - 1
MAX_TOKENS_LIMIT = 2**31 - 1
MIN_REPETITION_PENALTY = 0.01
"""As far below 1 as the highest is above: positive logits are divided by it, and must stay finite."""

_MAX_KEY_DIGITS = 20
_TOKEN_KEY = re.compile(rf"-?[0-9]{{1,{_MAX_KEY_DIGITS}}}", re.ASCII)


class RequestOutputKind(enum.Enum):
    """What each result of a stream holds; the same names as in vLLM."""

    CUMULATIVE = "cumulative"  # everything so far
    DELTA = "delta"  # what was added since the previous result
    FINAL_ONLY = "final_only"  # one result, at the end


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens, and when to stop. Names and meanings follow vLLM's.

    temperature 0 is greedy. `top_k` 0 or -1 and `top_p` 1.0 and `min_p` 0.0 switch those filters off.
    `repetition_penalty` > 1 divides positive and multiplies negative logits of tokens seen in prompt or
    output (Keskar et al. 2019); `presence_penalty` and `frequency_penalty` count output tokens only (OpenAI).
    `logprobs` / `prompt_logprobs` = k asks for the k most likely tokens at each position, taken from the
    model's distribution before any of the options above; 0 gives the chosen token alone.
    `bad_words` never occur in the output: words, or sequences of token ids, whose last token is banned where the output
    ends with those before it (vLLM). `headrace.text.bad_words` turns words into ids, before a request is made.
    `grammar` constrains the form of the output, see Grammar and docs/structured-output.md.
    `n` completions are sampled from one prompt. `max_tokens` None runs to the model's length; 0 computes the
    prompt, for its log-probabilities or its embedding, and samples nothing. `output_kind`: see RequestOutputKind; text
    such as "delta" is accepted. `LLM.generate` and `LLM.chat` always return complete results.

    Numbers of other classes, such as numpy's, are stored as int and float; a bool is not a number. Raises InvalidParams
    from the constructor where a value is out of its range.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    banned_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str | tuple[int, ...], ...] = ()
    seed: int | None = None
    max_tokens: int | None = 128
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    grammar: Grammar | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        # Callers pass lists and single strings; the frozen object holds tuples.
        put = object.__setattr__
        stop: object = self.stop
        put(self, "stop", (stop,) if isinstance(stop, str) else _checked_tuple("stop", stop))
        put(self, "bad_words", _checked_words(self.bad_words))
        put(self, "stop_token_ids", _checked_tuple("stop_token_ids", self.stop_token_ids))
        for name in ("allowed_token_ids", "banned_token_ids"):
            value = getattr(self, name)
            put(self, name, None if value is None else _checked_tuple(name, value))
        if self.logit_bias is not None:
            put(self, "logit_bias", _checked_bias(self.logit_bias))
        for name, (low, high) in _FLOAT_RANGES.items():
            put(self, name, _checked_float(name, getattr(self, name), low, high))
        for name, (int_low, int_high) in _INT_RANGES.items():
            put(self, name, _checked_int(name, getattr(self, name), int_low, int_high))
        for name in _OPTIONAL_INTS:
            if getattr(self, name) is not None:
                put(self, name, _checked_int(name, getattr(self, name), *_OPTIONAL_INTS[name]))
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidParams(f"{name} must be true or false, got {shown(getattr(self, name))}")
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise InvalidParams(f"grammar must be a Grammar, got {shown(self.grammar)}")
        put(self, "output_kind", _checked_kind(self.output_kind))
        self._check_lists()
        if self.top_p == 0.0:
            raise InvalidParams("top_p must be in (0, 1], got 0")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParams(f"min_tokens {self.min_tokens} is greater than max_tokens {self.max_tokens}")

    def _check_lists(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidParams(f"at most {MAX_STOP_STRINGS} stop strings are allowed, got {len(self.stop)}")
        for text in self.stop:
            if not isinstance(text, str) or not 0 < len(text) <= MAX_STOP_STRING_CHARS:
                raise InvalidParams(
                    f"each stop string must be text of 1 to {MAX_STOP_STRING_CHARS} characters, "
                    f"got {shown(text)}"
                )
            if not is_unicode(text):
                raise InvalidParams("a stop string holds half of a surrogate pair: it must be valid Unicode")
        if sum(map(len, self.stop)) > MAX_STOP_CHARS:
            raise InvalidParams(
                f"stop holds {sum(map(len, self.stop))} characters, at most {MAX_STOP_CHARS} are allowed together"
            )
        for name in ("stop_token_ids", "allowed_token_ids", "banned_token_ids"):
            ids = getattr(self, name) or ()
            if len(ids) > MAX_TOKEN_LIST:
                raise InvalidParams(f"{name} holds {len(ids)} ids, at most {MAX_TOKEN_LIST} are allowed")
            if ids:
                object.__setattr__(self, name, _checked_ids(f"each of {name}", ids))
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidParams("allowed_token_ids must not be empty")

    @property
    def samples(self) -> bool:
        """False where no token is sampled after the prompt."""
        return self.max_tokens != 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def check_vocab(self, vocab_size: int) -> None:
        """Raise InvalidParams where a token id lies outside the vocabulary of `vocab_size` ids."""
        for name in ("stop_token_ids", "allowed_token_ids", "banned_token_ids", "logit_bias"):
            ids = getattr(self, name)
            if ids and max(ids) >= vocab_size:
                raise InvalidParams(f"{name} names token {max(ids)}, but the vocabulary has {vocab_size} ids")
        most = max((max(word) for word in self.bad_words if not isinstance(word, str)), default=-1)
        if most >= vocab_size:
            raise InvalidParams(f"bad_words names token {most}, but the vocabulary has {vocab_size} ids")

    def check_logprobs(self, most: int) -> None:
        """Raise InvalidParams where more than `most` alternatives are asked for at a position."""
        for name in ("logprobs", "prompt_logprobs"):
            asked = getattr(self, name)
            if asked is not None and asked > most:
                raise InvalidParams(f"{name} asks for {asked} alternatives; at most {most} are allowed here")


_FLOAT_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (MIN_REPETITION_PENALTY, 100.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
_INT_RANGES: dict[str, tuple[int, int]] = {
    "n": (1, MAX_N),
    "top_k": (-1, MAX_TOKENS_LIMIT),
    "min_tokens": (0, MAX_TOKENS_LIMIT),
}
_OPTIONAL_INTS: dict[str, tuple[int, int]] = {
    "seed": (-MAX_SEED - 1, MAX_SEED),
    "max_tokens": (0, MAX_TOKENS_LIMIT),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
}


def shown(value: object) -> str:
    """The value as an error message shows it: short, and never raises."""
    try:
        return f"{value!r:.80}"
    except ValueError:  # Python refuses to write out whole numbers of thousands of digits
        return "a number of thousands of digits"


def as_int(value: Any) -> int | None:
    """A whole number of any class that has `__index__`, such as numpy's; None for everything else, and for a bool."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def as_ids(values: Iterable[Any]) -> tuple[Any, ...]:
    """Whole numbers as ints, in a few native calls. Where one is none, all stay as they are, for a check to refuse."""
    ids = tuple(values)
    kinds = set(map(type, ids))
    if kinds <= {int} or bool in kinds:
        return ids
    try:
        return tuple(map(operator.index, ids))
    except TypeError:
        return ids


def is_real(value: object) -> bool:
    """It is a number, of numpy or otherwise; a bool is none."""
    return isinstance(value, (int, float, Real)) and not isinstance(value, bool)


def _checked_kind(value: object) -> RequestOutputKind:
    if isinstance(value, RequestOutputKind):
        return value
    for kind in RequestOutputKind:
        if isinstance(value, str) and value.lower() == kind.value:
            return kind
    raise InvalidParams(f"output_kind must be cumulative, delta or final_only, got {shown(value)}")


def _checked_float(name: str, value: Any, low: float, high: float) -> float:
    if not is_real(value):
        raise InvalidParams(f"{name} must be a number, got {shown(value)}")
    if not low <= value <= high:  # false for NaN, too
        raise InvalidParams(f"{name} must be between {low:g} and {high:g}, got {shown(value)}")
    return float(value)


def _checked_int(name: str, value: object, low: int, high: int) -> int:
    number = as_int(value)
    if number is None:
        raise InvalidParams(f"{name} must be a whole number, got {shown(value)}")
    if not low <= number <= high:
        raise InvalidParams(f"{name} must be between {low} and {high}, got {shown(value)}")
    return number


def _checked_ids(name: str, ids: tuple[Any, ...]) -> tuple[int, ...]:
    """A list without fault is passed in a few native calls; one by one, 65,536 ids would take 20 milliseconds."""
    if _are_ids(ids) or _are_ids(ids := as_ids(ids)):
        return ids
    return tuple(_checked_int(name, token, 0, MAX_TOKENS_LIMIT) for token in ids)


def _are_ids(values: Sequence[Any]) -> bool:
    """All are token ids, stored as ints."""
    return not values or (
        set(map(type, values)) == {int} and min(values) >= 0 and max(values) <= MAX_TOKENS_LIMIT
    )


def _checked_tuple(name: str, value: object) -> tuple[Any, ...]:
    if value is None:
        return ()
    if isinstance(value, (str, bytes, bytearray, memoryview, Mapping)) or not isinstance(value, Iterable):
        raise InvalidParams(f"{name} must be a list, got {shown(value)}")
    return tuple(value)


def _checked_words(value: object) -> tuple[str | tuple[int, ...], ...]:
    words = tuple(
        word if isinstance(word, str) else _checked_tuple("each of bad_words", word)
        for word in _checked_tuple("bad_words", value)
    )
    texts = [word for word in words if isinstance(word, str)]
    if len(texts) > MAX_BAD_WORDS or len(words) > MAX_BAD_SEQUENCES:
        raise InvalidParams(f"bad_words holds {len(words)} words, at most {MAX_BAD_WORDS} are allowed")
    for text in texts:
        if not 0 < len(text) <= MAX_BAD_WORD_CHARS:
            raise InvalidParams(
                f"each of bad_words must be text of 1 to {MAX_BAD_WORD_CHARS} characters, got {shown(text)}"
            )
        if text.isspace():
            raise InvalidParams(
                f"bad_words holds {shown(text)}: white space alone cannot be forbidden as text; "
                "give its token ids a logit_bias of -100"
            )
    if sum(map(len, texts)) > MAX_BAD_CHARS:
        raise InvalidParams(
            f"bad_words holds {sum(map(len, texts))} characters, at most {MAX_BAD_CHARS} are allowed together"
        )
    sequences = [word for word in words if not isinstance(word, str)]
    if sum(map(len, sequences)) > MAX_TOKEN_LIST:
        raise InvalidParams(f"bad_words holds more than {MAX_TOKEN_LIST} token ids")
    for ids in sequences:
        if not ids:
            raise InvalidParams("each of bad_words must hold at least one token id")
    return tuple(
        word if isinstance(word, str) else _checked_ids("each token id of bad_words", word) for word in words
    )


def _checked_bias(bias: Mapping[int, float]) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise InvalidParams(f"logit_bias must map token ids to numbers, got {shown(bias)}")
    if len(bias) > MAX_TOKEN_LIST:
        raise InvalidParams(f"logit_bias holds {len(bias)} entries, at most {MAX_TOKEN_LIST} are allowed")
    ids, values = _ids_of(bias), list(bias.values())
    if ids is not None and _are_biases(values):
        return dict(zip(ids, map(float, values), strict=True))
    checked: dict[int, float] = {}  # one by one, to name the wrong entry
    for key, value in bias.items():
        token = _token_of(key)
        if token is None:
            raise InvalidParams(f"logit_bias keys must be token ids, got {shown(key)}")
        _checked_int("each logit_bias token id", token, 0, MAX_TOKENS_LIMIT)
        number = _checked_float("each logit_bias value", value, -100.0, 100.0)
        if token in checked:
            raise InvalidParams(f"logit_bias names token {token} twice")
        checked[token] = number
    return checked


def _ids_of(bias: Mapping[Any, Any]) -> list[int] | None:
    """The keys of a bias table as token ids, each of them once, found in a few native calls; else None."""
    keys = list(bias)
    kinds = set(map(type, keys))
    if kinds == {str}:
        digits, lengths = "".join(keys), set(map(len, keys))
        if not (
            digits.isascii() and digits.isdigit() and min(lengths) > 0 and max(lengths) <= _MAX_KEY_DIGITS
        ):
            return None
        keys = list(map(int, keys))
    else:
        keys = list(as_ids(keys))
    return keys if keys and _are_ids(keys) and len(set(keys)) == len(keys) else None


def _are_biases(values: Sequence[Any]) -> bool:
    """All are numbers in range, found in a few native calls. A NaN makes the sum of numbers in range NaN."""
    if not set(map(type, values)) <= {int, float} or not (min(values) >= -100 and max(values) <= 100):
        return False
    return not math.isnan(sum(values))


def _token_of(key: object) -> int | None:
    """The token id that a key of a bias table stands for; JSON object keys arrive as text."""
    if isinstance(key, str):
        return int(key) if _TOKEN_KEY.fullmatch(key) else None
    return as_int(key)
