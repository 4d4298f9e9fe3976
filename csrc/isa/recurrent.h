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

// x / its length, times `scale`; zeros up to a multiple of 16.
static inline void unit(const float* x, int count, float scale, float* out) {
    F32x16 squares = F32x16::zero();
    for (int i = 0; i < count; i += 16) {
        const F32x16 part = F32x16::load(x + i, least(16, count - i));
        squares = fma(part, part, squares);
    }
    const F32x16 inverse = F32x16::broadcast(scale) / sqrt(F32x16::broadcast(reduce_add(squares) + 1e-6F));
    for (int i = 0; i < count; i += 16) (F32x16::load(x + i, least(16, count - i)) * inverse).store(out + i);
}

// What a token does to every column of a head's state.
struct DeltaToken {
    alignas(64) float k[kMaxKeyDim];
    alignas(64) float q[kMaxKeyDim];
    F32x16 kept;   // the factor of the state
    F32x16 beta;   // the factor of the change
    F32x16 both;   // q * k

    void take(const DeltaArgs& a, int head, int t) {
        const int key_head = head / (a.heads / a.key_heads), dim = a.key_dim;
        const float* row = a.qkv + t * (a.qkv_stride / sizeof(float));
        const float* numbers = a.numbers + t * (a.numbers_stride / sizeof(float));
        unit(row + key_head * dim, dim, 1.0F / std::sqrt(static_cast<float>(dim)), q);
        unit(row + (a.key_heads + key_head) * dim, dim, 1.0F, k);
        F32x16 product = F32x16::zero();
        for (int i = 0; i < dim; i += 16) product = fma(F32x16::load(q + i), F32x16::load(k + i), product);
        both = F32x16::broadcast(reduce_add(product));
        const double open = static_cast<double>(numbers[a.heads + head]) + a.time[head];
        const double step = open > 30.0 ? open : std::log1p(std::exp(open));
        kept = F32x16::broadcast(static_cast<float>(std::exp(-std::exp(static_cast<double>(a.rate[head])) * step)));
        beta = F32x16::broadcast(static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(numbers[head])))));
    }
};

// V * 16 columns of one head's state, over all sequences. The change of a token is added when the next one is taken, so
// that every token reads and writes the state once.
template <int V>
static inline void delta_columns(const DeltaArgs& a, int head, int column) {
    const Step& step = *a.step;
    const StateTables& states = step.states[a.group];
    const int dim = a.key_dim;
    constexpr int kWide = 16 * V;
    const std::size_t size = static_cast<std::size_t>(a.heads) * dim * a.value_dim;
    float* const base = a.states + static_cast<std::size_t>(head) * dim * a.value_dim + column;
    const std::size_t values = static_cast<std::size_t>(2) * a.key_heads * dim + static_cast<std::size_t>(head) * a.value_dim + column;
    alignas(64) float state[kMaxKeyDim * kWide];
    DeltaToken tokens[2];
    for (int s = 0; s < step.seqs; ++s) {
        const std::int32_t source = states.sources[s];
        for (int i = 0; i < dim; ++i) {
            const float* from = base + source * size + static_cast<std::size_t>(i) * a.value_dim;
            for (int v = 0; v < V; ++v) {
                (source < 0 ? F32x16::zero() : F32x16::load(from + 16 * v)).store(state + i * kWide + 16 * v);
            }
        }
        F32x16 change[V];
        bool pending = false;
        std::int32_t write = states.firsts[s];
        const std::int32_t last = states.firsts[s + 1];
        for (int t = step.cu_q[s]; t < step.cu_q[s + 1]; ++t) {
            DeltaToken& token = tokens[t & 1];
            const float* before = tokens[~t & 1].k;
            token.take(a, head, t);
            F32x16 found[V], read[V];
            for (int v = 0; v < V; ++v) found[v] = read[v] = F32x16::zero();
            for (int i = 0; i < dim; ++i) {
                const F32x16 k = F32x16::broadcast(token.k[i]), q = F32x16::broadcast(token.q[i]);
                float* place = state + i * kWide;
                for (int v = 0; v < V; ++v) {
                    F32x16 x = F32x16::load(place + 16 * v);
                    if (pending) x = fma(F32x16::broadcast(before[i]), change[v], x);
                    x = x * token.kept;
                    x.store(place + 16 * v);
                    found[v] = fma(k, x, found[v]);
                    read[v] = fma(q, x, read[v]);
                }
            }
            const float* value = a.qkv + t * (a.qkv_stride / sizeof(float)) + values;
            float* out = a.out + t * (a.out_stride / sizeof(float)) + static_cast<std::size_t>(head) * a.value_dim + column;
            for (int v = 0; v < V; ++v) {
                change[v] = token.beta * (F32x16::load(value + 16 * v) - found[v]);
                fma(token.both, change[v], read[v]).store(out + 16 * v);
            }
            pending = true;
            for (; write < last && states.counts[write] == t - step.cu_q[s] + 1; ++write) {
                float* to = base + states.slots[write] * size;
                for (int i = 0; i < dim; ++i) {
                    for (int v = 0; v < V; ++v) {
                        fma(F32x16::broadcast(token.k[i]), change[v], F32x16::load(state + i * kWide + 16 * v))
                            .store(to + static_cast<std::size_t>(i) * a.value_dim + 16 * v);
                    }
                }
            }
        }
    }
}

static void gated_delta(const DeltaArgs& a, Team& team) {
    constexpr int kVectors = 4;
    const int vectors = a.value_dim / 16, wide = vectors / kVectors, each = wide + vectors % kVectors;
    const bool alone = static_cast<std::int64_t>(a.step->tokens) * a.heads * a.value_dim * a.key_dim <= kAlone;
    for_items(a.heads * each, alone, team, [&](int item) {
        const int head = item / each, part = item % each;
        if (part < wide) {
            delta_columns<kVectors>(a, head, part * kVectors * 16);
        } else {
            delta_columns<1>(a, head, (wide * kVectors + part - wide) * 16);
        }
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
