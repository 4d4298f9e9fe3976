// Single values: bit patterns of bf16 and f16, integer helpers. Included by every vec_*.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../tensors.h"

#if defined(_MSC_VER)
#include <intrin.h>
#endif

#if defined(__GNUC__)
#define HEADRACE_INLINE static inline __attribute__((always_inline))
#define HEADRACE_METHOD inline __attribute__((always_inline))
#define HEADRACE_PREFETCH(address) __builtin_prefetch(address)
#define HEADRACE_PREFETCH_WRITE(address) __builtin_prefetch(address, 1)
#define HEADRACE_PREFETCH_L2(address) __builtin_prefetch(address, 0, 2)  // not into the first-level cache
#define HEADRACE_ALONE [[maybe_unused]] __attribute__((noinline)) static  // compiled once, however often it is called
#define HEADRACE_UNROLL _Pragma("GCC unroll 16")  // register tiles stay in registers only if their loops are unrolled
#define HEADRACE_OPAQUE(value) __asm__("" : "+r"(value))
#define HEADRACE_OPAQUE_VECTOR(value) __asm__("" : "+x"(value))
#else
#define HEADRACE_INLINE static inline
#define HEADRACE_METHOD inline
#define HEADRACE_PREFETCH(address) ((void)(address))
#define HEADRACE_PREFETCH_WRITE(address) ((void)(address))
#define HEADRACE_PREFETCH_L2(address) ((void)(address))
#define HEADRACE_ALONE [[maybe_unused]] static
#define HEADRACE_UNROLL
#define HEADRACE_OPAQUE(value) ((void)(value))
#define HEADRACE_OPAQUE_VECTOR(value) ((void)(value))
#endif

namespace headrace::HEADRACE_ISA {

HEADRACE_INLINE constexpr int least(int a, int b) { return a < b ? a : b; }
HEADRACE_INLINE int largest(int a, int b) { return a > b ? a : b; }

// What values are multiplied by to become int8 codes, the largest magnitude becoming 127. Finite for subnormal ones too:
// infinity times zero would be NaN.
HEADRACE_INLINE float codes_per_unit(float top) {
    const float inverse = top > 0.0F ? 127.0F / top : 0.0F;
    return inverse < 3e38F ? inverse : 3e38F;
}
HEADRACE_INLINE int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Thread `thread` of `size` takes [begin, end) of `count` things; the shares differ by one at most.
struct Share {
    int begin, end;
};
HEADRACE_INLINE Share share_of(int count, int thread, int size) {
    const auto cut = [&](int i) { return static_cast<int>(static_cast<std::int64_t>(count) * i / size); };
    return {cut(thread), cut(thread + 1)};
}

// Threads that share a counter take 0, 1, 2, ... from it, each number once.
HEADRACE_INLINE int take(int& counter) {
#if defined(__GNUC__)
    return __atomic_fetch_add(&counter, 1, __ATOMIC_RELAXED);
#else
    return static_cast<int>(_InterlockedExchangeAdd(reinterpret_cast<volatile long*>(&counter), 1));
#endif
}

HEADRACE_INLINE float float_of(std::uint32_t bits) {
    return __builtin_bit_cast(float, bits);
}

HEADRACE_INLINE std::uint32_t bits_of(float value) {
    return __builtin_bit_cast(std::uint32_t, value);
}

HEADRACE_INLINE float from_bf16(bf16_t value) { return float_of(static_cast<std::uint32_t>(value) << 16); }

HEADRACE_INLINE bf16_t to_bf16(float value) {  // to nearest even; a NaN stays one
    const std::uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<bf16_t>((bits >> 16) | 0x40U);
    return static_cast<bf16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

#if defined(__aarch64__) && defined(__ARM_FP16_FORMAT_IEEE)
HEADRACE_INLINE float from_f16(f16_t value) {
    union { f16_t bits; __fp16 value; } u{value};
    return static_cast<float>(u.value);
}
#else
HEADRACE_INLINE float from_f16(f16_t value) {  // masks instead of branches: loops of it become vectors
    const std::uint32_t sign = (value & 0x8000U) << 16, rest = (value & 0x7fffU) << 13;
    // A subnormal is its mantissa with the exponent of 2^-14, minus 2^-14; infinities and NaNs keep the largest exponent.
    const std::uint32_t subnormal = bits_of(float_of(rest + (113U << 23)) - 0x1p-14F), normal = rest + (112U << 23);
    const auto small = static_cast<std::uint32_t>(-(static_cast<std::int32_t>(rest) < 0x00800000));
    const auto strange = static_cast<std::uint32_t>(-(static_cast<std::int32_t>(rest) >= 0x0f800000));
    return float_of(sign | (subnormal & small) | (normal & ~small) | (strange & 0x7f800000U));
}
#endif

// A float of 8 bits: a sign, exponent and kMantissa bits. As the top bits of a float it is 2^kPower too small.
template <int kMantissa, int kPower>
HEADRACE_INLINE float from_float8(std::uint8_t value) {
    const std::uint32_t sign = (value & 0x80U) << 24, rest = (value & 0x7fU) << (23 - kMantissa);
    return float_of(sign | rest) * float_of(static_cast<std::uint32_t>(127 + kPower) << 23);
}

HEADRACE_INLINE f16_t to_f16(float value) {  // to nearest even; beyond 65504: infinity
    const std::uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000U, rest = bits & 0x7fffffffU;
    if (rest > 0x7f800000U) return static_cast<f16_t>(sign | 0x7e00U | ((rest >> 13) & 0x01ffU));
    if (rest >= 0x477ff000U) return static_cast<f16_t>(sign | 0x7c00U);
    if (rest < 0x38800000U) {  // subnormal: adding 0.5 leaves the mantissa in the low bits, rounded
        return static_cast<f16_t>(sign | (bits_of(float_of(rest) + 0.5F) - bits_of(0.5F)));
    }
    return static_cast<f16_t>(sign | ((rest - (112U << 23) + 0x0fffU + ((rest >> 13) & 1U)) >> 13));
}

}  // namespace headrace::HEADRACE_ISA
