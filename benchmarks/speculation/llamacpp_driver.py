"""Greedy decoding with drafts through llama.cpp's C interface, as its server does it; runs in its environment.

    python -m benchmarks.speculation.llamacpp_driver JOB.json

The job is that of `benchmarks.speculation`; the answer is one line of JSON. Draft model: at most 16 tokens, up to the
first whose probability is under 0.75, which are the defaults of llama.cpp's server. Look-up: the search of
llama-cpp-python, 10 tokens after the longest of 2 equal ones, its defaults.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from numpy.typing import NDArray

MOST_DRAFTED, LEAST_PROBABILITY = 16, 0.75
_LOOK_UP = LlamaPromptLookupDecoding()
_BATCH = 2048

Draft = Callable[[Sequence[int]], list[int]]


class Context:
    """One model and one sequence."""

    def __init__(self, path: str, threads: int, length: int) -> None:
        model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch = length, _BATCH
        params.n_threads = params.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(model, params)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(_BATCH, 0, 1)
        self.tokens: list[int] = []  # those whose keys and values it holds

    def keep(self, tokens: Sequence[int]) -> int:
        """Drop what does not begin these tokens; returns how many are left."""
        same = 0
        for ours, theirs in zip(self.tokens, tokens, strict=False):
            if ours != theirs:
                break
            same += 1
        if same < len(self.tokens):
            llama_cpp.llama_memory_seq_rm(self._memory, 0, same, -1)
            del self.tokens[same:]
        return same

    def read(self, tokens: Sequence[int], wanted: int) -> NDArray[np.float32]:
        """Read tokens, and give the logits after each of the last `wanted` of them."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for place, token in enumerate(tokens):
            batch.token[place], batch.pos[place] = token, len(self.tokens) + place
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
            batch.logits[place] = place >= len(tokens) - wanted
        if (code := llama_cpp.llama_decode(self._context, batch)) != 0:
            raise RuntimeError(f"llama_decode gave {code}")
        self.tokens += tokens
        rows = [
            np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self._context, place), (self._size,))
            for place in range(len(tokens) - wanted, len(tokens))
        ]
        return np.stack(rows)


def by_model(context: Context) -> Draft:
    """Drafts greedily with a smaller model, while it is sure."""

    def draft(tokens: Sequence[int]) -> list[int]:
        kept = min(context.keep(tokens), len(tokens) - 1)
        context.keep(tokens[:kept])
        found: list[int] = []
        row = context.read(list(tokens[kept:]), 1)[0]
        while True:
            token = int(row.argmax())
            if 1.0 / np.exp(row - row[token]).sum() < LEAST_PROBABILITY:
                return found
            found.append(token)
            if len(found) == MOST_DRAFTED:
                return found
            row = context.read([token], 1)[0]

    return draft


def by_look_up(tokens: Sequence[int]) -> list[int]:
    return [int(token) for token in _LOOK_UP(np.array(tokens, dtype=np.intc))]


def generate(context: Context, draft: Draft | None, prompt: Sequence[int], outputs: int) -> dict[str, object]:
    """The greedy tokens, seconds after the first of them, and drafted and accepted tokens."""
    context.keep([])
    tokens = [*prompt, int(context.read(list(prompt), 1)[0].argmax())]
    drafted = accepted = steps = 0
    if draft is not None:
        draft(tokens)  # reads the prompt: not part of decoding
    begin = time.perf_counter()
    while (left := len(prompt) + outputs - len(tokens)) > 0:
        guess = [] if draft is None or left == 1 else draft(tokens)[: left - 1]
        rows = context.read([tokens[-1], *guess], len(guess) + 1)
        right = 0
        found = [int(row.argmax()) for row in rows]
        while right < len(guess) and found[right] == guess[right]:
            right += 1
        tokens += found[: right + 1]
        context.keep(tokens[:-1])
        drafted, accepted, steps = drafted + len(guess), accepted + right, steps + 1
    seconds = time.perf_counter() - begin
    return {
        "tokens": tokens[len(prompt) :], "seconds": seconds, "drafted": drafted, "accepted": accepted, "steps": steps,
    }  # fmt: skip


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    llama_cpp.llama_backend_init()
    length = max(len(prompt) for prompt in job["prompts"]) + job["outputs"] + 32
    model = Context(job["model"], job["threads"], length)
    drafts: dict[str, Draft | None] = {
        "none": None, "look-up": by_look_up, "draft model": by_model(Context(job["draft"], job["threads"], length)),
    }  # fmt: skip
    generate(model, None, job["prompts"][0], 8)
    found = {
        name: [generate(model, draft, prompt, job["outputs"]) for prompt in job["prompts"]]
        for name, draft in drafts.items()
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
