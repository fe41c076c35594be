// The loops of linear(): panels and rows, shared out to threads. The arithmetic is in the kernels
// (linear_kernels.h), the activations come from linear_rows.h.
//
// A panel read from memory stays in L1 or L2 for a part of the rows, which go through a kernel as many at a
// time as it takes. Each thread has a stretch of panels of its own, so that what it asks for ahead of time is
// what it reads next; a thread that is done takes panels from the others.
#include "ops/cpu/linear.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "ops/cpu/linear_finish.h"
#include "ops/cpu/linear_kernels.h"
#include "ops/cpu/linear_rows.h"
#include "ops/linear_layout.h"

namespace tensorfold::cpu {
namespace {

/// Activations of a part of the rows: they are read once per panel, from an L2 cache of 512 KB or more.
constexpr int64_t kRowPartBytes = 256 << 10;
/// Below so many bytes times rows the other threads are left alone: handing over costs about a microsecond.
constexpr int64_t kMinSharedCost = 48 << 10;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// A call with all that its panels share.
struct Product {
  LinearCall call;
  LinearLayout layout;
  LinearKernels kernels;
  PanelShape shape = {};
  const std::byte* x = nullptr;  ///< Row 0 of this product.
  int64_t x_stride_bytes = 0;
  const float* group_sums = nullptr;  ///< [num_rows][num_groups]; null where no group has a bias.
  int64_t num_groups = 0;
  int64_t num_rows = 0;
  int64_t out_element_bytes = 0;
  int64_t row_parts = 1;   ///< The rows are cut into equal parts.
  int64_t first_item = 0;  ///< Of its num_items(), among those of the dispatch.

  int64_t num_items() const { return layout.num_panels * row_parts; }
  const std::byte* panel(int64_t i) const { return call.weight.data + i * layout.panel_bytes; }
  /// Weight bytes times rows: what one row reads, and in proportion to what many rows multiply.
  int64_t cost() const { return layout.packed_bytes() * num_rows; }
};

Product make_product(CpuContext& cpu, LinearRows& rows, DType activation, const LinearJob& job) {
  const LinearSpec& spec = job.call.weight.spec;
  const int64_t num_rows = job.call.out.num_rows();
  Product product{
      .call = job.call,
      .layout = LinearLayout(spec),
      .kernels = linear_kernels(num_rows >= kManyRows ? cpu.many_rows_isa : cpu.isa, spec, activation),
      .num_rows = num_rows,
      .out_element_bytes = dtype_bytes(job.call.out.dtype)};
  product.shape = {.columns = product.layout.padded_columns,
                   .segment_columns = product.layout.segment_columns,
                   .group_columns = spec.group_size,
                   .chunk_bytes = product.layout.chunk_bytes,
                   .scale_dtype = spec.dtype};
  const PreparedRows& prepared = rows.rows(product.kernels.x_dtype);
  product.x = prepared.x + job.first_row * prepared.stride_bytes;
  product.x_stride_bytes = prepared.stride_bytes;
  product.row_parts = std::max<int64_t>(
      1, ceil_div(product.num_rows * product.layout.padded_columns * dtype_bytes(prepared.dtype),
                  kRowPartBytes));
  if (spec.format == WeightFormat::kAffine) {
    const RowSums& sums = rows.sums(product.kernels.x_dtype, product.kernels.group_sums, spec.group_size);
    product.group_sums = sums.sums + job.first_row * sums.num_groups;
    product.num_groups = sums.num_groups;
  }
  return product;
}

/// A thread's own share of the items, in order; others help when they have finished theirs.
struct alignas(64) Share {
  std::atomic<int64_t> next{0};
  int64_t end = 0;
};

/// One dispatch. The unit of work, an *item*, is one panel times one part of the rows. Items are numbered by
/// product, then row part, then panel, so that a thread that takes them in order reads weights in the order
/// of memory.
class Dispatch {
 public:
  /// Memory is of the frame of cpu.workspace that is open.
  Dispatch(CpuContext& cpu, View x, std::span<const LinearJob> jobs);
  void run() const;

 private:
  void share_out(int64_t num_items);
  int64_t item_at_cost(int64_t cost) const;
  void run_share(Share& share, bool is_own) const;
  void run_item(const Product& p, int64_t panel, int64_t row_part, const std::byte* prefetch_end) const;
  void finish_rows(const Product& product, int64_t panel, int64_t first_row, int64_t num_rows,
                   const float* sums) const;

  CpuContext& cpu_;
  FinishKernel finish_;
  std::span<Product> products_;
  std::span<Share> shares_;  ///< By thread.
};

Dispatch::Dispatch(CpuContext& cpu, View x, std::span<const LinearJob> jobs)
    : cpu_(cpu), finish_(finish_kernel(cpu.isa)) {
  products_ = {cpu.workspace.take<Product>(static_cast<int64_t>(jobs.size())), jobs.size()};
  LinearRows rows(cpu, x);
  int64_t num_items = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    Product& p = *std::construct_at(&products_[i], make_product(cpu, rows, x.dtype, jobs[i]));
    p.first_item = num_items;
    num_items += p.num_items();
  }
  share_out(num_items);
}

/// Shares of equal cost.
void Dispatch::share_out(int64_t num_items) {
  int64_t total_cost = 0;
  for (const Product& p : products_) total_cost += p.cost();
  const int64_t num_shares =
      total_cost < kMinSharedCost ? 1 : std::min<int64_t>(cpu_.pool.num_threads(), num_items);
  shares_ = {cpu_.workspace.take<Share>(num_shares), static_cast<size_t>(num_shares)};
  int64_t begin = 0;
  for (int64_t i = 0; i < num_shares; ++i) {
    Share& share = *std::construct_at(&shares_[static_cast<size_t>(i)]);
    share.next = begin;
    share.end = i + 1 == num_shares ? num_items : item_at_cost(total_cost * (i + 1) / num_shares);
    begin = share.end;
  }
}

/// The item before which items of about this cost lie.
int64_t Dispatch::item_at_cost(int64_t cost) const {
  for (const Product& p : products_) {
    if (cost < p.cost()) return p.first_item + cost * p.num_items() / p.cost();
    cost -= p.cost();
  }
  return products_.back().first_item + products_.back().num_items();
}

void Dispatch::run() const {
  const auto num_shares = static_cast<int64_t>(shares_.size());
  cpu_.pool.run(num_shares, [&](int64_t own) {
    for (int64_t i = 0; i < num_shares; ++i)
      run_share(shares_[static_cast<size_t>((own + i) % num_shares)], i == 0);
  });
}

void Dispatch::run_share(Share& share, bool is_own) const {
  for (int64_t index; (index = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) {
    const auto after = std::upper_bound(products_.begin(), products_.end(), index,
                                        [](int64_t i, const Product& p) { return i < p.first_item; });
    const Product& p = *(after - 1);
    const int64_t panel = (index - p.first_item) % p.layout.num_panels;
    const int64_t row_part = (index - p.first_item) / p.layout.num_panels;
    // A helper's next item is elsewhere.
    const int64_t panels_to_come = is_own ? std::min(p.layout.num_panels - panel, share.end - index) : 1;
    run_item(p, panel, row_part, p.panel(panel + panels_to_come));
  }
}

/// All rows of the part, in equal calls of at most what the kernel takes.
void Dispatch::run_item(const Product& p, int64_t panel, int64_t row_part,
                        const std::byte* prefetch_end) const {
  alignas(64) float sums[kMaxKernelRows * kPanelOutputs];
  const int64_t first_row = p.num_rows * row_part / p.row_parts;
  const int64_t num_rows = p.num_rows * (row_part + 1) / p.row_parts - first_row;
  const RowsKernel& kernel = p.kernels.kernel_for(num_rows);
  const int64_t num_calls = ceil_div(num_rows, kernel.max_rows);
  for (int64_t i = 0; i < num_calls; ++i) {
    const int64_t row = first_row + num_rows * i / num_calls,
                  row_end = first_row + num_rows * (i + 1) / num_calls;
    kernel.panel({.panel = p.panel(panel),
                  .prefetch_end = prefetch_end,
                  .shape = p.shape,
                  .x = p.x + row * p.x_stride_bytes,
                  .x_stride_bytes = p.x_stride_bytes,
                  .group_sums = p.group_sums == nullptr ? nullptr : p.group_sums + row * p.num_groups,
                  .group_sums_stride = p.num_groups,
                  .sums = sums,
                  .num_rows = static_cast<int>(row_end - row)});
    finish_rows(p, panel, row, row_end - row, sums);
  }
}

void Dispatch::finish_rows(const Product& product, int64_t panel, int64_t first_row, int64_t num_rows,
                           const float* sums) const {
  const LinearCall& call = product.call;
  const int64_t first = panel * kPanelOutputs;
  finish_({.sums = sums,
           .bias = call.weight.bias == nullptr ? nullptr : call.weight.bias + first,
           .out = call.out.data + (first_row * call.out.row_stride + first) * product.out_element_bytes,
           .dtype = call.out.dtype,
           .out_stride = call.out.row_stride,
           .num_rows = num_rows,
           .count = std::min(kPanelOutputs, call.weight.spec.out - first),
           .accumulate = call.accumulate});
}

}  // namespace

void linear_jobs(CpuContext& cpu, View x, std::span<const LinearJob> jobs) {
  const Workspace::Frame frame(cpu.workspace);
  Dispatch(cpu, x, jobs).run();
}

void linear(CpuContext& cpu, View x, std::span<const LinearCall> calls) {
  const Workspace::Frame frame(cpu.workspace);
  const std::span<LinearJob> jobs(cpu.workspace.take<LinearJob>(static_cast<int64_t>(calls.size())),
                                  calls.size());
  for (size_t i = 0; i < calls.size(); ++i) std::construct_at(&jobs[i], LinearJob{.call = calls[i]});
  linear_jobs(cpu, x, jobs);
}

}  // namespace tensorfold::cpu
