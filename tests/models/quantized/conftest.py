"""The decoder of the torch path, from the conformance tests."""

from tests.conformance.conftest import open_decoder, paged_run

__all__ = ["open_decoder", "paged_run"]
