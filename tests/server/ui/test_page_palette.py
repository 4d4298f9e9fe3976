"""Both themes: text has a contrast of 4.5 or more to its ground, marks and borders of controls 3 or more (WCAG 2.2)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.server.ui import page

CSS = (Path(page.__file__).parent / "static" / "common" / "palette.css").read_text(encoding="utf-8")

GROUNDS = ("ground", "surface", "raised")
TEXT = [
    *((ink, ground) for ink in ("ink", "quiet", "accent") for ground in GROUNDS),
    ("on-accent", "accent"),
    ("on-mine", "mine"),
    ("bad", "bad-ground"),
    ("on-bar", "decode"),
]
MARKS = [
    *((mark, "surface") for mark in ("queued", "prefill", "decode", "decode-2", "preempted", "shared", "accent")),
    *((mark, "ground") for mark in ("edge", "good", "decode", "bad")),
    ("edge", "surface"),
    ("on-bar", "shared"),
]  # fmt: skip

Palette = dict[str, str]


def blocks() -> dict[str, Palette]:
    """The palette under each selector."""
    found = {}
    for selector, body in re.findall(r"(:root[^{]*)\{([^}]*)\}", CSS):
        found[selector.strip()] = dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", body))
    return found


BLOCKS = blocks()
LIGHT = BLOCKS[":root"]
DARK = LIGHT | BLOCKS[':root[data-theme="dark"]']


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def too_weak(palette: Palette) -> list[str]:
    weak = []
    for pairs, least in ((TEXT, 4.5), (MARKS, 3.0)):
        for front, back in pairs:
            found = contrast(palette[front], palette[back])
            if found < least:
                weak.append(f"{front} on {back}: {found:.2f}, not {least}")
    return weak


def test_the_arithmetic() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_contrast(palette: Palette) -> None:
    assert too_weak(palette) == []


def test_a_faint_colour_is_noticed() -> None:
    assert too_weak(LIGHT | {"quiet": "#9aa9ac"})


def test_the_system_theme_and_the_chosen_one_are_the_same() -> None:
    (system,) = [palette for selector, palette in BLOCKS.items() if ":not(" in selector]
    assert system == BLOCKS[':root[data-theme="dark"]']
    assert set(system) == set(LIGHT)
