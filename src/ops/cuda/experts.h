// experts() on CUDA devices: what it takes from the host. At most kMaxExperts experts, kMaxExpertChoices a
// row.
//
// The experts of a layer lie one after the other at one distance, biases likewise, so that an expert's number
// is all that a kernel needs. Nothing waits for the device: a small kernel sorts pairs (row, choice) by
// expert into tasks, and the others are launched for the most tasks that there can be. One row needs no
// sorting.
//
// Arithmetic: each product has the bits of linear() (ops/cuda/linear.h) for that matrix and row, the rest
// those of Ops::experts(). Neither the tasks nor the kernel that computes them change a bit.
#pragma once

#include "ops/cuda/experts_params.h"
#include "ops/ops.h"

namespace tensorfold::cuda {

/// Which kernels compute the products. Tests force each; callers leave kAuto. Layouts that those for many
/// rows do not take (has_experts_many()) are computed by the others.
enum class ExpertsKernel {
  kAuto,   ///< By the rows that an expert has on average.
  kPairs,  ///< Those for few rows, rows not sorted by expert.
  kFewRows,
  kManyRows,
};

/// Whether the kernels take as many experts and choices, and rows as wide; otherwise kUnsupported, naming
/// them. The router's part is check_route()'s.
Status check_experts(const ExpertsSpec& spec);

/// Whether a launch takes call.shared: one row is added to, and the shared expert has the others' shapes and
/// formats, none of them biases.
bool takes_shared_expert(const ExpertsCall& call, ExpertsKernel kernel = ExpertsKernel::kAuto);

/// Bytes of scratch memory, aligned to 256, that a launch of experts_launch(call, ...) uses.
int64_t experts_scratch_bytes(const ExpertsCall& call, ExpertsKernel kernel = ExpertsKernel::kAuto);

/// Ops::experts(), everything on the device. x bf16, its rows 16-byte aligned and a multiple of 8 elements
/// apart. A call that check_experts() does not take, a layer that is not packed as above, or whose experts
/// differ in shape or format, is a caller bug (TF_CHECK). Gate, up and down may differ in format. The caller
/// may set arrived_blocks and x_is_early.
ExpertsLaunch experts_launch(const ExpertsCall& call, std::byte* scratch,
                             ExpertsKernel kernel = ExpertsKernel::kAuto);

}  // namespace tensorfold::cuda
