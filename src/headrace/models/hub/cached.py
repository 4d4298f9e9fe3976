"""The models in the hub's local cache: which there are, and how one is deleted.

huggingface_hub scans and deletes, as it knows where revisions share files. It is asked for nothing outside of the
cache.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import ModelError, ModelNotFound
from headrace.models.hub.files import gguf_models, weight_shards
from headrace.models.hub.reference import Reference, parse_reference
from headrace.models.hub.transfer import repository_folder

if TYPE_CHECKING:
    from huggingface_hub import CachedFileInfo, CachedRepoInfo, CachedRevisionInfo, HFCacheInfo

SHORT_COMMIT = 7
"""Characters of a commit that are shown, and the fewest that name one."""

_PREFIX = "models--"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """One model of one revision. Names of files are relative to `path`, the snapshot's folder.

    kind: "safetensors", "GGUF", or "other" for files that are not weights that run here. type: of GGUF, as "Q4_K_M".
    refs: branches and tags that point to the commit. last_used: seconds since 1970, of the last read as far as the
    file system notes it (with `relatime`, Linux' default, once a day).
    """

    repository: str
    commit: str
    refs: tuple[str, ...]
    kind: str
    type: str | None
    files: tuple[str, ...]
    bytes: int
    last_used: float
    path: Path

    @property
    def reference(self) -> Reference:
        """What names it in every command; the revision is left out where it is main."""
        revision = None if "main" in self.refs else self.refs[0] if self.refs else self.commit[:SHORT_COMMIT]
        return Reference(self.repository, self.type, revision)


@dataclass(frozen=True, slots=True)
class Leftover:
    """A repository with unfinished downloads, or one that cannot be read as a repository: `why`. `bytes` of what
    is unfinished."""

    repository: str
    bytes: int
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Cache:
    """What the hub's cache holds, in order of names."""

    folder: Path
    models: tuple[CachedModel, ...]
    leftovers: tuple[Leftover, ...]


@dataclass(frozen=True, slots=True)
class Removal:
    """What would be deleted; `run` deletes it and gives the bytes that became free."""

    names: tuple[str, ...]
    bytes: int
    run: Callable[[], int]


def read_cache(folder: Path) -> Cache:
    """Scan the cache; an absent one is empty. Raises ModelError where it cannot be read."""
    info = _scan(folder)
    if info is None:
        return Cache(folder, (), ())
    models = [
        model
        for repo in info.repos
        if repo.repo_type == "model"
        for revision in repo.revisions
        for model in _models(repo, revision)
    ]
    models.sort(key=lambda model: (model.repository.casefold(), str(model.reference)))
    return Cache(folder, tuple(models), tuple(_leftovers(folder, info)))


def plan_removal(folder: Path, name: str) -> Removal:
    """What `name` means in the cache: a repository, one of its revisions, or one quantisation.

    The owner may be left out where only one repository has the name. Raises ModelNotFound where nothing, or more than
    one thing, has it, and ModelError where a file of the model lies outside of the cache.
    """
    reference = _reference_of(folder, name)
    info = _scan(folder)
    if info is None:
        return _damaged(folder, reference)
    repo = next(
        (one for one in info.repos if (one.repo_type, one.repo_id) == ("model", reference.repository)), None
    )
    if repo is None:
        return _damaged(folder, reference)
    info = replace(info, repos=frozenset({repo}))  # a copy of a repository has the same commits
    revisions = _revisions(repo, reference)
    if reference.tag is None:
        whole = len(revisions) == len(repo.revisions)
        if whole and reference.revision is None:
            return _folder_removal(folder, repo.repo_path, repo.repo_id, info, repo)
        return _some_revisions(folder, info, repo, revisions)
    return _quantisation(folder, info, repo, revisions, reference)


def _scan(folder: Path) -> HFCacheInfo | None:
    """None where there is no cache yet."""
    if not folder.is_dir():
        return None
    from huggingface_hub import scan_cache_dir

    try:
        return scan_cache_dir(folder)
    except OSError as error:
        raise ModelError(f"the hub's cache {folder} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:  # of a damaged file, which stops the scan of all repositories
        raise ModelError(f"the hub's cache {folder} cannot be read: {_damaged_ref(folder)}") from error


def _damaged_ref(folder: Path) -> str:
    """Which file names no commit, and what to do."""
    for path in sorted(folder.glob("*/refs/**/*")):
        if path.is_file() and not path.read_bytes().isascii():
            return f"{path} is damaged, and may be deleted"
    return "a file of it is damaged"


def _models(repo: CachedRepoInfo, revision: CachedRevisionInfo) -> Iterator[CachedModel]:
    """The models of a revision: one for each quantisation in GGUF, one for its safetensors."""
    files = {file.file_path.relative_to(revision.snapshot_path).as_posix(): file for file in revision.files}
    refs = tuple(sorted(revision.refs))

    def model(kind: str, type: str | None, names: Iterable[str]) -> CachedModel:
        chosen = tuple(names)
        blobs = {files[name].blob_path: files[name] for name in chosen}
        used = max((blob.blob_last_accessed for blob in blobs.values()), default=revision.last_modified)
        size = sum(blob.size_on_disk for blob in blobs.values())
        return CachedModel(
            repo.repo_id, revision.commit_hash, refs, kind, type, chosen, size, used, revision.snapshot_path
        )

    gguf = gguf_models(files)
    for found in gguf:
        yield model("GGUF", found.label, found.files)
    in_gguf = {name for found in gguf for name in found.files}
    rest = [name for name in files if name not in in_gguf]
    if weight_shards(rest):
        yield model("safetensors", None, rest)
    elif rest and not gguf:
        yield model("other", None, rest)


def _leftovers(folder: Path, info: HFCacheInfo) -> Iterator[Leftover]:
    """Repositories with unfinished downloads, and those that the scan could not read."""
    known = {repo.repo_path.name for repo in info.repos}
    for path in sorted(folder.glob(f"{_PREFIX}*")):
        unfinished = sum(_size(part) for part in path.glob("blobs/*.incomplete"))
        broken = None if path.name in known else "it is damaged, or its download has not finished"
        if unfinished or broken:
            yield Leftover(_repository_of(path), unfinished, broken)


def _reference_of(folder: Path, name: str) -> Reference:
    """The repository that a name means, with its owner. Raises ModelNotFound where it is none, or more than one."""
    if reference := parse_reference(name):
        return reference
    short = parse_reference(f"owner/{name}")
    if short is None:
        raise ModelNotFound(
            f"{name!r:.200} is not a model of the hub: give owner/name, with :QUANTISATION or @REVISION"
        )
    bare = short.repository.partition("/")[2]
    paths = sorted(folder.glob(f"{_PREFIX}*")) if folder.is_dir() else []
    found = [owner for path in paths if (owner := _repository_of(path)).rpartition("/")[2] == bare]
    if not found:
        raise ModelNotFound(
            f"the cache {folder} holds no model {bare!r:.200}; `headrace list` shows what it holds"
        )
    if len(found) > 1:
        raise ModelNotFound(f"{bare!r:.200} is more than one model: {', '.join(found[:24])}")
    return Reference(found[0], short.tag, short.revision)


def _repository_of(path: Path) -> str:
    return path.name.removeprefix(_PREFIX).replace("--", "/")


def _revisions(repo: CachedRepoInfo, reference: Reference) -> list[CachedRevisionInfo]:
    """Those of a branch, a tag or the first characters of a commit; all without one. Raises ModelNotFound."""
    wanted = reference.revision
    if wanted is None:
        return sorted(repo.revisions, key=lambda revision: revision.commit_hash)
    found = [
        revision for revision in repo.revisions if wanted in revision.refs or wanted == revision.commit_hash
    ]
    if not found and len(wanted) >= SHORT_COMMIT:
        found = [revision for revision in repo.revisions if revision.commit_hash.startswith(wanted)]
    if len(found) != 1:
        there = ", ".join(
            sorted(ref for revision in repo.revisions for ref in (*revision.refs, revision.commit_hash))
        )
        what = "more than one revision" if found else "no revision"
        raise ModelNotFound(f"{repo.repo_id} has {what} {wanted!r:.200} in the cache; it has {there:.1000}")
    return found


def _damaged(folder: Path, reference: Reference) -> Removal:
    """Of a repository that the scan could not read: all of it, or nothing."""
    path = repository_folder(folder, reference.repository)
    if not path.exists() and not path.is_symlink():
        raise ModelNotFound(
            f"the cache {folder} holds no model {reference.repository}; `headrace list` shows what it holds"
        )
    if reference.tag is not None or reference.revision is not None:
        raise ModelNotFound(
            f"{reference.repository} is damaged, or its download has not finished, so only all of it can be deleted: "
            f"`headrace rm {reference.repository}`"
        )
    return _folder_removal(folder, path, reference.repository)


def _folder_removal(
    folder: Path,
    path: Path,
    name: str,
    info: HFCacheInfo | None = None,
    repo: CachedRepoInfo | None = None,
) -> Removal:
    """Of a repository's folder, with what its downloads left. Links are deleted, never what they point to, but for
    files that huggingface_hub shares between repositories: those it deletes itself, with their last user."""

    def run() -> int:
        before = _files(folder, path)
        if info is not None and repo is not None:
            _execute(info.delete_revisions(*(revision.commit_hash for revision in repo.revisions)))
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        return _freed(before)

    return Removal((name,), sum(_files(folder, path).values()), run)


def _some_revisions(
    folder: Path, info: HFCacheInfo, repo: CachedRepoInfo, revisions: list[CachedRevisionInfo]
) -> Removal:
    strategy = info.delete_revisions(*(revision.commit_hash for revision in revisions))
    _check_inside(folder, repo, strategy.blobs)
    _check_inside(folder, repo, (*strategy.snapshots, *strategy.refs, *strategy.repos))

    def run() -> int:
        before = _files(folder, repo.repo_path)
        _execute(strategy)
        return _freed(before)

    names = tuple(f"{repo.repo_id}@{revision.commit_hash[:SHORT_COMMIT]}" for revision in revisions)
    return Removal(names, strategy.expected_freed_size, run)


def _quantisation(
    folder: Path,
    info: HFCacheInfo,
    repo: CachedRepoInfo,
    revisions: list[CachedRevisionInfo],
    reference: Reference,
) -> Removal:
    """The files of one GGUF model, in every revision that was asked for."""
    assert reference.tag is not None
    chosen: list[CachedFileInfo] = []
    labels: list[str] = []
    emptied = []
    for revision in revisions:
        files = {
            file.file_path.relative_to(revision.snapshot_path).as_posix(): file for file in revision.files
        }
        models = gguf_models(files)
        labels += [model.label for model in models]
        wanted = reference.tag.casefold()
        found = [model for model in models if wanted in (model.label.casefold(), model.stem.casefold())]
        if len(found) > 1:
            several = ", ".join(f"{repo.repo_id}:{model.stem}" for model in found)
            raise ModelNotFound(f"{reference.tag} is more than one model: {several}")
        for model in found:
            chosen += [files[name] for name in model.files]
            if len(model.files) == len(files):
                emptied.append(revision)
    if not chosen:
        there = ", ".join(dict.fromkeys(labels)) or "no GGUF files"
        raise ModelNotFound(f"{repo.repo_id} has no {reference.tag} in the cache; it has {there}")
    if len(emptied) == len(repo.revisions):
        return _folder_removal(folder, repo.repo_path, repo.repo_id, info, repo)
    kept = {file.blob_path for revision in repo.revisions for file in revision.files if file not in chosen}
    blobs = {file.blob_path: file.size_on_disk for file in chosen if file.blob_path not in kept}
    _check_inside(folder, repo, (*blobs, *(file.file_path for file in chosen)))

    def run() -> int:
        before = _files(folder, repo.repo_path)
        delete = getattr(info, "delete_files", None)  # from huggingface_hub 2 on
        if delete is not None:
            _execute(delete(*chosen))
        else:
            for path in (*(file.file_path for file in chosen), *blobs):
                path.unlink(missing_ok=True)
        return _freed(before)

    label = f"{repo.repo_id}:{reference.tag}"
    return Removal((label,), sum(blobs.values()), run)


def _execute(strategy: object) -> None:
    """Delete, and raise where that failed: huggingface_hub only logs it."""
    from huggingface_hub.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        strategy.execute()  # type: ignore[attr-defined]
    finally:
        logging.set_verbosity(level)


def _check_inside(folder: Path, repo: CachedRepoInfo, paths: Iterable[Path]) -> None:
    """Raises ModelError where a path that would be deleted is not below the repository's folder."""
    root = os.path.realpath(repo.repo_path)
    for path in paths:
        place = os.path.join(os.path.realpath(path.parent), path.name)  # noqa: PTH118, the last part may be a link
        if os.path.commonpath((root, place)) != root or not Path(root).is_relative_to(folder):
            raise ModelError(
                f"{path} is a file of {repo.repo_id} outside of the cache {folder}: delete it yourself"
            )


def _files(folder: Path, path: Path) -> dict[Path, int]:
    """Content of a repository that is not a link, and files of the cache that its links share: sizes by path."""
    found: dict[Path, int] = {}
    if path.is_symlink():  # only the link will be deleted
        return found
    for part in ("blobs", "snapshots"):
        for place, _, names in os.walk(path / part):
            for name in names:
                file = Path(place, name)
                if file.is_symlink():
                    file = Path(os.path.realpath(file))
                if file.is_relative_to(folder):
                    found[file] = _size(file)
    return found


def _freed(before: dict[Path, int]) -> int:
    return sum(size for path, size in before.items() if not path.exists())


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
