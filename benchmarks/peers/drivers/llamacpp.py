"""llama.cpp through its C interface: batches of sequences, as its own batched benchmark drives them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import llama_cpp
import numpy as np

from benchmarks.peers.drivers.driving import Job, main
from benchmarks.peers.work_items import Request

READ_BATCH = 2048
"""Prompt tokens of one call (n_batch); llama.cpp splits them into pieces of 512 itself."""

CONTEXT_STEP = 256
"""A sequence's context is rounded up to a multiple of this inside llama.cpp."""


@dataclass(slots=True)
class _Running:
    index: int  # place in the context
    request: Request
    token: int = 0  # the last one chosen
    times: list[float] = field(default_factory=list)

    @property
    def position(self) -> int:
        return len(self.request.prompt) + len(self.times) - 1


@dataclass(frozen=True, slots=True)
class _Entry:
    """One token of a batch; `owner` waits for its logits."""

    token: int
    position: int
    sequence: int
    owner: _Running | None


class LlamaCppEngine:
    """A separate KV buffer for each sequence. Requests beyond `n_seq_max` wait for the end of the batch before them."""

    def __init__(self, job: Job) -> None:
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(
            job.model.encode(), llama_cpp.llama_model_default_params()
        )
        if not model:
            raise RuntimeError(f"llama.cpp cannot load {job.model}")
        head_dim = llama_cpp.llama_model_n_embd(model) // llama_cpp.llama_model_n_head(model)
        layers, kv_heads = llama_cpp.llama_model_n_layer(model), llama_cpp.llama_model_n_head_kv(model)
        token_bytes = 2 * 2 * layers * kv_heads * head_dim  # keys and values in float16
        context_of_one = -(-job.sizes.longest // CONTEXT_STEP) * CONTEXT_STEP
        self._places = min(job.max_seqs, (job.kv_gib << 30) // token_bytes // context_of_one)
        if self._places < 1:
            raise RuntimeError(f"{job.kv_gib} GiB of KV cache hold no sequence of {job.sizes.longest} tokens")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = self._places * context_of_one
        params.n_seq_max = self._places
        params.n_batch = READ_BATCH
        params.n_threads = params.n_threads_batch = job.threads
        self._context = llama_cpp.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError("llama.cpp cannot make a context")
        self.facts = {"kv": "float16", "sequences": self._places}
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(READ_BATCH, 0, 1)

    def run(self, work: Sequence[Request]) -> list[list[float]]:
        times: list[list[float]] = []
        for start in range(0, len(work), self._places):
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)
            group = [_Running(index, one) for index, one in enumerate(work[start : start + self._places])]
            for entries in _prompt_batches(group):
                self._decode(entries)
            while active := [one for one in group if len(one.times) < one.request.outputs]:
                self._decode([_Entry(one.token, one.position, one.index, one) for one in active])
            times += [one.times for one in group]
        return times

    def _decode(self, entries: Sequence[_Entry]) -> None:
        """Run one batch and choose the next token of every owner."""
        batch = self._batch
        batch.n_tokens = len(entries)
        for place, entry in enumerate(entries):
            batch.token[place] = entry.token
            batch.pos[place] = entry.position
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = entry.sequence
            batch.logits[place] = entry.owner is not None
        if (code := llama_cpp.llama_decode(self._context, batch)) != 0:
            raise RuntimeError(f"llama_decode gave {code}")
        for place, entry in enumerate(entries):
            if entry.owner is not None:
                row = llama_cpp.llama_get_logits_ith(self._context, place)
                entry.owner.token = int(np.ctypeslib.as_array(row, (self._vocabulary,)).argmax())
        now = time.perf_counter()
        for entry in entries:
            if entry.owner is not None:
                entry.owner.times.append(now)


def _prompt_batches(group: Sequence[_Running]) -> Iterator[list[_Entry]]:
    """All prompts one after the other, cut where a batch is full."""
    entries: list[_Entry] = []
    for one in group:
        last = len(one.request.prompt) - 1
        for position, token in enumerate(one.request.prompt):
            entries.append(_Entry(token, position, one.index, one if position == last else None))
            if len(entries) == READ_BATCH:
                yield entries
                entries = []
    if entries:
        yield entries


if __name__ == "__main__":
    main(LlamaCppEngine)
