#include "fork.h"

#include <pthread.h>

namespace headrace {
namespace {

std::atomic<unsigned> depth{0};
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { depth.fetch_add(1); });

}  // namespace

unsigned fork_depth() { return depth.load(std::memory_order_relaxed); }

}  // namespace headrace
