"""What every test may use."""

from __future__ import annotations

import pytest

from headrace.ops.cpu_features import FLAGS, detect


def pytest_runtest_setup(item: pytest.Item) -> None:
    wanted = {flag for mark in item.iter_markers("needs_isa") for flag in mark.args}
    if unknown := wanted - FLAGS:
        pytest.fail(f"needs_isa names unknown flags: {', '.join(sorted(unknown))}")
    if missing := wanted - detect().flags:
        pytest.skip(f"this CPU lacks {', '.join(sorted(missing))}")
