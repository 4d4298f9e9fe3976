"""A packed folder as a model: the same bits as its source, shared between processes, and larger than memory."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace import LLM, CheckpointError, ConfigError, ModelError, SamplingParams
from headrace.build import pack, survey
from headrace.cli import main
from headrace.config import EngineConfig
from headrace.config_resolve import resolve
from headrace.models.families import read_spec
from headrace.models.packed.folder import new_folder
from headrace.models.packed.header import DATA_FILE, HEADER_FILE, read_header
from headrace.models.shapes import SHAPES
from headrace.models.source import resolve_model
from headrace.plan.hardware import this_machine
from headrace.plan.ledger import ledger
from headrace.plan.report import summary
from headrace.plan.units import GIB
from headrace.program.lower import lower
from headrace.text.tokenizer_source import open_tokenizer
from tests import needs
from tests.gguf_files import write_gguf
from tests.gguf_vocabularies import scored, write_metadata
from tests.models.quantized.models import family, quantize
from tests.models.quantized.packers import CASES
from tests.places import TALE

native = needs.native()

GREEDY = SamplingParams(max_tokens=12, temperature=0.0, logprobs=3, prompt_logprobs=2)
PROMPTS = ["Once upon a time", "The fox said that"]


def outputs(model: str | Path, **options: Any) -> Any:
    llm = LLM(str(model), show_progress=False, num_threads=1, max_model_len=128, **options)
    return [
        (output.prompt_logprobs, output.outputs[0].token_ids, output.outputs[0].logprobs)
        for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    ]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("packed") / "tale-int4"
    pack(EngineConfig("tale", quantization="int4", num_threads=1), folder)
    yield folder


def test_the_bits_of_its_source(packed: Path) -> None:
    assert outputs(packed) == outputs("tale", quantization="int4")


def test_keys_and_values_of_a_folder(tmp_path: Path) -> None:
    """The automatic type is packed, an option about it is not; a folder without the field takes the compute type."""

    def types(model: Path | str, **options: Any) -> tuple[str, str]:
        resolved = survey(EngineConfig(str(model), num_threads=1, **options)).resolved
        return resolved.kv_cache_dtype, dict(resolved.reasons)["kv_cache_dtype"]

    folder = tmp_path / "packed"
    pack(EngineConfig("tale", num_threads=1, ops_force="portable", kv_cache_dtype="int8"), folder)
    assert types(folder) == ("bfloat16", "what the packed folder was made with")
    assert types("tale", ops_force="portable")[0] == "bfloat16"
    assert types(folder, kv_cache_dtype="int8")[0] == "int8"
    path = folder / "packed.json"
    header = json.loads(path.read_text())
    del header["facts"]["kv_dtype"]
    path.write_text(json.dumps(header))
    assert types(folder) == ("float32", "the compute type")
    for wrong in ("int8", "x" * 1000, 7, ["bfloat16"]):
        path.write_text(json.dumps({**header, "facts": {**header["facts"], "kv_dtype": wrong}}))
        with pytest.raises(CheckpointError, match=r"keys and values|kv_dtype"):
            survey(EngineConfig(str(folder)))


@pytest.mark.parametrize(
    "options", [{}, {"dtype": "float32"}, {"quantization": "int8-g32-asym-a16"}], ids=str
)
def test_the_bits_of_its_source_in_other_formats(tmp_path: Path, options: dict[str, Any]) -> None:
    pack(EngineConfig("tale", num_threads=1, **options), tmp_path / "packed")
    assert outputs(tmp_path / "packed") == outputs("tale", **options)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("gptq-4-asym", {}),
        ("bnb-nf4-nested", {"quantization": "a8"}),
        pytest.param("gptq-4-asym", {"quantization": "a8"}, marks=pytest.mark.long),
        pytest.param("bnb-nf4-nested", {}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_the_bits_of_a_quantised_checkpoint(tmp_path: Path, method: str, options: dict[str, Any]) -> None:
    """Each matrix keeps its format: codes where kernels hold them, else floats."""
    source, target = tmp_path / "source", tmp_path / "packed"
    quantize(source, family("qwen2-full").build(source), CASES[method])
    pack(EngineConfig(str(source), tokenizer="tale", num_threads=1, **options), target)
    plans = [survey(EngineConfig(str(folder), **options)) for folder in (source, target)]
    one, other = (plan.resolved.weight_formats for plan in plans)
    assert one is not None and other is not None
    assert all(one.of(weight.name) == other.of(weight.name) for weight in lower(plans[0].spec).weights)
    assert plans[0].ledger.weight_bytes == plans[1].ledger.weight_bytes
    made = []
    for folder in (source, target):
        llm = LLM(
            str(folder), tokenizer="tale", show_progress=False, num_threads=1, max_model_len=64, **options
        )
        made.append([one.prompt_logprobs for one in llm.generate([[5, 6, 7, 8]], GREEDY, use_tqdm=False)])
    assert made[0] == made[1]
    with pytest.raises(ConfigError, match=r"is packed with .*: leave --quantization out"):
        survey(EngineConfig(str(target), quantization="int4"))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"quantization": "q4_0"},
        *(pytest.param({"quantization": other}, marks=pytest.mark.long) for other in ("int8", "a16")),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "tied", [pytest.param(False, marks=pytest.mark.long), True], ids=["two tables", "tied"]
)
def test_the_bits_of_a_gguf_file(tmp_path: Path, options: dict[str, Any], tied: bool) -> None:
    """Blocks of several types in one product, embeddings in blocks, and the same rounded again."""
    folder, source, target = TALE, tmp_path / "mixed.gguf", tmp_path / "packed"
    types = {"attn_v": "Q6_K", "ffn_down": "IQ4_XS", "token_embd": "Q6_K"}
    if not tied:
        folder = tmp_path / "folder"
        family("llama-gqa").build(folder)
        types = {"attn_v": "Q8_0", "ffn_up": "Q8_0", "ffn_down": "Q5_1", "token_embd": "Q8_0"}
    usual = "Q4_K" if tied else "Q4_0"
    write_gguf(folder, source, lambda name: types.get(name.split(".")[-2], usual))
    pack(EngineConfig(str(source), tokenizer="tale", num_threads=1, **options), target)
    plans = [survey(EngineConfig(str(one), tokenizer="tale", **options)) for one in (source, target)]
    assert plans[0].ledger.weight_bytes == plans[1].ledger.weight_bytes
    assert plans[0].spec.codes is not None
    made = []
    for one in (source, target):
        llm = LLM(str(one), tokenizer="tale", show_progress=False, num_threads=1, max_model_len=64, **options)
        made.append([out.prompt_logprobs for out in llm.generate([[5, 6, 7, 8]], GREEDY, use_tqdm=False)])
    assert made[0] == made[1]


def test_the_tokenizer_of_a_gguf_file_goes_along(tmp_path: Path) -> None:
    source, target = tmp_path / "tale.gguf", tmp_path / "packed"
    write_gguf(TALE, source, "Q8_0")
    pack(EngineConfig(str(source), num_threads=1), target)
    one, other = open_tokenizer(source), open_tokenizer(target)
    for fact in ("vocab_size", "special_ids", "bos_id", "eos_id", "pad_id", "eos_ids", "template_names"):
        assert getattr(one, fact) == getattr(other, fact), fact
    assert one.chat_template_source() == other.chat_template_source() is not None
    text = "Once upon a time <|end|> \u00e9\U0001f600  12,345"
    for special in (False, True):
        assert one.encode(text, special) == other.encode(text, special)
    chat = [{"role": "user", "content": "Tell me a story."}]
    assert one.apply_chat_template(chat) == other.apply_chat_template(chat)
    assert one.decode(one.encode(text), skip_special_tokens=False) == other.decode(
        other.encode(text), skip_special_tokens=False
    )
    said = []
    for model in (source, target):
        llm = LLM(str(model), show_progress=False, num_threads=1)
        said.append(llm.generate("Once upon", GREEDY, use_tqdm=False)[0].outputs[0].text)
    assert said[0] == said[1]


def test_a_tokenizer_that_tokenizer_json_cannot_hold_goes_along(tmp_path: Path) -> None:
    """Scores in place of merges, as of SentencePiece, in a vocabulary of as many pieces as the model's."""
    pieces = [
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("</s>", 0.0, 3),
        *((f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)),
    ]
    words = ["\u2581", *"abcdefghijklmnopqrstuvwxyz", "\u2581a", "\u2581on", "\u2581once", "on", "ce"]
    pieces += [(word, -float(place), 1) for place, word in enumerate(words)]
    metadata = scored(pieces, bos_token_id=1, eos_token_id=2)
    metadata["tokenizer.chat_template"] = "{{ messages[0].content }}"
    vocabulary = write_metadata(tmp_path / "words.gguf", metadata)
    target = tmp_path / "packed"
    pack(EngineConfig("tale", tokenizer=str(vocabulary), num_threads=1), target)
    assert not (target / "tokenizer.json").exists()
    one, other = open_tokenizer(vocabulary), open_tokenizer(target)
    for text in ("once on a", "caf\u00e9  </s>x", ""):
        assert one.encode(text) == other.encode(text)
    assert one.encode("once") and one.eos_ids == other.eos_ids
    chat = [{"role": "user", "content": "once"}]
    assert one.apply_chat_template(chat) == other.apply_chat_template(chat)
    again = tmp_path / "again"
    pack(EngineConfig("tale", tokenizer=str(target), num_threads=1), again)  # that of a packed folder
    assert open_tokenizer(again).encode("once") == one.encode("once")
    LLM(str(target), show_progress=False, num_threads=1).generate("once", GREEDY, use_tqdm=False)


def test_every_instruction_set_runs_it(packed: Path) -> None:
    """The layout is one for all of them, so any may run what the best one packed, with the bits that it gives
    itself."""
    facts = read_header(packed).facts
    for name in native.available_kernels():
        if name != "amx-emulated":
            options = {"ops_force": name, "dtype": facts.dtype, "kv_cache_dtype": facts.kv_dtype}
            assert outputs(packed, ops_force=name) == outputs("tale", quantization="int4", **options), name


def test_options_that_contradict_it(packed: Path) -> None:
    for options, said in (
        ({"quantization": "int8"}, "is packed with int4: leave --quantization out, or pack the model again"),
        ({"dtype": "float16"}, "is packed for "),
        (
            {"ops_force": "torch"},
            "quantization int4 needs the native CPU kernels|ops_force torch cannot serve",
        ),
    ):
        with pytest.raises(ConfigError, match=said) as caught:
            survey(EngineConfig(str(packed), **options))
        assert "\n" not in str(caught.value)
    assert survey(EngineConfig(str(packed), quantization="int4")).resolved.quantization == "int4"


def test_another_layout_or_version_is_refused(packed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(packed, folder)
    text = (folder / HEADER_FILE).read_text()
    layout = native.Kernels(native.available_kernels()[0]).layout
    (folder / HEADER_FILE).write_text(text.replace(layout, "tiles.7"))
    said = r"packed in the layout 'tiles\.7' .*: pack the model again with `headrace pack`"
    with pytest.raises(CheckpointError, match=said):
        LLM(str(folder), show_progress=False)
    (folder / HEADER_FILE).write_text(text.replace('"version": 1', '"version": 9'))
    with pytest.raises(CheckpointError, match="packed in version 9 of the format, and this is version 1"):
        LLM(str(folder), show_progress=False)


def test_inspect_explains_it(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(packed)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "file" in lines["weights_from"] and "shared by all processes" in lines["weights_from"]
    assert "int4" in lines["quantization"] and "what the packed folder was made with" in lines["quantization"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cut", "it is not complete"),
        ("absent", "packed.weights: No such file or directory"),
        ("pipe", "packed.weights: it is not a regular file"),
        ("layout", "packed in the layout 'older'"),
        ("config", "which the config does not account for"),
    ],
)
def test_inspect_refuses_what_cannot_be_loaded(
    packed: Path, tmp_path: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(packed, tmp_path / "other")
    data, config, header = (folder / one for one in (DATA_FILE, "config.json", HEADER_FILE))
    if name == "cut":
        os.truncate(data, data.stat().st_size - 4096)
    elif name == "layout":
        header.write_text(header.read_text().replace(read_header(folder).facts.layout, "older"))
    elif name == "config":
        config.write_text(config.read_text().replace('"num_hidden_layers": 6', '"num_hidden_layers": 5'))
    else:
        data.unlink()
        if name == "pipe":
            os.mkfifo(data)
    assert main(["inspect", str(folder)]) == 1
    shown = capsys.readouterr()
    assert said in shown.err and shown.err.count("\n") == 1 and shown.out == ""


def test_a_gguf_file_beside_packed_weights_is_not_taken(packed: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(packed, tmp_path / "other")
    (folder / "other-Q4_K_M.gguf").write_bytes(b"GGUF, and nothing that can be read")
    assert resolve_model(str(folder)).path == folder


# ---- Sharing ----

CHILD = """
import sys
from headrace import LLM, SamplingParams
llm = LLM(sys.argv[1], show_progress=False, num_threads=1, max_model_len=64)
llm.generate(["Once upon a time"], SamplingParams(max_tokens=2, temperature=0.0), use_tqdm=False)
print("ready", flush=True)
sys.stdin.readline()
"""


def mapping(pid: int, path: Path) -> dict[str, int]:
    """The lines of /proc/PID/smaps for the mappings of a file, added up, in KiB."""
    sums: dict[str, int] = {}
    inside = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if not name.replace("_", "").isalnum() or " " in name:  # the head of a mapping
            inside = line.endswith(str(path))
        elif inside and rest.endswith("kB"):
            sums[name] = sums.get(name, 0) + int(rest.split()[0])
    return sums


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads Linux's /proc")
def test_processes_share_its_pages(packed: Path) -> None:
    """Two processes that have run it hold the same pages: each is charged with half of them, and none is private."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(packed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        for child in children:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
        size = (packed / DATA_FILE).stat().st_size // 1024
        matrices = sum(entry.bytes for entry in read_header(packed).matrices.values()) // 1024
        for child in children:
            found = mapping(child.pid, packed / DATA_FILE)
            assert found["Size"] == size
            assert found["Rss"] >= matrices  # all of them were read, and some rows of the embeddings
            assert found["Pss"] <= 0.55 * found["Rss"]
            assert found["Private_Dirty"] == found["Shared_Dirty"] == found["Anonymous"] == 0
    finally:
        for child in children:
            child.communicate("\n")


# ---- Larger than memory ----


@pytest.fixture
def decide() -> Callable[..., Any]:
    spec = read_spec(SHAPES["llama-3.1-8b"])

    def run(memory: int, **options: Any) -> Any:
        machine = replace(
            this_machine(),
            memory_total=memory,
            memory_available=memory,
            kernels=("avx2",),
            flags=frozenset({"avx2", "fma"}),
        )
        config = EngineConfig("m", quantization="int4", max_model_len=1024)
        return spec, resolve(config, spec, machine, **options)

    return run


def test_weights_larger_than_memory_run_from_the_file_and_the_plan_says_so(
    decide: Callable[..., Any],
) -> None:
    with pytest.raises(ConfigError, match=r"the weights need .* but 3\.00 GiB of memory is available"):
        decide(3 * GIB)
    spec, resolved = decide(3 * GIB, mapped=True)
    assert resolved.weights_from == "disk"
    said = dict(resolved.reasons)["weights_from"]
    assert "memory has room for 2.25 GiB of" in said and "as slow as the disk" in said
    costs = ledger(spec, resolved)
    assert summary(resolved, costs).endswith(said)
    assert costs.weight_bytes > 3 * GIB  # the plan states all of them
    assert costs.kv_pool_bytes + costs.activation_bytes <= 0.75 * GIB
    spec, resolved = decide(64 * GIB, mapped=True)
    assert resolved.weights_from == "file" and "disk" not in summary(resolved, ledger(spec, resolved))
    assert decide(64 * GIB)[1].weights_from == "memory"


LIMITED = """
import resource, sys
from headrace import LLM, SamplingParams
from headrace.plan import hardware
import headrace.build as build
machine = hardware.this_machine()
small = build.replace(machine, memory_available=int(sys.argv[2]))
build.this_machine = lambda: small
llm = LLM(sys.argv[1], show_progress=False, num_threads=1, max_model_len=32, max_num_seqs=1, max_num_batched_tokens=32)
out = llm.generate(["Once upon a time"], SamplingParams(max_tokens=8, temperature=0.0), use_tqdm=False)[0]
print(llm.parts.resolved.weights_from, out.outputs[0].token_ids)
"""


def test_it_runs_with_less_memory_than_weights(tmp_path: Path) -> None:
    """A machine whose memory has no room for weights and KV cache: the folder runs, with the same tokens."""
    packed = tmp_path / "packed"
    pack(EngineConfig("tale", dtype="float32", num_threads=1), packed)
    size = (packed / DATA_FILE).stat().st_size
    runs = [
        subprocess.run(
            [sys.executable, "-c", LIMITED, str(packed), str(memory)],
            capture_output=True,
            text=True,
            check=False,
        )
        for memory in (size * 5 // 4, 8 * GIB)
    ]
    assert all(run.returncode == 0 for run in runs), runs[0].stderr + runs[1].stderr
    (small, *tokens), (large, *expected) = (run.stdout.split(maxsplit=1) for run in runs)
    assert (small, large) == ("disk", "file") and tokens == expected


# ---- The command ----


def test_pack_and_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "deep" / "tale"
    assert main(["pack", "tale", str(target), "--num-threads", "1"]) == 0
    said = capsys.readouterr().out
    assert str(target) in said and "generate -m" in said
    assert {path.name for path in target.iterdir()} >= {
        HEADER_FILE, DATA_FILE, "config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json",
    }  # fmt: skip
    assert not list(target.glob("*.safetensors"))
    assert main(["pack", str(target), "--verify"]) == 0
    assert "weights are what was written" in capsys.readouterr().out
    with (target / DATA_FILE).open("r+b") as file:
        file.write(b"\x55")
    assert main(["pack", str(target), "--verify"]) == 1
    assert "is damaged: its SHA-256 differs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pack", "tale"], "give a folder to write, or --verify"),
        (["pack", "tale", "{tmp}/x", "--verify"], "give a folder to write, or --verify"),
        (["pack", "{tmp}", "--verify"], "is not a packed folder"),
        (["pack", "tale", "{tmp}/full"], "is there already"),
        (["pack", "tale", "{tmp}/file"], "is there already"),
        (["pack", "tale", "{tmp}/file/x"], "cannot be made"),
        (
            ["pack", "tale", "{tmp}/x", "--ops-force", "torch"],
            "packed weights are for the native CPU kernels, but",
        ),
        (["pack", "shape:tiny", "{tmp}/x"], "has no tokenizer: name one with --tokenizer"),
    ],
)
def test_refusals(tmp_path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    assert main([word.format(tmp=tmp_path) for word in words]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("headrace: error: ") and said in shown and shown.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(ModelError, match=r" needs [\d,]+ bytes, but its disk has 1,000 bytes free"):
        pack(EngineConfig("tale", num_threads=1), tmp_path / "packed")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_may_not_grow_is_named(tmp_path: Path) -> None:
    target = tmp_path / "packed"
    command = f'ulimit -f 100; exec "{sys.executable}" -m headrace pack tale "{target}"'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1 and list(tmp_path.iterdir()) == []
    assert done.stderr == f"headrace: error: {target} cannot be written: File too large; nothing was kept\n"


def test_a_source_that_breaks_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(TALE, source)
    os.truncate(source / "model.safetensors", 100_000)
    with pytest.raises(CheckpointError):
        pack(EngineConfig(str(source), num_threads=1), tmp_path / "packed")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_another_process_is_faster(tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    with pytest.raises(ModelError, match="was made by another process meanwhile"), new_folder(folder, 0):
        folder.mkdir()
        (folder / HEADER_FILE).touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["packed", HEADER_FILE]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """But not what another process writes at the same time, nor what belongs to another folder."""
    killed, busy, other = (tmp_path / f".{name}.partial" for name in ("packed.1", "packed.2", "packed2.1"))
    for one in (killed, busy, other):
        one.mkdir()
        (one / "packed.weights").write_bytes(b"half")
    held = os.open(busy, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        pack(EngineConfig("tale", num_threads=1), tmp_path / "packed")
    finally:
        os.close(held)
    assert sorted(path.name for path in tmp_path.iterdir()) == [busy.name, other.name, "packed"]


def test_a_process_that_is_killed_leaves_no_folder(tmp_path: Path) -> None:
    script = f"""
import os, signal
from headrace.build import pack
from headrace.config import EngineConfig
from pathlib import Path

def progress(done, total):
    if done > total // 2:
        os.kill(os.getpid(), signal.SIGKILL)

pack(EngineConfig("tale", num_threads=1), Path({str(tmp_path / "packed")!r}), progress)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    assert [path.name.startswith(".packed.") for path in tmp_path.iterdir()] == [True]
    pack(EngineConfig("tale", num_threads=1), tmp_path / "packed")
    assert [path.name for path in tmp_path.iterdir()] == ["packed"]
