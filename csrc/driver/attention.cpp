// Rope, KV writes and attention over the paged cache, and over one of latents: every KV type, with windows and sinks.
// Unwritten positions are NaN.
#include "batch.h"
#include "driver.h"

namespace headrace::driver {
namespace {

struct Case {
    DType type;
    int dim, block_size, window, sinks;
    float soft_cap;
};

constexpr int kHeads = 4, kHeadsKV = 2;

void run(const Kernels& kernels, Team& team, const Case& c, Guarded<float>& out) {
    const int stride = (c.block_size + 15) / 16 * 16;
    const Batch batch(c.block_size, c.window, c.sinks);
    const std::size_t cells = static_cast<std::size_t>(batch.blocks) * kHeadsKV * stride;
    Guarded<char> keys(bytes_of(c.type, cells * c.dim)), values(keys.size());
    const bool nibbles = c.type == DType::i4;
    const std::size_t scale_count = nibbles ? static_cast<std::size_t>(batch.blocks) * kHeadsKV * c.dim : is_coded(c.type) ? cells : 0;
    Guarded<float> key_scales(scale_count), value_scales(scale_count);
    Guarded<char> recent_keys(nibbles ? bytes_of(DType::bf16, cells * c.dim) : 0), recent_values(recent_keys.size());
    KVCache kv{c.type, keys.data(), values.data(), key_scales.data(), value_scales.data(), kHeadsKV, c.dim, c.dim, c.block_size, stride};
    kv.recent_keys = recent_keys.data();
    kv.recent_values = recent_values.data();
    kv.recent_group = 1;

    GroupTables group, both[2];
    Step step;
    batch.write_all(group, step);
    both[0] = both[1] = group;  // blocks of both caches are in the same places
    step.groups = both;
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
    const std::size_t tokens = batch.positions.size(), per_token = q_bytes / kHeadsKV;
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
    batch.attend(group, step);
    both[0] = both[1] = group;
    step.groups = both;
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
    Guarded<float> learned(kHeads);
    learned.fill(noise);
    args.learned_sinks = c.window > 0 && c.sinks == 0 ? learned.data() : nullptr;
    args.out = out.data();
    args.out_stride = kHeads * c.dim * sizeof(float);
    const std::size_t bytes = kernels.attention_scratch(args, step.tokens, step.seqs, team.size());
    const Guarded<char> scratch(bytes);
    args.scratch = scratch.data();
    kernels.attention(args, team);
}

// The same of a latent cache, whose rows are keys of all heads, and in their first features the values.
void run_latent(const Kernels& kernels, Team& team, const Case& c, Guarded<float>& out) {
    const int stride = (c.block_size + 15) / 16 * 16, rotated = 32, latent = c.dim - rotated, key_dim = 7;
    const Batch batch(c.block_size, 0, 0);
    const std::size_t cells = static_cast<std::size_t>(batch.blocks) * stride;
    Guarded<char> rows(cells * c.dim * dtype_bytes(c.type));
    Guarded<float> scales(is_coded(c.type) ? cells : 0);
    const KVCache kv{c.type, nullptr, rows.data(), scales.data(), scales.data(), 1, c.dim, latent, c.block_size, stride};
    GroupTables group;
    Step step;
    batch.write_all(group, step);
    Noise noise(c.dim);
    const std::size_t all = step.tokens, half = rotated / 2;
    Guarded<float> cos(all * half), sin(all * half), query(all * kHeads * (key_dim + rotated)), made(all * c.dim);
    for (Guarded<float>* one : {&cos, &sin, &query, &made}) one->fill(noise);
    const DType q_type = c.type == DType::f32 ? DType::f32 : DType::bf16;
    const std::size_t head_bytes = c.dim * dtype_bytes(q_type);
    Guarded<char> q(all * kHeads * head_bytes);
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = 0;  // what heads_linear writes
    LatentArgs latents;
    latents.query = query.data();
    latents.query_stride = kHeads * (key_dim + rotated) * sizeof(float);
    latents.latent = made.data();
    latents.latent_stride = c.dim * sizeof(float);
    latents.num_heads = kHeads;
    latents.key_dim = key_dim;
    latents.interleaved = c.block_size % 2 == 0;
    latents.cos = cos.data();
    latents.sin = sin.data();
    latents.kv = kv;
    latents.step = &step;
    latents.q_type = q_type;
    latents.q = q.data();
    kernels.latent_and_write(latents, team);

    const std::size_t tokens = batch.positions.size(), per_token = kHeads * head_bytes;
    Guarded<char> queries(tokens * per_token);
    std::size_t from = 0, to = 0;
    for (const Slice& s : kSlices) {
        from += s.length;
        std::memcpy(queries.data() + to * per_token, q.data() + (from - s.queries) * per_token, s.queries * per_token);
        to += s.queries;
    }
    batch.attend(group, step);
    AttentionArgs args;
    args.q = queries.data();
    args.kv = kv;
    args.step = &step;
    args.num_heads = kHeads;
    args.scale = 0.2F;
    args.out = out.data();
    args.out_stride = kHeads * latent * sizeof(float);
    const Guarded<char> scratch(kernels.attention_scratch(args, step.tokens, step.seqs, team.size()));
    args.scratch = scratch.data();
    kernels.attention(args, team);
}

}  // namespace

void run_attention(const Kernels& kernels, const Teams& teams) {
    const Case cases[] = {
        {DType::f32, 32, 16, 0, 0, 0},  {DType::bf16, 32, 16, 0, 0, 0},   {DType::i8, 32, 16, 0, 0, 0},
        {DType::f32, 80, 20, 45, 5, 0}, {DType::bf16, 80, 20, 45, 37, 0}, {DType::i8, 80, 20, 45, 5, 0},
        {DType::f32, 16, 301, 0, 0, 2}, {DType::bf16, 16, 4, 100, 0, 2},  {DType::i8, 16, 301, 100, 5, 2},
        {DType::e4m3, 80, 20, 45, 5, 0}, {DType::i4, 32, 16, 0, 0, 0},    {DType::i4, 80, 48, 45, 0, 2},
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
    for (const DType type : {DType::f32, DType::bf16, DType::i8, DType::e4m3}) {
        for (const auto& [dim, block_size] : {std::pair{48, 16}, {576, 20}}) {
            const Case c{type, dim, block_size, 0, 0, 0};
            Guarded<float> alone(tokens * kHeads * (dim - 32)), shared(alone.size());
            run_latent(kernels, teams.one, c, alone);
            run_latent(kernels, teams.many, c, shared);
            require(finite(alone), "attention of latents is finite", kernels.name);
            require(alone == shared, "attention of latents does not depend on threads", kernels.name);
        }
    }
}

}  // namespace headrace::driver
