// Kernels that take one row at a time: embedding, norms with encoding for a product, sums, soft cap, arg-max.
// Rows are divided among threads whole, so a row's numbers do not depend on the others. Reductions: lane i takes elements
// i, i + 16, ...; then the lanes in one fixed order.
#pragma once

#include "../kernels.h"
#include "code_formats.h"
#include "code_side.h"
#include "gates.h"

namespace headrace::HEADRACE_ISA {

// So few elements take less time than waking a thread; the caller does them alone.
constexpr std::int64_t kAlone = 8192;

template <typename F>
static inline void for_rows(int rows, int cols, Team& team, F one_row) {
    if (rows == 1 || static_cast<std::int64_t>(rows) * cols <= kAlone) {
        for (int row = 0; row < rows; ++row) one_row(row);
        return;
    }
    auto body = [&](int thread, int size) {
        const Share share = share_of(rows, thread, size);
        for (int row = share.begin; row < share.end; ++row) one_row(row);
    };
    team.run(body);
}

// ---- embed ----

// A row of a table.
static inline void embed_row(const EmbedArgs& a, std::int64_t id, float* out) {
    const std::size_t start = static_cast<std::size_t>(id) * a.cols;
    if (a.type == DType::f16) {
        const f16_t* halves = static_cast<const f16_t*>(a.table) + start;
        for (int i = 0; i < a.cols; ++i) out[i] = from_f16(halves[i]) + (a.add ? out[i] : 0.0F);
        return;
    }
    for (int i = 0; i < a.cols; i += 16) {
        const int n = least(16, a.cols - i);
        const F32x16 x = a.type == DType::f32 ? F32x16::load(static_cast<const float*>(a.table) + start + i, n)
                                              : load_bf16(static_cast<const bf16_t*>(a.table) + start + i, n);
        (a.add ? F32x16::load(out + i, n) + x : x).store(out + i, n);
    }
}

// A row of a packed matrix: one lane of a panel, two features (f32: one) a line of 64 bytes.
static inline void embed_packed_row(const EmbedArgs& a, std::int64_t id, float* out) {
    const void* panel = static_cast<const char*>(a.packed->data) + static_cast<std::size_t>(id / kPanel) * a.packed->panel_bytes;
    const int lane = static_cast<int>(id % kPanel);
    if (a.type == DType::f32) {
        for (int i = 0; i < a.cols; ++i) out[i] = static_cast<const float*>(panel)[kPanel * i + lane];
    } else if (a.type == DType::f16) {
        for (int i = 0; i < a.cols; ++i) out[i] = from_f16(static_cast<const f16_t*>(panel)[kPanel * i + lane]);
    } else {
        const bf16_t* pairs = static_cast<const bf16_t*>(panel) + 2 * lane;
        for (int i = 0; i < a.cols; ++i) out[i] = from_bf16(pairs[i / 2 * 2 * kPanel + i % 2]);
    }
}

// The same of a matrix of codes.
static inline void embed_code_row(const Matrix& w, std::int64_t id, float* out) {
    const int row = static_cast<int>(id), panel = row / kPanel, lane = row % kPanel;
    const auto numbers_of = with_format(w.format, []<class Format>() { return &get_numbers<Format>; });
    const bool minima = has_minima(w);
    alignas(64) float scales[kChunkParts][kPanel], lows[kChunkParts][kPanel];
    for (int begin = 0, end; begin < w.cols; begin = end) {
        end = chunk_end(begin, w.group, w.cols_padded);
        load_scales(w, panel, begin, end, w.group, scales);
        if (minima) load_minima(w, panel, begin, end, w.group, lows);
        float numbers[kChunkFeatures];
        numbers_of(w, row, begin, end - begin, numbers);
        for_parts(w, begin, end, w.group, [&](int part, int group) {
            const float scale = scales[part][lane];
            const std::size_t place = (static_cast<std::size_t>(panel) * w.groups + group) * kPanel + lane;
            const auto zero = static_cast<float>(w.zeros == nullptr ? w.middle : w.zeros[place]);
            const int first = begin + part * w.group, last = least(least(first + w.group, end), w.cols);
            for (int k = first; k < last; ++k) {
                const float number = numbers[k - begin];
                out[w.order == nullptr ? k : w.order[k]] =
                    minima ? scale * number + lows[part][lane] : scale * (number - zero);
            }
        });
    }
}

static void embed(const EmbedArgs& a, Team& team) {
    for_rows(a.rows, a.cols, team, [&](int row) {
        float* out = a.out + row * (a.out_stride / sizeof(float));
        if (a.packed == nullptr) {
            embed_row(a, a.ids[row], out);
        } else if (is_codes(a.packed->format)) {
            embed_code_row(*a.packed, a.ids[row], out);
        } else {
            embed_packed_row(a, a.ids[row], out);
        }
        if (a.scale == 1.0F) return;
        for (int i = 0; i < a.cols; i += 16) {
            const int n = least(16, a.cols - i);
            (F32x16::load(out + i, n) * F32x16::broadcast(a.scale)).store(out + i, n);
        }
    });
}

// ---- encode ----

// The features of one row before encoding: normalised if requested, then a function of each, and a product with those of
// another row; zeros from `cols` on.
struct Features {
    const float* in;
    NormArgs norm;
    Gate gate;
    int cols;
    const std::int32_t* order;  // in which features are encoded, or null
    F32x16 mean;                // 0 unless the norm is centred
    F32x16 scale;               // 1 / root of the mean square
    const float* times = nullptr;

    HEADRACE_INLINE Features of(const float* row, const NormArgs& norm, Gate gate, int cols, const std::int32_t* order) {
        Features f{row, norm, gate, cols, order, F32x16::zero(), F32x16::broadcast(1.0F), nullptr};
        if (norm.weight == nullptr) return f;
        if (norm.centred) {
            F32x16 sum = F32x16::zero();
            for (int i = 0; i < cols; i += 16) sum = sum + F32x16::load(row + i, least(16, cols - i));
            f.mean = F32x16::broadcast(reduce_add(sum) / static_cast<float>(cols));
        }
        F32x16 squares = F32x16::zero();
        int i = 0;
        for (; i + 16 <= cols; i += 16) {
            const F32x16 x = F32x16::load(row + i) - f.mean;
            squares = fma(x, x, squares);
        }
        if (i < cols) {
            const F32x16 x = select(first_lanes(cols - i), F32x16::load(row + i, cols - i) - f.mean, F32x16::zero());
            squares = fma(x, x, squares);
        }
        const float mean_square = reduce_add(squares) / static_cast<float>(cols);
        f.scale = F32x16::broadcast(1.0F) / sqrt(F32x16::broadcast(mean_square + norm.eps));
        return f;
    }

    HEADRACE_METHOD F32x16 finished(F32x16 x, F32x16 weight, F32x16 bias) const {
        if (norm.weight != nullptr) x = norm.centred ? fma((x - mean) * scale, weight, bias) : x * scale * weight;
        return gate == Gate::none ? x : apply(gate, x);
    }

    HEADRACE_METHOD F32x16 ordered(int i) const {
        float x[16] = {}, weights[16] = {}, biases[16] = {}, factors[16] = {};
        for (int j = 0; j < least(16, cols - i); ++j) {
            x[j] = in[order[i + j]];
            if (norm.weight != nullptr) weights[j] = norm.weight[order[i + j]];
            if (norm.bias != nullptr) biases[j] = norm.bias[order[i + j]];
            if (times != nullptr) factors[j] = times[order[i + j]];
        }
        const F32x16 own = finished(F32x16::load(x), F32x16::load(weights), F32x16::load(biases));
        return times == nullptr ? own : own * F32x16::load(factors);
    }

    HEADRACE_METHOD F32x16 at(int i) const {
        if (order != nullptr) return ordered(i);
        if (times == nullptr || i >= cols) return alone(i);
        return alone(i) * F32x16::load(times + i, least(16, cols - i));
    }

    HEADRACE_METHOD F32x16 alone(int i) const {
        const F32x16 zero = F32x16::zero();
        if (i + 16 <= cols) {
            return finished(F32x16::load(in + i), norm.weight ? F32x16::load(norm.weight + i) : zero,
                            norm.bias ? F32x16::load(norm.bias + i) : zero);
        }
        if (i >= cols) return zero;
        const int n = cols - i;
        return finished(F32x16::load(in + i, n), norm.weight ? F32x16::load(norm.weight + i, n) : zero,
                        norm.bias ? F32x16::load(norm.bias + i, n) : zero);
    }
};

// Codes of features begin..end, all of one group: their scale, and their sum.
static inline float encode_group(const Features& f, int begin, int end, std::int8_t* codes, std::int32_t* sum) {
    F32x16 most = F32x16::zero(), strange = F32x16::zero();
    for (int i = begin; i < end; i += 16) {
        const F32x16 x = f.at(i);
        most = max(max(F32x16::zero() - x, x), most);
        strange = strange + (x - x);  // stays 0, or becomes NaN with the first infinity or NaN
    }
    const float top = reduce_max(most);
    const F32x16 inverse = F32x16::broadcast(codes_per_unit(top));
    I32x16 total = I32x16::zero();
    for (int i = begin; i < end; i += 16) {
        const I32x16 code = round(f.at(i) * inverse);
        store_i8(codes + i, code);
        total = total + code;
    }
    std::int32_t lanes[16];
    total.store(lanes);
    std::uint32_t wrapping = 0;  // lanes of a row that is not finite may be anything
    for (int lane = 0; lane < 16; ++lane) wrapping += static_cast<std::uint32_t>(lanes[lane]);
    *sum = static_cast<std::int32_t>(wrapping);
    return top / 127.0F + reduce_add(strange);
}

static inline void encode_row(const EncodeArgs& a, int row) {
    const std::int64_t source = a.gather ? a.gather[row] : row;
    const char* in = reinterpret_cast<const char*>(a.in) + source * static_cast<std::int64_t>(a.in_stride);
    Features f = Features::of(reinterpret_cast<const float*>(in), a.norm, a.gate, a.cols, a.out.order);
    if (a.times != nullptr) {
        const std::int64_t other = a.times_gather ? a.times_gather[row] : row;
        f.times = a.times + other * static_cast<std::int64_t>(a.times_stride / sizeof(float));
    }
    char* out = static_cast<char*>(a.out.data) + row * a.out.stride;
    if (a.out.type == DType::f32) {
        for (int i = 0; i < a.cols_padded; i += 16) f.at(i).store(reinterpret_cast<float*>(out) + i);
    } else if (a.out.type == DType::bf16) {
        for (int i = 0; i < a.cols_padded; i += 16) store_bf16(reinterpret_cast<bf16_t*>(out) + i, f.at(i));
    } else {
        const std::size_t first = static_cast<std::size_t>(row) * a.out.groups;
        for (int group = 0; group < a.out.groups; ++group) {
            const int begin = group * a.out.group;
            const int end = a.out.group >= a.cols_padded - begin ? a.cols_padded : begin + a.out.group;
            a.out.scales[first + group] =
                encode_group(f, begin, end, reinterpret_cast<std::int8_t*>(out), a.out.sums + first + group);
        }
    }
}

static void encode(const EncodeArgs& a, Team& team) {
    for_rows(a.rows, a.cols_padded, team, [&](int row) { encode_row(a, row); });
}

// ---- add ----

static void add(const AddArgs& a, Team& team) {
    const F32x16 scale = F32x16::broadcast(a.scale);
    for_rows(a.rows, a.cols, team, [&](int row) {
        const float* in = a.in + row * (a.in_stride / sizeof(float));
        float* out = a.out + row * (a.out_stride / sizeof(float));
        const int each = a.norm_cols > 0 ? a.norm_cols : a.cols;
        for (int first = 0; first < a.cols; first += each) {
            const Features f = Features::of(in + first, a.norm, Gate::none, each, nullptr);
            for (int i = 0; i < each; i += 16) {
                const int n = least(16, each - i);
                const F32x16 sum = fma(f.at(i), scale, F32x16::load(out + first + i, n));
                (a.decay == nullptr ? sum : sum * F32x16::broadcast(*a.decay)).store(out + first + i, n);
            }
        }
    });
}

// ---- logits ----

static void soft_cap(const SoftCapArgs& a, Team& team) {
    const F32x16 cap = F32x16::broadcast(a.cap), scale = F32x16::broadcast(a.scale);
    for_rows(a.rows, a.cols, team, [&](int row) {
        float* x = a.logits + row * (a.stride / sizeof(float));
        for (int i = 0; i < a.cols; i += 16) {
            const int n = least(16, a.cols - i);
            const F32x16 scaled = F32x16::load(x + i, n) * scale;
            (a.cap > 0 ? cap * tanh(scaled / cap) : scaled).store(x + i, n);
        }
    });
}

// The first index of the largest value of one row; columns are fewer than 2^24, so that indices are exact as floats.
static inline std::int64_t argmax_row(const float* x, int cols) {
    const float lowest = -__builtin_huge_valf();
    float ramp[16], values[16], places[16];
    for (int lane = 0; lane < 16; ++lane) ramp[lane] = static_cast<float>(lane);
    F32x16 best = F32x16::broadcast(lowest), place = F32x16::zero(), here = F32x16::load(ramp);
    const F32x16 step = F32x16::broadcast(16.0F);
    int i = 0;
    for (; i + 16 <= cols; i += 16) {
        const F32x16 value = F32x16::load(x + i);
        const Mask16 better = less(best, value);  // false for a NaN, and for an equal value further right
        best = select(better, value, best);
        place = select(better, here, place);
        here = here + step;
    }
    best.store(values);
    place.store(places);
    float top = lowest;
    std::int64_t found = 0;
    for (int lane = 0; lane < 16; ++lane) {
        const auto index = static_cast<std::int64_t>(places[lane]);
        if (values[lane] > top || (values[lane] == top && top > lowest && index < found)) {
            top = values[lane];
            found = index;
        }
    }
    for (; i < cols; ++i) {
        if (x[i] > top) {
            top = x[i];
            found = i;
        }
    }
    if (top > lowest) return found;
    for (i = 0; i < cols; ++i) {
        if (x[i] == lowest) return i;  // minus infinity is more than NaN
    }
    return 0;
}

static void argmax(const ArgmaxArgs& a, Team& team) {
    for_rows(a.rows, a.cols, team, [&](int row) {
        a.out[row] = argmax_row(a.logits + row * (a.stride / sizeof(float)), a.cols);
    });
}

}  // namespace headrace::HEADRACE_ISA
