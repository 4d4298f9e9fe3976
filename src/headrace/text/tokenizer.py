"""A model's tokenizer: text to ids and back, exact bytes of tokens, and chat prompts.

A thin layer over the `tokenizers` library (which reads every tokenizer.json) that adds bytes per token, the special
tokens and those that end a text from all files of a model, and errors that name the fault.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from headrace.errors import HeadraceError, RequestError, TokenizerError
from headrace.text.byte_scheme import ByteJoiner, ByteScheme, scheme_of_decoder
from headrace.text.tokenizer_files import (
    MAX_TOKENIZER_BYTES,
    TokenizerFiles,
    read_text,
    read_tokenizer_files,
    write_tokenizer_config,
)

if TYPE_CHECKING:
    from headrace.text.templates.chat import ChatTemplate

_OLDER_FILES = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")


class Tokenizer:
    """Tokenizer of one model; safe to share between threads.

    Ids outside the vocabulary (models often have more logits than tokens) have no text.
    """

    def __init__(
        self, backend: Any, files: TokenizerFiles, encoder: Callable[[str], list[int]] | None = None
    ) -> None:
        """backend: a `tokenizers.Tokenizer`, owned by this object from now on.

        encoder: text to ids without bos and eos, in place of the backend, which then only decodes.
        """
        backend.no_truncation()
        backend.no_padding()
        _declare_special(backend, files)
        added = backend.get_added_tokens_decoder()
        self._backend = backend
        self._encoder = encoder
        self._files = files
        self.vocab_size: int = max([backend.get_vocab_size() - 1, *added]) + 1
        """One more than the largest id."""
        self.special_ids: frozenset[int] = frozenset(i for i, token in added.items() if token.special)
        """Tokens that structure text; decoding leaves them out by default."""
        self.bos_id: int | None = self._single("bos_token")
        self.pad_id: int | None = self._single("pad_token")
        self.eos_id: int | None = self._single("eos_token")
        """The tokenizer's own, one of `eos_ids`."""
        self.eos_ids: frozenset[int] = files.eos_ids | (
            {self.eos_id} if self.eos_id is not None else frozenset()
        )
        """Tokens that end a text: the tokenizer's own and those of the model's configs."""
        self.byte_scheme: ByteScheme | None = scheme_of_decoder(_decoder_section(backend))
        """How tokens spell bytes; None if a token's text depends on its neighbours."""
        self._bytes: dict[int, bytes] = {}
        self._templates: dict[str, ChatTemplate | TokenizerError] = {}
        self._own_template: ChatTemplate | None = None

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """Read tokenizer.json and the configuration files next to it, if they exist.

        Raises TokenizerError for a missing, oversized or damaged file and for a tokenizer without a vocabulary.
        """
        folder = Path(path)
        files = read_tokenizer_files(folder)
        text = read_text(folder / "tokenizer.json", MAX_TOKENIZER_BYTES)
        if text is None:
            raise TokenizerError(f"{folder} has no tokenizer.json{_what_to_do(folder)}")
        with native_errors(TokenizerError, "tokenizer.json cannot be used"):
            backend = tokenizers.Tokenizer.from_str(text)
        if not backend.get_vocab_size():
            raise TokenizerError("tokenizer.json has no vocabulary.")
        return cls(backend, files)

    @cached_property
    def structural_tokens(self) -> Mapping[str, int]:
        """Texts and ids of tokens that are not text in grammars: special tokens, and added ones in angle brackets."""
        added = self._backend.get_added_tokens_decoder()
        return {
            token.content: number
            for number, token in added.items()
            if token.special or (token.content.startswith("<") and token.content.endswith(">"))
        }

    @cached_property
    def longest_token_chars(self) -> int:
        """Most characters of text per token, except with tokenizers that drop characters, such as repeated spaces."""
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)))

    # ---- Text and ids ----

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text; `add_special_tokens` adds tokens that the model expects, such as bos.

        Raises RequestError for text that is not Unicode (a lone surrogate).
        """
        # Not a batch of one: that would start the backend's threads, which do not survive a later fork.
        _check_unicode(text)
        with native_errors(RequestError, "the text cannot be tokenized"):
            ids: list[int]
            if self._encoder is not None:
                ids = self._encoder(text)
            else:
                ids = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return self._framed(ids) if add_special_tokens else ids

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """`encode` of several texts, in parallel."""
        if self._encoder is not None:
            return [self.encode(text, add_special_tokens) for text in texts]
        for text in texts:
            _check_unicode(text)
        with native_errors(RequestError, "the texts cannot be tokenized"):
            batch = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        rows: list[list[int]] = [encoding.ids for encoding in batch]
        return list(map(self._framed, rows)) if add_special_tokens else rows

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids. Bytes that are not UTF-8 become U+FFFD, one for each maximal invalid part."""
        if self.byte_scheme is None:
            known = [i for i in ids if 0 <= i < self.vocab_size]
            text: str = self._backend.decode(known, skip_special_tokens=skip_special_tokens)
            return text
        joiner = ByteJoiner(self.byte_scheme)
        pieces = []
        for token_id in ids:
            if not (skip_special_tokens and token_id in self.special_ids):
                data = self.token_bytes(token_id)
                pieces.append(data if joiner.settled else joiner.add(self.token(token_id), data))
        return b"".join(pieces).decode("utf-8", "replace")

    def token(self, token_id: int) -> str:
        """A token as the vocabulary spells it, such as "Ġthe" or "▁the"; "" if there is none."""
        if not 0 <= token_id < self.vocab_size:
            return ""
        return self._backend.id_to_token(token_id) or ""

    def vocabulary(self) -> dict[str, int]:
        """Every token, as the vocabulary spells it, with its id."""
        return dict(self._backend.get_vocab())

    def special_id(self, text: str) -> int | None:
        """The id of the special token with this text, None if there is none."""
        found: int | None = self._backend.token_to_id(text)
        return found if found in self.special_ids else None

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that a token adds after the beginning of a text; for special tokens, their names.

        For tokenizers without a byte scheme: UTF-8 of what the token adds after itself.
        """
        data = self._bytes.get(token_id)
        if data is None:
            data = self._spell(token_id)
            if data:  # not for ids outside the vocabulary, of which there is no end
                self._bytes[token_id] = data
        return data

    def to_json(self) -> str:
        """The tokenizer as a tokenizer.json, with the special tokens that other files declare.

        Where an encoder takes the place of the backend, it has the vocabulary and the decoder, and no merges.
        """
        text: str = self._backend.to_str()
        return text

    def save(self, folder: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, from which `from_folder` makes the same tokenizer, but for
        `eos_ids`, which are in the model's configs.

        Raises TokenizerError for one that such files cannot express, as that of a SentencePiece model in a GGUF file;
        what was written is then of no use.
        """
        if self._encoder is not None:
            raise TokenizerError(f"no tokenizer.json can hold this tokenizer ({self.source}).")
        (folder / "tokenizer.json").write_text(self.to_json(), encoding="utf-8")
        write_tokenizer_config(folder, self._files)
        again = Tokenizer.from_folder(folder)
        facts = ("vocab_size", "special_ids", "bos_id", "pad_id", "eos_id")
        same = all(getattr(again, fact) == getattr(self, fact) for fact in facts)
        files, read = self._files, again._files
        if not same or (files.tokens, files.chat_templates, files.add_bos, files.add_eos) != (
            read.tokens,
            read.chat_templates,
            read.add_bos,
            read.add_eos,
        ):
            raise TokenizerError(
                f"a tokenizer folder cannot hold all settings of this tokenizer ({self.source})."
            )

    # ---- Chat ----

    @property
    def has_chat_template(self) -> bool:
        """Whether the folder has a default chat template."""
        return "default" in self._files.chat_templates

    @property
    def template_names(self) -> tuple[str, ...]:
        """Names of the chat templates; the usual one is "default"."""
        return tuple(self._files.chat_templates)

    @property
    def source(self) -> str:
        """Where the vocabulary is from, for people."""
        return self._files.source

    def chat_template_source(self, with_tools: bool = False) -> str | None:
        """The default template of chats; None if the folder has none."""
        sources = self._files.chat_templates
        return sources.get("tool_use" if with_tools and "tool_use" in sources else "default")

    def apply_chat_template(
        self,
        /,  # so that a template may have a variable of any name, even "self"
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt of a conversation, by the model's chat template.

        continue_final_message: see ChatTemplate.render.
        chat_template: the name of one of the folder's templates, or a template to use instead. The default is
            "tool_use" if there are tools and the folder has such a template, else "default".
        variables: further names that the template sees, such as enable_thinking=False.

        Raises RequestError for messages that are malformed or that the template refuses, and if the folder has no
        template; TokenizerError where the folder's template is damaged or fails its trial.
        """
        template = self._template(chat_template, bool(tools))
        return template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            **variables,
        )

    def encode_chat(
        self,
        /,  # so that a template may have a variable of any name, even "self"
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        **variables: Any,
    ) -> list[int]:
        """Ids of `apply_chat_template`. Templates write all special tokens, so none is added."""
        prompt = self.apply_chat_template(messages, add_generation_prompt, tools, chat_template, **variables)
        return self.encode(prompt, add_special_tokens=False)

    def close(self) -> None:
        """End the processes that render chat templates; the next chat starts one again."""
        for template in (*self._templates.values(), self._own_template):
            if template is not None and not isinstance(template, TokenizerError):
                template.renderer.close()

    # ---- Inside ----

    def _single(self, name: str) -> int | None:
        text = self._files.tokens.get(name)
        if text is None:
            return self._files.fallback_ids.get(name)
        found: int | None = self._backend.token_to_id(text)
        return found

    def _framed(self, ids: list[int]) -> list[int]:
        # Some folders require bos in their configuration only, not in tokenizer.json; GGUF files have flags for both.
        if self._files.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids = [self.bos_id, *ids]
        if self._files.add_eos and self.eos_id is not None and ids[-1:] != [self.eos_id]:
            ids = [*ids, self.eos_id]
        return ids

    def _spell(self, token_id: int) -> bytes:
        token = self.token(token_id)
        if not token:
            return b""
        if self.byte_scheme is not None:
            return self.byte_scheme.token_bytes(token)
        once, twice = (self.decode([token_id] * count, skip_special_tokens=False) for count in (1, 2))
        return twice[len(once) :].encode("utf-8", "replace")

    def _template(self, requested: str | None, with_tools: bool) -> ChatTemplate:
        from headrace.text.templates.chat import ChatTemplate
        from headrace.text.templates.trial import tried

        sources = self._files.chat_templates
        name = requested or ("tool_use" if with_tools and "tool_use" in sources else "default")
        if name in sources:
            if name not in self._templates:
                try:
                    self._templates[name] = tried(sources[name], self._files.tokens)
                except TokenizerError as error:
                    self._templates[name] = error
            found = self._templates[name]
            if isinstance(found, TokenizerError):
                raise TokenizerError(str(found))
            return found
        if requested is None:
            raise RequestError("the model has no chat template; send a plain prompt or a chat_template.")
        if self._own_template is None or self._own_template.source != requested:
            try:
                self._own_template = ChatTemplate(requested, self._files.tokens)
            except TokenizerError as error:
                raise RequestError(str(error)) from error
        return self._own_template


def _declare_special(backend: Any, files: TokenizerFiles) -> None:
    """Declare the special tokens of the configuration to the backend.

    Only tokens in the vocabulary: a new one would have no row in the model's embedding.
    """
    already = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    declared = dict.fromkeys((*files.tokens.values(), *files.extra_special))
    missing = [text for text in declared if text not in already and backend.token_to_id(text) is not None]
    if missing:
        backend.add_special_tokens(missing)


def _decoder_section(backend: Any) -> Mapping[str, Any] | None:
    # The components of a backend serialize themselves to the JSON they were read from; parsing all of
    # tokenizer.json a second time would cost as much as loading it.
    decoder = backend.decoder
    return json.loads(decoder.__getstate__()) if decoder is not None else None


def _check_unicode(text: str) -> None:
    if not isinstance(text, str):
        raise RequestError(f"the text to tokenize is a {type(text).__name__}, not a string.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"character {error.start} of the text, U+{ord(text[error.start]):04X}, is half of a surrogate pair."
        ) from error


@contextmanager
def native_errors(kind: type[HeadraceError], what: str) -> Iterator[None]:
    """Turn any exception of the Rust library into `kind`."""
    try:
        yield
    except Exception as error:
        raise kind(f"{what}: {str(error)[:300]}.") from error
    except BaseException as error:
        # A panic is a BaseException whose class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise kind(f"{what}: {str(error)[:300]}.") from error


def _what_to_do(folder: Path) -> str:
    """The end of a sentence on a folder without tokenizer.json."""
    other = "name another tokenizer with --tokenizer"
    for name in _OLDER_FILES:
        if (folder / name).is_file():
            return (
                f", only {name}: convert it once with the package transformers: "
                f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r}), or {other}"
            )
    return f": copy it from where the model comes from, or {other}"
