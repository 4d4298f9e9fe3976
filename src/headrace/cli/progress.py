"""The progress bar of commands that take long."""

from __future__ import annotations

import sys


class ProgressBar:
    """One on a terminal, nothing elsewhere. Called with the units done and the units in all. scaled: large numbers are
    shown as 1.2k or 3.4M."""

    def __init__(self, title: str, unit: str, *, scaled: bool = False) -> None:
        self._title, self._unit, self._scaled = title, unit, scaled

    def __enter__(self) -> ProgressBar:
        from tqdm import tqdm

        self._bar = tqdm(
            desc=self._title,
            unit=self._unit,
            unit_scale=self._scaled,
            disable=None,
            leave=False,
            file=sys.stderr,
        )
        return self

    def __call__(self, done: int, total: int) -> None:
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def __exit__(self, *_: object) -> None:
        self._bar.close()
