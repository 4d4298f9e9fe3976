"""A progress bar on standard error, silent where that is not a terminal."""

from __future__ import annotations

import sys
from types import TracebackType

from tqdm import tqdm


class ProgressBar:
    """Counts runs; call it with a description of the next one. It is silent where standard error is not a terminal."""

    def __init__(self, runs: int | None) -> None:
        self._bar: tqdm[object] = tqdm(total=runs, unit="run", file=sys.stderr, leave=False, disable=None)
        self._begun = False

    def __call__(self, what: str) -> None:
        if self._begun:
            self._bar.update()
        self._begun = True
        self._bar.set_description(what)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
