from __future__ import annotations

from pathlib import Path

import pytest

from headrace.text.tokenizer import Tokenizer

TALE = Path(__file__).parents[2] / "src" / "headrace" / "bundled" / "tale"


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(TALE)
