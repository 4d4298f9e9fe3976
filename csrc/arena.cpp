#include "arena.h"

#include <sys/mman.h>

#include <new>

namespace headrace {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

Arena::~Arena() {
    for (const Mapping& mapping : mappings_) munmap(mapping.start, mapping.bytes);
}

void* Arena::take(std::size_t bytes) {
    const std::size_t rounded = (bytes + kPage - 1) / kPage * kPage + (bytes == 0 ? kPage : 0);
    mappings_.reserve(mappings_.size() + 1);
    void* start = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) throw std::bad_alloc();
    mappings_.push_back({start, rounded});
#ifdef MADV_HUGEPAGE
    if (rounded >= kHugePage) madvise(start, rounded, MADV_HUGEPAGE);  // advice only, failure does not matter
#endif
    bytes_ += rounded;
    return start;
}

}  // namespace headrace
