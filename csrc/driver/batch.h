// The batch of an attention case: four sequences, each with its last tokens in this step, in blocks of its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../kernels.h"

namespace headrace::driver {

struct Slice {
    int queries, length;  // the last `queries` of `length` positions
};
constexpr Slice kSlices[] = {{1, 1}, {5, 17}, {1, 300}, {40, 40}};

struct Batch {
    std::vector<std::int32_t> cu{0}, lengths, dropped, tables;
    std::vector<std::int64_t> positions;                    // of the tokens of this step
    std::vector<std::int64_t> all_positions, all_slots;  // of all tokens
    int blocks = 0, width = 0, sink_blocks = 0;

    Batch(int block_size, int window, int sinks) : sink_blocks((sinks + block_size - 1) / block_size) {
        for (const Slice& s : kSlices) width = std::max(width, (s.length + block_size - 1) / block_size);
        for (const Slice& s : kSlices) {
            const int count = (s.length + block_size - 1) / block_size, first = blocks;
            int gone = 0;
            if (window > 0) gone = std::max(0, (s.length - s.queries - window + 1) / block_size - sink_blocks);
            blocks += count;
            for (int entry = 0; entry < width; ++entry) {
                const int logical = entry < sink_blocks ? entry : entry + gone;
                tables.push_back(logical < count ? first + logical : -1);  // a read past the live entries is outside the cache
            }
            for (int at = 0; at < s.length; ++at) {
                const std::int64_t slot = static_cast<std::int64_t>(first + at / block_size) * block_size + at % block_size;
                all_positions.push_back(at);
                all_slots.push_back(slot);
                if (at >= s.length - s.queries) positions.push_back(at);
            }
            cu.push_back(static_cast<std::int32_t>(positions.size()));
            lengths.push_back(s.length);
            dropped.push_back(gone);
        }
    }

    // All tokens, to write their keys and values.
    void write_all(GroupTables& group, Step& step) const {
        group.slots = all_slots.data();
        step.tokens = static_cast<int>(all_positions.size());
        step.positions = all_positions.data();
        step.groups = &group;
    }

    // Those of this step, to attend.
    void attend(GroupTables& group, Step& step) const {
        group.block_tables = tables.data();
        group.dropped = dropped.data();
        group.table_width = width;
        group.sink_blocks = sink_blocks;
        step.tokens = static_cast<int>(positions.size());
        step.seqs = static_cast<int>(lengths.size());
        step.positions = positions.data();
        step.cu_q = cu.data();
        step.kv_lens = lengths.data();
        step.groups = &group;
    }
};

}  // namespace headrace::driver
