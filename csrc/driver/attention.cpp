// Rope, KV writes and attention over the paged cache: every KV type, with windows and sinks. Unwritten positions are NaN.
#include <vector>

#include "driver.h"

namespace headrace::driver {
namespace {

struct Case {
    DType type;
    int dim, block_size, window, sinks;
    float soft_cap;
};

constexpr int kHeads = 4, kHeadsKV = 2;

struct Slice {
    int queries, length;  // the last `queries` of `length` positions
};
constexpr Slice kSlices[] = {{1, 1}, {5, 17}, {1, 300}, {40, 40}};

void run(const Kernels& kernels, Team& team, const Case& c, Guarded<float>& out) {
    const int stride = (c.block_size + 15) / 16 * 16;
    std::vector<std::int32_t> cu{0}, lengths, dropped, tables;
    std::vector<std::int64_t> positions, slots, all_positions, all_slots;
    int blocks = 0, width = 0;
    for (const Slice& s : kSlices) width = std::max(width, (s.length + c.block_size - 1) / c.block_size);
    const int sink_blocks = (c.sinks + c.block_size - 1) / c.block_size;
    for (const Slice& s : kSlices) {
        const int count = (s.length + c.block_size - 1) / c.block_size, first = blocks;
        int gone = 0;
        if (c.window > 0) gone = std::max(0, (s.length - s.queries - c.window + 1) / c.block_size - sink_blocks);
        blocks += count;
        for (int entry = 0; entry < width; ++entry) {
            const int logical = entry < sink_blocks ? entry : entry + gone;
            tables.push_back(logical < count ? first + logical : -1);  // a read past the live entries is outside the cache
        }
        for (int at = 0; at < s.length; ++at) {
            const std::int64_t slot = static_cast<std::int64_t>(first + at / c.block_size) * c.block_size + at % c.block_size;
            all_positions.push_back(at);
            all_slots.push_back(slot);
            if (at >= s.length - s.queries) positions.push_back(at);
        }
        cu.push_back(static_cast<std::int32_t>(positions.size()));
        lengths.push_back(s.length);
        dropped.push_back(gone);
    }
    const std::size_t cells = static_cast<std::size_t>(blocks) * kHeadsKV * stride;
    Guarded<char> keys(cells * c.dim * dtype_bytes(c.type)), values(keys.size());
    const std::size_t scale_count = c.type == DType::i8 ? cells : 0;
    Guarded<float> key_scales(scale_count), value_scales(scale_count);
    KVCache kv{c.type, keys.data(), values.data(), key_scales.data(), value_scales.data(), kHeadsKV, c.dim, c.dim, c.block_size, stride};

    GroupTables group;
    group.slots = all_slots.data();
    Step step;
    step.tokens = static_cast<int>(all_positions.size());
    step.positions = all_positions.data();
    step.groups = &group;
    Noise noise(c.dim);
    const std::size_t all = step.tokens, half = c.dim / 2;
    Guarded<double> frequencies(half);
    for (std::size_t i = 0; i < half; ++i) frequencies[i] = 1.0 / static_cast<double>(i + 1);
    Guarded<float> cos(all * half), sin(all * half), qkv(all * (kHeads + 2 * kHeadsKV) * c.dim);
    Guarded<float> norm(c.dim);
    qkv.fill(noise);
    norm.fill(noise);
    kernels.rotations({&step, frequencies.data(), static_cast<int>(half), 1, 0, cos.data(), sin.data()}, team);
    const DType q_type = c.type == DType::f32 ? DType::f32 : DType::bf16;
    const std::size_t q_bytes = kHeads * static_cast<std::size_t>(c.dim) * dtype_bytes(q_type);
    Guarded<char> q(all * q_bytes), q_sink(all * q_bytes);
    RopeArgs rope;
    rope.qkv = qkv.data();
    rope.qkv_stride = (kHeads + 2 * kHeadsKV) * c.dim * sizeof(float);
    rope.num_heads = kHeads;
    rope.rotated = c.dim;
    rope.q_norm = rope.k_norm = norm.data();
    rope.eps = 1e-5F;
    rope.cos = rope.sink_cos = cos.data();
    rope.sin = rope.sink_sin = sin.data();
    rope.kv = kv;
    rope.step = &step;
    rope.q_type = q_type;
    rope.q = q.data();
    rope.q_sink = q_sink.data();
    kernels.rope_and_write(rope, team);

    // The queries of the slices only, as in a step: taken from those of all tokens, one KV head at a time.
    const std::size_t tokens = positions.size(), per_token = q_bytes / kHeadsKV;
    Guarded<char> queries(tokens * q_bytes);
    for (int head = 0; head < kHeadsKV; ++head) {
        std::size_t from = 0, to = 0;
        for (const Slice& s : kSlices) {
            from += s.length;
            std::memcpy(queries.data() + (head * tokens + to) * per_token,
                        q.data() + (head * all + from - s.queries) * per_token, s.queries * per_token);
            to += s.queries;
        }
    }
    group.block_tables = tables.data();
    group.dropped = dropped.data();
    group.table_width = width;
    group.sink_blocks = sink_blocks;
    step.tokens = static_cast<int>(tokens);
    step.seqs = static_cast<int>(lengths.size());
    step.positions = positions.data();
    step.cu_q = cu.data();
    step.kv_lens = lengths.data();
    AttentionArgs args;
    args.q = queries.data();
    args.q_sink = c.sinks > 0 ? queries.data() : nullptr;
    args.kv = kv;
    args.step = &step;
    args.num_heads = kHeads;
    args.scale = 0.2F;
    args.window = c.window;
    args.sinks = c.sinks;
    args.soft_cap = c.soft_cap;
    args.out = out.data();
    args.out_stride = kHeads * c.dim * sizeof(float);
    const std::size_t bytes = kernels.attention_scratch(args, step.tokens, step.seqs, team.size());
    const Guarded<char> scratch(bytes);
    args.scratch = scratch.data();
    kernels.attention(args, team);
}

}  // namespace

void run_attention(const Kernels& kernels, const Teams& teams) {
    const Case cases[] = {
        {DType::f32, 32, 16, 0, 0, 0},  {DType::bf16, 32, 16, 0, 0, 0},   {DType::i8, 32, 16, 0, 0, 0},
        {DType::f32, 80, 20, 45, 5, 0}, {DType::bf16, 80, 20, 45, 37, 0}, {DType::i8, 80, 20, 45, 5, 0},
        {DType::f32, 16, 301, 0, 0, 2}, {DType::bf16, 16, 4, 100, 0, 2},  {DType::i8, 16, 301, 100, 5, 2},
    };
    std::size_t tokens = 0;
    for (const Slice& s : kSlices) tokens += s.queries;
    for (const Case& c : cases) {
        Guarded<float> alone(tokens * kHeads * c.dim), shared(tokens * kHeads * c.dim);
        run(kernels, teams.one, c, alone);
        run(kernels, teams.many, c, shared);
        require(finite(alone), "attention is finite", kernels.name);
        require(alone == shared, "attention does not depend on threads", kernels.name);
    }
}

}  // namespace headrace::driver
