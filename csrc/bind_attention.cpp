// rotations, rope_and_write and attention on numpy arrays, for tests and measurements. bfloat16 travels as uint16.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <tuple>

#include "bindings.h"
#include "kernels.h"
#include "team.h"

namespace nb = nanobind;

namespace headrace {
namespace {

template <typename T, int Dims>
using Array = nb::ndarray<const T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
using AnyArray = nb::ndarray<nb::c_contig, nb::device::cpu>;
using Result = nb::ndarray<nb::numpy>;

struct Aligned {
    explicit Aligned(std::size_t bytes) : data(::operator new(bytes, std::align_val_t{64})) { std::memset(data, 0, bytes); }
    ~Aligned() { ::operator delete(data, std::align_val_t{64}); }
    Aligned(const Aligned&) = delete;
    Aligned& operator=(const Aligned&) = delete;
    void* data;
};

// A new array of zeros that Python owns.
Result make(std::initializer_list<std::size_t> shape, nb::dlpack::dtype type) {
    std::size_t count = 1;
    for (const std::size_t n : shape) count *= n;
    auto memory = std::make_unique<Aligned>(count * type.bits / 8 + 64);
    void* data = memory->data;
    nb::capsule owner(memory.release(), [](void* p) noexcept { delete static_cast<Aligned*>(p); });
    return Result(data, shape.size(), shape.begin(), owner, nullptr, type);
}

void require(bool condition, const char* message) {
    if (!condition) throw std::invalid_argument(message);
}

DType type_of(const AnyArray& array) {
    if (array.dtype() == nb::dtype<float>()) return DType::f32;
    if (array.dtype() == nb::dtype<std::uint16_t>()) return DType::bf16;
    if (array.dtype() == nb::dtype<std::uint8_t>()) return DType::e4m3;
    require(array.dtype() == nb::dtype<std::int8_t>(), "arrays are float32, uint16 (bfloat16), int8 or uint8 (e4m3 or two i4)");
    return DType::i8;
}

nb::dlpack::dtype numpy_type(DType type) {
    return type == DType::f32 ? nb::dtype<float>() : nb::dtype<std::uint16_t>();
}

// The recent cache of i4: keys and values as those of a bf16 cache, and slots [T], or block tables [S, B] and dropped [S].
using RecentSlots = std::tuple<AnyArray, AnyArray, Array<std::int64_t, 1>>;
using RecentTables = std::tuple<AnyArray, AnyArray, Array<std::int32_t, 2>, Array<std::int32_t, 1>>;

// keys, values [N, Hkv, block_stride * D], half of that for i4; scales [N, Hkv, block_stride] for int8 and e4m3.
template <typename Recent>
KVCache cache_of(const AnyArray& keys, const AnyArray& values, const std::optional<AnyArray>& key_scales,
                 const std::optional<AnyArray>& value_scales, int head_dim, int block_size, const std::optional<Recent>& recent) {
    KVCache kv;
    kv.type = recent ? DType::i4 : type_of(keys);
    kv.head_dim = kv.value_dim = head_dim;
    kv.block_size = block_size;
    kv.block_stride = (block_size + 15) / 16 * 16;
    require(head_dim > 0 && head_dim % 16 == 0, "head_dim must be a multiple of 16");
    require(head_dim <= kMaxHeadDim, "head_dim must not exceed 1024");
    require(block_size > 0, "block_size must be positive");
    require(values.dtype() == keys.dtype(), "keys and values must have one type");
    require(keys.ndim() == 3 && values.ndim() == 3 && keys.shape(0) == values.shape(0) &&
                keys.shape(1) == values.shape(1) && keys.shape(2) == values.shape(2) &&
                keys.shape(2) * keys.dtype().bits / 8 == bytes_of(kv.type, static_cast<std::size_t>(kv.block_stride) * head_dim),
            "keys and values must be [N, Hkv, block_size rounded up to 16 * head_dim]");
    kv.num_kv_heads = static_cast<int>(keys.shape(1));
    kv.keys = keys.data();
    kv.values = values.data();
    if (recent) {
        require(block_size % 16 == 0 && block_size <= 64, "blocks of i4 hold 16, 32, 48 or 64 positions");
        require(key_scales && value_scales && key_scales->dtype() == nb::dtype<std::uint16_t>() && value_scales->dtype() == key_scales->dtype() &&
                    key_scales->size() == keys.shape(0) * keys.shape(1) * head_dim * 2 &&
                    value_scales->size() == keys.shape(0) * keys.shape(1) * block_size,
                "i4 keys and values need bfloat16 scales [N, Hkv, head_dim, 2] and [N, Hkv, block_size]");
        const AnyArray &wide_keys = std::get<0>(*recent), &wide_values = std::get<1>(*recent);
        require(type_of(wide_keys) == DType::bf16 && type_of(wide_values) == DType::bf16 && wide_keys.size() == wide_values.size() &&
                    wide_keys.size() % (keys.shape(1) * block_size * head_dim) == 0, "recent keys and values are blocks of bfloat16");
        kv.recent_keys = wide_keys.data();
        kv.recent_values = wide_values.data();
        kv.recent_group = 1;
        kv.key_scales = key_scales->data();
        kv.value_scales = value_scales->data();
    } else if (is_coded(kv.type)) {
        for (const auto* scales : {&key_scales, &value_scales}) {
            require(scales->has_value() && (*scales)->dtype() == nb::dtype<float>() &&
                        (*scales)->size() == keys.shape(0) * keys.shape(1) * kv.block_stride,
                    "keys and values of codes need float32 scales [N, Hkv, block_size rounded up to 16]");
        }
        kv.key_scales = key_scales->data();
        kv.value_scales = value_scales->data();
    }
    return kv;
}

nb::tuple bind_rotations(const KernelSet& set, Team& team, Array<std::int64_t, 1> positions,
                         Array<double, 1> frequencies, double factor, std::int64_t limit) {
    const Kernels& kernels = *set.table;
    Step step;
    step.tokens = static_cast<int>(positions.shape(0));
    step.positions = positions.data();
    RotationArgs args;
    args.step = &step;
    args.frequencies = frequencies.data();
    args.half = static_cast<int>(frequencies.shape(0));
    args.factor = factor;
    args.limit = limit;
    Result cos = make({positions.shape(0), frequencies.shape(0)}, nb::dtype<float>());
    Result sin = make({positions.shape(0), frequencies.shape(0)}, nb::dtype<float>());
    args.cos = static_cast<float*>(cos.data());
    args.sin = static_cast<float*>(sin.data());
    {
        nb::gil_scoped_release release;
        kernels.rotations(args, team);
    }
    return nb::make_tuple(cos, sin);
}

nb::tuple bind_rope_and_write(const KernelSet& set, Team& team, Array<float, 2> qkv, AnyArray keys, AnyArray values,
                              Array<std::int64_t, 1> slots, Array<float, 2> cos, Array<float, 2> sin, int num_heads,
                              int head_dim, int block_size, std::optional<AnyArray> key_scales,
                              std::optional<AnyArray> value_scales, std::optional<Array<float, 1>> q_norm,
                              std::optional<Array<float, 1>> k_norm, float eps, std::optional<Array<float, 2>> sink_cos,
                              std::optional<Array<float, 2>> sink_sin, bool interleaved, bool normed, bool v_norm,
                              bool keys_are_values, std::optional<RecentSlots> recent) {
    const Kernels& kernels = *set.table;
    RopeArgs args;
    args.kv = cache_of(keys, values, key_scales, value_scales, head_dim, block_size, recent);
    const std::size_t tokens = qkv.shape(0), num_kv = keys.shape(1);
    require(num_heads > 0 && num_heads % args.kv.num_kv_heads == 0, "num_heads must be a multiple of the KV heads");
    require(qkv.shape(1) == (num_heads + (keys_are_values ? 1 : 2) * num_kv) * head_dim, "qkv must be [T, (Hq + 2 Hkv) * D]");
    require(slots.shape(0) == tokens && cos.shape(0) == tokens && sin.shape(0) == tokens, "one slot and angle a token");
    require(cos.shape(1) == sin.shape(1) && 2 * cos.shape(1) <= static_cast<std::size_t>(head_dim), "cos and sin must be [T, R / 2]");
    require(sink_cos.has_value() == sink_sin.has_value(), "sink_cos and sink_sin come together");
    for (std::size_t t = 0; t < tokens; ++t) {
        require(slots.data()[t] >= -1 && slots.data()[t] < static_cast<std::int64_t>(keys.shape(0)) * block_size,
                "a slot outside the cache");
    }
    GroupTables tables[2];
    tables[0].slots = slots.data();
    if (recent) {
        const auto& own = std::get<2>(*recent);
        const std::size_t places = std::get<0>(*recent).size() / (num_kv * head_dim);
        require(own.shape(0) == tokens, "one recent slot a token");
        for (std::size_t t = 0; t < tokens; ++t) {
            require(own.data()[t] >= -1 && own.data()[t] < static_cast<std::int64_t>(places), "a slot outside the recent cache");
        }
        tables[1].slots = own.data();
    }
    Step step;
    step.tokens = static_cast<int>(tokens);
    step.groups = tables;
    args.qkv = qkv.data();
    args.qkv_stride = qkv.shape(1) * sizeof(float);
    args.num_heads = num_heads;
    args.rotated = static_cast<int>(2 * cos.shape(1));
    args.interleaved = interleaved;
    args.v_norm = v_norm;
    args.keys_are_values = keys_are_values;
    args.normed = normed || q_norm || k_norm;
    args.q_norm = q_norm ? q_norm->data() : nullptr;
    args.k_norm = k_norm ? k_norm->data() : nullptr;
    args.eps = eps;
    args.cos = cos.data();
    args.sin = sin.data();
    args.sink_cos = sink_cos ? sink_cos->data() : nullptr;
    args.sink_sin = sink_sin ? sink_sin->data() : nullptr;
    args.step = &step;
    args.q_type = args.kv.type == DType::f32 ? DType::f32 : DType::bf16;
    const std::size_t group = num_heads / num_kv, dim = head_dim;
    Result q = make({num_kv, tokens, group, dim}, numpy_type(args.q_type));
    args.q = q.data();
    std::optional<Result> q_sink;
    if (sink_cos) {
        q_sink = make({num_kv, tokens, group, dim}, numpy_type(args.q_type));
        args.q_sink = q_sink->data();
    }
    {
        nb::gil_scoped_release release;
        kernels.rope_and_write(args, team);
    }
    return nb::make_tuple(q, q_sink ? nb::cast(*q_sink) : nb::none());
}

Result bind_paged_attention(const KernelSet& set, Team& team, AnyArray q, AnyArray keys, AnyArray values,
                            Array<std::int32_t, 1> cu_q, Array<std::int32_t, 1> kv_lens,
                            Array<std::int64_t, 1> positions, Array<std::int32_t, 2> block_tables,
                            Array<std::int32_t, 1> dropped, int sink_blocks, int block_size, float scale, int window,
                            bool chunked, int sinks, float soft_cap, std::optional<AnyArray> q_sink,
                            std::optional<AnyArray> key_scales, std::optional<AnyArray> value_scales,
                            const std::string& out_dtype, std::optional<Array<float, 1>> learned_sinks,
                            std::optional<Array<float, 1>> slopes, std::optional<RecentTables> recent) {
    const Kernels& kernels = *set.table;
    require(q.ndim() == 4, "q must be [Hkv, T, G, D]");
    AttentionArgs args;
    args.kv = cache_of(keys, values, key_scales, value_scales, static_cast<int>(q.shape(3)), block_size, recent);
    require(type_of(q) == (args.kv.type == DType::f32 ? DType::f32 : DType::bf16),
            "q must be float32 with a float32 cache, else bfloat16");
    const std::size_t tokens = q.shape(1), seqs = kv_lens.shape(0);
    require(q.shape(0) == keys.shape(1) && positions.shape(0) == tokens, "q, positions and keys disagree");
    require(cu_q.shape(0) == seqs + 1 && block_tables.shape(0) == seqs && dropped.shape(0) == seqs,
            "cu_q, kv_lens, block_tables and dropped disagree");
    require(seqs > 0 && cu_q.data()[0] == 0 && cu_q.data()[seqs] == static_cast<int>(tokens), "cu_q must cover all tokens");
    for (std::size_t s = 0; s < seqs; ++s) require(cu_q.data()[s] <= cu_q.data()[s + 1], "cu_q must not fall");
    require(sink_blocks >= 0 && window >= 0 && sinks >= 0, "sink_blocks, window and sinks must not be negative");
    for (std::size_t s = 0; s < seqs; ++s) {
        const std::int64_t gone = dropped.data()[s];
        const std::int64_t live = (static_cast<std::int64_t>(kv_lens.data()[s]) + block_size - 1) / block_size - gone;
        require(gone >= 0 && live <= static_cast<std::int64_t>(block_tables.shape(1)), "a block table is too short");
        require(gone == 0 || live >= sink_blocks, "a block table has dropped blocks that hold sinks");
        for (std::int64_t b = 0; b < live; ++b) {
            const std::int32_t block = block_tables.data()[s * block_tables.shape(1) + b];
            require(block >= 0 && block < static_cast<std::int32_t>(keys.shape(0)), "a block outside the cache");
        }
        for (int t = cu_q.data()[s]; t < cu_q.data()[s + 1]; ++t) {
            require(positions.data()[t] >= 0 && positions.data()[t] < kv_lens.data()[s], "a position behind kv_len");
        }
    }
    if (q_sink) require(q_sink->dtype() == q.dtype() && q_sink->size() == q.size(), "q_sink must look like q");
    require(out_dtype == "f32" || out_dtype == "bf16", "out_dtype must be f32 or bf16");
    GroupTables tables[2];
    tables[0].block_tables = block_tables.data();
    tables[0].dropped = dropped.data();
    tables[0].table_width = static_cast<int>(block_tables.shape(1));
    tables[0].sink_blocks = sink_blocks;
    if (recent) {
        const auto& [wide_keys, wide_values, blocks, gone] = *recent;
        const std::size_t places = wide_keys.size() / (q.shape(0) * block_size * q.shape(3));
        require(blocks.shape(0) == seqs && gone.shape(0) == seqs, "recent block_tables and dropped disagree");
        for (std::size_t s = 0; s < seqs; ++s) {
            if (cu_q.data()[s] == cu_q.data()[s + 1]) continue;
            const std::int64_t first = positions.data()[cu_q.data()[s]] / block_size - gone.data()[s];
            const std::int64_t last = (kv_lens.data()[s] - 1) / block_size - gone.data()[s];
            require(gone.data()[s] >= 0 && first >= 0 && last < static_cast<std::int64_t>(blocks.shape(1)), "a recent block table is too short");
            for (std::int64_t b = first; b <= last; ++b) {
                const std::int32_t block = blocks.data()[s * blocks.shape(1) + b];
                require(block >= 0 && block < static_cast<std::int32_t>(places), "a block outside the recent cache");
            }
        }
        tables[1].block_tables = blocks.data();
        tables[1].dropped = gone.data();
        tables[1].table_width = static_cast<int>(blocks.shape(1));
    }
    Step step;
    step.tokens = static_cast<int>(tokens);
    step.seqs = static_cast<int>(seqs);
    step.positions = positions.data();
    step.cu_q = cu_q.data();
    step.kv_lens = kv_lens.data();
    step.groups = tables;
    args.q = q.data();
    args.q_sink = q_sink ? q_sink->data() : nullptr;
    args.step = &step;
    args.num_heads = static_cast<int>(q.shape(0) * q.shape(2));
    args.scale = scale;
    args.window = window;
    args.chunked = chunked;
    args.sinks = sinks;
    args.soft_cap = soft_cap;
    if (slopes) {
        require(slopes->shape(0) == static_cast<std::size_t>(args.num_heads) && scale > 0, "there is one slope a head");
        args.slopes = slopes->data();
    }
    if (learned_sinks) {
        require(learned_sinks->shape(0) == static_cast<std::size_t>(args.num_heads), "there is one learned sink a head");
        args.learned_sinks = learned_sinks->data();
    }
    args.out_type = out_dtype == "f32" ? DType::f32 : DType::bf16;
    const std::size_t width = q.shape(0) * q.shape(2) * q.shape(3);
    Result out = make({tokens, width}, numpy_type(args.out_type));
    args.out = out.data();
    args.out_stride = width * dtype_bytes(args.out_type);
    {
        nb::gil_scoped_release release;
        const Aligned scratch(kernels.attention_scratch(args, step.tokens, step.seqs, team.size()));
        args.scratch = scratch.data;
        kernels.attention(args, team);
    }
    return out;
}

}  // namespace

void bind_attention(nb::module_& m) {
    m.def("rotations", &bind_rotations, nb::arg("kernels"), nb::arg("team"), nb::arg("positions"),
          nb::arg("frequencies"), nb::kw_only(), nb::arg("factor") = 1.0, nb::arg("limit") = 0);
    m.def("rope_and_write", &bind_rope_and_write, nb::arg("kernels"), nb::arg("team"), nb::arg("qkv"), nb::arg("keys"),
          nb::arg("values"), nb::arg("slots"), nb::arg("cos"), nb::arg("sin"), nb::kw_only(), nb::arg("num_heads"),
          nb::arg("head_dim"), nb::arg("block_size"), nb::arg("key_scales") = nb::none(),
          nb::arg("value_scales") = nb::none(), nb::arg("q_norm") = nb::none(), nb::arg("k_norm") = nb::none(),
          nb::arg("eps") = 0.0f, nb::arg("sink_cos") = nb::none(), nb::arg("sink_sin") = nb::none(),
          nb::arg("interleaved") = false, nb::arg("normed") = false, nb::arg("v_norm") = false, nb::arg("keys_are_values") = false,
          nb::arg("recent") = nb::none());
    m.def("paged_attention", &bind_paged_attention, nb::arg("kernels"), nb::arg("team"), nb::arg("q"), nb::arg("keys"),
          nb::arg("values"), nb::kw_only(), nb::arg("cu_q"), nb::arg("kv_lens"), nb::arg("positions"),
          nb::arg("block_tables"), nb::arg("dropped"), nb::arg("sink_blocks"), nb::arg("block_size"), nb::arg("scale"),
          nb::arg("window") = 0, nb::arg("chunked") = false, nb::arg("sinks") = 0, nb::arg("soft_cap") = 0.0f, nb::arg("q_sink") = nb::none(),
          nb::arg("key_scales") = nb::none(), nb::arg("value_scales") = nb::none(), nb::arg("out_dtype") = "f32",
          nb::arg("learned_sinks") = nb::none(), nb::arg("slopes") = nb::none(), nb::arg("recent") = nb::none());
}

}  // namespace headrace
