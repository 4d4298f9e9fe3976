r"""Values of `tokenizer.ggml.pre`: how a byte-pair model's text is split before it is merged.

The names are those that llama.cpp's converter writes. The patterns are those of the models' own tokenizer.json files,
in the syntax of `tokenizers` (Oniguruma). llama.cpp only approximates some: it has no upper and lower case outside of
ASCII (`tekken`, `gpt-4o`), and no Unicode normal forms. Where a tokenizer.json composes text to NFC (Qwen,
Cohere, GPT-NeoX), so is it here.

Patterns are applied one after the other, each to the pieces that the one before has left. A match is a piece, and so is
what lies between two matches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str, before: str = _CONTRACTION + "|", spaces: str = _SPACES) -> str:
    """The pattern of cl100k_base, which most models since 2023 have with other groups of digits."""
    return rf"{before}[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{spaces}"


def _cased(digits: str, end: str = _CONTRACTION + "?") -> str:
    """The pattern of o200k_base: a word ends where a small letter is followed by a capital."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{end}|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{end}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


_LLAMA3 = _words(r"\p{N}{1,3}")
_QWEN2 = _words(r"\p{N}")
_O200K = _cased(r"\p{N}{1,3}")


def _threes(digit: str, end: str) -> str:
    """Digits in groups of three from the end of a number, of which the first may be shorter.

    Published as `DIGIT{1,3}(?=(?:DIGIT{3})*END)`, which looks at the rest of the number for each group. This looks once
    for each number: what follows a group directly is the next one.
    """
    return rf"(?<!{digit}){digit}{{1,3}}(?=(?:{digit}{{3}})*+{end})|\G(?<={digit}){digit}{{3}}"


_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_CJK = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"


def _deepseek3(punctuation: str, spaces: str = _SPACES) -> str:
    return rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+|{punctuation}|{spaces}"


_DEEPSEEK3 = _deepseek3(r" ?[\p{P}\p{S}]+[\r\n]*")

# The letters with a case of the Unicode version that the authors had, as ranges of code points.
_CASED_SPANS = """
41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376-377 37B-37D 37F 386 388-38A 38C 38E-3A1
3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A
1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4
1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128
212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183-2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2-2CF3 A640-A66D
A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3
104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943
"""
_CASED_LETTERS = "".join(
    "-".join(rf"\x{{{bound}}}" for bound in span.split("-")) for span in _CASED_SPANS.split()
)
_DEEPSEEK_SCRIPTS = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+"

_HAN_FREE_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_HAN_FREE_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI = (
    rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?{_HAN_FREE_UPPER}*{_HAN_FREE_LOWER}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_HAN_FREE_UPPER}+{_HAN_FREE_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)

_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"

_YOUTU_SCRIPTS = (
    r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+"
    r"|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}"
    r"\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|" + _CJK
)

_AFMOE_SCRIPTS = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}"
    r"\x{2F00}-\x{2FDF}\x{E40}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}"
    r"\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+"
)

_JAIS2_SPACES = (
    r"\s*[\r\n]+|"
    + "".join(rf"\s{{{count}}}(?!\S)|" for count in (512, 256, 128, 64, 32, 16, 8, 4))
    + r"\s{1,2}(?!\S)|\s{1}"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How one family of byte-pair models prepares its text."""

    splits: tuple[str, ...]
    """Patterns; see the module."""
    nfc: bool = False
    """The text is composed (Unicode normal form C) first."""
    ignore_merges: bool = False
    """A piece that is a token is that token, whether or not the merges lead to it."""
    add_bos: bool = False
    """Texts begin with bos unless the metadata say that they do not."""
    byte_level: bool = True
    """Tokens are written in the GPT-2 byte alphabet. If not, a space is ▁, and rare characters are <0xNN> tokens."""

    def normalizer(self) -> Any:
        """A component of `tokenizers`, or None."""
        if not self.byte_level:
            return normalizers.Replace(" ", "▁")
        return normalizers.NFC() if self.nfc else None

    def pre_tokenizer(self) -> Any:
        """A component of `tokenizers`, or None."""
        steps: list[Any] = [pre_tokenizers.Split(Regex(split), "isolated") for split in self.splits]
        if self.byte_level:
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(steps) if steps else None


# The names as a string of words: a family has up to fourteen.
_FAMILIES: tuple[tuple[PreTokenizer, str], ...] = (
    (
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
        "default",
    ),
    (
        PreTokenizer((_GPT2,)),
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe gigachat a.x-4.0 "
        "mellum modern-bert jais trillion granite-docling exaone4",
    ),
    (PreTokenizer((_GPT2,), nfc=True), "mpt olmo"),
    (
        PreTokenizer((r"\p{N}", _GPT2)),
        "starcoder refact smollm codeshell exaone minerva-7b mellum2",
    ),
    (PreTokenizer((r"\p{N}", _GPT2), nfc=True), "command-r"),
    (PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")), "falcon"),
    (
        PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    ),
    (PreTokenizer((_LLAMA3,)), "dbrx smaug-bpe glm4 chatglm-bpe"),
    (PreTokenizer((_words(r"\p{N}{1,3}", spaces=_JAIS2_SPACES),)), "jais-2"),
    (PreTokenizer((_QWEN2,), nfc=True), "qwen2 deepseek-r1-qwen"),
    (PreTokenizer((_QWEN2,)), "stablelm2 hunyuan solar-open megrez kormo f2llmv2 grok-2"),
    (
        PreTokenizer(
            (
                rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
                rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
            ),
            nfc=True,
        ),
        "qwen35",
    ),
    (PreTokenizer((_words(r"\p{N}", before=""),)), "ufakzeka"),
    (PreTokenizer((r"[^\n]+|[\n]+", _QWEN2)), "laguna"),
    (
        PreTokenizer((r"\p{N}{1,3}", _words(r"\p{N}+")), ignore_merges=True),
        "minicpm5",
    ),
    (
        PreTokenizer(
            (
                rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",
            )
        ),
        "seed-coder",
    ),
    (
        PreTokenizer(
            (
                r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
                r"|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
        "bailingmoe bailingmoe2 llada-moe",
    ),
    (
        PreTokenizer(
            (
                rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
        "exaone-moe",
    ),
    (PreTokenizer((_O200K,)), "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (PreTokenizer((_O200K,), ignore_merges=True), "granite-embed-multi-97m"),
    (PreTokenizer((_threes(r"\d", r"\b"), _O200K)), "tiny_aya cohere2moe"),
    (PreTokenizer((_cased(r"\p{N}", end=""),), ignore_merges=True, add_bos=True), "tekken"),
    (PreTokenizer((_YOUTU_SCRIPTS, _cased(r"\p{N}")), ignore_merges=True), "youtu"),
    (PreTokenizer((_KIMI,)), "kimi-k2"),
    (
        PreTokenizer(
            (
                r"[\r\n]",
                rf"\s?[{_CASED_LETTERS}]+",
                r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
                r"\s+$",
                _DEEPSEEK_SCRIPTS,
                r"\p{N}+",
            )
        ),
        "deepseek-llm",
    ),
    (
        PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_SCRIPTS, r"\p{N}")),
        "deepseek-coder",
    ),
    (
        PreTokenizer((r"\p{N}{1,3}", _CJK, _DEEPSEEK3)),
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    ),
    (
        PreTokenizer(
            (r"\p{N}{1,3}", _CJK, _deepseek3(r" ?[\p{P}\p{S}]+", r"[\r\n]|\s+(?!\S)|\s+"), r"\p{N}")
        ),
        "spark2_5",
    ),
    (
        PreTokenizer((_threes(r"\p{N}", r"(?!\p{N})"), _AFMOE_SCRIPTS, _DEEPSEEK3)),
        "afmoe",
    ),
    (PreTokenizer((_BLOOM,)), "poro-chat bloom gpt3-finnish"),
    (PreTokenizer((_BLOOM, r"\p{N}")), "viking"),
    # Published with `\p{N}+`, and other ids for numbers beyond 300 digits: the second pattern takes time by the square
    # of a number's length.
    (PreTokenizer((r"\p{N}{1,300}", r"(?=(\d{3})+(?!\d))")), "superbpe"),
    (
        PreTokenizer(
            (
                "<sentinel:[0-9]+>",
                "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                r"([\t\n]|    |  )",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                _GPT2,
            ),
            add_bos=True,
        ),
        "chameleon",
    ),
    (PreTokenizer((), add_bos=True, byte_level=False), "gemma4 granite-embed-multi-311m"),
    (PreTokenizer((), byte_level=False), "sarvam-moe"),
)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    name: family for family, names in _FAMILIES for name in names.split()
}
"""By the value of `tokenizer.ggml.pre`."""
