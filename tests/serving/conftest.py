from __future__ import annotations

import pytest

from headrace.text.tokenizer import Tokenizer
from tests.places import TALE


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(TALE)
