"""A server whose model says what the last user said, with chat templates of real kinds: a test writes the reply."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.server.access.traffic import TrafficOptions
from tests.server.conftest import TALE, TinyServer
from tests.serving.echo_engine import COMMAND, END

TURNS = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}{{ call['function'] | tojson }}{% endfor %}{{ '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% if thinking %}{{ '<think>' }}{% endif %}"
    "{% endif %}"
)
TEMPLATES = {
    # The text by which formats are detected is in each template, where no prompt shows it.
    "hermes": "{# <tool_call> <think> #}{{ '<|begin|>' }}{{ tools | tojson if tools else '' }}" + TURNS,
    "effort": "{{ '<|begin|>' }}{{ reasoning_effort }}/{{ enable_thinking }}" + TURNS,
    "trims": "{{ '<|begin|>' }}"
    + TURNS.replace("message['content'] or ''", "(message['content'] or '') | trim"),
    "mistral": "{% set mark = '[TOOL_CALLS]' %}{{ '<|begin|>' }}{{ tools | tojson if tools else '' }}"
    + TURNS,
    "llama3_json": "{% set mark = '<|python_tag|>' %}{{ '<|begin|>' }}{{ tools | tojson if tools else '' }}"
    + TURNS,
}


def model_folder(folder: Path, kind: str | None = None, special: str | None = None) -> Path:
    """The bundled model with another chat template, weights and all. For the arguments see `echo_server`."""
    shutil.copytree(TALE, folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    if kind is not None:
        config["chat_template"] = TEMPLATES[kind]
        (folder / "chat_template.jinja").unlink()
    path.write_text(json.dumps(config))
    if special is not None:
        for each in (path, folder / "tokenizer.json"):
            each.write_text(each.read_text().replace("<|pad|>", special))
    return folder


def echo_server(
    folder: Path,
    kind: str | None = None,
    special: str | None = None,
    traffic: TrafficOptions | None = None,
    **config: Any,
) -> TinyServer:
    """`kind` of template, None for tale's own. `special` is a marker to make a special token, in place of <|pad|>.
    `config` is that of the tiny engine."""
    return TinyServer(
        command=COMMAND,
        traffic=traffic,
        folder=model_folder(folder, kind, special),
        **{"eos_ids": [END], "step_s": 0.0005, "max_model_len": 2048, "num_blocks": 2048} | config,
    )


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    """With the template of Hermes, and thoughts."""
    server = echo_server(tmp_path_factory.mktemp("echo") / "model", "hermes")
    yield server
    server.close()


def function(name: str, **parameters: Any) -> dict[str, Any]:
    """A tool whose arguments are all required, and no others allowed."""
    schema = {
        "type": "object", "properties": parameters, "required": list(parameters), "additionalProperties": False,
    }  # fmt: skip
    return {
        "type": "function",
        "function": {"name": name, "description": f"Does {name}.", "parameters": schema},
    }
