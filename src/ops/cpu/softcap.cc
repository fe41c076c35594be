// softcap of the cpu backend. Rows are logits, hundreds of thousands wide, so a task is a piece of one.
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/softcap.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/simd_math-inl.h"
#include "ops/cpu/softcap.h"

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

void softcap_piece(float* x, int64_t n, float limit) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto bound = hn::Set(d, limit);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(hn::Mul(bound, simd_tanh(d, hn::Div(hn::LoadU(d, x + i), bound))), d, x + i);
  for (; i < n; ++i) x[i] = limit * tanh_f32(x[i] / limit);
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

namespace tensorfold::cpu {

void softcap(CpuContext& cpu, View x, float limit) {
  // A task of the size that split.h gives rows, and a multiple of every vector: only a row's last piece has a
  // rest.
  constexpr int64_t kPieceElements = 8192;
  const auto piece = TF_ISA_FUNCTION(cpu.isa, softcap_piece);
  const int64_t n = x.dim(1), pieces = (n + kPieceElements - 1) / kPieceElements;
  cpu.pool.run(x.num_rows() * pieces, [&](int64_t task) {
    const int64_t first = task % pieces * kPieceElements;
    piece(x.row<float>(task / pieces) + first, std::min(kPieceElements, n - first), limit);
  });
}

}  // namespace tensorfold::cpu
#endif
