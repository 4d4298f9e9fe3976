"""Many steps at once, where each only decodes: every running sequence gets one token, and nobody joins, ends or yields.

A real engine has to run each of these steps. A simulation, whose tokens cost nothing, applies what they change:
`steady_steps` says how many steps of this kind come next, and `skip` leaves the engine as that many calls of `begin`
and `finish` would, block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.core.engine import Engine
from headrace.core.kv_manager import KVManager
from headrace.core.policy import Batching, Order
from headrace.core.request import Request
from headrace.core.scheduler import Scheduler
from headrace.core.types import FinishReason, Output

MOST_STEPS = 4096

Tokens = Callable[[int, int, int], Sequence[int]]
"""(number of a sequence, its length in tokens, count) -> the tokens that it samples next."""


def steady_steps(engine: Engine) -> int:
    """How many of the next steps only decode, if no request arrives; the last one may end sequences. 0 where the next
    step is another one, or where its plan depends on more than the running sequences."""
    scheduler = engine.scheduler
    config, kv, running = scheduler.config, scheduler.kv, scheduler.running
    if (
        engine.is_stepping
        or not running
        or scheduler.step_budget is not None  # it observes every step
        or config.order is Order.FAIR
        or config.max_draft
        or config.eviction is not None
        or not config.kv_cache
        or kv.has_states
        or kv.has_windows
        or len(running) > config.max_num_batched_tokens
        or kv.pins
        or len(scheduler.deadlines)
        or _may_join(scheduler)
    ):
        return 0
    scheduler.sort_running()
    most = MOST_STEPS
    for request in running:
        left = _left(request)
        if left < most:
            most = left
        if not _is_steady(kv, request):
            return 0
    return _with_blocks(kv, running, most) if most > 0 else 0


def skip(engine: Engine, tokens: Tokens, ends_s: Sequence[float]) -> list[Output]:
    """Apply `len(ends_s)` steps, at most as many as `steady_steps` has just returned; they end at these times.

    Returns the outputs of the sequences that ended in the last of them, without their tokens. Block tables count as
    sent: this is for executors that keep none.
    """
    scheduler, steps = engine.scheduler, len(ends_s)
    running, end_s = scheduler.running, ends_s[-1]
    _apply_blocks(scheduler.kv, running, tokens, steps)
    charge = scheduler.service.charge
    ending = []
    for request in running:
        request.num_computed = computed = request.num_computed + steps
        request.room = 0
        if computed > request.charged:
            charge(request.user, computed - request.charged)
            request.charged = computed
        request.stats.last_token_s = end_s
        for table in request.tables:
            table.changed_from = len(table.live)
        if _left(request) <= 0:
            ending.append(request)
    scheduler.count_steps(steps, len(running))
    scheduler.stats.output_tokens += steps * len(running)
    return [engine.end(request, FinishReason.LENGTH, end_s) for request in ending]


def _may_join(scheduler: Scheduler) -> bool:
    """Whether a waiting request may join while the running ones decode."""
    config = scheduler.config
    head = scheduler.waiting.head()
    if head is None or len(scheduler.running) >= config.max_num_seqs:
        return False
    if config.batching is not Batching.CONTINUOUS and not scheduler.batch_room:
        return False
    budget = config.max_num_batched_tokens - len(scheduler.running)
    if budget and not scheduler.admission.refused_again(head, budget):
        return True
    # It may join once the prefix cache knows more of its prompt: a block that follows one of those found already.
    found = scheduler.admission.found_keys()
    return any(
        (request.keys.extend(request.tokens) or [request.keys.root])[-1] in found
        for request in scheduler.running
    )


def _left(request: Request) -> int:
    """Tokens until the sequence ends for its length."""
    length = len(request.tokens)
    left, most = request.limit - length, request.params.max_tokens
    if most is None or left <= most + request.num_prompt - length:
        return left
    return most + request.num_prompt - length


def _is_steady(kv: KVManager, request: Request) -> bool:
    """Whether its next slice is one token of its own output, in a block of its own or at the start of a new one."""
    computed = request.num_computed
    if (
        len(request.tokens) - computed != 1
        or computed < request.num_prompt
        or request.num_stored > computed
        or request.draft
        or request.pin_blocks
        or request.weight != 1.0
        or request.stop_ids
    ):
        return False
    index, rest = divmod(computed, kv.block_size)
    if not rest:
        return len(request.tables[0].live) == index
    if index > (request.num_prompt - 1) // kv.block_size:
        return True  # only prompts are shared in blocks that are not full
    return kv.has_room(request, computed + 1, index + 1)


def _with_blocks(kv: KVManager, running: Sequence[Request], most: int) -> int:
    """For how many steps, up to `most`, there are blocks."""
    size, free = kv.block_size, min(pool.num_free for pool in kv.pools)
    if (most // size + 1) * len(running) <= free:
        return most
    cycles, free = divmod(free, len(running))  # in `size` steps each sequence starts a block
    starts = [0] * size
    for request in running:
        starts[-request.num_computed % size] += 1
    steps = cycles * size
    for starting in starts:
        if starting > free:
            break
        free -= starting
        steps += 1
    return min(most, steps)


def _apply_blocks(kv: KVManager, running: Sequence[Request], tokens: Tokens, steps: int) -> None:
    """Sample, and take and register blocks as `steps` plans would, in their order."""
    size = kv.block_size
    events: dict[
        int, list[Request]
    ] = {}  # step modulo the block size -> sequences that start or fill a block
    for request in running:
        request.tokens += tokens(request.number, len(request.tokens), steps)
        first = -request.num_computed % size
        last = (first - 1) % size
        if first < steps:
            events.setdefault(first, []).append(request)
        if last < steps and last != first and kv.cache is not None:
            events.setdefault(last, []).append(request)
    if not events:
        return
    offsets = sorted(events)
    for base in range(0, steps, size):
        for offset in offsets:
            step = base + offset
            if step >= steps:
                return
            for request in events[offset]:
                position = request.num_computed + step
                if position % size == 0:
                    kv.take_blocks(request)
                if (position + 1) % size == 0:
                    kv.register(request, position, position + 1)
