// Eviction of keys and values: the attention that a sequence's last queries pay to each key decides which tokens of a KV head
// stay (SnapKV, Li et al. 2024), and these are moved to other blocks. What is read is never written: blocks may be shared.
#pragma once

#include "kernels.h"

namespace headrace {

// In tokens: after a move each KV head has `budget` of them: the first `sinks`, the last `recent`, and the heaviest of the others.
struct EvictionSizes {
    int budget = 0;
    int sinks = 0;
    int recent = 0;
    int most = 0;     // of a sequence whose sums last longer than a step
    int longest = 0;  // of any sequence
};

// One layer's cache: sums the mass of the observed rows of a step, and moves what stays where a sequence has all of its rows.
struct EvictArgs {
    const void* q = nullptr;         // as in AttentionArgs
    KVCache kv;                      // not a latent one, and not of i4
    const Step* step = nullptr;      // its positions are places in the tables of the group
    int group = 0;
    int num_heads = 0;
    float scale = 1;
    float soft_cap = 0;
    const float* learned_sinks = nullptr;
    EvictionSizes sizes;
    float* sums = nullptr;           // [memories][Hkv][most]
    void* scratch = nullptr;         // eviction_scratch() bytes, 64-byte aligned
};

std::size_t eviction_scratch(const EvictionSizes& sizes, int threads);

void evict(const EvictArgs& args, const Kernels& kernels, Team& team);

// The tokens that stay of `count` with these sums, in rising order. A token counts with the largest sum of itself and its
// three neighbours on each side, so that what stays hangs together; of equal ones the heavier, then the earlier stays. `work`: 2 * count numbers.
void choose_kept(const EvictionSizes& sizes, const float* sums, int count, std::int32_t* work, std::int32_t* kept);

// Moves keys and values of `count` tokens of one KV head, at places `kept` of the blocks `from`, to places 0, 1, 2, ... of the blocks `to`.
void move_kept(const KVCache& kv, const std::int32_t* from, const std::int32_t* to, int head, const std::int32_t* kept, int count);

}  // namespace headrace
