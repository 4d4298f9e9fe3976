// Calls that take one row at a time.
#include "bound_tape.h"

namespace nb = nanobind;

namespace headrace {
namespace {

// `table`: an array, or a PackedMatrix, which the tape keeps alive.
void embed(BoundTape& self, nb::object table, int out, float scale, bool positions, const std::string& name) {
    const Rows& rows = at(self.buffers, out);
    const Embeddings embeddings = embeddings_of(table);
    EmbedArgs args = embeddings.args;
    args.out = static_cast<float*>(rows.data);
    args.out_stride = rows.stride;
    args.scale = scale;
    args.add = args.positions = positions;
    if (positions) self.tape.limit_positions(embeddings.rows);
    require(!positions || args.packed == nullptr, "the embeddings of positions are a table");
    require(positions || embeddings.rows >= self.tape.sizes().vocab, "the embedding has too few rows");
    require(rows.type == DType::f32 && rows.stride >= args.cols * sizeof(float), "the embedding does not fit");
    self.tape.append(args, Scope::tokens, name, -1);
}

// `reader`: the matrix whose order of columns the rows take, or null. `times`: rows of the step's tokens, whose columns
// from `times_column` on multiply the result.
void encode(BoundTape& self, int source, int out, int cols, const Vectors& norm, bool centred, float eps, const std::string& gate,
            std::optional<int> times, int times_column, const std::string& scope, const std::string& name, int layer,
            const PackedMatrix* reader) {
    const Rows& from = at(self.buffers, source);
    EncodeArgs args;
    args.in = static_cast<const float*>(from.data);
    args.in_stride = from.stride;
    args.norm = self.norm_of(norm, centred, eps, cols);
    args.gate = gate_of(gate);
    args.cols = cols;
    require(reader == nullptr || reader->matrix().cols == cols, "the matrix that reads the rows has other columns");
    args.out = at(self.buffers, out);
    args.out.order = self.buffers[out].order = reader == nullptr ? nullptr : reader->matrix().order;
    args.cols_padded = (cols + kInputAlign - 1) / kInputAlign * kInputAlign;
    require(from.type == DType::f32 && from.stride >= cols * sizeof(float), "encode reads rows of f32");
    require(args.out.stride >= args.cols_padded * dtype_bytes(args.out.type), "the encoded rows do not fit");
    args.each = self.each[source];
    require(self.each[out] == args.each, "routed rows are encoded to routed rows");
    require(args.each == 1 || scope != "gathered", "routed rows are not gathered");
    if (times) {
        const Rows& other = at(self.buffers, *times);
        require(args.each == 1 && self.each[*times] == 1, "routed rows are not multiplied");
        require(other.type == DType::f32 && times_column >= 0 &&
                    other.stride >= (static_cast<std::size_t>(times_column) + cols) * sizeof(float),
                "rows are multiplied by rows of f32");
        args.times = static_cast<const float*>(other.data) + times_column;
        args.times_stride = other.stride;
    }
    self.tape.append(args, scope_of(scope), name, layer);
}

// Normalises columns first .. first + count of the rows, in place.
void norm_columns(BoundTape& self, int rows, int first, int count, const Vectors& norm, bool centred, float eps,
                  const std::string& name, int layer) {
    const Rows& buffer = at(self.buffers, rows);
    require(buffer.type == DType::f32 && first >= 0 && count > 0 && first % kPanel == 0 && count % kPanel == 0 &&
                buffer.stride >= static_cast<std::size_t>(first + count) * sizeof(float),
            "the columns of a norm are whole vectors of rows of f32");
    EncodeArgs args;
    args.in = static_cast<const float*>(buffer.data) + first;
    args.in_stride = buffer.stride;
    args.norm = self.norm_of(norm, centred, eps, count);
    args.cols = args.cols_padded = count;
    args.out.data = static_cast<float*>(buffer.data) + first;
    args.out.stride = buffer.stride;
    self.tape.append(args, Scope::tokens, name, layer);
}

void add_rows_to(BoundTape& self, int source, int out, int cols, float scale, const Vectors& norm, bool centred, float eps,
                 int norm_cols, std::optional<Floats> decay, const std::string& scope, const std::string& name,
                 int layer) {
    const Rows& from = at(self.buffers, source);
    const Rows& to = at(self.buffers, out);
    AddArgs args;
    args.in = static_cast<const float*>(from.data);
    args.in_stride = from.stride;
    require(norm_cols >= 0 && (norm_cols == 0 || cols % norm_cols == 0), "norms divide the columns");
    args.norm = self.norm_of(norm, centred, eps, norm_cols > 0 ? norm_cols : cols);
    args.norm_cols = norm_cols;
    args.scale = scale;
    if (decay) {
        require(decay->size() == 1, "rows are multiplied by one number");
        args.decay = decay->data();
        self.keep(*decay);
    }
    args.cols = cols;
    args.out = static_cast<float*>(to.data);
    args.out_stride = to.stride;
    require(from.type == DType::f32 && to.type == DType::f32 && from.stride >= cols * sizeof(float) &&
                to.stride >= cols * sizeof(float),
            "rows of f32 are added to rows of f32");
    self.tape.append(args, scope_of(scope), name, layer);
}

// Outputs: (columns of a group, buffer, first column).
void ungroup(BoundTape& self, int source, const std::vector<std::tuple<int, int, int>>& parts, int groups, const std::string& name, int layer) {
    UngroupArgs args;
    args.groups = groups;
    require(groups > 0 && !parts.empty() && parts.size() <= std::size(args.parts), "rows are taken apart into at most four parts");
    for (const auto& [width, out, column] : parts) {
        const Rows& to = at(self.buffers, out);
        require(width > 0 && column >= 0 && to.type == DType::f32 &&
                    to.stride >= (column + static_cast<std::size_t>(groups) * width) * sizeof(float),
                "a part does not fit its buffer of f32");
        args.parts[args.count++] = {static_cast<float*>(to.data) + column, to.stride, width};
        args.width += width;
    }
    args.in = self.floats_of(source, static_cast<std::size_t>(groups) * args.width, args.in_stride);
    self.tape.append(args, Scope::tokens, name, layer);
}

void sigmoid_gate(BoundTape& self, int out, int gates, int cols, const std::string& name, int layer) {
    SigmoidGateArgs args;
    args.cols = cols;
    args.gates = self.floats_of(gates, cols, args.gates_stride);
    args.out = self.floats_of(out, cols, args.out_stride);
    self.tape.append(args, Scope::tokens, name, layer);
}

}  // namespace

void bind_rows(nb::class_<BoundTape>& tape) {
    using namespace nb::literals;
    tape.def("embed", &embed, "table"_a, "out"_a, nb::kw_only(), "scale"_a = 1.0F, "positions"_a = false,
             "name"_a = "embed", nb::keep_alive<1, 2>())
        .def("encode", &encode, "source"_a, "out"_a, "cols"_a, nb::kw_only(),
             "norm"_a = Vectors(), "centred"_a = false, "eps"_a = 0.0F, "gate"_a = "none", "times"_a = nb::none(),
             "times_column"_a = 0, "scope"_a = "tokens", "name"_a, "layer"_a = -1, "reader"_a.none() = nb::none(),
             nb::keep_alive<1, 14>())
        .def("norm_columns", &norm_columns, "rows"_a, "first"_a, "count"_a, nb::kw_only(), "norm"_a,
             "centred"_a = false, "eps"_a = 0.0F, "name"_a, "layer"_a = -1)
        .def("add", &add_rows_to, "source"_a, "out"_a, "cols"_a, nb::kw_only(), "scale"_a = 1.0F,
             "norm"_a = Vectors(), "centred"_a = false, "eps"_a = 0.0F, "norm_cols"_a = 0,
             "decay"_a.noconvert() = nb::none(), "scope"_a = "tokens", "name"_a, "layer"_a = -1)
        .def("ungroup", &ungroup, "source"_a, "parts"_a, nb::kw_only(), "groups"_a, "name"_a = "ungroup", "layer"_a = -1)
        .def("sigmoid_gate", &sigmoid_gate, "out"_a, "gates"_a, "cols"_a, nb::kw_only(), "name"_a = "gate", "layer"_a = -1);
}

}  // namespace headrace
