"""A hung engine is distinguished from a busy one, and a suspended server does not blame its engine."""

from __future__ import annotations

from headrace.serving.client.supervisor import Backoff
from headrace.serving.engine.watchdog import SLOWER, TOKENS_PER_TIMEOUT, Verdict, Watchdog


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def checks(watchdog: Watchdog, time: Time, seconds: float) -> list[Verdict]:
    """The verdicts of so many seconds without a sign of life, up to the first HUNG."""
    verdicts = []
    for _ in range(round(seconds / watchdog.interval_s)):
        time.now += watchdog.interval_s
        verdicts.append(watchdog.check())
        if verdicts[-1] is Verdict.HUNG:
            break
    return verdicts


def test_an_engine_that_answers_is_never_hung() -> None:
    time = Time()
    watchdog = Watchdog(8.0, time)
    for _ in range(100):
        assert checks(watchdog, time, 1)[0] is Verdict.ASK
        watchdog.answered()


def test_silence_is_noticed() -> None:
    time = Time()
    watchdog = Watchdog(8.0, time)
    verdicts = checks(watchdog, time, 20)
    assert verdicts[0] is Verdict.ASK and verdicts[-1] is Verdict.HUNG
    assert 8 <= len(verdicts) * watchdog.interval_s <= 11
    assert set(verdicts[1:-1]) == {Verdict.WAIT}


def test_outputs_count_as_a_sign_of_life() -> None:
    time = Time()
    watchdog = Watchdog(8.0, time)
    watchdog.check()
    for _ in range(10):
        assert Verdict.HUNG not in checks(watchdog, time, 6)
        watchdog.heard()


def test_a_large_step_may_take_longer_and_the_next_may_not() -> None:
    time = Time()
    watchdog = Watchdog(8.0, time)
    watchdog.check()
    watchdog.step_begun(4 * TOKENS_PER_TIMEOUT)
    assert Verdict.HUNG not in checks(watchdog, time, 31)
    watchdog.heard()
    assert checks(watchdog, time, 20)[-1] is Verdict.HUNG


def test_a_step_of_known_length_gets_a_multiple_of_it_and_not_what_its_size_would_allow() -> None:
    time = Time()
    watchdog = Watchdog(8.0, time)
    watchdog.check()
    watchdog.step_begun(16 * TOKENS_PER_TIMEOUT, 2.0)
    assert Verdict.HUNG not in checks(watchdog, time, 8 + SLOWER * 2)
    assert checks(watchdog, time, 2)[-1] is Verdict.HUNG


def test_a_step_expected_to_be_slow_gets_no_more_than_its_size_allows() -> None:
    time = Time()
    watchdog = Watchdog(8.0, time)
    watchdog.check()
    watchdog.step_begun(4 * TOKENS_PER_TIMEOUT, 1000.0)
    assert Verdict.HUNG not in checks(watchdog, time, 31)
    assert checks(watchdog, time, 4)[-1] is Verdict.HUNG


def test_a_small_step_gets_no_less_than_the_timeout() -> None:
    time = Time()
    watchdog = Watchdog(8.0, time)
    watchdog.check()
    watchdog.step_begun(1)
    assert Verdict.HUNG not in checks(watchdog, time, 8)


def test_a_suspended_server_reads_messages_before_it_judges() -> None:
    time = Time()
    watchdog = Watchdog(8.0, time)
    watchdog.check()
    time.now += 3600
    assert watchdog.check() is Verdict.WAIT
    assert checks(watchdog, time, 20)[-1] is Verdict.HUNG


def test_restart_pauses_grow_and_reset() -> None:
    backoff = Backoff()
    assert [backoff.after(0.0) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert backoff.after(59.0) == 30
    assert backoff.after(60.0) == 1
    assert backoff.after(1.0) == 2
