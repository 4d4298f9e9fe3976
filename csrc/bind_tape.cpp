#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "bindings.h"
#include "names.h"
#include "packed_matrix.h"
#include "tape.h"

namespace nb = nanobind;

namespace headrace {
namespace {

using Memory = nb::ndarray<nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Longs = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Blocks = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Best = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<nb::numpy, float, nb::ndim<2>>;
using Hidden = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Group = std::tuple<Blocks, Ints, Longs>;  // block tables, dropped, slots
using States = std::tuple<Ints, Ints, Ints, Ints>;  // sources, firsts, counts, slots
using Vectors = std::vector<Floats>;                     // of a norm: none, its weight, or weight and bias
using Final = std::tuple<int, Vectors, bool, double, Hidden>;  // residual stream, final norm, is it centred, its eps, output

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

void require(bool holds, const char* otherwise) {
    if (!holds) refuse(otherwise);
}

struct Rotation {
    const float* cos = nullptr;
    const float* sin = nullptr;
    int half = 0;
};

struct Cache {
    KVCache kv;
    int group = 0;
};

struct StateMemory {
    int slots = 0;
    int group = 0;
    float* memory = nullptr;
    std::size_t floats = 0;  // of a slot
};

// A tape whose buffers, rotations and KV caches Python refers to by number, and the objects that it keeps alive.
class BoundTape {
public:
    BoundTape(const KernelSet& kernels, Team& team, int max_tokens, int max_seqs, int max_logits, int vocab_size)
        : kernels_(*kernels.table), team_(team), tape_(kernels_, team, {max_tokens, max_seqs, max_logits, vocab_size}) {}

    Tape& tape() { return tape_; }

    int add_group(int block_size, int num_blocks, int sink_blocks) {
        require(block_size > 0 && num_blocks > 0 && sink_blocks >= 0, "a KV group needs blocks");
        groups_.push_back({block_size, num_blocks, sink_blocks});
        return tape_.add_group(groups_.back());
    }

    int add_rows(const std::string& type, int cols, int group, int each) {
        require(cols > 0 && group >= 0, "rows need columns");
        require(each >= 1 && each <= kMaxChoices, "a row has between one and 64 routed rows");
        each_.push_back(each);
        return add(buffers_, tape_.rows(dtype_of(type), cols, group, each));
    }

    int add_routing(int experts, int each) {
        require(experts >= 1 && experts <= kMaxExperts, "there are between one and 4096 experts");
        require(each >= 1 && each <= kMaxChoices && each <= experts, "a row has between one and 64 of the experts");
        return add(routings_, tape_.routing(experts, each));
    }

    int add_queries(const std::string& type, int features) {
        Rows rows;
        rows.type = dtype_of(type);
        rows.stride = features * dtype_bytes(rows.type);
        rows.data = tape_.bytes_per_token(rows.stride);
        each_.push_back(1);
        return add(buffers_, rows);
    }

    // Without keys, and their scales, it is a latent cache: the values are the first value_dim features of its rows.
    int add_kv(int group, const std::string& type, std::optional<Memory> keys, const Memory& values, int num_kv_heads,
               int head_dim, int value_dim, std::optional<Memory> key_scales, std::optional<Memory> value_scales) {
        const KVGroup& of = at(groups_, group);
        KVCache kv;
        kv.type = dtype_of(type);
        kv.keys = keys ? keys->data() : nullptr;
        kv.values = values.data();
        kv.num_kv_heads = num_kv_heads;
        kv.head_dim = head_dim;
        kv.value_dim = value_dim;
        kv.block_size = of.block_size;
        kv.block_stride = (of.block_size + 15) / 16 * 16;
        require(head_dim > 0 && head_dim % 16 == 0 && head_dim <= kMaxHeadDim,
                "head_dim must be a multiple of 16 and at most 1024");
        require(keys ? value_dim == head_dim : num_kv_heads == 1 && value_dim > 0 && value_dim % 16 == 0 && value_dim < head_dim,
                "values that are part of keys are fewer features, a multiple of 16, of one head");
        const std::size_t positions = std::size_t(of.num_blocks) * num_kv_heads * kv.block_stride;
        const std::size_t bytes = positions * head_dim * dtype_bytes(kv.type);
        require((!keys || keys->nbytes() >= bytes) && values.nbytes() >= bytes, "the KV memory is too small for its blocks");
        if (keys) keep(*keys);
        keep(values);
        if (kv.type == DType::i8) {
            require(value_scales && key_scales.has_value() == keys.has_value(), "an i8 KV cache needs scales");
            const Memory& of_keys = keys ? *key_scales : *value_scales;
            require(of_keys.nbytes() >= positions * 4 && value_scales->nbytes() >= positions * 4,
                    "the KV scales are too small for their blocks");
            kv.key_scales = static_cast<float*>(of_keys.data());
            kv.value_scales = static_cast<float*>(value_scales->data());
            keep(of_keys);
            keep(*value_scales);
        }
        return add(caches_, Cache{kv, group});
    }

    int add_states(int slots) {
        require(slots > 0, "a group of states needs slots");
        slots_.push_back(slots);
        return tape_.add_states(slots);
    }

    // One part of the states of one layer: `floats` for each slot.
    int add_state(int group, const Memory& memory, std::int64_t floats) {
        const int slots = at(slots_, group);
        require(floats > 0 && memory.nbytes() / sizeof(float) / slots >= static_cast<std::size_t>(floats),
                "the memory of states is too small for its slots");
        keep(memory);
        return add(states_, StateMemory{slots, group, static_cast<float*>(memory.data()), static_cast<std::size_t>(floats)});
    }

    int rotations(const Doubles& frequencies, double factor, std::optional<std::int64_t> limit) {
        RotationArgs args;
        args.frequencies = frequencies.data();
        args.half = static_cast<int>(frequencies.size());
        args.factor = factor;
        args.limit = limit.value_or(INT64_MAX);
        args.cos = static_cast<float*>(tape_.bytes_per_token(args.half * sizeof(float)));
        args.sin = static_cast<float*>(tape_.bytes_per_token(args.half * sizeof(float)));
        keep(frequencies);
        tape_.append(args, Scope::tokens, "rotations", -1);
        return add(rotations_, Rotation{args.cos, args.sin, args.half});
    }

    // `table`: an array, or a PackedMatrix, which the tape keeps alive.
    void embed(nb::object table, int out, float scale, bool positions, const std::string& name) {
        const Rows& rows = at(buffers_, out);
        const Embeddings embeddings = embeddings_of(table);
        EmbedArgs args = embeddings.args;
        args.out = static_cast<float*>(rows.data);
        args.out_stride = rows.stride;
        args.scale = scale;
        args.add = args.positions = positions;
        if (positions) tape_.limit_positions(embeddings.rows);
        require(!positions || args.packed == nullptr, "the embeddings of positions are a table");
        require(positions || embeddings.rows >= tape_.sizes().vocab, "the embedding has too few rows");
        require(rows.type == DType::f32 && rows.stride >= args.cols * sizeof(float), "the embedding does not fit");
        tape_.append(args, Scope::tokens, name, -1);
    }

    // `reader`: the matrix whose order of columns the rows take, or null. `times`: rows of the step's tokens, whose columns
    // from `times_column` on multiply the result.
    void encode(int source, int out, int cols, const Vectors& norm, bool centred, float eps, const std::string& gate,
                std::optional<int> times, int times_column, const std::string& scope, const std::string& name, int layer,
                const PackedMatrix* reader) {
        const Rows& from = at(buffers_, source);
        EncodeArgs args;
        args.in = static_cast<const float*>(from.data);
        args.in_stride = from.stride;
        args.norm = norm_of(norm, centred, eps, cols);
        args.gate = gate_of(gate);
        args.cols = cols;
        require(reader == nullptr || reader->matrix().cols == cols, "the matrix that reads the rows has other columns");
        args.out = at(buffers_, out);
        args.out.order = buffers_[out].order = reader == nullptr ? nullptr : reader->matrix().order;
        args.cols_padded = (cols + kInputAlign - 1) / kInputAlign * kInputAlign;
        require(from.type == DType::f32 && from.stride >= cols * sizeof(float), "encode reads rows of f32");
        require(args.out.stride >= args.cols_padded * dtype_bytes(args.out.type), "the encoded rows do not fit");
        args.each = each_[source];
        require(each_[out] == args.each, "routed rows are encoded to routed rows");
        require(args.each == 1 || scope != "gathered", "routed rows are not gathered");
        if (times) {
            const Rows& other = at(buffers_, *times);
            require(args.each == 1 && each_[*times] == 1, "routed rows are not multiplied");
            require(other.type == DType::f32 && times_column >= 0 &&
                        other.stride >= (static_cast<std::size_t>(times_column) + cols) * sizeof(float),
                    "rows are multiplied by rows of f32");
            args.times = static_cast<const float*>(other.data) + times_column;
            args.times_stride = other.stride;
        }
        tape_.append(args, scope_of(scope), name, layer);
    }

    // Normalises columns first .. first + count of the rows, in place.
    void norm_columns(int rows, int first, int count, const Vectors& norm, bool centred, float eps,
                      const std::string& name, int layer) {
        const Rows& buffer = at(buffers_, rows);
        require(buffer.type == DType::f32 && first >= 0 && count > 0 && first % kPanel == 0 && count % kPanel == 0 &&
                    buffer.stride >= static_cast<std::size_t>(first + count) * sizeof(float),
                "the columns of a norm are whole vectors of rows of f32");
        EncodeArgs args;
        args.in = static_cast<const float*>(buffer.data) + first;
        args.in_stride = buffer.stride;
        args.norm = norm_of(norm, centred, eps, count);
        args.cols = args.cols_padded = count;
        args.out.data = static_cast<float*>(buffer.data) + first;
        args.out.stride = buffer.stride;
        tape_.append(args, Scope::tokens, name, layer);
    }

    void add_rows_to(int source, int out, int cols, float scale, const Vectors& norm, bool centred, float eps,
                     int norm_cols, std::optional<Floats> decay, const std::string& scope, const std::string& name,
                     int layer) {
        const Rows& from = at(buffers_, source);
        const Rows& to = at(buffers_, out);
        AddArgs args;
        args.in = static_cast<const float*>(from.data);
        args.in_stride = from.stride;
        require(norm_cols >= 0 && (norm_cols == 0 || cols % norm_cols == 0), "norms divide the columns");
        args.norm = norm_of(norm, centred, eps, norm_cols > 0 ? norm_cols : cols);
        args.norm_cols = norm_cols;
        args.scale = scale;
        if (decay) {
            require(decay->size() == 1, "rows are multiplied by one number");
            args.decay = decay->data();
            keep(*decay);
        }
        args.cols = cols;
        args.out = static_cast<float*>(to.data);
        args.out_stride = to.stride;
        require(from.type == DType::f32 && to.type == DType::f32 && from.stride >= cols * sizeof(float) &&
                    to.stride >= cols * sizeof(float),
                "rows of f32 are added to rows of f32");
        tape_.append(args, scope_of(scope), name, layer);
    }

    void linear(int source, const PackedMatrix& weight, int out, const std::string& epilogue, const std::string& gate,
                std::optional<int> gates, int column, const std::string& scope, const std::string& name, int layer) {
        const Rows& to = at(buffers_, out);
        const Matrix& m = weight.matrix();
        LinearArgs args = product(source, m);
        require(m.experts == 1, "a matrix of experts needs a routing");
        args.epilogue = epilogue_of(epilogue);
        args.gate = gate_of(gate);
        args.out_type = to.type;
        args.out_stride = to.stride;
        const bool gated = args.epilogue == Epilogue::gate;
        const std::size_t features = gated ? m.panels * kPanel / 2 : m.rows;
        const std::size_t before = static_cast<std::size_t>(column) * dtype_bytes(to.type);
        require(column >= 0 && to.stride >= before + features * dtype_bytes(to.type),
                "the product does not fit its buffer");
        args.out = static_cast<std::byte*>(to.data) + before;
        require(to.type == DType::f32 || (to.type == DType::bf16 && args.epilogue != Epilogue::add),
                "a product is written as f32 or bf16, and added to f32 only");
        const bool times = args.epilogue == Epilogue::multiply;
        require(!(gated || times) || args.gate != Gate::none, "a gated product needs a gate");
        require(times == gates.has_value(), "gates are for products that they multiply");
        if (gates) {
            const Rows& from = at(buffers_, *gates);
            require(from.type == DType::f32 && from.stride >= m.rows * sizeof(float), "gates are rows of f32, as wide as the product");
            args.gates = static_cast<const float*>(from.data);
            args.gates_stride = from.stride;
        }
        tape_.append(args, scope_of(scope), name, layer);
    }

    // Outputs: (columns of a group, buffer, first column).
    void ungroup(int source, const std::vector<std::tuple<int, int, int>>& parts, int groups, const std::string& name, int layer) {
        UngroupArgs args;
        args.groups = groups;
        require(groups > 0 && !parts.empty() && parts.size() <= std::size(args.parts), "rows are taken apart into at most four parts");
        for (const auto& [width, out, column] : parts) {
            const Rows& to = at(buffers_, out);
            require(width > 0 && column >= 0 && to.type == DType::f32 &&
                        to.stride >= (column + static_cast<std::size_t>(groups) * width) * sizeof(float),
                    "a part does not fit its buffer of f32");
            args.parts[args.count++] = {static_cast<float*>(to.data) + column, to.stride, width};
            args.width += width;
        }
        args.in = floats_of(source, static_cast<std::size_t>(groups) * args.width, args.in_stride);
        tape_.append(args, Scope::tokens, name, layer);
    }

    void sigmoid_gate(int out, int gates, int cols, const std::string& name, int layer) {
        SigmoidGateArgs args;
        args.cols = cols;
        args.gates = floats_of(gates, cols, args.gates_stride);
        args.out = floats_of(out, cols, args.out_stride);
        tape_.append(args, Scope::tokens, name, layer);
    }

    // `weight`: [width * channels], the oldest position first.
    void convolution(int source, int state, int out, const Floats& weight, std::optional<Floats> bias, int channels, int width,
                     bool gated, int layer) {
        ConvArgs args;
        require(channels > 0 && width >= 2 && width <= kMaxConvWidth, "a convolution sees between 2 and 16 positions");
        args.in = floats_of(source, static_cast<std::size_t>(channels) * (gated ? 3 : 1), args.in_stride);
        args.out = floats_of(out, channels, args.out_stride);
        require(weight.size() == static_cast<std::size_t>(channels) * width, "a convolution has one weight a channel and position");
        args.weight = weight.data();
        keep(weight);
        if (bias) {
            require(bias->size() == static_cast<std::size_t>(channels), "a convolution has one bias a channel");
            args.bias = bias->data();
            keep(*bias);
        }
        args.channels = channels;
        args.width = width;
        args.gated = gated;
        const StateMemory& memory = at(states_, state);
        require(memory.floats == static_cast<std::size_t>(channels) * (width - 1), "the state is not that of this convolution");
        args.states = memory.memory;
        args.group = memory.group;
        tape_.append(args, Scope::tokens, "conv", layer);
    }

    void gated_delta(int qkv, int gates, int numbers, int state, int out, const Floats& rate, const Floats& time,
                     const Floats& norm, float eps, int heads, int key_heads, int key_dim, int value_dim, bool tiled, int layer) {
        DeltaArgs args;
        require(key_heads > 0 && heads > 0 && heads % key_heads == 0, "heads of values share heads of keys evenly");
        require(key_dim > 0 && key_dim <= kMaxKeyDim, "keys of the delta rule have at most 256 features");
        require(value_dim > 0 && value_dim % 16 == 0 && value_dim <= kMaxHeadDim, "value_dim must be a multiple of 16 and at most 1024");
        const std::size_t values = static_cast<std::size_t>(heads) * value_dim;
        args.qkv = floats_of(qkv, 2 * static_cast<std::size_t>(key_heads) * key_dim + values, args.qkv_stride);
        args.gates = floats_of(gates, values, args.gates_stride);
        args.numbers = floats_of(numbers, 2 * static_cast<std::size_t>(heads), args.numbers_stride);
        args.out = floats_of(out, values, args.out_stride);
        require(static_cast<int>(rate.size()) == heads && static_cast<int>(time.size()) == heads &&
                    static_cast<int>(norm.size()) == value_dim,
                "the delta rule has a rate and a time a head, and a norm");
        args.rate = rate.data();
        args.time = time.data();
        args.norm = norm.data();
        for (const Floats* one : {&rate, &time, &norm}) keep(*one);
        args.eps = eps;
        args.heads = heads;
        args.key_heads = key_heads;
        args.tiled = tiled;
        args.key_dim = key_dim;
        args.value_dim = value_dim;
        const StateMemory& memory = at(states_, state);
        require(memory.floats == values * key_dim, "the state is not that of this delta rule");
        args.states = memory.memory;
        args.group = memory.group;
        tape_.append(args, Scope::tokens, "delta", layer);
    }

    // `bias`: of the choice; `expert_scale`: of the weights. The logits have one column more with `shared`.
    void route(int logits, int routing, std::optional<Floats> bias, std::optional<Floats> expert_scale,
               const std::string& scores, bool normalize, float scale, int groups, int top_groups,
               const std::string& group_score, bool shared, const std::string& scope, int layer) {
        const Rows& from = at(buffers_, logits);
        RouteArgs args;
        args.out = at(routings_, routing);
        args.logits = static_cast<const float*>(from.data);
        args.logits_stride = from.stride;
        args.scores = scores_of(scores);
        args.normalize = normalize;
        args.scale = scale;
        args.groups = groups;
        args.top_groups = top_groups;
        args.group_score = group_score_of(group_score);
        args.shared = shared;
        check_groups(args);
        require(from.type == DType::f32 && from.stride >= (args.out.experts + (shared ? 1 : 0)) * sizeof(float),
                "logits are rows of f32, one for each expert");
        if (bias) {
            require(static_cast<int>(bias->size()) == args.out.experts, "the bias of the choice has one number an expert");
            args.bias = bias->data();
            keep(*bias);
        }
        if (expert_scale) {
            require(static_cast<int>(expert_scale->size()) == args.out.experts, "there is one scale an expert");
            args.expert_scale = expert_scale->data();
            keep(*expert_scale);
        }
        tape_.append(args, scope_of(scope), "route", layer);
    }

    void dispatch(int source, int routing, int out, const std::string& scope, int layer) {
        DispatchArgs args;
        args.in = at(buffers_, source);
        args.routing = at(routings_, routing);
        args.out = at(buffers_, out);
        require(args.in.type == args.out.type && args.in.stride == args.out.stride && args.in.groups == args.out.groups &&
                    args.in.group == args.out.group,
                "routed rows are encoded as the rows themselves");
        require(each_[source] == 1 && each_[out] >= args.routing.each, "there are too few routed rows");
        tape_.append(args, scope_of(scope), "dispatch", layer);
    }

    void experts(int source, const PackedMatrix& weight, int out, int routing, const std::string& epilogue,
                 const std::string& gate, std::optional<int> gates, bool scaled, const std::string& scope, const std::string& name,
                 int layer) {
        const Rows& to = at(buffers_, out);
        const Matrix& m = weight.matrix();
        ExpertsArgs args;
        args.routing = at(routings_, routing);
        args.scaled = scaled;
        args.linear = product(source, m);
        args.linear.epilogue = epilogue_of(epilogue);
        args.linear.gate = gate_of(gate);
        args.linear.out = to.data;
        args.linear.out_type = to.type;
        args.linear.out_stride = to.stride;
        const bool gated = args.linear.epilogue == Epilogue::gate, times = args.linear.epilogue == Epilogue::multiply;
        const std::size_t features = gated ? m.panels * kPanel / 2 : m.rows;
        require(m.experts == args.routing.experts, "the matrix has another number of experts");
        require(each_[source] >= args.routing.each && each_[out] >= args.routing.each, "there are too few routed rows");
        require(to.stride >= features * dtype_bytes(to.type), "the product does not fit its buffer");
        require(to.type == DType::f32 || to.type == DType::bf16, "a product is written as f32 or bf16");
        require(args.linear.epilogue != Epilogue::add, "products of experts are not added");
        require(!(gated || times) || args.linear.gate != Gate::none, "a gated product needs a gate");
        require(times == gates.has_value(), "gates are for products that they multiply");
        if (gates) {
            const Rows& from = at(buffers_, *gates);
            require(from.type == DType::f32 && from.stride >= m.rows * sizeof(float) && each_[*gates] >= args.routing.each,
                    "gates are routed rows of f32, as wide as the product");
            args.linear.gates = static_cast<const float*>(from.data);
            args.linear.gates_stride = from.stride;
        }
        tape_.append(args, scope_of(scope), name, layer);
    }

    void combine(int source, int routing, int out, int cols, std::optional<int> shared, bool gated, bool weighted, bool added,
                 const std::string& scope, int layer) {
        const Rows &from = at(buffers_, source), &to = at(buffers_, out);
        CombineArgs args;
        args.in = static_cast<const float*>(from.data);
        args.in_stride = from.stride;
        args.routing = at(routings_, routing);
        args.cols = cols;
        args.out = static_cast<float*>(to.data);
        args.out_stride = to.stride;
        args.gated = gated;
        args.weighted = weighted;
        args.add = added;
        const std::size_t bytes = cols * sizeof(float);
        require(from.type == DType::f32 && to.type == DType::f32 && from.stride >= bytes && to.stride >= bytes,
                "what experts give are rows of f32");
        require(each_[source] >= args.routing.each && each_[out] == 1, "there are too few routed rows");
        if (shared) {
            const Rows& other = at(buffers_, *shared);
            require(other.type == DType::f32 && other.stride >= bytes, "the shared expert gives rows of f32");
            args.shared = static_cast<const float*>(other.data);
            args.shared_stride = other.stride;
        }
        tape_.append(args, scope_of(scope), "combine", layer);
    }

    void rope(int qkv, int cache, int q, int num_heads, int rotated, bool interleaved,
              std::optional<std::tuple<double, std::int64_t, std::int64_t>> temperature, std::optional<int> rotation,
              std::optional<int> sink_rotation, std::optional<int> q_sink, std::optional<Floats> q_norm,
              std::optional<Floats> k_norm, bool normed, bool v_norm, bool keys_are_values, bool writes, float eps, int layer) {
        const Cache& to = at(caches_, cache);
        const Rows& from = at(buffers_, qkv);
        const Rotation own = rotation ? at(rotations_, *rotation) : Rotation{};
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
        args.q_type = at(buffers_, q).type;
        args.q = at(buffers_, q).data;
        require(own.half * 2 == rotated && rotated <= to.kv.head_dim, "the rotation is not that of these heads");
        require(!to.kv.latent(), "a latent cache has no keys of heads");
        require(args.q_type == (to.kv.type == DType::f32 ? DType::f32 : DType::bf16), "queries do not match the cache");
        if (sink_rotation && q_sink) {
            args.sink_cos = at(rotations_, *sink_rotation).cos;
            args.sink_sin = at(rotations_, *sink_rotation).sin;
            args.q_sink = at(buffers_, *q_sink).data;
        }
        for (const auto* norm : {&q_norm, &k_norm}) {
            if (!*norm) continue;
            require(static_cast<int>((*norm)->size()) == to.kv.head_dim, "a head's norm has one weight a feature");
            keep(**norm);
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
        tape_.append(args, Scope::tokens, "rope", layer);
    }

    // `q` has the features that heads_linear writes, from head to head head_dim of the cache apart.
    void latent(int query, int latent, int cache, int q, int num_heads, int key_dim, bool interleaved, int rotation,
                int layer) {
        const Cache& to = at(caches_, cache);
        const Rows &from = at(buffers_, query), &made = at(buffers_, latent), &out = at(buffers_, q);
        const Rotation& own = at(rotations_, rotation);
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
        require(out.type == (to.kv.type == DType::f32 ? DType::f32 : DType::bf16), "queries do not match the cache");
        require(num_heads > 0 && key_dim > 0 && from.type == DType::f32 && made.type == DType::f32 &&
                    from.stride >= heads * (key_dim + rotated) * sizeof(float) && made.stride >= to.kv.head_dim * sizeof(float) &&
                    out.stride == heads * to.kv.head_dim * dtype_bytes(out.type),
                "queries and latents do not fit their rows");
        tape_.append(args, Scope::tokens, "rope", layer);
    }

    void heads_linear(int source, const PackedMatrix& weight, int out, int inputs, int outputs, const std::string& scope,
                      const std::string& name, int layer) {
        const Rows &from = at(buffers_, source), &to = at(buffers_, out);
        const Matrix& m = weight.matrix();
        HeadsArgs args;
        args.linear.in = from;
        args.linear.weight = &m;
        args.linear.out = to.data;
        args.linear.out_type = to.type;
        args.linear.out_stride = to.stride;
        args.inputs = inputs;
        args.outputs = outputs;
        check_heads(args);
        tape_.append(args, scope_of(scope), name, layer);
    }

    void attention(int q, std::optional<int> q_sink, int cache, int out, int num_heads, float scale, int window,
                   bool chunked, int sinks, float soft_cap, std::optional<Floats> slopes, std::optional<Floats> learned_sinks,
                   int layer) {
        const Cache& from = at(caches_, cache);
        const Rows& to = at(buffers_, out);
        AttentionArgs args;
        args.q = at(buffers_, q).data;
        args.q_sink = q_sink ? at(buffers_, *q_sink).data : nullptr;
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
            keep(*slopes);
        }
        if (learned_sinks) {
            require(static_cast<int>(learned_sinks->size()) == num_heads, "there is one learned sink a head");
            args.learned_sinks = learned_sinks->data();
            keep(*learned_sinks);
        }
        args.out_type = to.type;
        args.out = to.data;
        args.out_stride = to.stride;
        require(to.type != DType::i8, "attention is written as f32 or bf16");
        require(to.stride >= std::size_t(num_heads) * from.kv.value_dim * dtype_bytes(to.type), "attention does not fit");
        tape_.append(args, Scope::tokens, "attention", layer);
    }

    void logits(int source, const PackedMatrix& head, float soft_cap, float scale) {
        const Matrix& m = head.matrix();
        require(m.experts == 1, "the head is one matrix");
        require(m.rows == tape_.sizes().vocab, "the head does not have one row a token");
        LinearArgs args = product(source, m);
        args.out = tape_.logits_buffer();
        args.out_stride = static_cast<std::size_t>(m.rows) * sizeof(float);
        tape_.append(args, Scope::head, "head", -1);
        if (soft_cap > 0 || scale != 1.0F) {
            const SoftCapArgs cap{tape_.logits_buffer(), args.out_stride, 0, m.rows, soft_cap, scale};
            tape_.append(cap, Scope::head, "soft_cap", -1);
        }
    }

    Logits run(const Longs& ids, const Longs& positions, const Ints& cu_q, const Ints& kv_lens,
               const std::vector<Group>& groups, const Longs& wanted_rows, std::optional<Best> best,
               const std::optional<Final>& hidden, const std::vector<States>& states) {
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
        require(groups.size() == groups_.size(), "a step has one table for each KV group");
        tables_.clear();
        for (std::size_t g = 0; g < groups.size(); ++g) {
            const auto& [blocks, dropped, slots] = groups[g];
            require(blocks.shape(0) == kv_lens.size() && dropped.size() == kv_lens.size() && slots.size() == ids.size(),
                    "the arrays of a KV group differ in length from the step's");
            tables_.push_back({blocks.data(), dropped.data(), slots.data(), static_cast<int>(blocks.shape(1)),
                               groups_[g].sink_blocks});
        }
        step.groups = tables_.data();
        require(states.size() == slots_.size(), "a step has one table for each group of states");
        moves_.clear();
        for (const auto& [sources, firsts, counts, slots] : states) {
            require(sources.size() == kv_lens.size() && firsts.size() == kv_lens.size() + 1 && counts.size() == slots.size() &&
                        firsts.data()[0] == 0 && firsts.data()[kv_lens.size()] == static_cast<std::int32_t>(slots.size()),
                    "the arrays of a group of states differ in length from the step's");
            moves_.push_back({sources.data(), firsts.data(), counts.data(), slots.data()});
        }
        step.states = moves_.data();
        require(!best || static_cast<int>(best->size()) == step.logits, "there is one best token a row of logits");
        const EncodeArgs final_norm = hidden ? final_norm_of(*hidden, step) : EncodeArgs{};
        {
            const nb::gil_scoped_release released;
            tape_.run(step);
            if (best) {
                const std::size_t stride = tape_.sizes().vocab * sizeof(float);
                kernels_.argmax({tape_.logits_buffer(), stride, step.logits, tape_.sizes().vocab, best->data()}, team_);
            }
            if (hidden) kernels_.encode(final_norm, team_);
        }
        const std::size_t shape[] = {static_cast<std::size_t>(step.logits), static_cast<std::size_t>(tape_.sizes().vocab)};
        return Logits(tape_.logits_buffer(), 2, shape, nb::find(this));
    }

    std::vector<std::tuple<std::string, int, double, double, double>> costs() const {
        std::vector<std::tuple<std::string, int, double, double, double>> rows;
        for (const Instruction& one : tape_.instructions()) {
            rows.emplace_back(one.name, one.layer, one.nanoseconds * 1e-9, one.bytes, one.operations);
        }
        return rows;
    }

private:
    template <typename T>
    static int add(std::vector<T>& things, T thing) {
        things.push_back(thing);
        return static_cast<int>(things.size()) - 1;
    }

    template <typename T>
    static const T& at(const std::vector<T>& things, int index) {
        require(index >= 0 && index < static_cast<int>(things.size()), "the tape has nothing of that number");
        return things[index];
    }

    // A buffer of f32 with at least so many columns; its stride in bytes goes to `stride`.
    float* floats_of(int buffer, std::size_t cols, std::size_t& stride) const {
        const Rows& rows = at(buffers_, buffer);
        require(rows.type == DType::f32 && rows.stride >= cols * sizeof(float) && each_[buffer] == 1, "these are rows of f32, wide enough");
        stride = rows.stride;
        return static_cast<float*>(rows.data);
    }

    template <typename A>
    void keep(const A& array) {
        kept_.push_back(nb::ndarray<nb::ro>(array));
    }

    // Keeps the weights of a norm of `cols` features.
    NormArgs norm_of(const Vectors& vectors, bool centred, float eps, int cols) {
        const NormArgs args = viewed(vectors, centred, eps, cols);
        for (const Floats& one : vectors) keep(one);
        return args;
    }

    static NormArgs viewed(const Vectors& vectors, bool centred, float eps, int cols) {
        require(vectors.size() <= 2, "a norm has a weight, and may have a bias");
        for (const Floats& one : vectors) require(static_cast<int>(one.size()) == cols, "a norm has one weight a column");
        NormArgs args;
        if (!vectors.empty()) args.weight = vectors[0].data();
        if (vectors.size() > 1) args.bias = vectors[1].data();
        args.centred = centred;
        args.eps = eps;
        return args;
    }

    static Scope scope_of(const std::string& name) {
        if (name == "tokens") return Scope::tokens;
        if (name == "gathered") return Scope::gathered;
        if (name == "logits") return Scope::logits;
        refuse("scope " + name + " is unknown");
    }

    // The final norm of the last wanted rows, which are in the residual stream after the layers have run.
    EncodeArgs final_norm_of(const Final& asked, const Step& step) const {
        const auto& [source, norm, centred, eps, out] = asked;
        require(!norm.empty(), "hidden states are normalised");
        const Rows& from = at(buffers_, source);
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

    LinearArgs product(int source, const Matrix& m) const {
        LinearArgs args;
        args.in = at(buffers_, source);
        args.weight = &m;
        require(args.in.type == m.input, "the activations are not encoded as the matrix wants them");
        require(args.in.stride >= m.cols_padded * dtype_bytes(args.in.type), "the activations are too short");
        require(m.input != DType::i8 || (args.in.group == m.span && args.in.groups == spans_of(m)),
                "the activations' groups are not those of the matrix");
        require(args.in.order == m.order, "the activations are not in the order of the matrix's columns");
        return args;
    }

    const Kernels& kernels_;
    Team& team_;
    Tape tape_;
    std::vector<KVGroup> groups_;
    std::vector<Rows> buffers_;
    std::vector<int> each_;  // rows of each buffer for each row of a step
    std::vector<Routing> routings_;
    std::vector<Rotation> rotations_;
    std::vector<Cache> caches_;
    std::vector<GroupTables> tables_;
    std::vector<int> slots_;  // of each group of states
    std::vector<StateMemory> states_;
    std::vector<StateTables> moves_;
    std::vector<nb::ndarray<nb::ro>> kept_;
};

}  // namespace

void bind_tape(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<BoundTape>(m, "Tape")
        .def(nb::init<const KernelSet&, Team&, int, int, int, int>(), "kernels"_a, "team"_a, nb::kw_only(),
             "max_tokens"_a, "max_seqs"_a, "max_logits"_a, "vocab_size"_a, nb::keep_alive<1, 3>())
        .def("add_group", &BoundTape::add_group, nb::kw_only(), "block_size"_a, "num_blocks"_a, "sink_blocks"_a)
        .def("add_rows", &BoundTape::add_rows, "type"_a, "cols"_a, "group"_a = 0, "each"_a = 1)
        .def("add_states", &BoundTape::add_states, "slots"_a)
        .def("add_state", &BoundTape::add_state, "group"_a, "memory"_a.noconvert(), "floats"_a)
        .def("ungroup", &BoundTape::ungroup, "source"_a, "parts"_a, nb::kw_only(), "groups"_a, "name"_a = "ungroup", "layer"_a = -1)
        .def("sigmoid_gate", &BoundTape::sigmoid_gate, "out"_a, "gates"_a, "cols"_a, nb::kw_only(), "name"_a = "gate", "layer"_a = -1)
        .def("convolution", &BoundTape::convolution, "source"_a, "state"_a, "out"_a, nb::kw_only(), "weight"_a.noconvert(),
             "bias"_a.noconvert() = nb::none(), "channels"_a, "width"_a, "gated"_a, "layer"_a = -1)
        .def("gated_delta", &BoundTape::gated_delta, "qkv"_a, "gates"_a, "numbers"_a, "state"_a, "out"_a, nb::kw_only(),
             "rate"_a.noconvert(), "time"_a.noconvert(), "norm"_a.noconvert(), "eps"_a, "heads"_a, "key_heads"_a, "key_dim"_a,
             "value_dim"_a, "tiled"_a = false, "layer"_a = -1)
        .def("add_routing", &BoundTape::add_routing, "experts"_a, "each"_a)
        .def("route", &BoundTape::route, "logits"_a, "routing"_a, nb::kw_only(), "bias"_a.noconvert() = nb::none(),
             "expert_scale"_a.noconvert() = nb::none(), "scores"_a, "normalize"_a, "scale"_a, "groups"_a, "top_groups"_a, "group_score"_a, "shared"_a,
             "scope"_a = "tokens", "layer"_a = -1)
        .def("dispatch", &BoundTape::dispatch, "source"_a, "routing"_a, "out"_a, nb::kw_only(), "scope"_a = "tokens",
             "layer"_a = -1)
        .def("experts", &BoundTape::experts, "source"_a, "weight"_a, "out"_a, "routing"_a, nb::kw_only(),
             "epilogue"_a = "store", "gate"_a = "none", "gates"_a = nb::none(), "scaled"_a = false, "scope"_a = "tokens", "name"_a,
             "layer"_a = -1, nb::keep_alive<1, 3>())
        .def("combine", &BoundTape::combine, "source"_a, "routing"_a, "out"_a, "cols"_a, nb::kw_only(),
             "shared"_a = nb::none(), "gated"_a = false, "weighted"_a = true, "added"_a = false, "scope"_a = "tokens", "layer"_a = -1)
        .def("add_queries", &BoundTape::add_queries, "type"_a, "features"_a)
        .def("add_kv", &BoundTape::add_kv, "group"_a, "type"_a, "keys"_a.noconvert().none(), "values"_a.noconvert(),
             nb::kw_only(), "num_kv_heads"_a, "head_dim"_a, "value_dim"_a, "key_scales"_a.noconvert() = nb::none(),
             "value_scales"_a.noconvert() = nb::none())
        .def("rotations", &BoundTape::rotations, "frequencies"_a.noconvert(), "factor"_a, "limit"_a = nb::none())
        .def("embed", &BoundTape::embed, "table"_a, "out"_a, nb::kw_only(), "scale"_a = 1.0F, "positions"_a = false,
             "name"_a = "embed", nb::keep_alive<1, 2>())
        .def("encode", &BoundTape::encode, "source"_a, "out"_a, "cols"_a, nb::kw_only(),
             "norm"_a = Vectors(), "centred"_a = false, "eps"_a = 0.0F, "gate"_a = "none", "times"_a = nb::none(),
             "times_column"_a = 0, "scope"_a = "tokens", "name"_a, "layer"_a = -1, "reader"_a.none() = nb::none(),
             nb::keep_alive<1, 14>())
        .def("norm_columns", &BoundTape::norm_columns, "rows"_a, "first"_a, "count"_a, nb::kw_only(), "norm"_a,
             "centred"_a = false, "eps"_a = 0.0F, "name"_a, "layer"_a = -1)
        .def("add", &BoundTape::add_rows_to, "source"_a, "out"_a, "cols"_a, nb::kw_only(), "scale"_a = 1.0F,
             "norm"_a = Vectors(), "centred"_a = false, "eps"_a = 0.0F, "norm_cols"_a = 0,
             "decay"_a.noconvert() = nb::none(), "scope"_a = "tokens", "name"_a, "layer"_a = -1)
        .def("linear", &BoundTape::linear, "source"_a, "weight"_a, "out"_a, nb::kw_only(), "epilogue"_a = "store",
             "gate"_a = "none", "gates"_a = nb::none(), "column"_a = 0, "scope"_a = "tokens", "name"_a, "layer"_a = -1, nb::keep_alive<1, 3>())
        .def("rope", &BoundTape::rope, "qkv"_a, "cache"_a, "q"_a, nb::kw_only(), "num_heads"_a, "rotated"_a,
             "interleaved"_a = false, "temperature"_a = nb::none(), "rotation"_a = nb::none(), "sink_rotation"_a = nb::none(), "q_sink"_a = nb::none(), "q_norm"_a.noconvert() = nb::none(),
             "k_norm"_a.noconvert() = nb::none(), "normed"_a = false, "v_norm"_a = false, "keys_are_values"_a = false, "writes"_a = true,
             "eps"_a = 0.0F, "layer"_a = -1)
        .def("latent", &BoundTape::latent, "query"_a, "latent"_a, "cache"_a, "q"_a, nb::kw_only(), "num_heads"_a,
             "key_dim"_a, "interleaved"_a, "rotation"_a, "layer"_a = -1)
        .def("heads_linear", &BoundTape::heads_linear, "source"_a, "weight"_a, "out"_a, nb::kw_only(), "inputs"_a,
             "outputs"_a, "scope"_a = "tokens", "name"_a, "layer"_a = -1, nb::keep_alive<1, 3>())
        .def("attention", &BoundTape::attention, "q"_a, "q_sink"_a.none(), "cache"_a, "out"_a, nb::kw_only(),
             "num_heads"_a, "scale"_a, "window"_a = 0, "chunked"_a = false, "sinks"_a = 0, "soft_cap"_a = 0.0F, "slopes"_a.noconvert() = nb::none(),
             "learned_sinks"_a.noconvert() = nb::none(), "layer"_a = -1)
        .def("logits", &BoundTape::logits, "source"_a, "head"_a, "soft_cap"_a = 0.0F, "scale"_a = 1.0F,
             nb::keep_alive<1, 3>())
        .def("run", &BoundTape::run, "ids"_a.noconvert(), "positions"_a.noconvert(), "cu_q"_a.noconvert(),
             "kv_lens"_a.noconvert(), "groups"_a, "wanted_rows"_a.noconvert(), "best"_a.noconvert() = nb::none(),
             "hidden"_a.noconvert() = nb::none(), "states"_a.noconvert() = std::vector<States>())
        .def("profile", [](BoundTape& self, bool on) { self.tape().profile(on); }, "on"_a)
        .def("clear_costs", [](BoundTape& self) { self.tape().clear_profile(); })
        .def("costs", &BoundTape::costs)
        .def_prop_ro("nbytes", [](BoundTape& self) { return self.tape().arena_bytes(); });
}

}  // namespace headrace
