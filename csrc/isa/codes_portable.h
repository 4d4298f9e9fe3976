// Weight codes in plain C++: whole-number products, and codes as bf16 pairs. See codes_avx512.h for what each name means.
#pragma once

#include "vec_portable.h"

namespace headrace::HEADRACE_ISA {

constexpr int kCodeRows = 4, kCodePanels = 1;
constexpr bool kOnIntel = false;
constexpr bool kBySixteen = false;
constexpr int kByteOffset = 0;

HEADRACE_INLINE I32x16 dot_bytes(I32x16 acc, Codes codes, const std::int8_t* four) {
    I32x16 products;
    for (int i = 0; i < 16; ++i) {
        products.v[i] = 0;
        for (int j = 0; j < 4; ++j) products.v[i] += static_cast<std::int32_t>(codes.v[4 * i + j]) * four[j];
    }
    return acc + products;
}
HEADRACE_INLINE I32x16 dot_small(I32x16 acc, Codes codes, const std::int8_t* four) { return dot_bytes(acc, codes, four); }

constexpr int run_of(int) { return 1; }

HEADRACE_INLINE Pairs widen_bytes(const void* p) {
    std::int8_t bytes[32];
    std::memcpy(bytes, p, sizeof bytes);
    Pairs r;
    for (int i = 0; i < 32; ++i) r.v[i] = static_cast<std::uint16_t>(bytes[i]);
    return r;
}

HEADRACE_INLINE I32x16 dot_shorts(I32x16 acc, Pairs a, Pairs b) {
    I32x16 products;
    const auto number = [](std::uint16_t bits) { return static_cast<std::int32_t>(static_cast<std::int16_t>(bits)); };
    for (int i = 0; i < 16; ++i) {
        products.v[i] = number(a.v[2 * i]) * number(b.v[2 * i]) + number(a.v[2 * i + 1]) * number(b.v[2 * i + 1]);
    }
    return acc + products;
}

HEADRACE_INLINE I32x16 load_bytes(const std::uint8_t* p) {
    I32x16 r;
    for (int i = 0; i < 16; ++i) r.v[i] = p[i];
    return r;
}
HEADRACE_INLINE F32x16 load_powers(const std::uint8_t* p) {
    F32x16 r;
    for (int i = 0; i < 16; ++i) {
        const bool special = p[i] == 0 || p[i] == 255;  // 2^-127 is subnormal
        r.v[i] = float_of(static_cast<std::uint32_t>(p[i]) << 23 | (special ? 0x00400000U : 0U));
    }
    return r;
}

template <int kLeft>
HEADRACE_INLINE Codes shifted(Codes a, int mask) {
    for (int i = 0; i < 64; ++i) {
        const int moved = kLeft < 0 ? a.v[i] >> (kLeft < 0 ? -kLeft : 0) : a.v[i] << (kLeft < 0 ? 0 : kLeft);
        a.v[i] = static_cast<std::uint8_t>(moved & mask);
    }
    return a;
}

template <int kLeft>
HEADRACE_INLINE Codes with_shifted(Codes low, Codes a, int mask) {
    a = shifted<kLeft>(a, mask);
    for (int i = 0; i < 64; ++i) low.v[i] |= a.v[i];
    return low;
}

struct ByteTable {
    std::uint8_t v[16];
    HEADRACE_INLINE ByteTable of(const std::uint8_t* sixteen) {
        ByteTable r;
        std::memcpy(r.v, sixteen, sizeof r.v);
        return r;
    }
    HEADRACE_METHOD Codes operator()(Codes nibbles) const {
        for (int i = 0; i < 64; ++i) nibbles.v[i] = v[nibbles.v[i]];
        return nibbles;
    }
};

using PairFactors = Pairs;  // two features of 16 columns as products of codes read them
HEADRACE_INLINE F32x16 dot(F32x16 acc, PairFactors x, const bf16_t* two) { return dot(acc, x, Pairs::broadcast(two)); }

// Whole numbers of up to eight bits are exact in bf16.
HEADRACE_INLINE bf16_t exact_bf16(int x) { return static_cast<bf16_t>(bits_of(static_cast<float>(x)) >> 16); }

// What becomes word i of a pair: feature 2 * kPair + i % 2 of column i / 2. The nibbles of a byte are four features apart.
template <int kPair>
HEADRACE_INLINE int byte_of(const Codes& codes, int i) {
    return codes.v[4 * (i / 2) + 2 * (kPair % 2) + i % 2];
}
template <int kPair>
HEADRACE_INLINE int nibble_of(const Codes& packed, int i) {
    return byte_of<kPair>(packed, i) >> (kPair < 2 ? 0 : 4) & 15;
}

struct NibblePairs {
    I32x16 zero;
    HEADRACE_INLINE NibblePairs of(I32x16 zero) { return {zero}; }
    template <int kPair>
    HEADRACE_METHOD Pairs pair(Codes packed) const {
        Pairs out;
        for (int i = 0; i < 32; ++i) out.v[i] = exact_bf16(nibble_of<kPair>(packed, i) - zero.v[i / 2]);
        return out;
    }
};

struct BytePairs {
    I32x16 zero;
    HEADRACE_INLINE BytePairs of(I32x16 zero) { return {zero}; }
    template <int kPair>
    HEADRACE_METHOD Pairs pair(Codes codes) const {
        Pairs out;
        for (int i = 0; i < 32; ++i) out.v[i] = exact_bf16(byte_of<kPair>(codes, i) - zero.v[i / 2]);
        return out;
    }
};

struct TablePairs {
    bf16_t numbers[16];
    HEADRACE_INLINE TablePairs of(const bf16_t* sixteen) {
        TablePairs r;
        std::memcpy(r.numbers, sixteen, sizeof r.numbers);
        return r;
    }
    template <int kPair>
    HEADRACE_METHOD Pairs pair(Codes packed) const {
        Pairs out;
        for (int i = 0; i < 32; ++i) out.v[i] = numbers[nibble_of<kPair>(packed, i)];
        return out;
    }
};

template <int kMantissa, int kPower>
struct Float8Pairs {
    template <int kPair>
    HEADRACE_METHOD Pairs pair(Codes codes) const {
        Pairs out;
        for (int i = 0; i < 32; ++i) {
            const float number = from_float8<kMantissa, kPower>(byte_of<kPair>(codes, i));
            out.v[i] = static_cast<bf16_t>(bits_of(number) >> 16);
        }
        return out;
    }
};

}  // namespace headrace::HEADRACE_ISA
