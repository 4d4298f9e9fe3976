// Products of int8 activations with codes that are decoded in registers, for every kind of scale and zero. What stands
// beside the codes of a pass (scales, zeros, and the sums of activations) is made ready for many spans at once.
#pragma once

#include "code_formats.h"
#include "code_side.h"

namespace headrace::HEADRACE_ISA {

constexpr int kPassRows = 96;
constexpr int kDirectRows = 4;  // up to so many rows read one panel after the other, as one stream

// A section: the spans that are made ready at once for all rows, fewer for more rows. A pass: so many spans and features of
// a panel at most, but at least one whole span, whose side stays in the first cache while the rows go over them; few, where
// a single pass waits for memory, which side and codes then read in turn.
constexpr int kLowsStride = 64;  // floats: of four panels
constexpr int kSectionSize = 192 * kPassRows, kPassSpans = 384, kStreamSpans = 32, kPassFeatures = 8192;
constexpr int kSumsSize = kSectionSize / 4;  // of few rows

// Both begin and end where super-blocks, spans and units of codes do: after a whole number of so many features.
HEADRACE_INLINE int spans_step(const Matrix& w) {
    return is_super(w.scale_type) ? kSuper : w.span % 32 == 0 ? w.span : 2 * w.span;
}

HEADRACE_INLINE int spans_end(const Matrix& w, int begin, int spans, int features) {
    const int step = spans_step(w);
    const int most = step > features ? step : largest(step, least(spans * w.span, features) / step * step);
    return least(begin + most, w.cols_padded);
}

// A section's rows. Products are added to the sum of activations times `offset - zero`, so that they become sums of
// (code - zero) * activation: `starts` has these if all columns share a zero, else the sums alone. `sums` has what minima
// are multiplied by, for few rows.
struct Section {
    int begin, end;
    int stride;  // from row to row
    alignas(64) std::int32_t starts[kSectionSize];
    float scales[kSectionSize];
    float sums[kSumsSize];
};

HEADRACE_INLINE void load_sums(const Rows& in, int row, int span, int spans, float* to) {
    const std::size_t first = static_cast<std::size_t>(row) * in.groups + span;
    for (int i = 0; i < spans; ++i) to[i] = static_cast<float>(in.sums[first + i]) * in.scales[first + i];
}

// The section from span `span` on, which begins at feature `begin`.
HEADRACE_ALONE void load_section(const Rows& in, int row, int rows, const Matrix& w, int span, int factor, bool minima,
                                 Section& section) {
    section.end = spans_end(w, section.begin, least(kSectionSize / rows, kSumsSize / kDirectRows), w.cols_padded);
    const int spans = ceil_div(section.end - section.begin, w.span);
    section.stride = spans;
    const I32x16 factors = I32x16::broadcast(factor);
    for (int r = 0; r < rows; ++r) {
        const std::size_t first = static_cast<std::size_t>(row + r) * in.groups + span;
        const std::int32_t* sums = in.sums + first;
        const float* scales = in.scales + first;
        int i = 0;
        for (int at = r * spans; i + 16 <= spans; i += 16) {
            (I32x16::load(sums + i) * factors).store(section.starts + at + i);
            F32x16::load(scales + i).store(section.scales + at + i);
        }
        for (int at = r * spans; i < spans; ++i) {
            section.starts[at + i] = sums[i] * factor;
            section.scales[at + i] = scales[i];
        }
        if (minima) load_sums(in, row + r, span, spans, section.sums + r * spans);
    }
}

// The same of P panels, for a pass; `starts` if they have zeros.
template <int P>
struct PanelSpans {
    alignas(64) float scales[P][kPassSpans][kPanel];
    alignas(64) std::int32_t starts[P][kPassSpans][kPanel];
};

// lows[r][c] (+)= minimum * sum of activations over the spans of [begin, end), in order; for up to R rows and one panel.
template <int R>
HEADRACE_ALONE void add_minima(const Matrix& w, int panel, int begin, int end, const Section& section, int rows, float* lows) {
    F32x16 acc[R];
    for (int r = 0; r < R; ++r) acc[r] = begin > 0 && r < rows ? F32x16::load(lows + r * kLowsStride) : F32x16::zero();
    const float* sums = section.sums + (begin - section.begin) / w.span;
    for_numbers<true>(w, panel, begin, end, w.span, 0, [&](F32x16 number) {
        HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
            acc[r] = fma(F32x16::broadcast(sums[(r < rows ? r : 0) * section.stride]), number, acc[r]);
        }
        ++sums;
    });
    for (int r = 0; r < rows; ++r) acc[r].store(lows + r * kLowsStride);
}

// R rows by P panels, and a pass of them.
struct DirectTile {
    const Matrix* weight;
    const std::uint8_t* codes;  // of panel 0, as those below
    const char* activations;    // of row 0, as those below
    std::size_t activations_stride;
    const std::int32_t* row_starts;  // of the pass's spans
    const float* row_scales;
    std::size_t rows_stride;  // bytes
    const float* scales;         // [P][kPassSpans][kPanel]
    const std::int32_t* starts;  // the same, or null
    const f16_t* halves;         // scales as the matrix has them, where in_place(); else null
    std::size_t halves_stride;   // from panel to panel
    int features;
    float* out;
    std::size_t out_stride;  // floats
    bool accumulate;
    // What is prefetched: the lines from `ask` on of each panel, `ask_step` bytes further with each 64 bytes of it, and from
    // `turn` on when the tile reaches span `turn_span`. Where `far` is true, also the lines kCodesFar bytes after those, into
    // the second cache, which can wait for more lines at once than the first (not in sets that add up in 16 bits).
    const std::uint8_t *ask, *turn;
    std::size_t ask_step;
    int turn_span;
    bool far;

    HEADRACE_METHOD void next_rows(int rows, int spans) {
        row_starts += rows * spans;
        row_scales += rows * spans;
        activations += rows * activations_stride;
        out += rows * out_stride;
    }
};

// Bytes that a panel has of a feature: twice the bits of a code.
template <class Format>
constexpr std::size_t bytes_of_feature() {
    return 64 * Format::kLines / Format::kFeatures;
}

// sums[r][p] += sum over the next `features` (a multiple of 16) of (code - offset) * activation. Units of 32 features are
// taken in halves; `half` is the one that comes. Whole numbers may be added in any order: a small tile has several sums for
// each of its own, which do not wait for each other.
template <class Format, bool kFar, int R, int P>
HEADRACE_INLINE void add_products(const Format& format, int features, RowPointers& rows, const std::uint8_t*& at,
                                  std::size_t panel_bytes, const std::uint8_t*& ask, std::size_t ask_step, int& half,
                                  I32x16 (&sums)[R][P]) {
    constexpr bool kHalves = Format::kFeatures == 32;
    constexpr int kVectors = kHalves ? 4 : Format::kVectors;  // of a step
    constexpr int kWays = R * P >= 8 || kCodePanels == 1 ? 1 : R * P >= 4 ? 2 : 4;
    constexpr int kSteps = kVectors >= kWays ? 1 : kWays / kVectors;  // a turn
    I32x16 more[kWays][R][P];
    HEADRACE_UNROLL for (int way = 1; way < kWays; ++way) {
        HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) more[way][r][p] = I32x16::zero();
        }
    }
    const auto multiply = [&](int step, const Codes (&codes)[P][kVectors]) __attribute__((always_inline)) {
        HEADRACE_UNROLL for (int v = 0; v < kVectors; ++v) {
            const int way = (kVectors * step + v) % kWays;
            HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
                HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
                    I32x16& sum = way == 0 ? sums[r][p] : more[way][r][p];
                    const auto* four = static_cast<const std::int8_t*>(rows.at(r)) + 4 * (kVectors * step + v);
                    sum = dot_codes<Format::kRun>(sum, codes[p][v], four);
                }
            }
        }
    };
    const auto prefetch = [&]() __attribute__((always_inline)) {
        HEADRACE_UNROLL for (int line = 0; line < Format::kLines; ++line) {
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) HEADRACE_PREFETCH(ask + p * panel_bytes);
            if constexpr (kFar) {
                HEADRACE_UNROLL for (int p = 0; p < P; ++p) HEADRACE_PREFETCH_L2(ask + p * panel_bytes + kCodesFar);
            }
            ask += ask_step;
        }
    };
    for (int left = features; left > 0; left -= 4 * kVectors * kSteps) {
        if constexpr (kHalves) {
            Codes codes[P][kVectors];
            if (half == 0) {
                HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
                    format.template take<0, 4>(at + p * panel_bytes, codes[p]);
                }
                prefetch();
            } else {
                HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
                    format.template take<4, 4>(at + p * panel_bytes, codes[p]);
                }
                at += 64 * Format::kLines;
            }
            half = 1 - half;
            multiply(0, codes);
        } else {
            HEADRACE_UNROLL for (int step = 0; step < kSteps; ++step) {
                Codes codes[P][kVectors];
                HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
                    format.decode(at + p * panel_bytes + 64 * Format::kLines * step, codes[p]);
                }
                prefetch();
                multiply(step, codes);
            }
            at += 64 * Format::kLines * kSteps;
        }
        rows.move(4 * kVectors * kSteps);
    }
    HEADRACE_UNROLL for (int way = 1; way < kWays; ++way) {
        HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) sums[r][p] = sums[r][p] + more[way][r][p];
        }
    }
}

// The same with one panel, 16 features at a time, for sets that add up in 16 bits. kSpan: `features`, or 0 where they are not
// known before.
template <class Format, int kSpan, int R>
HEADRACE_INLINE void add_by_sixteen(const Format& format, int features, RowPointers& rows, const std::uint8_t*& at,
                                  const std::uint8_t*& ask, std::size_t ask_step, int& half, I32x16 (&sums)[R][1]) {
    const auto prefetch = [&]() __attribute__((always_inline)) {
        HEADRACE_UNROLL for (int line = 0; line < Format::kLines; ++line, ask += ask_step) HEADRACE_PREFETCH(ask);
    };
    const auto next_sixteen = [&]() __attribute__((always_inline)) {
        if constexpr (Format::kFeatures == 32) {
            Codes codes[4];
            if (half == 0) {
                Format::template take<0, 4>(at, codes);
                prefetch();
            } else {
                Format::template take<4, 4>(at, codes);
                at += 64 * Format::kLines;
            }
            half = 1 - half;
            add_sixteen_features<Format::kRun>(sums, rows, [&](int v) { return codes[v]; });
        } else {
            Codes codes[Format::kVectors];
            add_sixteen_features<Format::kRun>(sums, rows, [&](int v) __attribute__((always_inline)) {
                if (v % Format::kVectors == 0) {
                    format.decode(at, codes);
                    at += 64 * Format::kLines;
                    prefetch();
                }
                return codes[v % Format::kVectors];
            });
        }
        rows.move(16);
    };
    if constexpr (kSpan > 0) {
        HEADRACE_UNROLL for (int k = 0; k < kSpan; k += 16) next_sixteen();
    } else {
        for (int left = features; left > 0; left -= 16) next_sixteen();
    }
}

template <class Format, bool kFar, int kSpan, int R, int P>
HEADRACE_ALONE void direct_tile(const DirectTile& tile) {
    const Format format = Format::of(*tile.weight);
    F32x16 acc[R][P];
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
            acc[r][p] = tile.accumulate ? F32x16::load(tile.out + r * tile.out_stride + kPanel * p) : F32x16::zero();
        }
    }
    RowPointers activations = RowPointers::of(tile.activations, tile.activations_stride);
    RowPointers spans = RowPointers::of(tile.row_starts, tile.rows_stride);
    const auto to_scales = reinterpret_cast<const char*>(tile.row_scales) - reinterpret_cast<const char*>(tile.row_starts);
    const std::uint8_t *at = tile.codes, *ask = tile.ask;
    const float* side = tile.scales;
    const std::size_t panel_bytes = tile.weight->panel_bytes, ask_step = tile.ask_step;
    const int size = kSpan > 0 ? kSpan : tile.weight->span;
    int half = 0;
    for (int left = tile.features, span = 0; left > 0; left -= size, ++span, side += kPanel) {
        if (span == tile.turn_span) ask = tile.turn;
        I32x16 sums[R][P];
        HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
            const I32x16 start = I32x16::broadcast(*static_cast<const std::int32_t*>(spans.at(r)));
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) sums[r][p] = start;
        }
        if (tile.starts != nullptr) {
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) {
                const I32x16 zeros = I32x16::load(tile.starts + (kPassSpans * p + span) * kPanel);
                HEADRACE_UNROLL for (int r = 0; r < R; ++r) sums[r][p] = sums[r][p] * zeros;
            }
        }
        if constexpr (kBySixteen) {
            add_by_sixteen<Format, kSpan>(format, least(size, left), activations, at, ask, ask_step, half, sums);
        } else {
            add_products<Format, kFar, R, P>(format, least(size, left), activations, at, panel_bytes, ask, ask_step, half, sums);
        }
        F32x16 scales[P];
        if (tile.halves != nullptr) {
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) scales[p] = load_f16(tile.halves + p * tile.halves_stride + span * kPanel);
        } else {
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) scales[p] = F32x16::load(side + kPassSpans * kPanel * p);
        }
        HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
            const auto* row = static_cast<const char*>(spans.at(r)) + to_scales;
            const F32x16 scale = F32x16::broadcast(*reinterpret_cast<const float*>(row));
            HEADRACE_UNROLL for (int p = 0; p < P; ++p) acc[r][p] = add_scaled(acc[r][p], sums[r][p], scales[p], scale);
        }
        spans.move(sizeof(std::int32_t));
    }
    HEADRACE_UNROLL for (int r = 0; r < R; ++r) {
        HEADRACE_UNROLL for (int p = 0; p < P; ++p) acc[r][p].store(tile.out + r * tile.out_stride + kPanel * p);
    }
}

// What a single pass over features [begin, end) of a panel prefetches: its own codes, and then the first of `next`, the panel
// that follows, or null: from `ask` on, and from `turn` on when it reaches its part `turn_part` of `size` features, if ever.
struct PanelAhead {
    const std::uint8_t *ask, *turn;
    int turn_part;

    template <class Format>
    HEADRACE_INLINE PanelAhead of(const Matrix& w, const std::uint8_t* codes, const std::uint8_t* next, int begin, int end,
                                  int size) {
        constexpr auto kBytes = static_cast<std::ptrdiff_t>(bytes_of_feature<Format>());
        const int turn = w.cols_padded - static_cast<int>(kCodesAhead / kBytes);  // a feature
        const std::uint8_t* after = next == nullptr ? codes : next;
        if (turn < begin && begin > 0) return {after + kBytes * (begin - turn), after, -1};
        // From a part's first feature on. What lies before `turn` then was asked for already, as panels follow each other.
        const int part = turn < end ? ceil_div(largest(0, turn - begin), size) : -1;
        const int left = w.cols_padded - begin - part * size;
        return {codes + kCodesAhead, after + kCodesAhead - left * kBytes, part};
    }
};

// Rows up to which a pass waits for memory; products limit more rows of short codes.
template <class Format>
constexpr int kWaitingRows = bytes_of_feature<Format>() > 8 ? 2 * kDirectRows : kDirectRows + 2;

template <class Format, int kLeast, int R, int P>
HEADRACE_INLINE void direct_tile_of(const DirectTile& tile, int rows) {  // for kLeast to R rows
    if constexpr (R > kLeast) {
        if (rows < R) return direct_tile_of<Format, kLeast, R - 1, P>(tile, rows);
    }
    if constexpr (kBySixteen) {
        if (tile.weight->span == Format::kShortSpan) return direct_tile<Format, false, Format::kShortSpan, R, P>(tile);
    } else if constexpr (R <= kWaitingRows<Format>) {
        if (tile.far) return direct_tile<Format, true, 0, R, P>(tile);
    }
    direct_tile<Format, false, 0, R, P>(tile);
}

// `rows` (up to kPassRows) rows by P panels, the features of a section, in passes of kLeast to kMost rows; `next`: the
// panels that follow, or null. A single pass prefetches its own panels, and then the first lines of the next ones. Of
// several, which find their codes in a cache, each prefetches its part of what comes. Where `lows` is not null, it gets the
// products of minima.
template <class Format, int kLeast, int kMost, int P>
static void direct_panels(const CodeTile& tile, int rows, const std::uint8_t* next, const Section& section,
                          float* lows) {
    const Matrix& w = *tile.weight;
    const int passes = ceil_div(rows, kMost), features = P == 1 ? kStreamSpans : kPassSpans;
    constexpr std::size_t feature_bytes = bytes_of_feature<Format>();
    // Hardware prefetches enough for three rows of long codes, and AMD's for a row of short ones, unless the last span is
    // short.
    constexpr int kEnough = feature_bytes > 8 ? 3 : kOnIntel ? 0 : 1;
    const bool helps = rows > kEnough || w.cols_padded % w.span != 0;
    PanelSpans<P> side;
    for (int begin = section.begin, end, span = 0; begin < section.end; span += ceil_div(end - begin, w.span), begin = end) {
        end = least(spans_end(w, begin, features, kPassFeatures), section.end);
        const bool last = end == w.cols_padded;
        const auto* scales = groups_at(w, w.scales, tile.panel, begin);
        const auto* halves = in_place(w, w.span) ? reinterpret_cast<const f16_t*>(scales) : nullptr;
        for (int p = 0; p < P; ++p) {
            const int panel = tile.panel + p;
            if (halves == nullptr) {
                const std::uint8_t* after = groups_at(w, w.scales, last ? panel + P : panel, last ? 0 : end);
                const std::ptrdiff_t ahead = after - groups_at(w, w.scales, panel, begin);
                load_scales(w, panel, begin, end, w.span, side.scales[p], ahead);
            }
            if (lows != nullptr) {
                const auto add = rows == 1 ? add_minima<1> : add_minima<kDirectRows>;
                add(w, panel, begin, end, section, rows, lows);
            }
            if (w.zeros != nullptr) load_starts(w, panel, begin, end, w.span, offset_of(Format::kRun), side.starts[p]);
        }
        const std::uint8_t* codes = codes_of<Format>(w, tile.panel, begin);
        DirectTile pass{.weight = &w, .codes = codes, .activations = tile.activations<char>(0, begin),
                        .activations_stride = tile.in->stride, .row_starts = section.starts + span,
                        .row_scales = section.scales + span, .rows_stride = section.stride * sizeof(float),
                        .scales = side.scales[0][0], .starts = w.zeros == nullptr ? nullptr : side.starts[0][0],
                        .halves = halves, .halves_stride = static_cast<std::size_t>(w.groups) * kPanel,
                        .features = end - begin, .out = tile.out, .out_stride = tile.out_stride, .accumulate = begin > 0,
                        .ask = codes + kCodesAhead, .turn = next == nullptr ? codes : next, .ask_step = 64,
                        .turn_span = -1, .far = passes == 1 && helps};
        if (passes > 1) {
            pass.ask = !last ? codes_of<Format>(w, tile.panel, end) : pass.turn;
            pass.ask_step = last && next == nullptr ? 0 : ceil_div(64, passes);
        } else {
            const auto ahead = PanelAhead::of<Format>(w, codes, next, begin, end, w.span);
            pass.ask = ahead.ask;
            pass.turn = ahead.turn;
            pass.turn_span = ahead.turn_part;
        }
        for (int left = passes, row = 0; left > 0; --left) {
            const int some = ceil_div(rows - row, left);
            direct_tile_of<Format, kLeast, kMost, P>(pass, some);
            row += some;
            pass.next_rows(some, section.stride);
            pass.ask += (end - begin) / Format::kFeatures * Format::kLines * pass.ask_step;
        }
    }
}

}  // namespace headrace::HEADRACE_ISA
