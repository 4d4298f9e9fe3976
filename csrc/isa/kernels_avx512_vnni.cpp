// AVX-512 F, BW, DQ, VL and VNNI.
#define HEADRACE_ISA avx512_vnni
#define HEADRACE_ISA_NAME "avx512_vnni"
#include "vec_avx512.h"
#include "table.h"
