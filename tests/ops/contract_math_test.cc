// contract_math.h: the errors it promises, against the C library in double and long double; the vector functions give
// its bits.
#include "ops/contract_math.h"

#include <fmt/format.h>

#include <functional>

#include "base/fp_env.h"
#include "tests/ops/contract_math_simd.h"
#include "tests/ops/op_test_support.h"

namespace tensorfold::test {
namespace {

/// Every kStride-th float: 37 for the numbers of contract_math.h (15 s a core); a prime leaves no pattern out.
constexpr uint64_t kStride = 1009;

struct WorstError {
  double ulps = 0;
  float at = 0;
};

/// The largest error over the normal floats of [low, high] whose result is normal.
WorstError worst_error(float (*f)(float), double (*exact)(double), float low, float high) {
  const ScopedFlushDenormals flush;
  WorstError worst;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += kStride) {
    const float x = bits_as<float>(static_cast<uint32_t>(bits));
    if (!(x >= low && x <= high) || std::fabs(x) < 0x1p-126f) continue;
    const double expected = exact(x);
    if (std::fabs(expected) < 0x1p-126 || std::fabs(expected) > 0x1.fffffep127) continue;
    const double ulp = std::ldexp(1.0, std::ilogb(expected) - 23);
    const double error = std::fabs(f(x) - expected) / ulp;
    if (!(error <= worst.ulps)) worst = {error, x};
  }
  return worst;
}

struct Promise {
  const char* name;
  float (*f)(float);
  double (*exact)(double);
  float low, high;
  double ulps;  // contract_math.h
};

TEST(ContractMath, F32ErrorsAreAsPromised) {
  const Promise promises[] = {
      {"exp2", [](float x) { return exp2_f32(x); }, [](double x) { return std::exp2(x); }, -126, 127.99999f, 0.87},
      {"exp", [](float x) { return exp_f32(x); }, [](double x) { return std::exp(x); }, -87.336f, 88.7228f, 1.1},
      {"log", [](float x) { return log_f32(x); }, [](double x) { return std::log(x); }, 0x1p-126f, 3e38f, 0.82},
      {"log1p", [](float x) { return log1p_f32(x); }, [](double x) { return std::log1p(x); }, 0, 1, 1.3},
      {"sigmoid", [](float x) { return sigmoid_f32(x); }, [](double x) { return 1 / (1 + std::exp(-x)); }, -87, 88,
       2.5},
      {"silu", [](float x) { return silu_f32(x); }, [](double x) { return x / (1 + std::exp(-x)); }, -87, 88, 3},
      {"softplus", [](float x) { return softplus_f32(x); },
       [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }, -87, 88, 2},
      {"tanh", [](float x) { return tanh_f32(x); }, [](double x) { return std::tanh(x); }, -30, 30, 1.4},
      {"rsqrt", [](float x) { return rsqrt_f32(x); }, [](double x) { return 1 / std::sqrt(x); }, 0x1p-126f, 3e38f,
       1.5},
  };
  for (const Promise& p : promises) {
    const WorstError worst = worst_error(p.f, p.exact, p.low, p.high);
    EXPECT_LE(worst.ulps, p.ulps) << p.name << " at " << worst.at;
    EXPECT_GT(worst.ulps, 0.49) << p.name << ": nothing was measured";
  }
}

/// The largest error in ulps of f64 over `points` arguments.
double worst_error_f64(const std::function<double(double)>& f, const std::function<long double(long double)>& exact,
                       const std::function<double(double)>& argument) {
  Random random(1);
  double worst = 0;
  for (int i = 0; i < 300000; ++i) {
    const double x = argument(random.uniform());
    const long double expected = exact(x);
    const long double ulp = std::ldexp(1.0L, std::ilogb(expected) - 52);
    const double error = static_cast<double>(std::fabs(f(x) - expected) / ulp);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

TEST(ContractMath, F64ErrorsAreAsPromised) {
  const auto log_exact = [](long double x) { return std::log(x); };
  EXPECT_LE(worst_error_f64([](double x) { return exp2_f64(x); }, [](long double x) { return std::exp2(x); },
                            [](double u) { return -1022 + 2045 * u; }),
            0.9);
  EXPECT_LE(worst_error_f64([](double x) { return log_f64(x); }, log_exact,
                            [](double u) { return std::exp(-700 + 1400 * u); }),
            0.8);
  EXPECT_LE(worst_error_f64([](double x) { return log_f64(x); }, log_exact,
                            [](double u) { return 1 - std::exp(-36 * u) * 0.5; }),
            0.8)
      << "near 1";
  for (const double base : {10000.0, 500000.0, 1e6, 150000.0, 1.5}) {
    EXPECT_LE(worst_error_f64([=](double x) { return pow_f64(base, x); },
                              [=](long double x) { return std::pow(static_cast<long double>(base), x); },
                              [](double u) { return 2 * u - 1; }),
              1.4)
        << base;
  }
  for (const double range : {1.0, 100.0, 1e5, 1e7, 2147483647.0}) {
    const auto argument = [=](double u) { return range * (2 * u - 1); };
    EXPECT_LE(worst_error_f64([](double x) { return sincos_f64(x).sin; }, [](long double x) { return std::sin(x); },
                              argument),
              0.8)
        << range;
    EXPECT_LE(worst_error_f64([](double x) { return sincos_f64(x).cos; }, [](long double x) { return std::cos(x); },
                              argument),
              0.8)
        << range;
  }
}

TEST(ContractMath, SineAndCosineNearMultiplesOfHalfPi) {
  for (double n = 1; n < 1.3e9; n = n * 1.7 + 1) {
    const double x = std::floor(n) * 1.5707963267948966;
    const SinCos both = sincos_f64(x);
    const long double sin = std::sin(static_cast<long double>(x)), cos = std::cos(static_cast<long double>(x));
    // The C library's long double reduces exactly; the smaller of the two has lost up to 60 bits of x.
    EXPECT_NEAR(both.sin, static_cast<double>(sin), std::fabs(static_cast<double>(sin)) * 0x1p-52) << x;
    EXPECT_NEAR(both.cos, static_cast<double>(cos), std::fabs(static_cast<double>(cos)) * 0x1p-52) << x;
  }
}

TEST(ContractMath, SpecialValues) {
  const ScopedFlushDenormals flush;
  const float inf = HUGE_VALF, nan = NAN;
  EXPECT_EQ(exp2_f32(0.0f), 1.0f);
  EXPECT_EQ(exp2_f32(-0.0f), 1.0f);
  EXPECT_EQ(exp2_f32(-inf), 0.0f);
  EXPECT_EQ(exp2_f32(inf), inf);
  EXPECT_TRUE(std::isnan(exp2_f32(nan)));
  EXPECT_EQ(exp2_f32(-126.0f), 0x1p-126f);
  EXPECT_EQ(exp2_f32(std::nextafter(-126.0f, -200.0f)), 0.0f);
  EXPECT_EQ(exp2_f32(127.0f), 0x1p127f);
  EXPECT_EQ(exp2_f32(128.0f), inf);
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-inf), 0.0f);
  EXPECT_EQ(exp_f32(inf), inf);
  EXPECT_TRUE(std::isnan(exp_f32(nan)));
  EXPECT_EQ(log_f32(1.0f), 0.0f);
  EXPECT_EQ(log_f32(0.0f), -inf);
  EXPECT_EQ(log_f32(inf), inf);
  EXPECT_TRUE(std::isnan(log_f32(-1.0f)));
  EXPECT_TRUE(std::isnan(log_f32(nan)));
  EXPECT_EQ(sigmoid_f32(inf), 1.0f);
  EXPECT_EQ(sigmoid_f32(-inf), 0.0f);
  EXPECT_EQ(sigmoid_f32(0.0f), 0.5f);
  EXPECT_EQ(tanh_f32(inf), 1.0f);
  EXPECT_EQ(tanh_f32(-inf), -1.0f);
  EXPECT_TRUE(std::isnan(tanh_f32(nan)));
  EXPECT_EQ(softplus_f32(-inf), 0.0f);
  EXPECT_EQ(softplus_f32(inf), inf);
  EXPECT_EQ(exp2_f64(0.0), 1.0);
  EXPECT_EQ(pow_f64(10000.0, 0.0), 1.0);
  EXPECT_EQ(log_f64(1.0), 0.0);
}

class SimdMath : public CpuIsaTest {};

/// Floats over all bit patterns: NaN, infinities and denormals included.
template <class Use>
void for_dense_floats(uint64_t stride, const Use& use) {
  constexpr int64_t kBlock = 1024;
  float x[kBlock];
  uint64_t bits = 0;
  while (bits < uint64_t{1} << 32) {
    for (float& value : x) {
      value = bits_as<float>(static_cast<uint32_t>(bits));
      bits += stride;
    }
    use(x, kBlock);
  }
}

TEST_P(SimdMath, F32FunctionsGiveTheBitsOfTheScalarOnes) {
  const ScopedFlushDenormals flush;
  const SimdTable table = simd_table(GetParam());
  float y[1024];
  for (const SimdFunction& function : table.functions) {
    int64_t differences = 0;
    for_dense_floats(1511, [&](const float* x, int64_t n) {
      function.run(x, y, n);
      for (int64_t i = 0; i < n; ++i) {
        if (function.only_nonpositive && x[i] > 0) continue;
        const float expected = function.scalar(x[i]);
        if (std::isnan(expected) && std::isnan(y[i])) continue;
        if (bits_as<uint32_t>(expected) == bits_as<uint32_t>(y[i])) continue;
        if (++differences <= 3) ADD_FAILURE() << function.name << fmt::format(" at {}: {} not {}", x[i], y[i], expected);
      }
    });
    EXPECT_EQ(differences, 0) << function.name;
  }
}

TEST_P(SimdMath, Bf16GivesTheBitsOfTheScalarOne) {
  const ScopedFlushDenormals flush;
  const SimdTable table = simd_table(GetParam());
  uint16_t y[1024];
  for_dense_floats(1511, [&](const float* x, int64_t n) {
    table.bf16(x, y, n);
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(y[i], to_bf16(x[i]).bits) << x[i];
  });
}

TEST_P(SimdMath, SinCosGivesTheBitsOfTheScalarOne) {
  const SimdTable table = simd_table(GetParam());
  Random random(4);
  double x[1024], sin[1024], cos[1024];
  for (int block = 0; block < 200; ++block) {
    for (double& value : x) value = std::exp(21.0 * random.uniform()) * (random.below(2) == 0 ? 1 : -1) - 1.0;
    table.sincos(x, sin, cos, 1024);
    for (int i = 0; i < 1024; ++i) {
      ASSERT_EQ(bits_as<uint64_t>(sin[i]), bits_as<uint64_t>(sincos_f64(x[i]).sin)) << x[i];
      ASSERT_EQ(bits_as<uint64_t>(cos[i]), bits_as<uint64_t>(sincos_f64(x[i]).cos)) << x[i];
    }
  }
}

TF_INSTANTIATE_FOR_EVERY_ISA(SimdMath);

}  // namespace
}  // namespace tensorfold::test
