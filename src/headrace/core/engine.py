"""The core's interface: requests in, plans out, results in, outputs out. Time enters only as `now`."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.kv_usage import KVUsage
from headrace.core.policy import SchedulerConfig
from headrace.core.prefix_cache import CacheStats
from headrace.core.request import Request
from headrace.core.scheduler import Scheduler
from headrace.core.scheduler_counts import SchedulerStats
from headrace.core.step_budget import StepBudget
from headrace.core.types import FinishReason, KVGroupSpec, NewRequest, Output, StepPlan, StepResult
from headrace.errors import InvalidParams, PromptTooLong, RequestError

UNBOUNDED = 2**31 - 1  # limit in tokens of a stream whose every layer is bounded by a window


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot: running and waiting requests now, and counts since the start. Blocks are summed over KV groups.

    `roofline_fraction`: how close steps come to the machine's limits, from 0 to 1; None where nobody measures it. The
    engine process fills it in.
    """

    running: int
    waiting: int
    total_blocks: int
    free_blocks: int
    scheduler: SchedulerStats
    cache: CacheStats | None
    roofline_fraction: float | None = None


@dataclass(frozen=True, slots=True)
class _Abort:
    key: str
    index: int | None
    reason: FinishReason
    now: float


class Engine:
    """One step is `plan = begin(now)`, an executor running the plan, `finish(result, now)`.

    `add` and `abort` may be called at any time, also between `begin` and `finish`. An abort that arrives inside one of
    the other methods (from a finalizer that the garbage collector runs there) is queued until that method is done.
    Requests are validated here, at the border: what `add` accepts can be run. Not thread-safe.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        groups: Sequence[KVGroupSpec],
        *,
        prefix_caching: bool = True,
        cache_scope: bytes = b"",
        step_budget: StepBudget | None = None,
    ) -> None:
        """`cache_scope` stands for the model and the format of its KV in the keys of the prefix cache."""
        self.config = config
        self.scheduler = Scheduler(
            config, groups, prefix_caching=prefix_caching, cache_scope=cache_scope, step_budget=step_budget
        )
        self._begun_s = 0.0  # when the step that runs was planned
        self._requests: dict[int, Request] = {}
        self._by_key: dict[str, list[Request]] = {}
        self._plan: StepPlan | None = None
        self._next_number = 0
        self._ended: list[Output] = []  # between steps: what was aborted or has expired
        self._aborts: deque[_Abort] = deque()
        self._changing = False  # a method is changing the scheduler: aborts wait

    @property
    def has_work(self) -> bool:
        """True while `begin` can still give a plan that is not empty, now or later."""
        return self.scheduler.has_work or bool(self._ended or self._aborts)

    @property
    def is_stepping(self) -> bool:
        """A step was begun and not finished, or what ended between steps was not reported yet."""
        return self._plan is not None or bool(self._ended or self._aborts)

    def add(self, new: NewRequest, now: float) -> None:
        """Queue a request.

        Raises InvalidParams for a duplicate id, token ids outside the vocabulary or an empty prompt, and
        PromptTooLong when the prompt leaves no room for one output token in the context or the KV cache.
        """
        self.check(new)
        limit = self.scheduler.limit or UNBOUNDED
        params = new.params
        stops = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self.config.eos_ids)
        completions = []
        for index in range(params.n):
            number = self._next_number
            self._next_number += 1
            completions.append(
                Request(
                    number, new, index, seed=self._seed(new, index), stop_ids=stops, limit=limit,
                    num_groups=len(self.scheduler.kv.groups), keys=self.scheduler.kv.keys(new.cache_salt), now=now,
                    eviction=self.config.eviction,
                )
            )  # fmt: skip
        self._changing = True
        try:
            self._requests.update((request.number, request) for request in completions)
            self._by_key[new.key] = completions
            self.scheduler.add(completions)
        finally:
            self._changing = False
        self._end_aborted()

    def check(self, new: NewRequest) -> None:
        """Raise what `add` would raise, and change nothing."""
        if new.key in self._by_key:
            raise InvalidParams(f"a request with the id {new.request_id!r:.80} is already running")
        if not new.prompt:
            raise RequestError("the prompt is empty: it must hold at least one token")
        if set(map(type, new.prompt)) != {int}:
            raise InvalidParams("prompt token ids must be whole numbers")
        vocab = self.config.vocab_size
        for token in (min(new.prompt), max(new.prompt)):
            if not 0 <= token < vocab:
                raise InvalidParams(f"token id {token} is outside the model's vocabulary of {vocab} ids")
        new.params.check_vocab(vocab)
        new.params.check_logprobs(self.config.max_logprobs)
        length = len(new.prompt)
        model_len, pool_len = self.config.max_model_len, self.scheduler.kv.longest_sequence()
        needed = length + new.params.samples  # room for one output token, if there will be any
        if model_len is not None and needed > model_len:
            raise PromptTooLong(
                f"the prompt has {length} tokens, but the model's context holds {model_len}, output included"
            )
        if pool_len is not None and needed > pool_len:
            raise PromptTooLong(
                f"the prompt has {length} tokens, but the whole KV cache holds {pool_len}: give it more memory"
            )

    def abort(self, key: str, now: float, index: int | None = None, *, stopped: bool = False) -> None:
        """End a request, or one completion of it, in any state. Unknown keys are ignored: it may just have ended.

        `stopped` says that the caller found a stop string: the reason is then "stop", not "abort".
        """
        reason = FinishReason.STOP if stopped else FinishReason.ABORT
        self._aborts.append(_Abort(key, index, reason, now))
        self._end_aborted()

    def begin(self, now: float) -> StepPlan:
        """The next step's plan; `finish` must be called with its result before the next `begin`."""
        if self._plan is not None:
            raise RuntimeError(f"step {self._plan.step_id} has not been finished")
        self._changing = True
        try:
            for request, why in self.scheduler.expire(now):
                self._report_end(request, FinishReason.TIMEOUT, why)
            self._begun_s = now
            self._plan = plan = self.scheduler.plan(now)
        finally:
            self._changing = False
        self._end_aborted()
        return plan

    def finish(self, result: StepResult, now: float) -> list[Output]:
        """Apply a step's result; returns the outputs of all requests that advanced or ended."""
        plan = self._plan
        if plan is None or plan.step_id != result.step_id:
            raise RuntimeError(f"result of step {result.step_id} does not belong to the step begun")
        if plan.slices and self.scheduler.step_budget is not None:
            self.scheduler.step_budget.observe(plan, now - self._begun_s)
        self._changing = True
        try:
            self._plan = None
            ended, self._ended = self._ended, []
            outputs = self.scheduler.commit(plan, result, self._requests, now)
            for output in outputs:
                if output.finish_reason is not None:
                    self._drop(self._find(output.request_id, output.index))
        finally:
            self._changing = False
        self._end_aborted()
        return ended + outputs

    def end(self, request: Request, reason: FinishReason, now: float) -> Output:
        """End a sequence whose last token has come; returns its last output, without tokens."""
        self.scheduler.end(request, reason, now)
        self._drop(request)
        return Output(request.key, request.index, finish_reason=reason, stats=request.stats.copy())

    def stats(self) -> EngineStats:
        scheduler = self.scheduler
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            total_blocks=sum(pool.num_blocks for pool in scheduler.kv.pools),
            free_blocks=sum(pool.num_free for pool in scheduler.kv.pools),
            scheduler=scheduler.counts(),
            cache=scheduler.kv.cache_stats(),
        )

    def kv_usage(self) -> KVUsage:
        """Exact KV occupancy; costs time in proportion to the blocks held."""
        return self.scheduler.kv.usage(self.scheduler.running)

    def _end_aborted(self) -> None:
        """End what was aborted, unless another method is changing the scheduler, which calls this when it is done."""
        while self._aborts and not self._changing:
            self._changing = True
            try:
                abort = self._aborts.popleft()
                for request in tuple(self._by_key.get(abort.key, ())):
                    if abort.index in (None, request.index):
                        self.scheduler.end(request, abort.reason, abort.now)
                        self._report_end(request, abort.reason)
            finally:
                self._changing = False

    def _find(self, key: str, index: int) -> Request:
        return next(request for request in self._by_key[key] if request.index == index)

    def _report_end(self, request: Request, reason: FinishReason, error: str | None = None) -> None:
        """Queue the output of a request that ended outside a step; the next `finish` returns it."""
        self._drop(request)
        self._ended.append(
            Output(request.key, request.index, finish_reason=reason, error=error, stats=request.stats.copy())
        )

    def _drop(self, request: Request) -> None:
        del self._requests[request.number]
        rest = [other for other in self._by_key[request.key] if other is not request]
        if rest:
            self._by_key[request.key] = rest
        else:
            del self._by_key[request.key]

    def _seed(self, new: NewRequest, index: int) -> int:
        """The seed of one completion: from the request's own seed alone, or from the engine's and the request's id."""
        params = new.params
        origin = (
            f"request {params.seed}"
            if params.seed is not None
            else f"engine {self.config.seed} {new.request_id}"
        )
        return int.from_bytes(hashlib.sha256(f"{origin} {index}".encode()).digest()[:8], "little")
