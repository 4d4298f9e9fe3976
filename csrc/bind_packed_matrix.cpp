#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "bindings.h"
#include "names.h"
#include "packed_matrix.h"

namespace nb = nanobind;

namespace headrace {
namespace {

using Bias = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Values = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

DType type_of(const Values& array) {
    if (array.dtype() == nb::dtype<float>()) return DType::f32;
    if (array.dtype() == nb::dtype<std::uint16_t>()) return DType::bf16;  // numpy has no bfloat16: its bit patterns
    if (array.dtype().code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float) && array.dtype().bits == 16) {
        return DType::f16;
    }
    throw nb::type_error("a part of a matrix is float32, float16, or bfloat16 as uint16");
}

// An array, or (address, type, rows, cols) of memory that stays valid during the call.
Part part_of(nb::handle item) {
    if (nb::isinstance<nb::tuple>(item)) {
        const auto fields = nb::cast<nb::tuple>(item);
        if (fields.size() != 4) throw nb::value_error("a part of a matrix is (address, type, rows, cols)");
        return {reinterpret_cast<const void*>(nb::cast<std::uintptr_t>(fields[0])),
                dtype_of(nb::cast<std::string>(fields[1])), nb::cast<int>(fields[2]), nb::cast<int>(fields[3])};
    }
    const auto array = nb::cast<Values>(item, false);
    return {array.data(), type_of(array), static_cast<int>(array.shape(0)), static_cast<int>(array.shape(1))};
}

using CodeArray = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void check_below(const CodeArray& array, int levels, const char* what) {
    std::uint8_t most = 0;
    for (std::size_t i = 0; i < array.size(); ++i) most = array.data()[i] > most ? array.data()[i] : most;
    if (most >= levels) throw nb::value_error((std::string(what) + " of int4 weights are below 16").c_str());
}

// (codes, scales, zeros or None)
CodePart code_part_of(nb::handle item, WeightFormat format, int group) {
    const auto fields = nb::cast<nb::tuple>(item);
    if (fields.size() != 3) throw nb::value_error("a part of a matrix of codes is (codes, scales, zeros or None)");
    const auto codes = nb::cast<CodeArray>(fields[0], false);
    const auto scales = nb::cast<Values>(fields[1], false);
    CodePart part{codes.data(), static_cast<const f16_t*>(scales.data()), nullptr, static_cast<int>(codes.shape(0)),
                  static_cast<int>(codes.shape(1))};
    if (type_of(scales) != DType::f16) throw nb::type_error("scales are float16");
    const std::size_t groups = group <= 0 ? 1 : (part.cols + group - 1) / group;
    const auto check_shape = [&](const auto& array) {
        if (array.shape(0) != codes.shape(0) || array.shape(1) != groups) {
            throw nb::value_error("scales and zeros are [rows, groups]");
        }
    };
    check_shape(scales);
    const int levels = format == WeightFormat::int4 ? 16 : 256;
    check_below(codes, levels, "codes");
    if (fields[2].is_none()) return part;
    const auto zeros = nb::cast<CodeArray>(fields[2], false);
    check_shape(zeros);
    check_below(zeros, levels, "zeros");
    part.zeros = zeros.data();
    return part;
}

// A view of an array inside the matrix, which keeps the matrix alive.
template <typename T>
nb::object view(nb::handle self, const void* data, std::initializer_list<std::size_t> shape) {
    if (data == nullptr) return nb::none();
    return nb::cast(nb::ndarray<nb::numpy, const T>(static_cast<const T*>(data), shape, self));
}

nb::object view_of_groups(nb::handle self, bool scales) {
    const Matrix& m = nb::cast<const PackedMatrix&>(self).matrix();
    const std::initializer_list<std::size_t> shape = {static_cast<std::size_t>(m.panels),
                                                      static_cast<std::size_t>(m.groups), std::size_t{kPanel}};
    return scales ? view<std::uint16_t>(self, m.scales, shape) : view<std::uint8_t>(self, m.zeros, shape);
}

}  // namespace

Embeddings embeddings_of(nb::handle table) {
    Embeddings found;
    EmbedArgs& args = found.args;
    if (nb::isinstance<PackedMatrix>(table)) {
        const PackedMatrix& packed = nb::cast<const PackedMatrix&>(table);
        const Matrix& m = packed.matrix();
        if (m.groups != 0 || packed.gated()) throw nb::value_error("embeddings are a matrix of floats without a gate");
        args.packed = &m;
        args.type = m.format == WeightFormat::f32 ? DType::f32 : m.format == WeightFormat::f16 ? DType::f16 : DType::bf16;
        args.cols = m.cols;
        found.rows = m.rows;
    } else {
        const auto array = nb::cast<Values>(table, false);
        args.type = type_of(array);
        args.table = array.data();
        args.cols = static_cast<int>(array.shape(1));
        found.rows = static_cast<int>(array.shape(0));
    }
    return found;
}

void bind_packed_matrix(nb::module_& m) {
    nb::class_<PackedMatrix>(m, "PackedMatrix")
        .def(
            "__init__",
            [](PackedMatrix* self, const KernelSet& kernels, Team& team, const std::string& format, nb::list items,
               bool gate, const std::string& input, int group, bool symmetric, std::optional<Bias> bias) {
                std::vector<Part> parts;
                std::size_t rows = 0;
                for (nb::handle item : items) {
                    parts.push_back(part_of(item));
                    rows += parts.back().rows;
                }
                if (bias && bias->size() != rows) throw nb::value_error("a bias has one number a row");
                const PackOptions options{weight_format_of(format), dtype_of(input), group, symmetric, gate,
                                          bias ? bias->data() : nullptr};
                const nb::gil_scoped_release released;
                new (self) PackedMatrix(*kernels.table, team, parts, options);
            },
            nb::arg("kernels"), nb::arg("team"), nb::arg("format"), nb::arg("parts"), nb::kw_only(),
            nb::arg("gate") = false, nb::arg("input"), nb::arg("group") = 0, nb::arg("symmetric") = true,
            nb::arg("bias") = nb::none())
        .def_static(
            "from_codes",
            [](const KernelSet& kernels, Team& team, const std::string& format, nb::list items, bool gate,
               const std::string& input, int group, std::optional<Bias> bias) {
                PackOptions options{weight_format_of(format), dtype_of(input), group, true, gate, nullptr};
                std::vector<CodePart> parts;
                std::size_t rows = 0;
                for (nb::handle item : items) {
                    parts.push_back(code_part_of(item, options.format, group));
                    rows += parts.back().rows;
                }
                if (bias && bias->size() != rows) throw nb::value_error("a bias has one number a row");
                if (bias) options.bias = bias->data();
                const nb::gil_scoped_release released;
                return new PackedMatrix(*kernels.table, team, parts, options);
            },
            nb::rv_policy::take_ownership, nb::arg("kernels"), nb::arg("team"), nb::arg("format"), nb::arg("parts"),
            nb::kw_only(), nb::arg("gate") = false, nb::arg("input"), nb::arg("group") = 0,
            nb::arg("bias") = nb::none())
        .def_prop_ro("panels",
                     [](nb::handle self) {
                         const Matrix& m = nb::cast<const PackedMatrix&>(self).matrix();
                         return view<std::uint8_t>(self, m.data, {static_cast<std::size_t>(m.panels), m.panel_bytes});
                     })
        .def_prop_ro("scales", [](nb::handle self) { return view_of_groups(self, true); })
        .def_prop_ro("zeros", [](nb::handle self) { return view_of_groups(self, false); })
        .def_prop_ro("format", [](const PackedMatrix& self) { return name_of(self.matrix().format); })
        .def_prop_ro("input", [](const PackedMatrix& self) { return name_of(self.matrix().input); })
        .def_prop_ro("rows", [](const PackedMatrix& self) { return self.matrix().rows; })
        .def_prop_ro("cols", [](const PackedMatrix& self) { return self.matrix().cols; })
        .def_prop_ro("group", [](const PackedMatrix& self) { return self.matrix().group; })
        .def_prop_ro("nbytes", &PackedMatrix::bytes);
}

}  // namespace headrace
