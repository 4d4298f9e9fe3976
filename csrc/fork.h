// What a process must not share with its parent: threads, and locks that another thread of the parent may hold.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

namespace headrace {

// The number of forks between the process that loaded the library and this one. A child has none of its parent's threads.
unsigned fork_depth();

// An object per process: after a fork the child creates its own at the first use, by any of its threads. The parent's
// object is never destroyed in the child, since the threads that used it do not exist there.
template <typename T>
class PerProcess {
public:
    explicit PerProcess(T* first) : entry_(new Entry(fork_depth(), std::unique_ptr<T>(first))) {}
    ~PerProcess() {
        Entry* entry = entry_.load();
        if (entry->depth == fork_depth()) delete entry;
    }
    PerProcess(const PerProcess&) = delete;
    PerProcess& operator=(const PerProcess&) = delete;

    // `make` returns a new T. Threads that call at the same time may create several; one is kept.
    template <typename Make>
    T& get(Make make) {
        Entry* entry = entry_.load(std::memory_order_acquire);
        if (entry->depth == fork_depth()) return *entry->value;
        auto fresh = std::make_unique<Entry>(fork_depth(), std::unique_ptr<T>(make()));
        if (entry_.compare_exchange_strong(entry, fresh.get())) return *fresh.release()->value;
        return *entry->value;
    }

private:
    struct Entry {
        Entry(unsigned depth, std::unique_ptr<T> value) : depth(depth), value(std::move(value)) {}
        unsigned depth;
        std::unique_ptr<T> value;
    };
    std::atomic<Entry*> entry_;
};

}  // namespace headrace
