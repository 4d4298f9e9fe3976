// Rows of a cache turned into the order in which keys are multiplied: sixteen positions of [position][feature] become a
// panel of [feature][position]. Moves of 32-bit words only, so the result has the same bits on every instruction set.
#pragma once

#include <cstring>
#include <utility>

#include "../tensors.h"

namespace headrace::HEADRACE_ISA {

// Words of one vector register.
#if defined(__AVX512F__)
constexpr int kWords = 16;
#elif defined(__AVX2__)
constexpr int kWords = 8;
#else
constexpr int kWords = 4;
#endif
typedef std::uint32_t Words __attribute__((vector_size(4 * kWords)));

// One step of a transposition: rows `low` and `high` exchange their lanes that differ in bit kBit.
template <int kBit, int... kLane>
HEADRACE_INLINE void exchange(Words& low, Words& high, std::integer_sequence<int, kLane...>) {
    const Words a = low, b = high;
    low = __builtin_shufflevector(a, b, ((kLane & kBit) ? kWords + kLane - kBit : kLane)...);
    high = __builtin_shufflevector(a, b, ((kLane & kBit) ? kWords + kLane : kLane + kBit)...);
}

template <int kBit>
HEADRACE_INLINE void exchange_all(Words (&rows)[kWords]) {
    if constexpr (kBit < kWords) {
#pragma GCC unroll 16
        for (int i = 0; i < kWords; ++i) {
            if ((i & kBit) == 0) exchange<kBit>(rows[i], rows[i | kBit], std::make_integer_sequence<int, kWords>());
        }
        exchange_all<2 * kBit>(rows);
    }
}

// out[c][r] = in[r][c] for 16 rows and `columns` (16, or 8) columns of words; strides in bytes.
inline void turn_words(const void* in, std::size_t in_stride, int columns, char* out, std::size_t out_stride) {
    const int wide = columns < kWords ? columns : kWords;  // columns of a block: words after them are read and not written
    for (int column = 0; column < columns; column += kWords) {
        for (int row = 0; row < 16; row += kWords) {
            Words block[kWords];
            const char* from = static_cast<const char*>(in) + row * in_stride + column * 4;
#pragma GCC unroll 16
            for (int i = 0; i < kWords; ++i) std::memcpy(&block[i], from + i * in_stride, sizeof(Words));
            exchange_all<1>(block);
            char* to = out + column * out_stride + row * 4;
            for (int i = 0; i < wide; ++i) std::memcpy(to + i * out_stride, &block[i], sizeof(Words));
        }
    }
}

// Two positions side by side become two features side by side: `pairs` words of (feature 2j, feature 2j + 1) for the even
// position and for the odd one.
HEADRACE_INLINE void part_positions(const bf16_t* row, int pairs, std::uint32_t* even, std::uint32_t* odd) {
    std::uint32_t words[32];
    std::memcpy(words, row, static_cast<std::size_t>(pairs) * 8);
    for (int j = 0; j < pairs; ++j) {
        even[j] = (words[2 * j] & 0xFFFFU) | words[2 * j + 1] << 16;
        odd[j] = words[2 * j] >> 16 | (words[2 * j + 1] & 0xFFFF0000U);
    }
}

// Turns a segment's codes into bf16, which holds them exactly: `count` runs of `width` codes, `stride` codes apart.
inline void expand_codes(const std::int8_t* codes, int count, int width, int stride, bf16_t* out) {
    for (int i = 0; i < count; ++i, codes += stride, out += width) {
        for (int c = 0; c < width; c += 32) store_bf16_of_i8(out + c, codes + c);
    }
}

// Sixteen positions of a cache of that type, in the order of its values, to a panel of keys whose rows of two features (f32:
// one) are `row_stride` bytes apart; codes become bf16. `dim` is a multiple of 16.
inline void turn_rows(DType type, const char* rows, int dim, char* keys, std::size_t row_stride) {
    if (type == DType::f32) {
        for (int d = 0; d < dim; d += 16) turn_words(rows + 4 * d, 4 * static_cast<std::size_t>(dim), 16, keys + d * row_stride, row_stride);
        return;
    }
    alignas(64) bf16_t expanded[2 * 32];  // one row of two positions and 32 features
    alignas(64) std::uint32_t parted[16][16];
    for (int d = 0; d < dim; d += 32) {
        const int pairs = dim - d < 32 ? 8 : 16;
        for (int pair = 0; pair < 8; ++pair) {
            const std::size_t at = 2 * (static_cast<std::size_t>(pair) * dim + d);
            const auto* row = reinterpret_cast<const bf16_t*>(rows) + at;
            if (type == DType::i8) {
                expand_codes(reinterpret_cast<const std::int8_t*>(rows) + at, 1, 4 * pairs, 0, expanded);
                row = expanded;
            }
            if (pairs == 16) {
                part_positions(row, 16, parted[2 * pair], parted[2 * pair + 1]);
            } else {
                part_positions(row, 8, parted[2 * pair], parted[2 * pair + 1]);
            }
        }
        turn_words(parted, sizeof(parted[0]), pairs, keys + d / 2 * row_stride, row_stride);
    }
}

}  // namespace headrace::HEADRACE_ISA
