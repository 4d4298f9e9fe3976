// The least that a call must read, write and compute: its time is compared with these numbers.
#include "tape.h"

namespace headrace {
namespace {

struct Cost {
    double bytes = 0;
    double operations = 0;
};

double row_bytes(const Rows& rows, int features) {
    const double scales = rows.type == DType::i8 ? 8.0 * rows.groups : 0.0;
    return static_cast<double>(features) * dtype_bytes(rows.type) + scales;
}

// Of one expert, where there are several.
double weight_bytes(const Matrix& m) {
    const auto records = static_cast<double>(scale_records(m));
    const double arrays = (m.scales ? 1 : 0) + (m.minima ? 1 : 0);  // of scales, and of minima alike
    const double scales = m.groups == 0 ? 0 : records * scale_bytes(m.scale_type, m.group) * arrays;
    const double zeros = m.zeros ? records * kPanel : 0;
    const double bias = static_cast<double>(m.panels) * kPanel * (m.bias ? sizeof(float) : 0);
    return static_cast<double>(m.panels) * m.panel_bytes + scales + zeros + bias;
}

struct Costs {
    const Step& step;
    Scope scope;

    double rows() const { return rows_of(scope, step); }

    Cost operator()(const EmbedArgs& a) const {
        return {rows() * a.cols * (dtype_bytes(a.type) + sizeof(float)), 0};
    }
    Cost operator()(const EncodeArgs& a) const {
        const double read = a.cols * sizeof(float) * (a.times ? 2.0 : 1.0);
        return {rows() * a.each * (read + row_bytes(a.out, a.cols_padded)),
                rows() * a.each * a.cols * (a.norm.weight ? 4.0 : 0.0)};
    }
    Cost operator()(const AddArgs& a) const {
        return {rows() * a.cols * 3.0 * sizeof(float), rows() * a.cols * (a.norm.weight ? 6.0 : 2.0)};
    }
    Cost operator()(const LinearArgs& a) const {
        const Matrix& m = *a.weight;
        const double features = a.epilogue == Epilogue::gate ? m.rows / 2.0 : m.rows;
        const double written = features * dtype_bytes(a.out_type) * (a.epilogue == Epilogue::add ? 2 : 1);
        const double gates = a.gates == nullptr ? 0 : m.rows * sizeof(float);
        return {weight_bytes(m) + rows() * (row_bytes(a.in, m.cols) + gates + written), 2.0 * rows() * m.rows * m.cols};
    }
    Cost operator()(const RotationArgs& a) const { return {2.0 * step.tokens * a.half * sizeof(float), 0}; }
    Cost operator()(const RopeArgs& a) const {
        const double q = static_cast<double>(a.num_heads) * a.kv.head_dim;
        const double kv = a.writes ? 2.0 * a.kv.num_kv_heads * a.kv.head_dim : 0;
        const double written = q * dtype_bytes(a.q_type) + kv * dtype_bytes(a.kv.type == DType::i4 ? DType::bf16 : a.kv.type);
        const double read = (q + (a.keys_are_values ? kv / 2 : kv)) * sizeof(float);
        return {step.tokens * (read + written), step.tokens * (q + kv / 2) * 3.0};
    }
    Cost operator()(const LatentArgs& a) const {
        const double rotated = static_cast<double>(a.kv.head_dim - a.kv.value_dim) * (a.num_heads + 1.0);
        const double read = rotated + a.kv.value_dim;
        const double written = rotated * dtype_bytes(a.q_type) + bytes_of(a.kv.type, a.kv.head_dim);
        return {step.tokens * (read * sizeof(float) + written), step.tokens * rotated * 3.0};
    }
    Cost operator()(const HeadsArgs& a) const {
        const Cost one = (*this)(a.linear);
        return {one.bytes * a.linear.weight->experts, one.operations * a.linear.weight->experts};
    }
    Cost operator()(const AttentionArgs& a) const {
        double keys = 0, pairs = 0;  // positions read, and (query, key) pairs that see each other
        for (int s = 0; s < a.step->seqs; ++s) {
            const int begin = a.step->cu_q[s], end = a.step->cu_q[s + 1];
            if (begin == end) continue;
            keys += visible(a, a.step->positions[end - 1], end - begin);
            for (int t = begin; t < end; ++t) pairs += visible(a, a.step->positions[t], 1);
        }
        const double width = static_cast<double>(a.num_heads) * a.kv.head_dim;
        const double out = static_cast<double>(a.num_heads) * a.kv.value_dim;
        const double kv = (a.kv.latent() ? 1.0 : 2.0) * a.kv.num_kv_heads * bytes_of(a.kv.type, a.kv.head_dim);
        const double q = width * (a.kv.type == DType::f32 ? 4 : 2);
        return {keys * kv + a.step->tokens * (q + out * dtype_bytes(a.out_type)), 2.0 * pairs * (width + out)};
    }
    Cost operator()(const EvictArgs& a) const {
        double keys = 0, pairs = 0, moved = 0;
        for (int o = 0; o < a.step->num_observed; ++o) {
            const Observed& one = a.step->observed[o];
            keys += a.step->kv_lens[one.seq];
            pairs += static_cast<double>(a.step->kv_lens[one.seq]) * one.rows;
            moved += one.moves ? 4.0 * a.sizes.budget : 0;
        }
        const double head = a.kv.num_kv_heads * static_cast<double>(bytes_of(a.kv.type, a.kv.head_dim));
        return {(keys + moved) * head, 2.0 * pairs * a.num_heads * a.kv.head_dim};
    }
    Cost operator()(const RouteArgs& a) const {
        return {rows() * (a.out.experts * 4.0 + a.out.each * 16.0), rows() * a.out.experts * 4.0};
    }
    Cost operator()(const DispatchArgs& a) const {
        return {rows() * (1.0 + a.routing.each) * row_bytes(a.in, static_cast<int>(a.in.stride / dtype_bytes(a.in.type))), 0};
    }
    Cost operator()(const ExpertsArgs& a) const {  // experts without rows are not touched
        const Cost dense = (*this)(a.linear);
        const double weights = weight_bytes(*a.linear.weight);
        return {a.routing.used[0] * weights + (dense.bytes - weights) * a.routing.each, dense.operations * a.routing.each};
    }
    Cost operator()(const CombineArgs& a) const {
        const double shared = a.shared == nullptr ? 0 : 1;
        return {rows() * a.cols * 4.0 * (a.routing.each + shared + 2), rows() * a.cols * 2.0 * (a.routing.each + shared)};
    }
    Cost operator()(const UngroupArgs& a) const { return {rows() * a.groups * a.width * 8.0, 0}; }
    Cost operator()(const SigmoidGateArgs& a) const { return {rows() * a.cols * 12.0, rows() * a.cols * 3.0}; }
    Cost operator()(const ConvArgs& a) const {
        const double state = 2.0 * step.seqs * (a.width - 1), rows = step.tokens * (a.gated ? 4.0 : 2.0);
        return {(state + rows) * a.channels * sizeof(float), 2.0 * step.tokens * a.channels * a.width};
    }
    Cost operator()(const DeltaArgs& a) const {
        const double state = static_cast<double>(a.heads) * a.key_dim * a.value_dim, width = static_cast<double>(a.heads) * a.value_dim;
        const double row = 2.0 * a.key_heads * a.key_dim + 3.0 * width + 2.0 * a.heads;
        return {(2.0 * step.seqs * state + step.tokens * row) * sizeof(float), 7.0 * step.tokens * state};
    }
    Cost operator()(const SoftCapArgs& a) const { return {rows() * a.cols * 8.0, rows() * a.cols * 2.0}; }
    Cost operator()(const ArgmaxArgs& a) const { return {rows() * a.cols * 4.0, rows() * a.cols * 1.0}; }

    // Keys that the last of `queries` neighbouring positions, or those before it, can see.
    static double visible(const AttentionArgs& a, std::int64_t position, int queries) {
        const std::int64_t all = position + 1;
        const std::int64_t reach = static_cast<std::int64_t>(a.window) + a.sinks + queries - 1;
        return static_cast<double>(a.window > 0 && reach < all ? reach : all);
    }
};

}  // namespace

void add_cost(Instruction& instruction, const Step& step) {
    const Cost cost = std::visit(Costs{step, instruction.scope}, instruction.call);
    instruction.bytes += cost.bytes;
    instruction.operations += cost.operations;
}

}  // namespace headrace
