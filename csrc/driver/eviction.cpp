// Eviction: sums of attention over one step and over several, and moves of keys and values, for every KV type it takes.
#include "../eviction.h"
#include "batch.h"
#include "driver.h"

namespace headrace::driver {
namespace {

constexpr int kHeads = 4, kHeadsKV = 2, kDim = 48;
constexpr EvictionSizes kSizes{12, 2, 3, 40, 300};

// The cache after tokens of three sequences were moved to `moved`: of two in one step, of one whose sums take two.
void run(const Kernels& kernels, Team& team, DType type, int block_size, Guarded<char>& cache) {
    const int stride = (block_size + 15) / 16 * 16;
    const Batch batch(block_size, 0, 0);
    const int each = (kSizes.budget + block_size - 1) / block_size;
    const std::size_t cells = static_cast<std::size_t>(batch.blocks + 3 * each) * kHeadsKV * stride, bytes = bytes_of(type, cells * kDim);
    const std::size_t scales = is_coded(type) ? cells : 0;
    Guarded<char> keys(bytes), values(bytes);
    Guarded<float> key_scales(scales), value_scales(scales);
    Noise noise(block_size);
    if (type == DType::f32) {
        for (Guarded<char>* one : {&keys, &values}) {
            for (std::size_t i = 0; i < cells * kDim; ++i) reinterpret_cast<float*>(one->data())[i] = noise();
        }
    } else if (type == DType::bf16) {
        for (Guarded<char>* one : {&keys, &values}) {
            for (std::size_t i = 0; i < cells * kDim; ++i) {
                reinterpret_cast<bf16_t*>(one->data())[i] = static_cast<bf16_t>(0x3c00U | (noise.bits() & 0x83ffU));
            }
        }
    } else {
        keys.fill(noise);
        values.fill(noise);
        key_scales.fill(0.01F);
        value_scales.fill(0.01F);
    }
    GroupTables group;
    Step step;
    batch.attend(group, step);
    std::vector<std::int32_t> targets;
    for (int i = 0; i < 3 * each; ++i) targets.push_back(batch.blocks + i);
    group.targets = targets.data();
    group.target_width = each;
    const std::size_t count = static_cast<std::size_t>(step.tokens) * kHeads * kDim;
    Guarded<char> q(count * (type == DType::f32 ? sizeof(float) : sizeof(bf16_t)));
    for (std::size_t i = 0; i < count; ++i) {
        if (type == DType::f32) {
            reinterpret_cast<float*>(q.data())[i] = noise();
        } else {
            reinterpret_cast<bf16_t*>(q.data())[i] = static_cast<bf16_t>(0x3c00U | (noise.bits() & 0x83ffU));
        }
    }
    Guarded<float> sums(static_cast<std::size_t>(4) * kHeadsKV * kSizes.most);
    Guarded<char> scratch(eviction_scratch(kSizes, team.size()));
    EvictArgs args;
    args.q = q.data();
    args.kv = {type, keys.data(), values.data(), key_scales.data(), value_scales.data(), kHeadsKV, kDim, kDim, block_size, stride};
    args.step = &step;
    args.num_heads = kHeads;
    args.scale = 0.2F;
    args.soft_cap = block_size == 20 ? 3 : 0;
    args.sizes = kSizes;
    args.sums = sums.data();
    args.scratch = scratch.data();
    const Observed first[] = {{1, 5, 0, true, true}, {2, 1, 1, true, true}, {3, 17, 3, true, false}};
    const Observed then[] = {{3, 9, 3, false, true}};
    step.observed = first;
    step.num_observed = 3;
    evict(args, kernels, team);
    group.targets = targets.data() + 2 * each;
    step.observed = then;
    step.num_observed = 1;
    evict(args, kernels, team);
    std::memcpy(cache.data(), keys.data(), bytes);
    std::memcpy(cache.data() + bytes, values.data(), bytes);
}

}  // namespace

void run_eviction(const Kernels& kernels, const Teams& teams) {
    for (const DType type : {DType::f32, DType::bf16, DType::i8, DType::e4m3}) {
        for (const int block_size : {4, 16, 20}) {
            const Batch batch(block_size, 0, 0);
            const std::size_t blocks = static_cast<std::size_t>(batch.blocks) + 3 * static_cast<std::size_t>((kSizes.budget + block_size - 1) / block_size);
            const std::size_t stride = (static_cast<std::size_t>(block_size) + 15) / 16 * 16;
            Guarded<char> alone(2 * bytes_of(type, blocks * kHeadsKV * stride * kDim)), shared(alone.size());
            run(kernels, teams.one, type, block_size, alone);
            run(kernels, teams.many, type, block_size, shared);
            require(alone == shared, "eviction does not depend on threads", kernels.name);
        }
    }
}

}  // namespace headrace::driver
