// Attention of one tile of query rows over one span, and the fold of spans into a row's result.
//
// Blocks are reused without being cleared, so keys and values that a row does not see may be NaN or infinite. They must
// not change the row: scores of hidden keys and scales of hidden values are replaced, and a row whose
// product is not finite is multiplied again without the values that it does not see. A value that is not finite and that
// the row sees makes the row NaN.
#pragma once

#include "attention_bytes.h"
#include "attention_scores.h"
#include "attention_span.h"

namespace headrace::HEADRACE_ISA {

constexpr int kScoreStride = kSpanColumns + 16;  // floats; a row more than 1024 bytes, so that rows differ in cache sets
constexpr float kHidden = -__builtin_inff();

// Softmax over some of a row's keys: sum of 2^(score - peak) and of 2^(score - peak) * value, not yet divided. Scores
// carry log2(e), so that e^x is a power of two.
// `peak` is -infinity where no key was seen; such a row's other fields have no meaning. It is NaN where `sum` is.
struct Partial {
    float* peak;     // [rows]
    float* sum;      // [rows]
    float* mix;      // [rows][head_dim]

    static std::size_t floats(int rows, int dim) {
        const std::size_t rounded = static_cast<std::size_t>(rows + 15) / 16 * 16;
        return 2 * rounded + static_cast<std::size_t>(rows) * dim;
    }
    static Partial at(float* memory, int rows) {
        const int rounded = (rows + 15) / 16 * 16;
        return {memory, memory + rounded, memory + 2 * rounded};
    }
};

// A thread's own memory.
struct Workspace {
    float* scores;       // [kQueryRows][kScoreStride]; probabilities take the place of scores
    float* partial;      // Partial::floats(kQueryRows, head_dim)
    float* result;       // the same
    void* values;        // codes and latent caches: [kSpanColumns * head_dim], keys, then values; else [kMaskedColumns * head_dim]
    std::int8_t* queries;       // whole numbers: the job's rows, see ByteStep
    std::int8_t* sink_queries;  // the same of q_sink
    float* low;                 // whole numbers on tiles: [kQueryRows][head_dim]
    Ahead* ahead;
};

// What a row at `position` (from the tile's lowest) sees of a panel: lanes before `end`, but of those before `begin`
// the first `sinks` alone.
struct Sight {
    int begin, end, sinks;

    static Sight of(const AttentionArgs& args, const Span& span, const Panel& panel, int position) {
        const std::int64_t at = static_cast<std::int64_t>(position) - panel.start;
        if (args.kv.type == DType::i4) {  // a panel lies in one block: in the row's own one, or before it
            const std::int64_t before = at - (span.lowest + position) % args.kv.block_size;
            if (span.recent ? before > 0 : before <= 0) return {0, 0, 0};
        }
        const std::int64_t first = first_seen(args, span.lowest + position) - span.lowest - panel.start;
        return {args.window > 0 ? clamped(first, 0, kPanel) : 0, clamped(at + 1, 0, panel.valid), panel.sinks};
    }
    bool lane(int i) const { return i < end && (i >= begin || i < sinks); }

    // Values of lanes that the row does not see become `hidden`.
    F32x16 hide(F32x16 values, F32x16 hidden) const {
        const F32x16 before = select(first_lanes(end), values, hidden);
        if (begin == 0) return before;
        return select(first_lanes(begin), select(first_lanes(sinks), before, hidden), before);
    }
};

// 2^x for x <= 0: relative error <= 2e-7, exactly 1 at 0, 0 below -126.
inline F32x16 shrink(F32x16 x) {
    const I32x16 n = round(x);
    const F32x16 r = x - to_float(n);
    F32x16 q = F32x16::broadcast(1.326472686e-3f);  // (2^r - 1) / r for |r| <= 1/2: a least-maximum fit, error 9e-8
    q = fma(q, r, F32x16::broadcast(9.671512931e-3f));
    q = fma(q, r, F32x16::broadcast(5.550733747e-2f));
    q = fma(q, r, F32x16::broadcast(2.402224208e-1f));
    q = fma(q, r, F32x16::broadcast(6.931469776e-1f));
    const F32x16 power = times_power(fma(q, r, F32x16::broadcast(1.0f)), n);
    return select(less(x, F32x16::broadcast(-126.0f)), F32x16::zero(), power);
}

// One row: scores get the scales of their keys, a slope (of the row's head, divided by the scale of scores; 0: none) and a
// cap, and those of hidden keys become -infinity. Gives the largest.
inline float mask_row(const AttentionArgs& args, const Span& span, float* scores, int position, float slope) {
    alignas(64) static const float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const F32x16 hidden = F32x16::broadcast(kHidden);
    const bool keyed = span.panel[0].key_scales != nullptr;
    F32x16 peaks = hidden;
    for (int p = 0; p < span.panels; ++p) {
        const Panel& panel = span.panel[p];
        F32x16 s = F32x16::load(scores + 16 * p);
        if (keyed || args.soft_cap > 0 || slope != 0) {
            if (keyed) s = s * F32x16::load(panel.key_scales);
            if (slope != 0) {
                const auto away = static_cast<float>(static_cast<std::int64_t>(panel.start) - position);
                s = fma(F32x16::load(lanes) + F32x16::broadcast(away), F32x16::broadcast(slope), s);
            }
            if (args.soft_cap > 0) {
                s = F32x16::broadcast(args.soft_cap) * tanh(s * F32x16::broadcast(args.scale / args.soft_cap));
            }
            s.store(scores + 16 * p);
        }
        if (!panel.open) {
            s = Sight::of(args, span, panel, position).hide(s, hidden);
            s.store(scores + 16 * p);
        }
        peaks = max(peaks, s);
    }
    return reduce_max(peaks);
}

// Of a row's weights that are still to be rounded: the largest, and the sum, which is not finite if one of them is not.
struct Weights {
    float top, sum;
};

// One row: replaces scores, the largest being `highest`, by 2^(score - maximum) times the scales of values. They are rounded
// as values want them and written over the scores as another type: vectors are read and written in a way that lets them
// have any. Whole numbers need the largest weight first, and are rounded afterwards.
// Lane i adds up columns i, i + 16, ...; hidden columns add zero, so they may as well be left out.
template <typename Step>
inline Weights soften_row(const AttentionArgs& args, const Span& span, float* scores, int position, float highest,
                          const Fetch& meanwhile, float& peak_out, float& sum_out) {
    const bool valued = span.panel[0].value_scales != nullptr;
    const float scale = (args.soft_cap > 0 ? 1.0f : args.scale) * 1.44269504f;  // log2(e)
    const float peak = highest * scale;
    const bool any = peak > kHidden;
    const F32x16 factor = F32x16::broadcast(scale), shift = F32x16::broadcast(any ? -peak : 0.0f);
    F32x16 sum = F32x16::zero(), top = F32x16::zero(), weights = F32x16::zero();
    auto* out = reinterpret_cast<typename Step::Element*>(scores);
    for (int p = 0; p < span.panels; ++p) {
        if constexpr (Step::kWhole) meanwhile.line();
        F32x16 e = shrink(fma(F32x16::load(scores + 16 * p), factor, shift));
        sum = sum + e;
        if (valued) {
            const Panel& panel = span.panel[p];
            e = e * F32x16::load(panel.value_scales);
            if (!panel.open) e = Sight::of(args, span, panel, position).hide(e, F32x16::zero());
        }
        if constexpr (Step::kWhole) {
            top = max(top, e);
            weights = weights + e;
            e.store(scores + 16 * p);
        } else {
            Step::store(out + 16 * p, e);
        }
    }
    sum_out = reduce_add(sum);
    peak_out = sum_out == sum_out ? peak : sum_out;
    if constexpr (Step::kWhole) return {reduce_max(top), reduce_add(weights)};
    const int columns = span.segments * span.columns;
    for (int c = 16 * span.panels; c < columns; c += 16) {
        if constexpr (!Step::kWhole) Step::store(out + c, F32x16::zero());
    }
    return {};
}

// The softmax of all rows over one span. Rows go through each of its parts together, so that one need not wait for the
// maximum of another.
template <typename Step>
inline void soften_rows(const AttentionArgs& args, const Tile& tile, const Span& span, float* scores, const Fetch& fetch,
                        float* steps, const Partial& out) {
    constexpr int kTogether = 8;
    const int group = args.num_heads / args.kv.num_kv_heads, columns = span.segments * span.columns;
    const auto each = [&](int first, const auto& visit) {
        for (int r = first; r < least(first + kTogether, tile.rows); ++r) {
            const int in_group = tile.first_row + r;
            const std::int64_t at = args.step->positions[tile.first_token + in_group / group];
            visit(r, scores + static_cast<std::size_t>(r) * kScoreStride, static_cast<int>(at - tile.lowest), in_group % group);
        }
    };
    float highest[kTogether];
    Weights weights[kTogether];
    for (int first = 0; first < tile.rows; first += kTogether) {
        each(first, [&](int r, float* row, int position, int head) {
            const float slope = args.slopes == nullptr ? 0.0f : args.slopes[tile.head * group + head] / args.scale;
            highest[r - first] = mask_row(args, span, row, position, slope);
        });
        each(first, [&](int r, float* row, int position, int) {
            weights[r - first] = soften_row<Step>(args, span, row, position, highest[r - first], fetch, out.peak[r], out.sum[r]);
            fetch();
        });
        if constexpr (Step::kWhole) {
            each(first, [&](int r, float* row, int, int) {
                steps[r] = round_weights(row, span.panels, columns, weights[r - first].top, weights[r - first].sum);
            });
        }
    }
}

// Scores of sink keys come from `q_sink`: 16 columns a panel, lanes that are no sinks keep what they have.
template <typename Step>
inline void score_sinks(const typename Step::Element* q_sink, const Tile& tile, int dim, const Span& span,
                        float* scores) {
    alignas(64) float own[kQueryRows * 16];
    for (int p = 0; p < span.panels && span.panel[p].sinks > 0; ++p) {
        score_tile<Step>(q_sink, tile.rows, dim, span.keys + p, 1, span.row_stride, own, 16, Nothing());
        const Mask16 sinks = first_lanes(span.panel[p].sinks);
        for (int r = 0; r < tile.rows; ++r) {
            float* row = scores + static_cast<std::size_t>(r) * kScoreStride + 16 * p;
            select(sinks, F32x16::load(own + 16 * r), F32x16::load(row)).store(row);
        }
    }
}

// Copies `count` columns of values from column `first` of a segment on; those that the row does not see become zeros.
template <typename Step>
inline void copy_seen(const AttentionArgs& args, const Span& span, int position, int segment, int first, int count,
                      typename Step::Element* to) {
    using Element = typename Step::Element;
    constexpr int kStep = Step::kStep;  // columns that lie side by side
    const std::size_t line = static_cast<std::size_t>(args.kv.head_dim) * kStep;
    const auto* from = static_cast<const Element*>(span.values[segment]) + first / kStep * line;
    for (int c = 0; c < count; ++c) {
        const int panel = (segment * span.columns + first + c) / kPanel;
        const bool seen = panel < span.panels && Sight::of(args, span, span.panel[panel], position).lane(c % kPanel);
        const std::size_t start = c / kStep * line + c % kStep;
        for (std::size_t i = 0; i < line; i += kStep) to[start + i] = seen ? from[start + i] : Element{0};
    }
}

// As Step::multiply for one row, in the same order, without the values that the row does not see.
template <typename Step>
inline void multiply_seen(const AttentionArgs& args, const Span& span, int position,
                          const typename Step::Element* probabilities, void* copy, float* mix) {
    const int dim = args.kv.head_dim, columns = span.columns;
    const int step = columns % kMaskedColumns == 0 ? kMaskedColumns : kPanel;  // tiles take 32 columns together if they can
    for (int s = 0; s < span.segments; ++s) {
        for (int c = 0; c < columns; c += step) {
            copy_seen<Step>(args, span, position, s, c, step, static_cast<typename Step::Element*>(copy));
            const void* segment = copy;
            const Panels values = {&segment, 1, 4 * static_cast<std::size_t>(dim), 64, step};
            Step::multiply(probabilities + s * columns + c, kScoreStride * sizeof(float), 1, values,
                           args.kv.value_dim / kPanel, mix, static_cast<std::size_t>(args.kv.value_dim), s > 0 || c > 0);
        }
    }
}

// `count` is a multiple of 16.
inline bool finite(const float* x, int count) {
    const F32x16 zero = F32x16::zero();
    F32x16 strange[4] = {zero, zero, zero, zero};  // stay 0, or become NaN with the first infinity or NaN
    int i = 0;
    for (; i + 64 <= count; i += 64) {
        for (int j = 0; j < 4; ++j) strange[j] = fma(F32x16::load(x + i + 16 * j), zero, strange[j]);
    }
    for (; i < count; i += 16) strange[0] = fma(F32x16::load(x + i), zero, strange[0]);
    return reduce_add((strange[0] + strange[1]) + (strange[2] + strange[3])) == 0.0f;
}

// Multiplies the rows again whose products are not finite. One check of all rows finds that there are none, nearly always.
template <typename Step>
inline void recompute_non_finite_rows(const AttentionArgs& args, const Tile& tile, const Span& span, const Workspace& work,
                                      const Partial& out) {
    using Element = typename Step::Element;
    const int dim = args.kv.value_dim, group = args.num_heads / args.kv.num_kv_heads;
    if (finite(out.mix, tile.rows * dim)) return;
    for (int r = 0; r < tile.rows; ++r) {
        float* mix = out.mix + static_cast<std::size_t>(r) * dim;
        if (!(out.peak[r] > kHidden) || finite(mix, dim)) continue;
        const auto* probabilities = reinterpret_cast<const Element*>(work.scores + static_cast<std::size_t>(r) * kScoreStride);
        const std::int64_t at = args.step->positions[tile.first_token + (tile.first_row + r) / group];
        multiply_seen<Step>(args, span, static_cast<int>(at - tile.lowest), probabilities, work.values, mix);
    }
}

// The rows' weights, which are whole numbers, times the values of the span.
inline void mix_span(const AttentionArgs& args, const Tile& tile, Span& span, const float* steps, const Workspace& work,
                     const Partial& out, const Fetch& fetch) {
    const int dim = args.kv.head_dim, panels = dim / kPanel;
    const std::size_t stride = kScoreStride * sizeof(float);
#if HEADRACE_TILES
    if (tile.rows >= ByteStep::kTileRows) {
        expand_values(args.kv.type, span, dim, static_cast<bf16_t*>(work.values));
        const Panels values = {span.values, span.segments, 4 * static_cast<std::size_t>(dim), 64, span.columns};
        mix_values_on_tiles(work.scores, stride, tile.rows, span.segments * span.columns, values, panels, steps, work.low, out.mix,
                            static_cast<std::size_t>(dim));
        return;
    }
#endif
    const Panels values = {span.values, span.segments, 2 * static_cast<std::size_t>(dim), 32, span.columns};
    mix_values(work.scores, stride, tile.rows, values, panels, steps, out.mix, static_cast<std::size_t>(dim), fetch);
}

// Rounds the queries of the job's rows, where they are multiplied as whole numbers.
template <typename Step>
inline void round_queries(const AttentionArgs& args, const Tile& tile, const Workspace& work) {
    if constexpr (Step::kWhole) {
        const int dim = args.kv.head_dim, group = args.num_heads / args.kv.num_kv_heads;
        const std::size_t row = (static_cast<std::size_t>(tile.head) * args.step->tokens + tile.first_token) * group + tile.first_row;
        Step::encode(static_cast<const bf16_t*>(args.q) + row * dim, tile.rows, dim, work.queries);
        if (args.q_sink != nullptr) {
            Step::encode(static_cast<const bf16_t*>(args.q_sink) + row * dim, tile.rows, dim, work.sink_queries);
        }
    }
}

// The tile's softmax over one span, while the memory of the next one is fetched.
template <typename Step>
inline void attend_span(const AttentionArgs& args, const Tile& tile, Span& span, const Workspace& work,
                        const Partial& out) {
    using Element = typename Step::Element;
    const int dim = args.kv.head_dim, group = args.num_heads / args.kv.num_kv_heads;
    const std::size_t row = (static_cast<std::size_t>(tile.head) * args.step->tokens + tile.first_token) * group + tile.first_row;
    const auto queries = [&](const void* all, const std::int8_t* rounded) {
        if constexpr (Step::kWhole) return rounded;
        else return static_cast<const Element*>(all) + row * dim;
    };
    const Element* q = queries(args.q, work.queries);
    float steps[kQueryRows];
    const int meanwhile = Step::kWhole ? lines_meanwhile(tile.rows, dim, span.panels) : 0;
    const Fetch fetch{work.ahead, work.ahead->share(score_pauses<Step>(tile.rows, span.panels) + tile.rows, meanwhile)};
    score_tile<Step>(q, tile.rows, dim, span.keys, span.panels, span.row_stride, work.scores, kScoreStride,
                     fetch);
    if (args.q_sink != nullptr && span.panel[0].sinks > 0) {
        score_sinks<Step>(queries(args.q_sink, work.sink_queries), tile, dim, span, work.scores);
    }
    soften_rows<Step>(args, tile, span, work.scores, fetch, steps, out);
    if constexpr (Step::kWhole) {
        mix_span(args, tile, span, steps, work, out, fetch);
    } else {
        const bool coded = is_coded(args.kv.type) && !span.recent;
        if (coded) expand_values(args.kv.type, span, dim, static_cast<bf16_t*>(work.values));  // in the place of the keys
        const Panels values = {
            .segments = span.values,
            .num_segments = span.segments,
            .row_stride = 4 * static_cast<std::size_t>(dim),
            .panel_stride = 64,
            .k_per_segment = span.columns,
        };
        Step::multiply(reinterpret_cast<const Element*>(work.scores), kScoreStride * sizeof(float), tile.rows, values,
                       args.kv.value_dim / kPanel, out.mix, static_cast<std::size_t>(args.kv.value_dim), false);
        if (!coded) recompute_non_finite_rows<Step>(args, tile, span, work, out);  // codes are finite
    }
}

inline void clear_partial(const Partial& to, int rows, int dim) {
    for (int r = 0; r < rows; ++r) {
        to.peak[r] = kHidden;
        to.sum[r] = 0;
    }
    for (int i = 0; i < rows * dim; i += 16) F32x16::zero().store(to.mix + i);
}

// Folds one span's result into that of the spans before it. A row that sees no key of the span keeps every bit.
inline void fold(const Partial& to, const Partial& from, int rows, int dim) {
    for (int first = 0; first < rows; first += 16) {
        const int n = rows - first < 16 ? rows - first : 16;
        alignas(64) float old_factors[16], new_factors[16];
        const F32x16 old_peak = F32x16::load(to.peak + first, n), new_peak = F32x16::load(from.peak + first, n);
        const F32x16 peak = max(old_peak, new_peak);
        shrink(old_peak - peak).store(old_factors);
        shrink(new_peak - peak).store(new_factors);
        for (int r = first; r < first + n; ++r) {
            if (from.peak[r] == kHidden) continue;
            const float a = to.peak[r] == kHidden ? 0.0f : old_factors[r - first], b = new_factors[r - first];
            const F32x16 old_factor = F32x16::broadcast(a), new_factor = F32x16::broadcast(b);
            to.peak[r] = to.peak[r] > from.peak[r] ? to.peak[r] : from.peak[r];
            to.sum[r] = to.sum[r] * a + from.sum[r] * b;
            float* old_row = to.mix + static_cast<std::size_t>(r) * dim;
            const float* new_row = from.mix + static_cast<std::size_t>(r) * dim;
            for (int i = 0; i < dim; i += 16) {
                const F32x16 scaled = F32x16::load(new_row + i) * new_factor;
                fma(F32x16::load(old_row + i), old_factor, scaled).store(old_row + i);
            }
        }
    }
}

// Divides by the sums and writes the tile's rows of `out`. A sum is at least 1: the key with the highest score counts as
// 1. It is 0 where every score was -infinity, and the row becomes NaN.
inline void finish(const AttentionArgs& args, const Tile& tile, const Partial& result) {
    const int dim = args.kv.value_dim, group = args.num_heads / args.kv.num_kv_heads;
    for (int r = 0; r < tile.rows; ++r) {
        const int row = tile.first_row + r;
        char* to = static_cast<char*>(args.out) + static_cast<std::size_t>(tile.first_token + row / group) * args.out_stride;
        const std::size_t column = static_cast<std::size_t>(tile.head * group + row % group) * dim;
        F32x16 sum = F32x16::broadcast(result.sum[r]), factor = F32x16::broadcast(1.0f);
        if (args.learned_sinks != nullptr) {
            const float sink = args.learned_sinks[tile.head * group + row % group] * 1.44269504f;  // log2(e), as peaks
            const F32x16 above = F32x16::broadcast(sink - result.peak[r]);
            const F32x16 most = max(above, F32x16::zero());
            factor = shrink(F32x16::zero() - most);
            sum = fma(sum, factor, shrink(above - most));
        }
        for (int i = 0; i < dim; i += 16) {
            F32x16 v = F32x16::load(result.mix + static_cast<std::size_t>(r) * dim + i);
            if (args.learned_sinks != nullptr) v = v * factor;
            v = v / sum;
            if (args.out_type == DType::f32) {
                v.store(reinterpret_cast<float*>(to) + column + i);
            } else {
                store_bf16(reinterpret_cast<bf16_t*>(to) + column + i, v);
            }
        }
    }
}

}  // namespace headrace::HEADRACE_ISA
