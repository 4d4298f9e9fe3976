// Memory for packed weights: matrices one after the other in chunks of huge pages. A small matrix alone would get none, and
// reading it would need a page-table lookup every 4 KiB.
#pragma once

#include <cstddef>
#include <vector>

namespace headrace {

class WeightMemory {
public:
    // Of one `take`, rounded up to whole pages.
    struct Piece {
        const void* start = nullptr;
        std::size_t bytes = 0;
    };

    WeightMemory() = default;

    // Pieces that lie one after the other in memory that something else keeps and nobody changes, such as a mapped file. It
    // begins at a page.
    WeightMemory(const void* kept, std::size_t bytes);

    ~WeightMemory();  // a chunk is freed with its last piece
    WeightMemory(const WeightMemory&) = delete;
    WeightMemory& operator=(const WeightMemory&) = delete;

    // Zeros at a page boundary, kept until this object is destroyed, or the next piece of kept memory, which is not to be
    // written to. Throws std::bad_alloc, and std::invalid_argument where kept memory is used up. Any thread may call.
    void* take(std::size_t bytes);

    template <typename T>
    T* take_array(std::size_t count) {
        return static_cast<T*>(take(count * sizeof(T)));
    }

    std::size_t bytes() const { return bytes_; }

    // In the order in which they were taken.
    const std::vector<Piece>& pieces() const { return pieces_; }

    // Kept memory that was not taken.
    std::size_t left() const { return kept_bytes_ - (kept_ == nullptr ? 0 : bytes_); }

private:
    struct Chunk;
    std::vector<Piece> pieces_;
    std::vector<Chunk*> chunks_;  // the chunk of each piece; empty where memory is kept elsewhere
    std::size_t bytes_ = 0;
    const char* kept_ = nullptr;
    std::size_t kept_bytes_ = 0;

    friend struct Chunks;
};

}  // namespace headrace
