"""The metadata of a GGUF file as a `Tokenizer`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models

from headrace.errors import TokenizerError
from headrace.text.gguf.pieces import ADDED_TYPES, SPACE, PieceEncoder
from headrace.text.gguf.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from headrace.text.gguf.vocabulary import TokenType, Vocabulary, read_templates, read_vocabulary
from headrace.text.tokenizer import Tokenizer, native_errors
from headrace.text.tokenizer_files import MAX_TOKENIZER_BYTES, TokenizerFiles, read_text

_log = logging.getLogger(__name__)

_MODELS = ("gpt2", "llama", "t5", "gemma4")

_EMBEDDED = "tokenizer.huggingface.json"
"""A whole tokenizer.json, which a GGUF file may hold."""


class _Unknown(TokenizerError):
    """The metadata name an algorithm or a pre-tokenizer that is not implemented."""


def tokenizer_from_metadata(metadata: Mapping[str, Any], folder: Path | None = None) -> Tokenizer:
    """The tokenizer and the chat templates of a GGUF file.

    metadata: the file's keys and values, arrays as lists or numpy arrays.
    folder: where the file lies. Its tokenizer.json is used only where the metadata name a tokenizer or a pre-tokenizer
        that this version does not know, and only if both have the same control tokens; a tokenizer.json inside the
        metadata comes before it.

    Raises TokenizerError, which names the key, for metadata that are missing, damaged or not known.
    """
    vocabulary = read_vocabulary(metadata)
    files = _files(vocabulary, read_templates(metadata))
    try:
        return _build(vocabulary, files)
    except _Unknown as error:
        text, where = metadata.get(_EMBEDDED), f"its {_EMBEDDED}"
        if not isinstance(text, str) and folder is not None:
            text = read_text(folder / "tokenizer.json", MAX_TOKENIZER_BYTES)
            where = "the tokenizer.json beside it"
        if not isinstance(text, str):
            raise TokenizerError(str(error)) from None
        _log.info("%s The text is tokenized by %s.", error, where)
        return Tokenizer(_from_json(text, vocabulary, where), replace(files, source=where))


def has_tokenizer(metadata: Mapping[str, Any]) -> bool:
    """False for a file without a vocabulary, as converters write it on request."""
    return metadata.get("tokenizer.ggml.model", "none") not in ("none", "no_vocab")


def settings_from_metadata(metadata: Mapping[str, Any]) -> TokenizerFiles:
    """Special tokens and chat templates alone; raises the same errors for them."""
    return _files(read_vocabulary(metadata, with_merges=False), read_templates(metadata))


def _build(vocabulary: Vocabulary, files: TokenizerFiles) -> Tokenizer:
    if vocabulary.model not in _MODELS:
        raise _Unknown(
            f"tokenizer.ggml.model of the GGUF file is {vocabulary.model!r:.80}, and this version has "
            f"{', '.join(_MODELS)}; put the original model's tokenizer.json beside the file."
        )
    if vocabulary.model in ("llama", "t5"):
        return Tokenizer(_piece_backend(vocabulary), files, PieceEncoder(vocabulary))
    if not vocabulary.merges:
        raise TokenizerError("the GGUF file has no merges: tokenizer.ggml.merges is missing or empty.")
    return Tokenizer(_merge_backend(vocabulary, _pre_tokenizer(vocabulary)), files)


def _pre_tokenizer(vocabulary: Vocabulary) -> PreTokenizer:
    if vocabulary.pre not in PRE_TOKENIZERS:
        raise _Unknown(
            f"tokenizer.ggml.pre of the GGUF file is {vocabulary.pre!r:.80}, a pre-tokenizer that this version does "
            "not know, and any other would give wrong ids; put the original model's tokenizer.json beside the file."
        )
    return PRE_TOKENIZERS[vocabulary.pre]


# ---- Backends ----


def _merge_backend(vocabulary: Vocabulary, pre: PreTokenizer) -> Any:
    """Byte-pair encoding with a list of merges."""
    backend = tokenizers.Tokenizer(
        models.BPE(
            dict(vocabulary.ids),
            list(vocabulary.merges),
            unk_token=None if pre.byte_level else _unknown_text(vocabulary),
            fuse_unk=not pre.byte_level,
            byte_fallback=not pre.byte_level,
            ignore_merges=pre.ignore_merges,
        )
    )
    if (normalizer := pre.normalizer()) is not None:
        backend.normalizer = normalizer
    if (splits := pre.pre_tokenizer()) is not None:
        backend.pre_tokenizer = splits
    backend.decoder = decoders.ByteLevel() if pre.byte_level else _piece_decoder(prefixed=False)
    _add_tokens(backend, vocabulary)
    return backend


def _piece_backend(vocabulary: Vocabulary) -> Any:
    """Vocabulary, added tokens and decoder of a tokenizer whose texts a `PieceEncoder` encodes."""
    backend = tokenizers.Tokenizer(
        models.BPE(
            dict(vocabulary.ids),
            [],
            unk_token=_unknown_text(vocabulary),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.decoder = _piece_decoder(prefixed=vocabulary.add_space_prefix is not False)
    _add_tokens(backend, vocabulary)
    return backend


def _unknown_text(vocabulary: Vocabulary) -> str | None:
    unknown = vocabulary.named.get("unk_token")
    return None if unknown is None else vocabulary.tokens[unknown]


def _piece_decoder(prefixed: bool) -> Any:
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps)


def _add_tokens(backend: Any, vocabulary: Vocabulary) -> None:
    # Not normalized: their texts are what stands in a raw text, with spaces as spaces.
    user_defined = TokenType.USER_DEFINED
    backend.add_tokens(
        [
            AddedToken(text, normalized=False, special=vocabulary.types[i] != user_defined)
            for text, i in vocabulary.of_type(*ADDED_TYPES)
        ]
    )


def _from_json(text: str, vocabulary: Vocabulary, where: str) -> Any:
    """The backend of another source, if it belongs to the vocabulary."""
    with native_errors(TokenizerError, f"{where} cannot be used"):
        backend = tokenizers.Tokenizer.from_str(text)
    other = next(
        (text for text, i in vocabulary.of_type(TokenType.CONTROL) if backend.token_to_id(text) != i), None
    )
    if other is not None or backend.get_vocab_size() > len(vocabulary.tokens):
        raise TokenizerError(
            f"{where} belongs to another model than the GGUF file: "
            + (f"they do not give {other[:80]!r} the same id." if other else "it has more tokens.")
        )
    return backend


# ---- Settings ----


def _files(vocabulary: Vocabulary, templates: Mapping[str, str]) -> TokenizerFiles:
    """What the files of a tokenizer folder say, as the metadata say it."""
    # An ordinary token that pads is not a special token: texts hold it.
    tokens = {
        name: vocabulary.tokens[i]
        for name, i in vocabulary.named.items()
        if vocabulary.types[i] in ADDED_TYPES
    }
    pre = PRE_TOKENIZERS.get(vocabulary.pre)
    begins = vocabulary.model == "llama" or (pre is not None and pre.add_bos)
    return TokenizerFiles(
        tokens=tokens,
        extra_special=(),
        eos_ids=vocabulary.end_ids,
        fallback_ids={"pad_token": vocabulary.named["pad_token"]} if "pad_token" in vocabulary.named else {},
        add_bos=begins if vocabulary.add_bos is None else vocabulary.add_bos,
        add_eos=vocabulary.model == "t5" if vocabulary.add_eos is None else vocabulary.add_eos,
        chat_templates=templates,
        source=_source(vocabulary),
    )


def _source(vocabulary: Vocabulary) -> str:
    source = f"GGUF metadata: {vocabulary.model!r:.80}"
    return f"{source}, pre-tokenizer {vocabulary.pre!r:.80}" if vocabulary.model == "gpt2" else source
