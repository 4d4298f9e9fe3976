// Weight codes on AVX2: whole-number products, and codes as bf16 pairs. See codes_avx512.h for what each name means.
#pragma once

#include "vec_avx2.h"

namespace headrace::HEADRACE_ISA {

constexpr int kCodeRows = 4, kCodePanels = 1;  // sixteen registers
constexpr bool kBySixteen = true;              // tiles take 16 features at once; spans of 16 and 32 have tiles of their own

// The instruction that multiplies bytes clips sums of two products at 32767, which 255 * 127 * 2 exceeds and
// 128 * 127 * 2 does not.
constexpr int kByteOffset = 128;

HEADRACE_INLINE __m256i add_products(__m256i acc, __m256i factors, __m256i signed_factors) {
    const __m256i words = _mm256_maddubs_epi16(factors, signed_factors);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
}

HEADRACE_INLINE I32x16 dot_bytes(I32x16 acc, Codes codes, const std::int8_t* four) {
    const __m256i word = broadcast_word(four), flip = _mm256_set1_epi8(-128);
    const __m256i a = _mm256_xor_si256(codes.a, flip), b = _mm256_xor_si256(codes.b, flip);
    // The sign of the code goes to the activation: its own range leaves out -128, so that it can change sign.
    acc = {add_products(acc.a, _mm256_abs_epi8(a), _mm256_sign_epi8(word, a)),
           add_products(acc.b, _mm256_abs_epi8(b), _mm256_sign_epi8(word, b))};
    HEADRACE_OPAQUE_VECTOR(acc.a);
    HEADRACE_OPAQUE_VECTOR(acc.b);
    return acc;
}

HEADRACE_INLINE I32x16 dot_small(I32x16 acc, Codes codes, const std::int8_t* four) {
    const __m256i word = broadcast_word(four);
    return {add_products(acc.a, codes.a, word), add_products(acc.b, codes.b, word)};
}

// A word of 16 bits holds the products of two features, of up to (2^bits - 1) * 127 each, of so many vectors.
constexpr int run_of(int bits) { return bits < 6 ? 4 : bits == 6 ? 2 : 1; }

// Sums of kRun vectors of products in words, widened at once: two instructions for each further vector, not three. The
// compiler must not put them together in another order, in which they do not fit into registers.
template <int kRun>
struct ShortSums {
    __m256i a, b;
    HEADRACE_INLINE ShortSums of(Codes codes, const std::int8_t* four) {
        const __m256i word = broadcast_word(four);
        return {_mm256_maddubs_epi16(codes.a, word), _mm256_maddubs_epi16(codes.b, word)};
    }
    HEADRACE_METHOD void add(Codes codes, const std::int8_t* four) {
        const ShortSums more = of(codes, four);
        a = _mm256_add_epi16(a, more.a);
        b = _mm256_add_epi16(b, more.b);
        HEADRACE_OPAQUE_VECTOR(a);
        HEADRACE_OPAQUE_VECTOR(b);
    }
    HEADRACE_METHOD I32x16 added_to(I32x16 acc) const {
        const __m256i ones = _mm256_set1_epi16(1);
        return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(a, ones)), _mm256_add_epi32(acc.b, _mm256_madd_epi16(b, ones))};
    }
};

HEADRACE_INLINE Pairs widen_bytes(const void* p) {
    const auto* bytes = static_cast<const __m128i*>(p);
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(bytes)), _mm256_cvtepi8_epi16(_mm_loadu_si128(bytes + 1))};
}

HEADRACE_INLINE I32x16 dot_shorts(I32x16 acc, Pairs x, Pairs y) {
    return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(x.a, y.a)), _mm256_add_epi32(acc.b, _mm256_madd_epi16(x.b, y.b))};
}

HEADRACE_INLINE I32x16 load_bytes(const std::uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
HEADRACE_INLINE F32x16 load_powers(const std::uint8_t* p) {
    const I32x16 bytes = load_bytes(p);
    const auto power = [](__m256i exponents) {
        const __m256i half = _mm256_set1_epi32(0x00400000);
        const __m256i bits = _mm256_max_epi32(_mm256_slli_epi32(exponents, 23), half);
        const __m256i nan = _mm256_cmpeq_epi32(exponents, _mm256_set1_epi32(255));
        return _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_and_si256(nan, half)));
    };
    return {power(bytes.a), power(bytes.b)};
}

template <int kLeft>
HEADRACE_INLINE __m256i moved(__m256i a) {
    if constexpr (kLeft < 0) return _mm256_srli_epi16(a, -kLeft);
    if constexpr (kLeft > 0) return _mm256_slli_epi16(a, kLeft);
    return a;
}
template <int kLeft>
HEADRACE_INLINE Codes shifted(Codes x, int mask) {
    const __m256i kept = _mm256_set1_epi8(static_cast<char>(mask));
    return {_mm256_and_si256(moved<kLeft>(x.a), kept), _mm256_and_si256(moved<kLeft>(x.b), kept)};
}
template <int kLeft>
HEADRACE_INLINE Codes with_shifted(Codes low, Codes x, int mask) {
    const Codes more = shifted<kLeft>(x, mask);
    return {_mm256_or_si256(low.a, more.a), _mm256_or_si256(low.b, more.b)};
}

struct ByteTable {
    __m256i v;
    HEADRACE_INLINE ByteTable of(const std::uint8_t* sixteen) {
        return {_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen)))};
    }
    HEADRACE_METHOD Codes operator()(Codes nibbles) const {
        return {_mm256_shuffle_epi8(v, nibbles.a), _mm256_shuffle_epi8(v, nibbles.b)};
    }
};

// The bits from `shift` on of every column, `mask` wide, less its zero.
HEADRACE_INLINE __m256 code_difference(__m256i column, int shift, int mask, __m256i zero) {
    const __m256i code = _mm256_and_si256(_mm256_srli_epi32(column, shift), _mm256_set1_epi32(mask));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(code, zero));
}
HEADRACE_INLINE F32x16 code_differences(Codes codes, int shift, int mask, I32x16 zero) {
    return {code_difference(codes.a, shift, mask, zero.a), code_difference(codes.b, shift, mask, zero.b)};
}

struct NibblePairs {
    I32x16 zero;
    HEADRACE_INLINE NibblePairs of(I32x16 zero) { return {zero}; }
    HEADRACE_METHOD void operator()(Codes packed, PairFactors (&out)[4]) const {
        const auto feature = [&](int shift) { return code_differences(packed, shift, 15, zero); };
        out[0] = {feature(0), feature(8)};
        out[1] = {feature(16), feature(24)};
        out[2] = {feature(4), feature(12)};
        out[3] = {feature(20), feature(28)};
    }
};

struct BytePairs {
    I32x16 zero;
    HEADRACE_INLINE BytePairs of(I32x16 zero) { return {zero}; }
    HEADRACE_METHOD void operator()(Codes codes, PairFactors (&out)[2]) const {
        const auto feature = [&](int shift) { return code_differences(codes, shift, 255, zero); };
        out[0] = {feature(0), feature(8)};
        out[1] = {feature(16), feature(24)};
    }
};

struct TablePairs {
    __m256i low, high;  // bytes of the sixteen numbers
    HEADRACE_INLINE TablePairs of(const bf16_t* sixteen) {
        alignas(16) std::uint8_t bytes[2][16];
        for (int i = 0; i < 16; ++i) {
            bytes[0][i] = static_cast<std::uint8_t>(sixteen[i]);
            bytes[1][i] = static_cast<std::uint8_t>(sixteen[i] >> 8);
        }
        return {ByteTable::of(bytes[0]).v, ByteTable::of(bytes[1]).v};
    }
    // Features 0 and 1, and 2 and 3, of eight columns.
    HEADRACE_METHOD void look_up(__m256i nibbles, __m256i& first, __m256i& second) const {
        const __m256i lows = _mm256_shuffle_epi8(low, nibbles), highs = _mm256_shuffle_epi8(high, nibbles);
        const __m256 even = _mm256_castsi256_ps(_mm256_unpacklo_epi8(lows, highs));  // columns 0 and 1 of each half
        const __m256 odd = _mm256_castsi256_ps(_mm256_unpackhi_epi8(lows, highs));   // 2 and 3
        first = _mm256_castps_si256(_mm256_shuffle_ps(even, odd, 0x88));
        second = _mm256_castps_si256(_mm256_shuffle_ps(even, odd, 0xdd));
    }
    HEADRACE_METHOD void operator()(Codes packed, PairFactors (&out)[4]) const {
        const Codes first = low_nibbles(packed), second = high_nibbles(packed);
        Pairs pairs[4];
        look_up(first.a, pairs[0].a, pairs[1].a);
        look_up(first.b, pairs[0].b, pairs[1].b);
        look_up(second.a, pairs[2].a, pairs[3].a);
        look_up(second.b, pairs[2].b, pairs[3].b);
        for (int i = 0; i < 4; ++i) out[i] = {first_of_pairs(pairs[i]), second_of_pairs(pairs[i])};
    }
};

template <int kMantissa, int kPower>
struct Float8Pairs {
    template <int kByte>
    HEADRACE_INLINE __m256 number(__m256i column) {
        constexpr int kUp = 24 - 8 * kByte;
        constexpr int kMove = 23 - kMantissa - 8 * kByte;  // of exponent and mantissa
        const __m256i sign = _mm256_slli_epi32(column, kUp);
        const __m256i rest = kMove < 0 ? _mm256_srli_epi32(column, kMove < 0 ? -kMove : 0)
                                       : _mm256_slli_epi32(column, kMove < 0 ? 0 : kMove);
        const __m256i top = _mm256_set1_epi32(static_cast<std::int32_t>(0x80000000U));
        const __m256i below = _mm256_set1_epi32(0x7f << (23 - kMantissa));
        const __m256i bits = _mm256_or_si256(_mm256_and_si256(sign, top), _mm256_and_si256(rest, below));
        const __m256 power = _mm256_castsi256_ps(_mm256_set1_epi32((127 + kPower) << 23));
        return _mm256_mul_ps(_mm256_castsi256_ps(bits), power);
    }
    HEADRACE_METHOD void operator()(Codes codes, PairFactors (&out)[2]) const {
        out[0] = {{number<0>(codes.a), number<0>(codes.b)}, {number<1>(codes.a), number<1>(codes.b)}};
        out[1] = {{number<2>(codes.a), number<2>(codes.b)}, {number<3>(codes.a), number<3>(codes.b)}};
    }
};

}  // namespace headrace::HEADRACE_ISA
