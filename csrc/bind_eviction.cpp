// The parts of eviction on numpy arrays, for tests. bfloat16 travels as uint16, e4m3 as uint8.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <stdexcept>
#include <vector>

#include "bindings.h"
#include "eviction.h"

namespace nb = nanobind;

namespace headrace {
namespace {

template <typename T, int Dims>
using Array = nb::ndarray<T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
using AnyArray = nb::ndarray<nb::c_contig, nb::device::cpu>;

void require(bool condition, const char* message) {
    if (!condition) throw std::invalid_argument(message);
}

// [N, Hkv, block_size rounded up to 16 * head_dim], scales [N, Hkv, block_size rounded up to 16].
KVCache cache_of(const AnyArray& keys, const AnyArray& values, const std::optional<Array<float, 3>>& key_scales,
                 const std::optional<Array<float, 3>>& value_scales, int head_dim, int block_size) {
    KVCache kv;
    kv.type = keys.dtype() == nb::dtype<float>()           ? DType::f32
              : keys.dtype() == nb::dtype<std::uint16_t>() ? DType::bf16
              : keys.dtype() == nb::dtype<std::uint8_t>()  ? DType::e4m3
                                                           : DType::i8;
    require(kv.type != DType::i8 || keys.dtype() == nb::dtype<std::int8_t>(), "arrays are float32, uint16, int8 or uint8");
    require(head_dim > 0 && head_dim % 16 == 0 && head_dim <= kMaxHeadDim && block_size > 0, "a cache has heads and blocks");
    kv.head_dim = kv.value_dim = head_dim;
    kv.block_size = block_size;
    kv.block_stride = (block_size + 15) / 16 * 16;
    require(keys.ndim() == 3 && values.ndim() == 3 && keys.dtype() == values.dtype() && keys.size() == values.size() &&
                keys.shape(2) == static_cast<std::size_t>(kv.block_stride) * head_dim,
            "keys and values must be [N, Hkv, block_size rounded up to 16 * head_dim]");
    kv.num_kv_heads = static_cast<int>(keys.shape(1));
    kv.keys = keys.data();
    kv.values = values.data();
    if (is_coded(kv.type)) {
        const std::size_t scales = keys.shape(0) * keys.shape(1) * kv.block_stride;
        require(key_scales && value_scales && key_scales->size() == scales && value_scales->size() == scales, "codes need scales");
        kv.key_scales = key_scales->data();
        kv.value_scales = value_scales->data();
    }
    return kv;
}

void check_table(const KVCache& kv, const AnyArray& keys, const Array<const std::int32_t, 1>& table, std::int64_t places) {
    require(places <= static_cast<std::int64_t>(table.size()) * kv.block_size, "the table is too short");
    for (std::size_t i = 0; i < table.size(); ++i) {
        require(table.data()[i] >= 0 && table.data()[i] < static_cast<std::int64_t>(keys.shape(0)), "the table points outside the cache");
    }
}

void mass(const KernelSet& set, const AnyArray& q, const AnyArray& keys, const AnyArray& values, const Array<const std::int32_t, 1>& table,
          const Array<float, 1>& sums, int head, int each, std::int64_t first, int block_size, float scale, float soft_cap,
          std::optional<Array<float, 3>> key_scales, std::optional<Array<float, 3>> value_scales,
          std::optional<Array<const float, 1>> learned_sinks) {
    require(q.ndim() == 2 && each > 0 && q.shape(0) % each == 0 && first >= 0, "q must be [tokens * each, head_dim]");
    MassArgs args;
    args.q = q.data();
    args.rows = static_cast<int>(q.shape(0));
    args.each = each;
    args.kv = cache_of(keys, values, key_scales, value_scales, static_cast<int>(q.shape(1)), block_size);
    require(q.dtype() == (args.kv.type == DType::f32 ? nb::dtype<float>() : nb::dtype<std::uint16_t>()), "queries do not match the cache");
    require(head >= 0 && head < args.kv.num_kv_heads, "there is no such head");
    const std::int64_t places = first + args.rows / each;
    check_table(args.kv, keys, table, places);
    require(static_cast<std::int64_t>(sums.size()) >= places, "there is one sum a place");
    require(!learned_sinks || static_cast<int>(learned_sinks->size()) == each, "there is one learned sink a row of a token");
    args.table = table.data();
    args.head = head;
    args.first = first;
    args.scale = scale;
    args.soft_cap = soft_cap;
    args.learned_sinks = learned_sinks ? learned_sinks->data() : nullptr;
    args.stride = (static_cast<std::size_t>(places) + 31) / 16 * 16;
    std::vector<float> scores(kMassRows * args.stride);
    args.scores = scores.data();
    args.sums = sums.data();
    set.table->attention_mass(args);
}

void kept(const Array<const float, 1>& sums, const Array<std::int32_t, 1>& out, int sinks, int recent) {
    const int count = static_cast<int>(sums.size()), budget = static_cast<int>(out.size());
    require(sinks >= 0 && recent >= 0 && sinks + recent <= budget && budget > 0 && budget < count, "what stays is fewer than all, sinks and recent tokens among it");
    std::vector<std::int32_t> work(2 * static_cast<std::size_t>(count));
    choose_kept({budget, sinks, recent, count, count}, sums.data(), count, work.data(), out.data());
}

void moved(const AnyArray& keys, const AnyArray& values, const Array<const std::int32_t, 1>& from, const Array<const std::int32_t, 1>& to,
           const Array<const std::int32_t, 1>& tokens, int head, int head_dim, int block_size, std::optional<Array<float, 3>> key_scales,
           std::optional<Array<float, 3>> value_scales) {
    const KVCache kv = cache_of(keys, values, key_scales, value_scales, head_dim, block_size);
    require(head >= 0 && head < kv.num_kv_heads, "there is no such head");
    check_table(kv, keys, to, static_cast<std::int64_t>(tokens.size()));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        require(tokens.data()[i] >= 0, "a token has a place");
        check_table(kv, keys, from, std::int64_t{tokens.data()[i]} + 1);
    }
    move_kept(kv, from.data(), to.data(), head, tokens.data(), static_cast<int>(tokens.size()));
}

}  // namespace

void bind_eviction_parts(nb::module_& m) {
    using namespace nb::literals;
    m.def("attention_mass", &mass, "kernels"_a, "q"_a.noconvert(), "keys"_a.noconvert(), "values"_a.noconvert(), "table"_a.noconvert(),
          "sums"_a.noconvert(), nb::kw_only(), "head"_a, "each"_a, "first"_a, "block_size"_a, "scale"_a, "soft_cap"_a = 0.0F,
          "key_scales"_a.noconvert() = nb::none(), "value_scales"_a.noconvert() = nb::none(), "learned_sinks"_a.noconvert() = nb::none());
    m.def("choose_kept", &kept, "sums"_a.noconvert(), "kept"_a.noconvert(), nb::kw_only(), "sinks"_a, "recent"_a);
    m.def("move_kept", &moved, "keys"_a.noconvert(), "values"_a.noconvert(), "source"_a.noconvert(), "target"_a.noconvert(),
          "tokens"_a.noconvert(), nb::kw_only(), "head"_a, "head_dim"_a, "block_size"_a, "key_scales"_a.noconvert() = nb::none(),
          "value_scales"_a.noconvert() = nb::none());
}

}  // namespace headrace
