// Weight codes in plain C++: whole-number products, and codes as bf16 pairs. See codes_avx512.h for what each name means.
#pragma once

#include "vec_portable.h"

namespace headrace::HEADRACE_ISA {

constexpr int kCodeRows = 4, kCodePanels = 1;
constexpr int kByteOffset = 0;

HEADRACE_INLINE I32x16 dot_bytes(I32x16 acc, Codes codes, const std::int8_t* four) {
    I32x16 products;
    for (int i = 0; i < 16; ++i) {
        products.v[i] = 0;
        for (int j = 0; j < 4; ++j) products.v[i] += static_cast<std::int32_t>(codes.v[4 * i + j]) * four[j];
    }
    return acc + products;
}
HEADRACE_INLINE I32x16 dot_nibbles(I32x16 acc, Codes codes, const std::int8_t* four) {
    return dot_bytes(acc, codes, four);
}

HEADRACE_INLINE I32x16 load_bytes(const std::uint8_t* p) {
    I32x16 r;
    for (int i = 0; i < 16; ++i) r.v[i] = p[i];
    return r;
}

// Whole numbers of up to eight bits are exact in bf16.
HEADRACE_INLINE bf16_t exact_bf16(int x) { return static_cast<bf16_t>(bits_of(static_cast<float>(x)) >> 16); }

struct NibblePairs {
    I32x16 zero;
    HEADRACE_INLINE NibblePairs of(const std::uint8_t* zeros) {
        return {zeros == nullptr ? I32x16::broadcast(8) : load_bytes(zeros)};
    }
    HEADRACE_METHOD void operator()(Codes packed, Pairs (&out)[4]) const {
        for (int i = 0; i < 64; ++i) {  // byte i is feature i % 4 (low half) and 4 + i % 4 (high half) of column i / 4
            const int column = i / 4, pair = i % 4 / 2, half = i % 2;
            out[pair].v[2 * column + half] = exact_bf16((packed.v[i] & 15) - zero.v[column]);
            out[2 + pair].v[2 * column + half] = exact_bf16((packed.v[i] >> 4) - zero.v[column]);
        }
    }
};

struct BytePairs {
    I32x16 zero;
    HEADRACE_INLINE BytePairs of(const std::uint8_t* zeros) {
        return {zeros == nullptr ? I32x16::broadcast(128) : load_bytes(zeros)};
    }
    HEADRACE_METHOD void operator()(Codes codes, Pairs (&out)[2]) const {
        for (int i = 0; i < 64; ++i) {
            const int column = i / 4, pair = i % 4 / 2, half = i % 2;
            out[pair].v[2 * column + half] = exact_bf16(codes.v[i] - zero.v[column]);
        }
    }
};

}  // namespace headrace::HEADRACE_ISA
