#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <stdexcept>

#include "arena.h"
#include "bindings.h"
#include "names.h"
#include "packed_matrix.h"

namespace nb = nanobind;

namespace headrace {

Rows rows_for(const Matrix& weight, int rows, Arena& arena) {
    Rows encoded;
    encoded.type = weight.input;
    encoded.stride = (weight.cols_padded * dtype_bytes(weight.input) + 63) / 64 * 64;
    encoded.order = weight.order;
    encoded.data = arena.take(encoded.stride * rows);
    if (weight.input == DType::i8) {
        encoded.group = weight.span;
        encoded.groups = spans_of(weight);
        encoded.scales = arena.take_array<float>(static_cast<std::size_t>(rows) * encoded.groups);
        encoded.sums = arena.take_array<std::int32_t>(static_cast<std::size_t>(rows) * encoded.groups);
    }
    return encoded;
}

namespace {

using Input = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

int features_out(const Matrix& weight, Epilogue epilogue) {
    return epilogue == Epilogue::gate ? weight.panels * kPanel / 2 : weight.rows;
}

Output linear(const KernelSet& kernels, Team& team, const Input& x, const PackedMatrix& matrix,
              const std::string& epilogue, const std::string& gate, std::optional<Output> out,
              const std::string& out_dtype, std::optional<Input> gates) {
    const Matrix& weight = matrix.matrix();
    if (weight.experts != 1) throw std::invalid_argument("a matrix of experts needs a routing");
    LinearArgs args;
    args.weight = &weight;
    args.rows = static_cast<int>(x.shape(0));
    args.epilogue = epilogue_of(epilogue);
    args.gate = gate_of(gate);
    args.out_type = dtype_of(out_dtype);
    if (args.out_type != DType::f32 && args.out_type != DType::bf16) throw std::invalid_argument("out is f32 or bf16");
    if (static_cast<int>(x.shape(1)) != weight.cols) throw std::invalid_argument("x and w differ in their columns");
    if (args.epilogue == Epilogue::add && (!out || args.out_type != DType::f32)) {
        throw std::invalid_argument("add needs an f32 array to add to");
    }
    if (args.epilogue == Epilogue::gate && weight.panels % 2 != 0) {
        throw std::invalid_argument("gate needs a matrix of gate and up");
    }
    const std::size_t rows = x.shape(0), features = features_out(weight, args.epilogue);
    if (args.epilogue == Epilogue::multiply) {
        if (!gates || gates->shape(0) != rows || gates->shape(1) != features) {
            throw std::invalid_argument("multiply needs a gate for each feature of the result");
        }
        args.gates = gates->data();
        args.gates_stride = features * sizeof(float);
    }
    if (!out) {
        const std::size_t bytes = rows * features * dtype_bytes(args.out_type);
        auto* memory = new char[bytes == 0 ? 1 : bytes];
        nb::capsule owner(memory, [](void* p) noexcept { delete[] static_cast<char*>(p); });
        const auto type = args.out_type == DType::f32 ? nb::dtype<float>() : nb::dtype<std::uint16_t>();
        out = Output(memory, {rows, features}, owner, {}, type);
    }
    const auto type = args.out_type == DType::f32 ? nb::dtype<float>() : nb::dtype<std::uint16_t>();
    if (out->shape(0) != rows || out->shape(1) != features || out->dtype() != type) {
        throw std::invalid_argument("out has another shape or type than the result");
    }
    args.out = out->data();
    args.out_stride = features * dtype_bytes(args.out_type);
    {
        const nb::gil_scoped_release released;
        Arena arena;
        args.in = rows_for(weight, args.rows, arena);
        EncodeArgs encode;
        encode.in = x.data();
        encode.in_stride = x.shape(1) * sizeof(float);
        encode.rows = args.rows;
        encode.cols = weight.cols;
        encode.cols_padded = weight.cols_padded;
        encode.out = args.in;
        kernels.table->encode(encode, team);
        kernels.table->linear(args, team);
    }
    return *out;
}

}  // namespace

void bind_linear(nb::module_& m) {
    m.def("linear", &linear, nb::arg("kernels"), nb::arg("team"), nb::arg("x"), nb::arg("w"),
          nb::arg("epilogue") = "store", nb::arg("gate") = "none", nb::arg("out") = nb::none(),
          nb::arg("out_dtype") = "f32", nb::arg("gates") = nb::none());
}

}  // namespace headrace
