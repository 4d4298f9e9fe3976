#include "eviction.h"

#include <algorithm>
#include <cstring>

namespace headrace {
namespace {

constexpr int kNeighbours = 3;  // on each side

std::size_t padded(int count) { return (static_cast<std::size_t>(count) + 2 * kPanel - 1) / kPanel * kPanel; }

// A thread's own memory: sums and numbers for as many tokens as a sequence may have, and the scores of kMassRows rows.
struct Room {
    float* sums;
    float* scores;
    std::int32_t* work;
    std::int32_t* kept;

    static std::size_t numbers(const EvictionSizes& sizes) {
        return (3 + kMassRows) * padded(sizes.longest) + padded(sizes.budget);
    }
    static Room of(const EvictArgs& a, int thread) {
        auto* at = static_cast<float*>(a.scratch) + numbers(a.sizes) * static_cast<std::size_t>(thread);
        const std::size_t each = padded(a.sizes.longest);
        auto* work = reinterpret_cast<std::int32_t*>(at + (1 + kMassRows) * each);
        return {at, at + each, work, work + 2 * each};
    }
};

// Where the numbers of one head's block begin.
std::size_t cell(const KVCache& kv, std::int32_t block, int head) {
    return static_cast<std::size_t>(block) * kv.num_kv_heads + head;
}

// Moves one KV head's tokens. `Unit` holds the features of a key that lie side by side, `Value` one number of a value.
template <typename Unit, typename Value>
void move(const KVCache& kv, const std::int32_t* from, const std::int32_t* to, int head, const std::int32_t* kept, int count) {
    const int size = kv.block_size, dim = kv.head_dim;
    const bool floats = kv.type == DType::f32;
    const std::size_t room = kv.block_stride, numbers = room * dim;
    auto* keys = static_cast<Unit*>(kv.keys);
    auto* values = static_cast<Value*>(kv.values);
    const std::size_t units = dim / kv.key_features();
    for (int i = 0; i < count; ++i) {
        const std::size_t old = cell(kv, from[kept[i] / size], head), made = cell(kv, to[i / size], head);
        const int at = kept[i] % size, place = i % size;
        const Unit* key = keys + old * units * room + at;
        Unit* new_key = keys + made * units * room + place;
        for (std::size_t u = 0; u < units; ++u) new_key[u * room] = key[u * room];
        if (floats) {
            std::memcpy(values + made * numbers + static_cast<std::size_t>(place) * dim,
                        values + old * numbers + static_cast<std::size_t>(at) * dim, sizeof(Value) * dim);
        } else {
            const Value* value = values + old * numbers + static_cast<std::size_t>(at / 2) * 2 * dim + at % 2;
            Value* new_value = values + made * numbers + static_cast<std::size_t>(place / 2) * 2 * dim + place % 2;
            for (int d = 0; d < 2 * dim; d += 2) new_value[d] = value[d];
        }
        if (is_coded(kv.type)) {
            kv.key_floats()[made * room + place] = kv.key_floats()[old * room + at];
            kv.value_floats()[made * room + place] = kv.value_floats()[old * room + at];
        }
    }
}

// One KV head of an observed sequence.
void evict_head(const EvictArgs& a, const Kernels& kernels, int index, int head, const Room& room) {
    const Step& step = *a.step;
    const Observed& one = step.observed[index];
    const GroupTables& tables = step.groups[a.group];
    const std::int32_t* table = tables.block_tables + static_cast<std::size_t>(one.seq) * tables.table_width;
    const int heads = a.kv.num_kv_heads, each = a.num_heads / heads, count = step.kv_lens[one.seq];
    const bool whole = one.fresh && one.moves;  // the sums are needed in this step only
    float* sums = whole ? room.sums
                        : a.sums + (static_cast<std::size_t>(one.memory) * heads + head) * static_cast<std::size_t>(a.sizes.most);
    if (one.fresh) std::fill_n(sums, whole ? count : a.sizes.most, 0.0F);
    const std::size_t row = static_cast<std::size_t>(step.cu_q[one.seq + 1] - one.rows);
    const std::size_t bytes = a.kv.type == DType::f32 ? sizeof(float) : sizeof(bf16_t);
    MassArgs mass;
    mass.q = static_cast<const char*>(a.q) + (static_cast<std::size_t>(head) * step.tokens + row) * each * a.kv.head_dim * bytes;
    mass.rows = one.rows * each;
    mass.each = each;
    mass.kv = a.kv;
    mass.table = table;
    mass.head = head;
    mass.first = count - one.rows;
    mass.scale = a.scale;
    mass.soft_cap = a.soft_cap;
    mass.learned_sinks = a.learned_sinks == nullptr ? nullptr : a.learned_sinks + static_cast<std::size_t>(head) * each;
    mass.scores = room.scores;
    mass.stride = padded(a.sizes.longest);
    mass.sums = sums;
    kernels.attention_mass(mass);
    if (!one.moves) return;
    choose_kept(a.sizes, sums, count, room.work, room.kept);
    const std::int32_t* targets = tables.targets + static_cast<std::size_t>(index) * tables.target_width;
    move_kept(a.kv, table, targets, head, room.kept, a.sizes.budget);
}

}  // namespace

std::size_t eviction_scratch(const EvictionSizes& sizes, int threads) {
    return Room::numbers(sizes) * sizeof(float) * static_cast<std::size_t>(threads);
}

void move_kept(const KVCache& kv, const std::int32_t* from, const std::int32_t* to, int head, const std::int32_t* kept, int count) {
    if (kv.type == DType::f32) return move<float, float>(kv, from, to, head, kept, count);
    if (kv.type == DType::bf16) return move<std::uint32_t, std::uint16_t>(kv, from, to, head, kept, count);
    if (kv.whole()) return move<std::uint32_t, std::uint8_t>(kv, from, to, head, kept, count);
    return move<std::uint16_t, std::uint8_t>(kv, from, to, head, kept, count);
}

void choose_kept(const EvictionSizes& sizes, const float* sums, int count, std::int32_t* work, std::int32_t* kept) {
    const int first = sizes.sinks, end = count - sizes.recent;
    auto* pooled = reinterpret_cast<float*>(work);
    std::int32_t* order = work + count;
    for (int i = first; i < end; ++i) {
        const int from = std::max(first, i - kNeighbours), to = std::min(end, i + kNeighbours + 1);
        pooled[i] = *std::max_element(sums + from, sums + to);  // sums are finite
        order[i - first] = i;
    }
    const int chosen = sizes.budget - sizes.sinks - sizes.recent;
    const auto stays = [&](std::int32_t a, std::int32_t b) {
        if (pooled[a] != pooled[b]) return pooled[a] > pooled[b];
        if (sums[a] != sums[b]) return sums[a] > sums[b];
        return a < b;
    };
    std::nth_element(order, order + chosen, order + (end - first), stays);
    std::sort(order, order + chosen);
    for (int i = 0; i < first; ++i) kept[i] = i;
    std::copy_n(order, chosen, kept + first);
    for (int i = 0; i < sizes.recent; ++i) kept[first + chosen + i] = end + i;
}

void evict(const EvictArgs& args, const Kernels& kernels, Team& team) {
    const int heads = args.kv.num_kv_heads, items = args.step->num_observed * heads;
    if (items == 0) return;
    auto body = [&](int thread, int size) {
        const Room room = Room::of(args, thread);
        for (int item = thread; item < items; item += size) evict_head(args, kernels, item / heads, item % heads, room);
    };
    team.run(body);
}

}  // namespace headrace
