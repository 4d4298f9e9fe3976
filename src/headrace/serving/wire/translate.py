"""Between the core's types and the messages that carry them. Fields have the same names on both sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from headrace import errors
from headrace.core.engine import EngineStats
from headrace.core.grammar import Grammar
from headrace.core.params import SamplingParams
from headrace.core.prefix_cache import CacheStats
from headrace.core.scheduler import SchedulerStats
from headrace.core.snapshot import BlockMap, Lane, Snapshot
from headrace.core.types import CacheMiss, NewRequest, Output, RequestStats, TokenLogprobs
from headrace.errors import EngineDead, HeadraceError, InvalidParams
from headrace.serving.engine.state import ModelFacts, View
from headrace.serving.wire import messages as wire
from headrace.serving.wire.messages import LaneNow, MapNow

MAX_ENTRIES_PER_MESSAGE = 512
"""Tokens and log-probabilities after which the news of one step goes on in another message, so that the server can
look at other callers between two messages. They take about 8 KB, and one or two milliseconds to turn into an answer."""

_OUTPUT_ENTRIES = 4  # what an output takes beside its entries, in entries
_STATS_ENTRIES = 8


def fields_of(kind: type[wire.Plain] | type[wire.Message], source: object) -> dict[str, Any]:
    """The attributes of `source` that a message of this kind carries."""
    return {name: getattr(source, name) for name in kind.__struct_fields__}


def facts_to_wire(facts: ModelFacts) -> wire.Ready:
    return wire.Ready(**fields_of(wire.Ready, facts))


def facts_from_wire(ready: wire.Ready) -> ModelFacts:
    return ModelFacts(**fields_of(wire.Ready, ready))


def request_to_wire(new: NewRequest) -> wire.Add:
    """Raises InvalidParams where the prompt is too long for a message."""
    if len(new.prompt) > wire.MAX_TOKENS:
        raise InvalidParams(f"the prompt has {len(new.prompt)} tokens, at most {wire.MAX_TOKENS} are allowed")
    grammar = new.params.grammar
    told = None if grammar is None else wire.GrammarSource(grammar.kind, grammar.source)
    params = wire.Params(**fields_of(wire.Params, new.params) | {"grammar": told})
    return wire.Add(**fields_of(wire.Add, new) | {"params": params})


def request_from_wire(add: wire.Add) -> NewRequest:
    """Raises InvalidParams where a sampling parameter is out of its range."""
    told = add.params.grammar
    grammar = None if told is None else Grammar(told.kind, told.source)
    params = SamplingParams(**fields_of(wire.Params, add.params) | {"grammar": grammar})
    return NewRequest(**fields_of(wire.Add, add) | {"params": params})


def outputs_to_wire(outputs: Iterable[Output]) -> Iterator[wire.Outputs]:
    """One message, or several where the news of a step is large."""
    batch: list[wire.News] = []
    entries = 0
    for output in outputs:
        for part in _split(output) if output.prompt_logprobs else (output,):
            entries += _OUTPUT_ENTRIES + _entries(part) + (0 if part.stats is None else _STATS_ENTRIES)
            batch.append(_news(part))
            if entries >= MAX_ENTRIES_PER_MESSAGE or len(batch) == wire.MAX_BATCH:
                yield wire.Outputs(tuple(batch))
                batch, entries = [], 0
    if batch:
        yield wire.Outputs(tuple(batch))


def _split(output: Output) -> Iterator[Output]:
    """Log-probabilities of a prompt in parts that fit a message; all else comes with the last of them."""
    scored = output.prompt_logprobs
    positions = max(1, MAX_ENTRIES_PER_MESSAGE // (1 + max(len(entry.top) for entry in scored)))
    at = 0
    while len(scored) - at > positions:
        yield Output(output.request_id, output.index, prompt_logprobs=scored[at : at + positions])
        at += positions
    yield replace(output, prompt_logprobs=scored[at:])


def outputs_from_wire(outputs: wire.Outputs) -> list[Output]:
    return [_output(news) for news in outputs.news]


def stats_to_wire(number: int, stats: EngineStats) -> wire.Stats:
    cache = None
    if stats.cache is not None:
        held = stats.cache
        cache = wire.CacheCounts(**fields_of(wire.CacheCounts, held) | {"misses": dict(held.misses)})
    counts = wire.SchedulerCounts(**fields_of(wire.SchedulerCounts, stats.scheduler))
    return wire.Stats(
        number, stats.running, stats.waiting, stats.total_blocks, stats.free_blocks, counts, cache
    )


def stats_from_wire(stats: wire.Stats) -> EngineStats:
    cache = None
    if stats.cache is not None:
        held = stats.cache
        cache = CacheStats(**fields_of(wire.CacheCounts, held) | {"misses": Counter(held.misses)})
    counts = SchedulerStats(**fields_of(wire.SchedulerCounts, stats.scheduler))
    return EngineStats(stats.running, stats.waiting, stats.total_blocks, stats.free_blocks, counts, cache)


def failure_to_wire(error: Exception) -> wire.Failed:
    return wire.Failed(_kind(error), _sentence(error))


def refusal_to_wire(request_id: str, error: HeadraceError) -> wire.Refused:
    return wire.Refused(request_id, _kind(error), _sentence(error))


def error_from_wire(message: wire.Failed | wire.Refused) -> HeadraceError:
    """The error with its own class; EngineDead where this version knows no such class."""
    kind = getattr(errors, message.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, HeadraceError)):
        kind = EngineDead
    error: HeadraceError = kind(message.text)
    return error


def _kind(error: Exception) -> str:
    """The nearest class that the tree of errors names."""
    names = (kind.__name__ for kind in type(error).__mro__ if issubclass(kind, HeadraceError))
    return next((name for name in names if hasattr(errors, name)), EngineDead.__name__)


def _sentence(error: Exception) -> str:
    text = str(error) or type(error).__name__
    if not isinstance(error, HeadraceError):
        text = f"{type(error).__name__}: {text}"
    return text[: wire.MAX_TEXT_CHARS].encode("utf-8", "replace").decode()


def _entries(output: Output) -> int:
    return (
        len(output.tokens)
        + len(output.pooled or b"") // 4
        + sum(1 + len(entry.top) for part in (output.logprobs, output.prompt_logprobs) for entry in part)
    )


def _news(output: Output) -> wire.News:
    stats = None
    if output.stats is not None:
        miss = output.stats.miss
        told = None if miss is None else wire.Miss(miss.reason, miss.token, miss.detail)
        stats = wire.Times(**fields_of(wire.Times, output.stats) | {"miss": told})
    return wire.News(
        output.request_id, output.index, output.tokens, _logprobs_to_wire(output.logprobs),
        _logprobs_to_wire(output.prompt_logprobs), output.finish_reason,
        None if output.error is None else output.error[: wire.MAX_TEXT_CHARS], output.stop_token, stats, output.pooled,
    )  # fmt: skip


def _output(news: wire.News) -> Output:
    stats = None
    if news.stats is not None:
        miss = news.stats.miss
        told = None if miss is None else CacheMiss(miss.reason, miss.token, miss.detail)
        stats = RequestStats(**fields_of(wire.Times, news.stats) | {"miss": told})
    return Output(
        news.request_id, news.index, news.tokens, _logprobs_from_wire(news.logprobs),
        _logprobs_from_wire(news.prompt_logprobs), news.finish_reason, news.error, news.stop_token, stats, news.pooled,
    )  # fmt: skip


def _logprobs_to_wire(entries: tuple[TokenLogprobs, ...]) -> tuple[wire.LogprobsAt, ...]:
    if not entries:  # as nearly always
        return ()
    return tuple(wire.LogprobsAt(entry.token, entry.logprob, entry.rank, entry.top) for entry in entries)


def _logprobs_from_wire(entries: tuple[wire.LogprobsAt, ...]) -> tuple[TokenLogprobs, ...]:
    if not entries:
        return ()
    return tuple(TokenLogprobs(entry.token, entry.logprob, entry.rank, entry.top) for entry in entries)


def view_to_wire(number: int, view: View) -> wire.Snapshot:
    now = view.snapshot
    return wire.Snapshot(
        number, now.now, stats_to_wire(number, now.stats), now.max_num_seqs, now.max_num_batched_tokens,
        tuple(LaneNow(**_fields(LaneNow, lane)) for lane in now.lanes),
        tuple(MapNow(**_fields(MapNow, one)) for one in now.maps),
        _ended(view.ended),
    )  # fmt: skip


def view_from_wire(message: wire.Snapshot) -> View:
    now = Snapshot(
        message.now, stats_from_wire(message.stats), message.max_num_seqs, message.max_num_batched_tokens,
        tuple(Lane(**_fields(LaneNow, lane)) for lane in message.lanes),
        tuple(BlockMap(**_fields(MapNow, one)) for one in message.maps),
    )  # fmt: skip
    return View(now, () if message.ended is None else tuple(outputs_from_wire(message.ended)))


def _ended(outputs: Iterable[Output]) -> wire.Outputs | None:
    """They are few and hold no tokens, so one message holds all of them."""
    return next(outputs_to_wire(outputs), None)


def _fields(kind: type[LaneNow] | type[MapNow], source: object) -> dict[str, Any]:
    return {name: getattr(source, name) for name in kind.__struct_fields__}
