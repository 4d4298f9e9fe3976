// AMX tiles for products, AVX-512 for the rest.
#define HEADRACE_ISA amx
#define HEADRACE_ISA_NAME "amx"
#define HEADRACE_TILES 1
#include "vec_avx512.h"
#include "table.h"
