// The sampler: every kind of rule, on the caller and on the team.
#include <cmath>
#include <vector>

#include "../sampler.h"
#include "driver.h"

namespace headrace::driver {

void run_sampling(const Kernels& kernels, const Teams& teams) {
    constexpr int kVocab = 5003;
    Noise noise(3);
    Guarded<float> logits(kVocab);
    logits.fill(noise);
    SampleRules plain;
    plain.vocab_size = kVocab;
    plain.log_min_p = -INFINITY;
    std::vector<SampleRules> rules(7, plain);
    rules[0].temperature = 0;
    rules[1].top_k = 50;
    rules[2].top_p = 0.9;
    rules[3].log_min_p = std::log(0.1);
    rules[4].top_k = 4000;
    rules[4].top_p = 0.5;
    rules[5].limited = true;
    rules[5].allowed = {1, 4, kVocab - 1};
    rules[6].banned = {0, kVocab - 1};
    rules[6].bias = {{5, 3.0F}};
    Guarded<std::int64_t> seen(2);
    seen[0] = 0;
    seen[1] = kVocab - 1;
    Guarded<float> penalties(2);
    penalties.fill(0.5F);
    Guarded<std::uint32_t> mask((kVocab + 31) / 32);
    mask.fill(0x0ff0f00fU);
    // As many rows as make the sampler wake the team; every other one of a few has tokens seen or a mask.
    std::vector<SampleTask> tasks(600);
    std::vector<LogprobTask> asked(300);
    for (std::size_t i = 0; i < tasks.size(); ++i) {
        tasks[i] = {.logits = logits.data(), .rules = &rules[i % rules.size()], .position = i};
        if (i % 5 == 0) tasks[i].seen = seen.data(), tasks[i].penalties = penalties.data(), tasks[i].num_seen = 2;
        if (i % 5 == 1) tasks[i].mask = mask.data(), tasks[i].mask_words = mask.size();
    }
    for (std::size_t i = 0; i < asked.size(); ++i) asked[i] = {logits.data(), static_cast<std::int64_t>(i), static_cast<int>(i % 30)};
    std::vector<Sampled> tokens[2];
    for (int turn = 0; turn < 2; ++turn) {
        Sampler sampler(kernels, turn == 0 ? teams.one : teams.many, kVocab);
        tokens[turn].resize(tasks.size());
        sampler.sample(tasks, tokens[turn].data());
        std::vector<std::vector<Likely>> likely(asked.size());
        sampler.logprobs(asked, likely.data());
    }
    for (std::size_t i = 0; i < tasks.size(); ++i) {
        require(tokens[0][i].token == tokens[1][i].token, "tokens do not depend on threads", kernels.name);
        require(tokens[0][i].token >= 0 && tokens[0][i].token < kVocab, "a token is in the vocabulary", kernels.name);
    }
}

}  // namespace headrace::driver
