// Attention, latent attention, and layers with recurrent states.
#include "bound_tape.h"

namespace nb = nanobind;

namespace headrace {
namespace {

int rotations(BoundTape& self, const Array<const double>& frequencies, double factor, std::optional<std::int64_t> limit) {
    RotationArgs args;
    args.frequencies = frequencies.data();
    args.half = static_cast<int>(frequencies.size());
    args.factor = factor;
    args.limit = limit.value_or(INT64_MAX);
    args.cos = static_cast<float*>(self.tape.bytes_per_token(args.half * sizeof(float)));
    args.sin = static_cast<float*>(self.tape.bytes_per_token(args.half * sizeof(float)));
    self.keep(frequencies);
    self.tape.append(args, Scope::tokens, "rotations", -1);
    return add(self.rotations, Rotation{args.cos, args.sin, args.half});
}

void rope(BoundTape& self, int qkv, int cache, int q, int num_heads, int rotated, bool interleaved,
          std::optional<std::tuple<double, std::int64_t, std::int64_t>> temperature, std::optional<int> rotation,
          std::optional<int> sink_rotation, std::optional<int> q_sink, std::optional<Floats> q_norm,
          std::optional<Floats> k_norm, bool normed, bool v_norm, bool keys_are_values, bool writes, float eps, int layer) {
    const Cache& to = at(self.caches, cache);
    const Rows& from = at(self.buffers, qkv);
    const Rotation own = rotation ? at(self.rotations, *rotation) : Rotation{};
    RopeArgs args;
    args.qkv = static_cast<const float*>(from.data);
    args.qkv_stride = from.stride;
    args.num_heads = num_heads;
    args.rotated = rotated;
    args.interleaved = interleaved;
    if (temperature) {
        std::tie(args.temperature_beta, args.temperature_length, args.temperature_shift) = *temperature;
        require(args.temperature_length > 0 && args.temperature_shift >= 0, "a temperature grows with positions");
    }
    args.eps = eps;
    args.cos = own.cos;
    args.sin = own.sin;
    args.kv = to.kv;
    args.group = to.group;
    args.q_type = to.q_type();
    args.q = self.queries_of(q, num_heads, to).data;
    require(own.half * 2 == rotated && rotated <= to.kv.head_dim, "the rotation is not that of these heads");
    require(!to.kv.latent(), "a latent cache has no keys of heads");
    if (sink_rotation && q_sink) {
        args.sink_cos = at(self.rotations, *sink_rotation).cos;
        args.sink_sin = at(self.rotations, *sink_rotation).sin;
        args.q_sink = self.queries_of(*q_sink, num_heads, to).data;
    }
    for (const auto* norm : {&q_norm, &k_norm}) {
        if (!*norm) continue;
        require(static_cast<int>((*norm)->size()) == to.kv.head_dim, "a head's norm has one weight a feature");
        self.keep(**norm);
    }
    args.normed = normed || q_norm || k_norm;
    args.q_norm = q_norm ? q_norm->data() : nullptr;
    args.k_norm = k_norm ? k_norm->data() : nullptr;
    args.v_norm = v_norm;
    args.keys_are_values = keys_are_values;
    args.writes = writes;
    const int kv_heads = !writes ? 0 : to.kv.num_kv_heads * (keys_are_values ? 1 : 2);
    require(from.type == DType::f32 &&
                from.stride >= static_cast<std::size_t>(num_heads + kv_heads) * to.kv.head_dim * sizeof(float),
            "the heads do not fit their rows");
    self.tape.append(args, Scope::tokens, "rope", layer);
}

// `q` has the features that heads_linear writes, from head to head head_dim of the cache apart.
void latent(BoundTape& self, int query, int latent, int cache, int q, int num_heads, int key_dim, bool interleaved, int rotation,
            int layer) {
    const Cache& to = at(self.caches, cache);
    const Rows &from = at(self.buffers, query), &made = at(self.buffers, latent), &out = self.queries_of(q, num_heads, to);
    const Rotation& own = at(self.rotations, rotation);
    LatentArgs args;
    args.query = static_cast<const float*>(from.data);
    args.query_stride = from.stride;
    args.latent = static_cast<const float*>(made.data);
    args.latent_stride = made.stride;
    args.num_heads = num_heads;
    args.key_dim = key_dim;
    args.interleaved = interleaved;
    args.cos = own.cos;
    args.sin = own.sin;
    args.kv = to.kv;
    args.group = to.group;
    args.q_type = out.type;
    args.q = out.data;
    require(to.kv.latent(), "a latent needs a latent cache");
    const int rotated = to.kv.head_dim - to.kv.value_dim;
    const std::size_t heads = num_heads;
    require(own.half * 2 == rotated, "the rotation is not that of these heads");
    require(key_dim > 0 && from.type == DType::f32 && made.type == DType::f32 &&
                from.stride >= heads * (key_dim + rotated) * sizeof(float) && made.stride >= to.kv.head_dim * sizeof(float),
            "queries and latents do not fit their rows");
    self.tape.append(args, Scope::tokens, "rope", layer);
}

void attention(BoundTape& self, int q, std::optional<int> q_sink, int cache, int out, int num_heads, float scale, int window,
               bool chunked, int sinks, float soft_cap, std::optional<Floats> slopes, std::optional<Floats> learned_sinks, int layer) {
    const Cache& from = at(self.caches, cache);
    const Rows& to = at(self.buffers, out);
    AttentionArgs args;
    args.q = self.queries_of(q, num_heads, from).data;
    args.q_sink = q_sink ? self.queries_of(*q_sink, num_heads, from).data : nullptr;
    args.kv = from.kv;
    args.group = from.group;
    args.num_heads = num_heads;
    args.scale = scale;
    args.window = window;
    args.chunked = chunked;
    args.sinks = sinks;
    args.soft_cap = soft_cap;
    if (slopes) {
        require(static_cast<int>(slopes->size()) == num_heads && scale > 0, "there is one slope a head");
        args.slopes = slopes->data();
        self.keep(*slopes);
    }
    if (learned_sinks) {
        require(static_cast<int>(learned_sinks->size()) == num_heads, "there is one learned sink a head");
        args.learned_sinks = learned_sinks->data();
        self.keep(*learned_sinks);
    }
    args.out_type = to.type;
    args.out = to.data;
    args.out_stride = to.stride;
    require(to.type != DType::i8, "attention is written as f32 or bf16");
    require(to.stride >= std::size_t(num_heads) * from.kv.value_dim * dtype_bytes(to.type), "attention does not fit");
    self.tape.append(args, Scope::tokens, "attention", layer);
}

// `weight`: [width * channels], the oldest position first.
void convolution(BoundTape& self, int source, int state, int out, const Floats& weight, std::optional<Floats> bias, int channels, int width,
                 bool gated, int layer) {
    ConvArgs args;
    require(channels > 0 && width >= 2 && width <= kMaxConvWidth, "a convolution sees between 2 and 16 positions");
    args.in = self.floats_of(source, static_cast<std::size_t>(channels) * (gated ? 3 : 1), args.in_stride);
    args.out = self.floats_of(out, channels, args.out_stride);
    require(weight.size() == static_cast<std::size_t>(channels) * width, "a convolution has one weight a channel and position");
    args.weight = weight.data();
    self.keep(weight);
    if (bias) {
        require(bias->size() == static_cast<std::size_t>(channels), "a convolution has one bias a channel");
        args.bias = bias->data();
        self.keep(*bias);
    }
    args.channels = channels;
    args.width = width;
    args.gated = gated;
    const StateMemory& memory = at(self.states, state);
    require(memory.floats == static_cast<std::size_t>(channels) * (width - 1), "the state is not that of this convolution");
    args.states = memory.memory;
    args.group = memory.group;
    self.tape.append(args, Scope::tokens, "conv", layer);
}

void gated_delta(BoundTape& self, int qkv, int gates, int numbers, int state, int out, const Floats& rate, const Floats& time,
                 const Floats& norm, float eps, int heads, int key_heads, int key_dim, int value_dim, bool tiled,
                 int layer) {
    DeltaArgs args;
    require(key_heads > 0 && heads > 0 && heads % key_heads == 0, "heads of values share heads of keys evenly");
    require(key_dim > 0 && key_dim <= kMaxKeyDim, "keys of the delta rule have at most 256 features");
    require(value_dim > 0 && value_dim % 16 == 0 && value_dim <= kMaxHeadDim, "value_dim must be a multiple of 16 and at most 1024");
    const std::size_t values = static_cast<std::size_t>(heads) * value_dim;
    args.qkv = self.floats_of(qkv, 2 * static_cast<std::size_t>(key_heads) * key_dim + values, args.qkv_stride);
    args.gates = self.floats_of(gates, values, args.gates_stride);
    args.numbers = self.floats_of(numbers, 2 * static_cast<std::size_t>(heads), args.numbers_stride);
    args.out = self.floats_of(out, values, args.out_stride);
    require(static_cast<int>(rate.size()) == heads && static_cast<int>(time.size()) == heads &&
                static_cast<int>(norm.size()) == value_dim,
            "the delta rule has a rate and a time a head, and a norm");
    args.rate = rate.data();
    args.time = time.data();
    args.norm = norm.data();
    for (const Floats* one : {&rate, &time, &norm}) self.keep(*one);
    args.eps = eps;
    args.heads = heads;
    args.key_heads = key_heads;
    args.tiled = tiled;
    args.key_dim = key_dim;
    args.value_dim = value_dim;
    const StateMemory& memory = at(self.states, state);
    require(memory.floats == values * key_dim, "the state is not that of this delta rule");
    args.states = memory.memory;
    args.group = memory.group;
    self.tape.append(args, Scope::tokens, "delta", layer);
}

}  // namespace

void bind_mixers(nb::class_<BoundTape>& tape) {
    using namespace nb::literals;
    tape.def("rotations", &rotations, "frequencies"_a.noconvert(), "factor"_a, "limit"_a = nb::none())
        .def("rope", &rope, "qkv"_a, "cache"_a, "q"_a, nb::kw_only(), "num_heads"_a, "rotated"_a,
             "interleaved"_a = false, "temperature"_a = nb::none(), "rotation"_a = nb::none(), "sink_rotation"_a = nb::none(), "q_sink"_a = nb::none(), "q_norm"_a.noconvert() = nb::none(),
             "k_norm"_a.noconvert() = nb::none(), "normed"_a = false, "v_norm"_a = false, "keys_are_values"_a = false, "writes"_a = true,
             "eps"_a = 0.0F, "layer"_a = -1)
        .def("latent", &latent, "query"_a, "latent"_a, "cache"_a, "q"_a, nb::kw_only(), "num_heads"_a,
             "key_dim"_a, "interleaved"_a, "rotation"_a, "layer"_a = -1)
        .def("attention", &attention, "q"_a, "q_sink"_a.none(), "cache"_a, "out"_a, nb::kw_only(),
             "num_heads"_a, "scale"_a, "window"_a = 0, "chunked"_a = false, "sinks"_a = 0, "soft_cap"_a = 0.0F,
             "slopes"_a.noconvert() = nb::none(), "learned_sinks"_a.noconvert() = nb::none(), "layer"_a = -1)
        .def("convolution", &convolution, "source"_a, "state"_a, "out"_a, nb::kw_only(), "weight"_a.noconvert(),
             "bias"_a.noconvert() = nb::none(), "channels"_a, "width"_a, "gated"_a, "layer"_a = -1)
        .def("gated_delta", &gated_delta, "qkv"_a, "gates"_a, "numbers"_a, "state"_a, "out"_a, nb::kw_only(),
             "rate"_a.noconvert(), "time"_a.noconvert(), "norm"_a.noconvert(), "eps"_a, "heads"_a, "key_heads"_a, "key_dim"_a,
             "value_dim"_a, "tiled"_a = false, "layer"_a = -1);
}

}  // namespace headrace
