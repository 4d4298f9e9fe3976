// Weight codes on AVX2: whole-number products, and codes as bf16 pairs. See codes_avx512.h for what each name means.
#pragma once

#include "vec_avx2.h"

namespace headrace::HEADRACE_ISA {

constexpr int kCodeRows = 4, kCodePanels = 1;  // sixteen registers

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
    return {add_products(acc.a, _mm256_abs_epi8(a), _mm256_sign_epi8(word, a)),
            add_products(acc.b, _mm256_abs_epi8(b), _mm256_sign_epi8(word, b))};
}

HEADRACE_INLINE I32x16 dot_nibbles(I32x16 acc, Codes codes, const std::int8_t* four) {
    const __m256i word = broadcast_word(four);
    return {add_products(acc.a, codes.a, word), add_products(acc.b, codes.b, word)};
}

HEADRACE_INLINE I32x16 load_bytes(const std::uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}

// The bits from `shift` on of every column, `mask` wide, less its zero: bits of a bf16 in the high half.
HEADRACE_INLINE __m256i code_difference(__m256i column, int shift, int mask, __m256i zero) {
    const __m256i code = _mm256_and_si256(_mm256_srli_epi32(column, shift), _mm256_set1_epi32(mask));
    return _mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_sub_epi32(code, zero)));
}
HEADRACE_INLINE __m256i code_pair(__m256i column, int first, int second, int mask, __m256i zero) {
    const __m256i low = _mm256_srli_epi32(code_difference(column, first, mask, zero), 16);
    return _mm256_blend_epi16(low, code_difference(column, second, mask, zero), 0xaa);
}

struct NibblePairs {
    I32x16 zero;
    HEADRACE_INLINE NibblePairs of(const std::uint8_t* zeros) {
        return {zeros == nullptr ? I32x16::broadcast(8) : load_bytes(zeros)};
    }
    HEADRACE_METHOD void operator()(Codes packed, Pairs (&out)[4]) const {
        const auto pair = [&](int first, int second) -> Pairs {
            return {code_pair(packed.a, first, second, 15, zero.a), code_pair(packed.b, first, second, 15, zero.b)};
        };
        out[0] = pair(0, 8);
        out[1] = pair(16, 24);
        out[2] = pair(4, 12);
        out[3] = pair(20, 28);
    }
};

struct BytePairs {
    I32x16 zero;
    HEADRACE_INLINE BytePairs of(const std::uint8_t* zeros) {
        return {zeros == nullptr ? I32x16::broadcast(128) : load_bytes(zeros)};
    }
    HEADRACE_METHOD void operator()(Codes codes, Pairs (&out)[2]) const {
        const auto pair = [&](int first, int second) -> Pairs {
            return {code_pair(codes.a, first, second, 255, zero.a), code_pair(codes.b, first, second, 255, zero.b)};
        };
        out[0] = pair(0, 8);
        out[1] = pair(16, 24);
    }
};

}  // namespace headrace::HEADRACE_ISA
