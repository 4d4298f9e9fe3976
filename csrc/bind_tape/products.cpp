// Products with packed matrices, the choice of experts among them.
#include "bound_tape.h"

namespace nb = nanobind;

namespace headrace {
namespace {

void linear(BoundTape& self, int source, const PackedMatrix& weight, int out, const std::string& epilogue, const std::string& gate,
            std::optional<int> gates, int column, const std::string& scope, const std::string& name, int layer) {
    const Rows& to = at(self.buffers, out);
    const Matrix& m = weight.matrix();
    LinearArgs args = self.product(source, m);
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
        const Rows& from = at(self.buffers, *gates);
        require(from.type == DType::f32 && from.stride >= m.rows * sizeof(float), "gates are rows of f32, as wide as the product");
        args.gates = static_cast<const float*>(from.data);
        args.gates_stride = from.stride;
    }
    self.tape.append(args, scope_of(scope), name, layer);
}

void heads_linear(BoundTape& self, int source, const PackedMatrix& weight, int out, int inputs, int outputs, const std::string& scope,
                  const std::string& name, int layer) {
    const Rows &from = at(self.buffers, source), &to = at(self.buffers, out);
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
    self.tape.append(args, scope_of(scope), name, layer);
}

// `bias`: of the choice; `expert_scale`: of the weights. The logits have one column more with `shared`.
void route(BoundTape& self, int logits, int routing, std::optional<Floats> bias, std::optional<Floats> expert_scale,
           const std::string& scores, bool normalize, float scale, int groups, int top_groups, const std::string& group_score,
           bool shared, const std::string& scope, int layer) {
    const Rows& from = at(self.buffers, logits);
    RouteArgs args;
    args.out = at(self.routings, routing);
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
        self.keep(*bias);
    }
    if (expert_scale) {
        require(static_cast<int>(expert_scale->size()) == args.out.experts, "there is one scale an expert");
        args.expert_scale = expert_scale->data();
        self.keep(*expert_scale);
    }
    self.tape.append(args, scope_of(scope), "route", layer);
}

void dispatch(BoundTape& self, int source, int routing, int out, const std::string& scope, int layer) {
    DispatchArgs args;
    args.in = at(self.buffers, source);
    args.routing = at(self.routings, routing);
    args.out = at(self.buffers, out);
    require(args.in.type == args.out.type && args.in.stride == args.out.stride && args.in.groups == args.out.groups &&
                args.in.group == args.out.group,
            "routed rows are encoded as the rows themselves");
    require(self.each[source] == 1 && self.each[out] >= args.routing.each, "there are too few routed rows");
    self.tape.append(args, scope_of(scope), "dispatch", layer);
}

void experts(BoundTape& self, int source, const PackedMatrix& weight, int out, int routing, const std::string& epilogue,
             const std::string& gate, std::optional<int> gates, bool scaled, const std::string& scope, const std::string& name,
             int layer) {
    const Rows& to = at(self.buffers, out);
    const Matrix& m = weight.matrix();
    ExpertsArgs args;
    args.routing = at(self.routings, routing);
    args.scaled = scaled;
    args.linear = self.product(source, m);
    args.linear.epilogue = epilogue_of(epilogue);
    args.linear.gate = gate_of(gate);
    args.linear.out = to.data;
    args.linear.out_type = to.type;
    args.linear.out_stride = to.stride;
    const bool gated = args.linear.epilogue == Epilogue::gate, times = args.linear.epilogue == Epilogue::multiply;
    const std::size_t features = gated ? m.panels * kPanel / 2 : m.rows;
    require(m.experts == args.routing.experts, "the matrix has another number of experts");
    require(self.each[source] >= args.routing.each && self.each[out] >= args.routing.each, "there are too few routed rows");
    require(to.stride >= features * dtype_bytes(to.type), "the product does not fit its buffer");
    require(to.type == DType::f32 || to.type == DType::bf16, "a product is written as f32 or bf16");
    require(args.linear.epilogue != Epilogue::add, "products of experts are not added");
    require(!(gated || times) || args.linear.gate != Gate::none, "a gated product needs a gate");
    require(times == gates.has_value(), "gates are for products that they multiply");
    if (gates) {
        const Rows& from = at(self.buffers, *gates);
        require(from.type == DType::f32 && from.stride >= m.rows * sizeof(float) && self.each[*gates] >= args.routing.each,
                "gates are routed rows of f32, as wide as the product");
        args.linear.gates = static_cast<const float*>(from.data);
        args.linear.gates_stride = from.stride;
    }
    self.tape.append(args, scope_of(scope), name, layer);
}

void combine(BoundTape& self, int source, int routing, int out, int cols, std::optional<int> shared, bool gated, bool weighted,
             bool added, const std::string& scope, int layer) {
    const Rows &from = at(self.buffers, source), &to = at(self.buffers, out);
    CombineArgs args;
    args.in = static_cast<const float*>(from.data);
    args.in_stride = from.stride;
    args.routing = at(self.routings, routing);
    args.cols = cols;
    args.out = static_cast<float*>(to.data);
    args.out_stride = to.stride;
    args.gated = gated;
    args.weighted = weighted;
    args.add = added;
    const std::size_t bytes = cols * sizeof(float);
    require(from.type == DType::f32 && to.type == DType::f32 && from.stride >= bytes && to.stride >= bytes,
            "what experts give are rows of f32");
    require(self.each[source] >= args.routing.each && self.each[out] == 1, "there are too few routed rows");
    if (shared) {
        const Rows& other = at(self.buffers, *shared);
        require(other.type == DType::f32 && other.stride >= bytes, "the shared expert gives rows of f32");
        args.shared = static_cast<const float*>(other.data);
        args.shared_stride = other.stride;
    }
    self.tape.append(args, scope_of(scope), "combine", layer);
}

void logits(BoundTape& self, int source, const PackedMatrix& head, float soft_cap, float scale) {
    const Matrix& m = head.matrix();
    require(m.experts == 1, "the head is one matrix");
    require(m.rows == self.tape.sizes().vocab, "the head does not have one row a token");
    LinearArgs args = self.product(source, m);
    args.out = self.tape.logits_buffer();
    args.out_stride = static_cast<std::size_t>(m.rows) * sizeof(float);
    self.tape.append(args, Scope::head, "head", -1);
    if (soft_cap > 0 || scale != 1.0F) {
        const SoftCapArgs cap{self.tape.logits_buffer(), args.out_stride, 0, m.rows, soft_cap, scale};
        self.tape.append(cap, Scope::head, "soft_cap", -1);
    }
}

}  // namespace

void bind_products(nb::class_<BoundTape>& tape) {
    using namespace nb::literals;
    tape.def("linear", &linear, "source"_a, "weight"_a, "out"_a, nb::kw_only(), "epilogue"_a = "store",
             "gate"_a = "none", "gates"_a = nb::none(), "column"_a = 0, "scope"_a = "tokens", "name"_a, "layer"_a = -1, nb::keep_alive<1, 3>())
        .def("heads_linear", &heads_linear, "source"_a, "weight"_a, "out"_a, nb::kw_only(), "inputs"_a,
             "outputs"_a, "scope"_a = "tokens", "name"_a, "layer"_a = -1, nb::keep_alive<1, 3>())
        .def("route", &route, "logits"_a, "routing"_a, nb::kw_only(), "bias"_a.noconvert() = nb::none(),
             "expert_scale"_a.noconvert() = nb::none(), "scores"_a, "normalize"_a, "scale"_a, "groups"_a, "top_groups"_a, "group_score"_a, "shared"_a,
             "scope"_a = "tokens", "layer"_a = -1)
        .def("dispatch", &dispatch, "source"_a, "routing"_a, "out"_a, nb::kw_only(), "scope"_a = "tokens",
             "layer"_a = -1)
        .def("experts", &experts, "source"_a, "weight"_a, "out"_a, "routing"_a, nb::kw_only(),
             "epilogue"_a = "store", "gate"_a = "none", "gates"_a = nb::none(), "scaled"_a = false, "scope"_a = "tokens", "name"_a,
             "layer"_a = -1, nb::keep_alive<1, 3>())
        .def("combine", &combine, "source"_a, "routing"_a, "out"_a, "cols"_a, nb::kw_only(),
             "shared"_a = nb::none(), "gated"_a = false, "weighted"_a = true, "added"_a = false, "scope"_a = "tokens",
             "layer"_a = -1)
        .def("logits", &logits, "source"_a, "head"_a, "soft_cap"_a = 0.0F, "scale"_a = 1.0F,
             nb::keep_alive<1, 3>());
}

}  // namespace headrace
