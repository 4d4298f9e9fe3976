// Layers with a recurrent state: short convolutions and the gated delta rule; and what lies around them. A thread has whole
// channels, or columns of a head's state, and takes the sequences in turn and their tokens one by one: so a row's numbers
// depend neither on the batch nor on how a prompt is cut, and a sequence finds the state that another one left before it.
#pragma once

#include <cmath>
#include <cstring>

#include "../kernels.h"
#include "gates.h"
#include "rowwise.h"

namespace headrace::HEADRACE_ISA {

// Calls `one` for every item, divided among the threads.
template <typename F>
static inline void for_items(int items, bool alone, Team& team, F one) {
    if (alone) {
        for (int item = 0; item < items; ++item) one(item);
        return;
    }
    auto body = [&](int thread, int size) {
        const Share share = share_of(items, thread, size);
        for (int item = share.begin; item < share.end; ++item) one(item);
    };
    team.run(body);
}

// ---- ungroup, sigmoid gate ----

static void ungroup(const UngroupArgs& a, Team& team) {
    for_rows(a.rows, a.groups * a.width, team, [&](int row) {
        const float* in = a.in + row * (a.in_stride / sizeof(float));
        for (int group = 0; group < a.groups; ++group) {
            for (int part = 0; part < a.count; ++part) {
                const UngroupPart& to = a.parts[part];
                float* out = to.out + row * (to.stride / sizeof(float)) + static_cast<std::size_t>(group) * to.width;
                std::memcpy(out, in, to.width * sizeof(float));
                in += to.width;
            }
        }
    });
}

static void sigmoid_gate(const SigmoidGateArgs& a, Team& team) {
    const F32x16 one = F32x16::broadcast(1.0F);
    for_rows(a.rows, a.cols, team, [&](int row) {
        const float* gates = a.gates + row * (a.gates_stride / sizeof(float));
        float* out = a.out + row * (a.out_stride / sizeof(float));
        for (int i = 0; i < a.cols; i += 16) {
            const int n = least(16, a.cols - i);
            const F32x16 open = one / (one + exp(F32x16::zero() - F32x16::load(gates + i, n)));
            (F32x16::load(out + i, n) * open).store(out + i, n);
        }
    });
}

// ---- convolution ----

// 16 channels from `first` on, of all sequences.
static inline void convolve(const ConvArgs& a, int first) {
    const int n = least(16, a.channels - first), taps = a.width - 1;
    const Step& step = *a.step;
    const StateTables& states = step.states[a.group];
    F32x16 weights[kMaxConvWidth], inputs[kMaxConvWidth];
    for (int tap = 0; tap < a.width; ++tap) weights[tap] = F32x16::load(a.weight + static_cast<std::size_t>(tap) * a.channels + first, n);
    const F32x16 bias = a.bias == nullptr ? F32x16::zero() : F32x16::load(a.bias + first, n);
    const std::size_t size = static_cast<std::size_t>(taps) * a.channels;
    for (int s = 0; s < step.seqs; ++s) {
        const std::int32_t source = states.sources[s];
        for (int tap = 0; tap < taps; ++tap) {
            const float* kept = a.states + source * size + static_cast<std::size_t>(tap) * a.channels + first;
            inputs[tap] = source < 0 ? F32x16::zero() : F32x16::load(kept, n);
        }
        std::int32_t write = states.firsts[s];
        const std::int32_t last = states.firsts[s + 1];
        for (int t = step.cu_q[s]; t < step.cu_q[s + 1]; ++t) {
            const float* row = a.in + t * (a.in_stride / sizeof(float)) + first;
            F32x16 x = F32x16::load(row, n);
            if (a.gated) x = x * F32x16::load(row + 2 * static_cast<std::size_t>(a.channels), n);
            inputs[taps] = x;
            F32x16 sum = F32x16::zero();
            for (int tap = 0; tap < a.width; ++tap) sum = fma(weights[tap], inputs[tap], sum);
            sum = sum + bias;
            sum = a.gated ? sum * F32x16::load(row + a.channels, n) : silu(sum);
            sum.store(a.out + t * (a.out_stride / sizeof(float)) + first, n);
            for (int tap = 0; tap < taps; ++tap) inputs[tap] = inputs[tap + 1];
            for (; write < last && states.counts[write] == t - step.cu_q[s] + 1; ++write) {
                float* kept = a.states + states.slots[write] * size + first;
                for (int tap = 0; tap < taps; ++tap) inputs[tap].store(kept + static_cast<std::size_t>(tap) * a.channels, n);
            }
        }
    }
}

static void convolution(const ConvArgs& a, Team& team) {
    const bool alone = static_cast<std::int64_t>(a.step->tokens) * a.channels <= kAlone;
    for_items((a.channels + 15) / 16, alone, team, [&](int panel) { convolve(a, 16 * panel); });
}

// ---- gated delta rule ----

// x / its length, times `scale`.
static inline void unit(float* x, int count, float scale) {
    F32x16 squares = F32x16::zero();
    for (int i = 0; i < count; i += 16) {
        const F32x16 part = F32x16::load(x + i, least(16, count - i));
        squares = fma(part, part, squares);
    }
    const F32x16 inverse = F32x16::broadcast(scale) / sqrt(F32x16::broadcast(reduce_add(squares) + 1e-6F));
    for (int i = 0; i < count; i += 16) {
        const int n = least(16, count - i);
        (F32x16::load(x + i, n) * inverse).store(x + i, n);
    }
}

// Vectors of a state's columns that are taken together: sums, changes and factors fit the registers.
#if defined(__AVX512F__)
constexpr int kDeltaMany = 4, kDeltaOne = 8;  // of slices of several tokens, and of one
#else
constexpr int kDeltaMany = 2, kDeltaOne = 2;
#endif

// Queries and keys of a row become unit vectors, queries over the root of their size too. Its numbers become the factors
// of the change and of the state.
static void prepare_row(const DeltaArgs& a, int t) {
    const int dim = a.key_dim;
    float* row = a.qkv + t * (a.qkv_stride / sizeof(float));
    for (int head = 0; head < a.key_heads; ++head) {
        unit(row + head * dim, dim, 1.0F / std::sqrt(static_cast<float>(dim)));
        unit(row + (a.key_heads + head) * dim, dim, 1.0F);
    }
    float* beta = a.numbers + t * (a.numbers_stride / sizeof(float));
    float* decay = beta + a.heads;
    for (int head = 0; head < a.heads; ++head) {
        const double open = static_cast<double>(decay[head]) + a.time[head];
        const double step = open > 30.0 ? open : std::log1p(std::exp(open));
        decay[head] = static_cast<float>(std::exp(-std::exp(static_cast<double>(a.rate[head])) * step));
        beta[head] = static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(beta[head]))));
    }
}

// What a token does to every column of a head's state.
struct DeltaToken {
    const float* k;
    const float* q;
    F32x16 kept;   // the factor of the state
    F32x16 beta;   // the factor of the change
    F32x16 both;   // q * k

    static DeltaToken of(const DeltaArgs& a, int head, int t) {
        const int key_head = a.tiled ? head % a.key_heads : head / (a.heads / a.key_heads), dim = a.key_dim;
        const float* numbers = a.numbers + t * (a.numbers_stride / sizeof(float));
        DeltaToken token;
        token.q = a.qkv + t * (a.qkv_stride / sizeof(float)) + key_head * dim;
        token.k = token.q + a.key_heads * dim;
        F32x16 product = F32x16::zero();
        for (int i = 0; i < dim; i += 16) {
            const int n = least(16, dim - i);
            product = fma(F32x16::load(token.q + i, n), F32x16::load(token.k + i, n), product);
        }
        token.both = F32x16::broadcast(reduce_add(product));
        token.kept = F32x16::broadcast(numbers[a.heads + head]);
        token.beta = F32x16::broadcast(numbers[head]);
        return token;
    }
};

// V * 16 columns of one head's state in one sequence.
template <int V>
struct DeltaColumns {
    const DeltaArgs& a;
    int head, column, seq;
    F32x16 change[V];

    const float* source() const {
        const std::int32_t slot = a.step->states[a.group].sources[seq];
        return slot < 0 ? nullptr : state_of(slot);
    }
    float* state_of(std::int32_t slot) const {
        const std::size_t rows = (static_cast<std::size_t>(slot) * a.heads + head) * a.key_dim;
        return a.states + rows * a.value_dim + column;
    }

    // Adds up what the state holds for a key and a query. `from` has rows of `stride` floats, null: zeros. With a token
    // before this one, its change is made first. With `to` (rows of V vectors) the state is written.
    template <bool kAfter, bool kWrite>
    void read(const float* from, std::size_t stride, const DeltaToken& token, const DeltaToken* before, float* to, F32x16* found,
              F32x16* seen) const {
        F32x16 f[V], s[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) f[v] = s[v] = F32x16::zero();
        for (int i = 0; i < a.key_dim; ++i) {
            const F32x16 k = F32x16::broadcast(token.k[i]), q = F32x16::broadcast(token.q[i]);
            F32x16 b = F32x16::zero();
            if constexpr (kAfter) b = F32x16::broadcast(before->k[i]);
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) {
                F32x16 x = from == nullptr ? F32x16::zero() : F32x16::load(from + i * stride + 16 * v);
                if constexpr (kAfter) x = fma(b, change[v], x * before->kept);
                if constexpr (kWrite) x.store(to + i * (16 * V) + 16 * v);
                f[v] = fma(k, x, f[v]);
                s[v] = fma(q, x, s[v]);
            }
        }
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
            found[v] = f[v];
            seen[v] = s[v];
        }
    }

    // The change that a token makes, and its result.
    void change_by(const DeltaToken& token, int t, const F32x16* found, const F32x16* seen) {
        const std::size_t at = static_cast<std::size_t>(head) * a.value_dim + column;
        const std::size_t keys = static_cast<std::size_t>(2) * a.key_heads * a.key_dim;
        const float* value = a.qkv + t * (a.qkv_stride / sizeof(float)) + keys + at;
        float* out = a.out + t * (a.out_stride / sizeof(float)) + at;
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
            change[v] = token.beta * (F32x16::load(value + 16 * v) - token.kept * found[v]);
            fma(token.both, change[v], token.kept * seen[v]).store(out + 16 * v);
        }
    }

    // Writes the state after a token, from rows of `stride` floats (null: zeros), which may be those that are written.
    void write(const float* from, std::size_t stride, const DeltaToken& token, float* to) const {
        for (int i = 0; i < a.key_dim; ++i) {
            const F32x16 k = F32x16::broadcast(token.k[i]);
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) {
                const F32x16 x = from == nullptr ? F32x16::zero() : F32x16::load(from + i * stride + 16 * v);
                fma(k, change[v], x * token.kept).store(to + static_cast<std::size_t>(i) * a.value_dim + 16 * v);
            }
        }
    }

    void copy(const float* from, float* to) const {
        for (int i = 0; i < a.key_dim; ++i) {
            const std::size_t row = static_cast<std::size_t>(i) * a.value_dim;
            for (int v = 0; v < V; ++v) F32x16::load(from + row + 16 * v).store(to + row + 16 * v);
        }
    }

    // A slice of one token reads the state where it lies, and writes it where it belongs.
    void one_token() {
        const StateTables& tables = a.step->states[a.group];
        const int t = a.step->cu_q[seq];
        const DeltaToken token = DeltaToken::of(a, head, t);
        const auto stride = static_cast<std::size_t>(a.value_dim);
        const float* from = source();
        F32x16 found[V], seen[V];
        read<false, false>(from, stride, token, nullptr, nullptr, found, seen);
        change_by(token, t, found, seen);
        const std::int32_t first = tables.firsts[seq], last = tables.firsts[seq + 1];
        if (first == last) return;
        float* to = state_of(tables.slots[first]);
        write(from, stride, token, to);
        for (std::int32_t more = first + 1; more < last; ++more) copy(to, state_of(tables.slots[more]));
    }

    // The columns stay in the first-level cache. The change of a token is made when the next one reads the state, so that
    // each token reads and writes it once.
    void tokens() {
        const StateTables& tables = a.step->states[a.group];
        const int begin = a.step->cu_q[seq], end = a.step->cu_q[seq + 1];
        alignas(64) float state[kMaxKeyDim * 16 * V];
        constexpr std::size_t kStride = 16 * V;
        std::int32_t next = tables.firsts[seq];
        const std::int32_t last = tables.firsts[seq + 1];
        DeltaToken token, before;
        for (int t = begin; t < end; ++t) {
            token = DeltaToken::of(a, head, t);
            F32x16 found[V], seen[V];
            if (t == begin) {
                read<false, true>(source(), static_cast<std::size_t>(a.value_dim), token, nullptr, state, found, seen);
            } else {
                read<true, true>(state, kStride, token, &before, state, found, seen);
            }
            change_by(token, t, found, seen);
            for (; next < last && tables.counts[next] == t - begin + 1; ++next) {
                write(state, kStride, token, state_of(tables.slots[next]));
            }
            before = token;
        }
    }
};

template <int V, bool kOne>
static inline int delta_vectors(const DeltaArgs& a, int head, int vector, int seq) {
    DeltaColumns<V> columns{a, head, 16 * vector, seq, {}};
    if constexpr (kOne) {
        columns.one_token();
    } else {
        columns.tokens();
    }
    return V;
}

// Some vectors of the columns of a head's state, over all sequences in turn.
static inline void delta_columns(const DeltaArgs& a, int head, int first, int end) {
    for (int seq = 0; seq < a.step->seqs; ++seq) {
        const int tokens = a.step->cu_q[seq + 1] - a.step->cu_q[seq];
        for (int vector = first; vector < end && tokens > 0;) {
            const int left = end - vector;
            if (tokens > 1) {
                vector += left >= kDeltaMany ? delta_vectors<kDeltaMany, false>(a, head, vector, seq)
                                             : delta_vectors<1, false>(a, head, vector, seq);
            } else if (left >= kDeltaOne) {
                vector += delta_vectors<kDeltaOne, true>(a, head, vector, seq);
            } else {
                vector += left >= kDeltaMany ? delta_vectors<kDeltaMany, true>(a, head, vector, seq)
                                             : delta_vectors<1, true>(a, head, vector, seq);
            }
        }
    }
}

static void gated_delta(const DeltaArgs& a, Team& team) {
    for_rows(a.step->tokens, 4 * (2 * a.key_heads * a.key_dim + a.heads * 16), team, [&](int t) { prepare_row(a, t); });
    // All columns of a head lie side by side. Many threads share them.
    const int vectors = a.value_dim / 16, share = a.heads >= 2 * team.size() ? vectors : kDeltaMany, each = ceil_div(vectors, share);
    const bool alone = static_cast<std::int64_t>(a.step->tokens) * a.heads * a.value_dim * a.key_dim <= kAlone;
    for_items(a.heads * each, alone, team, [&](int item) {
        const int first = item % each * share;
        delta_columns(a, item / each, first, least(first + share, vectors));
    });
    const NormArgs norm{.weight = a.norm, .eps = a.eps};
    for_rows(a.step->tokens, a.heads * a.value_dim, team, [&](int row) {
        const float* gates = a.gates + row * (a.gates_stride / sizeof(float));
        float* out = a.out + row * (a.out_stride / sizeof(float));
        for (int head = 0; head < a.heads; ++head, gates += a.value_dim, out += a.value_dim) {
            const Features f = Features::of(out, norm, Gate::none, a.value_dim, nullptr);
            for (int i = 0; i < a.value_dim; i += 16) (f.at(i) * silu(F32x16::load(gates + i))).store(out + i);
        }
    });
}

}  // namespace headrace::HEADRACE_ISA
