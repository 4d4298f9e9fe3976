// Mixtures of experts: the choice, with logits that are not finite too, and the products of routed rows in every kind of
// format. A product for each head of a matrix is here as well.
#include <limits>
#include <vector>

#include "../packed_matrix.h"
#include "driver.h"

namespace headrace::driver {
namespace {

struct Choice {
    int experts, each;
    Scores scores = Scores::softmax;
    bool normalize = false;
    int groups = 1, top_groups = 1;
    GroupScore group_score = GroupScore::max;
    bool shared = false, bias = false;
};

// A routing in arrays of its own.
struct Routed {
    Routed(int rows, int experts, int each)
        : chosen(static_cast<std::size_t>(rows) * each), places(chosen.size()), sources(chosen.size()), begins(experts + 1),
          used(experts + 1), weights(chosen.size()), gates(rows) {
        routing = {.experts = experts, .each = each, .chosen = chosen.data(), .weights = weights.data(), .gates = gates.data(),
                   .places = places.data(), .sources = sources.data(), .begins = begins.data(), .used = used.data()};
    }
    bool operator==(const Routed& other) const {
        return chosen == other.chosen && places == other.places && sources == other.sources && begins == other.begins &&
               weights == other.weights && gates == other.gates;
    }
    Guarded<std::int32_t> chosen, places, sources, begins, used;
    Guarded<float> weights, gates;
    Routing routing;
};

void route(const Kernels& kernels, Team& team, const Choice& c, int rows, const Guarded<float>& logits,
           const Guarded<float>& bias, Routed& to) {
    RouteArgs args;
    args.logits = logits.data();
    args.logits_stride = (c.experts + (c.shared ? 1 : 0)) * sizeof(float);
    args.bias = c.bias ? bias.data() : nullptr;
    args.rows = rows;
    args.scores = c.scores;
    args.normalize = c.normalize;
    args.groups = c.groups;
    args.top_groups = c.top_groups;
    args.group_score = c.group_score;
    args.shared = c.shared;
    args.out = to.routing;
    if (!c.shared) to.gates.fill(1.0F);
    kernels.route(args, team);
}

// Every row has `each` different experts, and every routed row belongs to one choice.
void check_choice(const Kernels& kernels, const Choice& c, int rows, const Routed& routed) {
    std::vector<int> taken(static_cast<std::size_t>(rows) * c.each, 0);
    require(routed.begins[0] == 0 && routed.begins[c.experts] == rows * c.each, "routed rows are counted", kernels.name);
    for (int i = 0; i < rows * c.each; ++i) {
        const int expert = routed.chosen[i], place = routed.places[i];
        require(expert >= 0 && expert < c.experts, "an expert is one of them", kernels.name);
        for (int j = i / c.each * c.each; j < i; ++j) require(routed.chosen[j] != expert, "experts of a row differ", kernels.name);
        require(place >= routed.begins[expert] && place < routed.begins[expert + 1], "a routed row lies with its expert's", kernels.name);
        require(taken[place]++ == 0 && routed.sources[place] == i / c.each, "a routed row has one choice", kernels.name);
    }
}

void check_route(const Kernels& kernels, const Teams& teams, const Choice& c) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
    for (const int rows : {1, 37, 300}) {
        for (const float planted : {0.5F, 3e38F, kInfinity, -kInfinity, kNaN}) {
            Noise noise(c.experts * 31 + rows);
            Guarded<float> logits(static_cast<std::size_t>(rows) * (c.experts + (c.shared ? 1 : 0))), bias(c.experts);
            logits.fill(noise);
            bias.fill(noise);
            for (std::size_t i = 0; planted != 0.5F && i < logits.size(); i += 5) logits[i] = planted;
            Routed alone(rows, c.experts, c.each), shared(rows, c.experts, c.each);
            route(kernels, teams.one, c, rows, logits, bias, alone);
            route(kernels, teams.many, c, rows, logits, bias, shared);
            check_choice(kernels, c, rows, alone);
            require(alone == shared, "a choice does not depend on threads", kernels.name);
            require(planted != 0.5F || finite(alone.weights), "weights of experts are finite", kernels.name);
        }
    }
}

int round_up(int n, int step) { return (n + step - 1) / step * step; }

// Rows encoded for a matrix.
struct Encoded {
    Encoded(const Matrix& w, int count, int cols_padded)
        : stride(round_up(static_cast<int>(cols_padded * dtype_bytes(w.input)), 64)), data(stride * count),
          scales(w.input == DType::i8 ? static_cast<std::size_t>(count) * spans_of(w) : 0), sums(scales.size()) {
        rows = {.type = w.input, .data = data.data(), .stride = stride, .scales = scales.data(), .sums = sums.data(),
                .group = w.span, .groups = spans_of(w)};
    }
    void fill(const Kernels& kernels, Team& team, const Guarded<float>& x, int count, int cols, int cols_padded) {
        kernels.encode({.in = x.data(), .in_stride = cols * sizeof(float), .rows = count, .cols = cols,
                        .cols_padded = cols_padded, .out = rows}, team);
    }
    std::size_t stride;
    Guarded<char> data;
    Guarded<float> scales;
    Guarded<std::int32_t> sums;
    Rows rows;
};

// Each row through its experts and back: dispatch, products, combine.
void mix(const Kernels& kernels, Team& team, const PackedMatrix& packed, int rows, int each, Epilogue epilogue, Gate gate,
         Guarded<float>& out) {
    const Matrix& w = packed.matrix();
    const Choice choice{w.experts, each, Scores::softmax_chosen, true, 1, 1, GroupScore::max, true};
    Noise noise(rows);
    Guarded<float> logits(static_cast<std::size_t>(rows) * (w.experts + 1)), none(0), x(static_cast<std::size_t>(rows) * w.cols);
    logits.fill(noise);
    x.fill(noise);
    Routed routed(rows, w.experts, each);
    route(kernels, team, choice, rows, logits, none, routed);
    Encoded tokens(w, rows, w.cols_padded), sent(w, rows * each, w.cols_padded);
    tokens.fill(kernels, team, x, rows, w.cols, w.cols_padded);
    kernels.dispatch({tokens.rows, routed.routing, rows, sent.rows}, team);
    const int features = epilogue == Epilogue::gate ? w.panels * kPanel / 2 : w.rows;
    const std::size_t stride = features * sizeof(float);
    Guarded<float> products(static_cast<std::size_t>(rows) * each * features);
    Guarded<float> gates(epilogue == Epilogue::multiply ? products.size() : 0), beside(static_cast<std::size_t>(rows) * features);
    gates.fill(0.5F);
    beside.fill(noise);
    ExpertsArgs args;
    args.linear.in = sent.rows;
    args.linear.weight = &w;
    args.linear.epilogue = epilogue;
    args.linear.gate = gate;
    args.linear.gates = gates.data();
    args.linear.gates_stride = stride;
    args.linear.out = products.data();
    args.linear.out_stride = stride;
    args.routing = routed.routing;
    args.rows = rows;
    kernels.experts(args, team);
    out.fill(1.0F);
    for (const bool add : {false, true}) {
        kernels.combine({.in = products.data(), .in_stride = stride, .routing = routed.routing, .shared = add ? beside.data() : nullptr,
                         .shared_stride = stride, .gated = add, .add = add, .rows = rows, .cols = features, .out = out.data(),
                         .out_stride = stride}, team);
    }
}

void check_experts(const Kernels& kernels, const Teams& teams, const PackedMatrix& packed, Epilogue epilogue, Gate gate) {
    const Matrix& w = packed.matrix();
    const int features = epilogue == Epilogue::gate ? w.panels * kPanel / 2 : w.rows;
    for (const int rows : {1, 2, 9, 130}) {
        Guarded<float> alone(static_cast<std::size_t>(rows) * features), shared(alone.size());
        mix(kernels, teams.one, packed, rows, 3, epilogue, gate, alone);
        mix(kernels, teams.many, packed, rows, 3, epilogue, gate, shared);
        require(finite(alone), "products of experts are finite", kernels.name);
        require(alone == shared, "products of experts do not depend on threads", kernels.name);
    }
}

constexpr int kExperts = 5;

void check_floats_and_codes(const Kernels& kernels, const Teams& teams, WeightFormat format, DType input, int group) {
    constexpr int kRows = 42, kCols = 100;
    Noise noise(static_cast<int>(format) + group);
    Guarded<float> source(static_cast<std::size_t>(kRows) * kCols), bias(kRows);
    source.fill(noise);
    bias.fill(noise);
    const std::vector<Part> parts{{source.data(), DType::f32, kRows, kCols}};
    for (const bool gated : {false, true}) {
        PackOptions options{.format = format, .input = input, .group = group, .gate = gated, .bias = bias.data(), .experts = kExperts};
        PackedMatrix packed(kernels, teams.many, parts, options);
        for (int expert = 1; expert < kExperts; ++expert) {
            source.fill(noise);
            packed.put(kernels, teams.many, expert, parts, bias.data());
        }
        if (gated) {
            check_experts(kernels, teams, packed, Epilogue::gate, Gate::swiglu_oai);
        } else {
            check_experts(kernels, teams, packed, Epilogue::store, Gate::none);
            check_experts(kernels, teams, packed, Epilogue::multiply, Gate::silu);
        }
    }
}

// Experts in blocks, as a GGUF file has them.
void check_blocks(const Kernels& kernels, const Teams& teams, const BlockType& type) {
    constexpr int kRows = 21, kCols = 512;
    const std::size_t blocks = static_cast<std::size_t>(kRows) * kCols / type.features;
    Noise noise(7);
    Guarded<std::uint8_t> raw(blocks * type.bytes);
    const std::vector<BlockPart> parts{{raw.data(), kRows, kCols}};
    const auto fill = [&] {
        raw.fill(noise);
        for (std::size_t block = 0; block < blocks; ++block) {
            if (type.scale_type == ScaleType::e8m0) raw[block * type.bytes] &= 0x7f;
            else raw[block * type.bytes + 1] &= 0xbf, raw[block * type.bytes + 3] &= 0xbf;
        }
    };
    fill();
    PackedMatrix packed(kernels, teams.many, type, parts, {.experts = kExperts});
    for (int expert = 1; expert < kExperts; ++expert) {
        fill();
        packed.put(kernels, teams.many, expert, parts, nullptr);
    }
    check_experts(kernels, teams, packed, Epilogue::store, Gate::none);
}

// Every head's features times its own matrix.
void check_heads(const Kernels& kernels, const Teams& teams, WeightFormat format, DType input) {
    constexpr int kRows = 21, kCols = 64, kInputs = 80, kOutputs = 37;
    Noise noise(3);
    Guarded<float> source(static_cast<std::size_t>(kRows) * kCols);
    source.fill(noise);
    const std::vector<Part> parts{{source.data(), DType::f32, kRows, kCols}};
    PackedMatrix packed(kernels, teams.many, parts, {.format = format, .input = input, .experts = kExperts});
    for (int head = 1; head < kExperts; ++head) packed.put(kernels, teams.many, head, parts, nullptr);
    const Matrix& w = packed.matrix();
    const int cols = kInputs * (kExperts - 1) + kCols, padded = round_up(cols, kInputAlign);
    const std::size_t wide = kOutputs * (kExperts - 1) + kRows;
    for (const int rows : {1, 7, 200}) {
        Guarded<float> x(static_cast<std::size_t>(rows) * cols), alone(rows * wide), shared(rows * wide);
        x.fill(noise);
        alone.fill(0.0F);
        shared.fill(0.0F);
        Encoded in(w, rows, padded);
        in.fill(kernels, teams.many, x, rows, cols, padded);
        HeadsArgs args;
        args.linear.in = in.rows;
        args.linear.weight = &w;
        args.linear.rows = rows;
        args.linear.out_stride = wide * sizeof(float);
        args.inputs = kInputs;
        args.outputs = kOutputs;
        args.linear.out = alone.data();
        kernels.heads_linear(args, teams.one);
        args.linear.out = shared.data();
        kernels.heads_linear(args, teams.many);
        require(finite(alone), "products of heads are finite", kernels.name);
        require(alone == shared, "products of heads do not depend on threads", kernels.name);
    }
}

}  // namespace

void run_experts(const Kernels& kernels, const Teams& teams) {
    const Choice choices[] = {
        {1, 1}, {8, 2, Scores::softmax_chosen}, {60, 4, Scores::softmax, false, 1, 1, GroupScore::max, true},
        {128, 8, Scores::softmax, true}, {64, 6, Scores::softmax, false, 8, 3, GroupScore::max},
        {256, 8, Scores::sigmoid, true, 8, 4, GroupScore::top2, false, true}, {4096, 64, Scores::sigmoid, true},
    };
    for (const Choice& choice : choices) check_route(kernels, teams, choice);
    check_floats_and_codes(kernels, teams, WeightFormat::f32, DType::f32, 0);
    check_floats_and_codes(kernels, teams, WeightFormat::bf16, DType::bf16, 0);
    check_floats_and_codes(kernels, teams, WeightFormat::int8, DType::i8, 64);
    check_floats_and_codes(kernels, teams, WeightFormat::int4, DType::bf16, 32);
    for (const char* name : {"mxfp4", "q4_k"}) check_blocks(kernels, teams, *find_block_type(name));
    check_heads(kernels, teams, WeightFormat::f32, DType::f32);
    check_heads(kernels, teams, WeightFormat::bf16, DType::bf16);
}

}  // namespace headrace::driver
