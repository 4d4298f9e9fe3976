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

void check_up_to(const CodeArray& array, int most, const char* what) {
    std::uint8_t top = 0;
    for (std::size_t i = 0; i < array.size(); ++i) top = array.data()[i] > top ? array.data()[i] : top;
    if (top > most) throw nb::value_error((std::string(what) + " of such weights are at most " + std::to_string(most)).c_str());
}

ScaleType scale_type_of(const Values& array) {
    if (array.dtype() == nb::dtype<std::uint8_t>()) return ScaleType::e8m0;
    const DType type = type_of(array);
    return type == DType::f32 ? ScaleType::f32 : type == DType::bf16 ? ScaleType::bf16 : ScaleType::f16;
}

// (codes, scales, zeros or minima or None). The type of the scales, which all parts share, goes to the options.
CodePart code_part_of(nb::handle item, PackOptions& options, bool first) {
    const auto fields = nb::cast<nb::tuple>(item);
    if (fields.size() != 3) throw nb::value_error("a part of a matrix of codes is (codes, scales, zeros or minima or None)");
    const auto codes = nb::cast<CodeArray>(fields[0], false);
    const auto scales = nb::cast<Values>(fields[1], false);
    if (first) options.scale_type = scale_type_of(scales);
    if (scale_type_of(scales) != options.scale_type) throw nb::type_error("the parts of a matrix differ in their scales' type");
    CodePart part{codes.data(), scales.data(), nullptr, nullptr, static_cast<int>(codes.shape(0)),
                  static_cast<int>(codes.shape(1))};
    const std::size_t cols = codes.shape(1), group = options.group <= 0 ? cols : options.group;
    const std::size_t groups = cols == 0 ? 1 : (cols + group - 1) / group;
    const auto check_shape = [&](const auto& array) {
        if (array.shape(0) != codes.shape(0) || array.shape(1) != groups) {
            throw nb::value_error("scales, zeros and minima are [rows, groups]");
        }
    };
    check_shape(scales);
    const int bits = code_bits(options.format);
    check_up_to(codes, (1 << bits) - 1, "codes");
    if (fields[2].is_none()) return part;
    const auto third = nb::cast<Values>(fields[2], false);
    check_shape(third);
    if (third.dtype() == nb::dtype<std::uint8_t>()) {
        const auto zeros = nb::cast<CodeArray>(fields[2], false);
        check_up_to(zeros, 1 << bits, "zeros");  // 2^bits is a zero of GPTQ's first version
        part.zeros = zeros.data();
    } else {
        if (scale_type_of(third) != options.scale_type) throw nb::type_error("minima have the type of the scales");
        part.minima = third.data();
    }
    return part;
}

using Order = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<nb::ro, nb::shape<16>, nb::c_contig, nb::device::cpu>;

CodeTable table_of(const Table& array) {
    CodeTable table;
    for (int i = 0; i < 16; ++i) {
        if (array.dtype() == nb::dtype<std::int8_t>()) {
            table.bytes[i] = static_cast<std::uint8_t>(static_cast<const std::int8_t*>(array.data())[i] + 128);
        } else if (array.dtype() == nb::dtype<std::uint16_t>()) {
            table.numbers[i] = static_cast<const bf16_t*>(array.data())[i];
        } else {
            throw nb::type_error("a table holds sixteen int8, or bfloat16 as uint16");
        }
    }
    return table;
}

void check_table(const std::optional<Table>& table, const PackOptions& options) {
    if (table.has_value() != (options.format == WeightFormat::table4)) {
        throw nb::value_error("table4 weights have a table, and no others");
    }
    if (table && (table->dtype() == nb::dtype<std::int8_t>()) != (options.input == DType::i8)) {
        throw nb::value_error("a table holds int8 for i8 activations, bfloat16 for bf16");
    }
}

// Of scales that are arrays beside the codes.
ScaleType scale_type_named(const std::string& name) {
    if (name == "f16") return ScaleType::f16;
    if (name == "bf16") return ScaleType::bf16;
    if (name == "f32") return ScaleType::f32;
    if (name == "e8m0") return ScaleType::e8m0;
    throw nb::value_error(("there are no scales of type " + name).c_str());
}

// A uint8 array [rows, bytes of a row], or (address, rows, columns) of memory that stays valid during the call.
BlockPart block_part_of(nb::handle item, const BlockType& type) {
    if (nb::isinstance<nb::tuple>(item)) {
        const auto fields = nb::cast<nb::tuple>(item);
        if (fields.size() != 3) throw nb::value_error("a part of a matrix of blocks is (address, rows, cols)");
        return {reinterpret_cast<const std::uint8_t*>(nb::cast<std::uintptr_t>(fields[0])), nb::cast<int>(fields[1]),
                nb::cast<int>(fields[2])};
    }
    const auto array = nb::cast<CodeArray>(item, false);
    const std::size_t blocks = array.shape(1) / type.bytes;
    if (array.shape(1) % type.bytes != 0 || blocks > std::size_t{1} << 22) {
        throw nb::value_error((std::string("rows of ") + type.name + " are whole blocks of " + std::to_string(type.bytes) +
                               " bytes").c_str());
    }
    return {array.data(), static_cast<int>(array.shape(0)), static_cast<int>(blocks) * type.features};
}

// A view of an array inside the matrix, which keeps the matrix alive.
template <typename T>
nb::object view(nb::handle self, const void* data, std::initializer_list<std::size_t> shape) {
    if (data == nullptr) return nb::none();
    return nb::cast(nb::ndarray<nb::numpy, const T>(static_cast<const T*>(data), shape, self));
}

// Of all experts.
std::size_t all_panels(const Matrix& m) { return static_cast<std::size_t>(m.panels) * m.experts; }

// Scales or minima: [panels, groups, 16], bit patterns; of super-blocks [panels, super-blocks, bytes].
nb::object view_of_scales(nb::handle self, const Matrix& m, const void* data) {
    const std::size_t panels = all_panels(m), groups = m.groups;
    switch (m.scale_type) {
        case ScaleType::f32: return view<float>(self, data, {panels, groups, std::size_t{kPanel}});
        case ScaleType::e8m0: return view<std::uint8_t>(self, data, {panels, groups, std::size_t{kPanel}});
        case ScaleType::k_minima:
        case ScaleType::k_signed: {
            const std::size_t supers = m.cols_padded / kSuper;
            return view<std::uint8_t>(self, data, {panels, supers, scale_bytes(m.scale_type, m.group)});
        }
        default: return view<std::uint16_t>(self, data, {panels, groups, std::size_t{kPanel}});
    }
}

const Matrix& matrix_of(nb::handle self) { return nb::cast<const PackedMatrix&>(self).matrix(); }

const float* bias_of(const std::optional<Bias>& bias, std::size_t rows) {
    if (bias && bias->size() != rows) throw nb::value_error("a bias has one number a row");
    return bias ? bias->data() : nullptr;
}

}  // namespace

Embeddings embeddings_of(nb::handle table) {
    Embeddings found;
    EmbedArgs& args = found.args;
    if (nb::isinstance<PackedMatrix>(table)) {
        const PackedMatrix& packed = nb::cast<const PackedMatrix&>(table);
        const Matrix& m = packed.matrix();
        if (m.experts != 1) throw nb::value_error("embeddings are one matrix");
        if (packed.gated()) throw nb::value_error("embeddings are a matrix without a gate");
        args.packed = &m;
        args.type = is_codes(m.format) ? DType::i8 : m.format == WeightFormat::f32 ? DType::f32
                    : m.format == WeightFormat::f16 ? DType::f16 : DType::bf16;
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
               bool gate, const std::string& input, int group, bool symmetric, int span, std::optional<Bias> bias,
               int experts) {
                std::vector<Part> parts;
                std::size_t rows = 0;
                for (nb::handle item : items) {
                    parts.push_back(part_of(item));
                    rows += parts.back().rows;
                }
                const PackOptions options{.format = weight_format_of(format), .input = dtype_of(input), .group = group,
                                          .symmetric = symmetric, .gate = gate, .bias = bias_of(bias, rows), .span = span,
                                          .experts = experts};
                const nb::gil_scoped_release released;
                new (self) PackedMatrix(*kernels.table, team, parts, options);
            },
            nb::arg("kernels"), nb::arg("team"), nb::arg("format"), nb::arg("parts"), nb::kw_only(),
            nb::arg("gate") = false, nb::arg("input"), nb::arg("group") = 0, nb::arg("symmetric") = true,
            nb::arg("span") = 0, nb::arg("bias") = nb::none(), nb::arg("experts") = 1)
        .def_static(
            "from_codes",
            [](const KernelSet& kernels, Team& team, const std::string& format, nb::list items, bool gate,
               const std::string& input, int group, int span, std::optional<int> middle, float unit,
               std::optional<Table> table, std::optional<Order> order, std::optional<Bias> bias, int experts) {
                PackOptions options{.format = weight_format_of(format), .input = dtype_of(input), .group = group,
                                    .gate = gate, .span = span, .unit = unit, .experts = experts};
                if (!is_codes(options.format)) throw nb::value_error("weights of that format are no codes");
                if (middle && (*middle < 0 || *middle > 255)) throw nb::value_error("the code of 0 is below 256");
                check_table(table, options);
                options.middle = middle.value_or(-1);
                if (table) options.table = table_of(*table);
                std::vector<CodePart> parts;
                std::size_t rows = 0;
                for (nb::handle item : items) {
                    parts.push_back(code_part_of(item, options, parts.empty()));
                    rows += parts.back().rows;
                }
                if (order && (parts.empty() || static_cast<int>(order->size()) != parts[0].cols)) {
                    throw nb::value_error("an order of columns has one number a column");
                }
                if (order) options.order = order->data();
                options.bias = bias_of(bias, rows);
                const nb::gil_scoped_release released;
                return new PackedMatrix(*kernels.table, team, parts, options);
            },
            nb::rv_policy::take_ownership, nb::arg("kernels"), nb::arg("team"), nb::arg("format"), nb::arg("parts"),
            nb::kw_only(), nb::arg("gate") = false, nb::arg("input"), nb::arg("group") = 0, nb::arg("span") = 0,
            nb::arg("middle") = nb::none(), nb::arg("unit") = 1.0F, nb::arg("table") = nb::none(),
            nb::arg("order") = nb::none(), nb::arg("bias") = nb::none(), nb::arg("experts") = 1)
        .def_static(
            "from_blocks",
            [](const KernelSet& kernels, Team& team, const std::string& name, nb::list items, bool gate,
               std::optional<Bias> bias, int experts) {
                const BlockType* type = find_block_type(name);
                if (type == nullptr) throw nb::value_error(("there are no blocks of type " + name + " here").c_str());
                std::vector<BlockPart> parts;
                std::size_t rows = 0;
                for (nb::handle item : items) {
                    parts.push_back(block_part_of(item, *type));
                    rows += parts.back().rows;
                }
                const PackOptions options{.gate = gate, .bias = bias_of(bias, rows), .experts = experts};
                const nb::gil_scoped_release released;
                return new PackedMatrix(*kernels.table, team, *type, parts, options);
            },
            nb::rv_policy::take_ownership, nb::arg("kernels"), nb::arg("team"), nb::arg("type"), nb::arg("parts"),
            nb::kw_only(), nb::arg("gate") = false, nb::arg("bias") = nb::none(), nb::arg("experts") = 1)
        .def(
            "put",
            [](PackedMatrix& self, const KernelSet& kernels, Team& team, int expert, nb::list items, std::optional<Bias> bias) {
                std::vector<Part> parts;
                std::size_t rows = 0;
                for (nb::handle item : items) {
                    parts.push_back(part_of(item));
                    rows += parts.back().rows;
                }
                const float* biases = bias_of(bias, rows);
                const nb::gil_scoped_release released;
                self.put(*kernels.table, team, expert, parts, biases);
            },
            nb::arg("kernels"), nb::arg("team"), nb::arg("expert"), nb::arg("parts"), nb::arg("bias") = nb::none())
        .def(
            "put_codes",
            [](PackedMatrix& self, const KernelSet& kernels, Team& team, int expert, nb::list items, std::optional<Bias> bias) {
                const Matrix& m = self.matrix();
                PackOptions options{.format = m.format, .group = m.group, .scale_type = m.scale_type};
                std::vector<CodePart> parts;
                std::size_t rows = 0;
                for (nb::handle item : items) {
                    parts.push_back(code_part_of(item, options, false));
                    rows += parts.back().rows;
                }
                const float* biases = bias_of(bias, rows);
                const nb::gil_scoped_release released;
                self.put(*kernels.table, team, expert, parts, biases);
            },
            nb::arg("kernels"), nb::arg("team"), nb::arg("expert"), nb::arg("parts"), nb::arg("bias") = nb::none())
        .def(
            "put_blocks",
            [](PackedMatrix& self, const KernelSet& kernels, Team& team, int expert, nb::list items, std::optional<Bias> bias) {
                if (self.blocks() == nullptr) throw nb::value_error("the first expert is not of blocks");
                std::vector<BlockPart> parts;
                std::size_t rows = 0;
                for (nb::handle item : items) {
                    parts.push_back(block_part_of(item, *self.blocks()));
                    rows += parts.back().rows;
                }
                const float* biases = bias_of(bias, rows);
                const nb::gil_scoped_release released;
                self.put(*kernels.table, team, expert, parts, biases);
            },
            nb::arg("kernels"), nb::arg("team"), nb::arg("expert"), nb::arg("parts"), nb::arg("bias") = nb::none())
        .def_static(
            "mapped",
            [](nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> kept, const std::string& format,
               int rows, int cols, bool gate, const std::string& input, int group, int span, float unit,
               std::optional<Table> table, const std::string& scales, bool zeros, bool minima, bool ordered, bool bias,
               int experts) {
                PackOptions options{.format = weight_format_of(format), .input = dtype_of(input), .group = group,
                                    .gate = gate, .span = span, .scale_type = scale_type_named(scales), .unit = unit,
                                    .experts = experts};
                check_table(table, options);
                if (table) options.table = table_of(*table);
                return new PackedMatrix(
                    KeptMatrix{kept.data(), kept.size(), rows, cols, zeros, minima, ordered, bias}, options);
            },
            nb::rv_policy::take_ownership, nb::keep_alive<0, 1>(), nb::arg("kept").noconvert(), nb::arg("format"),
            nb::kw_only(), nb::arg("rows"), nb::arg("cols"), nb::arg("gate") = false, nb::arg("input"),
            nb::arg("group") = 0, nb::arg("span") = 0, nb::arg("unit") = 1.0F, nb::arg("table") = nb::none(),
            nb::arg("scales") = "f16", nb::arg("zeros") = false, nb::arg("minima") = false, nb::arg("ordered") = false,
            nb::arg("bias") = false, nb::arg("experts") = 1)
        .def_static(
            "mapped_blocks",
            [](nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> kept, const std::string& name,
               int rows, int cols, bool gate, bool bias, int experts) {
                const BlockType* type = find_block_type(name);
                if (type == nullptr) throw nb::value_error(("there are no blocks of type " + name + " here").c_str());
                return new PackedMatrix(
                    KeptMatrix{.data = kept.data(), .bytes = kept.size(), .rows = rows, .cols = cols, .bias = bias}, *type, gate,
                    experts);
            },
            nb::rv_policy::take_ownership, nb::keep_alive<0, 1>(), nb::arg("kept").noconvert(), nb::arg("type"),
            nb::kw_only(), nb::arg("rows"), nb::arg("cols"), nb::arg("gate") = false, nb::arg("bias") = false, nb::arg("experts") = 1)
        .def_prop_ro("pieces",
                     [](nb::handle self) {
                         nb::list views;
                         for (const WeightMemory::Piece& piece : nb::cast<const PackedMatrix&>(self).pieces()) {
                             views.append(view<std::uint8_t>(self, piece.start, {piece.bytes}));
                         }
                         return views;
                     })
        .def_prop_ro("panels",
                     [](nb::handle self) {
                         const Matrix& m = matrix_of(self);
                         return view<std::uint8_t>(self, m.data, {all_panels(m), m.panel_bytes});
                     })
        .def_prop_ro("scales",
                     [](nb::handle self) { return view_of_scales(self, matrix_of(self), matrix_of(self).scales); })
        .def_prop_ro("minima",
                     [](nb::handle self) { return view_of_scales(self, matrix_of(self), matrix_of(self).minima); })
        .def_prop_ro("zeros",
                     [](nb::handle self) {
                         const Matrix& m = matrix_of(self);
                         const std::size_t panels = all_panels(m), groups = m.groups;
                         return view<std::uint8_t>(self, m.zeros, {panels, groups, std::size_t{kPanel}});
                     })
        .def_prop_ro("format", [](const PackedMatrix& self) { return name_of(self.matrix().format); })
        .def_prop_ro("input", [](const PackedMatrix& self) { return name_of(self.matrix().input); })
        .def_prop_ro("rows", [](const PackedMatrix& self) { return self.matrix().rows; })
        .def_prop_ro("cols", [](const PackedMatrix& self) { return self.matrix().cols; })
        .def_prop_ro("experts", [](const PackedMatrix& self) { return self.matrix().experts; })
        .def_prop_ro("group", [](const PackedMatrix& self) { return self.matrix().group; })
        .def_prop_ro("span", [](const PackedMatrix& self) { return self.matrix().span; })
        .def_prop_ro("ordered", [](const PackedMatrix& self) { return self.matrix().order != nullptr; })
        .def_prop_ro("nbytes", &PackedMatrix::bytes);
}

}  // namespace headrace
