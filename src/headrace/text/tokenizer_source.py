"""The tokenizer of a model from where the model is: a Hugging Face folder or a GGUF file."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import ConfigError, TokenizerError
from headrace.gguf.files import GGUFModel
from headrace.gguf.vocabulary import VOCABULARY_FILE
from headrace.text.tokenizer import Tokenizer
from headrace.text.tokenizer_files import TokenizerFiles, read_tokenizer_files


def open_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a folder, or of a GGUF file, such as the folder's `VOCABULARY_FILE`.

    A GGUF file's own comes first. The tokenizer.json beside it is used if the file has none, or names a pre-tokenizer
    that this version does not know.

    Raises TokenizerError for one that is missing, damaged or not known, and CheckpointError for a damaged GGUF file.
    """
    path = _source(path)
    if not path.is_file():
        return Tokenizer.from_folder(path)
    # Needs numpy, which a process that serves folders does not load.
    from headrace.text.gguf.build import has_tokenizer, tokenizer_from_metadata

    metadata = GGUFModel(path).metadata
    if not has_tokenizer(metadata) and (path.parent / "tokenizer.json").is_file():
        return Tokenizer.from_folder(path.parent)
    return tokenizer_from_metadata(metadata, path.parent)


def open_settings(path: str | Path) -> TokenizerFiles:
    """Special tokens and chat templates alone, of the same tokenizer; raises the same errors."""
    path = _source(path)
    if not path.is_file():
        return read_tokenizer_files(path)
    from headrace.text.gguf.build import has_tokenizer, settings_from_metadata

    metadata = GGUFModel(path).metadata
    if not has_tokenizer(metadata) and (path.parent / "tokenizer.json").is_file():
        return read_tokenizer_files(path.parent)
    return settings_from_metadata(metadata)


def check_same_tokens(target: Tokenizer, path: Path, name: str) -> None:
    """Raise ConfigError where model `name` at `path` cannot draft for another because its tokens are others, or because
    they cannot be read."""
    try:
        ours, theirs = target.vocabulary(), open_tokenizer(path).vocabulary()
    except TokenizerError as error:
        folder = path if path.is_dir() else path.parent
        raise ConfigError(
            f"{name} cannot draft for this model: its tokens are not known, as it has no tokenizer that can be read; "
            f"if they are the model's, copy the model's tokenizer.json into {folder}"
        ) from error
    differing = [(token, id) for token, id in theirs.items() if ours.get(token) != id]
    if len(differing) > len(theirs) // 100:  # special tokens of their own do no harm
        token, id = min(differing, key=lambda entry: entry[1])
        raise ConfigError(
            f"{name} cannot draft for this model: its token {id} is {token!r:.40}, which is "
            f"{'another one' if token in ours else 'no token'} here, as are {len(differing) - 1} more of {len(theirs)}"
        )


def _source(path: str | Path) -> Path:
    vocabulary = Path(path) / VOCABULARY_FILE
    return vocabulary if vocabulary.is_file() else Path(path)
