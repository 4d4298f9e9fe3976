"""What tokens cost, in money and energy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import ConfigError
from headrace.plan.hardware import Hardware
from headrace.plan.hardware_table import find_hardware
from headrace.sim.planner.speed import Point, Traffic

HOUR_S, DAY_S, MILLION = 3600.0, 86_400.0, 1_000_000
LEAST_PRICE, MOST_PRICE = 1e-6, 1e6
_MOST_NAMED = 8
"""Machines that an error lists."""


@dataclass(frozen=True, slots=True)
class Bill:
    """Of machines of one kind that are busy all the time. Money is in the unit of the price, None without a price.

    output, input: of a million tokens; input is what computing prompts takes, without the part that prefix hits save.
    joules: of one output token with its share of the prompt, at the devices' design power, without hosts and cooling.
    """

    output: float | None
    input: float | None
    tokens_per_unit: float | None
    joules: float | None


def bill(point: Point, traffic: Traffic, copies: int, price: float | None, watts: float | None) -> Bill:
    """copies: of the model on one machine, which costs `price` an hour and draws `watts`.

    A second of a machine is shared between prompts and answers by the time that each takes: output tokens are billed
    for decoding alone.
    """
    tokens = point.output_per_s * copies
    prompts = point.requests_per_s * traffic.prompt * copies
    joules = None if watts is None else watts / tokens
    if price is None:
        return Bill(None, None, None, joules)
    second = price / HOUR_S
    return Bill(
        MILLION * second * (1 - point.prefill_share) / tokens,
        MILLION * second * point.prefill_share / prompts,
        tokens / second if second else None,
        joules,
    )


def read_prices(text: str | None, machines: tuple[Hardware, ...]) -> Mapping[str, float]:
    """Prices an hour by label of machine, from "2.5" for all of them or "h100=2.5,4xa10g=3".

    A price of a device holds for machines with several of them, that many times, unless they have a price of their own.
    Raises ConfigError for anything else.
    """
    if text is None:
        return {}
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 1 and "=" not in text:
        price = _price(text)
        if len({machine.label for machine in machines}) > 1:
            raise ConfigError(
                "--price-per-hour has one price for several machines; name each: --price-per-hour "
                f"{machines[0].label}={text.strip()},{machines[1].label}=..."
            )
        return {machine.label: price for machine in machines}
    given: dict[str, float] = {}
    for part in parts:
        name, _, number = part.partition("=")
        label = find_hardware(name).label
        if label in given:
            raise ConfigError(f"--price-per-hour has two prices for {label}: give one of them")
        if not any(label in (machine.label, machine.name) for machine in machines):
            asked = ", ".join(machine.label for machine in machines[:_MOST_NAMED])
            raise ConfigError(
                f"--price-per-hour has a price for {label}, which is none of the machines asked for: {asked}"
            )
        given[label] = _price(number)
    return {
        machine.label: given.get(machine.label, given.get(machine.name, 0.0) * machine.count)
        for machine in machines
        if machine.label in given or machine.name in given
    }


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not LEAST_PRICE <= price <= MOST_PRICE:  # also refuses NaN
        raise ConfigError(
            f"--price-per-hour takes a number above 0, or HARDWARE=PRICE pairs such as h100=2.5,4xa10g=3; "
            f"got {text[:40]!r}"
        )
    return price
