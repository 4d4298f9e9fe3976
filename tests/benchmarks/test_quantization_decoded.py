"""A GGUF file decoded into a folder: the weights and the tokens of the model that it was made from."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from benchmarks.quantization import decoded
from benchmarks.quantization.measure import headrace
from headrace.models.source import BUNDLED_FOLDER
from headrace.text.tokenizer_source import open_tokenizer

TALE = BUNDLED_FOLDER / "tale"


def test_a_decoded_file_is_the_model_again(tmp_path: Path) -> None:
    made, folder = tmp_path / "made", tmp_path / "floats"
    headrace(
        "quantize", "tale", "-o", str(made), "--format", "gguf:Q8_0", "--method", "rtn", "--samples", "0"
    )
    (file,) = made.glob("*.gguf")
    assert decoded.main([str(file), str(folder)]) == 0
    found, expected = load_file(folder / "model.safetensors"), load_file(TALE / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        whole = tensor.float()
        assert found[name].shape == whole.shape and (found[name] - whole).norm() < 0.01 * whole.norm()
    text = "Once upon a time, there were 3 cats."
    assert open_tokenizer(folder).encode(text) == open_tokenizer(TALE).encode(text)


def test_what_is_no_gguf_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert decoded.main(["tale", str(tmp_path / "floats")]) == 1
    assert "no GGUF file" in capsys.readouterr().err and not (tmp_path / "floats").exists()
