#include "tape.h"

#include <chrono>
#include <stdexcept>
#include <utility>

namespace headrace {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

void check_count(const char* what, int count, int most) {
    if (count < 0 || count > most) {
        refuse("the step has " + std::to_string(count) + " " + what + ", the tape has room for " + std::to_string(most));
    }
}

// Completes a call with the arguments of this step, and makes it.
struct Player {
    const Kernels& kernels;
    Team& team;
    const Step& step;
    Scope scope;
    void* scratch;

    int rows() const { return rows_of(scope, step); }

    void operator()(EmbedArgs& a) const {
        a.ids = a.positions ? step.positions : step.ids;
        a.rows = step.tokens;
        kernels.embed(a, team);
    }
    void operator()(EncodeArgs& a) const {
        a.rows = rows() * a.each;
        a.gather = scope == Scope::gathered ? step.wanted_rows : nullptr;
        a.times_gather = scope == Scope::tokens ? nullptr : step.wanted_rows;
        kernels.encode(a, team);
    }
    void operator()(AddArgs& a) const {
        a.rows = rows();
        kernels.add(a, team);
    }
    void operator()(LinearArgs& a) const {
        a.rows = rows();
        kernels.linear(a, team);
    }
    void operator()(RotationArgs& a) const { kernels.rotations(a, team); }
    void operator()(RopeArgs& a) const { kernels.rope_and_write(a, team); }
    void operator()(LatentArgs& a) const { kernels.latent_and_write(a, team); }
    void operator()(HeadsArgs& a) const {
        a.linear.rows = rows();
        kernels.heads_linear(a, team);
    }
    void operator()(AttentionArgs& a) const {
        a.scratch = scratch;
        kernels.attention(a, team);
    }
    void operator()(EvictArgs& a) const { evict(a, kernels, team); }
    void operator()(UngroupArgs& a) const {
        a.rows = rows();
        kernels.ungroup(a, team);
    }
    void operator()(SigmoidGateArgs& a) const {
        a.rows = rows();
        kernels.sigmoid_gate(a, team);
    }
    void operator()(ConvArgs& a) const { kernels.convolution(a, team); }
    void operator()(DeltaArgs& a) const { kernels.gated_delta(a, team); }
    void operator()(RouteArgs& a) const {
        a.rows = rows();
        kernels.route(a, team);
    }
    void operator()(DispatchArgs& a) const {
        a.rows = rows();
        kernels.dispatch(a, team);
    }
    void operator()(ExpertsArgs& a) const {
        a.rows = rows();
        kernels.experts(a, team);
    }
    void operator()(CombineArgs& a) const {
        a.rows = rows();
        kernels.combine(a, team);
    }
    void operator()(SoftCapArgs& a) const {
        a.rows = rows();
        kernels.soft_cap(a, team);
    }
    void operator()(ArgmaxArgs& a) const {
        a.rows = rows();
        kernels.argmax(a, team);
    }
};

}  // namespace

Tape::Tape(const Kernels& kernels, Team& team, TapeSizes sizes) : kernels_(kernels), team_(team), sizes_(sizes) {
    if (sizes.tokens < 1 || sizes.seqs < 1 || sizes.logits < 1 || sizes.logits > sizes.tokens || sizes.vocab < 1) {
        refuse("a tape needs room for at least one token, sequence and row of logits, which are no more than tokens");
    }
}

int Tape::add_group(const KVGroup& group) {
    groups_.push_back(group);
    placed_.emplace_back();
    return static_cast<int>(groups_.size()) - 1;
}

int Tape::add_states(int slots) {
    slots_.push_back(slots);
    return static_cast<int>(slots_.size()) - 1;
}

Rows Tape::rows(DType type, int cols, int group, int each) {
    const std::size_t count = static_cast<std::size_t>(sizes_.tokens) * each;
    const int padded = (cols + kInputAlign - 1) / kInputAlign * kInputAlign;
    Rows rows;
    rows.type = type;
    rows.stride = (padded * dtype_bytes(type) + 63) / 64 * 64;
    if (rows.stride % 4096 == 0) rows.stride += 64;  // else the same feature of many rows falls into one set of the L1 cache
    rows.data = arena_.take(rows.stride * count);
    if (type == DType::i8) {
        rows.group = group > 0 && group < padded ? group : padded;
        rows.groups = (padded + rows.group - 1) / rows.group;
        rows.scales = arena_.take_array<float>(count * rows.groups);
        rows.sums = arena_.take_array<std::int32_t>(count * rows.groups);
    }
    return rows;
}

Routing Tape::routing(int experts, int each) {
    const std::size_t tokens = sizes_.tokens, pairs = tokens * each;
    Routing routing{.experts = experts, .each = each};
    routing.chosen = arena_.take_array<std::int32_t>(pairs);
    routing.weights = arena_.take_array<float>(pairs);
    routing.gates = arena_.take_array<float>(tokens);
    routing.places = arena_.take_array<std::int32_t>(pairs);
    routing.sources = arena_.take_array<std::int32_t>(pairs);
    routing.begins = arena_.take_array<std::int32_t>(static_cast<std::size_t>(experts) + 1);
    routing.used = arena_.take_array<std::int32_t>(static_cast<std::size_t>(experts) + 1);
    return routing;
}

void Tape::append(Call call, Scope scope, std::string name, int layer) {
    if (auto* rope = std::get_if<RopeArgs>(&call)) rope->step = &step_;
    if (auto* latent = std::get_if<LatentArgs>(&call)) latent->step = &step_;
    if (auto* conv = std::get_if<ConvArgs>(&call)) conv->step = &step_;
    if (auto* delta = std::get_if<DeltaArgs>(&call)) delta->step = &step_;
    if (auto* rotation = std::get_if<RotationArgs>(&call)) rotation->step = &step_;
    if (auto* attention = std::get_if<AttentionArgs>(&call)) {
        attention->step = &placed_.at(attention->group).step;
        const std::size_t bytes =
            kernels_.attention_scratch(*attention, sizes_.tokens, sizes_.seqs, team_.size());
        if (bytes > scratch_bytes_) {
            scratch_ = arena_.take(bytes);
            scratch_bytes_ = bytes;
        }
    }
    if (auto* evicts = std::get_if<EvictArgs>(&call)) {
        evicts->step = &placed_.at(evicts->group).step;
        evicts->sizes = eviction_;
        const std::size_t sums = static_cast<std::size_t>(sizes_.seqs) * evicts->kv.num_kv_heads * eviction_.most;
        evicts->sums = arena_.take_array<float>(sums);
        evicts->scratch = eviction_scratch_;
    }
    instructions_.push_back({std::move(call), scope, std::move(name), layer});
}

void Tape::evict(const EvictionSizes& sizes) {
    if (sizes.sinks < 0 || sizes.recent < 1 || sizes.budget < sizes.sinks + sizes.recent || sizes.most < sizes.budget ||
        sizes.longest < sizes.most) {
        refuse("a budget holds sinks and recent tokens, and a sequence may be longer");
    }
    eviction_ = sizes;
    eviction_scratch_ = arena_.take(eviction_scratch(sizes, team_.size()));
}

float* Tape::logits_buffer() {
    if (!logits_) logits_ = arena_.take_array<float>(static_cast<std::size_t>(sizes_.logits) * sizes_.vocab);
    return logits_;
}

void Tape::run(const Step& step) {
    check(step);
    step_ = step;
    place_groups();
    for (Instruction& instruction : instructions_) {
        if (instruction.scope != Scope::tokens && rows_of(instruction.scope, step) == 0) continue;
        const Player player{kernels_, team_, step_, instruction.scope, scratch_};
        if (!profiling_) {
            std::visit(player, instruction.call);
            continue;
        }
        const auto start = std::chrono::steady_clock::now();
        std::visit(player, instruction.call);
        const auto spent = std::chrono::steady_clock::now() - start;
        instruction.nanoseconds += std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count();
        add_cost(instruction, step_);
    }
}

void Tape::place_groups() {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
        Placed& placed = placed_[g];
        placed.step = step_;
        const std::int32_t* evicted = step_.groups[g].evicted;
        if (evicted == nullptr) continue;
        placed.positions.assign(step_.positions, step_.positions + step_.tokens);
        placed.kv_lens.assign(step_.kv_lens, step_.kv_lens + step_.seqs);
        for (int s = 0; s < step_.seqs; ++s) {
            placed.kv_lens[s] -= evicted[s];
            for (int t = step_.cu_q[s]; t < step_.cu_q[s + 1]; ++t) placed.positions[t] -= evicted[s];
        }
        placed.step.positions = placed.positions.data();
        placed.step.kv_lens = placed.kv_lens.data();
    }
}

void Tape::clear_profile() {
    for (Instruction& instruction : instructions_) {
        instruction.nanoseconds = 0;
        instruction.bytes = instruction.operations = 0;
    }
}

void Tape::check(const Step& step) const {
    check_count("tokens", step.tokens, sizes_.tokens);
    check_count("sequences", step.seqs, sizes_.seqs);
    check_count("rows of logits", step.logits, sizes_.logits);
    check_count("wanted rows", step.wanted, sizes_.tokens);
    if (step.logits > step.wanted) refuse("rows of logits are among the wanted rows");
    for (int t = 0; t < step.tokens; ++t) {
        if (step.ids[t] < 0 || step.ids[t] >= sizes_.vocab) {
            refuse("token id " + std::to_string(step.ids[t]) + " is outside the vocabulary");
        }
        if (step.positions[t] < 0) refuse("a position is negative");
        if (step.positions[t] >= positions_) refuse("a position has no embedding");
    }
    if (step.cu_q[0] != 0 || step.cu_q[step.seqs] != step.tokens) refuse("cu_q must go from 0 to the number of tokens");
    for (int s = 0; s < step.seqs; ++s) {
        const int begin = step.cu_q[s], end = step.cu_q[s + 1];
        if (end < begin || end > step.tokens) refuse("cu_q must not fall");
        if (begin == end) continue;
        for (int t = begin; t < end; ++t) {
            if (step.positions[t] != step.positions[begin] + (t - begin)) refuse("positions of a sequence must follow");
        }
        if (step.kv_lens[s] != step.positions[end - 1] + 1) refuse("kv_lens must end with a sequence's last position");
    }
    for (int r = 0; r < step.wanted; ++r) {
        if (step.wanted_rows[r] < 0 || step.wanted_rows[r] >= step.tokens) refuse("wanted_rows points past the tokens");
    }
    if (step.more != nullptr) {
        if (step.more[0] != 0) refuse("more slots must start with the first");
        for (int t = 0; t < step.tokens; ++t) {
            if (step.more[t + 1] < step.more[t]) refuse("more slots of tokens must follow");
        }
    }
    for (std::size_t g = 0; g < groups_.size(); ++g) check_group(step, groups_[g], step.groups[g]);
    for (std::size_t g = 0; g < slots_.size(); ++g) check_states(step, slots_[g], step.states[g]);
    if (step.num_observed > 0) check_observed(step);
}

void Tape::check_observed(const Step& step) const {
    if (eviction_.budget == 0) refuse("this tape evicts nothing");
    for (int o = 0; o < step.num_observed; ++o) {
        const Observed& one = step.observed[o];
        if (one.seq < 0 || one.seq >= step.seqs) refuse("an observed sequence is not in the step");
        if (one.rows < 1 || one.rows > step.cu_q[one.seq + 1] - step.cu_q[one.seq]) refuse("observed rows are of the step");
        if (one.memory < 0 || one.memory >= sizes_.seqs) refuse("the sums of an observed sequence have no memory");
        for (std::size_t g = 0; g < groups_.size(); ++g) {
            const GroupTables& tables = step.groups[g];
            if (tables.targets == nullptr) continue;
            const std::int64_t held = step.kv_lens[one.seq] - (tables.evicted == nullptr ? 0 : tables.evicted[one.seq]);
            if (held > (one.fresh && one.moves ? eviction_.longest : eviction_.most)) refuse("an observed sequence is too long");
            if (!one.moves) continue;
            if (held <= eviction_.budget) refuse("a sequence within the budget evicts nothing");
            const int blocks = (eviction_.budget + groups_[g].block_size - 1) / groups_[g].block_size;
            if (blocks > tables.target_width) refuse("there are too few blocks for what stays");
            const std::int32_t* targets = tables.targets + static_cast<std::size_t>(o) * tables.target_width;
            for (int i = 0; i < blocks; ++i) {
                if (targets[i] < 0 || targets[i] >= groups_[g].num_blocks) refuse("a block table points outside the KV cache");
            }
        }
    }
    for (const Instruction& instruction : instructions_) {
        const auto* evicts = std::get_if<EvictArgs>(&instruction.call);
        if (evicts != nullptr && step.groups[evicts->group].targets == nullptr) refuse("a group that evicts has no targets");
    }
}

void Tape::check_states(const Step& step, int slots, const StateTables& tables) const {
    for (int s = 0; s < step.seqs; ++s) {
        const int tokens = step.cu_q[s + 1] - step.cu_q[s];
        if (tables.sources[s] < -1 || tables.sources[s] >= slots) refuse("a state lies outside its memory");
        if (tables.firsts[s + 1] < tables.firsts[s] || tables.firsts[s + 1] > tables.firsts[step.seqs]) {
            refuse("the states of sequences must follow");
        }
        int count = 0;
        for (std::int32_t w = tables.firsts[s]; w < tables.firsts[s + 1]; ++w) {
            if (tables.slots[w] < 0 || tables.slots[w] >= slots) refuse("a state lies outside its memory");
            if (tables.counts[w] < 1 || tables.counts[w] < count) refuse("states are left in the order of tokens");
            count = tables.counts[w];
        }
        if (count != tokens) refuse("a state is left after the last token of every sequence");
    }
}

void Tape::check_group(const Step& step, const KVGroup& group, const GroupTables& tables) const {
    const std::int64_t slots = static_cast<std::int64_t>(group.num_blocks) * group.block_size;
    for (int t = 0; t < step.tokens; ++t) {
        if (tables.slots[t] < -1 || tables.slots[t] >= slots) refuse("a slot points outside the KV cache");
    }
    for (std::int32_t at = 0; step.more != nullptr && at < step.more[step.tokens]; ++at) {
        if (tables.more_slots[at] < 0 || tables.more_slots[at] >= slots) refuse("a slot points outside the KV cache");
    }
    for (int s = 0; s < step.seqs; ++s) {
        const std::int64_t gone = tables.evicted == nullptr ? 0 : tables.evicted[s], held = step.kv_lens[s] - gone;
        const std::int64_t tokens = step.cu_q[s + 1] - step.cu_q[s];
        if (gone < 0 || (gone > 0 && held < tokens)) refuse("a sequence has evicted more tokens than it had");
        const std::int64_t blocks = (held + group.block_size - 1) / group.block_size;
        const std::int64_t live = blocks - tables.dropped[s];
        if (tables.dropped[s] < 0 || live < 0 || live > tables.table_width) {
            refuse("a block table is shorter than its sequence");
        }
        if (tables.dropped[s] > 0 && live < group.sink_blocks) refuse("a block table has dropped blocks that hold sinks");
        const std::int32_t* table = tables.block_tables + static_cast<std::size_t>(s) * tables.table_width;
        for (std::int64_t entry = 0; entry < live; ++entry) {
            if (table[entry] < 0 || table[entry] >= group.num_blocks) refuse("a block table points outside the KV cache");
        }
    }
}

}  // namespace headrace
