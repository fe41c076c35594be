// Which instruction sets this CPU has (the CpuIsa part of ops/ops.h).
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>
#include <span>

#include "ops/ops.h"

namespace tensorfold {
namespace {

struct IsaName {
  CpuIsa isa;
  std::string_view name;
};

constexpr std::array kIsaNames = {
    IsaName{CpuIsa::kBest, "best"},     IsaName{CpuIsa::kAvx2, "avx2"},
    IsaName{CpuIsa::kAvx512, "avx512"}, IsaName{CpuIsa::kAvx512Bf16, "avx512-bf16"},
    IsaName{CpuIsa::kNeon, "neon"},
};

}  // namespace

std::string_view cpu_isa_name(CpuIsa isa) {
  for (const IsaName& entry : kIsaNames) {
    if (entry.isa == isa) return entry.name;
  }
  return "";
}

Result<CpuIsa> parse_cpu_isa(std::string_view name) {
  for (const IsaName& entry : kIsaNames) {
    if (entry.name == name) return entry.isa;
  }
  return invalid_argument("'{}' is no instruction set: expected best, avx2, avx512, avx512-bf16 or neon",
                          name);
}

namespace cpu {

#if defined(__x86_64__)

/// Clang 14 does not know the name for __builtin_cpu_supports.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

/// The first feature of `isa` that this CPU (or its operating system) lacks; empty when it has all.
std::string_view missing_feature(CpuIsa isa) {
#define TF_NEED(feature, name) \
  if (!__builtin_cpu_supports(feature)) return name
  __builtin_cpu_init();
  if (isa == CpuIsa::kNeon) return "NEON";
  TF_NEED("avx2", "AVX2");
  TF_NEED("fma", "FMA");
  if (!has_f16c()) return "F16C";
  TF_NEED("bmi", "BMI");
  TF_NEED("bmi2", "BMI2");
  TF_NEED("pclmul", "PCLMULQDQ");
  TF_NEED("aes", "AES");
  if (isa == CpuIsa::kAvx2) return {};
  TF_NEED("avx512f", "AVX512F");
  TF_NEED("avx512vl", "AVX512VL");
  TF_NEED("avx512dq", "AVX512DQ");
  TF_NEED("avx512bw", "AVX512BW");
  if (isa == CpuIsa::kAvx512) return {};
  TF_NEED("avx512bf16", "AVX512_BF16");
  // For the decoding of 8-bit weights. Cooper Lake is the one CPU that has AVX512_BF16 without it.
  TF_NEED("avx512vbmi", "AVX512_VBMI");
  return {};
#undef TF_NEED
}

#else

std::string_view missing_feature(CpuIsa isa) {
  if (isa == CpuIsa::kNeon) return {};
  return isa == CpuIsa::kAvx2 ? "AVX2" : "AVX512F";
}

#endif

}  // namespace cpu

std::vector<CpuIsa> supported_cpu_isas() {
  std::vector<CpuIsa> result;
  for (const CpuIsa isa : {CpuIsa::kAvx512Bf16, CpuIsa::kAvx512, CpuIsa::kAvx2, CpuIsa::kNeon}) {
    if (cpu::missing_feature(isa).empty()) result.push_back(isa);
  }
  return result;
}

}  // namespace tensorfold
