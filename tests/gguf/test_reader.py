"""GGUF headers: what is read, and what is refused before anything is allocated."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.errors import CheckpointError, UnsupportedModel
from headrace.gguf.reader import GGUFFile
from headrace.gguf.types import REFUSED, TYPES
from headrace.gguf.values import MAX_STRING_BYTES
from tests import needs
from tests.gguf_bytes import F32, File, Tensor, Typed, array, model, text, u8, u32, u64

VALUES: dict[str, Any] = {
    "a.bool": True,
    "a.int": 7,
    "a.negative": -7,
    "a.float": 1.5,
    "a.text": "naïve ☕",
    "a.empty": text(""),
    "a.texts": ["one", "", "zwei"],
    "a.numbers": [1, 2, 3],
    "a.floats": [0.5, -0.5],
    "a.bools": [True, False],
    "a.none": array(8, b"", 0),
    "a.nested": array(9, b"".join(array(5, struct.pack("<2i", i, -i), 2).raw for i in range(3)), 3),
    "a.long": u64(2**63 + 5),
    "a.small": u8(200),
    "a.double": Typed(12, struct.pack("<d", 0.1)),
}
EXPECTED: dict[str, Any] = {
    **VALUES,
    "a.empty": "",
    "a.none": [],
    "a.nested": [[0, 0], [1, -1], [2, -2]],
    "a.long": 2**63 + 5,
    "a.small": 200,
    "a.double": 0.1,
}


def plain(value: Any) -> Any:
    return (
        [plain(item) for item in value]
        if hasattr(value, "__iter__") and not isinstance(value, str)
        else value
    )


def test_values_have_the_types_that_they_are_stored_in(tmp_path: Path) -> None:
    file = GGUFFile(File(VALUES).write(tmp_path / "m.gguf"))
    assert list(file.metadata) == list(VALUES) and len(file.metadata) == len(VALUES)
    for key, expected in EXPECTED.items():
        assert plain(file.metadata[key]) == expected, key
    assert file.metadata["a.bool"] is True and file.metadata["a.bools"][0] is True
    assert np.asarray(file.metadata["a.floats"]).dtype == np.float32
    assert "a.other" not in file.metadata and file.metadata.get("a.other") is None


@pytest.mark.parametrize("version", [2, 3])
def test_tensors(version: int, tmp_path: Path) -> None:
    data = np.arange(6, dtype="<f4").tobytes()
    block = bytes(range(2 * 18))
    tensors = {"a": Tensor((2, 3), F32, data), "b": Tensor((2, 32), TYPES["Q4_0"].number, block)}
    file = GGUFFile(File({"k": 1}, tensors, version=version).write(tmp_path / "m.gguf"))
    assert bytes(file.view("a")) == data and bytes(file.view("b")) == block
    a, b = file.tensors["a"], file.tensors["b"]
    assert (a.type.name, a.shape, b.type.name, b.shape) == ("F32", (2, 3), "Q4_0", (2, 32))
    assert (a.row_bytes, b.row_bytes) == (12, 18) and a.begin % 32 == b.begin % 32 == 0
    for name in ("a", "b"):
        before = bytes(file.view(name))
        file.prefetch(name)
        file.drop(name)
        assert bytes(file.view(name)) == before


def test_the_alignment_is_that_of_the_metadata(tmp_path: Path) -> None:
    tensors = {"a": Tensor((3,)), "b": Tensor((5,))}
    path = File({"general.alignment": 256}, tensors, alignment=256).write(tmp_path / "m.gguf")
    file = GGUFFile(path)
    assert file.tensors["a"].begin % 256 == 0 and file.tensors["b"].begin == file.tensors["a"].begin + 256


def test_what_the_package_gguf_writes(tmp_path: Path) -> None:
    gguf = needs.package("gguf")
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(77)
    writer.add_token_list(["a", "b"])
    writer.add_token_scores([0.5, -1.0])
    values = np.random.default_rng(0).standard_normal((4, 64), dtype=np.float32)
    for name in ("Q4_0", "Q8_0", "F16", "BF16"):
        kind = gguf.GGMLQuantizationType[name]
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file, theirs = GGUFFile(path), gguf.GGUFReader(path)
    assert file.metadata["llama.context_length"] == 77 and file.metadata["tokenizer.ggml.tokens"] == [
        "a",
        "b",
    ]
    for tensor in theirs.tensors:
        info = file.tensors[tensor.name]
        assert info.shape == (4, 64) and info.type.number == tensor.tensor_type
        assert bytes(file.view(tensor.name)) == tensor.data.tobytes() and info.begin == tensor.data_offset


def test_the_table_of_types_is_that_of_the_package_gguf() -> None:
    constants = needs.package("gguf.constants")
    known = {one.value: one.name for one in constants.GGMLQuantizationType}
    for one in TYPES.values():
        assert known[one.number] == one.name
        assert constants.GGML_QUANT_SIZES[constants.GGMLQuantizationType[one.name]] == (
            one.weights,
            one.bytes,
        )
    assert {number: known[number] for number in REFUSED if number in known}.items() <= REFUSED.items()
    assert known.keys() <= REFUSED.keys() | {one.number for one in TYPES.values()}, "decide on the new type"


GOOD = model()
TENSOR = {"w": Tensor((2, 32))}
DEEP = text("x")
for _ in range(6):
    DEEP = array(DEEP.kind, DEEP.raw, 1)

BAD: dict[str, tuple[File | bytes, str]] = {
    "empty": (b"", "has 0 bytes"),
    "short": (b"GGUF\3\0\0\0", "has 8 bytes"),
    "other magic": (replace(GOOD, magic=b"GGUD"), "not a GGUF file"),
    "old magic": (replace(GOOD, magic=b"tjgg"), "older than GGUF"),
    "version 1": (replace(GOOD, version=1), "GGUF version 1; only 2 and 3"),
    "version 4": (replace(GOOD, version=4), "GGUF version 4"),
    "big-endian": (replace(GOOD, order=">"), "big-endian"),
    "too many tensors": (replace(GOOD, num_tensors=2**40), "states 1099511627776 tensors"),
    "tensors beyond the file": (
        File(tensors=TENSOR, num_tensors=99_999),
        "states 99999 tensors, but is too short",
    ),
    "too many keys": (replace(GOOD, num_keys=2**63), "keys of metadata; at most"),
    "keys beyond the file": (File(num_keys=9), "states 9 keys of metadata, but is too short"),
    "one key more": (File({"a": 1}, num_keys=2), "key of metadata of 0 bytes"),
    "key twice": (File([("a", 1), ("a", 2)]), "has the key 'a' twice"),
    "empty key": (File({"": 1}), "a key of metadata of 0 bytes"),
    "key of bytes": (File([(b"\xff\xfe", 1)]), "a key of metadata that is not UTF-8"),  # type: ignore[list-item]
    "unknown value type": (File({"a": Typed(13, bytes(16))}), "unknown value type 13 in 'a'"),
    "unknown array type": (File({"a": array(99, bytes(16), 2)}), "unknown value type 99 in 'a'"),
    "truth of 2": (File({"a": Typed(7, b"\2")}), "truth value of 2 in 'a'"),
    "huge string": (File({"a": Typed(8, struct.pack("<Q", 2**62))}), r"string of \d+ bytes in 'a'"),
    "string beyond": (File({"a": Typed(8, struct.pack("<Q", MAX_STRING_BYTES))}), "ends inside its header"),
    "huge array": (File({"a": array(4, b"", 2**61)}), "items in the array 'a'"),
    "huge array of strings": (File({"a": array(8, b"", 2**61)}), "items in the array 'a'"),
    "huge inner array": (File({"a": array(9, array(0, b"", 2**64 - 1).raw, 1)}), "items in the array 'a'"),
    "deep arrays": (File({"a": DEEP}), "nests more than 4 arrays in 'a'"),
    "alignment 0": (File({"general.alignment": 0}), "general.alignment in m.gguf must be a power of two"),
    "alignment 48": (File({"general.alignment": 48}), "power of two"),
    "alignment 2^31": (File({"general.alignment": 2**31}), "power of two"),
    "alignment text": (File({"general.alignment": "32"}), "power of two"),
    "tensor twice": (File(tensors=[("w", Tensor((4,))), ("w", Tensor((4,)))]), "has the tensor 'w' twice"),
    "no name": (File(tensors={"": Tensor((4,))}), "a tensor's name of 0 bytes"),
    "long name": (File(tensors={"w" * 256: Tensor((4,))}), "a tensor's name of 256 bytes"),
    "no dimensions": (
        File(tensors={"w": Tensor((), data=bytes(32))}),
        "tensor 'w' in m.gguf has 0 dimensions",
    ),
    "five dimensions": (File(tensors={"w": Tensor((1,) * 5)}), "has 5 dimensions"),
    "no elements": (File(tensors={"w": Tensor((2, 0), data=bytes(32))}), "'w' in m.gguf has no elements"),
    "part of a block": (
        File(tensors={"w": Tensor((2, 40), 2, bytes(64))}),
        r"'w' .*rows of 40 elements, which are not whole blocks of 32 \(Q4_0\)",
    ),
    "unknown type": (File(tensors={"w": Tensor((2, 32), 4)}), "'w' in m.gguf has the unknown type 4"),
    "refused type": (
        File(tensors={"w": Tensor((2, 256), 35)}),
        "'w' .*stored as TQ2_0.* it reads F32, F16, Q4_0",
    ),
    "unaligned": (File(tensors={"w": Tensor((4,), offset=8)}), "begins at 8, which is not a multiple of 32"),
    "beyond the file": (File(tensors={"w": Tensor((4,), offset=1 << 20)}), "'w' .*is truncated"),
    "offset overflows": (File(tensors={"w": Tensor((4,), offset=2**64 - 32)}), "'w' .*is truncated"),
    "absurd size": (File(tensors={"w": Tensor((2**40, 2**40))}), "'w' .*is truncated"),
    "size overflows": (File(tensors={"w": Tensor((2**32, 2**32, 2**32, 2**32))}), "'w' .*is truncated"),
    "overlap": (
        File(tensors={"v": Tensor((16,)), "w": Tensor((16,), offset=32)}),
        "tensors 'v' and 'w' in m.gguf overlap",
    ),
    "a pointer": (
        File(magic=b"version https://git-lfs.github.com/spec/v1\n"),
        "pointer of Git LFS, .*`git lfs pull`",
    ),
    "same bytes": (File(tensors={"v": Tensor((16,)), "w": Tensor((16,), offset=0)}), "overlap"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files(name: str, tmp_path: Path) -> None:
    content, words = BAD[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(content if isinstance(content, bytes) else content.raw())
    with pytest.raises((CheckpointError, UnsupportedModel), match=words) as caught:
        GGUFFile(path)
    assert len(str(caught.value)) < 600 and "\n" not in str(caught.value)


@pytest.mark.parametrize("number", REFUSED)
def test_refused_types_are_named(number: int, tmp_path: Path) -> None:
    path = File(tensors={"w": Tensor((2, 256), number)}).write(tmp_path / "m.gguf")
    with pytest.raises(UnsupportedModel, match=f"'w' in m.gguf is stored as {REFUSED[number]}, "):
        GGUFFile(path)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole, path = GOOD.raw(), tmp_path / "m.gguf"
    header = len(GOOD.header())
    for size in [*range(0, header, 7), header, len(whole) - 64]:
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            GGUFFile(path)
    path.write_bytes(whole)
    assert len(GGUFFile(path).tensors) == len(GOOD.tensors)


def test_strings_in_arrays_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.gguf.values.MAX_ITEMS", 100)
    file = File({"a": [""] * 60, "b": [1] * 200, "c": [""] * 40})
    assert len(GGUFFile(file.write(tmp_path / "m.gguf")).metadata["c"]) == 40
    file.metadata = {**dict(file.metadata), "d": [""]}
    with pytest.raises(CheckpointError, match="more than 100 strings in its arrays, the last in 'd'"):
        GGUFFile(file.write(tmp_path / "m.gguf"))


def test_text_that_is_not_utf8_fails_when_it_is_read(tmp_path: Path) -> None:
    """A name in another encoding does not keep a model from being used."""
    values = {"general.author": b"caf\xe9", "a.texts": [b"ok", b"\xff"], "a.int": u32(3)}
    metadata = GGUFFile(File(values).write(tmp_path / "m.gguf")).metadata
    assert metadata["a.int"] == 3
    for key in ("general.author", "a.texts"):
        with pytest.raises(CheckpointError, match=f"has a string in '{key}' that is not UTF-8"):
            metadata[key]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.gguf", tmp_path):
        with pytest.raises(CheckpointError, match="cannot read"):
            GGUFFile(path)


def test_writing_to_a_view_leaves_the_file_alone(tmp_path: Path) -> None:
    path = GOOD.write(tmp_path / "m.gguf")
    before = path.read_bytes()
    GGUFFile(path).view("token_embd.weight")[:4] = b"\1\2\3\4"
    assert path.read_bytes() == before
