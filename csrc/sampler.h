// The sampler: rows of logits in, one token a row out. Order of operations and results are those of
// src/headrace/runner/sampling/sampler.py, which documents each. A row's token depends on that row and its rules alone.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "fork.h"
#include "kernels.h"
#include "team.h"

namespace headrace {

// 32 random bits of one token at an output position: Philox4x32-10, see src/headrace/runner/sampling/randomness.py.
std::uint32_t noise_word(std::uint64_t seed, std::uint64_t position, std::uint32_t token);

// Gumbel noise of such a word, from -3.14 to 22.88.
double gumbel(std::uint32_t word);

// How one sequence's tokens are chosen: its parameters, validated, in the sampler's form.
struct SampleRules {
    int vocab_size = 0;
    double temperature = 1;                // 0: greedy
    double log_min_p = 0;                  // -infinity: no min_p
    int top_k = 0;                         // 0: no top_k; below vocab_size
    double top_p = 1;                      // from 1 on: no top_p
    float repetition_penalty = 1;
    std::uint64_t seed = 0;
    std::uint64_t min_tokens = 0;
    bool limited = false;                  // only `allowed` may be chosen
    std::vector<std::int32_t> allowed;
    std::vector<std::int32_t> banned;
    std::vector<std::int32_t> stop_ids;    // banned before position min_tokens
    std::vector<std::pair<std::int32_t, float>> bias;

    bool edits(std::uint64_t position) const {
        return limited || !banned.empty() || (position < min_tokens && !stop_ids.empty()) || !bias.empty();
    }
};

struct SampleTask {
    const float* logits = nullptr;         // [vocab_size], left as they are
    const SampleRules* rules = nullptr;
    std::uint64_t position = 0;            // of the token to be chosen, counted from the first output token
    const std::int64_t* seen = nullptr;    // [num_seen] distinct tokens of prompt and output that penalties apply to
    const float* penalties = nullptr;      // [num_seen]: what is subtracted from their logits
    std::size_t num_seen = 0;
    const std::uint32_t* mask = nullptr;   // [mask_words]: bit t % 32 of word t / 32: token t may be chosen; null: any may
    std::size_t mask_words = 0;
};

enum class Fault : std::uint8_t { none, nan, infinite, no_logits, nothing_left };

struct Sampled {
    std::int64_t token = 0;                // meaningless with a fault
    Fault fault = Fault::none;
};

// A token with its log-probability and 1 + the number of tokens with a greater logit.
struct Likely {
    std::int64_t token = 0;
    double logprob = 0;
    std::int64_t rank = 0;
};

struct LogprobTask {
    const float* logits = nullptr;         // [vocab_size]
    std::int64_t token = 0;
    int top = 0;                           // how many of the likeliest to list
};

class Sampler {
public:
    Sampler(const Kernels& kernels, Team& team, int vocab_size);
    ~Sampler();

    int vocab_size() const { return vocab_size_; }

    void sample(const std::vector<SampleTask>& tasks, Sampled* out);

    // For each task the token itself, then the `top` likeliest by falling logit, equal ones by rising id.
    void logprobs(const std::vector<LogprobTask>& tasks, std::vector<Likely>* out);

private:
    class Drawer;  // the buffers of one thread
    struct Desk;   // a Drawer for each thread of the team, and their lock

    template <typename F>
    void for_rows(std::size_t count, std::int64_t passes, F&& body);

    Desk* make() const;

    const Kernels& kernels_;
    Team& team_;
    int vocab_size_;
    PerProcess<Desk> desk_;
};

}  // namespace headrace
