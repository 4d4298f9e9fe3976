"""What makes one kind of `headrace bench`: flags, checks, and a benchmark that is ready to run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.cli.engine_flags import engine_config
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.model.latency import Progress
    from headrace.bench.model.subject import Subject
    from headrace.bench.native.roofline import Roofline
    from headrace.bench.report import Report, Row

Flags = argparse.ArgumentParser
NO_ROOFLINE = "no roofline: the native kernels that measure it are missing"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A benchmark ready to run. `rows` measures while it is iterated; `runs` is how often it will call Progress.

    head: lines for people above the table; notes: lines below it, which the JSON keeps as well.
    """

    rows: Callable[[Progress], Iterator[Row]]
    runs: int | None
    config: Mapping[str, Any]
    roofline: Roofline | None = None
    head: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Kind:
    """One subcommand. `options` are the arguments that the JSON keeps; `columns` the metrics of the table, and
    `more_columns` those of a second one, where one would be too wide."""

    summary: str
    description: str
    examples: Sequence[str]
    add_flags: Callable[[Flags], None]
    prepare: Callable[[argparse.Namespace], Prepared]
    columns: Sequence[str] | None = None
    more_columns: Sequence[str] = ()
    options: Sequence[str] = ()
    least: Mapping[str, int] = field(default_factory=dict)
    """The smallest value of an argument, or of each of its values; 1 where it is not listed."""
    ranges: Sequence[str] = ()
    """Arguments that are a low and a high value."""
    repeats: int = 3
    takes_repeats: bool = True
    takes_model: bool = True
    takes_plot: bool = True
    ahead: Callable[[argparse.Namespace], int | None] | None = None
    """Checks what no other kind has; an exit status where there is nothing to measure."""
    finish: Callable[[argparse.Namespace, Report], None] | None = None
    """Writes what the kind makes besides the JSON."""
    tables: Callable[[Report], str] | None = None
    """The report as text, where one table of all rows would not do."""

    @property
    def kept(self) -> tuple[str, ...]:
        """Arguments that the JSON keeps."""
        return (*self.options, *(("repeats",) if self.takes_repeats else ()))

    def check(self, args: argparse.Namespace) -> None:
        """Raises ConfigError for a number that is out of range."""
        for name in self.kept:
            value = getattr(args, name)
            numbers = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int)]
            low = self.least.get(name, 1)
            if numbers and not isinstance(value, bool) and min(numbers) < low:
                raise ConfigError(f"{_flag(name)} must be at least {low}, got {min(numbers)}")
        for name in self.ranges:
            low, high = getattr(args, name) or (0, 0)
            if low > high:
                raise ConfigError(f"{_flag(name)} takes the lower length first, got {low} {high}")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def prepare_subject(
    args: argparse.Namespace,
    rows: Callable[[Subject, Progress], Iterator[Row]],
    runs: int,
    *,
    roofline: bool = True,
) -> Prepared:
    """Load the model that the arguments name and measure its limits."""
    from headrace.bench.model.subject import load_subject

    subject = load_subject(engine_config(args), roofline=roofline)
    limits = subject.roofline
    return Prepared(
        rows=lambda progress: rows(subject, progress),
        runs=runs,
        config=subject.config(),
        roofline=limits,
        head=[subject.describe(), *([] if limits is None else [limits.describe()])],
        notes=[NO_ROOFLINE] if roofline and limits is None else [],
    )
