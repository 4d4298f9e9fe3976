"""Decides, step by step, which sequence computes which tokens. No phases: every sequence only has a gap to close."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core import slice_results, trees
from headrace.core.admission import Admission
from headrace.core.deadlines import Deadlines
from headrace.core.grants import Grants
from headrace.core.kv_manager import KVManager
from headrace.core.policy import Batching, Order, SchedulerConfig, batch_room, choose_victim, takes_place
from headrace.core.request import Request
from headrace.core.scheduler_counts import SchedulerCounts, SchedulerStats
from headrace.core.step_budget import StepBudget, StepLoad
from headrace.core.types import (
    BlockCopy,
    FinishReason,
    KVGroupSpec,
    Observation,
    Output,
    SeqSlice,
    SliceResult,
    Status,
    StepPlan,
    StepResult,
)
from headrace.core.waiting import ServiceCounter, WaitingQueue


class Scheduler:
    """Holds every unfinished request; `plan` grants work, `commit` applies its results.

    Running requests are served before waiting ones may join, each in the configured order. When blocks run out, a
    sequence after the one that lacks blocks is preempted: its blocks are freed and it waits again, to be recomputed.
    Where another one evicts tokens in this step, it waits a step for their blocks instead.
    The most urgent sequence is never a victim, and alone it always fits (see `limit`). Users are not charged for
    recomputed tokens, so the fair order does not change until some sequence has a new token: all orders make progress.
    Under the fair order a user who waits may take the place of one who is far ahead, see `policy.takes_place`.
    With a `step_budget`, prompts are cut into chunks that it allows while any sequence decodes.
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
        self.config = config
        # Where prompts are computed whole there are no chunks to bound.
        self.step_budget = step_budget if config.chunked_prefill and config.kv_cache else None
        self.kv = KVManager(
            groups,
            prefix_caching=prefix_caching and config.kv_cache,
            cache_scope=cache_scope,
            eviction=config.eviction,
        )
        self.service = ServiceCounter()
        self.waiting = WaitingQueue(config.order, self.service)
        self.deadlines = Deadlines()
        self.running: list[Request] = []
        self._in_order = True  # running requests are sorted in the order in which they are served
        self._counts = SchedulerCounts(config.max_draft)
        self.stats = self._counts.stats
        self._released: list[int] = []
        self._step_id = 0
        self._memory_short = False  # the last admission failed for lack of KV blocks
        self._waits = False  # a sequence waits in this step for blocks that others evict tokens from
        self._grants = Grants(config, self.kv)
        self.admission = Admission(config, self.kv, self._grants, self.running, self.stats)
        self.batch_room = 0  # requests that may still join the batch that runs (static and dynamic batching)

    @property
    def limit(self) -> int | None:
        """Longest total length of a sequence in tokens: the model's, or what the whole pool can hold."""
        bounds = [b for b in (self.config.max_model_len, self.kv.longest_sequence()) if b is not None]
        return min(bounds) if bounds else None

    @property
    def has_work(self) -> bool:
        """True while a request is unfinished or a released id has not been sent to the executor."""
        return bool(self.running or len(self.waiting) or self._released)

    def counts(self) -> SchedulerStats:
        """A copy of what was counted so far."""
        return self._counts.snapshot()

    def add(self, completions: Sequence[Request]) -> None:
        """Queue the completions of one request. They share its prompt, as equal requests do where a cache allows it."""
        first = completions[0]
        across = self.kv.cache is not None
        key = hash((first.salt, tuple(first.tokens))) if across else first.number
        for request in completions:
            request.first, request.prompt_key = first, key
            self.service.arrive(request.user)
            self.deadlines.add(request)
            self.waiting.add(request)

    def end(self, request: Request, reason: FinishReason, now: float) -> None:
        """Finish a request in any state and free what it holds. Ending it again does nothing."""
        if request.status is Status.FINISHED:
            return
        if request.status is Status.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self.kv.free(request)
        self._forget(request)
        request.status = Status.FINISHED
        request.forget_draft()
        request.stats.finished_s = now
        request.stats.num_output = request.num_output
        self.service.leave(request.user)
        self.deadlines.discard(request)

    def expire(self, now: float) -> list[tuple[Request, str]]:
        """End every request whose deadline has passed, and free what it holds; returns each with the reason."""
        expired = self.deadlines.expired(now)
        for request, _ in expired:
            self.end(request, FinishReason.TIMEOUT, now)
        return expired

    # -- plan -----------------------------------------------------------------------------------------------

    def plan(self, now: float) -> StepPlan:
        """Grant up to `max_num_batched_tokens` tokens of work."""
        self.kv.pins.expire(now)
        budget = self.config.max_num_batched_tokens
        copies: list[BlockCopy] = []
        granted: list[tuple[Request, int]] = []
        self._grants.draft_budget = self._left_for_drafts(budget)
        self._grants.tokens_left = budget
        preemptions, self._waits = self.stats.preemptions, False
        self.sort_running()
        if self.config.order is Order.FAIR and self.config.batching is Batching.CONTINUOUS:
            self._make_place()
        prompts = self._left_for_prompts(budget)
        for request in tuple(self.running):
            if request.status is not Status.RUNNING:
                continue  # preempted in this same step
            is_prompt = self.step_budget is not None and not request.decodes
            most = min(budget, prompts) if is_prompt else budget
            count = self._grant_running(request, most, copies, granted)
            if count:
                self.kv.plan_slice(request, count)
                granted.append((request, count))
                budget -= count
                self._grants.tokens_left = budget
                prompts = max(0, prompts - count) if is_prompt else prompts
                self._grants.draft_budget -= max(0, request.num_computed + count - len(request.tokens))
        wait_until = None
        if self.stats.preemptions == preemptions and not self._waits:
            wait_until = self._admit_waiting(min(budget, prompts), copies, granted, now)
        if wait_until is not None and (deadline := self.deadlines.next) is not None:
            wait_until = min(wait_until, deadline)
        granted = self._still_running(granted)
        slices = tuple(self._slice(request, count) for request, count in granted)
        released, self._released = tuple(self._released), []
        if slices:
            self.count_steps(1, sum(count for _, count in granted))
        else:
            self._step_id += 1
        self.stats.block_copies += len(copies)
        return StepPlan(self._step_id, slices, released, tuple(copies), wait_until)

    def sort_running(self) -> None:
        """Put running requests in the order in which they are served."""
        if not self._in_order or self.config.order is Order.FAIR:  # other orders stay as they are once sorted
            self.running.sort(key=self.waiting.sort_key)
            self._in_order = True

    def count_steps(self, steps: int, tokens: int) -> None:
        """Count steps of so many tokens each."""
        self._step_id += steps
        self._counts.steps(steps, tokens)

    def _still_running(self, granted: list[tuple[Request, int]]) -> list[tuple[Request, int]]:
        """Without those that no longer run: their blocks are free, or already belong to another sequence.

        Sequences that were to read what those would have written are removed, too.
        """
        if all(request.status is Status.RUNNING for request, _ in granted):
            return granted
        gone: set[int] = set()
        for request, _ in granted:
            running = request.status is Status.RUNNING
            if running and not self.kv.step.reads_from(request.number, gone):
                continue
            gone.add(request.number)
            self.kv.take_back(request.number)
            if running:
                self._requeue(request)
        return [(request, count) for request, count in granted if request.number not in gone]

    def _make_place(self) -> None:
        """Preempt a sequence of the most served user where a user who waits was served far fewer tokens.

        Else a user with long sequences would hold every place until one of them ends. The waiting request joins in the
        next step, because none joins in a step that preempts.
        """
        waiting = self.waiting.head()
        full = self._memory_short or len(self.running) >= self.config.max_num_seqs
        if waiting is None or not self.running or not full:
            return
        most = self.running[-1].user
        victim = min((r for r in self.running if r.user == most), key=lambda request: request.num_computed)
        if takes_place(self.config, self.service.served(most) - self.service.served(waiting.user), victim):
            self._preempt(victim)
            self._memory_short = False

    def _left_for_prompts(self, budget: int) -> int:
        """Tokens of a step that prompts may take: all, unless a step budget bounds them and some sequence decodes."""
        if self.step_budget is None:
            return budget
        decoding = [request for request in self.running if request.decodes]
        places = min(len(self.waiting), self.config.max_num_seqs - len(self.running))
        prompts = len(self.running) - len(decoding) + places
        if not decoding or not prompts:
            return budget
        load = StepLoad(
            decoding=len(decoding),
            rows=len(decoding) + sum(len(request.draft) for request in decoding),
            keys=sum(len(request.tokens) - request.evicted for request in decoding),
            prompts=prompts,
        )
        return max(1, min(budget, self.step_budget.tokens(load)))

    def _left_for_drafts(self, budget: int) -> int:
        """Tokens of a step that sequences do not need for what they know, be they running or next to join: no draft
        delays another sequence."""
        if not any(request.draft for request in self.running):
            return 0
        needed = sum(len(request.tokens) - request.num_computed for request in self.running)
        head = self.waiting.head()
        may_join = self.config.batching is Batching.CONTINUOUS or self.batch_room
        if (
            head is not None
            and may_join
            and len(self.running) < self.config.max_num_seqs
            and not self._memory_short
        ):
            due = len(head.tokens)
            if self.config.chunked_prefill or needed + due <= budget:
                needed += due
        return max(0, budget - needed)

    def _grant_running(
        self, request: Request, budget: int, copies: list[BlockCopy], granted: list[tuple[Request, int]]
    ) -> int:
        count = self._grants.tokens_due(request, budget)
        while count and not self._grants.grow(request, count, copies):
            known = len(request.tokens) - request.num_computed
            if count > known:  # drafts are cut before a sequence is preempted
                count = known
                continue
            if self._grants.cut_drafts(request, self.running, granted):
                continue
            if any(self.kv.targets(other) for other, _ in granted):
                self._waits = True  # these give blocks back when the step ends
                return 0
            later = self.running[self.running.index(request) + 1 :]
            victim = choose_victim(self.config, later)
            if victim is not None:
                self._preempt(victim)
            elif fits := self.kv.fits(request):
                count = self._grants.whole(request, min(count - 1, fits))
            else:
                self._preempt(request)
                count = 0
        return count

    def _admit_waiting(
        self, budget: int, copies: list[BlockCopy], granted: list[tuple[Request, int]], now: float
    ) -> float | None:
        """Let waiting requests join, most urgent first, until one does not fit; returns when to try again."""
        wait_until = None
        if not self.running and len(self.waiting):
            oldest = min(request.stats.arrival_s for request in self.waiting)
            tokens = sum(len(request.tokens) for request in self.waiting)
            room = batch_room(self.config, len(self.waiting), tokens, oldest, now)
            self.batch_room, wait_until = room.requests, room.wait_until
        continuous = self.config.batching is Batching.CONTINUOUS
        while budget and len(self.running) < self.config.max_num_seqs and (request := self.waiting.head()):
            if not (continuous or self.batch_room) or self.admission.refused_again(request, budget):
                break
            count = self.admission.try_admit(request, budget, copies)
            self._memory_short = not count and self.kv.blocks_short(
                request, len(request.tokens), self.admission.spare_blocks
            )
            if count == 0:
                if not continuous and self.kv.blocks_short(request, len(request.tokens)):
                    self.batch_room = 0  # the batch is as large as memory allows
                break
            self._join(request, now)
            self.kv.plan_slice(request, count)
            granted.append((request, count))
            budget = max(0, budget - count)
            self._grants.tokens_left -= count
            self.batch_room = max(0, self.batch_room - 1)
        return wait_until

    def _join(self, request: Request, now: float) -> None:
        self.waiting.remove(request)
        self.running.append(request)
        self.admission.joined += 1
        self._in_order = False
        request.status = Status.RUNNING
        if request.stats.first_scheduled_s is None:
            request.stats.first_scheduled_s = now

    def _slice(self, request: Request, count: int) -> SeqSlice:
        start, known = request.num_computed, len(request.tokens)
        end = start + count
        num_draft = end - known if end > known else 0
        tokens = tuple(request.tokens[start:end])
        parents: tuple[int, ...] = ()
        if num_draft:
            tokens += request.draft[:num_draft]
            parents = request.draft_parents[:num_draft]
            end = start + request.span(count)
        new = None if request.known else request.describe()
        request.known = True
        if end > request.charged:
            self.service.charge(request.user, end - max(start, request.charged), request.weight)
            if request.charged < request.num_prompt:
                request.stats.num_computed = min(end, request.num_prompt)
            request.charged = end
        return SeqSlice(
            request.number, tokens, start, sample=end >= known and request.params.samples, num_draft=num_draft,
            draft_parents=() if trees.is_chain(parents) else parents, room=request.room,
            tables=self.kv.updates(request), new=new, num_stored=max(0, request.num_stored - start),
            states=self.kv.states(request), observation=self._observation(request, start, end),
            evicted=request.evicted,
        )  # fmt: skip

    def _observation(self, request: Request, start: int, end: int) -> Observation | None:
        if request.eviction is None:
            return None
        rows, fresh = request.eviction.observed(request.num_prompt, start, end)
        return Observation(rows, fresh, self.kv.targets(request)) if rows else None

    def _preempt(self, request: Request) -> None:
        self._requeue(request)
        request.stats.num_preemptions += 1
        self.stats.preemptions += 1

    def _requeue(self, request: Request) -> None:
        """Let a running request wait again, with nothing computed."""
        self.running.remove(request)
        self.kv.free(request)
        self._forget(request)
        request.forget_draft()
        request.status = Status.PREEMPTED
        self.waiting.add(request)

    def _forget(self, request: Request) -> None:
        if request.known:
            self._released.append(request.number)
            request.known = False

    # -- commit ---------------------------------------------------------------------------------------------

    def commit(
        self, plan: StepPlan, result: StepResult, requests: dict[int, Request], now: float
    ) -> list[Output]:
        """Apply a step's results. For requests that ended meanwhile only the KV that their slices wrote counts.

        A slice that failed may have written nothing. The blocks it made findable are removed from the prefix cache, and
        slices that read them in the same step are computed again: a slice reads only from earlier ones.
        """
        self._grants.room = 0 if result.rests else self.config.max_draft
        results = {part.request_id: part for part in result.results}
        failed: set[int] = set()
        outputs = []
        for work in plan.slices:
            number = work.request_id
            request = requests.get(number)
            if request is not None and request.status is not Status.RUNNING:
                request = None
            part = results.get(number)
            if part is None:
                part = SliceResult(number, error="the executor returned no result for this request")
            misread = self.kv.step.reads_from(number, failed)
            error = slice_results.fault(request, work, part)
            if misread or error is not None:
                failed.add(number)
                self.kv.take_back(number)
            if request is None:
                continue
            if misread:
                self._retry(request)
            elif error is not None:
                outputs.append(self._fail(request, error, now))
            elif (output := self._commit_slice(request, work, part, now)) is not None:
                outputs.append(output)
        self.kv.step.clear()
        return outputs

    def _retry(self, request: Request) -> None:
        """Discard the result of a sequence's slice, its own error included. It joined in this step, and will again."""
        self._requeue(request)
        request.stats.num_cached, request.stats.miss = 0, None
        self.stats.retried_slices += 1

    def _fail(self, request: Request, error: str, now: float) -> Output:
        self.end(request, FinishReason.ERROR, now)
        return Output(
            request.key,
            request.index,
            finish_reason=FinishReason.ERROR,
            error=error,
            stats=request.stats.copy(),
        )

    def _commit_slice(self, request: Request, work: SeqSlice, part: SliceResult, now: float) -> Output | None:
        request.num_computed = work.start + len(work.tokens)
        if work.observation is not None and work.observation.targets:
            self.stats.evicted_tokens += self.kv.evict(request)
        rejected = work.num_draft - max(0, len(part.tokens) - 1) if work.num_draft else 0
        if work.num_draft:
            request.num_computed -= rejected
            request.stats.num_drafted += work.num_draft
        emitted, reason, stop_token = slice_results.append_tokens(request, part.tokens)
        if work.num_draft:  # accepted drafts after the end of the output do not count
            accepted = min(work.num_draft - rejected, emitted)
            request.stats.num_accepted += accepted
            self._counts.draft(work.num_draft, accepted)
        if part.done and emitted == len(part.tokens):
            reason = FinishReason.STOP
        if not request.params.samples and request.num_computed >= request.num_prompt:
            reason = FinishReason.LENGTH
        if request.pin_blocks and request.num_computed >= request.pin_blocks * self.kv.block_size:
            request.stats.num_pinned = self.kv.pin(request, request.pin_blocks, now + request.pin_ttl_s)
            request.pin_blocks = 0
        with_stats = reason is not None
        if emitted:
            request.stats.last_token_s = now
            if request.stats.first_token_s is None:
                request.stats.first_token_s = now
                with_stats = True
        if work.num_draft:  # the rest was registered when the slice was planned
            last = min(request.num_computed, len(request.tokens) - bool(emitted))
            self.kv.accept(request, work.start, last, work.num_draft - rejected)
        self.stats.output_tokens += emitted
        prompt_logprobs = (
            slice_results.new_prompt_logprobs(request, work, part) if part.prompt_logprobs else ()
        )
        if reason is not None:
            self.end(request, reason, now)
        else:
            request.forget_draft()
            if part.draft:
                request.draft, request.draft_parents = trees.cut(
                    part.draft,
                    part.draft_parents,
                    slice_results.most_drafts(request),
                    chain=self.kv.has_states,
                )
            if not self.config.kv_cache and emitted:
                self.kv.free(request)  # without a cache every step starts from nothing
        if not (emitted or prompt_logprobs or reason):
            return None
        return Output(
            request.key, request.index, part.tokens[:emitted], part.logprobs[:emitted], prompt_logprobs,
            finish_reason=reason, stop_token=stop_token, stats=request.stats.copy() if with_stats else None,
            pooled=part.pooled,
        )  # fmt: skip
