from __future__ import annotations

from pathlib import Path

import pytest

from headrace.ops.cpu_features import detect
from headrace.plan.hardware import this_machine
from headrace.plan.units import GIB, MIB

MEMINFO = """\
MemTotal:        8388608 kB
MemFree:         1048576 kB
MemAvailable:    4194304 kB
Cached:          2097152 kB
HugePages_Total:       0
"""


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def memory(root: Path) -> tuple[int, int]:
    machine = this_machine(detect(), root=put(root, {"proc/meminfo": MEMINFO}))
    return machine.memory_total, machine.memory_available


def test_this_machine() -> None:
    machine = this_machine()
    assert machine.kind == "cpu" and machine.name and machine.cores >= 1
    assert 0 < machine.memory_available <= machine.memory_total
    assert machine.flags == detect().flags


def test_meminfo_alone(tmp_path: Path) -> None:
    assert memory(tmp_path) == (8 * GIB, 4 * GIB)


def test_old_kernels_do_not_say_what_is_available(tmp_path: Path) -> None:
    text = MEMINFO.replace("MemAvailable", "Other")
    machine = this_machine(detect(), root=put(tmp_path, {"proc/meminfo": text}))
    assert machine.memory_available == 3 * GIB


@pytest.mark.parametrize("text", [None, "", "MemTotal: lots\n", "\0\0"])
def test_no_meminfo_still_gives_a_guess(tmp_path: Path, text: str | None) -> None:
    machine = this_machine(detect(), root=tmp_path if text is None else put(tmp_path, {"proc/meminfo": text}))
    assert 0 < machine.memory_available < machine.memory_total


def test_cgroup_v2_limits_and_gives_back_page_cache(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/b/memory.current": "5\n",
            "sys/fs/cgroup/a/memory.max": f"{2 * GIB}\n",
            "sys/fs/cgroup/a/memory.current": f"{1536 * MIB}\n",
            "sys/fs/cgroup/a/memory.stat": f"anon 7\ninactive_file {512 * MIB}\n",
        },
    )
    assert memory(tmp_path) == (2 * GIB, GIB)


def test_cgroup_v2_seen_from_inside_a_container(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../../host/path\n",
            "sys/fs/cgroup/memory.max": f"{GIB}\n",
            "sys/fs/cgroup/memory.current": f"{2 * GIB}\n",  # over its limit for a moment
        },
    )
    assert memory(tmp_path) == (GIB, 0)


@pytest.mark.parametrize("mount", ["memory", "cpu,memory"])
def test_cgroup_v1(tmp_path: Path, mount: str) -> None:
    group = f"sys/fs/cgroup/{mount}/docker/x"
    put(
        tmp_path,
        {
            "proc/self/cgroup": "3:cpuset:/\n2:cpu,memory:/docker/x\n1:name=systemd:/docker/x\n",
            f"{group}/memory.limit_in_bytes": f"{3 * GIB}\n",
            f"{group}/memory.usage_in_bytes": f"{2 * GIB}\n",
            f"{group}/memory.stat": f"inactive_file 9\ntotal_inactive_file {GIB}\n",
            f"sys/fs/cgroup/{mount}/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert memory(tmp_path) == (3 * GIB, 2 * GIB)
