// attention of the cpu backend: cuts a call into blocks (attention_block.h) and gives them to the threads. A block that
// would keep one thread busy while the others wait, as when decoding, is cut between spans, which are merged
// afterwards; the bits are the same because one task alone merges the same spans in the same order.
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
      block.first_span = attention_span_of(visible_keys(call_, sequence, row).begin);
      block.end_span = attention_span_of(visible_keys(call_, sequence, row + block.num_positions - 1).end - 1) + 1;
      use(block);
    }
  }

  const AttentionCall& call_;
  int64_t max_rows_ = 0;
  int64_t num_blocks_ = 0;
  AttentionBlock* blocks_ = nullptr;
};

/// Some spans of a block; all of them if the block is not cut.
struct SpanTask {
  int64_t block, first_span, end_span;
};

/// Query rows times spans: what a block costs, roughly.
int64_t cost_of(const AttentionBlock& block) { return block.num_query_rows() * (block.end_span - block.first_span); }

/// The tasks of a plan. Blocks that cost more than a thread's share of a few tasks are cut between spans.
class TaskList {
 public:
  TaskList(const BlockPlan& plan, int num_threads, int64_t padded_head_dim, Workspace& workspace) {
    int64_t num_spans = 0, cost = 0;
    for (int64_t i = 0; i < plan.num_blocks(); ++i) {
      num_spans += plan[i].end_span - plan[i].first_span;
      cost += cost_of(plan[i]);
    }
    const int64_t share = num_threads == 1 ? cost : cost / (kTasksPerThread * num_threads) + 1;
    tasks_ = workspace.take<SpanTask>(num_spans);
    // The last blocks of a prompt are the longest: they go first.
    for (int64_t i = plan.num_blocks() - 1; i >= 0; --i) cut(i, plan[i], share, padded_head_dim, workspace);
  }

  int64_t num_tasks() const { return num_tasks_; }
  bool has_cuts() const { return has_cuts_; }
  const SpanTask& operator[](int64_t i) const { return tasks_[i]; }

 private:
  void cut(int64_t i, AttentionBlock& block, int64_t share, int64_t padded_head_dim, Workspace& workspace) {
    const int64_t num_spans = block.end_span - block.first_span;
    const int64_t step = cost_of(block) <= share ? num_spans : std::max<int64_t>(1, share / block.num_query_rows());
    for (int64_t span = block.first_span; span < block.end_span; span += step) {
      tasks_[num_tasks_++] = {i, span, std::min(span + step, block.end_span)};
    }
    if (step >= num_spans) return;
    has_cuts_ = true;
    block.partials = workspace.take<float>(num_spans * span_partial_floats(block.num_query_rows(), padded_head_dim));
  }

  SpanTask* tasks_ = nullptr;
  int64_t num_tasks_ = 0;
  bool has_cuts_ = false;
};

}  // namespace

void attention(CpuContext& cpu, const AttentionCall& call) {
  const AttentionKernels kernels = attention_kernels(cpu.isa, call.pages->shape.dtype);
  Workspace::Frame frame(cpu.workspace);
  const BlockPlan plan(call, cpu.workspace);
  const TaskList tasks(plan, cpu.pool.num_threads(), kv_padded_head_dim(call.pages->shape.head_dim), cpu.workspace);
  cpu.pool.run(tasks.num_tasks(), [&](int64_t i) {
    const SpanTask& task = tasks[i];
    const AttentionBlock& block = plan[task.block];
    BlockAttention attention(call, kernels);
    block.partials == nullptr ? attention.run(block) : attention.run_spans(block, task.first_span, task.end_span);
  });
  if (!tasks.has_cuts()) return;
  cpu.pool.run(plan.num_blocks(), [&](int64_t i) {
    if (plan[i].partials != nullptr) BlockAttention(call, kernels).merge_spans(plan[i]);
  });
}

}  // namespace tensorfold::cpu
