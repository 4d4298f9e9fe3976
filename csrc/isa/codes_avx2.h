// Weight codes on AVX2: whole-number products, and codes as bf16 pairs. See codes_avx512.h for what each name means.
#pragma once

#include "vec_avx2.h"
#include "float_pairs.h"

namespace headrace::HEADRACE_ISA {

constexpr int kCodeRows = 4, kCodePanels = 1;  // sixteen registers
constexpr bool kOnIntel = false;
constexpr bool kBySixteen = true;              // tiles take 16 features at once; spans of 16 and 32 have tiles of their own,
                                               // and two panels take turns where one row meets pairs

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
    template <int kPair>
    HEADRACE_METHOD PairFactors pair(Codes packed) const {
        constexpr int kShift = 16 * (kPair % 2) + 4 * (kPair / 2);
        return {code_differences(packed, kShift, 15, zero), code_differences(packed, kShift + 8, 15, zero)};
    }
};

struct BytePairs {
    I32x16 zero;
    HEADRACE_INLINE BytePairs of(I32x16 zero) { return {zero}; }
    template <int kPair>
    HEADRACE_METHOD PairFactors pair(Codes codes) const {
        return {code_differences(codes, 16 * kPair, 255, zero), code_differences(codes, 16 * kPair + 8, 255, zero)};
    }
};

struct TablePairs {
    __m256i low, high;  // bytes of the sixteen numbers
    HEADRACE_INLINE TablePairs of(const bf16_t* sixteen) {
        const __m256i eight = _mm256_broadcastsi128_si256(load_eight(sixteen));
        const __m256i more = _mm256_broadcastsi128_si256(load_eight(sixteen + 8)), byte = _mm256_set1_epi16(255);
        return {_mm256_packus_epi16(_mm256_and_si256(eight, byte), _mm256_and_si256(more, byte)),
                _mm256_packus_epi16(_mm256_srli_epi16(eight, 8), _mm256_srli_epi16(more, 8))};
    }
    template <int kPair>
    HEADRACE_METHOD __m256i look_up(__m256i packed) const {
        // In each half features 0 and 1 of all columns come first, so that pairs lie together with both of their bytes.
        const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
        const __m256i sorted = _mm256_shuffle_epi8(packed, order);
        const __m256i nibbles = _mm256_and_si256(moved<kPair < 2 ? 0 : -4>(sorted), _mm256_set1_epi8(15));
        const __m256i lows = _mm256_shuffle_epi8(low, nibbles), highs = _mm256_shuffle_epi8(high, nibbles);
        return kPair % 2 == 0 ? _mm256_unpacklo_epi8(lows, highs) : _mm256_unpackhi_epi8(lows, highs);
    }
    template <int kPair>
    HEADRACE_METHOD PairFactors pair(Codes packed) const {
        const Pairs words = {look_up<kPair>(packed.a), look_up<kPair>(packed.b)};
        return {first_of_pairs(words), second_of_pairs(words)};
    }
};

template <int kMantissa, int kPower>
struct Float8Pairs {
    template <int kByte>
    HEADRACE_INLINE __m256 number(__m256i column) {
        // Exponent and mantissa move to where a float has them, and copies of the sign from above, of which one is kept.
        constexpr auto kKept = static_cast<std::int32_t>(0x80000000U | 0x7fU << (23 - kMantissa));
        const __m256i placed = _mm256_srai_epi32(_mm256_slli_epi32(column, 24 - 8 * kByte), kMantissa + 1);
        const __m256i bits = _mm256_and_si256(placed, _mm256_set1_epi32(kKept));
        const __m256 power = _mm256_castsi256_ps(_mm256_set1_epi32((127 + kPower) << 23));
        return _mm256_mul_ps(_mm256_castsi256_ps(bits), power);
    }
    template <int kPair>
    HEADRACE_METHOD PairFactors pair(Codes codes) const {
        constexpr int kFirst = 2 * kPair, kSecond = kFirst + 1;
        return {{number<kFirst>(codes.a), number<kFirst>(codes.b)}, {number<kSecond>(codes.a), number<kSecond>(codes.b)}};
    }
};

}  // namespace headrace::HEADRACE_ISA
