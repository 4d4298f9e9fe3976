"""The settings in the files next to a tokenizer.json, read once into a frozen object.

Only the files named here are opened, each within a size limit. If two files disagree, the more specific one wins:
tokenizer_config.json over special_tokens_map.json over generation_config.json over config.json for single tokens,
`chat_template.jinja` over the `chat_template` field for templates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import TokenizerError

MAX_TOKENIZER_BYTES = 256 * 2**20
"""Largest tokenizer.json read; the largest vocabularies published need about 35 MiB."""

MAX_CONFIG_BYTES = 16 * 2**20
"""Largest of the other files read."""

MAX_EOS_IDS = 256
"""Most end-of-sequence ids of one model."""

SINGLE_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
"""Fields that name one special token each; templates see them under these names."""


@dataclass(frozen=True)
class TokenizerFiles:
    """The settings of one tokenizer folder, not yet checked against its vocabulary."""

    tokens: Mapping[str, str]
    """Text of each of `SINGLE_TOKENS` that is set."""
    extra_special: tuple[str, ...]
    """Further tokens declared special."""
    eos_ids: frozenset[int]
    """Ids that end a text according to the model's configs (the tokenizer's own eos_token not counted)."""
    fallback_ids: Mapping[str, int]
    """bos_token and pad_token as ids, from the model's configs, for those that no tokenizer file has."""
    add_bos: bool
    """Texts begin with bos, even if the backend adds none (`add_bos_token`)."""
    chat_templates: Mapping[str, str]
    """Jinja sources by name; the usual one is "default"."""
    add_eos: bool = False
    """Texts end with eos, which the backend does not add."""
    source: str = "tokenizer.json"
    """Where the vocabulary is from, for people."""


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Read the settings of a tokenizer folder; absent files count as empty.

    Raises TokenizerError for files that are too large, damaged or of the wrong shape.
    """
    config = _read_json(folder / "tokenizer_config.json")
    special_map = _read_json(folder / "special_tokens_map.json")
    model_configs = [_read_json(folder / "generation_config.json"), _read_json(folder / "config.json")]
    # Models with several parts have the language model's ids one level down.
    model_configs += [part for part in (model_configs[1].get("text_config"),) if isinstance(part, dict)]

    tokens: dict[str, str] = {}
    fallback_ids: dict[str, int] = {}
    for name in SINGLE_TOKENS:
        holder = config if name in config else special_map
        if name in holder:
            if (text := _token_text(holder[name], name)) is not None:
                tokens[name] = text
        elif name in ("bos_token", "pad_token"):
            ids = next((found for each in model_configs if (found := _ids(each, f"{name}_id"))), [])
            if ids:
                fallback_ids[name] = ids[0]
    eos_ids = next((ids for each in model_configs if (ids := _ids(each, "eos_token_id"))), [])
    return TokenizerFiles(
        tokens=tokens,
        extra_special=tuple(_extra_special(config, special_map)),
        eos_ids=frozenset(eos_ids),
        fallback_ids=fallback_ids,
        add_bos=config.get("add_bos_token") is True,
        chat_templates=_chat_templates(folder, config),
    )


def write_tokenizer_config(folder: Path, files: TokenizerFiles) -> None:
    """Write a tokenizer_config.json with the special tokens, templates and flags of `files`."""
    templates = [{"name": name, "template": source} for name, source in files.chat_templates.items()]
    config = {
        **{name: files.tokens.get(name) for name in SINGLE_TOKENS},
        "extra_special_tokens": list(files.extra_special),
        "add_bos_token": files.add_bos,
        **({"chat_template": templates} if templates else {}),
    }
    text = json.dumps(config, ensure_ascii=False, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def read_text(path: Path, max_bytes: int) -> str | None:
    """A UTF-8 file's text, or None if there is no such file. Raises TokenizerError for anything else."""
    if path.exists() and not path.is_file():  # opening a pipe blocks until something writes to it
        raise TokenizerError(f"{path.name} cannot be read: it is not a regular file.")
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TokenizerError(f"{path.name} cannot be read: {error.strerror or error}.") from error
    if len(data) > max_bytes:
        raise TokenizerError(f"{path.name} is larger than {max_bytes} bytes.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path.name} is not UTF-8 text (byte {error.start}).") from error


def _read_json(path: Path) -> dict[str, Any]:
    text = read_text(path, MAX_CONFIG_BYTES)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path.name} is damaged: {str(error)[:200]}.") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path.name} does not hold a JSON object.")
    return value


def _token_text(value: Any, name: str) -> str | None:
    """Text of a token given as a string or as a dict with `content`; None if it is switched off."""
    if isinstance(value, dict):
        value = value.get("content")
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise TokenizerError(f"{name} of the tokenizer's configuration is neither a string nor a token.")
    return value


def _extra_special(*configs: Mapping[str, Any]) -> Iterator[str]:
    for config in configs:
        for field in ("additional_special_tokens", "extra_special_tokens"):
            listed = config.get(field) or []
            values = listed.values() if isinstance(listed, dict) else listed
            if not isinstance(values, Sequence) and not isinstance(listed, dict):
                raise TokenizerError(f"{field} of the tokenizer's configuration is not a list.")
            yield from (text for value in values if (text := _token_text(value, field)) is not None)
        added = config.get("added_tokens_decoder")
        if isinstance(added, dict):
            for value in added.values():
                if isinstance(value, dict) and value.get("special") is True:
                    text = _token_text(value, "added_tokens_decoder")
                    if text is not None:
                        yield text


def _ids(config: Mapping[str, Any], field: str) -> list[int]:
    """Token ids of a field that holds one, a list or nothing; negative ones mean "none" and are left out."""
    value = config.get(field)
    values = value if isinstance(value, list) else [] if value is None else [value]
    if len(values) > MAX_EOS_IDS or any(type(each) is not int for each in values):
        raise TokenizerError(
            f"{field} of the model's configuration is not a token id or a short list of them."
        )
    return [each for each in values if each >= 0]


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    templates: dict[str, str] = {}
    declared = config.get("chat_template")
    if declared is None:
        declared = _read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(declared, str):
        templates["default"] = declared
    elif isinstance(declared, list):
        for entry in declared:
            if not isinstance(entry, dict) or not all(
                isinstance(entry.get(k), str) for k in ("name", "template")
            ):
                raise TokenizerError(
                    "chat_template of tokenizer_config.json holds an entry without name and template."
                )
            templates[entry["name"]] = entry["template"]
    elif declared is not None:
        raise TokenizerError("chat_template of tokenizer_config.json is neither a string nor a list.")
    # The newer layout has a file for each template.
    files = {"default": folder / "chat_template.jinja"}
    named = folder / "additional_chat_templates"
    if named.is_dir():
        files |= {path.stem: path for path in sorted(named.glob("*.jinja"))[:64]}
    for name, path in files.items():
        if (source := read_text(path, MAX_CONFIG_BYTES)) is not None:
            templates[name] = source
    return templates
