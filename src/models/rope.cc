// The six rules by which rotary frequencies are scaled, in the order of specs/llama.md §4.
#include "models/rope.h"

#include <algorithm>
#include <cmath>

#include "ops/contract_math.h"

namespace tensorfold {
namespace {

constexpr double kTwoPi = 0x1.921fb54442d18p+2;

/// theta^(-2j/width).
std::vector<double> base_frequencies(double theta, int64_t width) {
  std::vector<double> inv_freq;
  for (int64_t j = 0; j < width / 2; ++j)
    inv_freq.push_back(pow_f64(theta, -static_cast<double>(2 * j) / static_cast<double>(width)));
  return inv_freq;
}

int64_t original_length(const RopeConfig& config, const RotaryGeometry& geometry) {
  return config.original_max_position_embeddings > 0 ? config.original_max_position_embeddings
                                                     : geometry.max_position_embeddings;
}

/// NTK scaling for the configured context: theta * (s n/Lm - (s - 1))^(d/(d-2)), n >= Lm.
Result<Rotary> dynamic_rotary(const RopeConfig& config, const RotaryGeometry& geometry, int64_t width) {
  if (width < 4)
    return unsupported("config.json: rope_type dynamic needs a rotary width of 4 or more, found {}", width);
  const double length =
      static_cast<double>(std::max(geometry.context_tokens, geometry.max_position_embeddings));
  const double stretch = config.factor * length / static_cast<double>(geometry.max_position_embeddings);
  const double d = static_cast<double>(width);
  const double theta = config.theta * pow_f64(stretch - (config.factor - 1.0), d / (d - 2.0));
  return Rotary{base_frequencies(theta, width), 1.0};
}

/// Llama 3: long wavelengths divided by the factor, short ones kept, a linear blend between.
Rotary llama3_rotary(const RopeConfig& config, const RotaryGeometry& geometry, int64_t width) {
  const double original = static_cast<double>(original_length(config, geometry));
  Rotary rotary{base_frequencies(config.theta, width), 1.0};
  for (double& f : rotary.inv_freq) {
    const double wavelength = kTwoPi / f;
    if (wavelength < original / config.high_freq_factor) continue;
    if (wavelength > original / config.low_freq_factor) {
      f /= config.factor;
      continue;
    }
    const double kept =
        (original / wavelength - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
    f = (1.0 - kept) * f / config.factor + kept * f;
  }
  return rotary;
}

double yarn_multiplier(const RopeConfig& config) {
  const auto mscale = [&](double weight) {
    return config.factor <= 1.0 ? 1.0 : 0.1 * weight * log_f64(config.factor) + 1.0;
  };
  if (config.attention_factor) return *config.attention_factor;
  // As the reference: a zero is as good as an absent key.
  if (config.mscale.value_or(0.0) != 0.0 && config.mscale_all_dim.value_or(0.0) != 0.0)
    return mscale(*config.mscale) / mscale(*config.mscale_all_dim);
  return mscale(1.0);
}

/// YaRN (Peng et al. 2023, arXiv:2309.00071): pairs that turn more than beta_fast times over the original
/// length are kept, those below beta_slow interpolated, a linear ramp between.
Rotary yarn_rotary(const RopeConfig& config, const RotaryGeometry& geometry, int64_t width) {
  const double original = static_cast<double>(original_length(config, geometry));
  const double d = static_cast<double>(width);
  const auto pair_turning = [&](double turns) {
    return d * log_f64(original / (turns * kTwoPi)) / (2.0 * log_f64(config.theta));
  };
  double low = pair_turning(config.beta_fast);
  double high = pair_turning(config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, d - 1.0);
  if (low == high) high += 0.001;  // the reference's own way out of a division by zero
  Rotary rotary{base_frequencies(config.theta, width), yarn_multiplier(config)};
  for (int64_t j = 0; j < rotary.num_pairs(); ++j) {
    const double ramp = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
    const double f = rotary.inv_freq[j];
    rotary.inv_freq[j] = (1.0 - ramp) * f + ramp * (f / config.factor);
  }
  return rotary;
}

/// LongRoPE (Ding et al. 2024, arXiv:2402.13753): each pair divided by a factor of its own.
Result<Rotary> longrope_rotary(const RopeConfig& config, const RotaryGeometry& geometry, int64_t width) {
  const int64_t original = original_length(config, geometry);
  const bool is_long = geometry.context_tokens > original;
  const std::vector<double>& factors = is_long ? config.long_factor : config.short_factor;
  if (static_cast<int64_t>(factors.size()) != width / 2)
    return corrupt("config.json: rope {} has {} numbers, expected {}",
                   is_long ? "long_factor" : "short_factor", factors.size(), width / 2);
  if (original < 2)
    return corrupt("config.json: original_max_position_embeddings is {}, expected 2 or more", original);
  Rotary rotary{base_frequencies(config.theta, width), 1.0};
  for (int64_t j = 0; j < rotary.num_pairs(); ++j) {
    if (!(factors[j] > 0.0))
      return corrupt("config.json: rope {} has {}, expected positive numbers",
                     is_long ? "long_factor" : "short_factor", factors[j]);
    rotary.inv_freq[j] /= factors[j];
  }
  const double stretch = config.factor > 0.0 ? config.factor
                                             : static_cast<double>(geometry.max_position_embeddings) /
                                                   static_cast<double>(original);
  if (config.attention_factor) {
    rotary.multiplier = *config.attention_factor;
  } else if (stretch > 1.0) {
    rotary.multiplier = std::sqrt(1.0 + log_f64(stretch) / log_f64(static_cast<double>(original)));
  }
  return rotary;
}

}  // namespace

Result<Rotary> make_rotary(const RopeConfig& config, const RotaryGeometry& geometry) {
  // Truncated as the reference does; both factors are positive and at most head_dim.
  const auto width =
      static_cast<int64_t>(static_cast<double>(geometry.head_dim) * config.partial_rotary_factor);
  if (width < 2 || width % 2 != 0)
    return unsupported(
        "config.json: rotary width {} (head_dim {} times partial_rotary_factor {}), expected an even one",
        width, geometry.head_dim, config.partial_rotary_factor);
  if (!(config.theta > 1.0))
    return unsupported("config.json: rope_theta {}, expected more than 1", config.theta);
  switch (config.kind) {
    case RopeKind::kDefault:
      return Rotary{base_frequencies(config.theta, width), 1.0};
    case RopeKind::kLinear: {
      Rotary rotary{base_frequencies(config.theta, width), 1.0};
      for (double& f : rotary.inv_freq) f /= config.factor;
      return rotary;
    }
    case RopeKind::kDynamic:
      return dynamic_rotary(config, geometry, width);
    case RopeKind::kLlama3:
      return llama3_rotary(config, geometry, width);
    case RopeKind::kYarn:
      return yarn_rotary(config, geometry, width);
    case RopeKind::kLongRope:
      return longrope_rotary(config, geometry, width);
  }
  TF_CHECK(false, "unknown rope kind");
}

}  // namespace tensorfold
