"""The models in the hub's cache: what is listed, and what a deletion deletes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.errors import ModelError, ModelNotFound
from headrace.models.hub.cached import plan_removal, read_cache
from headrace.models.hub.fetch import pull
from headrace.models.hub.reference import parse_reference
from tests.models.hub.conftest import BIG
from tests.models.hub.server import Hub


def fetch(text: str) -> Path:
    reference = parse_reference(text)
    assert reference is not None
    return pull(reference).path


def fetch_all(*texts: str) -> None:
    for text in texts:
        fetch(text)


def listed(cache: Path) -> dict[str, tuple[str, str | None, int]]:
    return {str(model.reference): (model.kind, model.type, model.bytes) for model in read_cache(cache).models}


def everything(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if not path.is_dir() and ".locks" not in path.parts
    }


def remove(cache: Path, name: str) -> int:
    plan = plan_removal(cache, name)
    freed = plan.run()
    assert freed == plan.bytes
    return freed


def test_what_is_listed(hub: Hub, cache: Path) -> None:
    assert listed(cache) == {}
    fetch_all("org/gguf:Q8_0", "org/gguf:F16", "org/plain")
    size = len(b"m-Q8_0.gguf" + BIG)
    both = 2 * len(b"m-F16-00001-of-00002.gguf" + BIG)
    found = listed(cache)
    assert found.pop("org/plain")[:2] == ("safetensors", None)
    assert found == {"org/gguf:Q8_0": ("GGUF", "Q8_0", size), "org/gguf:F16": ("GGUF", "F16", both)}
    for model in read_cache(cache).models:
        assert (model.path / model.files[0]).is_file()
        assert parse_reference(str(model.reference)) == model.reference  # what is printed can be typed
        blob = (model.path / model.files[0]).resolve()
        assert model.last_used >= int(blob.stat().st_atime) - 1
    assert read_cache(cache).leftovers == ()


def test_revisions_are_told_apart(hub: Hub, cache: Path) -> None:
    plain = hub.repositories["org/plain"]
    shared = plain.files["model.safetensors"]
    plain.refs["v2"] = "c" * 40
    plain.others["c" * 40] = {"config.json": b"{  }", "model.safetensors": shared}
    plain.others["d" * 40] = {"config.json": b"{ }", "model.safetensors": b"small"}
    fetch_all("org/plain", "org/plain@v2", f"org/plain@{'d' * 40}")
    assert set(listed(cache)) == {"org/plain", "org/plain@v2", "org/plain@ddddddd"}
    assert remove(cache, "org/plain@v2") == len(b"{  }")  # the weights are those of main too
    assert set(listed(cache)) == {"org/plain", "org/plain@ddddddd"}
    assert remove(cache, "org/plain@ddddddd") == len(b"{ }small")
    assert set(listed(cache)) == {"org/plain"}
    assert fetch("org/plain").joinpath("model.safetensors").read_bytes() == shared


def test_one_quantisation_is_deleted(hub: Hub, cache: Path) -> None:
    fetch_all("org/gguf:Q8_0", "org/gguf:Q4_K_M")
    assert remove(cache, "org/gguf:q8_0") == len(b"m-Q8_0.gguf" + BIG)
    assert set(listed(cache)) == {"org/gguf:Q4_K_M"}
    assert not any("Q8_0" in name for name in everything(cache))
    remove(cache, "org/gguf:Q4_K_M")
    assert not (cache / "models--org--gguf").exists()


def test_a_repository_is_deleted_whole(hub: Hub, cache: Path) -> None:
    fetch_all("org/gguf:Q8_0", "org/plain")
    (cache / "models--org--gguf" / "blobs" / "abc.incomplete").write_bytes(b"x" * 100)
    assert remove(cache, "gguf") >= len(b"m-Q8_0.gguf" + BIG) + 100  # no other owner has the name
    assert set(listed(cache)) == {"org/plain"} and not (cache / "models--org--gguf").exists()


def test_names_that_mean_nothing_or_too_much(hub: Hub, cache: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"holds no model org/gguf; `headrace list`"):
        plan_removal(cache, "org/gguf")
    fetch("org/gguf:Q8_0")
    hub.repositories["else/gguf"] = hub.repositories["org/gguf"]
    fetch("else/gguf:Q8_0")
    before = everything(cache)
    for name, said in (
        ("gguf", "'gguf' is more than one model: else/gguf, org/gguf"),
        ("none", "holds no model 'none'"),
        ("org/none", "holds no model org/none"),
        ("org/gguf:Q4_K_M", "has no Q4_K_M in the cache; it has Q8_0"),
        ("org/gguf@v9", "has no revision 'v9' in the cache; it has a{40}, main"),
        ("org/gguf@aaa", "has no revision 'aaa'"),
        ("../org/gguf", "is not a model of the hub"),
        ("/etc", "is not a model of the hub"),
        ("..", "is not a model of the hub"),
        ("", "is not a model of the hub"),
    ):
        with pytest.raises(ModelNotFound, match=said):
            plan_removal(cache, name)
    assert everything(cache) == before
    remove(cache, "org/gguf")
    assert set(listed(cache)) == {"else/gguf:Q8_0"}  # which has the same commit


def test_an_unfinished_download(hub: Hub, cache: Path) -> None:
    hub.faults.cut["m-Q8_0.gguf"] = [1000, *[0] * 100]
    with pytest.raises(ModelNotFound):
        fetch("org/gguf:Q8_0")
    (left,) = read_cache(cache).leftovers
    assert (left.repository, left.bytes) == ("org/gguf", 1000) and left.why is not None
    with pytest.raises(ModelNotFound, match="only all of it can be deleted: `headrace rm org/gguf`"):
        plan_removal(cache, "org/gguf:Q8_0")
    assert remove(cache, "org/gguf") == 1000
    assert read_cache(cache).leftovers == ()


def test_nothing_outside_of_the_cache_is_deleted(hub: Hub, cache: Path, tmp_path: Path) -> None:
    plain = hub.repositories["org/plain"]
    plain.others["d" * 40] = {"config.json": b"{ }", "model.safetensors": b"small"}
    fetch("org/plain")
    folder = fetch(f"org/plain@{'d' * 40}")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "precious.gguf").write_bytes(b"precious")
    (folder / "m-Q4_0.gguf").symlink_to(mine / "precious.gguf")
    (folder / "mine").symlink_to(mine)
    for name in ("org/plain@ddddddd", "org/plain:Q4_0"):
        with pytest.raises(ModelError, match="outside of the cache"):
            plan_removal(cache, name)
    plan_removal(cache, "org/plain").run()
    assert (mine / "precious.gguf").read_bytes() == b"precious"
    assert not (cache / "models--org--plain").exists()


def test_a_repository_that_is_a_link_elsewhere(hub: Hub, cache: Path, tmp_path: Path) -> None:
    """On another disk, say: the link goes, the folder stays, and nothing counts as freed."""
    fetch("org/gguf:Q8_0")
    other = tmp_path / "other"
    os.rename(cache / "models--org--gguf", other)
    (cache / "models--org--gguf").symlink_to(other)
    assert plan_removal(cache, "org/gguf").run() == 0
    assert not (cache / "models--org--gguf").is_symlink() and len(everything(other)) > 2


def test_a_damaged_repository(hub: Hub, cache: Path) -> None:
    path = fetch("org/gguf:Q8_0")
    path.resolve().unlink()  # a link to nothing
    assert [left.repository for left in read_cache(cache).leftovers] == ["org/gguf"]
    remove(cache, "org/gguf")
    assert not (cache / "models--org--gguf").exists()


def test_a_file_in_place_of_a_repository(hub: Hub, cache: Path) -> None:
    cache.mkdir()
    (cache / "models--org--gguf").write_text("a file")
    assert [left.repository for left in read_cache(cache).leftovers] == ["org/gguf"]
    remove(cache, "org/gguf")
    assert not (cache / "models--org--gguf").exists()


def test_a_damaged_name_of_a_revision(hub: Hub, cache: Path) -> None:
    fetch("org/gguf:Q8_0")
    (ref,) = cache.glob("models--*/refs/main")
    ref.write_bytes(b"\xff")
    for call in (read_cache, lambda folder: plan_removal(folder, "org/gguf")):
        with pytest.raises(ModelError, match=f"cannot be read: {ref} is damaged, and may be deleted"):
            call(cache)
    fetch("org/gguf:Q8_0")
    assert list(listed(cache)) == ["org/gguf:Q8_0"]


def test_other_things_in_the_cache(cache: Path) -> None:
    (cache / "datasets--org--data" / "snapshots" / ("a" * 40)).mkdir(parents=True)
    (cache / "models--org--pickled" / "snapshots" / ("a" * 40)).mkdir(parents=True)
    (cache / "models--org--pickled" / "snapshots" / ("a" * 40) / "pytorch_model.bin").write_bytes(b"123")
    (cache / "note.txt").write_text("mine")
    assert listed(cache) == {"org/pickled@aaaaaaa": ("other", None, 3)}
    with pytest.raises(ModelNotFound):
        plan_removal(cache, "org/data")
    remove(cache, "org/pickled")
    assert (cache / "note.txt").exists() and (cache / "datasets--org--data").exists()
