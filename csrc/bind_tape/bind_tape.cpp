// A tape as a Python class: its memory, and its steps. The calls that it replays are bound by kind, see bound_tape.h.
#include "bound_tape.h"

namespace nb = nanobind;

namespace headrace {
namespace {

using Ints = Array<const std::int32_t>;
using Longs = Array<const std::int64_t>;
using Logits = nb::ndarray<nb::numpy, float, nb::ndim<2>>;
using Group = std::tuple<Array<const std::int32_t, 2>, Ints, Longs>;       // block tables, dropped, slots
using States = std::tuple<Ints, Ints, Ints, Ints>;                         // sources, firsts, counts, slots
using More = std::tuple<Ints, std::vector<Longs>>;                         // firsts, and the slots of each group
using Final = std::tuple<int, Vectors, bool, double, Array<float, 2>>;  // residual stream, final norm, is it centred, its eps, output

int add_group(BoundTape& self, int block_size, int num_blocks, int sink_blocks) {
    require(block_size > 0 && num_blocks > 0 && sink_blocks >= 0, "a KV group needs blocks");
    self.groups.push_back({block_size, num_blocks, sink_blocks});
    return self.tape.add_group(self.groups.back());
}

int add_rows(BoundTape& self, const std::string& type, int cols, int group, int each) {
    require(cols > 0 && group >= 0, "rows need columns");
    require(each >= 1 && each <= kMaxChoices, "a row has between one and 64 routed rows");
    self.each.push_back(each);
    return add(self.buffers, self.tape.rows(dtype_of(type), cols, group, each));
}

int add_routing(BoundTape& self, int experts, int each) {
    require(experts >= 1 && experts <= kMaxExperts, "there are between one and 4096 experts");
    require(each >= 1 && each <= kMaxChoices && each <= experts, "a row has between one and 64 of the experts");
    return add(self.routings, self.tape.routing(experts, each));
}

int add_queries(BoundTape& self, const std::string& type, int features) {
    require(features > 0, "queries have features");
    Rows rows;
    rows.type = dtype_of(type);
    rows.stride = static_cast<std::size_t>(features) * dtype_bytes(rows.type);
    rows.data = self.tape.bytes_per_token(rows.stride);
    self.each.push_back(1);
    return add(self.buffers, rows);
}

// Without keys, and their scales, it is a latent cache: the values are the first value_dim features of its rows.
int add_kv(BoundTape& self, int group, const std::string& type, std::optional<Memory> keys, const Memory& values, int num_kv_heads,
           int head_dim, int value_dim, std::optional<Memory> key_scales, std::optional<Memory> value_scales, std::optional<int> recent) {
    const KVGroup& of = at(self.groups, group);
    KVCache kv;
    kv.type = dtype_of(type);
    kv.keys = keys ? keys->data() : nullptr;
    kv.values = values.data();
    kv.num_kv_heads = num_kv_heads;
    kv.head_dim = head_dim;
    kv.value_dim = value_dim;
    kv.block_size = of.block_size;
    kv.block_stride = (of.block_size + 15) / 16 * 16;
    require(num_kv_heads > 0, "a KV cache has heads");
    require(head_dim > 0 && head_dim % 16 == 0 && head_dim <= kMaxHeadDim,
            "head_dim must be a multiple of 16 and at most 1024");
    require(keys ? value_dim == head_dim : num_kv_heads == 1 && value_dim > 0 && value_dim % 16 == 0 && value_dim < head_dim,
            "values that are part of keys are fewer features, a multiple of 16, of one head");
    const std::size_t positions = std::size_t(of.num_blocks) * num_kv_heads * kv.block_stride;
    const std::size_t bytes = bytes_of(kv.type, positions * head_dim);
    require((!keys || keys->nbytes() >= bytes) && values.nbytes() >= bytes, "the KV memory is too small for its blocks");
    if (keys) self.keep(*keys);
    self.keep(values);
    if (is_coded(kv.type)) {
        require(value_scales && key_scales.has_value() == keys.has_value(), "a KV cache of codes needs scales");
        const Memory& of_keys = keys ? *key_scales : *value_scales;
        const bool nibbles = kv.type == DType::i4;
        const std::size_t key_bytes = nibbles ? positions / kv.block_stride * head_dim * 4 : positions * 4;
        require(of_keys.nbytes() >= key_bytes && value_scales->nbytes() >= positions * (nibbles ? 2 : 4),
                "the KV scales are too small for their blocks");
        kv.key_scales = of_keys.data();
        kv.value_scales = value_scales->data();
        self.keep(of_keys);
        self.keep(*value_scales);
    }
    require(recent.has_value() == (kv.type == DType::i4), "an i4 KV cache, and no other, has a cache of recent blocks");
    if (recent) {
        const Cache& wide = at(self.caches, *recent);
        require(!kv.latent() && kv.block_size % kPanel == 0 && kv.block_size <= 64, "blocks of an i4 KV cache hold 16, 32, 48 or 64 positions");
        require(wide.kv.type == DType::bf16 && wide.kv.block_size == kv.block_size && wide.kv.head_dim == head_dim &&
                    wide.kv.num_kv_heads == num_kv_heads && wide.kv.value_dim == value_dim && at(self.groups, wide.group).sink_blocks == 0,
                "the cache of recent blocks is of bf16, and of the same sizes");
        kv.recent_keys = wide.kv.keys;
        kv.recent_values = wide.kv.values;
        kv.recent_group = wide.group;
    }
    return add(self.caches, Cache{kv, group});
}

int add_states(BoundTape& self, int slots) {
    require(slots > 0, "a group of states needs slots");
    self.slots.push_back(slots);
    return self.tape.add_states(slots);
}

// One part of the states of one layer: `floats` for each slot.
int add_state(BoundTape& self, int group, const Memory& memory, std::int64_t floats) {
    const int slots = at(self.slots, group);
    require(floats > 0 && memory.nbytes() / sizeof(float) / slots >= static_cast<std::size_t>(floats),
            "the memory of states is too small for its slots");
    self.keep(memory);
    return add(self.states, StateMemory{slots, group, static_cast<float*>(memory.data()), static_cast<std::size_t>(floats)});
}

// The final norm of the last wanted rows, which are in the residual stream after the layers have run.
EncodeArgs final_norm_of(const BoundTape& self, const Final& asked, const Step& step) {
    const auto& [source, norm, centred, eps, out] = asked;
    require(!norm.empty(), "hidden states are normalised");
    const Rows& from = at(self.buffers, source);
    EncodeArgs args;
    args.cols = static_cast<int>(norm[0].size());
    args.cols_padded = (args.cols + 15) / 16 * 16;
    require(step.logits >= 0, "there are more hidden states than wanted rows");
    require(from.type == DType::f32 && from.stride >= args.cols * sizeof(float), "hidden states are rows of f32");
    require(static_cast<int>(out.shape(1)) == args.cols_padded, "hidden states have columns rounded up to 16");
    args.in = static_cast<const float*>(from.data) + step.logits * (from.stride / sizeof(float));
    args.in_stride = from.stride;
    args.norm = viewed(norm, centred, static_cast<float>(eps), args.cols);
    args.rows = step.wanted - step.logits;
    args.out.data = out.data();
    args.out.stride = args.cols_padded * sizeof(float);
    return args;
}

// Where else the keys and values of tokens go, see Step::more; after the tables of the groups.
void add_more(BoundTape& self, const More& more, Step& step) {
    const auto& [firsts, slots] = more;
    require(static_cast<int>(firsts.size()) == step.tokens + 1 && slots.size() == self.tables.size(),
            "more slots differ in number from tokens or KV groups");
    step.more = firsts.data();
    for (std::size_t g = 0; g < slots.size(); ++g) {
        require(static_cast<std::int64_t>(slots[g].size()) == step.more[step.tokens], "more slots differ in number");
        self.tables[g].more_slots = slots[g].data();
    }
}

Logits run(BoundTape& self, const Longs& ids, const Longs& positions, const Ints& cu_q, const Ints& kv_lens,
           const std::vector<Group>& groups, const Longs& wanted_rows, std::optional<Array<std::int64_t>> best,
           const std::optional<Final>& hidden, const std::vector<States>& states, const std::optional<More>& more,
           const std::optional<EvictedTokens>& evicted, const std::optional<ObservedRows>& observed) {
    Step step;
    step.tokens = static_cast<int>(ids.size());
    step.seqs = static_cast<int>(kv_lens.size());
    step.wanted = static_cast<int>(wanted_rows.size());
    step.logits = step.wanted - (hidden ? static_cast<int>(std::get<4>(*hidden).shape(0)) : 0);
    step.ids = ids.data();
    step.positions = positions.data();
    step.cu_q = cu_q.data();
    step.kv_lens = kv_lens.data();
    step.wanted_rows = wanted_rows.data();
    require(positions.size() == ids.size() && cu_q.size() == kv_lens.size() + 1, "a step's arrays differ in length");
    require(groups.size() == self.groups.size(), "a step has one table for each KV group");
    self.tables.clear();
    for (std::size_t g = 0; g < groups.size(); ++g) {
        const auto& [blocks, dropped, slots] = groups[g];
        require(blocks.shape(0) == kv_lens.size() && dropped.size() == kv_lens.size() && slots.size() == ids.size(),
                "the arrays of a KV group differ in length from the step's");
        self.tables.push_back({blocks.data(), dropped.data(), slots.data(), static_cast<int>(blocks.shape(1)),
                           self.groups[g].sink_blocks});
    }
    if (more) add_more(self, *more, step);
    if (evicted) add_evicted(self, *evicted, step.seqs);
    if (observed) add_observed(self, *observed, step);
    step.groups = self.tables.data();
    require(states.size() == self.slots.size(), "a step has one table for each group of states");
    self.moves.clear();
    for (const auto& [sources, firsts, counts, slots] : states) {
        require(sources.size() == kv_lens.size() && firsts.size() == kv_lens.size() + 1 && counts.size() == slots.size() &&
                    firsts.data()[0] == 0 && firsts.data()[kv_lens.size()] == static_cast<std::int32_t>(slots.size()),
                "the arrays of a group of states differ in length from the step's");
        self.moves.push_back({sources.data(), firsts.data(), counts.data(), slots.data()});
    }
    step.states = self.moves.data();
    require(!best || static_cast<int>(best->size()) == step.logits, "there is one best token a row of logits");
    const EncodeArgs final_norm = hidden ? final_norm_of(self, *hidden, step) : EncodeArgs{};
    {
        const nb::gil_scoped_release released;
        self.tape.run(step);
        if (best) {
            const std::size_t stride = self.tape.sizes().vocab * sizeof(float);
            self.kernels.argmax({self.tape.logits_buffer(), stride, step.logits, self.tape.sizes().vocab, best->data()}, self.team);
        }
        if (hidden) self.kernels.encode(final_norm, self.team);
    }
    const std::size_t shape[] = {static_cast<std::size_t>(step.logits), static_cast<std::size_t>(self.tape.sizes().vocab)};
    return Logits(self.tape.logits_buffer(), 2, shape, nb::find(&self));
}

std::vector<std::tuple<std::string, int, double, double, double>> costs(BoundTape& self) {
    std::vector<std::tuple<std::string, int, double, double, double>> rows;
    for (const Instruction& one : self.tape.instructions()) {
        rows.emplace_back(one.name, one.layer, one.nanoseconds * 1e-9, one.bytes, one.operations);
    }
    return rows;
}

}  // namespace

void bind_tape(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<BoundTape> tape(m, "Tape");
    tape.def(nb::init<const KernelSet&, Team&, int, int, int, int>(), "kernels"_a, "team"_a, nb::kw_only(),
             "max_tokens"_a, "max_seqs"_a, "max_logits"_a, "vocab_size"_a, nb::keep_alive<1, 3>())
        .def("add_group", &add_group, nb::kw_only(), "block_size"_a, "num_blocks"_a, "sink_blocks"_a)
        .def("add_rows", &add_rows, "type"_a, "cols"_a, "group"_a = 0, "each"_a = 1)
        .def("add_queries", &add_queries, "type"_a, "features"_a)
        .def("add_routing", &add_routing, "experts"_a, "each"_a)
        .def("add_kv", &add_kv, "group"_a, "type"_a, "keys"_a.noconvert().none(), "values"_a.noconvert(),
             nb::kw_only(), "num_kv_heads"_a, "head_dim"_a, "value_dim"_a, "key_scales"_a.noconvert() = nb::none(),
             "value_scales"_a.noconvert() = nb::none(), "recent"_a = nb::none())
        .def("add_states", &add_states, "slots"_a)
        .def("add_state", &add_state, "group"_a, "memory"_a.noconvert(), "floats"_a)
        .def("run", &run, "ids"_a.noconvert(), "positions"_a.noconvert(), "cu_q"_a.noconvert(),
             "kv_lens"_a.noconvert(), "groups"_a, "wanted_rows"_a.noconvert(), "best"_a.noconvert() = nb::none(),
             "hidden"_a.noconvert() = nb::none(), "states"_a.noconvert() = std::vector<States>(),
             "more"_a.noconvert() = nb::none(), "evicted"_a.noconvert() = nb::none(), "observed"_a.noconvert() = nb::none())
        .def("profile", [](BoundTape& self, bool on) { self.tape.profile(on); }, "on"_a)
        .def("clear_costs", [](BoundTape& self) { self.tape.clear_profile(); })
        .def("costs", &costs)
        .def_prop_ro("nbytes", [](BoundTape& self) { return self.tape.arena_bytes(); });
    bind_rows(tape);
    bind_products(tape);
    bind_mixers(tape);
    bind_eviction(tape);
}

}  // namespace headrace
