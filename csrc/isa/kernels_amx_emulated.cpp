// The AMX kernels in plain C++, so that they are tested on every machine.
#define HEADRACE_ISA amx_emulated
#define HEADRACE_ISA_NAME "amx-emulated"
#include "vec_portable.h"
#include "table.h"
