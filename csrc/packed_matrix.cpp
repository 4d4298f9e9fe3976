#include "packed_matrix.h"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

namespace headrace {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

int round_up(int n, int step) { return (n + step - 1) / step * step; }

std::size_t bytes_of_panel(WeightFormat format, int cols_padded) {
    return static_cast<std::size_t>(cols_padded) * (kPanel * code_bits(format) / 8);
}

bool whole_codes(WeightFormat format) {
    return is_codes(format) && format != WeightFormat::e4m3 && format != WeightFormat::e5m2;
}

// Of the scales or minima of one group and output feature; super-blocks have other arrays.
std::size_t scale_size(ScaleType type) { return scale_bytes(type, kSuper) / kPanel; }

void check_order(const std::int32_t* order, int cols) {
    std::vector<bool> taken(cols, false);
    for (int i = 0; i < cols; ++i) {
        const std::int32_t feature = order[i];
        if (feature < 0 || feature >= cols || taken[feature]) refuse("an order of columns names each input feature once");
        taken[feature] = true;
    }
}

void check_codes(int cols, const PackOptions& options, bool minima) {
    // Formats with a plane of one bit are decoded 32 input features at a time; chunks of groups of 16 are whole units too.
    const bool long_units = options.format == WeightFormat::int5 || options.format == WeightFormat::int3;
    const bool short_groups = !long_units || (options.group == 16 && options.input == DType::i8);
    const bool short_spans = !long_units || options.span == 16;
    if (options.group < 0 || options.group % (short_groups ? 16 : 32) != 0 || options.span < 0 ||
        options.span % (short_spans ? 16 : 32) != 0) {
        refuse(long_units ? "a group of such weights is a multiple of 32" : "a group of such weights is a multiple of 16");
    }
    const int padded = round_up(cols, kInputAlign), group = options.group == 0 ? padded : options.group;
    if (options.span != 0 && group < padded && group % options.span != 0) refuse("a group of weights holds whole groups of activations");
    if (is_super(options.scale_type) && (cols % kSuper != 0 || group > kSuper || kSuper % group != 0)) {
        refuse("super-blocks divide the input features, and groups divide super-blocks");
    }
    int exponent = 0;
    if (std::frexp(options.unit, &exponent) != 0.5F) refuse("the unit of scales is a power of two");
    if (minima && options.input != DType::i8) refuse("weights with minima meet i8 activations only");
    constexpr int kMostInSum = 1 << 16;  // products of two bytes whose sum fits into 32 bits
    if (options.input == DType::i8 && (options.span != 0 ? options.span : options.group == 0 ? cols : group) > kMostInSum) {
        refuse("more than 65536 input features cannot share a scale");
    }
}

void check(const std::vector<Part>& parts, const PackOptions& options, bool minima) {
    if (parts.empty()) refuse("a matrix needs at least one part");
    if (options.experts < 1 || options.experts > kMaxExperts) refuse("a matrix has between one and 4096 experts");
    for (const Part& part : parts) {
        if (part.rows < 1 || part.cols < 1) refuse("a part of a matrix is empty");
        if (part.cols != parts[0].cols) refuse("the parts of a matrix differ in their columns");
        if (part.type != parts[0].type) refuse("the parts of a matrix differ in their type");
    }
    int rows = 0;
    for (const Part& part : parts) rows += part.rows;
    if (options.gate && rows % 2 != 0) refuse("a gated matrix has as many rows of gate as of up");
    const bool codes = is_codes(options.format);
    const bool fits = options.input == DType::f32    ? !codes
                      : options.input == DType::bf16 ? codes || options.format == WeightFormat::bf16
                                                     : whole_codes(options.format) && options.input == DType::i8;
    if (!fits) refuse("activations of that type cannot meet weights of that format");
    if (codes) check_codes(parts[0].cols, options, minima);
    if (options.group != 0 && !codes) refuse("only weights of codes have groups");
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

// Copies one number of `size` bytes for each of `count` groups of a row of the packed matrix.
void put_groups(const Matrix& m, const void* array, int row, const void* from, int count, std::size_t size) {
    auto* to = static_cast<char*>(const_cast<void*>(array));
    const std::size_t first = static_cast<std::size_t>(row / kPanel) * m.groups * kPanel + row % kPanel;
    for (int g = 0; g < count; ++g) {
        std::memcpy(to + (first + static_cast<std::size_t>(g) * kPanel) * size, static_cast<const char*>(from) + g * size, size);
    }
}

// The scale of a group that holds codes of NaN or infinity, so that its output feature is not a number either.
void spoil_scale(const Matrix& m, int row, int group) {
    constexpr f16_t kHalf = 0x7e00;
    constexpr bf16_t kShort = 0x7fc0;
    constexpr std::uint32_t kFloat = 0x7fc00000;
    constexpr std::uint8_t kPower = 255;
    const void* nan = m.scale_type == ScaleType::f32    ? static_cast<const void*>(&kFloat)
                      : m.scale_type == ScaleType::bf16 ? static_cast<const void*>(&kShort)
                      : m.scale_type == ScaleType::e8m0 ? static_cast<const void*>(&kPower)
                                                        : static_cast<const void*>(&kHalf);
    const std::size_t size = scale_size(m.scale_type);
    const std::size_t place = (static_cast<std::size_t>(row / kPanel) * m.groups + group) * kPanel + row % kPanel;
    std::memcpy(static_cast<char*>(const_cast<void*>(m.scales)) + place * size, nan, size);
}

bool finite_code(WeightFormat format, std::uint8_t code) {
    if (format == WeightFormat::e4m3) return (code & 0x7f) != 0x7f;
    if (format == WeightFormat::e5m2) return (code & 0x7c) != 0x7c;
    return true;
}

// Rows of arrays, in the order of the packed matrix.
struct ArrayRows {
    struct Row {
        const std::uint8_t* codes = nullptr;  // null: a row of zeros
        const void* scales = nullptr;
        const std::uint8_t* zeros = nullptr;
        const void* minima = nullptr;
    };
    std::vector<Row> rows;
    const Matrix& matrix;

    static void read(const void* context, int row, int k, int count, std::uint8_t* codes) {
        const auto& self = *static_cast<const ArrayRows*>(context);
        const Matrix& m = self.matrix;
        const Row& from = self.rows[row];
        const int stored = from.codes == nullptr ? 0 : (m.cols + m.group - 1) / m.group;  // groups that have a scale
        if (k == 0) {
            put_groups(m, m.scales, row, from.scales, stored, scale_size(m.scale_type));
            if (m.minima != nullptr) put_groups(m, m.minima, row, from.minima, stored, scale_size(m.scale_type));
            if (m.zeros != nullptr) {
                put_groups(m, m.zeros, row, from.zeros, stored, 1);
                std::vector<std::uint8_t> rest(m.groups - stored, static_cast<std::uint8_t>(m.middle));
                const std::size_t after = static_cast<std::size_t>(stored) * kPanel;
                put_groups(m, m.zeros + after, row, rest.data(), m.groups - stored, 1);
            }
        }
        for (int i = 0; i < count; ++i) {
            const int feature = k + i, group = feature / m.group;
            if (from.codes != nullptr && feature < m.cols) {
                codes[i] = from.codes[feature];
                if (!finite_code(m.format, codes[i])) spoil_scale(m, row, group);
            } else {  // padding stands for 0, whatever its scale; with minima no activation but 0 meets it
                const bool own = m.zeros != nullptr && group < stored;
                codes[i] = own ? from.zeros[group] : static_cast<std::uint8_t>(m.format == WeightFormat::table4 ? 0 : m.middle);
            }
        }
    }
};

// Rows of blocks, in the order of the packed matrix.
struct BlockRows {
    std::vector<const std::uint8_t*> rows;  // null: a row of zeros
    const BlockType& type;
    const Matrix& matrix;

    void put_side(const Block& block, int row, int index) const {
        const Matrix& m = matrix;
        const int panel = row / kPanel, lane = row % kPanel;
        auto* scales = static_cast<char*>(const_cast<void*>(m.scales));
        if (!is_super(m.scale_type)) {
            const std::size_t place = (static_cast<std::size_t>(panel) * m.groups + index) * kPanel + lane;
            std::memcpy(scales + place * scale_size(m.scale_type), &block.scale, scale_size(m.scale_type));
            if (m.minima != nullptr) static_cast<f16_t*>(const_cast<void*>(m.minima))[place] = block.minimum;
            return;
        }
        const bool minima = m.scale_type == ScaleType::k_minima;
        const int supers = m.cols_padded / kSuper, groups = kSuper / m.group;
        char* at = scales + (static_cast<std::size_t>(panel) * supers + index) * scale_bytes(m.scale_type, m.group);
        std::memcpy(at + 2 * lane, &block.scale, 2);
        if (minima) std::memcpy(at + 2 * kPanel + 2 * lane, &block.minimum, 2);
        at += (minima ? 4 : 2) * kPanel + lane;
        for (int g = 0; g < groups; ++g) at[g * kPanel] = static_cast<char>(block.scales[g]);
        if (!minima) return;
        at += groups * kPanel;
        for (int g = 0; g < groups; ++g) at[g * kPanel] = static_cast<char>(block.minima[g]);
    }

    static void read(const void* context, int row, int k, int count, std::uint8_t* codes) {
        const auto& self = *static_cast<const BlockRows*>(context);
        const std::uint8_t padding = self.matrix.format == WeightFormat::table4 ? 0 : static_cast<std::uint8_t>(self.matrix.middle);
        for (int i = 0; i < count; i += self.type.features) {
            const int index = (k + i) / self.type.features, most = count - i < self.type.features ? count - i : self.type.features;
            if (self.rows[row] == nullptr || k + i >= self.matrix.cols) {
                std::memset(codes + i, padding, most);
                continue;
            }
            Block block;
            self.type.unpack(self.rows[row] + static_cast<std::size_t>(index) * self.type.bytes, block);
            std::memcpy(codes + i, block.codes, most);
            self.put_side(block, row, index);
        }
    }
};

// Everything that a type of blocks says.
PackOptions with_type(PackOptions options, const BlockType& type) {
    options.format = type.format;
    options.input = DType::i8;
    options.group = type.group;
    options.scale_type = type.scale_type;
    options.middle = type.middle;
    options.unit = type.unit;
    if (type.table != nullptr) {
        for (int i = 0; i < 16; ++i) options.table.bytes[i] = static_cast<std::uint8_t>(type.table[i] + 128);
    }
    return options;
}

void check_whole(const BlockType& type, int cols) {
    if (cols % type.features == 0) return;
    refuse(std::string("rows of ") + type.name + " hold whole blocks of " + std::to_string(type.features) + " weights");
}

KeptMatrix with_minima(KeptMatrix kept, const BlockType& type) {
    check_whole(type, kept.cols);
    kept.minima = type.minima;
    return kept;
}

}  // namespace

std::vector<int> PackedMatrix::lay_out(const std::vector<Part>& parts, const PackOptions& options, Beside beside,
                                       bool ordered, bool bias) {
    check(parts, options, beside == Beside::minima || options.scale_type == ScaleType::k_minima);
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
    m.experts = options.experts;
    const auto experts = static_cast<std::size_t>(m.experts);
    m.data = memory_.take(m.panel_bytes * m.panels * experts);
    if (is_codes(m.format)) {
        m.group = options.group == 0 || options.group > m.cols_padded ? m.cols_padded : options.group;
        m.groups = (m.cols_padded + m.group - 1) / m.group;
        m.span = options.span == 0 || options.span > m.group ? m.group : options.span;
        // Table entries are whole numbers around 128; floats have no zero, and codes with minima need none.
        const bool floats = !whole_codes(m.format) || (m.format == WeightFormat::table4 && m.input == DType::bf16);
        const int half = m.format == WeightFormat::table4 ? 128 : 1 << (code_bits(m.format) - 1);
        m.middle = floats ? 0 : options.middle >= 0 ? options.middle : beside == Beside::minima ? 0 : half;
        m.scale_type = options.scale_type;
        m.unit = options.unit;
        m.table = options.table;
        const std::size_t records = scale_records(m) * experts;
        m.scales = memory_.take(records * scale_bytes(m.scale_type, m.group));
        if (beside == Beside::zeros) m.zeros = memory_.take_array<std::uint8_t>(records * kPanel);
        if (beside == Beside::minima) m.minima = memory_.take(records * scale_bytes(m.scale_type, m.group));
    }
    if (ordered) m.order = memory_.take_array<std::int32_t>(m.cols);
    if (bias) m.bias = memory_.take_array<float>(order.size() * experts);
    return order;
}

void PackedMatrix::fill(const Matrix& out, const std::vector<int>& order, const float* bias) const {
    float* packed = const_cast<float*>(out.bias);
    for (std::size_t row = 0; bias != nullptr && row < order.size(); ++row) packed[row] = order[row] < 0 ? 0.0F : bias[order[row]];
}

Matrix PackedMatrix::place(int expert, const std::vector<Part>& shapes, const float* bias) const {
    if (expert < 0 || expert >= matrix_.experts) refuse("there is no expert of that number");
    int rows = 0;
    for (const Part& part : shapes) {
        rows += part.rows;
        if (part.cols != matrix_.cols) refuse("experts differ in their columns");
    }
    if (rows != matrix_.rows) refuse("experts differ in their rows");
    if ((bias != nullptr) != (matrix_.bias != nullptr)) refuse("experts have biases, or none of them has one");
    const Matrix out = expert_of(matrix_, expert);
    fill(out, order_of_rows(shapes, gated_), bias);
    return out;
}

PackedMatrix::PackedMatrix(const KeptMatrix& kept, PackOptions options) : memory_(kept.data, kept.bytes) {
    if (kept.zeros && kept.minima) refuse("weights have zeros or minima, not both");
    if (!is_codes(options.format) && (kept.zeros || kept.minima || kept.ordered)) refuse("floats have no zeros, minima or order");
    if (kept.minima && (is_super(options.scale_type) || options.scale_type == ScaleType::e8m0)) refuse("such scales have no minima beside them");
    lay_out({{kept.data, DType::f32, kept.rows, kept.cols}}, options,
            kept.zeros ? Beside::zeros : kept.minima ? Beside::minima : Beside::nothing, kept.ordered, kept.bias);
    if (memory_.left() != 0) refuse("a matrix of this shape and format is smaller than its memory");
    if (!kept.ordered) return;
    order_.assign(matrix_.order, matrix_.order + matrix_.cols);
    check_order(order_.data(), matrix_.cols);
    matrix_.order = order_.data();
}

PackedMatrix::PackedMatrix(KeptMatrix kept, const BlockType& type, bool gate, int experts)
    : PackedMatrix(with_minima(kept, type), with_type({.gate = gate, .experts = experts}, type)) {}

namespace {

std::vector<Part> shapes_of(const std::vector<CodePart>& parts) {
    std::vector<Part> shapes;
    for (const CodePart& part : parts) {
        shapes.push_back({part.codes, DType::i8, part.rows, part.cols});
        if ((part.zeros == nullptr) != (parts[0].zeros == nullptr)) refuse("zeros belong to all parts or to none");
        if ((part.minima == nullptr) != (parts[0].minima == nullptr)) refuse("minima belong to all parts or to none");
        if (part.zeros != nullptr && part.minima != nullptr) refuse("weights have zeros or minima, not both");
    }
    return shapes;
}

std::vector<Part> shapes_of(const std::vector<BlockPart>& parts, const BlockType& type) {
    std::vector<Part> shapes;
    for (const BlockPart& part : parts) {
        check_whole(type, part.cols);
        shapes.push_back({part.data, DType::i8, part.rows, part.cols});
    }
    return shapes;
}

void check_floats(const std::vector<Part>& parts) {
    for (const Part& part : parts) {
        if (part.type == DType::i8) refuse("a matrix is packed from f32, bf16 or f16");
        if (part.type != parts[0].type) refuse("the parts of a matrix differ in their type");
    }
}

// The part that holds a row of all parts, one after the other; `row` becomes its number in there.
template <typename OnePart>
const OnePart& part_with(const std::vector<OnePart>& parts, std::size_t& row) {
    const OnePart* part = parts.data();
    for (; row >= static_cast<std::size_t>(part->rows); ++part) row -= part->rows;
    return *part;
}

}  // namespace

PackedMatrix::PackedMatrix(const Kernels& kernels, Team& team, const std::vector<Part>& parts,
                           const PackOptions& options) {
    check_floats(parts);
    const bool codes = is_codes(options.format);
    if (codes && options.format != WeightFormat::int8 && options.format != WeightFormat::int4) {
        refuse("floats are rounded to int8 and int4 here, and to no other codes");
    }
    if (codes && options.group % 32 != 0) refuse("a group of weights that are rounded here is a multiple of 32");
    lay_out(parts, options, codes && !options.symmetric ? Beside::zeros : Beside::nothing, false, options.bias != nullptr);
    symmetric_ = options.symmetric;
    write(kernels, team, place(0, parts, options.bias), parts);
}

PackedMatrix::PackedMatrix(const Kernels& kernels, Team& team, const std::vector<CodePart>& parts,
                           PackOptions options) {
    if (!is_codes(options.format)) refuse("weights of that format are no codes");
    if (is_super(options.scale_type)) refuse("super-blocks are packed from blocks");
    const std::vector<Part> shapes = shapes_of(parts);
    const bool zeros = !parts.empty() && parts[0].zeros != nullptr, minima = !parts.empty() && parts[0].minima != nullptr;
    if (zeros && (!whole_codes(options.format) || options.format == WeightFormat::table4)) {
        refuse("numbers of a table and floats have no zeros");
    }
    if (minima && options.scale_type == ScaleType::e8m0) refuse("minima are no powers of two");
    if (options.order != nullptr && options.experts > 1) refuse("the columns of experts are in no order of their own");
    options.symmetric = !zeros;
    lay_out(shapes, options, zeros ? Beside::zeros : minima ? Beside::minima : Beside::nothing, options.order != nullptr,
            options.bias != nullptr);
    if (options.order != nullptr) {
        check_order(options.order, matrix_.cols);
        std::memcpy(const_cast<std::int32_t*>(matrix_.order), options.order, sizeof(std::int32_t) * matrix_.cols);
    }
    write(kernels, team, place(0, shapes, options.bias), parts);
}

PackedMatrix::PackedMatrix(const Kernels& kernels, Team& team, const BlockType& type,
                           const std::vector<BlockPart>& parts, const PackOptions& options) {
    const std::vector<Part> shapes = shapes_of(parts, type);
    lay_out(shapes, with_type(options, type), type.minima ? Beside::minima : Beside::nothing, false, options.bias != nullptr);
    blocks_ = &type;
    write(kernels, team, place(0, shapes, options.bias), parts);
}

void PackedMatrix::put(const Kernels& kernels, Team& team, int expert, const std::vector<Part>& parts, const float* bias) {
    check_floats(parts);
    write(kernels, team, place(expert, parts, bias), parts);
}

void PackedMatrix::put(const Kernels& kernels, Team& team, int expert, const std::vector<CodePart>& parts, const float* bias) {
    const std::vector<Part> shapes = shapes_of(parts);
    for (const CodePart& part : parts) {
        if ((part.zeros != nullptr) != (matrix_.zeros != nullptr) || (part.minima != nullptr) != (matrix_.minima != nullptr)) {
            refuse("experts have zeros or minima, or none of them has them");
        }
    }
    write(kernels, team, place(expert, shapes, bias), parts);
}

void PackedMatrix::put(const Kernels& kernels, Team& team, int expert, const std::vector<BlockPart>& parts, const float* bias) {
    if (blocks_ == nullptr) refuse("the first expert is not of blocks");
    write(kernels, team, place(expert, shapes_of(parts, *blocks_), bias), parts);
}

void PackedMatrix::write(const Kernels& kernels, Team& team, const Matrix& out, const std::vector<Part>& parts) {
    if (!kernels.pack) refuse(std::string(kernels.name) + " cannot pack matrices");
    std::vector<const void*> sources;
    for (const Part& part : parts) {
        const std::size_t stride = part.cols * dtype_bytes(part.type);
        for (int row = 0; row < part.rows; ++row) sources.push_back(static_cast<const char*>(part.data) + row * stride);
    }
    std::vector<const void*> ordered;
    for (int row : order_of_rows(parts, gated_)) ordered.push_back(row < 0 ? nullptr : sources[row]);
    kernels.pack({ordered.data(), parts[0].type, out, symmetric_}, team);
}

void PackedMatrix::write(const Kernels& kernels, Team& team, const Matrix& out, const std::vector<CodePart>& parts) {
    if (!kernels.pack_codes) refuse(std::string(kernels.name) + " cannot pack codes");
    const std::vector<int> order = order_of_rows(shapes_of(parts), gated_);
    const std::size_t groups = (out.cols + out.group - 1) / out.group, size = scale_size(out.scale_type);
    ArrayRows from{std::vector<ArrayRows::Row>(order.size()), out};
    for (std::size_t i = 0; i < order.size(); ++i) {
        if (order[i] < 0) continue;
        std::size_t row = order[i];
        const CodePart& part = part_with(parts, row);
        from.rows[i].codes = part.codes + row * part.cols;
        from.rows[i].scales = static_cast<const char*>(part.scales) + row * groups * size;
        if (part.zeros != nullptr) from.rows[i].zeros = part.zeros + row * groups;
        if (part.minima != nullptr) from.rows[i].minima = static_cast<const char*>(part.minima) + row * groups * size;
    }
    kernels.pack_codes({ArrayRows::read, &from, out}, team);
}

void PackedMatrix::write(const Kernels& kernels, Team& team, const Matrix& out, const std::vector<BlockPart>& parts) {
    if (!kernels.pack_codes) refuse(std::string(kernels.name) + " cannot pack codes");
    const std::vector<int> order = order_of_rows(shapes_of(parts, *blocks_), gated_);
    const std::size_t row_bytes = static_cast<std::size_t>(out.cols / blocks_->features) * blocks_->bytes;
    BlockRows from{std::vector<const std::uint8_t*>(order.size()), *blocks_, out};
    for (std::size_t i = 0; i < order.size(); ++i) {
        if (order[i] < 0) continue;
        std::size_t row = order[i];
        const BlockPart& part = part_with(parts, row);
        from.rows[i] = part.data + row * row_bytes;
    }
    kernels.pack_codes({BlockRows::read, &from, out}, team);
}

}  // namespace headrace
