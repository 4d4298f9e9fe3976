// The eight AMX tiles of a thread: hardware (HEADRACE_TILES 1), or plain C++ that does the same (HEADRACE_TILES 2).
// A tile is up to 16 rows of up to 64 bytes. Instructions: Intel SDM volume 2, TDPBF16PS, TDPBSUD, TDPBUUD and so on.
#pragma once

#include <cstring>

#include "scalar.h"

namespace headrace::HEADRACE_ISA {

// How tiles are used here: 0 to 3 hold sums (rows 0 and 1 of tiles by panels 0 and 1), 4 and 5 activations, 6 and 7
// weights. The second row of tiles may be shorter, for the last rows of a product.
struct alignas(64) TileConfig {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

HEADRACE_INLINE TileConfig tile_config(int first_rows, int second_rows, int bytes) {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) {
        const bool weights = tile >= 6, activations = tile == 4 || tile == 5;
        const int rows = tile == 4 || tile < 2 ? first_rows : second_rows;
        config.rows[tile] = static_cast<std::uint8_t>(weights ? bytes / 4 : rows);
        config.row_bytes[tile] = static_cast<std::uint16_t>(activations ? bytes : 64);
    }
    return config;
}

#if HEADRACE_TILES == 1

// Not the intrinsics: GCC 12's do not declare that they read and write memory.
HEADRACE_INLINE void load_tile_config(const TileConfig& config) {
    __asm__ volatile("ldtilecfg %0" : : "m"(config) : "memory");
}
HEADRACE_INLINE void release_tiles() { __asm__ volatile("tilerelease" : : : "memory"); }
template <int kTile>
HEADRACE_INLINE void zero_tile() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
template <int kTile>
HEADRACE_INLINE void load_tile(const void* from, std::size_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
HEADRACE_INLINE void store_tile(void* to, std::size_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
}
template <int kSum, int kLeft, int kRight>
HEADRACE_INLINE void dot_tiles_bf16() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
}
template <int kSum, int kLeft, int kRight>
HEADRACE_INLINE void dot_tiles_i8() {  // signed activations, unsigned weights
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
}

#else

struct Tiles {
    TileConfig config;
    alignas(64) unsigned char data[8][16][64];
};
static thread_local Tiles tiles;

HEADRACE_INLINE void load_tile_config(const TileConfig& config) {
    tiles.config = config;
    std::memset(tiles.data, 0, sizeof tiles.data);
}
HEADRACE_INLINE void release_tiles() { std::memset(static_cast<void*>(&tiles), 0, sizeof tiles); }
template <int kTile>
HEADRACE_INLINE void zero_tile() {
    std::memset(tiles.data[kTile], 0, sizeof tiles.data[kTile]);
}
template <int kTile>
HEADRACE_INLINE void load_tile(const void* from, std::size_t stride) {
    std::memset(tiles.data[kTile], 0, sizeof tiles.data[kTile]);
    for (int row = 0; row < tiles.config.rows[kTile]; ++row) {
        std::memcpy(tiles.data[kTile][row], static_cast<const char*>(from) + row * stride, tiles.config.row_bytes[kTile]);
    }
}
template <int kTile>
HEADRACE_INLINE void store_tile(void* to, std::size_t stride) {
    for (int row = 0; row < tiles.config.rows[kTile]; ++row) {
        std::memcpy(static_cast<char*>(to) + row * stride, tiles.data[kTile][row], tiles.config.row_bytes[kTile]);
    }
}

// sum[m][n] += (sum over even elements of the row by the column) + (sum over odd ones), each in rising order.
static void dot_tiles_bf16(unsigned char (*sum)[64], const unsigned char (*left)[64], const unsigned char (*right)[64],
                           int rows, int pairs) {
    for (int m = 0; m < rows; ++m) {
        float even[16] = {}, odd[16] = {}, total[16];
        for (int k = 0; k < pairs; ++k) {
            bf16_t a[2], b[32];
            std::memcpy(a, left[m] + 4 * k, sizeof a);
            std::memcpy(b, right[k], sizeof b);
            const float a0 = from_bf16(a[0]), a1 = from_bf16(a[1]);
            for (int n = 0; n < 16; ++n) {
                even[n] += a0 * from_bf16(b[2 * n]);
                odd[n] += a1 * from_bf16(b[2 * n + 1]);
            }
        }
        std::memcpy(total, sum[m], sizeof total);
        for (int n = 0; n < 16; ++n) total[n] += even[n] + odd[n];
        std::memcpy(sum[m], total, sizeof total);
    }
}
template <int kSum, int kLeft, int kRight>
HEADRACE_INLINE void dot_tiles_bf16() {
    dot_tiles_bf16(tiles.data[kSum], tiles.data[kLeft], tiles.data[kRight], tiles.config.rows[kSum],
                   tiles.config.row_bytes[kLeft] / 4);
}

static void dot_tiles_i8(unsigned char (*sum)[64], const unsigned char (*left)[64], const unsigned char (*right)[64],
                         int rows, int fours) {
    for (int m = 0; m < rows; ++m) {
        std::uint32_t total[16];  // wraps around as the instruction does
        std::memcpy(total, sum[m], sizeof total);
        for (int k = 0; k < fours; ++k) {
            std::int8_t a[4];
            std::memcpy(a, left[m] + 4 * k, sizeof a);
            for (int n = 0; n < 16; ++n) {
                for (int j = 0; j < 4; ++j) total[n] += static_cast<std::uint32_t>(a[j] * static_cast<std::int32_t>(right[k][4 * n + j]));
            }
        }
        std::memcpy(sum[m], total, sizeof total);
    }
}
template <int kSum, int kLeft, int kRight>
HEADRACE_INLINE void dot_tiles_i8() {
    dot_tiles_i8(tiles.data[kSum], tiles.data[kLeft], tiles.data[kRight], tiles.config.rows[kSum],
                 tiles.config.row_bytes[kLeft] / 4);
}

#endif

// ---- Configurations ----

// This thread's tile configuration. Unknown outside of a scope: other libraries use tiles too.
struct TileState {
    int scopes;
    int shape;  // 0: not configured
};
static thread_local TileState tile_state;

// Tiles may be used while a scope lives; the last one of a thread releases them, so that they are not saved on every
// context switch. Every product opens one; around many small products, open one yourself: configuring costs more
// than a small product.
struct TileScope {
    TileScope() {
        if (tile_state.scopes++ == 0) tile_state.shape = 0;
    }
    ~TileScope() {
        if (--tile_state.scopes == 0 && tile_state.shape != 0) release_tiles();
    }
    TileScope(const TileScope&) = delete;
    TileScope& operator=(const TileScope&) = delete;
};

// Rows of the first and of the second row of tiles (0: unused), and bytes of a row of activations. Tiles become zero
// if that is another shape than before.
HEADRACE_INLINE void shape_tiles(int first_rows, int second_rows, int bytes) {
    const int second = second_rows == 0 ? first_rows : second_rows;  // a tile without rows is not allowed to be named
    const int shape = first_rows | second << 8 | bytes << 16;
    if (tile_state.shape == shape) return;
    load_tile_config(tile_config(first_rows, second, bytes));
    tile_state.shape = shape;
}

}  // namespace headrace::HEADRACE_ISA
