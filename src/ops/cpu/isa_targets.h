// Which Highway targets a kernel file is compiled for, and how an op picks one: by the instance's CpuIsa,
// never by Highway's process-wide choice. Include first in every kernel file (before any hwy header). How to
// add an op: cpu_ops.h.
#pragma once

#include "ops/ops.h"

// Exactly the sets of CpuIsa. SSE, EMU128 and SCALAR have no fused multiply-add (arithmetic.md, "The rest").
// The first set is called the baseline although the compiler's own flags are lower: Highway compiles each
// target's functions under target attributes, and no function of a set runs before CpuOps has checked the CPU
// for it.
#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_AVX2
#define HWY_DISABLED_TARGETS (~(HWY_AVX2 | HWY_AVX3))
#else
#define HWY_BASELINE_TARGETS HWY_NEON
#define HWY_DISABLED_TARGETS (~HWY_NEON)
#endif

// TF_ISA_FUNCTION(isa, f): the address of `f` of the namespace compiled for `isa`. Usable after HWY_ONCE,
// inside the namespace that encloses HWY_NAMESPACE. AVX-512-BF16 machines run the AVX-512 functions; only
// linear.h's dot products differ.
#if defined(__x86_64__)
#define TF_ISA_FUNCTION(isa, f) ((isa) == ::tensorfold::CpuIsa::kAvx2 ? &N_AVX2::f : &N_AVX3::f)
#else
#define TF_ISA_FUNCTION(isa, f) (static_cast<void>(isa), &N_NEON::f)
#endif
