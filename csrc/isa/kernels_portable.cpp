// Plain C++, for every CPU.
#define HEADRACE_ISA portable
#define HEADRACE_ISA_NAME "portable"
#include "vec_portable.h"
#include "table.h"
