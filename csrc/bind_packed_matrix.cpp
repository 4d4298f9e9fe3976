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

// An array, or (address, type, rows, cols) of memory that lives as long as the call.
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

}  // namespace

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
        .def_prop_ro("format", [](const PackedMatrix& self) { return name_of(self.matrix().format); })
        .def_prop_ro("input", [](const PackedMatrix& self) { return name_of(self.matrix().input); })
        .def_prop_ro("rows", [](const PackedMatrix& self) { return self.matrix().rows; })
        .def_prop_ro("cols", [](const PackedMatrix& self) { return self.matrix().cols; })
        .def_prop_ro("group", [](const PackedMatrix& self) { return self.matrix().group; })
        .def_prop_ro("nbytes", &PackedMatrix::bytes);
}

}  // namespace headrace
