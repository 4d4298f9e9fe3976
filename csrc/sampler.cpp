#include "sampler.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

namespace headrace {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr double kColdest = 1e-30;       // anything lower has weight on the largest logits alone already
constexpr double kMostNoise = 22.874;    // above the noise of the largest word: 33 * log(2)
constexpr double kWeightError = 1e-5;    // more than the relative error of sums of float weights
constexpr int kFirstRanks = 128;         // of a nucleus; later prefixes are kWiden times as wide
constexpr int kWiden = 8;
constexpr int kFewRanks = 1024;          // up to so many, noise of single tokens costs less than that of whole groups
constexpr std::uint64_t kAll = ~std::uint64_t{0};  // a key after those of all tokens
constexpr int kLanes = 16;               // maxima a group of logits
constexpr int kSteps = 1024;             // of 1 / kStepsPerUnit below the highest logit
constexpr float kStepsPerUnit = 32;
// Waking the team, and waiting for its slowest thread, pays from about a millisecond of work on: so many logits
// read once, where a draw among the top_k, another draw and log-probabilities count as several reads.
constexpr std::int64_t kParallel = 16 << 20;
constexpr std::int64_t kRankedPasses = 3, kDrawPasses = 8, kLogprobPasses = 16;

// The least words whose noise could be so much or more, from a table: a step too low and, for rounding, one lower.
class LeastWords {
public:
    LeastWords() {
        for (int i = 0; i < kSize; ++i) {
            const double word = std::exp(-std::exp(-(kBegin + i / kPerUnit))) * 0x1p32 - 1.5;
            words_[i] = word > 0 ? static_cast<std::uint32_t>(word) : 0;
        }
    }

    std::uint32_t above(double noise) const {
        const double step = std::min((noise - kBegin) * kPerUnit, kSize - 1.0);  // before it becomes a whole number
        return step > 0 ? words_[static_cast<int>(step)] : 0;
    }

private:
    static constexpr double kBegin = -4, kPerUnit = 32;
    static constexpr int kSize = 27 * 32;
    std::array<std::uint32_t, kSize> words_;
};
const LeastWords kLeastWords;

// Rising keys: logits by falling value, equal ones (-0 and 0 too) by rising token id.
std::uint64_t key_of(float logit, std::int64_t token) {
    const float value = logit + 0.0F;
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const std::uint32_t rising = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
    return static_cast<std::uint64_t>(~rising) << 32 | static_cast<std::uint32_t>(token);
}

std::uint32_t low_half(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
std::uint32_t high_half(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }

// One word of what Kernels::noise computes.
std::uint32_t noise_word(const NoiseArgs& noise, std::uint32_t token) {
    std::uint32_t counter[4] = {noise.position[0], noise.position[1], token / 4, 0};
    std::uint32_t key[2] = {noise.key[0], noise.key[1]};
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t even = std::uint64_t{0xD2511F53U} * counter[0];
        const std::uint64_t odd = std::uint64_t{0xCD9E8D57U} * counter[2];
        counter[0] = high_half(odd) ^ counter[1] ^ key[0];
        counter[1] = low_half(odd);
        counter[2] = high_half(even) ^ counter[3] ^ key[1];
        counter[3] = low_half(even);
        key[0] += 0x9E3779B9U;
        key[1] += 0xBB67AE85U;
    }
    return counter[token % 4];
}

std::int64_t token_of(std::uint64_t key) { return static_cast<std::uint32_t>(key); }

// One row of logits: the results of a scan, and its first tokens in order of their logits. One a thread.
class Row {
public:
    Row(const Kernels& kernels, int cols)
        : kernels_(kernels), cols_(cols), groups_((cols + kSampleGroup - 1) / kSampleGroup) {
        maxima_.resize(static_cast<std::size_t>(groups_) * kLanes);
        tops_.resize(groups_);
    }

    const float* logits = nullptr;
    float highest = 0;
    bool nan = false;

    void scan(const float* row) {
        logits = row;
        nan = kernels_.scan_row(row, cols_, maxima_.data(), tops_.data(), &highest);
        keys_.clear();
    }

    // The largest logit of each group.
    const std::vector<float>& tops() const { return tops_; }

    // The first token with the largest logit.
    std::int64_t best() const {
        const auto group = std::find(tops_.begin(), tops_.end(), highest) - tops_.begin();
        const auto begin = std::min<std::int64_t>(cols_, group * kSampleGroup);
        const auto found = std::find(logits + begin, logits + cols_, highest) - logits;
        return found == cols_ ? 0 : found;
    }

    // Sorts at least the first `count` tokens (all, if there are fewer); returns how many are sorted.
    int order(int count) {
        if (static_cast<int>(keys_.size()) < std::min(count, cols_)) {
            if (!gather(count)) {
                keys_.resize(cols_);
                for (int i = 0; i < cols_; ++i) keys_[i] = key_of(logits[i], i);
            }
            sort_keys();
        }
        return static_cast<int>(keys_.size());
    }

    std::int64_t token(int rank) const { return token_of(keys_[rank]); }
    std::uint64_t key(int rank) const { return keys_[rank]; }

    // Of a token among the sorted ones.
    int rank(std::int64_t token) const {
        return static_cast<int>(std::lower_bound(keys_.begin(), keys_.end(), key_of(logits[token], token)) - keys_.begin());
    }

    // The sum of all weights.
    double weigh(const WeighArgs& args) {
        sums_.resize(groups_);
        kernels_.weigh_row(logits, cols_, args, sums_.data());
        double total = 0;
        for (const double sum : sums_) total += sum;
        return total;
    }

private:
    // Keys of all tokens whose logit is not below some bound: at least `count`, and few more. False where that would
    // not save work. The bound decides how much is sorted, never the result.
    bool gather(int count) {
        float bound;
        const bool few = static_cast<std::size_t>(count) * 4 <= maxima_.size();
        if (nan || static_cast<std::int64_t>(count) * 2 > cols_ ||
            !(few ? find_bound(maxima_.data(), maxima_.size(), count, bound)
                  : find_bound(logits, static_cast<std::size_t>(cols_), count, bound))) {
            return false;
        }
        ids_.resize(cols_);
        const int found = kernels_.collect(logits, cols_, bound, ids_.data());
        keys_.resize(found);
        for (int i = 0; i < found; ++i) keys_[i] = key_of(logits[ids_[i]], ids_[i]);
        return true;
    }

    // A bound that `count` of the values reach, by counting them in steps below the highest.
    bool find_bound(const float* values, std::size_t size, int count, float& bound) {
        std::array<int, kSteps + 1> counts{};
        steps_.resize(size);
        for (std::size_t i = 0; i < size; ++i) {
            const float below = (highest - values[i]) * kStepsPerUnit;
            steps_[i] = below < kSteps ? static_cast<int>(below) : kSteps;  // minus infinity too
        }
        for (const int step : steps_) ++counts[step];
        int last = 0, reached = counts[0];
        while (reached < count && ++last < kSteps) reached += counts[last];
        if (reached < count || last == kSteps) return false;
        bound = highest;
        for (std::size_t i = 0; i < size; ++i) {
            if (steps_[i] <= last) bound = std::min(bound, values[i]);
        }
        return true;
    }

    // Keys come with rising tokens: a stable sort by the logits' half, byte by byte, leaves equal ones in that order.
    void sort_keys() {
        if (keys_.size() < 64) return std::sort(keys_.begin(), keys_.end());
        spare_.resize(keys_.size());
        for (int shift = 32; shift < 64; shift += 8) {
            std::array<std::size_t, 256> starts{};
            for (const auto key : keys_) ++starts[key >> shift & 255];
            if (starts[keys_[0] >> shift & 255] == keys_.size()) continue;  // all the same
            std::size_t start = 0;
            for (auto& place : starts) start += std::exchange(place, start);
            for (const auto key : keys_) spare_[starts[key >> shift & 255]++] = key;
            keys_.swap(spare_);
        }
    }

    const Kernels& kernels_;
    int cols_, groups_;
    std::vector<float> maxima_, tops_;
    std::vector<int> steps_;
    std::vector<std::int32_t> ids_;
    std::vector<double> sums_;
    std::vector<std::uint64_t> keys_, spare_;
};

std::int64_t passes_of(const SampleRules& rules) {
    if (rules.temperature == 0) return 1;
    return rules.top_k != 0 ? kRankedPasses : kDrawPasses;
}

}  // namespace

class Sampler::Drawer {
public:
    Drawer(const Kernels& kernels, int cols) : kernels_(kernels), cols_(cols), row_(kernels, cols) {}

    Sampled sample(const SampleTask& task) {
        const SampleRules& rules = *task.rules;
        row_.scan(task.logits);
        if (row_.nan) return {0, Fault::nan};
        if (std::isinf(row_.highest)) return {0, row_.highest > 0 ? Fault::infinite : Fault::no_logits};
        if (rules.edits(task.position) || task.num_seen != 0 || task.mask != nullptr) {
            edit(task);
            row_.scan(edited_.data());
            if (row_.nan || std::isinf(row_.highest)) {
                const bool nothing = !row_.nan && row_.highest < 0;
                return {0, nothing ? Fault::nothing_left : Fault::infinite};
            }
        }
        if (rules.temperature == 0) return {row_.best(), Fault::none};
        temperature_ = std::max(rules.temperature, kColdest);
        log_min_p_ = rules.log_min_p;
        noise_ = {{low_half(rules.seed), high_half(rules.seed)}, {low_half(task.position), high_half(task.position)}};
        if (rules.top_k != 0) return {draw_ranked(rules), Fault::none};
        if (rules.top_p < 1) return {draw_nucleus(rules.top_p), Fault::none};
        return {draw(kAll), Fault::none};
    }

    void logprobs(const LogprobTask& task, std::vector<Likely>& out) {
        row_.scan(task.logits);
        const double highest = row_.highest;
        temperature_ = 1;
        const double log_total = highest + std::log(total_weight());
        const float chosen = task.logits[task.token];
        std::int64_t greater = 0;
        for (int i = 0; i < cols_; ++i) greater += task.logits[i] > chosen ? 1 : 0;
        out.push_back({task.token, chosen - log_total, greater + 1});
        if (task.top == 0) return;
        const int count = std::min({task.top, row_.order(task.top), cols_});
        std::int64_t rank = 1;
        for (int at = 0; at < count; ++at) {
            const std::int64_t token = row_.token(at);
            const float logit = task.logits[token];
            if (at > 0 && task.logits[row_.token(at - 1)] > logit) rank = at + 1;
            out.push_back({token, logit - log_total, rank});
        }
    }

private:
    void edit(const SampleTask& task) {
        const SampleRules& rules = *task.rules;
        const float* from = task.logits;
        if (task.mask != nullptr) {
            apply_mask(task);
            from = edited_.data();
        }
        if (rules.limited) {
            spare_.assign(cols_, kNever);
            for (const auto token : rules.allowed) spare_[token] = from[token];
            edited_.swap(spare_);
        } else if (task.mask == nullptr) {
            edited_.assign(from, from + cols_);
        }
        for (const auto token : rules.banned) edited_[token] = kNever;
        if (task.position < rules.min_tokens) {
            for (const auto token : rules.stop_ids) edited_[token] = kNever;
        }
        for (const auto& [token, bias] : rules.bias) edited_[token] += bias;
        for (std::size_t i = 0; i < task.num_seen; ++i) {
            float& logit = edited_[task.seen[i]];
            logit = logit > 0 ? logit / rules.repetition_penalty : logit * rules.repetition_penalty;
            logit -= task.penalties[i];
        }
    }

    void apply_mask(const SampleTask& task) {
        edited_.assign(cols_, kNever);
        const int words = std::min<int>((cols_ + 31) / 32, static_cast<int>(task.mask_words));
        for (int word = 0; word < words; ++word) {
            const int begin = word * 32, count = std::min(32, cols_ - begin);
            std::uint32_t bits = task.mask[word];
            if (bits == ~std::uint32_t{0}) {
                std::copy(task.logits + begin, task.logits + begin + count, edited_.begin() + begin);
                continue;
            }
            for (; bits != 0; bits &= bits - 1) {
                const int token = begin + std::countr_zero(bits);
                if (token < cols_) edited_[token] = task.logits[token];
            }
        }
    }

    // What the noise is added to: how far the token's logit lies below the highest one, over the temperature.
    double scaled(float logit) const { return (static_cast<double>(logit) - row_.highest) / temperature_; }

    double weight(std::int64_t token) const {
        const double z = scaled(row_.logits[token]);
        return z < log_min_p_ ? 0 : std::exp(z);
    }

    // The sum of the weights of all logits that lie at most -floor below the highest; relative error: kWeightError.
    double total_weight(double floor = kNever) {
        return row_.weigh({static_cast<float>(1 / temperature_), row_.highest, static_cast<float>(floor)});
    }

    // Of the tokens that min_p keeps, the same on every instruction set.
    double exact_weight() const {
        double total = 0;
        for (int token = 0; token < cols_; ++token) total += weight(token);
        return total;
    }

    // The token with the largest sum of scaled logit and noise, the lowest id among equals, of those that min_p keeps and
    // whose key is at most `last`. Every logarithm that could matter is computed in double precision; for each group of
    // logits, its largest one and the best sum so far say which words of the noise could.
    std::int64_t draw(std::uint64_t last) {
        std::int64_t winner = row_.best();
        double best = gumbel(noise_word(noise_, static_cast<std::uint32_t>(winner)));
        const double floor = last == kAll ? log_min_p_ : std::max(log_min_p_, scaled(row_.logits[token_of(last)]));
        for (std::size_t group = 0; group < row_.tops().size(); ++group) {
            const double top = scaled(row_.tops()[group]);
            if (top < floor || top + kMostNoise < best) continue;
            const int begin = static_cast<int>(group) * kSampleGroup, end = std::min(cols_, begin + kSampleGroup);
            const int found = kernels_.noise(noise_, static_cast<std::uint32_t>(begin / 4), (end - begin + 3) / 4,
                                             kLeastWords.above(best - top), tokens_, words_);
            for (int i = 0; i < found; ++i) {
                const std::int64_t token = tokens_[i];
                if (token >= cols_) continue;
                const float logit = row_.logits[token];
                const double z = scaled(logit);
                if (z < floor || words_[i] < kLeastWords.above(best - z) || key_of(logit, token) > last) continue;
                const double sum = z + gumbel(words_[i]);
                if (sum > best || (sum == best && token < winner)) {
                    best = sum;
                    winner = token;
                }
            }
        }
        return winner;
    }

    // The same of the first `end` tokens in order, which are sorted.
    std::int64_t draw_first(int end) {
        if (end > kFewRanks) return draw(row_.key(end - 1));
        std::int64_t winner = row_.token(0);
        double best = gumbel(noise_word(noise_, static_cast<std::uint32_t>(winner)));
        for (int rank = 1; rank < end; ++rank) {
            const std::int64_t token = row_.token(rank);
            const double z = scaled(row_.logits[token]);
            if (z < log_min_p_ || z + kMostNoise < best) break;  // and none after it is better
            const std::uint32_t word = noise_word(noise_, static_cast<std::uint32_t>(token));
            if (word < kLeastWords.above(best - z)) continue;
            const double sum = z + gumbel(word);
            if (sum > best || (sum == best && token < winner)) {
                best = sum;
                winner = token;
            }
        }
        return winner;
    }

    // From the first top_k in order, of them the shortest prefix whose mass reaches top_p.
    std::int64_t draw_ranked(const SampleRules& rules) {
        row_.order(rules.top_k);
        if (rules.top_p >= 1) return draw_first(rules.top_k);
        weigh_ranks(rules.top_k);
        double total = 0;
        for (const double weight : weights_) total += weight;
        return draw_first(ranks_before(rules.top_p, total));
    }

    // From the shortest prefix whose mass, measured over the whole vocabulary, reaches top_p. What wins among more
    // tokens and lies in that prefix wins in it too: so a wide one need not be known, nor where exactly one ends.
    std::int64_t draw_nucleus(double top_p) {
        const bool exact = log_min_p_ > kNever;  // at the edge of min_p a rounding error counts a whole token or not
        const double total = exact ? exact_weight() : total_weight(), error = exact ? 0 : kWeightError;
        for (int width = kFirstRanks;; width *= kWiden) {
            const int known = row_.order(width);
            weigh_ranks(known);
            const int most = ranks_before(top_p * (1 + error), total);
            if (most < known || known == cols_) {
                const std::int64_t winner = draw_first(most);
                if (exact || row_.rank(winner) < ranks_before(top_p * (1 - error), total)) return winner;
                return draw_first(ranks_before(top_p, exact_weight()));
            }
            if (width > kFirstRanks) continue;
            const std::int64_t winner = draw(kAll);
            const double z = scaled(row_.logits[winner]);
            if (total_weight(z - kWeightError * (1 - z)) < top_p * (1 - kWeightError) * total) return winner;
        }
    }

    void weigh_ranks(int end) {
        weights_.resize(end);
        for (int rank = 0; rank < end; ++rank) weights_[rank] = weight(row_.token(rank));
    }

    // How many of weights_ come before the sum of their shares in `total` reaches top_p, what crosses it included; at least 1.
    int ranks_before(double top_p, double total) const {
        double running = 0;
        for (std::size_t rank = 0; rank < weights_.size(); ++rank) {
            running += weights_[rank] / total;
            if (running >= top_p) return static_cast<int>(rank) + 1;
        }
        return static_cast<int>(weights_.size());
    }

    const Kernels& kernels_;
    int cols_;
    Row row_;
    double temperature_ = 1, log_min_p_ = kNever;
    NoiseArgs noise_;
    std::vector<float> edited_, spare_;
    std::vector<double> weights_;
    std::int32_t tokens_[kSampleGroup];
    std::uint32_t words_[kSampleGroup];
};

std::uint32_t noise_word(std::uint64_t seed, std::uint64_t position, std::uint32_t token) {
    return noise_word({{low_half(seed), high_half(seed)}, {low_half(position), high_half(position)}}, token);
}

double gumbel(std::uint32_t word) {
    return -std::log(-std::log((static_cast<double>(word) + 0.5) * 0x1p-32));
}

struct Sampler::Desk {
    std::mutex busy;
    std::vector<std::unique_ptr<Drawer>> drawers;
};

Sampler::Sampler(const Kernels& kernels, Team& team, int vocab_size)
    : kernels_(kernels), team_(team), vocab_size_(vocab_size), desk_(make()) {}

Sampler::~Sampler() = default;

Sampler::Desk* Sampler::make() const {
    auto desk = std::make_unique<Desk>();
    for (int i = 0; i < team_.size(); ++i) desk->drawers.push_back(std::make_unique<Drawer>(kernels_, vocab_size_));
    return desk.release();
}

// Calls body(drawer, index) for each of `count` rows, on the whole team if that is much work.
template <typename F>
void Sampler::for_rows(std::size_t count, std::int64_t passes, F&& body) {
    Desk& desk = desk_.get([this] { return make(); });
    const std::lock_guard lock(desk.busy);
    std::atomic<std::size_t> next{0};
    auto work = [&](int thread, int) {
        for (std::size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) body(*desk.drawers[thread], i);
    };
    if (count > 1 && passes * vocab_size_ >= kParallel) {
        team_.run(work);
    } else {
        work(0, 1);
    }
}

void Sampler::sample(const std::vector<SampleTask>& tasks, Sampled* out) {
    std::int64_t passes = 0;
    for (const SampleTask& task : tasks) passes += passes_of(*task.rules);
    for_rows(tasks.size(), passes, [&](Drawer& drawer, std::size_t i) { out[i] = drawer.sample(tasks[i]); });
}

void Sampler::logprobs(const std::vector<LogprobTask>& tasks, std::vector<Likely>* out) {
    const auto passes = static_cast<std::int64_t>(tasks.size()) * kLogprobPasses;
    for_rows(tasks.size(), passes, [&](Drawer& drawer, std::size_t i) { drawer.logprobs(tasks[i], out[i]); });
}

}  // namespace headrace
