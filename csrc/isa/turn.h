// Rows of a cache turned into the order in which keys are multiplied: sixteen positions of [position][feature] become a
// panel of [feature][position]. Moves of 32-bit words only, so the result has the same bits on every instruction set.
#pragma once

#include <cstring>
#include <utility>

#include "kv_codes.h"

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

#if defined(__AVX512F__)
typedef std::uint16_t Halves __attribute__((vector_size(64)));

template <int... kWord>
HEADRACE_INLINE void part_words(Halves low, Halves high, Words& even, Words& odd, std::integer_sequence<int, kWord...>) {
    even = (Words)__builtin_shufflevector(low, high, (kWord * 2)...);
    odd = (Words)__builtin_shufflevector(low, high, (kWord * 2 + 1)...);
}

// Sixteen positions of 32 features: eight rows of two positions, `row_bytes` apart.
HEADRACE_INLINE void turn_pairs(const bf16_t* rows, std::size_t row_bytes, char* out, std::size_t out_stride) {
    Words block[16];
#pragma GCC unroll 8
    for (int pair = 0; pair < 8; ++pair) {
        Halves low, high;
        const char* from = reinterpret_cast<const char*>(rows) + pair * row_bytes;
        std::memcpy(&low, from, sizeof low);
        std::memcpy(&high, from + sizeof low, sizeof high);
        part_words(low, high, block[2 * pair], block[2 * pair + 1], std::make_integer_sequence<int, 32>());
    }
    exchange_all<1>(block);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) std::memcpy(out + i * out_stride, &block[i], sizeof(Words));
}
#endif

// Sixteen positions of a cache of that type, in the order of its values, to a panel of keys whose rows of two features (f32:
// one) are `row_stride` bytes apart; codes become bf16. `dim` is a multiple of 16.
inline void turn_rows(DType type, const char* rows, int dim, char* keys, std::size_t row_stride) {
    if (type == DType::f32) {
        for (int d = 0; d < dim; d += 16) turn_words(rows + 4 * d, 4 * static_cast<std::size_t>(dim), 16, keys + d * row_stride, row_stride);
        return;
    }
    const std::size_t line = 2 * static_cast<std::size_t>(dim);  // elements of two positions
    const bool coded = is_coded(type);
    const auto* floats = reinterpret_cast<const bf16_t*>(rows);
    int d = 0;
#if defined(__AVX512F__)
    alignas(64) bf16_t several[8 * 64];
    for (; d + 32 <= dim; d += 32) {
        if (coded) expand_codes(type, rows + 2 * d, 8, 64, static_cast<int>(line), several);
        turn_pairs(coded ? several : floats + 2 * d, coded ? 128 : 2 * line, keys + d / 2 * row_stride, row_stride);
    }
#endif
    alignas(64) bf16_t expanded[2 * 32];  // one row of two positions and 32 features
    alignas(64) std::uint32_t parted[16][16];
    for (; d < dim; d += 32) {
        const int pairs = dim - d < 32 ? 8 : 16;
        for (int pair = 0; pair < 8; ++pair) {
            const std::size_t at = pair * line + 2 * d;
            const bf16_t* row = floats + at;
            if (coded) {
                expand_codes(type, rows + at, 1, 4 * pairs, 0, expanded);
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
