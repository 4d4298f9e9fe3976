"""Fields of OpenAI's and vLLM's requests that this server does not implement. docs/serving.md has the same table."""

from __future__ import annotations

from headrace.server.http.strict import EMPTY, NoEffect, Other, Refused

_NO_BEAMS = NoEffect("only beam search reads it")
_NO_MEDIA = NoEffect("only input other than text is affected")
_NO_TIERS = NoEffect("there is one kind of service; see priority")
_NAMED_BY_HEADER = NoEffect("the header X-Request-Id names a request")
_CACHED_ANYWAY = NoEffect("equal prefixes are found in the prefix cache without it")
_NOT_STORED = NoEffect("nothing is stored")
_OWN_TEMPLATE = Refused("the model's own chat template is used")
_NO_MODERATION = Refused("there is no moderation model")

_SAMPLING: dict[str, Other] = {
    "early_stopping": _NO_BEAMS,
    "ec_transfer_params": Refused("there is no transfer of encoder caches between servers"),
    "guided_decoding_backend": NoEffect("there is one backend"),
    "guided_whitespace_pattern": Refused("write the white space into a regex or a grammar"),
    "kv_transfer_params": Refused("there is no transfer of KV caches between servers"),
    "length_penalty": _NO_BEAMS,
    "logits_processors": Refused("requests cannot contain code"),
    "logprob_token_ids": Refused("use logprobs"),
    "mm_processor_kwargs": _NO_MEDIA,
    "repetition_detection": Refused("use repetition_penalty or max_tokens"),
    "request_id": _NAMED_BY_HEADER,
    "return_mm_kwargs": NoEffect("only vLLM's render routes read it"),
    "return_token_offsets": NoEffect("only vLLM's render routes read it"),
    "return_tokens_as_token_ids": Refused("use return_token_ids"),
    "routed_experts_prompt_start": NoEffect("no routing data is returned"),
    "session_id": NoEffect("nothing is kept for a session"),
    "spaces_between_special_tokens": NoEffect("text is what the tokens say, with nothing added"),
    "stream_interval": NoEffect("the server's --stream-interval-s decides"),
    "thinking_token_budget": Refused("use max_tokens", (None, -1)),
    "use_beam_search": Refused("there is no beam search"),
    "vllm_xargs": Refused("there are no custom extensions"),
    "watermarking": Refused("there are no watermarks"),
}  # fmt: skip
"""vLLM's fields of completions and chats."""

_ABOUT_CALLERS: dict[str, Other] = {
    "metadata": _NOT_STORED,
    "moderation": _NO_MODERATION,
    "prompt_cache_key": _CACHED_ANYWAY,
    "prompt_cache_options": _CACHED_ANYWAY,
    "prompt_cache_retention": _CACHED_ANYWAY,
    "safety_identifier": NoEffect("nothing is checked for safety; see user"),
    "service_tier": _NO_TIERS,
    "store": _NOT_STORED,
}
"""OpenAI's fields of chats and responses that are about the caller and the service."""

COMPLETION: dict[str, Other] = _SAMPLING | {
    "prompt_embeds": Refused("prompts are text or token ids"),
    "suffix": Refused("there is no infilling"),
}

CHAT: dict[str, Other] = _SAMPLING | _ABOUT_CALLERS | {
    "audio": Refused("answers are text"),
    "best_of": Refused("all n are returned", (None, 1)),
    "chat_template": _OWN_TEMPLATE,
    "documents": Refused("give them to the chat template in chat_template_kwargs"),
    "echo": Refused("see continue_final_message"),
    "function_call": Refused("use tools and tool_choice", (None,)),
    "functions": Refused("use tools and tool_choice", (None,)),
    "media_io_kwargs": _NO_MEDIA,
    "modalities": Refused("answers are text", (*EMPTY, ["text"])),
    "prediction": NoEffect("it could only make the answer come faster"),
    "return_prompt_text": Refused("use return_token_ids, or /tokenize"),
    "verbosity": Refused("say in a message how long the answer should be", (None, "medium")),
    "web_search_options": Refused("this server searches nothing", (None,)),
}  # fmt: skip

RESPONSES: dict[str, Other] = _ABOUT_CALLERS | {
    "access_programs": Refused("there are no access programs"),
    "background_options": Refused("nothing runs in the background", (*EMPTY, {"completion_window": "soonest"})),
    "chat_template": _OWN_TEMPLATE,
    "context_management": Refused("this server shortens no conversation by itself"),
    "enable_response_messages": Refused("use /tokenize to see what the model sees"),
    "image": _NO_MEDIA,
    "kv_transfer_params": _SAMPLING["kv_transfer_params"],
    "max_tool_calls": NoEffect("it limits tools that a server runs by itself, and this one runs none"),
    "media_io_kwargs": _NO_MEDIA,
    "mm_processor_kwargs": _NO_MEDIA,
    "previous_input_messages": Refused("send the whole conversation as input"),
    "previous_response": Refused("send the whole conversation as input"),
    "request_id": _NAMED_BY_HEADER,
    "vllm_xargs": _SAMPLING["vllm_xargs"],
}  # fmt: skip

EMBEDDING: dict[str, Other] = {
    "embed_dtype": Refused("vectors are float32", (None, "float32")),
    "endianness": Refused("base64 is little-endian", (None, "native", "little")),
    "messages": Refused("embeddings are of text or token ids: see input", (None,)),
    "mm_processor_kwargs": _NO_MEDIA,
    "padding": Refused("prompts are not padded", (None, "do_not_pad")),
    "request_id": _NAMED_BY_HEADER,
    "use_activation": Refused("use normalize", (None, True)),
}

TOKENIZE: dict[str, Other] = {
    "chat_template": _OWN_TEMPLATE,
    "media_io_kwargs": _NO_MEDIA,
    "mm_processor_kwargs": _NO_MEDIA,
}
