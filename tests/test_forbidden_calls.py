"""The package holds no way to run what a checkpoint, a template or a request brings."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace
from tests.forbidden_calls import forbidden

PACKAGE = Path(headrace.__file__).parent
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "bundled" not in path.parts)


def test_modules_are_found() -> None:
    assert len(MODULES) > 150


def test_the_package_runs_no_foreign_code() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{fault}"
        for path in MODULES
        for fault in forbidden(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as harmless",
        "import os, marshal",
        "from pickle import loads",
        "from pickle import loads as parse",
        "import multiprocessing\nimport dill",
        "import yaml",
        "eval('1')",
        "run = eval\nrun('1')",
        "exec(text)",
        "compile(text, '', 'exec')",
        "__import__('os')",
        "getattr(__builtins__, 'ev' + 'al')",
        "import builtins\ngetattr(builtins, 'eval')",
        "import builtins\nbuiltins.exec('')",
        "from builtins import eval as parse",
        "import torch\ntorch.load('x')",
        "import torch\nread = torch.load",
        "import torch as t\nt.load('x')",
        "from torch import load",
        "from torch import load as read",
        "import os\nos.system('ls')",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import subprocess\nsubprocess.run('ls', shell=flag)",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "AutoModel.from_pretrained('x', trust_remote_code=True)",
        "import importlib\nimportlib.import_module('pickle')",
        "from importlib import import_module\nimport_module('marshal')",
        "from importlib.util import spec_from_file_location",
        "import runpy\nrunpy.run_path('x')",
        "def late():\n    import pickle",
    ],
)
def test_a_planted_call_is_found(source: str) -> None:
    assert forbidden(source)


@pytest.mark.parametrize(
    "source",
    [
        "import re\nre.compile('a')",
        "import json\njson.load(open('x'))",
        "model.eval()",
        "import torch\ntorch.randn(3)",
        "import subprocess\nsubprocess.run(['ls'], shell=False)",
        "from headrace.text import code",
    ],
)
def test_harmless_code_passes(source: str) -> None:
    assert forbidden(source) == []
