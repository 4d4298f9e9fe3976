// Sixteen floats in one register. With BF16 (__AVX512BF16__) pairs are one instruction, otherwise they go through f32.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "scalar.h"

namespace headrace::HEADRACE_ISA {

HEADRACE_INLINE __mmask16 mask_of(int n) { return static_cast<__mmask16>((1U << n) - 1U); }

struct F32x16 {
    __m512 v;
    HEADRACE_INLINE F32x16 zero() { return {_mm512_setzero_ps()}; }
    HEADRACE_INLINE F32x16 broadcast(float x) { return {_mm512_set1_ps(x)}; }
    HEADRACE_INLINE F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
    HEADRACE_INLINE F32x16 load(const float* p, int n) { return {_mm512_maskz_loadu_ps(mask_of(n), p)}; }
    HEADRACE_METHOD void store(float* p) const { _mm512_storeu_ps(p, v); }
    HEADRACE_METHOD void store(float* p, int n) const { _mm512_mask_storeu_ps(p, mask_of(n), v); }
};

struct I32x16 {
    __m512i v;
    HEADRACE_INLINE I32x16 zero() { return {_mm512_setzero_si512()}; }
    HEADRACE_INLINE I32x16 broadcast(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
    HEADRACE_INLINE I32x16 load(const std::int32_t* p) { return {_mm512_loadu_si512(p)}; }
    HEADRACE_METHOD void store(std::int32_t* p) const { _mm512_storeu_si512(p, v); }
};

constexpr int kWordVectors = 4;  // of Words8 to work on at once: so many that registers suffice
struct Words8 {  // eight words of 32 bits, each in 64; the upper halves hold anything
    __m512i v;
    HEADRACE_INLINE Words8 broadcast(std::uint32_t x) { return {_mm512_set1_epi64(x)}; }
    HEADRACE_INLINE Words8 count_from(std::uint32_t x) {
        return {_mm512_add_epi64(_mm512_set1_epi64(x), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7))};
    }
    HEADRACE_METHOD void store(std::uint64_t* p) const { _mm512_storeu_si512(p, v); }
};

struct Mask16 {
    __mmask16 v;
};

HEADRACE_INLINE __m512i broadcast_word(const void* four_bytes) {
    std::int32_t word;
    std::memcpy(&word, four_bytes, sizeof word);
    return _mm512_set1_epi32(word);
}

struct Pairs {  // 16 columns of two bf16
    __m512i v;
    HEADRACE_INLINE Pairs load(const void* p) { return {_mm512_loadu_si512(p)}; }
    HEADRACE_INLINE Pairs broadcast(const bf16_t* two) { return {broadcast_word(two)}; }
    HEADRACE_METHOD void store(void* p) const { _mm512_storeu_si512(p, v); }
};

struct Codes {  // 16 columns of four bytes
    __m512i v;
    HEADRACE_INLINE Codes load(const void* p) { return {_mm512_loadu_si512(p)}; }
    HEADRACE_METHOD void store(void* p) const { _mm512_storeu_si512(p, v); }
};

HEADRACE_INLINE F32x16 operator+(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
HEADRACE_INLINE F32x16 operator-(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
HEADRACE_INLINE F32x16 operator*(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
HEADRACE_INLINE F32x16 operator/(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
HEADRACE_INLINE I32x16 operator+(I32x16 a, I32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
HEADRACE_INLINE I32x16 operator-(I32x16 a, I32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
HEADRACE_INLINE I32x16 operator*(I32x16 a, I32x16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }

HEADRACE_INLINE Words8 operator^(Words8 a, Words8 b) { return {_mm512_xor_si512(a.v, b.v)}; }
HEADRACE_INLINE Words8 product(Words8 a, Words8 b) { return {_mm512_mul_epu32(a.v, b.v)}; }  // its low word, and above it
HEADRACE_INLINE Words8 upper(Words8 a) { return {_mm512_srli_epi64(a.v, 32)}; }              // its high word
HEADRACE_INLINE Words8 largest(Words8 a, Words8 b) { return {_mm512_max_epu32(a.v, b.v)}; }
HEADRACE_INLINE unsigned at_least(Words8 a, Words8 bound) {  // a bit a word; `bound` was broadcast
    return _mm512_cmpge_epu64_mask(_mm512_and_si512(a.v, _mm512_set1_epi64(0xffffffff)), bound.v);
}

HEADRACE_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// The second operand if one of them is a NaN.
HEADRACE_INLINE F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
HEADRACE_INLINE F32x16 min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
HEADRACE_INLINE F32x16 sqrt(F32x16 a) { return {_mm512_sqrt_ps(a.v)}; }

// Halves are folded onto each other: 8 + 8, 4 + 4, 2 + 2, 1 + 1.
HEADRACE_INLINE float reduce_add(F32x16 a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
HEADRACE_INLINE float reduce_max(F32x16 a) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

HEADRACE_INLINE F32x16 widen_bf16(__m256i halves) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
}
HEADRACE_INLINE __m256i narrow_bf16(F32x16 a) {  // to nearest even
#if defined(__AVX512BF16__)
    return (__m256i)_mm512_cvtneps_pbh(a.v);
#else
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    const __m512i kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
#endif
}

HEADRACE_INLINE F32x16 load_bf16(const bf16_t* p) {
    return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
HEADRACE_INLINE F32x16 load_bf16(const bf16_t* p, int n) {
    return widen_bf16(_mm256_maskz_loadu_epi16(mask_of(n), p));
}
HEADRACE_INLINE void store_bf16(bf16_t* p, F32x16 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(a));
}
HEADRACE_INLINE void store_bf16(bf16_t* p, F32x16 a, int n) {
    _mm256_mask_storeu_epi16(p, mask_of(n), narrow_bf16(a));
}
HEADRACE_INLINE F32x16 load_f16(const f16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
HEADRACE_INLINE void store_f16(f16_t* p, F32x16 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

HEADRACE_INLINE Mask16 less(F32x16 a, F32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
HEADRACE_INLINE Mask16 less_equal(F32x16 a, F32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
HEADRACE_INLINE Mask16 first_lanes(int n) { return {mask_of(n)}; }
HEADRACE_INLINE unsigned lane_bits(Mask16 m) { return m.v; }
HEADRACE_INLINE F32x16 select(Mask16 m, F32x16 a, F32x16 b) {  // a where m, else b
    return {_mm512_mask_blend_ps(m.v, b.v, a.v)};
}

HEADRACE_INLINE F32x16 to_float(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
HEADRACE_INLINE I32x16 round(F32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }  // to nearest even; |a| < 2^22
HEADRACE_INLINE F32x16 load_i8(const std::int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
HEADRACE_INLINE void store_bf16_of_i8(bf16_t* to, const std::int8_t* codes) {  // 32 of them
#if defined(__AVX512BF16__)
    const __m512bh both = _mm512_cvtne2ps_pbh(load_i8(codes + 16).v, load_i8(codes).v);
    _mm512_storeu_si512(to, (__m512i)both);
#else
    store_bf16(to, load_i8(codes));
    store_bf16(to + 16, load_i8(codes + 16));
#endif
}
HEADRACE_INLINE void store_i8(std::int8_t* p, I32x16 a) {  // clipped to -128..127
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(a.v));
}
HEADRACE_INLINE F32x16 load_i16(const std::int16_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))))};
}
HEADRACE_INLINE void store_i16(std::int16_t* p, I32x16 a) {  // clipped to -32768..32767
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(a.v));
}

// a * 2^n, n in -127..128; subnormal results are not promised.
HEADRACE_INLINE F32x16 times_power(F32x16 a, I32x16 n) { return {_mm512_scalef_ps(a.v, _mm512_cvtepi32_ps(n.v))}; }

HEADRACE_INLINE F32x16 first_of_pairs(Pairs a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(a.v, 16))}; }
HEADRACE_INLINE F32x16 second_of_pairs(Pairs a) {
    const __m512i high = _mm512_set1_epi32(static_cast<std::int32_t>(0xffff0000U));
    return {_mm512_castsi512_ps(_mm512_and_si512(a.v, high))};
}
HEADRACE_INLINE F32x16 dot(F32x16 acc, Pairs a, Pairs b) {
#if defined(__AVX512BF16__)
    return {_mm512_dpbf16_ps(acc.v, (__m512bh)a.v, (__m512bh)b.v)};
#else
    return fma(second_of_pairs(a), second_of_pairs(b), fma(first_of_pairs(a), first_of_pairs(b), acc));
#endif
}

HEADRACE_INLINE Codes low_nibbles(Codes a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
HEADRACE_INLINE Codes high_nibbles(Codes a) {
    return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))};
}

}  // namespace headrace::HEADRACE_ISA

#include "vec_math.h"
#include "codes_avx512.h"
