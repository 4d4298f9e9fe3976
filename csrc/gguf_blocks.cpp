#include "gguf_blocks.h"

#include <cstring>

namespace headrace {
namespace {

std::uint16_t word(const std::uint8_t* at) { return static_cast<std::uint16_t>(at[0] | at[1] << 8); }

// Features i and i + 16 of 32 in the halves of byte i.
void unpack_nibbles(const std::uint8_t* from, std::uint8_t* codes) {
    for (int i = 0; i < 16; ++i) {
        codes[i] = from[i] & 15;
        codes[i + 16] = from[i] >> 4;
    }
}

// A fifth bit for each of 32 features, feature 0 lowest.
void add_fifth_bits(const std::uint8_t* bits, std::uint8_t* codes) {
    for (int i = 0; i < 32; ++i) codes[i] = static_cast<std::uint8_t>(codes[i] | (bits[i / 8] >> i % 8 & 1) << 4);
}

void unpack_q4_0(const std::uint8_t* block, Block& out) {
    out.scale = word(block);
    unpack_nibbles(block + 2, out.codes);
}

void unpack_q4_1(const std::uint8_t* block, Block& out) {
    out.scale = word(block);
    out.minimum = word(block + 2);
    unpack_nibbles(block + 4, out.codes);
}

void unpack_q5_0(const std::uint8_t* block, Block& out) {
    out.scale = word(block);
    unpack_nibbles(block + 6, out.codes);
    add_fifth_bits(block + 2, out.codes);
}

void unpack_q5_1(const std::uint8_t* block, Block& out) {
    out.scale = word(block);
    out.minimum = word(block + 2);
    unpack_nibbles(block + 8, out.codes);
    add_fifth_bits(block + 4, out.codes);
}

void unpack_q8_0(const std::uint8_t* block, Block& out) {
    out.scale = word(block);
    for (int i = 0; i < 32; ++i) out.codes[i] = block[2 + i] ^ 0x80;
}

void unpack_mxfp4(const std::uint8_t* block, Block& out) {
    out.scale = block[0];
    unpack_nibbles(block + 1, out.codes);
}

// Two bits of feature 128 n + 32 j + i: bits 2 j of byte 32 n + i.
int two_bits(const std::uint8_t* from, int feature) { return from[feature / 128 * 32 + feature % 32] >> feature % 128 / 32 * 2 & 3; }

void unpack_q2_k(const std::uint8_t* block, Block& out) {
    for (int g = 0; g < 16; ++g) {
        out.scales[g] = block[g] & 15;
        out.minima[g] = block[g] >> 4;
    }
    for (int i = 0; i < kSuper; ++i) out.codes[i] = static_cast<std::uint8_t>(two_bits(block + 16, i));
    out.scale = word(block + 80);
    out.minimum = word(block + 82);
}

void unpack_q3_k(const std::uint8_t* block, Block& out) {
    const std::uint8_t* scales = block + 96;
    for (int i = 0; i < kSuper; ++i) {
        const int high = block[i % 32] >> i / 32 & 1;
        out.codes[i] = static_cast<std::uint8_t>(two_bits(block + 32, i) | high << 2);
    }
    for (int g = 0; g < 16; ++g) {
        const int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4, high = scales[8 + g % 4] >> g / 4 * 2 & 3;
        out.scales[g] = static_cast<std::uint8_t>((low | high << 4) - 32);
    }
    out.scale = word(block + 108);
}

// Eight scales and minima of six bits each: the first four whole, four bits of the others and their two above those.
void unpack_six_bits(const std::uint8_t* from, Block& out) {
    for (int g = 0; g < 4; ++g) {
        out.scales[g] = from[g] & 63;
        out.minima[g] = from[g + 4] & 63;
        out.scales[g + 4] = static_cast<std::uint8_t>((from[g + 8] & 15) | from[g] >> 6 << 4);
        out.minima[g + 4] = static_cast<std::uint8_t>(from[g + 8] >> 4 | from[g + 4] >> 6 << 4);
    }
}

// Features 64 c + i and 64 c + 32 + i in the halves of byte 32 c + i.
void unpack_long_nibbles(const std::uint8_t* from, std::uint8_t* codes) {
    for (int c = 0; c < 4; ++c) {
        for (int i = 0; i < 32; ++i) {
            codes[64 * c + i] = from[32 * c + i] & 15;
            codes[64 * c + 32 + i] = from[32 * c + i] >> 4;
        }
    }
}

void unpack_q4_k(const std::uint8_t* block, Block& out) {
    out.scale = word(block);
    out.minimum = word(block + 2);
    unpack_six_bits(block + 4, out);
    unpack_long_nibbles(block + 16, out.codes);
}

void unpack_q5_k(const std::uint8_t* block, Block& out) {
    out.scale = word(block);
    out.minimum = word(block + 2);
    unpack_six_bits(block + 4, out);
    unpack_long_nibbles(block + 48, out.codes);
    for (int i = 0; i < kSuper; ++i) {
        out.codes[i] = static_cast<std::uint8_t>(out.codes[i] | (block[16 + i % 32] >> i / 32 & 1) << 4);
    }
}

void unpack_q6_k(const std::uint8_t* block, Block& out) {
    for (int half = 0; half < 2; ++half) {
        const std::uint8_t *low = block + 64 * half, *high = block + 128 + 32 * half;
        for (int i = 0; i < 128; ++i) {
            const int nibble = i < 64 ? low[i] & 15 : low[i - 64] >> 4;
            out.codes[128 * half + i] = static_cast<std::uint8_t>(nibble | (high[i % 32] >> i / 32 * 2 & 3) << 4);
        }
    }
    std::memcpy(out.scales, block + 192, 16);
    out.scale = word(block + 208);
}

void unpack_iq4_xs(const std::uint8_t* block, Block& out) {
    out.scale = word(block);
    const int high = word(block + 2);
    for (int g = 0; g < 8; ++g) {
        const int low = block[4 + g / 2] >> 4 * (g % 2) & 15;
        out.scales[g] = static_cast<std::uint8_t>((low | (high >> 2 * g & 3) << 4) - 32);
        unpack_nibbles(block + 8 + 16 * g, out.codes + 32 * g);
    }
}

constexpr std::int8_t kIQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr std::int8_t kE2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // times two

using F = WeightFormat;
using S = ScaleType;
constexpr BlockType kTypes[] = {
    // name, features, bytes, format, group, scales, middle, minima, unit, table
    {"q4_0", 32, 18, F::int4, 32, S::f16, 8, false, 1.0F, nullptr, unpack_q4_0},
    {"q4_1", 32, 20, F::int4, 32, S::f16, 0, true, 1.0F, nullptr, unpack_q4_1},
    {"q5_0", 32, 22, F::int5, 32, S::f16, 16, false, 1.0F, nullptr, unpack_q5_0},
    {"q5_1", 32, 24, F::int5, 32, S::f16, 0, true, 1.0F, nullptr, unpack_q5_1},
    {"q8_0", 32, 34, F::int8, 32, S::f16, 128, false, 1.0F, nullptr, unpack_q8_0},
    {"q2_k", 256, 84, F::int2, 16, S::k_minima, 0, false, 1.0F, nullptr, unpack_q2_k},
    {"q3_k", 256, 110, F::int3, 16, S::k_signed, 4, false, 1.0F, nullptr, unpack_q3_k},
    {"q4_k", 256, 144, F::int4, 32, S::k_minima, 0, false, 1.0F, nullptr, unpack_q4_k},
    {"q5_k", 256, 176, F::int5, 32, S::k_minima, 0, false, 1.0F, nullptr, unpack_q5_k},
    {"q6_k", 256, 210, F::int6, 16, S::k_signed, 32, false, 1.0F, nullptr, unpack_q6_k},
    {"iq4_nl", 32, 18, F::table4, 32, S::f16, 128, false, 1.0F, kIQ4, unpack_q4_0},
    {"iq4_xs", 256, 136, F::table4, 32, S::k_signed, 128, false, 1.0F, kIQ4, unpack_iq4_xs},
    {"mxfp4", 32, 17, F::table4, 32, S::e8m0, 128, false, 0.5F, kE2M1, unpack_mxfp4},
};

}  // namespace

const BlockType* find_block_type(const std::string& name) {
    for (const BlockType& type : kTypes) {
        if (name == type.name) return &type;
    }
    return nullptr;
}

}  // namespace headrace
