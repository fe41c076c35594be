// Compiles ops/cpu/simd_math-inl.h for each instruction set (see contract_math_simd.h).
#include "ops/cpu/isa_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/ops/contract_math_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/simd_math-inl.h"
#include "tests/ops/contract_math_simd.h"

HWY_BEFORE_NAMESPACE();
namespace tensorfold::cpu {
namespace HWY_NAMESPACE {

#define TF_TEST_FUNCTION(f)                               \
  void run_##f(const float* x, float* y, int64_t n) {     \
    const hn::ScalableTag<float> d;                       \
    for (int64_t i = 0; i < n; i += hn::Lanes(d)) {       \
      hn::StoreU(simd_##f(d, hn::LoadU(d, x + i)), d, y + i); \
    }                                                     \
  }

TF_TEST_FUNCTION(exp2)
TF_TEST_FUNCTION(exp2_nonpositive)
TF_TEST_FUNCTION(exp)
TF_TEST_FUNCTION(log)
TF_TEST_FUNCTION(log1p)
TF_TEST_FUNCTION(sigmoid)
TF_TEST_FUNCTION(silu)
TF_TEST_FUNCTION(softplus)
TF_TEST_FUNCTION(tanh)
TF_TEST_FUNCTION(rsqrt)

void run_sincos(const double* x, double* sin, double* cos, int64_t n) {
  const hn::ScalableTag<double> d;
  for (int64_t i = 0; i < n; i += hn::Lanes(d)) {
    hn::Vec<decltype(d)> s, c;
    simd_sincos(d, hn::LoadU(d, x + i), s, c);
    hn::StoreU(s, d, sin + i);
    hn::StoreU(c, d, cos + i);
  }
}

void run_bf16(const float* x, uint16_t* y, int64_t n) {
  const hn::ScalableTag<float> d;
  for (int64_t i = 0; i < n; i += hn::Lanes(d)) store_as(d, hn::LoadU(d, x + i), reinterpret_cast<bf16*>(y + i));
}

}  // namespace HWY_NAMESPACE
}  // namespace tensorfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tensorfold::cpu {
namespace {

test::SimdTable table(CpuIsa isa) {
#define TF_TEST_ENTRY(f, scalar) {#f, TF_ISA_FUNCTION(isa, run_##f), [](float x) { return scalar(x); }, false}
  return {.functions = {TF_TEST_ENTRY(exp2, exp2_f32),
                        {"exp2_nonpositive", TF_ISA_FUNCTION(isa, run_exp2_nonpositive),
                         [](float x) { return exp2_f32(x); }, true},
                        TF_TEST_ENTRY(exp, exp_f32), TF_TEST_ENTRY(log, log_f32), TF_TEST_ENTRY(log1p, log1p_f32),
                        TF_TEST_ENTRY(sigmoid, sigmoid_f32), TF_TEST_ENTRY(silu, silu_f32),
                        TF_TEST_ENTRY(softplus, softplus_f32), TF_TEST_ENTRY(tanh, tanh_f32),
                        TF_TEST_ENTRY(rsqrt, rsqrt_f32)},
          .sincos = TF_ISA_FUNCTION(isa, run_sincos),
          .bf16 = TF_ISA_FUNCTION(isa, run_bf16)};
}

}  // namespace
}  // namespace tensorfold::cpu

namespace tensorfold::test {
SimdTable simd_table(CpuIsa isa) { return cpu::table(isa); }
}  // namespace tensorfold::test
#endif
