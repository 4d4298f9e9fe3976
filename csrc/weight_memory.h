// Memory for packed weights: matrices one after the other in chunks of huge pages. A small matrix alone would get none, and
// reading it would need a page-table lookup every 4 KiB.
#pragma once

#include <cstddef>
#include <vector>

namespace headrace {

class WeightMemory {
public:
    WeightMemory() = default;
    ~WeightMemory();  // a chunk is freed with its last piece
    WeightMemory(const WeightMemory&) = delete;
    WeightMemory& operator=(const WeightMemory&) = delete;

    // Zeros at a page boundary, kept until this object is destroyed. Throws std::bad_alloc. Any thread may call.
    void* take(std::size_t bytes);

    template <typename T>
    T* take_array(std::size_t count) {
        return static_cast<T*>(take(count * sizeof(T)));
    }

    std::size_t bytes() const { return bytes_; }

private:
    struct Chunk;
    std::vector<Chunk*> pieces_;  // the chunk of each
    std::size_t bytes_ = 0;

    friend struct Chunks;
};

}  // namespace headrace
