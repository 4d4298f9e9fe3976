// Products of bf16 activations with weights of codes: codes less their zero, or the numbers that they stand for, are exact
// in bf16; a group's sum is f32 in rising order and is scaled into the row's accumulator.
#pragma once

#include "code_formats.h"
#include "code_side.h"

namespace headrace::HEADRACE_ISA {

// R rows by P panels: codes become pairs in registers.
template <class Format, bool kInPlace, int R, int P>
static void direct_pairs_tile(const CodeTile& tile) {
    const Matrix& w = *tile.weight;
    // Panels that take turns. The sums of one row by one panel wait for each other; more rows have sums enough, and more
    // panels do not fit into sixteen registers.
    constexpr int kAbreast = kBySixteen && R == 1 && P % 2 == 0 ? 2 : 1;
    // How far from a place in panel 0 lies what is read `bytes` later: after a panel comes the one that follows all P.
    const auto later = [&](const std::uint8_t* at, std::size_t bytes) {
        return at + bytes < tile.codes(1) ? bytes : bytes + (P - 1) * w.panel_bytes;
    };
    F32x16 acc[R][P];
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) acc[r][p] = F32x16::zero();
    }
    Side side[kInPlace ? 1 : P];
    for (int begin = 0, end, group = 0; begin < w.cols_padded; begin = end) {
        end = side_end<kInPlace>(w, begin, w.group);
        if constexpr (!kInPlace) {
            for (int p = 0; p < P; ++p) load_scales(w, tile.panel + p, begin, end, w.group, side[p].scales);
        }
        for (int k = begin, part = 0; k < end; k += w.group, ++part, ++group) {
            typename Format::Wide decoders[P];
            F32x16 sums[R][P];
            const bf16_t* a[R];
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) decoders[p] = Format::Wide::of(w, zeros_of(w, tile.panel + p, group));
            HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
                a[r] = tile.activations<bf16_t>(r, k);
                HEADRACE_UNROLL for (int p = 0; p < P; ++p) sums[r][p] = F32x16::zero();
            }
            const int features = least(w.group, end - k);
            const std::uint8_t* at = codes_of<Format>(w, tile.panel, k);
            for (int i = 0; i < features; i += Format::kFeatures, at += 64 * Format::kLines) {
                const std::size_t ahead = later(at, kCodesAhead), far = later(at, kCodesAhead + kCodesFar);
                HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
                    HEADRACE_UNROLL for (int line = 0; line < Format::kLines; ++line) {
                        HEADRACE_PREFETCH(at + p * w.panel_bytes + ahead + 64 * line);
                        HEADRACE_PREFETCH_L2(at + p * w.panel_bytes + far + 64 * line);
                    }
                }
                HEADRACE_UNROLL for (int p = 0; p < P; p += kAbreast) {
                    for_indices<0, Format::kFeatures / 2>([&]<int kPair>() __attribute__((always_inline)) {
                        HEADRACE_UNROLL for (int q = p; q < p + kAbreast; ++q) {
                            const PairFactors pair = decoders[q].template pair<kPair>(at + q * w.panel_bytes);
                            HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
                                sums[r][q] = dot(sums[r][q], pair, a[r] + i + 2 * kPair);
                            }
                        }
                    });
                }
            }
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
                F32x16 scale;
                if constexpr (kInPlace) {
                    scale = scales_of(w, tile.panel + p, group);
                } else {
                    scale = F32x16::load(side[p].scales[part]);
                }
                HEADRACE_UNROLL for (int r = 0; r < R; ++r) acc[r][p] = fma(sums[r][p], scale, acc[r][p]);
            }
        }
    }
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) acc[r][p].store(tile.out + r * tile.out_stride + kPanel * p);
    }
}

// Many rows: a chunk of P panels becomes pairs once, in the first cache, and all rows pass.
constexpr int kPairRows = 96;

template <int P>
struct PairChunk {
    int begin, end;
    Side side[P];
    alignas(64) std::uint8_t pairs[P][kChunkFeatures / 2 * sizeof(PairFactors)];
    alignas(64) float sums[kPairRows][P * kPanel];  // of a group that does not end with the chunk
};

// R rows with the chunk's features, which are whole groups or lie inside one.
template <int R, int P>
static void pair_chunk_tile(const CodeTile& tile, int first_row, PairChunk<P>& chunk) {
    const Matrix& w = *tile.weight;
    const int begin = chunk.begin, end = chunk.end;
    F32x16 acc[R][P], sums[R][P];
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
            const float* out = tile.out + (first_row + r) * tile.out_stride + kPanel * p;
            acc[r][p] = begin < w.group ? F32x16::zero() : F32x16::load(out);
            sums[r][p] =
                begin % w.group == 0 ? F32x16::zero() : F32x16::load(chunk.sums[first_row + r] + kPanel * p);
        }
    }
    const bool complete = end % w.group == 0 || end == w.cols_padded;
    const bf16_t* a[R];
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) a[r] = tile.activations<bf16_t>(first_row + r, 0);
    std::size_t at = 0;
    for (int k = begin, part = 0; k < end; ++part) {
        for (const int stop = least(begin % w.group == 0 ? k + w.group : end, end); k < stop; k += 2, at += sizeof(PairFactors)) {
            PairFactors pairs[P];
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) pairs[p] = PairFactors::load(chunk.pairs[p] + at);
            HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
                HEADRACE_UNROLL for (int p = 0; p < P; ++p) sums[r][p] = dot(sums[r][p], pairs[p], a[r] + k);
            }
        }
        if (!complete) break;
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
            const F32x16 scale = F32x16::load(chunk.side[p].scales[part]);
            HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
                acc[r][p] = fma(sums[r][p], scale, acc[r][p]);
                sums[r][p] = F32x16::zero();
            }
        }
    }
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
            if (complete) {
                acc[r][p].store(tile.out + (first_row + r) * tile.out_stride + kPanel * p);
            } else {
                sums[r][p].store(chunk.sums[first_row + r] + kPanel * p);
            }
        }
    }
}

HEADRACE_INLINE Decode pair_decoder_of(WeightFormat format) {
    return with_format(format, []<class Format>() -> Decode { return decode_pairs<Format>; });
}

// `rows` (up to kPairRows) rows by P panels.
template <int P>
static void chunk_pairs(const CodeTile& tile, int rows) {
    const Matrix& w = *tile.weight;
    const Decode decode = pair_decoder_of(w.format);
    PairChunk<P> chunk;
    for (chunk.begin = 0; chunk.begin < w.cols_padded; chunk.begin = chunk.end) {
        chunk.end = chunk_end(chunk.begin, w.group, w.cols_padded);
        for (int p = 0; p < P; ++p) {
            load_scales(w, tile.panel + p, chunk.begin, chunk.end, w.group, chunk.side[p].scales);
            decode(w, tile.panel + p, chunk.begin, chunk.end, chunk.pairs[p]);
        }
        int row = 0;
        for (; row + kCodeRows <= rows; row += kCodeRows) pair_chunk_tile<kCodeRows, P>(tile, row, chunk);
        if constexpr (kCodeRows > 4) {
            for (; row + 4 <= rows; row += 4) pair_chunk_tile<4, P>(tile, row, chunk);
        }
        for (; row + 2 <= rows; row += 2) pair_chunk_tile<2, P>(tile, row, chunk);
        for (; row < rows; ++row) pair_chunk_tile<1, P>(tile, row, chunk);
    }
}

// Few rows decode in registers, once a pass: fewer rows than a tile's with the usual formats and sides, otherwise one.
// Whether it has multiplied, by P panels.
template <class Format, int P>
static bool multiply_pairs_directly(CodeTile tile, int rows) {
    if constexpr (Format::kUsual) {
        if (rows < kCodeRows && in_place(*tile.weight, tile.weight->group)) {
            for (int some; rows > 0; rows -= some, tile.row += some, tile.out += some * tile.out_stride) {
                some = rows >= 4 ? 4 : rows >= 2 ? 2 : 1;
                const auto run = some == 4   ? direct_pairs_tile<Format, true, 4, P>
                                 : some == 2 ? direct_pairs_tile<Format, true, 2, P>
                                             : direct_pairs_tile<Format, true, 1, P>;
                run(tile);
            }
            return true;
        }
    }
    if constexpr (kBySixteen || kCodePanels > 1) {
        if (rows == 1) direct_pairs_tile<Format, false, 1, P>(tile);
        return rows == 1;
    }
    return false;
}

template <int P>
static void panels_of_pairs(CodeTile tile, int rows) {
    if (with_format(tile.weight->format, [&]<class Format>() { return multiply_pairs_directly<Format, P>(tile, rows); })) return;
    if constexpr (P <= 2) {  // more panels are for one row, which is multiplied by now
        for (int some; rows > 0; rows -= some, tile.row += some, tile.out += some * tile.out_stride) {
            some = least(rows, kPairRows);
            chunk_pairs<P>(tile, some);
        }
    }
}

#if !HEADRACE_TILES
// As gemm_whole_codes of gemm_codes.h. Sums are in a fixed order: it takes several panels to have enough of them under way.
static void gemm_pair_codes(const Rows& in, int row, int rows, const Matrix& weight, int panel, int panels, float* out,
                            std::size_t out_stride) {
    CodeTile tile{.in = &in, .weight = &weight, .row = row, .panel = panel, .out = out, .out_stride = out_stride};
    constexpr int kOfOneRow = kBySixteen || kCodePanels > 1 ? 4 : 1, kOfFewRows = kBySixteen ? 2 : kCodePanels;
    const int width = rows == 1 ? kOfOneRow : rows < kCodeRows ? kOfFewRows : kCodePanels;
    for (int taken; panels > 0; panels -= taken, tile.panel += taken, tile.out += taken * kPanel) {
        taken = panels >= width ? width : panels >= 2 && width > 2 ? 2 : 1;
        if (taken == 1) {
            panels_of_pairs<1>(tile, rows);
        } else if (taken == kOfFewRows) {
            panels_of_pairs<kOfFewRows>(tile, rows);
        } else {
            panels_of_pairs<kOfOneRow>(tile, rows);
        }
    }
}
#endif

}  // namespace headrace::HEADRACE_ISA
