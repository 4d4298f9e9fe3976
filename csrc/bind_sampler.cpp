#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <stdexcept>
#include <tuple>

#include "bindings.h"
#include "sampler.h"

namespace nb = nanobind;

namespace headrace {
namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Ids = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Amounts = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Tokens = std::vector<std::int32_t>;
using Bits = nb::ndarray<const std::uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Masks = std::optional<std::tuple<Bits, std::vector<std::int64_t>>>;
using Entry = std::tuple<std::int64_t, double, std::int64_t>;

void check_tokens(const Tokens& tokens, int vocab_size) {
    for (const auto token : tokens) {
        if (token < 0 || token >= vocab_size) throw nb::value_error("a token id lies outside the vocabulary");
    }
}

SampleRules make_rules(int vocab_size, double temperature, int top_k, double top_p, double min_p,
                       float repetition_penalty, std::uint64_t seed, std::uint64_t min_tokens, Tokens stop_ids,
                       std::optional<Tokens> allowed, Tokens banned, Tokens bias_ids, std::vector<float> biases) {
    for (const Tokens* tokens : {&stop_ids, &banned, &bias_ids}) check_tokens(*tokens, vocab_size);
    if (allowed) check_tokens(*allowed, vocab_size);
    if (bias_ids.size() != biases.size()) throw nb::value_error("every biased token needs one bias");
    SampleRules rules;
    rules.vocab_size = vocab_size;
    rules.temperature = temperature;
    rules.log_min_p = std::log(min_p);  // of 0: -infinity
    rules.top_k = top_k > 0 && top_k < vocab_size ? top_k : 0;
    rules.top_p = top_p;
    rules.repetition_penalty = repetition_penalty;
    rules.seed = seed;
    rules.min_tokens = min_tokens;
    rules.limited = allowed.has_value();
    if (allowed) rules.allowed = std::move(*allowed);
    rules.banned = std::move(banned);
    rules.stop_ids = std::move(stop_ids);
    for (std::size_t i = 0; i < biases.size(); ++i) rules.bias.emplace_back(bias_ids[i], biases[i]);
    return rules;
}

// The rows of `logits` named by `at`, or all of them.
std::vector<const float*> rows_of(const Logits& logits, const std::optional<std::vector<std::int64_t>>& at,
                                  std::size_t count, int vocab_size) {
    const auto rows = static_cast<std::int64_t>(logits.shape(0));
    if (static_cast<int>(logits.shape(1)) != vocab_size || (logits.shape(1) > 1 && logits.stride(1) != 1)) {
        throw nb::value_error("logits must be float32 rows of the vocabulary's size");
    }
    if ((at ? at->size() : static_cast<std::size_t>(rows)) != count) {
        throw nb::value_error("every row to sample needs one row of logits");
    }
    std::vector<const float*> found(count);
    for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t row = at ? (*at)[i] : static_cast<std::int64_t>(i);
        if (row < 0 || row >= rows) throw nb::value_error("a row lies outside the logits");
        found[i] = logits.data() + row * logits.stride(0);
    }
    return found;
}

using Seen = std::optional<std::tuple<Ids, Amounts>>;

void set_masks(std::vector<SampleTask>& tasks, const Bits& bits, const std::vector<std::int64_t>& rows) {
    if (rows.size() != tasks.size()) throw nb::value_error("every row to sample needs one mask, or -1");
    for (std::size_t i = 0; i < tasks.size(); ++i) {
        if (rows[i] < 0) continue;
        if (rows[i] >= static_cast<std::int64_t>(bits.shape(0))) throw nb::value_error("a mask lies outside the masks");
        tasks[i].mask = bits.data() + rows[i] * bits.shape(1);
        tasks[i].mask_words = bits.shape(1);
    }
}

std::tuple<std::vector<std::int64_t>, std::vector<std::tuple<std::size_t, int>>> sample(
    Sampler& self, const Logits& logits, nb::list rules, const std::vector<std::uint64_t>& positions,
    const std::vector<Seen>& seen, const std::optional<std::vector<std::int64_t>>& at, const Masks& masks) {
    const std::size_t count = rules.size();
    const auto rows = rows_of(logits, at, count, self.vocab_size());
    if (positions.size() != count || (!seen.empty() && seen.size() != count)) {
        throw nb::value_error("every row to sample needs one position, and tokens seen or none");
    }
    std::vector<SampleTask> tasks(count);
    for (std::size_t i = 0; i < count; ++i) {
        tasks[i].logits = rows[i];
        tasks[i].rules = nb::cast<const SampleRules*>(rules[i]);
        tasks[i].position = positions[i];
        if (tasks[i].rules == nullptr || tasks[i].rules->vocab_size != self.vocab_size()) {
            throw nb::value_error("rules are for another vocabulary");
        }
        if (seen.empty() || !seen[i]) continue;
        const auto& [ids, amounts] = *seen[i];
        if (ids.shape(0) != amounts.shape(0)) throw nb::value_error("every token seen needs one penalty");
        for (std::size_t j = 0; j < ids.shape(0); ++j) {
            if (ids(j) < 0 || ids(j) >= self.vocab_size()) throw nb::value_error("a token id lies outside the vocabulary");
        }
        tasks[i].seen = ids.data();
        tasks[i].penalties = amounts.data();
        tasks[i].num_seen = ids.shape(0);
    }
    if (masks) set_masks(tasks, std::get<0>(*masks), std::get<1>(*masks));
    std::vector<Sampled> sampled(count);
    {
        nb::gil_scoped_release release;
        self.sample(tasks, sampled.data());
    }
    std::vector<std::int64_t> tokens(count);
    std::vector<std::tuple<std::size_t, int>> faults;
    for (std::size_t i = 0; i < count; ++i) {
        tokens[i] = sampled[i].token;
        if (sampled[i].fault != Fault::none) faults.emplace_back(i, static_cast<int>(sampled[i].fault));
    }
    return {std::move(tokens), std::move(faults)};
}

std::vector<std::vector<Entry>> logprobs(Sampler& self, const Logits& logits, const std::vector<std::int64_t>& at,
                                         const std::vector<std::int64_t>& tokens, const std::vector<int>& counts) {
    const auto rows = rows_of(logits, at, tokens.size(), self.vocab_size());
    if (counts.size() != tokens.size()) throw nb::value_error("every token needs a number of likely ones");
    std::vector<LogprobTask> tasks(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] < 0 || tokens[i] >= self.vocab_size() || counts[i] < 0) {
            throw nb::value_error("a token id lies outside the vocabulary");
        }
        tasks[i] = {rows[i], tokens[i], counts[i]};
    }
    std::vector<std::vector<Likely>> found(tokens.size());
    {
        nb::gil_scoped_release release;
        self.logprobs(tasks, found.data());
    }
    std::vector<std::vector<Entry>> entries(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        for (const Likely& one : found[i]) entries[i].emplace_back(one.token, one.logprob, one.rank);
    }
    return entries;
}

}  // namespace

void bind_sampler(nb::module_& m) {
    m.def("gumbel", [](std::uint64_t seed, std::uint64_t position, std::uint32_t token) {
        return gumbel(noise_word(seed, position, token));
    }, nb::arg("seed"), nb::arg("position"), nb::arg("token"));
    nb::class_<SampleRules>(m, "SampleRules")
        .def(
            "__init__",
            [](SampleRules* self, int vocab_size, double temperature, int top_k, double top_p, double min_p,
               float repetition_penalty, std::uint64_t seed, std::uint64_t min_tokens, Tokens stop_ids,
               std::optional<Tokens> allowed, Tokens banned, Tokens bias_ids, std::vector<float> biases) {
                new (self) SampleRules(make_rules(vocab_size, temperature, top_k, top_p, min_p, repetition_penalty,
                                                  seed, min_tokens, std::move(stop_ids), std::move(allowed),
                                                  std::move(banned), std::move(bias_ids), std::move(biases)));
            },
            nb::arg("vocab_size"), nb::kw_only(), nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"),
            nb::arg("min_p"), nb::arg("repetition_penalty"), nb::arg("seed"), nb::arg("min_tokens"),
            nb::arg("stop_ids"), nb::arg("allowed").none(), nb::arg("banned"), nb::arg("bias_ids"),
            nb::arg("biases"));
    nb::class_<Sampler>(m, "Sampler")
        .def(
            "__init__",
            [](Sampler* self, const KernelSet& kernels, Team& team, int vocab_size) {
                if (vocab_size < 1) throw nb::value_error("a vocabulary has at least one token");
                new (self) Sampler(*kernels.table, team, vocab_size);
            },
            nb::arg("kernels"), nb::arg("team"), nb::arg("vocab_size"), nb::keep_alive<1, 3>())
        .def("sample", &sample, nb::arg("logits"), nb::arg("rules"), nb::arg("positions"), nb::arg("seen"),
             nb::arg("at").none(), nb::arg("masks").none() = nb::none())
        .def("logprobs", &logprobs, nb::arg("logits"), nb::arg("at"), nb::arg("tokens"), nb::arg("counts"));
}

}  // namespace headrace
