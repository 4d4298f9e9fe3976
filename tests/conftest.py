"""What every test may use: skips by instruction set, few threads, small models on disk."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import signal
import ssl
import sys
from collections.abc import Generator, Iterator, Mapping
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

from headrace.ops.cpu_features import FLAGS, detect
from headrace.ops.native_sources import OTHER_SOURCES, built_from_other_sources
from tests import needs
from tests.alone import pytest_runtest_protocol
from tests.budget import Spent
from tests.places import TALE

__all__ = ["pytest_runtest_protocol"]

settings.register_profile(
    "headrace",
    deadline=None,  # a busy machine takes longer
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("headrace")


# Read when numpy and torch are imported, here and in every process that a test starts. Threads for products of matrices
# cost a start 35 ms each, and take cores from the other workers.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"


def pytest_configure(config: pytest.Config) -> None:
    needs.required()  # a name that is unknown ends the run here
    if config.getoption("durations") is not None and config.getoption("markexpr") == "not long":
        config.pluginmanager.register(Spent())


def pytest_report_header() -> list[str]:
    required = f"required of this machine: {', '.join(sorted(needs.required())) or 'nothing'}"
    return [required, *([OTHER_SOURCES] if built_from_other_sources() else [])]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected lives as long as the run: the garbage collector need not look at it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@functools.cache
def _compares_with_transformers(module: ModuleType) -> bool:
    """By what its tests import: the package itself, or a class or function of a helper that uses it."""
    homes = {getattr(value, "__module__", None) for value in vars(module).values()}
    helpers = [sys.modules[home] for home in homes if home in sys.modules and home.startswith("tests.")]
    return any(
        value is needs.lazily("transformers") for one in (module, *helpers) for value in vars(one).values()
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that load transformers come first, so that one worker runs most of them: the import takes three seconds."""
    items.sort(key=lambda item: not _compares_with_transformers(item.module))  # type: ignore[attr-defined]


def pytest_runtest_setup(item: pytest.Item) -> None:
    # Threads of torch wait for one another without sleeping: beside other workers a small product takes them ten times
    # as long as one thread. An engine on torch takes as many as there are cores, and leaves them so.
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    expected = {flag for mark in item.iter_markers("needs_isa") for flag in mark.args}
    if unknown := expected - FLAGS:
        pytest.fail(f"needs_isa names unknown flags: {', '.join(sorted(unknown))}")
    if missing := expected - detect().flags:
        pytest.skip(f"this CPU lacks {', '.join(sorted(missing))}")


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """A shell starts its background jobs with SIGINT ignored, and Python then leaves it so."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _one_tls_context() -> Iterator[None]:
    """Every client of httpx loads all certificates again, for 20 ms; no server under test speaks TLS."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Folders of random models with the bundled tokenizer, by name: one with a window, one with both kinds of layer."""
    from tests import (
        tiny_checkpoint,  # imports numpy, which xdist's own process and many narrow runs do without
    )

    folders = {}
    for name, config in (tiny_checkpoint.CONFIGS | tiny_checkpoint.RECURRENT).items():
        folder = tmp_path_factory.mktemp(name)
        tiny_checkpoint.write(folder, config)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(TALE / file, folder)
        folders[name] = str(folder)
    return folders
