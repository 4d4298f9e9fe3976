"""A trial of a model's chat template, in a process of its own with limits of time and memory.

The caps of `sandbox` hold only where Jinja has a hook. The operating system's limits hold everywhere, so a template
compiles and renders a few conversations under them before a server or an application uses it.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from functools import lru_cache
from typing import Any

from headrace.errors import RequestError, TokenizerError
from headrace.text.templates.chat import ChatTemplate
from headrace.text.templates.sandbox import TemplateLimitExceeded

CPU_S = 4
"""Processor time of the trial: starting, compiling, and all conversations."""
MEMORY_BYTES = 2**30
"""Address space of its process."""
_PATIENCE_S = 120.0
"""Time by the clock, on a machine that does other things too."""

_REFUSED = 3
"""Exit status of a trial that says on its standard output why the template is refused."""


@lru_cache(maxsize=64)
def refusal(source: str, variables: tuple[tuple[str, str], ...] = ()) -> str | None:
    """Why a template that sees `variables` is refused after rendering `CONVERSATIONS`; None where it is not.

    A template is refused that cannot be compiled, or that needs more time or memory than any published one. Rejecting
    conversations, or failing on them, is no reason. Raises TokenizerError where no process can be started.
    """
    command = [sys.executable, "-P", "-m", "headrace.text.templates.trial"]
    job = json.dumps([source, dict(variables)])
    try:
        trial = subprocess.run(
            command, input=job, capture_output=True, encoding="ascii", timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TokenizerError(f"the chat template could not be tried: {error}") from error
    if trial.returncode == _REFUSED:
        return str(json.loads(trial.stdout))
    if trial.returncode == -signal.SIGXCPU:
        return f"the chat template was refused: its trial took more than {CPU_S} s of processor time."
    if trial.returncode:
        return f"the chat template was refused: its trial ended with status {trial.returncode}."
    return None


def _talk(*contents: str) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    return [{"role": roles[index % 2], "content": content} for index, content in enumerate(contents)]


_SYSTEM = {"role": "system", "content": "Be brief."}
_TOOL = {
    "type": "function",
    "function": {
        "name": "speed",
        "description": "Speed of a wheel.",
        "parameters": {"type": "object", "properties": {"unit": {"type": "string"}}, "required": ["unit"]},
    },
}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "speed", "arguments": {"unit": "rpm"}}}
_WITH_CALL = [
    _SYSTEM,
    *_talk("How fast?"),
    {"role": "assistant", "content": "", "reasoning_content": "Measure.", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call_1", "name": "speed", "content": '{"speed": 7}'},
]

CONVERSATIONS: tuple[tuple[list[dict[str, Any]], list[dict[str, Any]] | None], ...] = (
    (_talk("Hello"), None),
    ([_SYSTEM, *_talk("Hello", "Hi.", "How are you?")], None),
    (_talk("Hello"), [_TOOL]),
    (_WITH_CALL, [_TOOL]),
    ([_SYSTEM, *_talk(*["word " * 200] * 63)], None),
)
"""Messages and tools."""


def _limit_this_process() -> None:
    for kind, most in (
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _render_all(template: ChatTemplate) -> None:
    for messages, tools in CONVERSATIONS:
        try:
            template.render(messages, tools=tools)
        except RequestError as error:
            if isinstance(error.__cause__, (MemoryError, TemplateLimitExceeded)):
                raise TokenizerError(f"the chat template was refused in a trial: {error}") from error


def main() -> None:
    """Try the template that standard input holds; the exit status says whether it is refused."""
    _limit_this_process()
    source, variables = json.load(sys.stdin)
    try:
        _render_all(ChatTemplate(source, variables))
    except TokenizerError as error:
        print(json.dumps(str(error)))
        sys.exit(_REFUSED)


if __name__ == "__main__":
    main()
