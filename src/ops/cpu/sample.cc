// sample of the cpu backend: the cuts of ops/sampling_math.h without sorting. A first pass finds the largest logit; a
// bound then leaves the few tokens that a cut can keep; those are reduced by counting digits of their order key.
#include "ops/cpu/sample.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>

#include "ops/cpu/sample_kernels.h"
#include "ops/cpu/top_candidates.h"
#include "ops/sampling_math.h"
#include "ops/token_probability.h"

namespace tensorfold::cpu {
namespace {

constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Lists of one thread; those added here are of vocab_size + kListMargin elements too.
struct Lists : CandidateLists {
  uint64_t* weights;
  float* kept_logits;
  int32_t* kept_tokens;

  static Lists take(Workspace& workspace, int64_t vocab_size) {
    const int64_t n = vocab_size + kListMargin;
    return {CandidateLists::take(workspace, vocab_size), workspace.take<uint64_t>(n),
            workspace.take<float>(n), workspace.take<int32_t>(n)};
  }
};

/// The digits by which a 32-bit order key is found, highest first.
struct Digit {
  int shift, bits;
};
constexpr Digit kDigits[] = {{21, 11}, {10, 11}, {0, 10}};

/// Draws the token of one row at a time.
class RowSampler {
 public:
  RowSampler(const SampleKernels& kernels, const Lists& lists) : kernels_(kernels), lists_(lists) {}

  int32_t sample(const float* logits, int64_t vocab_size, const SampleRow& row) {
    const bool has_top_k = row.top_k > 0 && row.top_k < vocab_size;
    LogitScan scan;
    kernels_.scan(logits, vocab_size, has_top_k ? lists_.block_max : nullptr, &scan);
    if (vocab_size == 0 || scan.has_nan || scan.max == -kInfinity) return -1;
    // An infinite logit wins with any noise, and no cut drops the first of them.
    if (row.temperature == 0.0f || scan.max == kInfinity) return scan.argmax;
    max_ = scan.max;
    temperature_ = row.temperature;

    LogitList list{logits, nullptr, vocab_size};
    if (has_top_k) list = cut_top_k(list, row.top_k);
    if (row.top_p < 1.0f) list = cut_top_p(list, row.top_p);
    DrawArgs draw{.list = list,
                  .max = max_,
                  .temperature = temperature_,
                  .row_key = sampling::row_key(row.seed, row.pos),
                  .least = static_cast<float>(sampling::min_p_weight(row.min_p)) * 0x1p-40f,
                  .token = scan.argmax};
    draw.score = sampling::score(max_, temperature_, sampling::token_hash(draw.row_key, draw.token));
    kernels_.draw(draw);
    return draw.token;
  }

 private:
  LogitList cut_top_k(LogitList row, int64_t k) {
    const int64_t count = collect_candidates(kernels_, lists_, row.logits, row.size, k);
    if (count <= k) return {lists_.logits, lists_.tokens, count};
    return keep_prefix(count, k, [](int64_t) { return uint64_t{1}; });
  }

  LogitList cut_top_p(LogitList list, float top_p) {
    const uint64_t total = kernels_.weigh(list.logits, list.size, max_, temperature_, nullptr);
    const uint64_t target = sampling::top_p_target(top_p, total);
    int64_t count = list.size;
    if (list.tokens == nullptr) {
      count = kernels_.collect(list.logits, list.size, top_p_bound(total - target, list.size), lists_.logits,
                               lists_.tokens);
    } else {
      std::copy_n(list.logits, count, lists_.logits);
      std::copy_n(list.tokens, count, lists_.tokens);
    }
    kernels_.weigh(lists_.logits, count, max_, temperature_, lists_.weights);
    return keep_prefix(count, std::max<uint64_t>(1, target), [this](int64_t i) { return lists_.weights[i]; });
  }

  /// A logit below which no token is needed: all tokens that weigh less than rest / size together weigh less than
  /// what may be left out. The power of two below that, as a logit, with a margin for rounding.
  float top_p_bound(uint64_t rest, int64_t size) const {
    const uint64_t least = rest / static_cast<uint64_t>(size);
    if (least == 0) return kLowest;
    const double octaves = static_cast<int>(std::bit_width(least)) - 1 - sampling::kWeightBits;
    const double max = static_cast<double>(max_), t = static_cast<double>(temperature_);
    const double bound = max + t * (octaves - 0.01) * 0.6931471805599453 - 1e-6 * (max < 0 ? -max : max);
    return static_cast<float>(std::max(bound, static_cast<double>(kLowest)));
  }

  /// Of the first `count` entries of lists_, the shortest prefix in the order (logit descending, token ascending)
  /// whose measures sum to at least `target`, in order of token. Digit by digit of the order key: what lies above the
  /// digit in which the sum is reached is kept, what lies below is dropped.
  template <class Measure>
  LogitList keep_prefix(int64_t count, uint64_t target, const Measure& measure) {
    uint32_t prefix = 0;  // digits of the key of the last token kept, found so far
    uint32_t known = 0;   // mask of those digits
    for (const Digit& d : kDigits) {
      const uint32_t mask = (1u << d.bits) - 1;
      std::fill_n(sums_, mask + 1, uint64_t{0});
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t key = sampling::order_key(lists_.logits[i]);
        if ((key & known) == prefix) sums_[(key >> d.shift) & mask] += measure(i);
      }
      uint32_t digit = mask;
      for (; digit > 0 && sums_[digit] < target; --digit) target -= sums_[digit];
      prefix |= digit << d.shift;
      known |= mask << d.shift;
    }
    // Equal logits weigh the same; the first of them that are needed are kept.
    int64_t kept = 0;
    uint64_t needed = target;
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t key = sampling::order_key(lists_.logits[i]);
      if (key < prefix || (key == prefix && needed == 0)) continue;
      if (key == prefix) needed -= std::min(needed, measure(i));
      lists_.kept_logits[kept] = lists_.logits[i];
      lists_.kept_tokens[kept++] = lists_.tokens[i];
    }
    return {lists_.kept_logits, lists_.kept_tokens, kept};
  }

  const SampleKernels kernels_;
  const Lists lists_;
  float max_ = 0.0f, temperature_ = 1.0f;  // of the row
  uint64_t sums_[1 << 11];  // by digit
};

}  // namespace

void sample(CpuContext& cpu, std::span<int32_t> tokens, View logits, std::span<const SampleRow> rows,
            std::span<float> probabilities) {
  const SampleKernels kernels = sample_kernels(cpu.isa);
  const int64_t vocab_size = logits.dim(1), num_rows = static_cast<int64_t>(rows.size());
  const int64_t num_tasks = std::min<int64_t>(num_rows, cpu.pool.num_threads());
  Workspace::Frame frame(cpu.workspace);
  Lists* lists = cpu.workspace.take<Lists>(num_tasks);
  for (int64_t i = 0; i < num_tasks; ++i) lists[i] = Lists::take(cpu.workspace, vocab_size);
  std::atomic<int64_t> next_row{0};
  cpu.pool.run(num_tasks, [&](int64_t task) {
    RowSampler sampler(kernels, lists[task]);
    for (int64_t i; (i = next_row.fetch_add(1, std::memory_order_relaxed)) < num_rows;) {
      const float* row = logits.row<const float>(i);
      tokens[i] = sampler.sample(row, vocab_size, rows[i]);
      if (!probabilities.empty())
        probabilities[i] = tokens[i] < 0 ? 0.0f : token_probability(row, vocab_size, tokens[i]);
    }
  });
}

}  // namespace tensorfold::cpu
