// The row-wise kernels one at a time, for tests; a model runs them from its tape.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include "bindings.h"
#include "names.h"

namespace nb = nanobind;

namespace headrace {
namespace {

using Matrix2 = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Encoded = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Longs = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Sums = nb::ndarray<std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// `out` [rows, bytes of a padded row]; `scales` and `sums` [rows, groups] for i8.
void encode(const KernelSet& kernels, Team& team, const Matrix2& x, const std::string& type, const Encoded& out,
            std::optional<Floats> norm, float eps, int group, std::optional<Matrix2> scales, std::optional<Sums> sums,
            std::optional<Longs> gather, std::optional<Floats> bias, bool centred, const std::string& gate) {
    EncodeArgs args;
    args.in = x.data();
    args.in_stride = x.shape(1) * sizeof(float);
    args.gather = gather ? gather->data() : nullptr;
    args.norm = {norm ? norm->data() : nullptr, bias ? bias->data() : nullptr, centred, eps};
    args.gate = gate_of(gate);
    args.rows = static_cast<int>(out.shape(0));
    args.cols = static_cast<int>(x.shape(1));
    args.out.type = dtype_of(type);
    args.out.data = out.data();
    args.out.stride = out.shape(1);
    args.cols_padded = static_cast<int>(out.shape(1) / dtype_bytes(args.out.type));
    if (args.cols_padded % kInputAlign != 0 || args.cols_padded < args.cols) throw nb::value_error("out is not padded");
    if ((gather ? gather->size() : x.shape(0)) != out.shape(0)) throw nb::value_error("out has another number of rows");
    if (bias && bias->size() != x.shape(1)) throw nb::value_error("bias has another number of columns");
    if (norm && norm->size() != x.shape(1)) throw nb::value_error("norm has another number of columns");
    if (args.out.type == DType::i8) {
        if (!scales || !sums || group < 1) throw nb::value_error("i8 needs scales, sums and a group");
        args.out.scales = scales->data();
        args.out.sums = sums->data();
        args.out.group = group;
        args.out.groups = (args.cols_padded + group - 1) / group;
    }
    const nb::gil_scoped_release released;
    kernels.table->encode(args, team);
}

// `table`: an array, or a PackedMatrix.
void embed(const KernelSet& kernels, Team& team, const Longs& ids, nb::handle table, const Matrix2& out) {
    EmbedArgs args = embeddings_of(table).args;
    args.ids = ids.data();
    args.rows = static_cast<int>(ids.size());
    args.out = out.data();
    args.out_stride = out.shape(1) * sizeof(float);
    const nb::gil_scoped_release released;
    kernels.table->embed(args, team);
}

void argmax(const KernelSet& kernels, Team& team, const Matrix2& logits, const Longs& out) {
    const ArgmaxArgs args{logits.data(), logits.shape(1) * sizeof(float), static_cast<int>(logits.shape(0)),
                          static_cast<int>(logits.shape(1)), out.data()};
    const nb::gil_scoped_release released;
    kernels.table->argmax(args, team);
}

void soft_cap(const KernelSet& kernels, Team& team, const Matrix2& logits, float cap, float scale) {
    const SoftCapArgs args{logits.data(), logits.shape(1) * sizeof(float), static_cast<int>(logits.shape(0)),
                           static_cast<int>(logits.shape(1)), cap, scale};
    const nb::gil_scoped_release released;
    kernels.table->soft_cap(args, team);
}

}  // namespace

void bind_rowwise(nb::module_& m) {
    using namespace nb::literals;
    m.def("encode", &encode, "kernels"_a, "team"_a, "x"_a.noconvert(), "type"_a, "out"_a.noconvert(), nb::kw_only(),
          "norm"_a.noconvert() = nb::none(), "eps"_a = 0.0F, "group"_a = 0, "scales"_a.noconvert() = nb::none(),
          "sums"_a.noconvert() = nb::none(), "gather"_a.noconvert() = nb::none(), "bias"_a.noconvert() = nb::none(),
          "centred"_a = false, "gate"_a = "none");
    m.def("embed", &embed, "kernels"_a, "team"_a, "ids"_a.noconvert(), "table"_a, "out"_a.noconvert());
    m.def("argmax", &argmax, "kernels"_a, "team"_a, "logits"_a.noconvert(), "out"_a.noconvert());
    m.def("soft_cap", &soft_cap, "kernels"_a, "team"_a, "logits"_a.noconvert(), "cap"_a,
          "scale"_a = 1.0F);
}

}  // namespace headrace
