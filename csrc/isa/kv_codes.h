// Codes of keys and values (see KVCache): what they are made of, and their expansion to bf16, which holds them exactly, or
// in the case of 4-bit keys rounds them once, the same way everywhere.
#pragma once

#include <cstring>

#include "../tensors.h"

namespace headrace::HEADRACE_ISA {

constexpr int kNibbleGroup = 32;  // features of a 4-bit value whose codes share bytes: i and i + 16

struct Numbers {
    alignas(64) bf16_t of[256];
};

// The bf16 of each e4m3 code. NaN codes stand for 480: memory that nobody has written must hold finite codes.
constexpr Numbers e4m3_numbers() {
    Numbers numbers{};
    for (int code = 0; code < 128; ++code) {
        int exponent = code >> 3, mantissa = code & 7;
        if (exponent == 0 && mantissa > 0) {  // subnormal: mantissa * 2^-9
            exponent = 1;
            while (mantissa < 8) {
                mantissa *= 2;
                --exponent;
            }
            mantissa -= 8;
            numbers.of[code] = static_cast<bf16_t>((exponent + 120) << 7 | mantissa << 4);
        } else if (exponent > 0) {
            numbers.of[code] = static_cast<bf16_t>((exponent + 120) << 7 | mantissa << 4);
        }
        numbers.of[code + 128] = static_cast<bf16_t>(numbers.of[code] | 0x8000);
    }
    return numbers;
}
static constexpr Numbers kE4M3Numbers = e4m3_numbers();
alignas(64) static constexpr bf16_t kNibbles[32] = {  // -8..7, twice
    0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
    0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};

// An e4m3 code, to nearest even, of |x| <= 448.
HEADRACE_INLINE std::uint8_t to_e4m3(float x) {
    const std::uint32_t bits = bits_of(x), sign = (bits >> 24) & 0x80U, rest = bits & 0x7fffffffU;
    if (rest < 0x3c800000U) {  // below 2^-6: adding 2^14 leaves multiples of 2^-9 in the low bits, rounded
        return static_cast<std::uint8_t>(sign | (bits_of(float_of(rest) + 0x1p14F) - bits_of(0x1p14F)));
    }
    const std::uint32_t code = (rest - (120U << 23) + 0x7ffffU + ((rest >> 20) & 1U)) >> 20;
    return static_cast<std::uint8_t>(sign | (code > 0x7eU ? 0x7eU : code));
}

// 32 codes of e4m3 as bf16.
HEADRACE_INLINE void store_bf16_of_e4m3(bf16_t* to, const std::uint8_t* codes) {
#if defined(__AVX512F__)
    const auto table = [](int part) { return _mm512_load_si512(kE4M3Numbers.of + 32 * part); };
    const __m512i words = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
    const __m512i low = _mm512_permutex2var_epi16(table(0), words, table(1));
    const __m512i high = _mm512_permutex2var_epi16(table(2), words, table(3));
    const __m512i size = _mm512_mask_blend_epi16(_mm512_test_epi16_mask(words, _mm512_set1_epi16(0x40)), low, high);
    constexpr int kOrAnd = 0xf8;  // a | (b & c)
    const __m512i top = _mm512_set1_epi16(static_cast<short>(0x8000));
    _mm512_storeu_si512(to, _mm512_ternarylogic_epi32(size, _mm512_slli_epi16(words, 8), top, kOrAnd));
#else
    for (int i = 0; i < 32; ++i) to[i] = kE4M3Numbers.of[codes[i]];
#endif
}

// Turns a segment's codes of 8 bits into bf16: `count` runs of `width` codes, `stride` codes apart.
inline void expand_codes(DType type, const char* codes, int count, int width, int stride, bf16_t* out) {
    for (int i = 0; i < count; ++i, codes += stride, out += width) {
        if (type == DType::i8) {
            for (int c = 0; c < width; c += 32) store_bf16_of_i8(out + c, reinterpret_cast<const std::int8_t*>(codes) + c);
        } else {
            for (int c = 0; c < width; c += 32) store_bf16_of_e4m3(out + c, reinterpret_cast<const std::uint8_t*>(codes) + c);
        }
    }
}

// Sixteen positions of keys that are multiplied as whole numbers, `dim` features whose fours are `stride` bytes apart, as pairs
// of bf16.
inline void expand_byte_keys(const char* keys, int dim, std::size_t stride, bf16_t* out) {
    alignas(64) std::int8_t codes[64];
    alignas(64) bf16_t wide[64];
    for (int d = 0; d < dim; d += 4, keys += stride, out += 64) {
        for (int i = 0; i < 64; ++i) codes[i] = static_cast<std::int8_t>(keys[i] ^ -128);
        for (int i = 0; i < 64; i += 32) store_bf16_of_i8(wide + i, codes + i);
        for (int t = 0; t < 16; ++t) {
            std::memcpy(out + 2 * t, wide + 4 * t, 2 * sizeof *out);
            std::memcpy(out + 32 + 2 * t, wide + 4 * t + 2, 2 * sizeof *out);
        }
    }
}

// Two features of `count` positions, a multiple of 16: table[code] is the number of the first one, table[16 + code] that of the second.
HEADRACE_INLINE void look_up_pairs(const bf16_t* table, const std::uint8_t* codes, int count, bf16_t* out) {
#if defined(__AVX512F__)
    const __m512i numbers = _mm512_loadu_si512(table), low = _mm512_set1_epi32(15), second = _mm512_set1_epi32(0x100);
    for (int t = 0; t < count; t += 16) {
        const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + t)));
        const __m512i upper = _mm512_slli_epi32(_mm512_or_si512(bytes, second), 12);
        constexpr int kSelect = 0xca;  // (a & b) | (~a & c)
        const __m512i places = _mm512_ternarylogic_epi32(low, bytes, upper, kSelect);  // the low five bits of a word count
        _mm512_storeu_si512(out + 2 * t, _mm512_permutexvar_epi16(places, numbers));
    }
#else
    for (int t = 0; t < count; ++t) {
        out[2 * t] = table[codes[t] & 15];
        out[2 * t + 1] = table[16 + (codes[t] >> 4)];
    }
#endif
}

// 4-bit keys of one head's block as bf16 keys.
inline void expand_nibble_keys(const std::uint8_t* codes, const bf16_t* scales, int dim, int stride, bf16_t* out) {
    alignas(64) static const float kCodes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const F32x16 ramp = F32x16::load(kCodes);
    alignas(64) bf16_t table[32];
    for (int i = 0; i < dim / 2; ++i, codes += stride, scales += 4, out += 2 * static_cast<std::size_t>(stride)) {
        for (int half = 0; half < 2; ++half) {
            const F32x16 scale = F32x16::broadcast(from_bf16(scales[2 * half]));
            store_bf16(table + 16 * half, fma(ramp, scale, F32x16::broadcast(from_bf16(scales[2 * half + 1]))));
        }
        look_up_pairs(table, codes, stride, out);
    }
}

// 4-bit values of two positions (their codes minus 8), `dim` features, to two positions side by side.
HEADRACE_INLINE void expand_nibble_rows(const std::uint8_t* first, const std::uint8_t* second, int dim, bf16_t* out) {
    int d = 0;
#if defined(__AVX512F__)
    const __m512i numbers = _mm512_load_si512(kNibbles);  // twice, as the fifth bit of a place is another code's
    for (; d + kNibbleGroup <= dim; d += kNibbleGroup) {
        const auto bytes = [d](const std::uint8_t* row) {
            return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + d / 2)));
        };
        const __m512i places = _mm512_or_si512(bytes(first), _mm512_slli_epi32(bytes(second), 16));
        _mm512_storeu_si512(out + 2 * d, _mm512_permutexvar_epi16(places, numbers));
        _mm512_storeu_si512(out + 2 * d + 32, _mm512_permutexvar_epi16(_mm512_srli_epi16(places, 4), numbers));
    }
#endif
    for (; d < dim; d += kNibbleGroup) {
        const int half = least(kNibbleGroup, dim - d) / 2;
        for (int i = 0; i < half; ++i) {
            const std::uint8_t a = first[d / 2 + i], b = second[d / 2 + i];
            bf16_t* low = out + 2 * (d + i);
            bf16_t* high = low + 2 * half;
            low[0] = kNibbles[a & 15];
            low[1] = kNibbles[b & 15];
            high[0] = kNibbles[a >> 4];
            high[1] = kNibbles[b >> 4];
        }
    }
}

HEADRACE_INLINE float inverse_of(float scale) {
    const float inverse = scale != 0.0F ? 1.0F / scale : 0.0F;
    return inverse > 3e38F ? 3e38F : inverse < -3e38F ? -3e38F : inverse;
}

// Codes of one row with one scale: max|x| / 127, rounded to nearest even. Gives the scale, which is not finite where the
// row is not.
inline float quantize_head(const float* x, int dim, std::int8_t* codes) {
    F32x16 peak = F32x16::zero(), strange = F32x16::zero();
    for (int i = 0; i < dim; i += 16) {
        const F32x16 v = F32x16::load(x + i);
        peak = max(peak, max(v, F32x16::zero() - v));
        strange = strange + (v - v);  // stays 0, or becomes NaN with the first infinity or NaN
    }
    const float largest = reduce_max(peak);
    const F32x16 factor = F32x16::broadcast(codes_per_unit(largest));
    for (int i = 0; i < dim; i += 16) store_i8(codes + i, round(F32x16::load(x + i) * factor));
    return largest / 127.0f + reduce_add(strange);
}

// The same of e4m3, whose largest code is 448.
inline float quantize_head(const float* x, int dim, std::uint8_t* codes) {
    F32x16 peak = F32x16::zero(), strange = F32x16::zero();
    for (int i = 0; i < dim; i += 16) {
        const F32x16 v = F32x16::load(x + i);
        peak = max(peak, max(v, F32x16::zero() - v));
        strange = strange + (v - v);
    }
    const float scale = reduce_max(peak) / 448.0f, inverse = inverse_of(scale), doubt = reduce_add(strange);
    for (int i = 0; i < dim; ++i) codes[i] = doubt == 0.0f ? to_e4m3(x[i] * inverse) : std::uint8_t{0};
    return scale + doubt;
}

HEADRACE_INLINE std::uint8_t nibble_of(float x) {  // to nearest, clipped to 0..15
    const float y = x + 0.5F;
    return static_cast<std::uint8_t>(y >= 15.0F ? 15 : y > 0.0F ? static_cast<int>(y) : 0);
}

// Codes, scale and minimum of one feature (`at` 0 or 1 of a pair) over the positions of a block.
inline void encode_nibble_key(const bf16_t* pairs, int at, int positions, std::uint8_t* codes, bf16_t* scale_minimum) {
    float low = from_bf16(pairs[at]), high = low, strange = 0;
    for (int t = 0; t < positions; ++t) {
        const float x = from_bf16(pairs[2 * t + at]);
        low = x < low ? x : low;
        high = x > high ? x : high;
        strange += x - x;  // stays 0, or becomes NaN with the first infinity or NaN
    }
    const bf16_t scale = to_bf16(high / 15.0F - low / 15.0F + strange);
    const float inverse = strange == 0.0F ? inverse_of(from_bf16(scale)) : 0.0F;
    if (strange != 0.0F) low = 0;
    scale_minimum[0] = scale;
    scale_minimum[1] = to_bf16(low);  // exact
    for (int t = 0; t < positions; ++t) {
        const float x = strange == 0.0F ? (from_bf16(pairs[2 * t + at]) - low) * inverse : 0.0F;
        codes[t] = static_cast<std::uint8_t>(at == 0 ? nibble_of(x) : codes[t] | nibble_of(x) << 4);
    }
}

// Codes and scale of one position's value; its features lie two apart. The largest magnitude becomes -8.
inline void encode_nibble_value(const bf16_t* row, int dim, std::uint8_t* codes, bf16_t* scale) {
    float peak = 0, strange = 0;
    for (int d = 0; d < dim; ++d) {
        const float x = from_bf16(row[2 * d]);
        if ((x < 0 ? -x : x) > (peak < 0 ? -peak : peak)) peak = x;
        strange += x - x;
    }
    *scale = to_bf16((peak == 0.0F ? 0.0F : peak / -8.0F) + strange);
    const float inverse = strange == 0.0F ? inverse_of(from_bf16(*scale)) : 0.0F;
    const auto code = [&](int d) { return strange == 0.0F ? nibble_of(from_bf16(row[2 * d]) * inverse + 8.0F) : std::uint8_t{8}; };
    for (int d = 0; d < dim; d += kNibbleGroup) {
        const int half = least(kNibbleGroup, dim - d) / 2;
        for (int i = 0; i < half; ++i) codes[d / 2 + i] = static_cast<std::uint8_t>(code(d + i) | code(d + half + i) << 4);
    }
}

// Encodes one head of a block of a 4-bit cache from a block of its recent cache. Places count blocks of one head.
inline void encode_block(const KVCache& kv, std::size_t from, std::size_t to) {
    const int dim = kv.head_dim, stride = kv.block_stride;
    const std::size_t numbers = static_cast<std::size_t>(stride) * dim;
    const auto* keys = static_cast<const bf16_t*>(kv.recent_keys) + from * numbers;
    const auto* values = static_cast<const bf16_t*>(kv.recent_values) + from * numbers;
    auto* key_codes = static_cast<std::uint8_t*>(kv.keys) + to * numbers / 2;
    auto* value_codes = static_cast<std::uint8_t*>(kv.values) + to * numbers / 2;
    auto* key_scales = static_cast<bf16_t*>(kv.key_scales) + to * dim * 2;
    auto* value_scales = static_cast<bf16_t*>(kv.value_scales) + to * stride;
    for (int i = 0; i < dim; ++i) {
        const std::size_t pair = static_cast<std::size_t>(i / 2) * stride;
        encode_nibble_key(keys + 2 * pair, i % 2, stride, key_codes + pair, key_scales + 2 * i);
    }
    for (int t = 0; t < stride; ++t) {
        encode_nibble_value(values + static_cast<std::size_t>(t / 2) * 2 * dim + t % 2, dim,
                            value_codes + static_cast<std::size_t>(t) * (dim / 2), value_scales + t);
    }
}

}  // namespace headrace::HEADRACE_ISA
