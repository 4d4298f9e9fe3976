"""The search for the highest rate or the fewest replicas that keep a promise."""

from __future__ import annotations

from headrace.sim.simulate.search import LONGEST_WAIT_S, Promise
from headrace.sim.simulate.tally import Tally


def waited(seconds: float) -> Tally:
    """Ten requests whose first token came after so long."""
    tally = Tally(sent=10, answered=10)
    tally.ttft.add(seconds, 10)
    return tally


def test_a_long_wait_that_was_promised_is_kept() -> None:
    long = 3 * LONGEST_WAIT_S
    assert Promise(ttft=long).broken(waited(long / 2)) is None
    assert "were promised" in (Promise(ttft=long).broken(waited(2 * long)) or "")
    assert "come faster" in (Promise(tpot=1.0).broken(waited(long)) or "")
