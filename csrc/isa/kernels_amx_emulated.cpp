// The AMX kernels in plain C++, so that they are tested on every machine.
#define HEADRACE_ISA amx_emulated
#define HEADRACE_ISA_NAME "amx-emulated"
#define HEADRACE_TILES 2
#include "vec_portable.h"
#include "table.h"
