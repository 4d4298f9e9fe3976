"""What every test may use: skips by instruction set, few threads, small models on disk."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping

import pytest
import torch
from hypothesis import HealthCheck, settings

from headrace.ops.cpu_features import FLAGS, detect
from tests import needs
from tests.alone import pytest_runtest_protocol
from tests.places import TALE

__all__ = ["pytest_runtest_protocol"]

_SIZES = {
    "vocab_size": 2048, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "initializer_range": 0.2,  # wide, so that the best token leads by far more than rounding
}  # fmt: skip


settings.register_profile(
    "headrace",
    deadline=None,  # a busy machine takes longer
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("headrace")


def pytest_configure() -> None:
    needs.required()  # a name that is unknown ends the run here


def pytest_report_header() -> str:
    return f"required of this machine: {', '.join(sorted(needs.required())) or 'nothing'}"


def pytest_runtest_setup(item: pytest.Item) -> None:
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
def _few_threads() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Folders of random models with the bundled tokenizer, by name: one with a window, one with both kinds of layer."""
    import transformers

    configs = {
        "mistral": transformers.MistralConfig(**_SIZES, sliding_window=24),
        "qwen2-hybrid": transformers.Qwen2Config(
            **_SIZES, use_sliding_window=True, sliding_window=24, max_window_layers=2
        ),
    }
    folders = {}
    for name, config in configs.items():
        folder = tmp_path_factory.mktemp(name)
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(TALE / file, folder)
        folders[name] = str(folder)
    return folders
