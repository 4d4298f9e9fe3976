"""Every sampler in turn, one torch thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.runner.samplers import SAMPLERS


@pytest.fixture(scope="module", params=list(SAMPLERS))
def make_sampler(request: pytest.FixtureRequest) -> Callable[[int], Any]:
    """Makes one kind of sampler for a vocabulary size."""
    return SAMPLERS[request.param]


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
