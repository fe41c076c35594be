// The passes over one row of logits that sampling is made of. sample.cc owns the order of cuts; ops/sampling_math.h
// the numbers.
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace tensorfold::cpu {

/// Logits per entry of block_max.
inline constexpr int64_t kMaxBlock = 64;

/// What the first pass finds.
struct LogitScan {
  float max = 0.0f;      ///< Largest canonical logit. Not meaningful with has_nan.
  int32_t argmax = 0;    ///< Its lowest token.
  bool has_nan = false;
};

/// Tokens in order of id: all of a row, or a list.
struct LogitList {
  const float* logits = nullptr;    ///< [size]
  const int32_t* tokens = nullptr;  ///< [size] ascending, or null: the token is the index.
  int64_t size = 0;
};

/// One draw: the best score among `list`, starting from `token` (which may not be in it).
struct DrawArgs {
  LogitList list;
  float max = 0.0f;          ///< Finite.
  float temperature = 1.0f;  ///< > 0.
  uint64_t row_key = 0;
  float least = 0.0f;        ///< Only tokens with exp2_f32(log2_weight(...)) >= least: min_p.
  int32_t token = -1;        ///< In: the best so far, which must be a candidate. Out: the drawn token.
  double score = 0.0;        ///< Its score, in and out.
};

struct SampleKernels {
  /// block_max [ceil(size / kMaxBlock)], or null.
  void (*scan)(const float* logits, int64_t size, float* block_max, LogitScan* result);
  /// Weights of canonical or raw logits (the same), to out [size + 16] if not null; returns their sum.
  uint64_t (*weigh)(const float* logits, int64_t size, float max, float temperature, uint64_t* out);
  /// Copies canonical logits >= bound and their tokens, ascending; room for size + 16. Returns how many.
  int64_t (*collect)(const float* logits, int64_t size, float bound, float* out_logits, int32_t* out_tokens);
  void (*draw)(DrawArgs& args);
};

SampleKernels sample_kernels(CpuIsa isa);

}  // namespace tensorfold::cpu
