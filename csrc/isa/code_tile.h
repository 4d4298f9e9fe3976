// Operands of products with int8 and int4 weights: a few rows of activations, a few panels of codes, their scales.
#pragma once

#include "scalar.h"

namespace headrace::HEADRACE_ISA {

#if defined(__GNUC__)
#define HEADRACE_UNROLL _Pragma("GCC unroll 16")  // register tiles stay in registers only if their loops are unrolled
#define HEADRACE_OPAQUE(value) __asm__("" : "+r"(value))
#else
#define HEADRACE_UNROLL
#define HEADRACE_OPAQUE(value) ((void)(value))
#endif

// Up to eight rows that lie `stride` bytes apart, by two pointers that move: a pointer for each of them would not fit
// into registers, and the compiler, which would make these eight again, must not know what they point to.
struct RowPointers {
    const char *low, *high;
    std::size_t stride, three;

    HEADRACE_INLINE RowPointers of(const void* first, std::size_t stride) {
        RowPointers rows{static_cast<const char*>(first), static_cast<const char*>(first) + 4 * stride, stride, 3 * stride};
        HEADRACE_OPAQUE(rows.three);
        return rows;
    }
    HEADRACE_METHOD const void* at(int r) const {
        const char* half = r < 4 ? low : high;
        return half + (r % 4 == 3 ? three : r % 4 * stride);
    }
    HEADRACE_METHOD void move(std::size_t bytes) {
        low += bytes;
        high += bytes;
        HEADRACE_OPAQUE(low);
        HEADRACE_OPAQUE(high);
    }
};

// One tile's view: `R` rows from `row` on by `P` panels from `panel` on.
struct CodeTile {
    const Rows* in;
    const Matrix* weight;
    int row, panel;
    float* out;
    std::size_t out_stride;  // floats
    // What the tile prefetches while it works: from `ask` on, `ask_step` bytes further with each 64 bytes of a panel that
    // it reads, and from `turn` on when it reaches group `turn_group`.
    const std::uint8_t* ask = nullptr;
    std::size_t ask_step = 0;
    const std::uint8_t* turn = nullptr;
    int turn_group = -1;

    template <typename T>
    HEADRACE_METHOD const T* activations(int r, int k) const {
        return reinterpret_cast<const T*>(static_cast<const char*>(in->data) + (row + r) * in->stride) + k;
    }
    HEADRACE_METHOD const std::uint8_t* codes(int p) const {
        return static_cast<const std::uint8_t*>(weight->data) + (panel + p) * weight->panel_bytes;
    }
    HEADRACE_METHOD std::size_t group_index(int p, int g) const { return static_cast<std::size_t>(panel + p) * weight->groups + g; }
    HEADRACE_METHOD F32x16 scales(int p, int g) const { return load_f16(weight->scales + kPanel * group_index(p, g)); }
    HEADRACE_METHOD const std::uint8_t* zeros(int p, int g) const {
        return weight->zeros == nullptr ? nullptr : weight->zeros + kPanel * group_index(p, g);
    }
};

constexpr int kCodesAhead = 4096;  // bytes of a panel that are prefetched before they are needed

// What turns 64 bytes of a panel into pairs of bf16.
template <bool kNibbles>
struct CodePairs {
    using Type = BytePairs;
};
template <>
struct CodePairs<true> {
    using Type = NibblePairs;
};

}  // namespace headrace::HEADRACE_ISA
