"""A real engine over an executor that counts: the token after t is t + 1. Run as a script, it is an engine process.

Some token ids in a prompt make things go wrong, see the constants.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from headrace.core.engine import Engine
from headrace.core.policy import Batching, Order, SchedulerConfig
from headrace.core.types import KVGroupSpec, SeqSlice, SliceResult, StepPlan, StepResult, TokenLogprobs
from headrace.errors import ModelNotFound
from headrace.runner.pooling import Pool, add_states
from headrace.serving.engine.loop import EngineLoop
from headrace.serving.engine.state import ModelFacts
from headrace.serving.wire.connection import Connection, exit_with_parent
from headrace.serving.wire.messages import Hello, failed

VOCAB = 2048
MAX_MODEL_LEN = 512
HIDDEN_SIZE = 12
CRASH = 2001  # the executor raises
FAIL = 2002  # the sequence fails alone
HANG = 2003  # the step never ends

COMMAND = (sys.executable, str(Path(__file__).resolve()))


class TinyExecutor:
    """Counts on from the last token; each step takes `step_s` seconds and `token_s` for each token in it.

    Where the scheduler leaves room it drafts, and the last token of every draft is wrong.
    """

    def __init__(self, step_s: float = 0.0, token_s: float = 0.0) -> None:
        self._step_s = step_s
        self._token_s = token_s
        self._params: dict[int, tuple[int | None, int | None]] = {}
        self._pools: dict[int, Pool] = {}
        self.steps = 0

    def execute(self, plan: StepPlan) -> StepResult:
        self.steps += 1
        if self._step_s and plan.slices:
            time.sleep(self._step_s)
        if self._token_s:
            time.sleep(self._token_s * sum(len(work.tokens) for work in plan.slices))
        results = []
        for work in plan.slices:
            if work.new is not None:
                self._params[work.request_id] = (work.new.params.logprobs, work.new.params.prompt_logprobs)
            if work.new is not None and work.new.pooling is not None:
                self._pools[work.request_id] = Pool(work.new.pooling, work.new.num_prompt)
            if CRASH in work.tokens:
                raise RuntimeError("the tiny executor crashed")
            while HANG in work.tokens:
                pass
            if FAIL in work.tokens:
                results.append(SliceResult(work.request_id, error="the tiny executor failed this sequence"))
                continue
            if (pool := self._pools.get(work.request_id)) is not None:
                results.append(_pooled(work, pool))
                continue
            logprobs, prompt_logprobs = self._params[work.request_id]
            found = self._verified(work)
            tokens = found if work.sample else ()
            results.append(
                SliceResult(
                    work.request_id,
                    tokens,
                    draft=self._draft(tokens[-1], work.room) if tokens else (),
                    logprobs=()
                    if logprobs is None
                    else tuple(_logprobs(token, logprobs) for token in tokens),
                    prompt_logprobs=()
                    if prompt_logprobs is None or work.new is None
                    else tuple(_logprobs(token, prompt_logprobs) for token in work.tokens[1:]),
                )
            )
        return StepResult(plan.step_id, tuple(results))

    def _verified(self, work: SeqSlice) -> tuple[int, ...]:
        known = len(work.tokens) - work.num_draft
        tokens = [self.next_token(replace(work, tokens=work.tokens[:known]))]
        for draft in work.tokens[known:]:
            if draft != tokens[-1]:
                break
            tokens.append((draft + 1) % VOCAB)
        return tuple(tokens)

    @staticmethod
    def _draft(token: int, room: int) -> tuple[int, ...]:
        return tuple((token + 1 + at + (at == room - 1)) % VOCAB for at in range(room))

    def next_token(self, work: SeqSlice) -> int:
        return (work.tokens[-1] + 1) % VOCAB


def hidden_state(token: int) -> list[float]:
    """What embeddings are made of here."""
    return [float(token >> bit & 1) for bit in range(HIDDEN_SIZE - 1)] + [1.0]


def _pooled(work: SeqSlice, pool: Pool) -> SliceResult:
    states = np.array([hidden_state(token) for token in work.tokens], dtype=np.float32)
    results = add_states([work], [pool], states[pool.tokens_of(work)])
    return results.get(work.request_id, SliceResult(work.request_id))


def _logprobs(token: int, top: int) -> TokenLogprobs:
    return TokenLogprobs(token, -0.5, 1, tuple((token + i, -0.5 - i, 1 + i) for i in range(top)))


def tiny_engine(
    num_blocks: int = 256,
    block_size: int = 8,
    batching: str = "continuous",
    batch_wait_s: float = 0.05,
    eos_ids: Iterable[int] = (),
    max_model_len: int = MAX_MODEL_LEN,
    order: str = "fcfs",
    max_num_seqs: int = 16,
    max_num_batched_tokens: int = 512,
    prefix_caching: bool = True,
    max_draft: int = 0,
) -> Engine:
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, max_model_len=max_model_len,
        vocab_size=VOCAB, batching=Batching(batching), batch_wait_s=batch_wait_s, eos_ids=frozenset(eos_ids),
        order=Order(order), max_draft=max_draft,
    )  # fmt: skip
    return Engine(config, [KVGroupSpec("full", num_blocks, block_size)], prefix_caching=prefix_caching)


def facts(engine: Engine, tokenizer_folder: str | None = None, vocab: int = VOCAB) -> ModelFacts:
    return ModelFacts("tiny", vocab, engine.config.max_model_len, tokenizer_folder, hidden_size=HIDDEN_SIZE)


def main(kind: type[TinyExecutor] = TinyExecutor) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    sock = socket.socket(fileno=parser.parse_args().fd)
    sock.set_inheritable(False)
    exit_with_parent(sock)
    connection = Connection(sock)
    hello = connection.receive_one()
    assert isinstance(hello, Hello)
    options = json.loads(hello.config)
    if options.pop("fail", False):
        connection.send(failed(ModelNotFound("there is no tiny model")))
        return 1
    if options.pop("garbage", False):
        sock.sendall(b"\x03\x00\x00\x00abc")
        time.sleep(60)
    if options.pop("vanish", False):
        return 7
    time.sleep(options.pop("slow_load_s", 0))
    vocab = options.pop("vocab", VOCAB)
    executor = kind(options.pop("step_s", 0.0), options.pop("token_s", 0.0))
    folder = options.pop("tokenizer_folder", None)
    interval_s = options.pop("stream_interval_s", 0.008)
    engine = tiny_engine(**options)
    loop = EngineLoop(connection, engine, executor, stream_interval_s=interval_s)
    return loop.run(facts(engine, folder, vocab))


if __name__ == "__main__":
    sys.exit(main())
