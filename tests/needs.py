"""What tests need beyond the Python code of the tree. A test without it is skipped, and the summary gives the reason.

Where HEADRACE_REQUIRE names a need, its lack is a failure instead: HEADRACE_REQUIRE=native,isa,packages,browser.
"""

from __future__ import annotations

import functools
import importlib
import os
from types import ModuleType
from typing import Any, NoReturn

import pytest

from headrace.ops.cpu.support import INSTRUCTION_SETS
from headrace.ops.cpu_features import CpuFeatures, detect

NEEDS = {
    "native": "the C++ kernels",
    "isa": "every instruction set of this CPU among the C++ kernels",
    "packages": "the Python packages of the extras server and test",
    "browser": "Chromium",
    "npm": "node, npm and their package index",
    "index": "Python's package index",
    "llamacpp": "llama-cpp-python, whose ids and logits of GGUF files are compared",
}

_AVX512 = {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
_FLAGS = {
    "portable": set[str](),
    "avx2": {"avx2", "fma", "f16c"},
    "avx512_vnni": _AVX512,
    "avx512": _AVX512 | {"avx512_bf16"},
    "amx": _AVX512 | {"avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"},
}  # as in csrc/kernels.cpp


def required() -> frozenset[str]:
    """The needs that HEADRACE_REQUIRE names."""
    names = frozenset(os.environ.get("HEADRACE_REQUIRE", "").replace(",", " ").split())
    if unknown := names - NEEDS.keys():
        raise pytest.UsageError(
            f"HEADRACE_REQUIRE names {', '.join(sorted(unknown))}; it may name {', '.join(NEEDS)}"
        )
    return names


def lacking(need: str, why: str) -> NoReturn:
    """Skip the test, or the module that is being imported; fail where the need is required."""
    if need in required():
        pytest.fail(f"{why}; HEADRACE_REQUIRE names {need}: {NEEDS[need]}", pytrace=False)
    pytest.skip(f"{why} [{need}]", allow_module_level=True)


def native() -> Any:
    """headrace._native."""
    if not detect().native:
        lacking("native", "native kernels not built")
    return importlib.import_module("headrace._native")


def package(name: str) -> ModuleType:
    """A module of a package that an extra brings."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        lacking("packages", f"{name} cannot be imported: {error}")


def llama_cpp() -> Any:
    """The module of llama-cpp-python, which no extra brings: it takes minutes to build."""
    try:
        return importlib.import_module("llama_cpp")
    except ImportError as error:
        lacking("llamacpp", f"llama_cpp cannot be imported: {error}")


class _Lazy:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks at every name of a module that it collects
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


@functools.cache
def lazily(name: str) -> Any:
    """A large package, imported when a test uses it: every worker collects all tests and runs a part of them."""
    return _Lazy(name)


def unbuilt_sets(cpu: CpuFeatures) -> list[str]:
    """Instruction sets that the CPU could run, and the build leaves out."""
    return [name for name in INSTRUCTION_SETS if _FLAGS[name] <= cpu.flags and name not in cpu.kernels]
