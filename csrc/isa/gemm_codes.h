// Products with int8 and int4 weights. A group of input features at a time: a product of whole numbers (int8
// activations) or of bf16 pairs, scaled into the row's accumulator. The order is the same for one row as for many.
#pragma once

#include "code_tile.h"
#include "gemm_codes_bf16.h"

namespace headrace::HEADRACE_ISA {

// sums[r][p] += sum over the next `features` input features of (code - offset) * activation; the offset is kByteOffset
// for bytes and 0 for nibbles. Whole numbers may be added in any order: a small tile has several sums for each of its
// own, which do not wait for each other.
template <bool kNibbles, int R, int P>
HEADRACE_INLINE void add_code_products(int features, RowPointers& a, const std::uint8_t*& b, std::size_t panel_bytes,
                                       const std::uint8_t*& ask, std::size_t ask_step, I32x16 (&sums)[R][P]) {
    constexpr int kStep = kNibbles ? 8 : 4;  // input features in 64 bytes of a panel
    constexpr int kWays = R * P >= 8 || kCodePanels == 1 ? 1 : R * P >= 4 ? 2 : 4;
    constexpr int kVectors = kNibbles ? (kWays + 1) / 2 : kWays;  // loads of 64 bytes a turn
    I32x16 more[kWays][R][P];
    HEADRACE_UNROLL for (int way = 1; way < kWays; ++way) {
        HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) more[way][r][p] = I32x16::zero();
        }
    }
    for (int left = features; left > 0; left -= kStep * kVectors) {
        HEADRACE_UNROLL for (int v = 0; v < kVectors; ++v) {
            Codes codes[P];
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) codes[p] = Codes::load(b + p * panel_bytes + 64 * v);
            HEADRACE_PREFETCH(ask);
            ask += ask_step;
            HEADRACE_UNROLL for (int half = 0; half < (kNibbles ? 2 : 1); ++half) {
                const int way = (kNibbles ? 2 * v + half : v) % kWays;
                HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
                    HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
                        I32x16& sum = way == 0 ? sums[r][p] : more[way][r][p];
                        const std::int8_t* four = static_cast<const std::int8_t*>(a.at(r)) + kStep * v + 4 * half;
                        if constexpr (kNibbles) {
                            sum = dot_nibbles(sum, half == 0 ? low_nibbles(codes[p]) : high_nibbles(codes[p]), four);
                        } else {
                            sum = dot_bytes(sum, codes[p], four);
                        }
                    }
                }
            }
        }
        a.move(kStep * kVectors);
        b += 64 * kVectors;
    }
    HEADRACE_UNROLL for (int way = 1; way < kWays; ++way) {
        HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) sums[r][p] = sums[r][p] + more[way][r][p];
        }
    }
}

template <bool kNibbles, int R, int P>
static void multiply_code_tile(const CodeTile& tile) {
    const Matrix& w = *tile.weight;
    const Rows& in = *tile.in;
    constexpr int kMiddle = kNibbles ? 8 : 128, kOffset = kNibbles ? 0 : kByteOffset;
    F32x16 acc[R][P];
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) acc[r][p] = F32x16::zero();
    }
    const std::uint8_t *ask = tile.ask, *codes = tile.codes(0);
    const std::size_t first = static_cast<std::size_t>(tile.row) * in.groups, stride = in.groups * sizeof(float);
    RowPointers activations = RowPointers::of(tile.activations<char>(0, 0), in.stride);
    RowPointers totals = RowPointers::of(in.sums + first, stride);
    RowPointers row_scales = RowPointers::of(in.scales + first, stride);
    for (int g = 0, left = w.cols_padded; g < w.groups; ++g, left -= w.group) {
        if (g == tile.turn_group) ask = tile.turn;
        // Whole numbers: starting from -(zero - offset) * sum of activations gives the sum of (code - zero) * activation.
        I32x16 sums[R][P];
        const auto total = [&](int r) { return I32x16::broadcast(*static_cast<const std::int32_t*>(totals.at(r))); };
        if (w.zeros == nullptr) {
            const I32x16 factor = I32x16::broadcast(kOffset - kMiddle);
            HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
                const I32x16 start = total(r) * factor;
                HEADRACE_UNROLL for (int p = 0; p < P; ++p) sums[r][p] = start;
            }
        } else {
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
                const I32x16 factor = I32x16::broadcast(kOffset) - load_bytes(tile.zeros(p, g));
                HEADRACE_UNROLL for (int r = 0; r < R; ++r) sums[r][p] = total(r) * factor;
            }
        }
        add_code_products<kNibbles, R, P>(least(w.group, left), activations, codes, w.panel_bytes, ask, tile.ask_step, sums);
        F32x16 scales[P];
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) scales[p] = tile.scales(p, g);
        HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
            const F32x16 scale = F32x16::broadcast(*static_cast<const float*>(row_scales.at(r)));
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
                acc[r][p] = fma(to_float(sums[r][p]), scales[p] * scale, acc[r][p]);
            }
        }
        totals.move(sizeof(std::int32_t));
        row_scales.move(sizeof(float));
    }
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) acc[r][p].store(tile.out + r * tile.out_stride + kPanel * p);
    }
}

template <bool kNibbles, int R, int P>
HEADRACE_INLINE void code_tile_of(const CodeTile& tile, int rows) {  // for 1 to R rows
    if constexpr (R > 1) {
        if (rows < R) return code_tile_of<kNibbles, R - 1, P>(tile, rows);
    }
    multiply_code_tile<kNibbles, R, P>(tile);
}

// int8 activations: `rows` rows by P panels. `next`: the panels that follow, or null.
//
// A single pass prefetches its own panels, and then the first lines of the next ones. More rows are divided evenly into
// passes, which find their panels in the L2 cache; each prefetches its part of the next ones.
template <bool kNibbles, int P>
static void column_of_code_tiles(CodeTile tile, int rows, const std::uint8_t* next) {
    const Matrix& w = *tile.weight;
    const int passes = ceil_div(rows, kCodeRows);
    if (next == nullptr) next = tile.codes(0);
    if (passes == 1) {
        // Nibbles of many rows take longest between two lines: there twice the distance was measured to be faster.
        const int early = kNibbles && rows > 4 ? 2 * kCodesAhead : kCodesAhead;
        tile.ask = tile.codes(0) + early;
        tile.ask_step = 64;
        tile.turn = next;
        tile.turn_group = largest(0, w.groups - ceil_div(early * w.groups, static_cast<int>(w.panel_bytes)));
        code_tile_of<kNibbles, kCodeRows, P>(tile, rows);
        return;
    }
    tile.ask = next;
    tile.ask_step = next == tile.codes(0) ? 0 : ceil_div(64 * P, passes);
    for (int left = passes; left > 0; --left) {
        const int some = ceil_div(rows, left);
        code_tile_of<kNibbles, kCodeRows, P>(tile, some);
        rows -= some;
        tile.row += some;
        tile.out += some * tile.out_stride;
        tile.ask += w.panel_bytes / 64 * tile.ask_step;
    }
}

// bf16 activations.
template <bool kNibbles, int P>
static void column_of_wide_code_tiles(CodeTile tile, int rows) {
    for (int taken; rows > 0; rows -= taken, tile.row += taken, tile.out += taken * tile.out_stride) {
        if (rows > kCodeRows) {
            taken = least(rows, kDecodedRows);
            multiply_decoded<kNibbles, P>(tile, taken);
        } else if (rows == kCodeRows) {
            taken = kCodeRows;
            multiply_code_tile_bf16<kNibbles, kCodeRows, P>(tile);
        } else if (rows >= 4) {
            taken = 4;
            multiply_code_tile_bf16<kNibbles, 4, P>(tile);
        } else if (rows >= 2) {
            taken = 2;
            multiply_code_tile_bf16<kNibbles, 2, P>(tile);
        } else {
            taken = 1;
            multiply_code_tile_bf16<kNibbles, 1, P>(tile);
        }
    }
}

template <bool kNibbles, bool kWide, int P>
HEADRACE_INLINE void column_of_tiles(const CodeTile& tile, int rows, const std::uint8_t* next) {
    if constexpr (kWide) {
        column_of_wide_code_tiles<kNibbles, P>(tile, rows);
    } else {
        column_of_code_tiles<kNibbles, P>(tile, rows, next);
    }
}

template <bool kNibbles, bool kWide>
static void run_code_tiles(CodeTile tile, int rows, int panels, int next_panel) {
    // One pass of few rows is as fast as memory, which is read fastest as one stream. bf16 sums are in a fixed order, so
    // that it takes two panels to have enough of them under way.
    const int width = !kWide && rows <= kCodeRows ? 1 : kCodePanels;
    for (int taken; panels > 0; panels -= taken, tile.panel += taken, tile.out += taken * kPanel) {
        taken = panels >= width ? width : 1;
        const int following = panels > taken ? tile.panel + taken : next_panel;
        const std::uint8_t* next = following < 0 ? nullptr : tile.codes(following - tile.panel);
        if (taken == 1) {
            column_of_tiles<kNibbles, kWide, 1>(tile, rows, next);
        } else {
            column_of_tiles<kNibbles, kWide, kCodePanels>(tile, rows, next);
        }
    }
}

// out[r, 16p + c] = sum over k of in[row + r, k] * W[16 (panel + p) + c, k], for `rows` rows and `panels` panels.
// `next_panel`: the panels that follow, or -1.
// `in` is encoded as weight.input says (i8: in the weight's groups). Rows and panels may be divided in any way: no bit changes.
// With one scale for all of them, i8 takes up to 2^16 input features (a sum of theirs has to fit into 32 bits).
static void gemm_codes(const Rows& in, int row, int rows, const Matrix& weight, int panel, int panels, float* out,
                       std::size_t out_stride, int next_panel) {
    const CodeTile tile{.in = &in, .weight = &weight, .row = row, .panel = panel, .out = out, .out_stride = out_stride};
    const bool wide = weight.input == DType::bf16;
    if (weight.format == WeightFormat::int4) {
        (wide ? run_code_tiles<true, true> : run_code_tiles<true, false>)(tile, rows, panels, next_panel);
    } else {
        (wide ? run_code_tiles<false, true> : run_code_tiles<false, false>)(tile, rows, panels, next_panel);
    }
}

}  // namespace headrace::HEADRACE_ISA
