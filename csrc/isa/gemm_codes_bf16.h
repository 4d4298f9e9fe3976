// Products with int8 and int4 weights that keep activations in bf16: codes less their zero are exact in bf16, a group's
// sum is f32 in rising order and is scaled into the row's accumulator.
#pragma once

#include "code_tile.h"

namespace headrace::HEADRACE_ISA {

// Few rows: codes become pairs in registers, for each tile anew.
template <bool kNibbles, int R, int P>
static void multiply_code_tile_bf16(const CodeTile& tile) {
    const Matrix& w = *tile.weight;
    using Decoder = typename CodePairs<kNibbles>::Type;
    constexpr int kStep = kNibbles ? 8 : 4;
    F32x16 acc[R][P];
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) acc[r][p] = F32x16::zero();
    }
    for (int g = 0, k = 0; g < w.groups; ++g, k += w.group) {
        F32x16 sums[R][P];
        HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) sums[r][p] = F32x16::zero();
        }
        const bf16_t* a[R];
        HEADRACE_UNROLL for (int r = 0; r < R; ++r) a[r] = tile.activations<bf16_t>(r, k);
        Decoder decoders[P];
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) decoders[p] = Decoder::of(tile.zeros(p, g));
        const int features = least(w.group, w.cols_padded - k);
        for (int i = 0; i < features; i += kStep) {
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
                const std::uint8_t* at = tile.codes(p) + static_cast<std::size_t>((k + i) / kStep) * 64;
                Pairs pairs[kStep / 2];
                HEADRACE_PREFETCH(at + kCodesAhead);
                decoders[p](Codes::load(at), pairs);
                HEADRACE_UNROLL for (int j = 0; j < kStep / 2; ++j) {
                    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
                        sums[r][p] = dot(sums[r][p], pairs[j], Pairs::broadcast(a[r] + i + 2 * j));
                    }
                }
            }
        }
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
            const F32x16 scale = tile.scales(p, g);
            HEADRACE_UNROLL for (int r = 0; r < R; ++r) acc[r][p] = fma(sums[r][p], scale, acc[r][p]);
        }
    }
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) acc[r][p].store(tile.out + r * tile.out_stride + kPanel * p);
    }
}

// Many rows: a chunk of P panels becomes pairs once, in the first cache, and all rows pass.
constexpr int kDecodedRows = 96, kDecodedFeatures = 256;

template <int P>
struct DecodedChunk {
    alignas(64) unsigned char pairs[kDecodedFeatures / 2][P][64];
    alignas(64) float sums[kDecodedRows][P * kPanel];  // of a group that does not end with the chunk
};

// R rows with the chunk's features [begin, end), which hold whole groups or lie inside one.
template <int R, int P>
HEADRACE_INLINE void multiply_decoded_tile(const CodeTile& tile, int first_row, int begin, int end,
                                           DecodedChunk<P>& chunk) {
    const Matrix& w = *tile.weight;
    F32x16 acc[R][P], sums[R][P];
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
            const float* out = tile.out + (first_row + r) * tile.out_stride + kPanel * p;
            acc[r][p] = begin < w.group ? F32x16::zero() : F32x16::load(out);
            sums[r][p] =
                begin % w.group == 0 ? F32x16::zero() : F32x16::load(chunk.sums[first_row + r] + kPanel * p);
        }
    }
    bool complete = true;
    for (int k = begin; k < end;) {
        const int g = k / w.group, group_end = least((g + 1) * w.group, w.cols_padded), stop = least(group_end, end);
        const bf16_t* a[R];
        HEADRACE_UNROLL for (int r = 0; r < R; ++r) a[r] = tile.activations<bf16_t>(first_row + r, 0);
        for (; k < stop; k += 2) {
            Pairs pairs[P];
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) pairs[p] = Pairs::load(chunk.pairs[(k - begin) / 2][p]);
            HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
                const Pairs two = Pairs::broadcast(a[r] + k);
                HEADRACE_UNROLL for (int p = 0; p < P; ++p) sums[r][p] = dot(sums[r][p], pairs[p], two);
            }
        }
        complete = stop == group_end;
        if (!complete) break;
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
            const F32x16 scale = tile.scales(p, g);
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

// `rows` (up to kDecodedRows) rows by P panels.
template <bool kNibbles, int P>
static void multiply_decoded(const CodeTile& tile, int rows) {
    const Matrix& w = *tile.weight;
    constexpr int kStep = kNibbles ? 8 : 4;
    using Decoder = typename CodePairs<kNibbles>::Type;
    DecodedChunk<P> chunk;
    for (int begin = 0, end; begin < w.cols_padded; begin = end) {
        // To the end of the last group that fits, or as much of a longer group as fits.
        end = least(begin + kDecodedFeatures, w.cols_padded);
        if (w.group < kDecodedFeatures) {
            end = least(begin + kDecodedFeatures / w.group * w.group, w.cols_padded);
        } else {
            end = least(end, (begin / w.group + 1) * w.group);
        }
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
            for (int k = begin; k < end;) {
                const Decoder decoder = Decoder::of(tile.zeros(p, k / w.group));
                for (const int stop = least((k / w.group + 1) * w.group, end); k < stop; k += kStep) {
                    Pairs pairs[kStep / 2];
                    const std::uint8_t* at = tile.codes(p) + static_cast<std::size_t>(k / kStep) * 64;
                    HEADRACE_PREFETCH(at + kCodesAhead);
                    decoder(Codes::load(at), pairs);
                    HEADRACE_UNROLL for (int j = 0; j < kStep / 2; ++j) {
                        pairs[j].store(chunk.pairs[(k - begin) / 2 + j][p]);
                    }
                }
            }
        }
        int row = 0;
        for (; row + kCodeRows <= rows; row += kCodeRows) {
            multiply_decoded_tile<kCodeRows, P>(tile, row, begin, end, chunk);
        }
        for (; row < rows; ++row) multiply_decoded_tile<1, P>(tile, row, begin, end, chunk);
    }
}

}  // namespace headrace::HEADRACE_ISA
