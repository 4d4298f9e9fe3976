"""Pinned prefixes: evicted last, for their time, and never in the way of work."""

from __future__ import annotations

import pytest

from headrace.core.block_pool import BlockPool
from headrace.core.pins import Pins
from headrace.core.prefix_cache import CacheStats, MissReason
from headrace.core.types import MAX_CACHE_PIN_TTL_S, NewRequest, Output, Pooling
from headrace.errors import InvalidParams
from tests.core.build import driver, full, new, sinks, window
from tests.core.driver import Driver

SYSTEM = tuple(range(12))


def run(engine: Driver, name: str, prompt: int | tuple[int, ...], **fields: object) -> Output:
    """One request to its end; its last output."""
    last: list[Output] = []
    take = engine._take

    def watch(output: Output) -> None:
        take(output)
        last.append(output)

    engine._take = watch  # type: ignore[method-assign]
    engine.add(new(name, prompt, **{"max_tokens": 1, **fields}))
    engine.drain()
    engine._take = take  # type: ignore[method-assign]
    return last[-1]


def stats(engine: Driver) -> CacheStats:
    found = engine.engine.stats().cache
    assert found is not None
    return found


def cached(engine: Driver, name: str) -> int:
    output = run(engine, name, (*SYSTEM, 40))
    assert output.stats is not None
    return output.stats.num_cached


def pinned(output: Output) -> int:
    assert output.stats is not None
    return output.stats.num_pinned


@pytest.mark.parametrize(
    "groups", [(full(12),), (full(12), window(6, 12)), (sinks(2, 6, 12),), (window(6, 12),), (window(2, 12),)]
)
@pytest.mark.parametrize("pin", [None, (12, 5.0)])
def test_pinned_blocks_are_evicted_last(groups, pin: tuple[int, float] | None) -> None:  # type: ignore[no-untyped-def]
    engine = driver(*groups)
    first = run(engine, "a", (*SYSTEM, 30), pin=pin)
    assert pinned(first) == (12 if pin else 0)
    for turn in range(8):  # each takes three blocks of twelve
        run(engine, f"other {turn}", 11)
    assert cached(engine, "b") == (12 if pin else 0)
    assert stats(engine).pins_broken == 0 and stats(engine).evictions >= 8


def test_a_pin_ends_with_its_time() -> None:
    engine = driver(full(12))
    run(engine, "a", (*SYSTEM, 30), pin=(12, 5.0))
    assert stats(engine).pins == 3
    engine.advance(4.0)
    assert cached(engine, "b") == 12
    engine.advance(1.0)
    for turn in range(8):
        run(engine, f"other {turn}", 11)
    assert cached(engine, "c") == 0 and stats(engine).pins_broken == 0


def test_a_request_that_names_the_prefix_again_prolongs_its_pin_and_none_shortens_it() -> None:
    engine = driver(full(12))
    run(engine, "a", (*SYSTEM, 30), pin=(12, 5.0))
    engine.advance(4.0)
    run(engine, "b", (*SYSTEM, 31), pin=(12, 5.0))
    run(engine, "c", (*SYSTEM, 32), pin=(12, 0.5))
    engine.advance(4.0)
    for turn in range(8):
        run(engine, f"other {turn}", 11)
    assert cached(engine, "d") == 12 and stats(engine).pins == 3


def test_pins_are_broken_for_lack_of_blocks_and_counted() -> None:
    engine = driver(full(8))
    run(engine, "a", (*SYSTEM, 30), pin=(12, 5.0))
    run(engine, "large", 28)  # needs seven blocks of eight
    assert stats(engine).pins_broken == 2
    output = run(engine, "b", (*SYSTEM, 40))
    assert output.stats is not None and output.stats.miss is not None
    assert output.stats.num_cached == 4  # the tail went first
    assert output.stats.miss.reason == MissReason.EVICTED.value
    assert output.stats.miss.detail == "block 1 was reused for other tokens, although it was pinned"


def test_pins_never_delay_an_admission() -> None:
    plain, pinning = (driver(full(10)) for _ in range(2))
    for engine, pin in ((plain, None), (pinning, (40, 100.0))):
        for turn in range(6):
            engine.add(new(f"r{turn}", 14, max_tokens=9, pin=pin))
        engine.drain()
    assert plain.events["steps"] == pinning.events["steps"]
    assert plain.events["preemptions"] == pinning.events["preemptions"]
    assert pinning.events["broken pins"] > 0


def test_only_full_blocks_of_the_prompt_are_pinned() -> None:
    engine = driver(full(40))
    assert pinned(run(engine, "a", 11, pin=(1000, 5.0), max_tokens=9)) == 8
    assert pinned(run(engine, "b", 11, pin=(7, 5.0))) == 4
    assert pinned(run(engine, "c", 11, pin=(3, 5.0))) == 0
    assert stats(engine).pins == 3


def test_a_prompt_in_chunks_is_pinned_when_its_part_is_computed() -> None:
    engine = driver(full(24), max_num_batched_tokens=5)
    engine.add(new("a", 30, pin=(8, 5.0), max_tokens=2))
    made = []
    for _ in range(3):
        engine.step()
        made.append(stats(engine).pins)
    assert made == [0, 2, 2]
    engine.drain()


def test_a_failed_or_aborted_prompt_pins_nothing() -> None:
    engine = driver(full(24), max_num_batched_tokens=5)
    track = engine.add(new("a", 12, pin=(12, 5.0)))[0]
    engine.step()
    engine.step()
    engine.fail(track.number)
    engine.step()
    engine.add(new("b", 12, pin=(12, 5.0)))
    engine.step()
    engine.abort("b")
    engine.drain()
    assert stats(engine).pins == 0


def test_without_a_prefix_cache_nothing_is_pinned() -> None:
    engine = driver(caching=False)
    assert pinned(run(engine, "a", 12, pin=(12, 5.0))) == 0


def test_half_of_a_pool_can_be_pinned_and_the_pin_that_ends_first_is_broken() -> None:
    pool = BlockPool(8)
    pins = Pins([pool])
    for block, until in enumerate((9.0, 4.0, 7.0, 5.0)):
        pins.add((0, block), until)
    pins.add((0, 1), 8.0)  # prolonged
    pins.add((0, 4), 6.0)
    assert [pins.until((0, block)) for block in range(5)] == [9.0, 8.0, 7.0, None, 6.0]
    pins.add((0, 5), 1.0)  # its own
    assert pins.until((0, 5)) is None
    assert (pins.made, pins.broken, pool.num_pinned) == (6, 2, 4)
    pins.expire(7.5)
    assert [pins.until((0, block)) for block in range(5)] == [9.0, 8.0, None, None, None]
    assert pins.broken == 2 and pool.num_pinned == 2


def test_a_prompt_over_half_of_the_pool_pins_its_beginning() -> None:
    engine = driver(full(12))
    assert (
        pinned(run(engine, "a", (*SYSTEM, *range(20, 37)), pin=(1000, 5.0))) == 0
    )  # 28 tokens: seven blocks
    assert (stats(engine).pins, stats(engine).pins_broken) == (7, 1)
    for turn in range(8):
        run(engine, f"other {turn}", 11)
    assert cached(engine, "b") == 12


def test_entries_of_pins_do_not_pile_up() -> None:
    pool = BlockPool(64)
    pins = Pins([pool])
    for turn in range(5_000):
        cell = (0, turn % 64)
        pins.add(cell, 1000.0 + turn)
        pins.add(cell, 2000.0 + turn)
        if turn % 2:
            pins.lose(cell)
    assert len(pins._heaps[0]) <= 4 * 32 + 65


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cache_pin_tokens": 5}, "come together"),
        ({"cache_pin_ttl_s": 5.0}, "come together"),
        ({"cache_pin_tokens": -1, "cache_pin_ttl_s": 5.0}, "cache_pin_tokens must be"),
        ({"cache_pin_tokens": True, "cache_pin_ttl_s": 5.0}, "cache_pin_tokens must be"),
        ({"cache_pin_tokens": 2**40, "cache_pin_ttl_s": 5.0}, "cache_pin_tokens must be"),
        ({"cache_pin_tokens": 5, "cache_pin_ttl_s": 0.0}, "cache_pin_ttl_s must be"),
        ({"cache_pin_tokens": 5, "cache_pin_ttl_s": float("nan")}, "cache_pin_ttl_s must be"),
        ({"cache_pin_tokens": 5, "cache_pin_ttl_s": MAX_CACHE_PIN_TTL_S + 1}, "cache_pin_ttl_s must be"),
        ({"cache_pin_tokens": 5, "cache_pin_ttl_s": "5"}, "cache_pin_ttl_s must be"),
    ],
)
def test_pins_are_validated(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidParams, match=message):
        NewRequest("a", (1,), **fields)  # type: ignore[arg-type]


def test_an_embedding_may_pin_its_prompt() -> None:
    engine = driver(full(12))
    request = new("a", SYSTEM, max_tokens=0, pin=(12, 5.0))
    engine.add(
        NewRequest(
            **{field: getattr(request, field) for field in request.__slots__} | {"pooling": Pooling.LAST}
        )
    )
    engine.drain()
    assert stats(engine).pins == 3
