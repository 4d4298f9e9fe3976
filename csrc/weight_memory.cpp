#include "weight_memory.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <new>
#include <stdexcept>

namespace headrace {

struct WeightMemory::Chunk {
    void* mapping = nullptr;
    std::size_t mapped = 0;
    char* start = nullptr;  // at a huge page
    std::size_t bytes = 0;
    std::size_t used = 0;
    int pieces = 0;         // still in use
};

// Shared by the whole process: the next model uses the rest of a chunk.
struct Chunks {
    using Chunk = WeightMemory::Chunk;

    std::mutex one;
    Chunk* open = nullptr;  // the next piece is placed here, if it fits

    // Never destroyed: Python may free a matrix after static destructors have run.
    static Chunks& all() {
        static Chunks* const chunks = [] {
            // A fork waits for the holder of the lock, so the child gets consistent chunks.
            pthread_atfork([] { all().one.lock(); }, [] { all().one.unlock(); }, [] { all().one.unlock(); });
            return new Chunks;
        }();
        return *chunks;
    }
};

namespace {

// Made when the library is loaded: a child that is forked while another thread makes them would wait for that thread.
[[maybe_unused]] const Chunks& made = Chunks::all();

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Untouched pages take no memory, but each chunk wastes half a huge page, and what its last piece did not fit into.
constexpr std::size_t kChunk = std::size_t{256} << 20;

std::size_t round_up(std::size_t bytes, std::size_t step) { return (bytes + step - 1) / step * step; }

Chunks::Chunk* map_chunk(std::size_t bytes) {
    auto* chunk = new Chunks::Chunk;
    chunk->bytes = std::max(kChunk, round_up(bytes, kHugePage));
    chunk->mapped = chunk->bytes + kHugePage;  // room to begin at a huge page
    chunk->mapping = mmap(nullptr, chunk->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (chunk->mapping == MAP_FAILED) {
        delete chunk;
        throw std::bad_alloc();
    }
    const auto address = reinterpret_cast<std::uintptr_t>(chunk->mapping);
    chunk->start = static_cast<char*>(chunk->mapping) + (round_up(address, kHugePage) - address);
#ifdef MADV_HUGEPAGE
    madvise(chunk->start, chunk->bytes, MADV_HUGEPAGE);  // advice only, failure does not matter
#endif
    return chunk;
}

void unmap(Chunks::Chunk* chunk) {
    munmap(chunk->mapping, chunk->mapped);
    delete chunk;
}

}  // namespace

WeightMemory::WeightMemory(const void* kept, std::size_t bytes)
    : kept_(static_cast<const char*>(kept)), kept_bytes_(bytes) {
    if (kept == nullptr || reinterpret_cast<std::uintptr_t>(kept) % kPage != 0) {
        throw std::invalid_argument("kept memory begins at a page");
    }
}

void* WeightMemory::take(std::size_t bytes) {
    const std::size_t rounded = round_up(std::max<std::size_t>(bytes, 1), kPage);
    if (kept_ != nullptr) {
        if (rounded > left()) throw std::invalid_argument("a matrix of this shape and format is larger than its memory");
        const char* start = kept_ + bytes_;
        pieces_.push_back({start, rounded});
        bytes_ += rounded;
        return const_cast<char*>(start);
    }
    pieces_.reserve(pieces_.size() + 1);
    chunks_.reserve(chunks_.size() + 1);
    Chunks& chunks = Chunks::all();
    const std::lock_guard<std::mutex> alone(chunks.one);
    Chunk* chunk = chunks.open;
    if (chunk == nullptr || chunk->bytes - chunk->used < rounded) {
        Chunk* fresh = map_chunk(rounded);
        const std::size_t left = chunk == nullptr ? 0 : chunk->bytes - chunk->used;
        if (fresh->bytes - rounded >= left) {  // the one with more room stays open
            chunks.open = fresh;
        }
        chunk = fresh;
    }
    void* start = chunk->start + chunk->used;
    chunk->used += rounded;
    ++chunk->pieces;
    pieces_.push_back({start, rounded});
    chunks_.push_back(chunk);
    bytes_ += rounded;
    return start;
}

WeightMemory::~WeightMemory() {
    if (chunks_.empty()) return;
    Chunks& chunks = Chunks::all();
    const std::lock_guard<std::mutex> alone(chunks.one);
    for (Chunk* chunk : chunks_) {
        if (--chunk->pieces > 0) continue;
        if (chunks.open == chunk) chunks.open = nullptr;  // used pages hold codes, not zeros: it cannot be filled again
        unmap(chunk);
    }
}

}  // namespace headrace
