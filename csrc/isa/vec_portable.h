// Sixteen floats, bf16 pairs, 32-bit integers and codes in plain C++. fma rounds twice here. Memory is read and written by
// memcpy, as it may hold another type than the pointer says; whole numbers wrap around, as they do in vector registers.
#pragma once

#include <cstring>

#include "scalar.h"

namespace headrace::HEADRACE_ISA {

#define HEADRACE_LANES for (int i = 0; i < 16; ++i)

struct F32x16 {
    float v[16];
    HEADRACE_INLINE F32x16 zero() { return broadcast(0); }
    HEADRACE_INLINE F32x16 broadcast(float x) {
        F32x16 r;
        HEADRACE_LANES r.v[i] = x;
        return r;
    }
    HEADRACE_INLINE F32x16 load(const float* p) {
        F32x16 r;
        std::memcpy(r.v, p, sizeof r.v);
        return r;
    }
    HEADRACE_INLINE F32x16 load(const float* p, int n) {  // the first n lanes, the rest 0
        F32x16 r;
        HEADRACE_LANES r.v[i] = i < n ? p[i] : 0;
        return r;
    }
    HEADRACE_METHOD void store(float* p) const { std::memcpy(p, v, sizeof v); }
    HEADRACE_METHOD void store(float* p, int n) const {
        for (int i = 0; i < n; ++i) p[i] = v[i];
    }
};

struct I32x16 {
    std::int32_t v[16];
    HEADRACE_INLINE I32x16 zero() { return broadcast(0); }
    HEADRACE_INLINE I32x16 broadcast(std::int32_t x) {
        I32x16 r;
        HEADRACE_LANES r.v[i] = x;
        return r;
    }
    HEADRACE_INLINE I32x16 load(const std::int32_t* p) {
        I32x16 r;
        std::memcpy(r.v, p, sizeof r.v);
        return r;
    }
    HEADRACE_METHOD void store(std::int32_t* p) const { std::memcpy(p, v, sizeof v); }
};

constexpr int kWordVectors = 1;  // of Words8 to work on at once: so many that registers suffice
struct Words8 {  // eight words of 32 bits, each in 64; the upper halves hold anything
    std::uint64_t v[8];
    HEADRACE_INLINE Words8 broadcast(std::uint32_t x) {
        Words8 r;
        for (std::uint64_t& word : r.v) word = x;
        return r;
    }
    HEADRACE_INLINE Words8 count_from(std::uint32_t x) {
        Words8 r;
        for (std::uint64_t& word : r.v) word = x++;
        return r;
    }
    HEADRACE_METHOD void store(std::uint64_t* p) const { std::memcpy(p, v, sizeof v); }
};

struct Mask16 {
    bool v[16];
};

struct Pairs {  // 16 columns of two bf16
    bf16_t v[32];
    HEADRACE_INLINE Pairs load(const void* p) {
        Pairs r;
        std::memcpy(r.v, p, sizeof r.v);
        return r;
    }
    HEADRACE_INLINE Pairs broadcast(const bf16_t* two) {
        Pairs r;
        HEADRACE_LANES std::memcpy(r.v + 2 * i, two, 2 * sizeof *two);
        return r;
    }
    HEADRACE_METHOD void store(void* p) const { std::memcpy(p, v, sizeof v); }
};

struct Codes {  // 16 columns of four bytes
    std::uint8_t v[64];
    HEADRACE_INLINE Codes load(const void* p) {
        Codes r;
        std::memcpy(r.v, p, sizeof r.v);
        return r;
    }
    HEADRACE_METHOD void store(void* p) const { std::memcpy(p, v, sizeof v); }
};

#define HEADRACE_BINARY(Type, op)                        \
    HEADRACE_INLINE Type operator op(Type a, Type b) {   \
        HEADRACE_LANES a.v[i] = a.v[i] op b.v[i];        \
        return a;                                        \
    }
HEADRACE_BINARY(F32x16, +)
HEADRACE_BINARY(F32x16, -)
HEADRACE_BINARY(F32x16, *)
HEADRACE_BINARY(F32x16, /)
#undef HEADRACE_BINARY

#define HEADRACE_WRAPPING(op)                                                                                       \
    HEADRACE_INLINE I32x16 operator op(I32x16 a, I32x16 b) {                                                        \
        HEADRACE_LANES a.v[i] =                                                                                     \
            static_cast<std::int32_t>(static_cast<std::uint32_t>(a.v[i]) op static_cast<std::uint32_t>(b.v[i]));    \
        return a;                                                                                                   \
    }
HEADRACE_WRAPPING(+)
HEADRACE_WRAPPING(-)
HEADRACE_WRAPPING(*)
#undef HEADRACE_WRAPPING

HEADRACE_INLINE Words8 operator^(Words8 a, Words8 b) {
    for (int i = 0; i < 8; ++i) a.v[i] ^= b.v[i];
    return a;
}
HEADRACE_INLINE Words8 product(Words8 a, Words8 b) {  // its low word, and above it
    for (int i = 0; i < 8; ++i) a.v[i] = (a.v[i] & 0xffffffffU) * (b.v[i] & 0xffffffffU);
    return a;
}
HEADRACE_INLINE Words8 upper(Words8 a) {  // its high word
    for (int i = 0; i < 8; ++i) a.v[i] >>= 32;
    return a;
}
HEADRACE_INLINE Words8 largest(Words8 a, Words8 b) {
    for (int i = 0; i < 8; ++i) {
        const std::uint64_t x = a.v[i] & 0xffffffffU, y = b.v[i] & 0xffffffffU;
        a.v[i] = x > y ? x : y;
    }
    return a;
}
HEADRACE_INLINE unsigned at_least(Words8 a, Words8 bound) {  // a bit a word; `bound` was broadcast
    unsigned bits = 0;
    for (int i = 0; i < 8; ++i) bits |= static_cast<unsigned>((a.v[i] & 0xffffffffU) >= bound.v[i]) << i;
    return bits;
}

HEADRACE_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
    HEADRACE_LANES c.v[i] += a.v[i] * b.v[i];
    return c;
}
// As on x86: the second operand if one of them is a NaN.
HEADRACE_INLINE F32x16 max(F32x16 a, F32x16 b) {
    HEADRACE_LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
}
HEADRACE_INLINE F32x16 min(F32x16 a, F32x16 b) {
    HEADRACE_LANES a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
    return a;
}
HEADRACE_INLINE F32x16 sqrt(F32x16 a) {
#if defined(__GNUC__)
    HEADRACE_LANES a.v[i] = __builtin_sqrtf(a.v[i]);
#else
    HEADRACE_LANES a.v[i] = ::sqrtf(a.v[i]);
#endif
    return a;
}

// Halves are folded onto each other: 8 + 8, 4 + 4, 2 + 2, 1 + 1.
HEADRACE_INLINE float reduce_add(F32x16 a) {
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
    return a.v[0];
}
HEADRACE_INLINE float reduce_max(F32x16 a) {
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
    return a.v[0];
}

HEADRACE_INLINE F32x16 load_bf16(const bf16_t* p) {
    bf16_t lanes[16];
    std::memcpy(lanes, p, sizeof lanes);
    F32x16 r;
    HEADRACE_LANES r.v[i] = from_bf16(lanes[i]);
    return r;
}
HEADRACE_INLINE F32x16 load_bf16(const bf16_t* p, int n) {
    F32x16 r;
    HEADRACE_LANES r.v[i] = i < n ? from_bf16(p[i]) : 0;
    return r;
}
HEADRACE_INLINE void store_bf16(bf16_t* p, F32x16 a) {
    bf16_t lanes[16];
    HEADRACE_LANES lanes[i] = to_bf16(a.v[i]);
    std::memcpy(p, lanes, sizeof lanes);
}
HEADRACE_INLINE void store_bf16(bf16_t* p, F32x16 a, int n) {
    for (int i = 0; i < n; ++i) p[i] = to_bf16(a.v[i]);
}
HEADRACE_INLINE F32x16 load_f16(const f16_t* p) {
    F32x16 r;
    HEADRACE_LANES r.v[i] = from_f16(p[i]);
    return r;
}
HEADRACE_INLINE void store_f16(f16_t* p, F32x16 a) {
    HEADRACE_LANES p[i] = to_f16(a.v[i]);
}

HEADRACE_INLINE Mask16 less(F32x16 a, F32x16 b) {
    Mask16 m;
    HEADRACE_LANES m.v[i] = a.v[i] < b.v[i];
    return m;
}
HEADRACE_INLINE Mask16 less_equal(F32x16 a, F32x16 b) {
    Mask16 m;
    HEADRACE_LANES m.v[i] = a.v[i] <= b.v[i];
    return m;
}
HEADRACE_INLINE Mask16 first_lanes(int n) {
    Mask16 m;
    HEADRACE_LANES m.v[i] = i < n;
    return m;
}
HEADRACE_INLINE unsigned lane_bits(Mask16 m) {
    unsigned bits = 0;
    HEADRACE_LANES bits |= static_cast<unsigned>(m.v[i]) << i;
    return bits;
}
HEADRACE_INLINE F32x16 select(Mask16 m, F32x16 a, F32x16 b) {  // a where m, else b
    HEADRACE_LANES a.v[i] = m.v[i] ? a.v[i] : b.v[i];
    return a;
}

HEADRACE_INLINE F32x16 to_float(I32x16 a) {
    F32x16 r;
    HEADRACE_LANES r.v[i] = static_cast<float>(a.v[i]);
    return r;
}
HEADRACE_INLINE I32x16 round(F32x16 a) {  // to nearest even; |a| < 2^22
    I32x16 r;
    constexpr float kMagic = 0x1.8p23F;  // adding it leaves the whole number in the low bits
    HEADRACE_LANES r.v[i] = static_cast<std::int32_t>(bits_of(a.v[i] + kMagic) - bits_of(kMagic));
    return r;
}
HEADRACE_INLINE F32x16 load_i8(const std::int8_t* p) {
    F32x16 r;
    HEADRACE_LANES r.v[i] = p[i];
    return r;
}
HEADRACE_INLINE void store_bf16_of_i8(bf16_t* to, const std::int8_t* codes) {  // 32 of them
    store_bf16(to, load_i8(codes));
    store_bf16(to + 16, load_i8(codes + 16));
}
HEADRACE_INLINE void store_i8(std::int8_t* p, I32x16 a) {  // clipped to -128..127
    HEADRACE_LANES p[i] = static_cast<std::int8_t>(a.v[i] < -128 ? -128 : a.v[i] > 127 ? 127 : a.v[i]);
}
HEADRACE_INLINE F32x16 load_i16(const std::int16_t* p) {
    std::int16_t lanes[16];
    std::memcpy(lanes, p, sizeof lanes);
    F32x16 r;
    HEADRACE_LANES r.v[i] = lanes[i];
    return r;
}
HEADRACE_INLINE void store_i16(std::int16_t* p, I32x16 a) {  // clipped to -32768..32767
    std::int16_t lanes[16];
    HEADRACE_LANES lanes[i] = static_cast<std::int16_t>(a.v[i] < -32768 ? -32768 : a.v[i] > 32767 ? 32767 : a.v[i]);
    std::memcpy(p, lanes, sizeof lanes);
}

// a * 2^n, n in -127..128; subnormal results are not promised.
HEADRACE_INLINE F32x16 times_power(F32x16 a, I32x16 n) {
    HEADRACE_LANES {
        const std::int32_t half = n.v[i] >> 1;  // in two steps, since 2^128 is no float
        a.v[i] *= float_of(static_cast<std::uint32_t>(half + 127) << 23);
        a.v[i] *= float_of(static_cast<std::uint32_t>(n.v[i] - half + 127) << 23);
    }
    return a;
}

HEADRACE_INLINE F32x16 first_of_pairs(Pairs a) {
    F32x16 r;
    HEADRACE_LANES r.v[i] = from_bf16(a.v[2 * i]);
    return r;
}
HEADRACE_INLINE F32x16 second_of_pairs(Pairs a) {
    F32x16 r;
    HEADRACE_LANES r.v[i] = from_bf16(a.v[2 * i + 1]);
    return r;
}
HEADRACE_INLINE F32x16 dot(F32x16 acc, Pairs a, Pairs b) {
    HEADRACE_LANES {
        acc.v[i] += from_bf16(a.v[2 * i]) * from_bf16(b.v[2 * i]);
        acc.v[i] += from_bf16(a.v[2 * i + 1]) * from_bf16(b.v[2 * i + 1]);
    }
    return acc;
}

HEADRACE_INLINE Codes low_nibbles(Codes a) {
    for (int i = 0; i < 64; ++i) a.v[i] &= 15;
    return a;
}
HEADRACE_INLINE Codes high_nibbles(Codes a) {
    for (int i = 0; i < 64; ++i) a.v[i] >>= 4;
    return a;
}

#undef HEADRACE_LANES

}  // namespace headrace::HEADRACE_ISA

#include "vec_math.h"
#include "codes_portable.h"
