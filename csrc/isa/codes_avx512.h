// Weight codes on AVX-512: whole-number products (VNNI), and codes as bf16 pairs.
#pragma once

#include "vec_avx512.h"
#if !defined(__AVX512BF16__)
#include "float_pairs.h"
#endif

namespace headrace::HEADRACE_ISA {

// Register tile of products of codes: rows of activations, panels of weights.
constexpr int kCodeRows = 8, kCodePanels = 2;
constexpr bool kBySixteen = false;
#if defined(__AVX512BF16__) && !HEADRACE_TILES
constexpr bool kOnIntel = false;
#else
constexpr bool kOnIntel = true;  // sets that AMD's CPUs do not take: they have BF16 and no tiles
#endif

// What dot_bytes takes away from every code before it multiplies.
constexpr int kByteOffset = 0;

// acc[c] += sum over j of (codes[c][j] - kByteOffset) * four[j], for codes of 8 bits.
HEADRACE_INLINE I32x16 dot_bytes(I32x16 acc, Codes codes, const std::int8_t* four) {
    const __m512i word = broadcast_word(four);
#if defined(__GNUC__)
    // Not the intrinsic: around it GCC 12 copies accumulators between registers, which halves the speed.
    asm("vpdpbusd %2, %1, %0" : "+v"(acc.v) : "v"(codes.v), "v"(word));
    return acc;
#else
    return {_mm512_dpbusd_epi32(acc.v, codes.v, word)};
#endif
}

// acc[c] += sum over j of codes[c][j] * four[j], for codes of up to 128.
HEADRACE_INLINE I32x16 dot_small(I32x16 acc, Codes codes, const std::int8_t* four) {
    return dot_bytes(acc, codes, four);
}

// Of codes of fewer than 8 bits, see code_formats.h.
constexpr int run_of(int) { return 1; }

// 16 columns of two signed bytes, as 16-bit numbers.
HEADRACE_INLINE Pairs widen_bytes(const void* p) {
    return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}

// acc[c] += a[c][0] * b[c][0] + a[c][1] * b[c][1], of whole numbers of 16 bits.
HEADRACE_INLINE I32x16 dot_shorts(I32x16 acc, Pairs a, Pairs b) {
#if defined(__GNUC__)
    asm("vpdpwssd %2, %1, %0" : "+v"(acc.v) : "v"(a.v), "v"(b.v));  // as in dot_bytes
    return acc;
#else
    return {_mm512_dpwssd_epi32(acc.v, a.v, b.v)};
#endif
}

HEADRACE_INLINE I32x16 load_bytes(const std::uint8_t* p) {  // 16 bytes, one a column
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}

// 2^(p - 127) of 16 bytes, one a column; NaN for 255.
HEADRACE_INLINE F32x16 load_powers(const std::uint8_t* p) {
    const __m512i exponents = load_bytes(p).v, half = _mm512_set1_epi32(0x00400000);
    const __m512i bits = _mm512_max_epi32(_mm512_slli_epi32(exponents, 23), half);
    const __mmask16 nan = _mm512_cmpeq_epi32_mask(exponents, _mm512_set1_epi32(255));
    return {_mm512_castsi512_ps(_mm512_mask_or_epi32(bits, nan, bits, half))};
}

// Every byte moved by kLeft bits (to the right if negative), and of that the bits of `mask`, which no neighbour reaches.
template <int kLeft>
HEADRACE_INLINE __m512i moved(Codes a) {
    if constexpr (kLeft < 0) return _mm512_srli_epi16(a.v, -kLeft);
    if constexpr (kLeft > 0) return _mm512_slli_epi16(a.v, kLeft);
    return a.v;
}
template <int kLeft>
HEADRACE_INLINE Codes shifted(Codes a, int mask) {
    return {_mm512_and_si512(moved<kLeft>(a), _mm512_set1_epi8(static_cast<char>(mask)))};
}
// And these bits set in `low`.
template <int kLeft>
HEADRACE_INLINE Codes with_shifted(Codes low, Codes a, int mask) {
    constexpr int kOrAnd = 0xf8;  // a | (b & c)
    return {_mm512_ternarylogic_epi32(low.v, moved<kLeft>(a), _mm512_set1_epi8(static_cast<char>(mask)), kOrAnd)};
}

// Sixteen bytes that nibbles are looked up in.
struct ByteTable {
    __m512i v;
    HEADRACE_INLINE ByteTable of(const std::uint8_t* sixteen) {
        return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen)))};
    }
    HEADRACE_METHOD Codes operator()(Codes nibbles) const { return {_mm512_shuffle_epi8(v, nibbles.v)}; }
};

#if defined(__AVX512BF16__)
using PairFactors = Pairs;  // two features of 16 columns as products of codes read them
HEADRACE_INLINE PairFactors factors_of(Pairs x) { return x; }
HEADRACE_INLINE F32x16 dot(F32x16 acc, PairFactors x, const bf16_t* two) { return dot(acc, x, Pairs::broadcast(two)); }
#else
HEADRACE_INLINE PairFactors factors_of(Pairs x) { return {first_of_pairs(x), second_of_pairs(x)}; }
#endif

// Bytes 1 and 2 of a column change places, so that neighbours lie in the low halves of the two words.
HEADRACE_INLINE __m512i swapped_bytes(__m512i packed) {
    return _mm512_shuffle_epi8(packed, _mm512_set4_epi32(0x0f0d0e0c, 0x0b090a08, 0x07050604, 0x03010200));
}

// Features 2 * kPair and 2 * kPair + 1 of codes, as nibbles: bf16 that hold code - zero (0..16) of their column, exactly.
struct NibblePairs {
    __m512i index_zero;  // bytes: 16 - zero of the column
    __m512i numbers;     // bf16; a permutation of words looks up by the low five bits of an index
    HEADRACE_INLINE NibblePairs of(I32x16 zero) {
        alignas(64) static constexpr std::uint16_t kNumbers[32] = {  // -16..15
            0xc180, 0xc170, 0xc160, 0xc150, 0xc140, 0xc130, 0xc120, 0xc110, 0xc100, 0xc0e0, 0xc0c0,
            0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0,
            0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};
        const __m512i each = _mm512_shuffle_epi8(zero.v, _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0));
        return {_mm512_sub_epi8(_mm512_set1_epi8(16), each), _mm512_load_si512(kNumbers)};
    }
    template <int kPair>
    HEADRACE_METHOD PairFactors pair(Codes packed) const {
        const __m512i swapped = swapped_bytes(packed.v);
        const __m512i nibbles = kPair < 2 ? swapped : _mm512_srli_epi16(swapped, 4);
        const __m512i index = _mm512_add_epi8(_mm512_and_si512(nibbles, _mm512_set1_epi8(15)), index_zero);
        return factors_of({_mm512_permutexvar_epi16(kPair % 2 == 0 ? index : _mm512_srli_epi16(index, 8), numbers)});
    }
};

// The same of the numbers that a table holds for nibbles.
#if defined(__AVX512BF16__)
struct TablePairs {
    __m512i numbers;  // twice: the highest of an index's five bits does not matter
    HEADRACE_INLINE TablePairs of(const bf16_t* sixteen) {
        const __m256i once = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sixteen));
        return {_mm512_broadcast_i64x4(once)};
    }
    template <int kPair>
    HEADRACE_METHOD PairFactors pair(Codes packed) const {
        constexpr int kMove = 8 * (kPair % 2) + 4 * (kPair / 2);
        const __m512i swapped = swapped_bytes(packed.v);
        return {_mm512_permutexvar_epi16(kMove == 0 ? swapped : _mm512_srli_epi16(swapped, kMove), numbers)};
    }
};
#else
struct TablePairs {
    __m512 numbers;  // a permutation looks up by the low four bits of a column
    HEADRACE_INLINE TablePairs of(const bf16_t* sixteen) {
        const __m256i once = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sixteen));
        return {first_of_pairs(Pairs{_mm512_cvtepu16_epi32(once)}).v};
    }
    template <int kNibble>
    HEADRACE_METHOD F32x16 number(Codes packed) const {
        const __m512i index = kNibble == 0 ? packed.v : _mm512_srli_epi32(packed.v, 4 * kNibble);
        return {_mm512_permutexvar_ps(index, numbers)};
    }
    template <int kPair>
    HEADRACE_METHOD PairFactors pair(Codes packed) const {
        constexpr int kFirst = 4 * (kPair % 2) + kPair / 2;  // a byte has a nibble of features 0 to 3 and one of 4 to 7
        return {number<kFirst>(packed), number<kFirst + 2>(packed)};
    }
};
#endif

struct BytePairs {  // as NibblePairs, for codes of 8 bits
    __m512 zero;    // 2^23 + the column's zero
    HEADRACE_INLINE BytePairs of(I32x16 zero) {
        return {_mm512_castsi512_ps(_mm512_or_si512(zero.v, _mm512_set1_epi32(0x4b000000)))};
    }
    template <int kPair>
    HEADRACE_METHOD PairFactors pair(Codes codes) const {
        // A byte in the low bits of 2^23 is that number plus the byte; taking 2^23 + zero away leaves bits of a bf16.
        const auto difference = [&](__m512i word) {
            constexpr int kAndOr = 0xea;  // (a & b) | c
            const __m512i byte = _mm512_set1_epi32(255), number = _mm512_set1_epi32(0x4b000000);
            const __m512i sum = _mm512_ternarylogic_epi32(word, byte, number, kAndOr);
            return _mm512_sub_ps(_mm512_castsi512_ps(sum), zero);
        };
        const __m512 first = difference(kPair == 0 ? codes.v : _mm512_srli_epi32(codes.v, 16));
        const __m512 second = difference(_mm512_srli_epi32(codes.v, kPair == 0 ? 8 : 24));
#if defined(__AVX512BF16__)
        constexpr int kSelect = 0xd8;  // (a & ~c) | (b & c)
        const __m512i high = _mm512_set1_epi32(static_cast<std::int32_t>(0xffff0000U));
        const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(first), 16);
        return {_mm512_ternarylogic_epi32(low, _mm512_castps_si512(second), high, kSelect)};
#else
        return {{first}, {second}};
#endif
    }
};

// Floats of 8 bits (a sign, exponent and kMantissa bits), exact in bf16: kPower is the difference of the exponents.
template <int kMantissa, int kPower>
struct Float8Pairs {
    // The bf16 of subnormal numbers, by their mantissas.
    struct Small {
        alignas(64) std::uint16_t numbers[32] = {};
        constexpr Small() {
            constexpr int kUnit = 127 - (126 + kMantissa - kPower);  // the exponent of the least one
            for (int top = 0; top < kMantissa; ++top) {
                for (int rest = 0; rest < 1 << top; ++rest) {
                    numbers[(1 << top) + rest] = static_cast<std::uint16_t>((kUnit + top) << 7 | rest << (7 - top));
                }
            }
        }
    };
    static constexpr Small kSmall{};

    template <int kPair>
    HEADRACE_METHOD PairFactors pair(Codes codes) const {
        constexpr int kOrAnd = 0xf8;  // a | (b & c)
        constexpr int kSecond = 0x02020202 * kPair;
        constexpr short kExponent = (0x7f00 >> (8 + kMantissa)) << (8 + kMantissa);
        // Each byte twice: its sign, exponent and mantissa are the high bits of a word, its low five bits an index.
        const __m512i twice = _mm512_shuffle_epi8(codes.v, _mm512_set4_epi32(0x0d0d0c0c + kSecond, 0x09090808 + kSecond,
                                                                             0x05050404 + kSecond, 0x01010000 + kSecond));
        const __m512i rest = _mm512_and_si512(_mm512_srli_epi16(twice, 1 + kMantissa), _mm512_set1_epi16(0x7f << (7 - kMantissa)));
        const __m512i normal = _mm512_add_epi16(rest, _mm512_set1_epi16(kPower << 7));
        const __mmask32 small = _mm512_testn_epi16_mask(twice, _mm512_set1_epi16(kExponent));
        const __m512i number = _mm512_mask_permutexvar_epi16(normal, small, twice, _mm512_load_si512(kSmall.numbers));
        return factors_of({_mm512_ternarylogic_epi32(number, twice, _mm512_set1_epi16(static_cast<short>(0x8000)), kOrAnd)});
    }
};

}  // namespace headrace::HEADRACE_ISA
