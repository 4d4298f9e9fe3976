#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "bindings.h"
#include "names.h"
#include "packed_matrix.h"

namespace nb = nanobind;

namespace headrace {
namespace {

using Input = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Indices = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Made = nb::ndarray<nb::numpy, T, nb::c_contig, nb::device::cpu>;

void require(bool holds, const char* otherwise) {
    if (!holds) throw std::invalid_argument(otherwise);
}

template <typename T>
Made<T> array_of(std::initializer_list<std::size_t> shape) {
    std::size_t count = 1;
    for (const std::size_t size : shape) count *= size;
    auto* memory = new T[count == 0 ? 1 : count];
    nb::capsule owner(memory, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return Made<T>(memory, shape, owner);
}

using Routed = std::tuple<Made<std::int32_t>, Made<float>, Made<float>, Made<std::int32_t>, Made<std::int32_t>, Made<std::int32_t>>;

Routed route(const KernelSet& kernels, Team& team, const Input& logits, int num_experts, int top_k, const std::string& scores,
             bool normalize, float scale, int groups, int top_groups, const std::string& group_score, bool shared,
             std::optional<Vector> bias, std::optional<Vector> expert_scale) {
    require(num_experts >= 1 && num_experts <= kMaxExperts, "there are between one and 4096 experts");
    require(top_k >= 1 && top_k <= kMaxChoices && top_k <= num_experts, "a row has between one and 64 of the experts");
    require(static_cast<int>(logits.shape(1)) == num_experts + (shared ? 1 : 0), "there is one logit an expert");
    require(!bias || static_cast<int>(bias->size()) == num_experts, "the bias of the choice has one number an expert");
    require(!expert_scale || static_cast<int>(expert_scale->size()) == num_experts, "there is one scale an expert");
    const std::size_t rows = logits.shape(0), each = top_k, pairs = rows * each, experts = num_experts;
    require(pairs <= std::size_t{1} << 30, "there are too many rows");
    auto chosen = array_of<std::int32_t>({rows, each});
    auto weights = array_of<float>({rows, each});
    auto gates = array_of<float>({rows});
    auto places = array_of<std::int32_t>({rows, each});
    auto sources = array_of<std::int32_t>({pairs});
    auto begins = array_of<std::int32_t>({experts + 1});
    std::vector<std::int32_t> used(experts + 1);
    RouteArgs args;
    args.logits = logits.data();
    args.logits_stride = logits.shape(1) * sizeof(float);
    args.bias = bias ? bias->data() : nullptr;
    args.expert_scale = expert_scale ? expert_scale->data() : nullptr;
    args.rows = static_cast<int>(rows);
    args.scores = scores_of(scores);
    args.normalize = normalize;
    args.scale = scale;
    args.groups = groups;
    args.top_groups = top_groups;
    args.group_score = group_score_of(group_score);
    args.shared = shared;
    args.out = {num_experts, top_k, chosen.data(), weights.data(), gates.data(), places.data(), sources.data(), begins.data(),
                used.data()};
    check_groups(args);
    std::fill_n(gates.data(), rows, 1.0F);
    {
        const nb::gil_scoped_release released;
        kernels.table->route(args, team);
    }
    return {chosen, weights, gates, places, sources, begins};
}

// Rows of x that are routed already, `begins` of them before each expert's.
Made<float> expert_linear(const KernelSet& kernels, Team& team, const Input& x, const PackedMatrix& matrix,
                          const Indices& begins, const std::string& epilogue, const std::string& gate) {
    const Matrix& weight = matrix.matrix();
    const std::size_t rows = x.shape(0), experts = weight.experts;
    require(static_cast<int>(x.shape(1)) == weight.cols, "x and w differ in their columns");
    require(weight.order == nullptr, "a matrix of experts has its columns in order");
    require(begins.size() == experts + 1 && begins.data()[0] == 0 && static_cast<std::size_t>(begins.data()[experts]) == rows &&
                std::is_sorted(begins.data(), begins.data() + experts + 1),
            "begins go from 0 to the number of rows, one for each expert");
    ExpertsArgs args;
    args.linear.weight = &weight;
    args.linear.epilogue = epilogue_of(epilogue);
    args.linear.gate = gate_of(gate);
    const bool gated = args.linear.epilogue == Epilogue::gate;
    require(gated || args.linear.epilogue == Epilogue::store, "products of experts are stored, or gated");
    require(!gated || (weight.panels % 2 == 0 && args.linear.gate != Gate::none), "gate needs a matrix of gate and up");
    const std::size_t features = gated ? weight.panels * kPanel / 2 : weight.rows;
    auto out = array_of<float>({rows, features});
    std::vector<std::int32_t> used(experts + 1);
    for (std::size_t e = 0; e < experts; ++e) {
        if (begins.data()[e] < begins.data()[e + 1]) used[1 + used[0]++] = static_cast<std::int32_t>(e);
    }
    args.routing = {.experts = weight.experts, .each = 1, .begins = const_cast<std::int32_t*>(begins.data()), .used = used.data()};
    args.rows = static_cast<int>(rows);
    args.linear.out = out.data();
    args.linear.out_stride = features * sizeof(float);
    {
        const nb::gil_scoped_release released;
        Arena arena;
        args.linear.in = rows_for(weight, args.rows, arena);
        EncodeArgs encode;
        encode.in = x.data();
        encode.in_stride = x.shape(1) * sizeof(float);
        encode.rows = args.rows;
        encode.cols = weight.cols;
        encode.cols_padded = weight.cols_padded;
        encode.out = args.linear.in;
        kernels.table->encode(encode, team);
        kernels.table->experts(args, team);
    }
    return out;
}

// x [T, H * inputs], of which each head's matrix reads the first columns.
Made<float> heads_linear(const KernelSet& kernels, Team& team, const Input& x, const PackedMatrix& matrix, int inputs) {
    const Matrix& weight = matrix.matrix();
    const std::size_t rows = x.shape(0), features = static_cast<std::size_t>(weight.rows) * weight.experts;
    require(static_cast<int>(x.shape(1)) == inputs * weight.experts, "x has so many features for each head");
    auto out = array_of<float>({rows, features});
    HeadsArgs args;
    args.linear.weight = &weight;
    args.linear.rows = static_cast<int>(rows);
    args.linear.out = out.data();
    args.linear.out_stride = features * sizeof(float);
    args.inputs = inputs;
    args.outputs = weight.rows;
    {
        const nb::gil_scoped_release released;
        Arena arena;
        EncodeArgs encode;
        encode.in = x.data();
        encode.in_stride = x.shape(1) * sizeof(float);
        encode.rows = args.linear.rows;
        encode.cols = static_cast<int>(x.shape(1));
        encode.cols_padded = (encode.cols + kInputAlign - 1) / kInputAlign * kInputAlign;
        Matrix whole = weight;  // as wide as the features of all heads
        whole.cols = encode.cols;
        whole.cols_padded = encode.cols_padded;
        args.linear.in = encode.out = rows_for(whole, args.linear.rows, arena);
        check_heads(args);
        kernels.table->encode(encode, team);
        kernels.table->heads_linear(args, team);
    }
    return out;
}

}  // namespace

void check_heads(const HeadsArgs& args) {
    const LinearArgs& a = args.linear;
    const Matrix& m = *a.weight;
    const auto others = static_cast<std::size_t>(m.experts - 1);
    require(m.input != DType::i8 && a.in.type == m.input, "matrices of heads are floats, and activations encoded as they want them");
    require(m.cols == m.cols_padded, "matrices of heads have a multiple of 64 columns");
    require(args.inputs >= m.cols && args.outputs >= m.rows, "heads have fewer features than their matrices");
    require(a.in.stride >= (others * args.inputs + m.cols) * dtype_bytes(a.in.type) &&
                a.out_stride >= (others * args.outputs + m.rows) * dtype_bytes(a.out_type),
            "the heads do not fit their rows");
    require(a.out_type != DType::i8, "a product is written as f32 or bf16");
}

void check_groups(const RouteArgs& args) {
    const int experts = args.out.experts, least = args.group_score == GroupScore::top2 ? 2 : 1;
    require(args.groups >= 1 && experts % args.groups == 0, "groups divide the experts");
    require(args.top_groups >= 1 && args.top_groups <= args.groups && args.top_groups <= kMaxChoices, "there are too few groups");
    const int size = experts / args.groups;
    require(size >= least || args.top_groups == args.groups, "a group has too few experts for its score");
    require(args.top_groups * size >= args.out.each, "the best groups hold too few experts for the choice");
}

void bind_experts(nb::module_& m) {
    m.def("route", &route, nb::arg("kernels"), nb::arg("team"), nb::arg("logits"), nb::kw_only(), nb::arg("num_experts"),
          nb::arg("top_k"), nb::arg("scores") = "softmax", nb::arg("normalize") = false, nb::arg("scale") = 1.0F,
          nb::arg("groups") = 1, nb::arg("top_groups") = 1, nb::arg("group_score") = "max", nb::arg("shared") = false,
          nb::arg("bias") = nb::none(), nb::arg("expert_scale") = nb::none());
    m.def("expert_linear", &expert_linear, nb::arg("kernels"), nb::arg("team"), nb::arg("x"), nb::arg("w"),
          nb::arg("begins"), nb::kw_only(), nb::arg("epilogue") = "store", nb::arg("gate") = "none");
    m.def("heads_linear", &heads_linear, nb::arg("kernels"), nb::arg("team"), nb::arg("x"), nb::arg("w"), nb::kw_only(),
          nb::arg("inputs"));
}

}  // namespace headrace
