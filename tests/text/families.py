"""Chat templates of the families, written for tests: short ones in the formats that the models' own templates have."""

from __future__ import annotations

from dataclasses import dataclass, field

_BASE = (
    "{%- if tools %}[SYSTEM][TOOLS][END]{% endif %}{% for m in messages %}{% if m.role == 'assistant' %}[ASSISTANT]"
    "{% if m.reasoning_content %}[THOUGHT]{% endif %}[SAID]{% if m.tool_calls %}[CALLS]{% endif %}[END]"
    "{% elif m.role == 'tool' %}[RESULT]{% else %}[TURN]{{ m.content }}[END]{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[ASSISTANT][OPENING]{% endif %}"
)
_JSON = "{{ {'name': c.function.name, 'KEY': c.function.arguments} | tojson }}"
_ALL = "{% for c in m.tool_calls %}"
_ITEMS = "{% for key, value in c.function.arguments.items() %}"
_COMMA = "{% if not loop.last %}, {% endif %}"
_PYTHON = f"{{{{ c.function.name }}}}({_ITEMS}{{{{ key }}}}={{{{ value | tojson }}}}{_COMMA}{{% endfor %}})"
_THINK = "<think>\n{{ m.reasoning_content }}\n</think>\n\n"


@dataclass(frozen=True)
class Family:
    """`calls` and `reasoning`: the formats that its template shows. user, end: the marks around what a user says.
    assistant: the mark before a reply. special: two marks that its vocabulary has as special tokens.
    thinks: variables with which the model may reason. opens: they open the reasoning in the prompt. closes: variables
    with which there is none.
    """

    name: str
    template: str
    calls: str
    reasoning: str | None
    user: str
    end: str
    assistant: str
    special: tuple[str, str]
    thinks: dict[str, object] = field(default_factory=dict)
    opens: bool = False
    closes: dict[str, object] = field(default_factory=dict)
    calls_alone: bool = False
    """A message with calls has no other content."""


def family(
    name: str,
    calls: str,
    reasoning: str | None,
    *,
    turn: str,
    end: str,
    special: tuple[str, str],
    written: str,
    thought: str = "",
    opening: str = "",
    assistant: str = "",
    result: str = "",
    said: str = "{{ m.content or '' }}",
    tools: str = "{{ tools | tojson }}",
    base: str = _BASE,
    thinks: dict[str, object] | None = None,
    opens: bool = False,
    closes: dict[str, object] | None = None,
    calls_alone: bool = False,
) -> Family:
    """`turn`: the mark before a message, with ROLE in it; `written`: the calls of a message."""
    assistant = assistant or turn.replace("ROLE", "assistant")
    template = base
    for place, text in {
        "[SYSTEM]": turn.replace("ROLE", "system"), "[TOOLS]": tools, "[END]": end, "[ASSISTANT]": assistant,
        "[THOUGHT]": thought, "[CALLS]": written, "[TURN]": turn.replace("ROLE", "{{ m.role }}"), "[OPENING]": opening,
        "[RESULT]": result or turn.replace("ROLE", "tool") + "{{ m.content }}" + end, "[SAID]": said,
    }.items():  # fmt: skip
        template = template.replace(place, text)
    return Family(
        name, template, calls, reasoning, turn.replace("ROLE", "user"), end, assistant, special, thinks or {},
        opens, closes or {}, calls_alone,
    )  # fmt: skip


_CHATML = {"turn": "<|im_start|>ROLE\n", "end": "<|im_end|>\n"}
_NO_THOUGHTS = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
_OFF: dict[str, object] = {"enable_thinking": False}

FAMILIES = (
    family(
        "qwen3", "hermes", "qwen3", **_CHATML, special=("<tool_call>", "</tool_call>"), thought=_THINK,
        written=f"{_ALL}\n<tool_call>\n{_JSON.replace('KEY', 'arguments')}\n</tool_call>{{% endfor %}}",
        opening=_NO_THOUGHTS, closes=_OFF,
    ),
    family(
        "qwen3-coder", "qwen3_coder", None, **_CHATML, special=("<tool_call>", "</tool_call>"),
        written=f"{_ALL}\n<tool_call>\n<function={{{{ c.function.name }}}}>\n{_ITEMS}<parameter={{{{ key }}}}>\n"
        "{{ value if value is string else value | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
        "{% endfor %}",
    ),
    family(
        "llama3.1", "llama3_json", None, turn="<|start_header_id|>ROLE<|end_header_id|>\n\n", end="<|eot_id|>",
        special=("<|python_tag|>", "<|eom_id|>"), calls_alone=True,
        tools='Respond in the format {"name": function name, "parameters": {…}}. {{ tools | tojson }}',
        written="{% for c in m.tool_calls %}" + _JSON.replace("KEY", "parameters") + "{% endfor %}",
    ),
    family(
        "llama3.2", "pythonic", None, turn="<|start_header_id|>ROLE<|end_header_id|>\n\n", end="<|eot_id|>",
        special=("<|eom_id|>", "<|spare|>"), calls_alone=True,
        tools="Write [func_name1(params_name1=params_value1, …), …]. {{ tools | tojson }}",
        written=f"[{_ALL}{_PYTHON}{_COMMA}{{% endfor %}}]",
    ),
    family(
        "llama4", "llama4_pythonic", None, turn="<|header_start|>ROLE<|header_end|>\n\n", end="<|eot|>",
        special=("<|python_start|>", "<|python_end|>"),
        written=f"<|python_start|>[{_ALL}{_PYTHON}{_COMMA}{{% endfor %}}]<|python_end|>",
    ),
    family(
        "mistral", "mistral", None, turn="[ROLE]", end="</s>", special=("[TOOL_CALLS]", "[ARGS]"),
        written=f"{_ALL}[TOOL_CALLS]{{{{ c.function.name }}}}[ARGS]{{{{ c.function.arguments | tojson }}}}"
        "{% endfor %}",
    ),
    family(
        "magistral", "mistral", "mistral", turn="[ROLE]", end="</s>", special=("[THINK]", "[/THINK]"),
        written=f"[TOOL_CALLS] [{_ALL}{_JSON.replace('KEY', 'arguments')}{_COMMA}{{% endfor %}}]",
        thought="[THINK]{{ m.reasoning_content }}[/THINK]",
    ),
    family(
        "deepseek-r1", "deepseek_v3", "deepseek_r1", turn="<｜ROLE｜>", end="<｜end▁of▁sentence｜>",
        assistant="<｜Assistant｜>", special=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        said="{{ m.content.split('</think>') | last }}",  # it shows no earlier thoughts
        written="<｜tool▁calls▁begin｜>" + _ALL + "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ c.function.name }}\n"
        "```json\n{{ '' + c.function.arguments }}\n```<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>",
    ),
    family(
        "deepseek-v3.1", "deepseek_v31", "qwen3", turn="<｜ROLE｜>", end="<｜end▁of▁sentence｜>",
        assistant="<｜Assistant｜>", special=("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"), thought=_THINK,
        written="<｜tool▁calls▁begin｜>" + _ALL + "{{ '<｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁sep｜>' + "
        "c.function.arguments + '<｜tool▁call▁end｜>' }}{% endfor %}<｜tool▁calls▁end｜>",
        opening="{% if thinking %}<think>{% else %}</think>{% endif %}", opens=True, thinks={"thinking": True},
        closes={"thinking": False},
    ),
    family(
        "glm4.5", "glm45", "qwen3", turn="<|ROLE|>\n", end="", special=("<tool_call>", "<arg_key>"),
        thought="<think>{{ m.reasoning_content }}</think>\n",
        written=f"{_ALL}\n<tool_call>{{{{ c.function.name }}}}\n{_ITEMS}<arg_key>{{{{ key }}}}</arg_key>\n<arg_value>"
        "{{ value if value is string else value | tojson }}</arg_value>\n{% endfor %}</tool_call>{% endfor %}",
        opening="{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}", closes=_OFF,
    ),
    family(
        "functiongemma", "functiongemma", None, turn="<start_of_turn>ROLE\n", end="<end_of_turn>\n",
        special=("<start_function_call>", "<escape>"),
        written=f"{_ALL}<start_function_call>call:{{{{ c.function.name }}}}{{{{ '{{' }}}}{_ITEMS}{{{{ key }}}}:"
        "{% if value is string %}<escape>{{ value }}<escape>{% else %}{{ value | tojson }}{% endif %}"
        "{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}<end_function_call>{% endfor %}",
    ),
    family(
        "gemma4", "gemma4", "gemma4", turn="<|turn>ROLE\n", end="<turn|>\n", assistant="<|turn>model\n",
        special=("<|channel>", "<channel|>"), thought="<|channel>thought\n{{ m.reasoning_content }}<channel|>",
        written=f"{_ALL}<|tool_call>call:{{{{ c.function.name }}}}{{{{ '{{' }}}}{_ITEMS}{{{{ key }}}}:"
        "{% if value is string %}<|\"|>{{ value }}<|\"|>{% else %}{{ value | tojson }}{% endif %}"
        "{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}<tool_call|>{% endfor %}"
        "{% for r in m.tool_responses or [] %}<|tool_response>response:{{ r.name }}{{ r.response | tojson }}"
        "<tool_response|>{% endfor %}",
        base=_BASE.replace("{% elif m.role == 'tool' %}[RESULT]", ""),
        opening="{% if not enable_thinking | default(false) %}<|channel>thought\n<channel|>{% endif %}", closes=_OFF,
        thinks={"enable_thinking": True},
    ),
    family(
        "phi4-mini", "phi4_mini_json", None, turn="<|ROLE|>", end="<|end|>",
        special=("<|tool_call|>", "<|/tool_call|>"), written="",
        base="{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message %}"
        "<|system|>{{ message['content'] }}<|tool|>{{ message['tools'] }}<|/tool|><|end|>{% else %}"
        "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    ),
    family(
        "granite3.1", "granite", None, turn="<|start_of_role|>ROLE<|end_of_role|>", end="<|end_of_text|>\n",
        special=("<|tool_call|>", "<|spare|>"),
        written=f"<|tool_call|>[{_ALL}{_JSON.replace('KEY', 'arguments')}{_COMMA}{{% endfor %}}]",
    ),
    family(
        "granite3.2", "granite", "granite", turn="<|start_of_role|>ROLE<|end_of_role|>", end="<|end_of_text|>\n",
        special=("<|tool_call|>", "<|spare|>"),
        tools="{{ tools | tojson }}{# After 'Here is my thought process:' #}",
        thought="Here is my thought process:\n{{ m.reasoning_content }}\n\nHere is my response:\n",
        written=f"<|tool_call|>[{_ALL}{_JSON.replace('KEY', 'arguments')}{_COMMA}{{% endfor %}}]",
    ),
    family(
        "granite3.3", "granite", "granite_tags", turn="<|start_of_role|>ROLE<|end_of_role|>", end="<|end_of_text|>\n",
        special=("<|tool_call|>", "<|spare|>"), thought="<think>{{ m.reasoning_content }}</think>",
        said="{% if m.reasoning_content and not m.tool_calls %}<response>{{ m.content }}</response>{% else %}"
        "{{ m.content }}{% endif %}",
        written=f"<|tool_call|>[{_ALL}{_JSON.replace('KEY', 'arguments')}{_COMMA}{{% endfor %}}]",
    ),
    family(
        "granite4", "hermes", None, turn="<|start_of_role|>ROLE<|end_of_role|>", end="<|end_of_text|>\n",
        special=("<tool_call>", "</tool_call>"),
        written=f"{_ALL}\n<tool_call>\n{_JSON.replace('KEY', 'arguments')}\n</tool_call>{{% endfor %}}",
    ),
    family(
        "command", "cohere_command3", "cohere_command3", turn="<|START_OF_TURN_TOKEN|><|ROLE|>",
        end="<|END_OF_TURN_TOKEN|>", special=("<|START_RESPONSE|>", "<|END_RESPONSE|>"), calls_alone=True,
        thought="<|START_THINKING|>{{ m.reasoning_content }}<|END_THINKING|>",
        said="{% if m.content %}<|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>{% endif %}",
        written=f"<|START_ACTION|>[{_ALL}"
        "{{ {'tool_call_id': '0', 'tool_name': c.function.name, 'parameters': c.function.arguments} | tojson }}"
        f"{_COMMA}{{% endfor %}}]<|END_ACTION|>",
    ),
    family(
        "gpt-oss", "openai", "openai_gptoss", turn="<|start|>ROLE<|message|>", end="<|end|>",
        assistant="<|start|>assistant", special=("<|start|>", "<|channel|>"), calls_alone=True,
        thought="<|channel|>analysis<|message|>{{ m.reasoning_content }}<|end|><|start|>assistant",
        said="{% if m.tool_calls and m.content and m.thinking %}{{ raise_exception('one text') }}{% endif %}"
        "{% if m.content %}<|channel|>final<|message|>{{ m.content }}{% endif %}",
        written="{% set c = m.tool_calls[0] %} to=functions.{{ c.function.name }}<|channel|>commentary json<|message|>"
        "{{ c.function.arguments | tojson }}<|call|>",
        tools="Reasoning: {{ reasoning_effort or 'medium' }}. {{ tools | tojson }}",
    ),
    family(
        "lfm2", "lfm2", None, **_CHATML, special=("<|tool_call_start|>", "<|tool_call_end|>"),
        written=f"<|tool_call_start|>[{_ALL}{_PYTHON}{_COMMA}{{% endfor %}}]<|tool_call_end|>",
    ),
    family(
        "lfm2.5", "lfm2", None, **_CHATML, special=("<|tool_call_start|>", "<|tool_call_end|>"), written="",
        tools="List of tools: [{{ tools | tojson }}]{# keep_past_thinking #}",
        base=_BASE.replace("{% if m.tool_calls %}[CALLS]{% endif %}", ""),
    ),
    family(
        "smollm3", "hermes", "qwen3", **_CHATML, special=("<tool_call>", "</tool_call>"), thought=_THINK,
        written=f"{_ALL}<tool_call>{_JSON.replace('KEY', 'arguments')}</tool_call>{{% endfor %}}",
        base=_BASE.replace("{%- if tools %}", "{%- if xml_tools is defined %}"), tools="{{ xml_tools | tojson }}",
        opening=_NO_THOUGHTS, closes=_OFF,
    ),
    family(
        "internlm3", "internlm", None, **_CHATML, special=("<|action_start|>", "<|plugin|>"),
        written=f"{_ALL}<|action_start|><|plugin|>\n{_JSON.replace('KEY', 'parameters')}<|action_end|>{{% endfor %}}",
    ),
    family(
        "olmo3", "olmo3", "qwen3", **_CHATML, special=("<|spare|>", "<|other|>"), thought=_THINK,
        written=f"<function_calls>{_ALL}{_PYTHON}\n{{% endfor %}}</function_calls>", opening="<think>",
        opens=True,
    ),
    family(
        "seed-oss", "seed_oss", "seed_oss", turn="<seed:bos>ROLE\n", end="<seed:eos>",
        special=("<seed:tool_call>", "<seed:think>"), thought="<seed:think>{{ m.reasoning_content }}</seed:think>\n",
        written=f"{_ALL}\n<seed:tool_call>\n<function={{{{ c.function.name }}}}>\n{_ITEMS}<parameter={{{{ key }}}}>"
        "{{ value if value is string else value | tojson }}</parameter>\n{% endfor %}</function>\n</seed:tool_call>"
        "{% endfor %}",
    ),
)  # fmt: skip
