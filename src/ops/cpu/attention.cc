// attention of the cpu backend: cuts a call into blocks (attention_block.h) and gives them to the threads. Where there
// are too few blocks, as when decoding, their spans are computed apart and merged afterwards; the bits are the same
// because one task alone merges the same spans in the same order.
#include "ops/cpu/attention.h"

#include <algorithm>

#include "ops/cpu/attention_block.h"
#include "ops/kv_layout.h"

namespace tensorfold::cpu {
namespace {

/// Tasks per thread that balance uneven blocks well enough.
constexpr int64_t kTasksPerThread = 4;

/// The blocks of a call: for each sequence, KV head and group of heads that fit, runs of positions.
class BlockPlan {
 public:
  BlockPlan(const AttentionCall& call, Workspace& workspace) : call_(call) {
    const int64_t padded = kv_padded_head_dim(call.pages->shape.head_dim);
    TF_CHECK(padded <= kMaxBlockElements, "head_dim is larger than attention's working memory");
    max_rows_ = std::clamp<int64_t>(kMaxBlockElements / padded, 1, kMaxBlockRows);
    for_each([&](const AttentionBlock&) { ++num_blocks_; });
    blocks_ = workspace.take<AttentionBlock>(num_blocks_);
    int64_t i = 0;
    for_each([&](const AttentionBlock& block) { blocks_[i++] = block; });
  }

  int64_t num_blocks() const { return num_blocks_; }
  AttentionBlock& operator[](int64_t i) const { return blocks_[i]; }

 private:
  template <class Use>
  void for_each(const Use& use) const {
    const int64_t num_heads = call_.num_heads, num_kv_heads = call_.pages->shape.num_kv_heads;
    for (const SequenceRows& sequence : call_.rows.sequences) {
      for (int64_t kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
        // The heads i with i*K/H = kv_head.
        const int64_t end_head = ((kv_head + 1) * num_heads + num_kv_heads - 1) / num_kv_heads;
        for (int64_t head = (kv_head * num_heads + num_kv_heads - 1) / num_kv_heads; head < end_head;) {
          const int64_t heads = std::min(end_head - head, max_rows_);
          for_each_run(sequence, kv_head, head, heads, use);
          head += heads;
        }
      }
    }
  }

  template <class Use>
  void for_each_run(const SequenceRows& sequence, int64_t kv_head, int64_t head, int64_t heads, const Use& use) const {
    const int64_t run = max_rows_ / heads;
    for (int64_t row = 0; row < sequence.num_rows; row += run) {
      AttentionBlock block{.sequence = &sequence,
                           .first_row = row,
                           .num_positions = std::min(run, sequence.num_rows - row),
                           .kv_head = kv_head,
                           .first_head = head,
                           .num_heads = heads};
      block.first_span = attention_span_of(visible_keys(block.pos(0), call_.window).begin);
      block.end_span = attention_span_of(block.pos(block.num_positions - 1)) + 1;
      use(block);
    }
  }

  const AttentionCall& call_;
  int64_t max_rows_ = 0;
  int64_t num_blocks_ = 0;
  AttentionBlock* blocks_ = nullptr;
};

/// A task of the split form.
struct SpanTask {
  int64_t block, first_span, end_span;
};

/// Every block whole. The last ones of a prompt are the longest and go first.
void run_blocks(CpuContext& cpu, const AttentionCall& call, const AttentionKernels& kernels, const BlockPlan& plan) {
  cpu.pool.run(plan.num_blocks(), [&](int64_t i) {
    BlockAttention(call, kernels).run(plan[plan.num_blocks() - 1 - i]);
  });
}

/// Spans apart, then merged per block.
void run_spans(CpuContext& cpu, const AttentionCall& call, const AttentionKernels& kernels, const BlockPlan& plan,
               int64_t num_spans) {
  const int64_t padded = kv_padded_head_dim(call.pages->shape.head_dim);
  const int64_t spans_per_task = std::max<int64_t>(1, num_spans / (kTasksPerThread * cpu.pool.num_threads()));
  SpanTask* tasks = cpu.workspace.take<SpanTask>(num_spans);
  int64_t num_tasks = 0;
  for (int64_t i = 0; i < plan.num_blocks(); ++i) {
    AttentionBlock& block = plan[i];
    const int64_t floats = span_partial_floats(block.num_query_rows(), padded);
    block.partials = cpu.workspace.take<float>((block.end_span - block.first_span) * floats);
    for (int64_t span = block.first_span; span < block.end_span; span += spans_per_task) {
      tasks[num_tasks++] = {i, span, std::min(span + spans_per_task, block.end_span)};
    }
  }
  cpu.pool.run(num_tasks, [&](int64_t i) {
    const SpanTask& task = tasks[i];
    BlockAttention(call, kernels).run_spans(plan[task.block], task.first_span, task.end_span);
  });
  cpu.pool.run(plan.num_blocks(), [&](int64_t i) { BlockAttention(call, kernels).merge_spans(plan[i]); });
}

}  // namespace

void attention(CpuContext& cpu, const AttentionCall& call) {
  const AttentionKernels kernels = attention_kernels(cpu.isa, call.pages->shape.dtype);
  Workspace::Frame frame(cpu.workspace);
  const BlockPlan plan(call, cpu.workspace);
  int64_t num_spans = 0;
  for (int64_t i = 0; i < plan.num_blocks(); ++i) num_spans += plan[i].end_span - plan[i].first_span;
  const int64_t num_threads = cpu.pool.num_threads();
  const bool is_balanced = num_threads == 1 || plan.num_blocks() >= kTasksPerThread * num_threads;
  if (is_balanced || num_spans == plan.num_blocks()) {
    run_blocks(cpu, call, kernels, plan);
  } else {
    run_spans(cpu, call, kernels, plan, num_spans);
  }
}

}  // namespace tensorfold::cpu
