#include "packed_matrix.h"

#include <stdexcept>
#include <string>

namespace headrace {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

int round_up(int n, int step) { return (n + step - 1) / step * step; }

bool is_codes(WeightFormat format) { return format == WeightFormat::int8 || format == WeightFormat::int4; }

std::size_t bytes_of_panel(WeightFormat format, int cols_padded) {
    const std::size_t features = static_cast<std::size_t>(cols_padded) * kPanel;
    switch (format) {
        case WeightFormat::f32: return features * 4;
        case WeightFormat::bf16:
        case WeightFormat::f16: return features * 2;
        case WeightFormat::int8: return features;
        case WeightFormat::int4: return features / 2;
    }
    return 0;
}

void check(const std::vector<Part>& parts, const PackOptions& options) {
    if (parts.empty()) refuse("a matrix needs at least one part");
    for (const Part& part : parts) {
        if (part.rows < 1 || part.cols < 1) refuse("a part of a matrix is empty");
        if (part.cols != parts[0].cols) refuse("the parts of a matrix differ in their columns");
        if (part.type != parts[0].type) refuse("the parts of a matrix differ in their type");
    }
    int rows = 0;
    for (const Part& part : parts) rows += part.rows;
    if (options.gate && rows % 2 != 0) refuse("a gated matrix has as many rows of gate as of up");
    const bool floats = !is_codes(options.format);
    const bool fits = options.input == DType::f32    ? floats
                      : options.input == DType::bf16 ? !floats || options.format == WeightFormat::bf16
                                                     : !floats && options.input == DType::i8;
    if (!fits) refuse("activations of that type cannot meet weights of that format");
    if (options.group < 0 || options.group % 32 != 0) refuse("a group of weights is a multiple of 32");
    if (options.group != 0 && !is_codes(options.format)) refuse("only int8 and int4 weights have groups");
    constexpr int kMostInSum = 1 << 16;  // products of two bytes whose sum fits into 32 bits
    if (options.input == DType::i8 && (options.group == 0 ? parts[0].cols : options.group) > kMostInSum) {
        refuse("more than 65536 input features cannot share a scale");
    }
}

// Row of the packed matrix -> index into the concatenated rows of the parts, or -1 for a row of zeros.
std::vector<int> order_of_rows(const std::vector<Part>& parts, bool gate) {
    int total = 0;
    for (const Part& part : parts) total += part.rows;
    std::vector<int> order;
    if (!gate) {
        for (int row = 0; row < round_up(total, kPanel); ++row) order.push_back(row < total ? row : -1);
        return order;
    }
    const int half = total / 2;
    for (int first = 0; first < half; first += kPanel) {
        for (int offset : {0, half}) {
            for (int row = first; row < first + kPanel; ++row) order.push_back(row < half ? offset + row : -1);
        }
    }
    return order;
}

}  // namespace

std::vector<int> PackedMatrix::lay_out(const std::vector<Part>& parts, const PackOptions& options) {
    check(parts, options);
    const std::vector<int> order = order_of_rows(parts, options.gate);
    gated_ = options.gate;
    Matrix& m = matrix_;
    m.format = options.format;
    m.input = options.input;
    for (const Part& part : parts) m.rows += part.rows;
    m.cols = parts[0].cols;
    m.panels = static_cast<int>(order.size()) / kPanel;
    m.cols_padded = round_up(m.cols, kInputAlign);
    m.panel_bytes = bytes_of_panel(m.format, m.cols_padded);
    m.data = memory_.take(m.panel_bytes * m.panels);
    if (is_codes(m.format)) {
        m.group = options.group == 0 || options.group > m.cols_padded ? m.cols_padded : options.group;
        m.groups = (m.cols_padded + m.group - 1) / m.group;
        const std::size_t count = static_cast<std::size_t>(m.panels) * m.groups * kPanel;
        m.scales = memory_.take_array<f16_t>(count);
        if (!options.symmetric) m.zeros = memory_.take_array<std::uint8_t>(count);
    }
    if (options.bias) {
        float* bias = memory_.take_array<float>(order.size());
        for (std::size_t row = 0; row < order.size(); ++row) bias[row] = order[row] < 0 ? 0.0F : options.bias[order[row]];
        m.bias = bias;
    }
    return order;
}

PackedMatrix::PackedMatrix(const Kernels& kernels, Team& team, const std::vector<Part>& parts,
                           const PackOptions& options) {
    if (!kernels.pack) refuse(std::string(kernels.name) + " cannot pack matrices");
    for (const Part& part : parts) {
        if (part.type == DType::i8) refuse("a matrix is packed from f32, bf16 or f16");
    }
    const std::vector<int> order = lay_out(parts, options);
    std::vector<const void*> sources;
    for (const Part& part : parts) {
        const std::size_t stride = part.cols * dtype_bytes(part.type);
        for (int row = 0; row < part.rows; ++row) sources.push_back(static_cast<const char*>(part.data) + row * stride);
    }
    std::vector<const void*> ordered;
    for (int row : order) ordered.push_back(row < 0 ? nullptr : sources[row]);
    kernels.pack({ordered.data(), parts[0].type, matrix_, options.symmetric}, team);
}

PackedMatrix::PackedMatrix(const Kernels& kernels, Team& team, const std::vector<CodePart>& parts,
                           PackOptions options) {
    if (!kernels.pack_codes) refuse(std::string(kernels.name) + " cannot pack codes");
    if (!is_codes(options.format)) refuse("only int8 and int4 weights are codes");
    std::vector<Part> shapes;
    for (const CodePart& part : parts) {
        shapes.push_back({part.codes, DType::i8, part.rows, part.cols});
        if ((part.zeros == nullptr) != (parts[0].zeros == nullptr)) refuse("zeros belong to all parts or to none");
    }
    options.symmetric = !parts.empty() && parts[0].zeros == nullptr;
    const std::vector<int> order = lay_out(shapes, options);
    const int groups = (matrix_.cols + matrix_.group - 1) / matrix_.group;
    const std::size_t count = order.size();
    std::vector<const std::uint8_t*> codes(count), zeros(count);
    std::vector<const f16_t*> scales(count);
    for (std::size_t i = 0; i < count; ++i) {
        if (order[i] < 0) continue;  // null: a row of zeros
        std::size_t row = order[i];
        const CodePart* part = parts.data();
        for (; row >= static_cast<std::size_t>(part->rows); ++part) row -= part->rows;
        codes[i] = part->codes + row * part->cols;
        scales[i] = part->scales + row * groups;
        if (part->zeros) zeros[i] = part->zeros + row * groups;
    }
    kernels.pack_codes({codes.data(), scales.data(), options.symmetric ? nullptr : zeros.data(), matrix_}, team);
}

}  // namespace headrace
