// Memory for activations: zero pages that use physical memory only once they are written, so that space for the largest
// step costs nothing while steps are small.
#pragma once

#include <cstddef>
#include <vector>

namespace headrace {

class Arena {
public:
    Arena() = default;
    ~Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    // Zeros at a page boundary, kept until the arena is destroyed. Throws std::bad_alloc.
    void* take(std::size_t bytes);

    template <typename T>
    T* take_array(std::size_t count) {
        return static_cast<T*>(take(count * sizeof(T)));
    }

    std::size_t bytes() const { return bytes_; }

private:
    struct Mapping {
        void* start;
        std::size_t bytes;
    };
    std::vector<Mapping> mappings_;
    std::size_t bytes_ = 0;
};

}  // namespace headrace
