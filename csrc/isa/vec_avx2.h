// Sixteen floats in two registers of eight (AVX2, FMA, F16C).
#pragma once

#include <immintrin.h>

#include <cstring>

#include "scalar.h"

namespace headrace::HEADRACE_ISA {

HEADRACE_INLINE const std::int32_t* lane_masks(int n) {  // 16 words, the first n all ones
    alignas(64) static const std::int32_t words[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                                       0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0};
    return words + 16 - n;
}
HEADRACE_INLINE __m256i load_half(const void* p, int half) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p) + half);
}
HEADRACE_INLINE void store_half(void* p, int half, __m256i v) {
    _mm256_storeu_si256(static_cast<__m256i*>(p) + half, v);
}

struct F32x16 {
    __m256 a, b;  // lanes 0..7, 8..15
    HEADRACE_INLINE F32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    HEADRACE_INLINE F32x16 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
    HEADRACE_INLINE F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
    HEADRACE_INLINE F32x16 load(const float* p, int n) {
        const std::int32_t* mask = lane_masks(n);
        return {_mm256_maskload_ps(p, load_half(mask, 0)), _mm256_maskload_ps(p + 8, load_half(mask, 1))};
    }
    HEADRACE_METHOD void store(float* p) const {
        _mm256_storeu_ps(p, a);
        _mm256_storeu_ps(p + 8, b);
    }
    HEADRACE_METHOD void store(float* p, int n) const {
        const std::int32_t* mask = lane_masks(n);
        _mm256_maskstore_ps(p, load_half(mask, 0), a);
        _mm256_maskstore_ps(p + 8, load_half(mask, 1), b);
    }
};

struct I32x16 {
    __m256i a, b;
    HEADRACE_INLINE I32x16 zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
    HEADRACE_INLINE I32x16 broadcast(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
    HEADRACE_INLINE I32x16 load(const std::int32_t* p) { return {load_half(p, 0), load_half(p, 1)}; }
    HEADRACE_METHOD void store(std::int32_t* p) const {
        store_half(p, 0, a);
        store_half(p, 1, b);
    }
};

constexpr int kWordVectors = 1;  // of Words8 to work on at once: so many that registers suffice
struct Words8 {  // eight words of 32 bits, each in 64; the upper halves hold anything
    __m256i a, b;    // words 0..3, 4..7
    HEADRACE_INLINE Words8 broadcast(std::uint32_t x) { return {_mm256_set1_epi64x(x), _mm256_set1_epi64x(x)}; }
    HEADRACE_INLINE Words8 count_from(std::uint32_t x) {
        const __m256i first = _mm256_add_epi64(_mm256_set1_epi64x(x), _mm256_setr_epi64x(0, 1, 2, 3));
        return {first, _mm256_add_epi64(first, _mm256_set1_epi64x(4))};
    }
    HEADRACE_METHOD void store(std::uint64_t* p) const {
        store_half(p, 0, a);
        store_half(p, 1, b);
    }
};

struct Mask16 {
    __m256 a, b;
};

HEADRACE_INLINE __m256i broadcast_word(const void* four_bytes) {
    std::int32_t word;
    std::memcpy(&word, four_bytes, sizeof word);
    return _mm256_set1_epi32(word);
}

struct Pairs {  // 16 columns of two bf16
    __m256i a, b;
    HEADRACE_INLINE Pairs load(const void* p) { return {load_half(p, 0), load_half(p, 1)}; }
    HEADRACE_INLINE Pairs broadcast(const bf16_t* two) { return {broadcast_word(two), broadcast_word(two)}; }
    HEADRACE_METHOD void store(void* p) const {
        store_half(p, 0, a);
        store_half(p, 1, b);
    }
};

struct Codes {  // 16 columns of four bytes
    __m256i a, b;
    HEADRACE_INLINE Codes load(const void* p) { return {load_half(p, 0), load_half(p, 1)}; }
    HEADRACE_METHOD void store(void* p) const {
        store_half(p, 0, a);
        store_half(p, 1, b);
    }
};

#define HEADRACE_BINARY(Type, name, instruction)             \
    HEADRACE_INLINE Type name(Type x, Type y) {              \
        return {instruction(x.a, y.a), instruction(x.b, y.b)}; \
    }
HEADRACE_BINARY(F32x16, operator+, _mm256_add_ps)
HEADRACE_BINARY(F32x16, operator-, _mm256_sub_ps)
HEADRACE_BINARY(F32x16, operator*, _mm256_mul_ps)
HEADRACE_BINARY(F32x16, operator/, _mm256_div_ps)
HEADRACE_BINARY(F32x16, max, _mm256_max_ps)  // the second operand if one of them is a NaN
HEADRACE_BINARY(F32x16, min, _mm256_min_ps)
HEADRACE_BINARY(I32x16, operator+, _mm256_add_epi32)
HEADRACE_BINARY(I32x16, operator-, _mm256_sub_epi32)
HEADRACE_BINARY(I32x16, operator*, _mm256_mullo_epi32)
HEADRACE_BINARY(Words8, operator^, _mm256_xor_si256)
HEADRACE_BINARY(Words8, largest, _mm256_max_epu32)
HEADRACE_BINARY(Words8, product, _mm256_mul_epu32)  // its low word, and above it
#undef HEADRACE_BINARY

HEADRACE_INLINE Words8 upper(Words8 x) { return {_mm256_srli_epi64(x.a, 32), _mm256_srli_epi64(x.b, 32)}; }  // its high word
HEADRACE_INLINE unsigned at_least(Words8 x, Words8 bound) {  // a bit a word; `bound` was broadcast
    const __m256i low = _mm256_set1_epi64x(0xffffffff);
    const auto below = [&](__m256i four, __m256i least) {
        const __m256i lower = _mm256_cmpgt_epi64(least, _mm256_and_si256(four, low));
        return static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(lower)));
    };
    return ~(below(x.a, bound.a) | below(x.b, bound.b) << 4) & 255U;
}

HEADRACE_INLINE F32x16 fma(F32x16 x, F32x16 y, F32x16 z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
HEADRACE_INLINE F32x16 sqrt(F32x16 x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }

// Halves are folded onto each other: 8 + 8, 4 + 4, 2 + 2, 1 + 1.
HEADRACE_INLINE float reduce_add(F32x16 x) {
    const __m256 eight = _mm256_add_ps(x.a, x.b);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
HEADRACE_INLINE float reduce_max(F32x16 x) {
    const __m256 eight = _mm256_max_ps(x.a, x.b);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

HEADRACE_INLINE __m128i load_eight(const std::uint16_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
HEADRACE_INLINE void store_eight(std::uint16_t* p, __m128i v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v); }
HEADRACE_INLINE __m256 widen_bf16(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
HEADRACE_INLINE __m128i narrow_bf16(__m256 x) {  // to nearest even
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256 quiet = _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_set1_epi32(0x400000)));
    const __m256 kept = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), quiet, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(kept), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}

HEADRACE_INLINE F32x16 load_bf16(const bf16_t* p) {
    return {widen_bf16(load_eight(p)), widen_bf16(load_eight(p + 8))};
}
HEADRACE_INLINE F32x16 load_bf16(const bf16_t* p, int n) {
    alignas(32) bf16_t some[16] = {};
    for (int i = 0; i < n; ++i) some[i] = p[i];
    return load_bf16(some);
}
HEADRACE_INLINE void store_bf16(bf16_t* p, F32x16 x) {
    store_eight(p, narrow_bf16(x.a));
    store_eight(p + 8, narrow_bf16(x.b));
}
HEADRACE_INLINE void store_bf16(bf16_t* p, F32x16 x, int n) {
    alignas(32) bf16_t all[16];
    store_bf16(all, x);
    for (int i = 0; i < n; ++i) p[i] = all[i];
}
HEADRACE_INLINE F32x16 load_f16(const f16_t* p) {
    return {_mm256_cvtph_ps(load_eight(p)), _mm256_cvtph_ps(load_eight(p + 8))};
}
HEADRACE_INLINE void store_f16(f16_t* p, F32x16 x) {
    store_eight(p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    store_eight(p + 8, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

HEADRACE_INLINE Mask16 less(F32x16 x, F32x16 y) {
    return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
}
HEADRACE_INLINE Mask16 less_equal(F32x16 x, F32x16 y) {
    return {_mm256_cmp_ps(x.a, y.a, _CMP_LE_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LE_OQ)};
}
HEADRACE_INLINE Mask16 first_lanes(int n) {
    const std::int32_t* mask = lane_masks(n);
    return {_mm256_castsi256_ps(load_half(mask, 0)), _mm256_castsi256_ps(load_half(mask, 1))};
}
HEADRACE_INLINE unsigned lane_bits(Mask16 m) {
    return static_cast<unsigned>(_mm256_movemask_ps(m.a)) | static_cast<unsigned>(_mm256_movemask_ps(m.b)) << 8;
}
HEADRACE_INLINE F32x16 select(Mask16 m, F32x16 x, F32x16 y) {  // x where m, else y
    return {_mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b)};
}

HEADRACE_INLINE F32x16 to_float(I32x16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
HEADRACE_INLINE I32x16 round(F32x16 x) {  // to nearest even; |x| < 2^22
    return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)};
}
HEADRACE_INLINE F32x16 load_i8(const std::int8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
HEADRACE_INLINE void store_bf16_of_i8(bf16_t* to, const std::int8_t* codes) {  // 32 of them
    store_bf16(to, load_i8(codes));
    store_bf16(to + 16, load_i8(codes + 16));
}
HEADRACE_INLINE void store_i8(std::int8_t* p, I32x16 x) {  // clipped to -128..127
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
HEADRACE_INLINE void store_i16(std::int16_t* p, I32x16 x) {  // clipped to -32768..32767
    store_half(p, 0, _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8));
}

HEADRACE_INLINE __m256 power_of_two(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
// x * 2^n, n in -127..128; subnormal results are not promised.
HEADRACE_INLINE F32x16 times_power(F32x16 x, I32x16 n) {
    const __m256i ha = _mm256_srai_epi32(n.a, 1), hb = _mm256_srai_epi32(n.b, 1);  // two steps: 2^128 is no float
    const F32x16 first = {power_of_two(ha), power_of_two(hb)};
    const F32x16 second = {power_of_two(_mm256_sub_epi32(n.a, ha)), power_of_two(_mm256_sub_epi32(n.b, hb))};
    return x * first * second;
}

HEADRACE_INLINE __m256 first_of_pairs(__m256i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
HEADRACE_INLINE __m256 second_of_pairs(__m256i x) {
    return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(static_cast<std::int32_t>(0xffff0000U))));
}
HEADRACE_INLINE F32x16 first_of_pairs(Pairs x) { return {first_of_pairs(x.a), first_of_pairs(x.b)}; }
HEADRACE_INLINE F32x16 second_of_pairs(Pairs x) { return {second_of_pairs(x.a), second_of_pairs(x.b)}; }
HEADRACE_INLINE F32x16 dot(F32x16 acc, Pairs x, Pairs y) {
    acc.a = _mm256_fmadd_ps(first_of_pairs(x.a), first_of_pairs(y.a), acc.a);
    acc.b = _mm256_fmadd_ps(first_of_pairs(x.b), first_of_pairs(y.b), acc.b);
    acc.a = _mm256_fmadd_ps(second_of_pairs(x.a), second_of_pairs(y.a), acc.a);
    acc.b = _mm256_fmadd_ps(second_of_pairs(x.b), second_of_pairs(y.b), acc.b);
    return acc;
}

HEADRACE_INLINE Codes low_nibbles(Codes x) {
    const __m256i low = _mm256_set1_epi8(15);
    return {_mm256_and_si256(x.a, low), _mm256_and_si256(x.b, low)};
}
HEADRACE_INLINE Codes high_nibbles(Codes x) {
    const __m256i low = _mm256_set1_epi8(15);
    return {_mm256_and_si256(_mm256_srli_epi16(x.a, 4), low), _mm256_and_si256(_mm256_srli_epi16(x.b, 4), low)};
}

}  // namespace headrace::HEADRACE_ISA

#include "vec_math.h"
#include "codes_avx2.h"
