// The limits of this machine, measured: bytes a second that threads can read from memory, and operations a second
// of each kind of product (Williams, Waterman and Patterson 2009, "Roofline").
#pragma once

#include <cstddef>
#include <vector>

#include "kernels.h"

namespace headrace {

// Bytes a second at which the whole team reads, in each sixteenth of `runs` passes over `buffer_bytes` of memory (rounded
// up to whole pages); a pass must not fit any cache. Throws std::bad_alloc where there is not so much memory.
std::vector<double> measure_read(const Kernels& kernels, Team& team, std::size_t buffer_bytes, int runs);

// Operations a second of `threads` threads that run side by side, each `runs` runs of about `seconds`: entry i is the sum
// of what each thread reached in its i-th slowest run, so that threads need not be undisturbed at the same time.
// Empty where the set has no product of this type.
std::vector<double> measure_peak(const Kernels& kernels, int threads, DType type, double seconds, int runs);

}  // namespace headrace
