// Arrays that end at an inaccessible page, so that faults of vector instructions and assembler, which sanitizers do not
// check, are caught too. Unwritten elements are NaN.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>

namespace headrace::driver {

// Numbers in -1..1, the same in every run.
class Noise {
public:
    explicit Noise(std::uint64_t seed) : state_(seed * 2654435761U + 1) {}
    std::uint32_t bits() {
        state_ = state_ * 6364136223846793005U + 1442695040888963407U;
        return static_cast<std::uint32_t>(state_ >> 33);
    }
    float operator()() { return static_cast<float>(bits()) / static_cast<float>(1U << 30) - 1.0F; }

private:
    std::uint64_t state_;
};

template <typename T>
class Guarded {
public:
    explicit Guarded(std::size_t count) : count_(count) {
        const std::size_t bytes = count * sizeof(T), rounded = (bytes + kPage - 1) / kPage * kPage;
        mapped_ = rounded + 2 * kPage;  // one page before, one after
        start_ = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (start_ == MAP_FAILED) throw std::bad_alloc();
        char* middle = static_cast<char*>(start_) + kPage;
        if (rounded > 0 && mprotect(middle, rounded, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
        data_ = reinterpret_cast<T*>(middle + rounded - bytes);
        std::memset(static_cast<void*>(data_), 0xff, bytes);
    }
    ~Guarded() { munmap(start_, mapped_); }
    Guarded(const Guarded&) = delete;
    Guarded& operator=(const Guarded&) = delete;

    Guarded& fill(Noise& noise) {
        for (std::size_t i = 0; i < count_; ++i) {
            if constexpr (std::is_same_v<T, float>) {
                data_[i] = noise();
            } else if constexpr (sizeof(T) == 2) {  // bf16, or f16 of a like size
                data_[i] = static_cast<T>(0x3c00U | (noise.bits() & 0x83ffU));
            } else {
                data_[i] = static_cast<T>(noise.bits());
            }
        }
        return *this;
    }
    Guarded& fill(T value) {
        for (std::size_t i = 0; i < count_; ++i) data_[i] = value;
        return *this;
    }

    T* data() const { return data_; }
    std::size_t size() const { return count_; }
    T& operator[](std::size_t i) const { return data_[i]; }
    bool operator==(const Guarded& other) const {
        return count_ == other.count_ && std::memcmp(data_, other.data_, count_ * sizeof(T)) == 0;
    }

private:
    static constexpr std::size_t kPage = 4096;
    std::size_t count_;
    std::size_t mapped_ = 0;
    void* start_ = nullptr;
    T* data_ = nullptr;
};

}  // namespace headrace::driver
