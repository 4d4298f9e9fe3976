// Products of int8 activations with weights of codes. A span of input features at a time: a product of whole numbers,
// scaled into the row's accumulator. The order is the same for one row as for many.
//
// Few rows read a panel as it lies, and decode in registers: they wait for memory, which is read fastest as one stream.
// With the usual formats and sides more rows do so too. With the others a chunk of some panels is decoded once, in the
// first cache, and the rows pass over it; that part is compiled once for all of them.
#pragma once

#include "code_formats.h"
#include "code_side.h"

namespace headrace::HEADRACE_ISA {

constexpr int kChunkRows = 96;    // rows that pass over a decoded chunk

// acc[c] += sum over j of (codes[c][j] - offset) * four[j], with the offset of offset_of().
template <bool kSmall>
HEADRACE_INLINE I32x16 dot_codes(I32x16 acc, Codes codes, const std::int8_t* four) {
    if constexpr (kSmall) return dot_small(acc, codes, four);
    return dot_bytes(acc, codes, four);
}
constexpr int offset_of(bool small) { return small ? 0 : kByteOffset; }

// acc = fma(float(sum), weight scale * activation scale, acc); minima add (sum of activations) * minimum, see RowSpans::sum.
HEADRACE_INLINE F32x16 add_scaled(F32x16 acc, I32x16 sum, F32x16 weight_scale, F32x16 row_scale) {
    return fma(to_float(sum), weight_scale * row_scale, acc);
}

// What of the activations belongs to the spans that come: their codes, their sums and scales, for up to eight rows.
struct RowSpans {
    RowPointers codes, totals, scales;
    HEADRACE_INLINE RowSpans of(const Rows& in, int row, int span, int k) {
        const std::size_t first = static_cast<std::size_t>(row) * in.groups + span, stride = in.groups * sizeof(float);
        const char* data = static_cast<const char*>(in.data) + row * in.stride + k;
        return {RowPointers::of(data, in.stride), RowPointers::of(in.sums + first, stride),
                RowPointers::of(in.scales + first, stride)};
    }
    HEADRACE_METHOD I32x16 total(int r) const {
        return I32x16::broadcast(*static_cast<const std::int32_t*>(totals.at(r)));
    }
    // The sum of the row's activations, as whole numbers times a number that all columns share, and as what they stand for.
    HEADRACE_METHOD I32x16 total_times(int r, int number) const {
        return I32x16::broadcast(*static_cast<const std::int32_t*>(totals.at(r)) * number);
    }
    HEADRACE_METHOD F32x16 sum(int r) const {
        const float total = static_cast<float>(*static_cast<const std::int32_t*>(totals.at(r)));
        return F32x16::broadcast(total * *static_cast<const float*>(scales.at(r)));
    }
    HEADRACE_METHOD F32x16 scale(int r) const { return F32x16::broadcast(*static_cast<const float*>(scales.at(r))); }
    HEADRACE_METHOD void next() {
        totals.move(sizeof(std::int32_t));
        scales.move(sizeof(float));
    }
};

// ---- Codes that are decoded in registers ----

// sums[r][p] += sum over the next `features` (a multiple of 16 and of the format's unit) of (code - offset) * activation.
// Whole numbers may be added in any order: a small tile has several sums for each of its own, which do not wait for each
// other.
template <class Format, int R, int P>
HEADRACE_INLINE void add_products(const Format& format, int features, RowPointers& a, const std::uint8_t*& b,
                                  std::size_t panel_bytes, const std::uint8_t*& ask, std::size_t ask_step,
                                  I32x16 (&sums)[R][P]) {
    constexpr int kWays = R * P >= 8 || kCodePanels == 1 ? 1 : R * P >= 4 ? 2 : 4;
    constexpr int kUnits = Format::kVectors >= kWays ? 1 : kWays / Format::kVectors;  // a turn
    I32x16 more[kWays][R][P];
    HEADRACE_UNROLL for (int way = 1; way < kWays; ++way) {
        HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) more[way][r][p] = I32x16::zero();
        }
    }
    for (int left = features; left > 0; left -= Format::kFeatures * kUnits) {
        HEADRACE_UNROLL for (int unit = 0; unit < kUnits; ++unit) {
            Codes codes[P][Format::kVectors];
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
                format.decode(b + p * panel_bytes + 64 * Format::kLines * unit, codes[p]);
            }
            HEADRACE_UNROLL for (int line = 0; line < Format::kLines; ++line) {
                HEADRACE_PREFETCH(ask);
                ask += ask_step;
            }
            HEADRACE_UNROLL for (int v = 0; v < Format::kVectors; ++v) {
                const int way = (Format::kVectors * unit + v) % kWays;
                HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
                    HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
                        I32x16& sum = way == 0 ? sums[r][p] : more[way][r][p];
                        const auto* four = static_cast<const std::int8_t*>(a.at(r)) + Format::kFeatures * unit + 4 * v;
                        sum = dot_codes<Format::kSmall>(sum, codes[p][v], four);
                    }
                }
            }
        }
        a.move(Format::kFeatures * kUnits);
        b += 64 * Format::kLines * kUnits;
    }
    HEADRACE_UNROLL for (int way = 1; way < kWays; ++way) {
        HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) sums[r][p] = sums[r][p] + more[way][r][p];
        }
    }
}

// R rows by P panels.
template <class Format, bool kInPlace, int R, int P>
static void direct_tile(const CodeTile& tile) {
    const Matrix& w = *tile.weight;
    const Format format = Format::of(w);
    constexpr int kOffset = offset_of(Format::kSmall);
    F32x16 acc[R][P];
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) acc[r][p] = F32x16::zero();
    }
    const std::uint8_t *ask = tile.ask, *codes = tile.codes(0);
    RowSpans rows = RowSpans::of(*tile.in, tile.row, 0, 0);
    Side side[kInPlace ? 1 : P];
    for (int begin = 0, end, span = 0; begin < w.cols_padded; begin = end) {
        end = side_end<kInPlace>(w, begin, w.span);
        if constexpr (!kInPlace) {
            for (int p = 0; p < P; ++p) load_side(w, tile.panel + p, begin, end, w.span, &kOffset, side[p]);
        }
        for (int k = begin, part = 0; k < end; k += w.span, ++part, ++span) {
            if (span == tile.turn_span) ask = tile.turn;
            // Starting from -(zero - offset) * sum of activations gives the sum of (code - zero) * activation.
            I32x16 sums[R][P];
            if (w.zeros == nullptr) {
                HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
                    const I32x16 product = rows.total_times(r, kOffset - w.middle);
                    HEADRACE_UNROLL for (int p = 0; p < P; ++p) sums[r][p] = product;
                }
            } else {
                HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
                    I32x16 start;
                    if constexpr (kInPlace) {
                        start = I32x16::broadcast(kOffset) - zeros_of(w, tile.panel + p, span);
                    } else {
                        start = I32x16::load(side[p].starts[part]);
                    }
                    HEADRACE_UNROLL for (int r = 0; r < R; ++r) sums[r][p] = rows.total(r) * start;
                }
            }
            const int features = least(w.span, end - k);
            add_products<Format, R, P>(format, features, rows.codes, codes, w.panel_bytes, ask, tile.ask_step, sums);
            F32x16 scales[P];
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
                if constexpr (kInPlace) {
                    scales[p] = scales_of(w, tile.panel + p, span);
                } else {
                    scales[p] = F32x16::load(side[p].scales[part]);
                }
            }
            HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
                const F32x16 scale = rows.scale(r);
                HEADRACE_UNROLL for (int p = 0; p < P; ++p) acc[r][p] = add_scaled(acc[r][p], sums[r][p], scales[p], scale);
            }
            if (!kInPlace && has_minima(w)) {
                HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
                    const F32x16 minimum = F32x16::load(side[kInPlace ? 0 : p].minima[part]);
                    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
                        acc[r][p] = fma(rows.sum(r), minimum, acc[r][p]);
                    }
                }
            }
            rows.next();
        }
    }
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) acc[r][p].store(tile.out + r * tile.out_stride + kPanel * p);
    }
}

template <class Format, bool kInPlace, int kLeast, int R, int P>
HEADRACE_INLINE void direct_tile_of(const CodeTile& tile, int rows) {  // for kLeast to R rows
    if constexpr (R > kLeast) {
        if (rows < R) return direct_tile_of<Format, kInPlace, kLeast, R - 1, P>(tile, rows);
    }
    direct_tile<Format, kInPlace, R, P>(tile);
}

// A single pass prefetches its own panels, and then the first lines of the next ones.
template <class Format>
static void direct_panel(CodeTile tile, int rows, bool usual, const std::uint8_t* next) {
    const Matrix& w = *tile.weight;
    // Decoding for many rows takes longest between two lines: there twice the distance was measured to be faster.
    const std::int64_t early = !Format::kAsStored && rows > 4 ? 2 * kCodesAhead : kCodesAhead;
    tile.ask = tile.codes(0) + early;
    tile.ask_step = 64;
    tile.turn = next == nullptr ? tile.codes(0) : next;
    const std::int64_t spans = spans_of(w), bytes = static_cast<std::int64_t>(w.panel_bytes);
    tile.turn_span = largest(0, static_cast<int>(spans - (early * spans + bytes - 1) / bytes));
    if constexpr (Format::kUsual) {
        if (usual) return direct_tile_of<Format, true, 1, kCodeRows, 1>(tile, rows);
    }
    if constexpr (kDirectRows > 0) direct_tile_of<Format, false, 1, kDirectRows, 1>(tile, rows);
}

// More rows are divided evenly into passes, which find their panels in the second cache; each prefetches its part of the
// next ones.
template <class Format, int P>
static void direct_passes(CodeTile tile, int rows, const std::uint8_t* next) {
    const int passes = ceil_div(rows, kCodeRows);
    tile.ask = next == nullptr ? tile.codes(0) : next;
    tile.ask_step = next == nullptr ? 0 : ceil_div(64 * P, passes);
    for (int left = passes; left > 0; --left) {
        const int some = ceil_div(rows, left);
        direct_tile_of<Format, true, kCodeRows / 2, kCodeRows, P>(tile, some);  // two passes of 9 rows have 5 and 4
        rows -= some;
        tile.row += some;
        tile.out += some * tile.out_stride;
        tile.ask += tile.weight->panel_bytes / 64 * tile.ask_step;
    }
}

// ---- Codes that are decoded a chunk at a time ----

// What a chunk of P panels becomes, and what tiles leave there for the next chunk of the same span.
template <int P>
struct Chunk {
    int begin, end;
    const std::uint8_t* codes[P];  // 64 bytes for each 4 features
    Side side[P];
    alignas(64) std::uint8_t memory[P][kChunkFeatures * kPanel];
    alignas(64) std::int32_t sums[kChunkRows][P * kPanel];  // of a span that is longer than the chunk
};

// R rows, from `row` of the block on, by the chunk. The lines at `ask` of each panel are prefetched meanwhile.
template <bool kSmall, int R, int P>
static void chunk_tile(const CodeTile& tile, int row, Chunk<P>& chunk, const std::uint8_t* ask) {
    const Matrix& w = *tile.weight;
    const bool minima = has_minima(w), carried = chunk.begin % w.span != 0;
    const bool complete = chunk.end % w.span == 0 || chunk.end == w.cols_padded;
    F32x16 acc[R][P];
    float* out = tile.out + row * tile.out_stride;
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
            acc[r][p] = chunk.begin < w.span ? F32x16::zero() : F32x16::load(out + r * tile.out_stride + kPanel * p);
        }
    }
    RowSpans rows = RowSpans::of(*tile.in, tile.row + row, chunk.begin / w.span, chunk.begin);
    std::size_t at = 0;
    for (int k = chunk.begin, part = 0; k < chunk.end; k += w.span, ++part) {
        I32x16 sums[R][P];
        if (carried) {
            HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
                HEADRACE_UNROLL for (int p = 0; p < P; ++p) sums[r][p] = I32x16::load(chunk.sums[row + r] + kPanel * p);
            }
        } else if (w.zeros == nullptr) {
            HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
                const I32x16 product = rows.total_times(r, offset_of(kSmall) - w.middle);
                HEADRACE_UNROLL for (int p = 0; p < P; ++p) sums[r][p] = product;
            }
        } else {
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
                const I32x16 start = I32x16::load(chunk.side[p].starts[part]);
                HEADRACE_UNROLL for (int r = 0; r < R; ++r) sums[r][p] = rows.total(r) * start;
            }
        }
        for (int left = least(w.span, chunk.end - k); left > 0; left -= 4, at += 64) {
            Codes codes[P];
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
                codes[p] = Codes::load(chunk.codes[p] + at);
                HEADRACE_PREFETCH(ask + p * w.panel_bytes);
            }
            ask += tile.ask_step;
            HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
                const auto* four = static_cast<const std::int8_t*>(rows.codes.at(r));
                HEADRACE_UNROLL for (int p = 0; p < P; ++p) sums[r][p] = dot_codes<kSmall>(sums[r][p], codes[p], four);
            }
            rows.codes.move(4);
        }
        if (!complete) {
            HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
                HEADRACE_UNROLL for (int p = 0; p < P; ++p) sums[r][p].store(chunk.sums[row + r] + kPanel * p);
            }
            return;
        }
        F32x16 scales[P];
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) scales[p] = F32x16::load(chunk.side[p].scales[part]);
        HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
            const F32x16 scale = rows.scale(r);
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) acc[r][p] = add_scaled(acc[r][p], sums[r][p], scales[p], scale);
        }
        if (minima) {
            F32x16 lows[P];
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) lows[p] = F32x16::load(chunk.side[p].minima[part]);
            HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
                const F32x16 sum = rows.sum(r);
                HEADRACE_UNROLL for (int p = 0; p < P; ++p) acc[r][p] = fma(sum, lows[p], acc[r][p]);
            }
        }
        rows.next();
    }
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) acc[r][p].store(out + r * tile.out_stride + kPanel * p);
    }
}

template <bool kSmall, int R, int P>
HEADRACE_INLINE void chunk_tile_of(const CodeTile& tile, int rows, int row, Chunk<P>& chunk, const std::uint8_t* ask) {
    if constexpr (R > 1) {
        if (rows < R) return chunk_tile_of<kSmall, R - 1, P>(tile, rows, row, chunk, ask);
    }
    chunk_tile<kSmall, R, P>(tile, row, chunk, ask);
}

HEADRACE_INLINE Decode decoder_of(WeightFormat format) {  // null: the panels hold what products read
    return with_format(format, []<class Format>() -> Decode {
        if constexpr (Format::kWhole && !Format::kAsStored) return decode_codes<Format>;
        return nullptr;
    });
}
HEADRACE_INLINE bool small_codes(WeightFormat format) {
    return with_format(format, []<class Format>() { return Format::kSmall; });
}

// Makes a chunk of P panels ready for products with i8 activations.
template <int P>
HEADRACE_INLINE void load_chunk(const CodeTile& tile, int begin, Decode decode, int offset, Chunk<P>& chunk) {
    const Matrix& w = *tile.weight;
    chunk.begin = begin;
    chunk.end = chunk_end(begin, w.span, w.cols_padded);
    for (int p = 0; p < P; ++p) {
        load_side(w, tile.panel + p, begin, chunk.end, w.span, &offset, chunk.side[p]);
        chunk.codes[p] = decode == nullptr ? codes_of<BytesFormat>(w, tile.panel + p, begin) : chunk.memory[p];
        if (decode != nullptr) decode(w, tile.panel + p, begin, chunk.end, chunk.memory[p]);
    }
}

// `rows` (up to kChunkRows) rows by P panels; `next`: the panels that follow, or null.
template <bool kSmall, int P>
static void chunk_panels(CodeTile tile, int rows, const std::uint8_t* next) {
    const Matrix& w = *tile.weight;
    const Decode decode = decoder_of(w.format);
    const int passes = ceil_div(rows, kCodeRows);
    const std::size_t feature_bytes = w.panel_bytes / w.cols_padded;  // twice the bits of a code
    Chunk<P> chunk;
    for (int begin = 0; begin < w.cols_padded; begin = chunk.end) {
        load_chunk(tile, begin, decode, offset_of(kSmall), chunk);
        // Decoding waits for memory, so that the passes prefetch what is decoded next, each its part.
        const bool last = chunk.end == w.cols_padded;
        const std::uint8_t* ask = !last ? tile.codes(0) + feature_bytes * chunk.end : next != nullptr ? next : tile.codes(0);
        tile.ask_step = last && next == nullptr ? 0 : ceil_div(static_cast<int>(4 * feature_bytes), passes);
        for (int left = passes, row = 0; left > 0; --left) {
            const int some = ceil_div(rows - row, left);
            chunk_tile_of<kSmall, kCodeRows, P>(tile, some, row, chunk, ask);
            row += some;
            ask += (chunk.end - begin) / 4 * tile.ask_step;
        }
    }
}

template <int P>
static void panels_of_chunks(CodeTile tile, int rows, const std::uint8_t* next) {
    auto run = chunk_panels<false, P>;
    if constexpr (offset_of(true) != offset_of(false)) {  // else all codes are multiplied alike
        if (small_codes(tile.weight->format)) run = chunk_panels<true, P>;
    }
    for (int some; rows > 0; rows -= some, tile.row += some, tile.out += some * tile.out_stride) {
        some = least(rows, kChunkRows);
        run(tile, some, next);
    }
}

// Up to so many rows read panels as they lie.
template <class Format>
HEADRACE_INLINE int most_direct_rows(const Matrix& w) {
    if (Format::kUsual && in_place(w, w.span)) return kCodeRows;
    return w.span % Format::kFeatures == 0 ? kDirectRows : 0;
}

// out[r, 16p + c] = sum over k of in[row + r, k] * W[16 (panel + p) + c, k], for `rows` rows and `panels` panels.
// `next_panel`: the panels that follow, or -1.
// `in` is encoded as weight.input says, i8 in the weight's spans. Rows and panels may be divided in any way: no bit changes.
// A span has up to 2^16 input features (a sum of theirs has to fit into 32 bits).
template <class Format>
static void multiply_codes(CodeTile tile, int rows, int panels, int next_panel) {
    const Matrix& w = *tile.weight;
    const bool usual = Format::kUsual && in_place(w, w.span), few = rows <= most_direct_rows<Format>(w);
    const int width = few ? 1 : kCodePanels;
    for (int taken; panels > 0; panels -= taken, tile.panel += taken, tile.out += taken * kPanel) {
        taken = panels >= width ? width : 1;
        const int following = panels > taken ? tile.panel + taken : next_panel;
        const std::uint8_t* next = following < 0 ? nullptr : tile.codes(following - tile.panel);
        if (few) {
            direct_panel<Format>(tile, rows, usual, next);
            continue;
        }
#if !HEADRACE_TILES
        auto run = taken == 1 ? panels_of_chunks<1> : panels_of_chunks<kCodePanels>;
        if constexpr (Format::kUsual) {
            if (usual) run = taken == 1 ? direct_passes<Format, 1> : direct_passes<Format, kCodePanels>;
        }
        run(tile, rows, next);
#endif
    }
}

static void gemm_whole_codes(const Rows& in, int row, int rows, const Matrix& weight, int panel, int panels, float* out,
                             std::size_t out_stride, int next_panel) {
    const CodeTile tile{.in = &in, .weight = &weight, .row = row, .panel = panel, .out = out, .out_stride = out_stride};
    with_format(weight.format, [&]<class Format>() {
        if constexpr (Format::kWhole) multiply_codes<Format>(tile, rows, panels, next_panel);
    });
}

}  // namespace headrace::HEADRACE_ISA
