"""What is a model of the hub, and which files of it a run needs."""

from __future__ import annotations

import pytest

from headrace.errors import ModelNotFound, UnsupportedModel
from headrace.gguf.files import models_in
from headrace.models.hub.files import PREFERRED, gguf_models, is_safe, needed_files
from headrace.models.hub.reference import Reference, parse_reference


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", Reference("org/name")),
        ("org/name:Q4_K_M", Reference("org/name", "Q4_K_M")),
        ("org/name@v1.0", Reference("org/name", None, "v1.0")),
        ("org/name:q8_0@refs/pr/3", Reference("org/name", "q8_0", "refs/pr/3")),
        ("org/name@main:UD-Q4_K_XL", Reference("org/name", "UD-Q4_K_XL", "main")),
        ("org/name:sub/file.gguf", Reference("org/name", "sub/file.gguf")),
    ],
)
def test_references(text: str, expected: Reference) -> None:
    assert parse_reference(text) == expected
    assert parse_reference(str(expected)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "name", "a/b/c", "./a/b", "a/b:", "a/b@", "a/b@../x", "a/b:../x", "a/b@x@y", "a/b:x:y", "a/..", "-a/b",
        "a/b@/etc", "a/b c", "a--b/c", "a/b\n", "ä/b", "a/" + "b" * 600, "shape:tiny", "C:\\a/b",
    ],
)  # fmt: skip
def test_what_is_no_reference(text: str) -> None:
    assert parse_reference(text) is None


SPLIT = [f"big-Q6_K-{part:05}-of-00003.gguf" for part in (1, 2, 3)]
NAMES = [
    "README.md", "m.Q4_K_M.gguf", "m-q8_0.gguf", "Q5_K_S/m-Q5_K_S.gguf", "m-UD-Q4_K_XL.gguf", "mmproj-F16.gguf", *SPLIT,
]  # fmt: skip


@pytest.mark.parametrize(
    ("tag", "files"),
    [
        ("Q4_K_M", ["m.Q4_K_M.gguf"]),
        ("q4_k_m", ["m.Q4_K_M.gguf"]),
        ("Q8_0", ["m-q8_0.gguf"]),
        ("Q5_K_S", ["Q5_K_S/m-Q5_K_S.gguf"]),
        ("ud-q4_k_xl", ["m-UD-Q4_K_XL.gguf"]),
        ("Q4_K_XL", ["m-UD-Q4_K_XL.gguf"]),
        ("Q6_K", SPLIT),
        ("m-q8_0.gguf", ["m-q8_0.gguf"]),
        (None, ["m.Q4_K_M.gguf"]),
    ],
)
def test_a_quantisation_is_chosen(tag: str | None, files: list[str]) -> None:
    assert list(needed_files("o/r", NAMES, tag)) == files


def test_the_default_is_the_nearest_that_there_is() -> None:
    names = [f"m-{label}.gguf" for label in ("F16", "Q2_K", "Q8_0", "Q5_K_M", "Q4_K_M")]
    found = []
    while names:
        (chosen,) = needed_files("o/r", names, None)
        names.remove(chosen)
        found.append(chosen[2:-5])
    assert found == [
        "Q4_K_M",
        "Q5_K_M",
        "Q8_0",
        "Q2_K",
        "F16",
    ]  # the last of them runs nowhere here
    assert len(set(PREFERRED)) == len(PREFERRED)


def test_files_beside_models_are_no_models() -> None:
    """The same names as in a folder: see gguf.files."""
    beside = [
        "m-mmproj-F16.gguf",
        "m.imatrix.gguf",
        "mmproj-m-Q8_0.gguf",
        "m-mmproj.gguf",
        "ggml-vocab-m.gguf",
    ]
    for tag in ("F16", None):
        assert needed_files("o/r", [*beside, "x/m-mmproj-Q4_0.gguf", "m-F16.gguf"], tag) == ("m-F16.gguf",)
    assert models_in([*beside, "m-F16.gguf"]) == ["m-F16.gguf"]


def test_safetensors_win_where_no_quantisation_is_named() -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    plain = ["config.json", "model.safetensors.index.json", "additional_chat_templates/t.jinja", *shards]
    extra = ["x/config.json", "consolidated-00001-of-00002.safetensors", "adapter.safetensors", "a.py"]
    both = [*plain, *extra, "m-Q4_K_M.gguf"]
    assert sorted(needed_files("o/r", both, None)) == sorted(plain)
    assert needed_files("o/r", both, "Q4_K_M") == ("m-Q4_K_M.gguf",)
    assert "model-00001-of-00002.safetensors" not in needed_files("o/r", [*both, "model.safetensors"], None)


@pytest.mark.parametrize(
    ("names", "tag", "said"),
    [
        (NAMES, "Q3_K_M", r"^hub model o/r has no Q3_K_M; it has .*Q5_K_S.*Q4_K_M.*$"),
        (["model.safetensors"], "Q4_K_M", r"has no GGUF files, so it has no Q4_K_M: leave :Q4_K_M out"),
        (
            ["a-Q4_0.gguf", "b-Q4_0.gguf"],
            "Q4_0",
            r"Q4_0 is more than one model of o/r; name the file: o/r:a-Q4_0",
        ),
        (SPLIT[:2], "Q6_K", r"lacks big-Q6_K-00003-of-00003.gguf, a part of Q6_K"),
        (SPLIT[1:], None, r"lacks big-Q6_K-00001-of-00003.gguf"),
    ],
)
def test_refusals_are_one_sentence(names: list[str], tag: str | None, said: str) -> None:
    with pytest.raises(ModelNotFound, match=said) as caught:
        needed_files("o/r", names, tag)
    assert "\n" not in str(caught.value)


def test_hostile_names() -> None:
    for name in (
        "../x.gguf",
        "/etc/x.gguf",
        "a/../../x.gguf",
        "a\\b.gguf",
        "",
        "a//b.gguf",
        "./x.gguf",
        "\0.gguf",
    ):
        assert not is_safe(name)
    assert needed_files("o/r", ["../m-Q4_K_M.gguf", "m-Q8_0.gguf"], None) == ("m-Q8_0.gguf",)
    many = [f"m{index}-Q4_0-00001-of-99999.gguf" for index in range(5000)]  # five hundred million parts
    assert all(model.missing is not None for model in gguf_models(many))


REFUSED = ["IQ3_S", "IQ2_XXS", "UD-IQ1_M", "TQ1_0", "i1-IQ3_M"]


@pytest.mark.parametrize("label", REFUSED)
def test_types_that_do_not_run_are_refused_before_the_download(label: str) -> None:
    names = [f"m-{label}.gguf", "m-Q4_K_M.gguf", "m-IQ4_XS.gguf"]
    for tag in (label, f"m-{label}.gguf"):
        with pytest.raises(UnsupportedModel, match=r"does not read: it reads IQ4_XS, Q4_K_M$"):
            needed_files("o/r", names, tag)
    with pytest.raises(UnsupportedModel, match="it reads no other file of this model"):
        needed_files("o/r", names[:1], None)
    assert needed_files("o/r", names, None) == ("m-Q4_K_M.gguf",)
