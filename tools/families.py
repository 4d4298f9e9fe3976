"""Writes README's table of model families, read from the code: python -m tools.families"""

from __future__ import annotations

from pathlib import Path

from headrace.models.families.registry import ARCHITECTURES as FAMILIES
from headrace.models.gguf.architectures import ARCHITECTURES as GGUF

TARGET = Path(__file__).parents[1] / "README.md"

BEGIN, END = "<!-- families:begin -->", "<!-- families:end -->"


def table() -> str:
    """A row a family: models, architecture of a config.json, architecture of a GGUF file, features."""
    files: dict[str, list[str]] = {}
    for name, one in GGUF.items():
        for family in (one.family, *one.others):
            files.setdefault(family, []).append(f"`{name}`")
    rows = [
        f"| {family.models} | `{name}` | {', '.join(files.get(name, ['-']))} | {family.features} |"
        for name, family in FAMILIES.items()
    ]
    return "\n".join(["| models | config.json | GGUF | features |", "|---|---|---|---|", *rows])


def page(text: str) -> str:
    """README with the table as it is now."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    TARGET.write_text(page(TARGET.read_text(encoding="utf-8")), encoding="utf-8")
