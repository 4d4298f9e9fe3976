// AVX-512 F, BW, DQ, VL, VNNI and BF16.
#define HEADRACE_ISA avx512
#define HEADRACE_ISA_NAME "avx512"
#include "vec_avx512.h"
#include "table.h"
