// Eviction: what is known when the tape is made, and what a step adds.
#include "bound_tape.h"

namespace nb = nanobind;

namespace headrace {
namespace {

void set_eviction(BoundTape& self, int budget, int sinks, int recent, int most, int longest) {
    self.tape.evict({budget, sinks, recent, most, longest});
}

void append_evict(BoundTape& self, int q, int cache, int num_heads, float scale, float soft_cap, std::optional<Floats> learned_sinks, int layer) {
    const Cache& from = at(self.caches, cache);
    require(!from.kv.latent() && from.kv.type != DType::i4, "tokens of a latent cache, or of one of i4, cannot be moved");
    require(self.tape.eviction().budget > 0, "the sizes of eviction come before its calls");
    EvictArgs args;
    args.q = self.queries_of(q, num_heads, from).data;
    args.kv = from.kv;
    args.group = from.group;
    args.num_heads = num_heads;
    args.scale = scale;
    args.soft_cap = soft_cap;
    if (learned_sinks) {
        require(static_cast<int>(learned_sinks->size()) == num_heads, "there is one learned sink a head");
        args.learned_sinks = learned_sinks->data();
        self.keep(*learned_sinks);
    }
    self.tape.append(args, Scope::tokens, "evict", layer);
}

}  // namespace

void add_evicted(BoundTape& self, const EvictedTokens& evicted, int seqs) {
    require(evicted.size() == self.tables.size(), "evicted tokens differ in number from KV groups");
    for (std::size_t g = 0; g < evicted.size(); ++g) {
        if (!evicted[g]) continue;
        require(static_cast<int>(evicted[g]->size()) == seqs, "evicted tokens differ in number from sequences");
        self.tables[g].evicted = evicted[g]->data();
    }
}

void add_observed(BoundTape& self, const ObservedRows& observed, Step& step) {
    const auto& [rows, targets] = observed;
    require(rows.shape(1) == 5 && targets.size() == self.tables.size(), "observed sequences have five numbers, and targets in each KV group");
    self.observed.clear();
    for (std::size_t o = 0; o < rows.shape(0); ++o) {
        const std::int32_t* one = rows.data() + 5 * o;
        self.observed.push_back({one[0], one[1], one[2], one[3] != 0, one[4] != 0});
    }
    for (std::size_t g = 0; g < targets.size(); ++g) {
        if (!targets[g]) continue;
        require(targets[g]->shape(0) == rows.shape(0), "targets differ in number from observed sequences");
        self.tables[g].targets = targets[g]->data();
        self.tables[g].target_width = static_cast<int>(targets[g]->shape(1));
    }
    step.num_observed = static_cast<int>(self.observed.size());
    step.observed = self.observed.data();
}

void bind_eviction(nb::class_<BoundTape>& tape) {
    using namespace nb::literals;
    tape.def("set_eviction", &set_eviction, nb::kw_only(), "budget"_a, "sinks"_a, "recent"_a, "most"_a, "longest"_a)
        .def("evict", &append_evict, "q"_a, "cache"_a, nb::kw_only(), "num_heads"_a, "scale"_a, "soft_cap"_a = 0.0F,
             "learned_sinks"_a.noconvert() = nb::none(), "layer"_a = -1);
}

}  // namespace headrace
