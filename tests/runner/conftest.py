"""Every sampler in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.runner.samplers import SAMPLERS


@pytest.fixture(scope="module", params=list(SAMPLERS))
def make_sampler(request: pytest.FixtureRequest) -> Callable[[int], Any]:
    """Makes one kind of sampler for a vocabulary size."""
    return SAMPLERS[request.param]
