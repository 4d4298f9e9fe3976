// A model as a flat list of kernel calls over memory that is allocated once. Built a call at a time when a model is
// loaded, then replayed once a step, for any number of tokens and sequences up to the maximum.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <variant>
#include <vector>

#include "arena.h"
#include "eviction.h"
#include "kernels.h"

namespace headrace {

struct TapeSizes {
    int tokens = 0;  // most tokens of a step
    int seqs = 0;    // most sequences
    int logits = 0;  // most rows of logits
    int vocab = 0;   // token ids are below this
};

struct KVGroup {
    int block_size = 0;
    int num_blocks = 0;
    int sink_blocks = 0;
};

// Which rows a call works on. `gathered` reads rows of tokens and writes wanted rows (encode only).
enum class Scope : std::uint8_t {
    tokens,    // one a token
    gathered,  // those of wanted_rows, gathered from the tokens' rows
    logits,    // one a wanted row: for logits, or for a final hidden state
    head,      // the first of these, those that become logits
};

// The number of rows in one step.
inline int rows_of(Scope scope, const Step& step) {
    return scope == Scope::tokens ? step.tokens : scope == Scope::head ? step.logits : step.wanted;
}

using Call = std::variant<EmbedArgs, EncodeArgs, AddArgs, LinearArgs, RotationArgs, RopeArgs, LatentArgs, HeadsArgs, AttentionArgs,
                          EvictArgs, UngroupArgs, SigmoidGateArgs, ConvArgs, DeltaArgs, RouteArgs, DispatchArgs, ExpertsArgs, CombineArgs,
                          SoftCapArgs, ArgmaxArgs>;

struct Instruction {
    Call call;
    Scope scope = Scope::tokens;
    std::string name;
    int layer = -1;             // -1: outside the layers
    // Sums over the runs since the profile was last cleared; they stay 0 unless it is on.
    std::int64_t nanoseconds = 0;
    double bytes = 0;           // that had to be read or written, each once
    double operations = 0;      // multiplications and additions
};

class Tape {
public:
    // `kernels` and `team` must outlive the tape.
    Tape(const Kernels& kernels, Team& team, TapeSizes sizes);

    // ---- Building. Calls run in the order in which they are appended. ----

    const TapeSizes& sizes() const { return sizes_; }
    int add_group(const KVGroup& group);

    // A group of recurrent states in so many slots.
    int add_states(int slots);

    // Room for `each` rows of `cols` features a token, padded with zeros to kInputAlign. i8 rows have a scale and a sum
    // for each `group` features.
    Rows rows(DType type, int cols, int group = 0, int each = 1);

    // Room for `each` of so many experts a token.
    Routing routing(int experts, int each);
    void* bytes_per_token(std::size_t bytes) { return arena_.take(bytes * sizes_.tokens); }

    // Arguments that depend on the step (rows, ids, gather, step, scratch) are filled in at every run.
    void append(Call call, Scope scope, std::string name, int layer);

    // Steps with a position from here on are refused.
    void limit_positions(std::int64_t count) { positions_ = positions_ < count ? positions_ : count; }

    // Sequences of steps may be observed, and evict tokens; the calls for it follow.
    void evict(const EvictionSizes& sizes);
    const EvictionSizes& eviction() const { return eviction_; }

    // Output of logits: [sizes.logits, vocab] floats.
    float* logits_buffer();

    // ---- Running ----

    // Replays the tape. Throws std::invalid_argument for a step that does not fit: too large, or with an index that
    // points outside its array. One thread at a time.
    void run(const Step& step);

    void profile(bool on) { profiling_ = on; }
    void clear_profile();
    const std::vector<Instruction>& instructions() const { return instructions_; }
    const Step& step() const { return step_; }
    std::size_t arena_bytes() const { return arena_.bytes(); }

private:
    void check(const Step& step) const;
    void check_states(const Step& step, int slots, const StateTables& tables) const;
    void check_group(const Step& step, const KVGroup& group, const GroupTables& tables) const;
    void check_observed(const Step& step) const;
    void place_groups();

    const Kernels& kernels_;
    Team& team_;
    TapeSizes sizes_;
    Arena arena_;
    std::vector<KVGroup> groups_;

    // The step as attention of each KV group sees it: with places in place of positions, where the two differ.
    struct Placed {
        Step step;
        std::vector<std::int64_t> positions;
        std::vector<std::int32_t> kv_lens;
    };
    std::deque<Placed> placed_;  // calls point into it
    EvictionSizes eviction_;
    std::vector<int> slots_;  // of each group of states
    std::vector<Instruction> instructions_;
    Step step_;
    std::int64_t positions_ = INT64_MAX;
    float* logits_ = nullptr;
    std::size_t scratch_bytes_ = 0;
    void* scratch_ = nullptr;
    void* eviction_scratch_ = nullptr;
    bool profiling_ = false;
};

// What one call costs at this step: bytes touched (each once) and operations. Adds to the instruction's sums.
void add_cost(Instruction& instruction, const Step& step);

}  // namespace headrace
