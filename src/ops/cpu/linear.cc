// The loops of linear(): tasks over panels and rows. The arithmetic is in the kernels (linear_kernels.h), the
// activations come from linear_rows.h.
//
// A task is some panels times some rows. It goes panel by panel, so that a panel read from memory stays in L1 or L2
// for all of the task's rows, up to eight at a time.
#include "ops/cpu/linear.h"

#include <algorithm>
#include <memory>

#include "ops/cpu/linear_finish.h"
#include "ops/cpu/linear_kernels.h"
#include "ops/cpu/linear_rows.h"
#include "ops/linear_layout.h"

namespace tensorfold::cpu {
namespace {

/// Activations of a task: they are read once per panel, from an L2 cache of 512 KB or more.
constexpr int64_t kRowBlockBytes = 256 << 10;
/// Handing a task to another thread costs a few hundred nanoseconds, the time to read this much.
constexpr int64_t kMinTaskBytes = 16 << 10;
/// Tasks are taken one by one, so that a thread that is late takes fewer.
constexpr int64_t kTasksPerThread = 8;

/// A call with all that its panels share.
struct Product {
  LinearCall call;
  LinearLayout layout;
  LinearKernels kernels;
  PanelShape shape = {};
  const std::byte* x = nullptr;  ///< Row 0 of this product.
  int64_t x_stride_bytes = 0;
  const float* group_sums = nullptr;  ///< [num_rows][num_groups]; null where weights are floats.
  int64_t num_groups = 0;
  int64_t num_rows = 0;
};

Product make_product(CpuContext& cpu, LinearRows& rows, DType activation, const LinearJob& job) {
  const LinearSpec& spec = job.call.weight.spec;
  Product product{.call = job.call,
                  .layout = LinearLayout(spec),
                  .kernels = linear_kernels(cpu.isa, spec, activation),
                  .num_rows = job.call.out.num_rows()};
  product.shape = {.columns = product.layout.padded_columns,
                   .segment_columns = product.layout.segment_columns,
                   .group_columns = spec.group_size,
                   .scale_dtype = spec.dtype};
  const PreparedRows& prepared = rows.rows(product.kernels.x_dtype);
  product.x = prepared.x + job.first_row * prepared.stride_bytes;
  product.x_stride_bytes = prepared.stride_bytes;
  if (spec.format == WeightFormat::kAffine) {
    const RowSums& sums = rows.sums(product.kernels.x_dtype, product.kernels.group_sums, spec.group_size);
    product.group_sums = sums.sums + job.first_row * sums.num_groups;
    product.num_groups = sums.num_groups;
  }
  return product;
}

/// Rows [first_row, first_row + num_rows) of panels [first_panel, first_panel + num_panels) of a product.
struct Task {
  const Product* product = nullptr;
  int64_t first_panel = 0, num_panels = 0;
  int64_t first_row = 0, num_rows = 0;
};

/// The panels of a product are cut into equal parts, and its rows into equal blocks.
struct TaskGrid {
  int64_t panel_parts = 1, row_parts = 1;
};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Weight bytes times rows: what one row reads, and in proportion to what many rows multiply.
int64_t cost_of(const Product& p) { return p.layout.packed_bytes() * p.num_rows; }

TaskGrid task_grid(const Product& p, int64_t total_cost, int64_t num_threads) {
  const int64_t row_bytes = p.layout.padded_columns * dtype_bytes(p.kernels.x_dtype);
  TaskGrid grid{.row_parts = ceil_div(p.num_rows * row_bytes, kRowBlockBytes)};
  if (num_threads == 1) return grid;
  const int64_t wanted = num_threads * std::min(kTasksPerThread, total_cost / (num_threads * kMinTaskBytes));
  grid.panel_parts = std::clamp<int64_t>(ceil_div(wanted * cost_of(p), total_cost * grid.row_parts), 1,
                                         p.layout.num_panels);
  return grid;
}

/// One dispatch: products split into tasks, and the kernel that ends a row.
class Dispatch {
 public:
  /// Memory is of the frame of cpu.workspace that is open.
  Dispatch(CpuContext& cpu, View x, std::span<const LinearJob> jobs);
  void run() const;

 private:
  void make_tasks();
  void run_panel(const Task& task, int64_t panel) const;
  void finish_row(const Product& product, int64_t panel, int64_t row, const float* sums) const;

  CpuContext& cpu_;
  FinishKernel finish_;
  std::span<Product> products_;
  std::span<Task> tasks_;
};

Dispatch::Dispatch(CpuContext& cpu, View x, std::span<const LinearJob> jobs)
    : cpu_(cpu), finish_(finish_kernel(cpu.isa)) {
  products_ = {cpu.workspace.take<Product>(static_cast<int64_t>(jobs.size())), jobs.size()};
  LinearRows rows(cpu, x);
  for (size_t i = 0; i < jobs.size(); ++i) {
    std::construct_at(&products_[i], make_product(cpu, rows, x.dtype, jobs[i]));
  }
  make_tasks();
}

void Dispatch::make_tasks() {
  int64_t total_cost = 0, num_tasks = 0;
  for (const Product& p : products_) total_cost += cost_of(p);
  const auto grid_of = [&](const Product& p) { return task_grid(p, total_cost, cpu_.pool.num_threads()); };
  for (const Product& p : products_) num_tasks += grid_of(p).panel_parts * grid_of(p).row_parts;
  tasks_ = {cpu_.workspace.take<Task>(num_tasks), static_cast<size_t>(num_tasks)};
  size_t next = 0;
  for (const Product& p : products_) {
    const TaskGrid grid = grid_of(p);
    for (int64_t r = 0; r < grid.row_parts; ++r) {
      const int64_t row = p.num_rows * r / grid.row_parts, row_end = p.num_rows * (r + 1) / grid.row_parts;
      for (int64_t i = 0; i < grid.panel_parts; ++i) {
        const int64_t panel = p.layout.num_panels * i / grid.panel_parts;
        const int64_t panel_end = p.layout.num_panels * (i + 1) / grid.panel_parts;
        tasks_[next++] = {&p, panel, panel_end - panel, row, row_end - row};
      }
    }
  }
}

void Dispatch::run() const {
  cpu_.pool.run(static_cast<int64_t>(tasks_.size()), [this](int64_t i) {
    const Task& task = tasks_[static_cast<size_t>(i)];
    for (int64_t panel = 0; panel < task.num_panels; ++panel) run_panel(task, task.first_panel + panel);
  });
}

/// All rows of a task, in equal parts of at most what a kernel takes.
void Dispatch::run_panel(const Task& task, int64_t panel) const {
  const Product& p = *task.product;
  alignas(64) float sums[kMaxKernelRows * kPanelOutputs];
  const int64_t num_parts = ceil_div(task.num_rows, p.kernels.max_rows);
  for (int64_t i = 0; i < num_parts; ++i) {
    const int64_t row = task.first_row + task.num_rows * i / num_parts;
    const int64_t row_end = task.first_row + task.num_rows * (i + 1) / num_parts;
    p.kernels.panel({.panel = p.call.weight.data + panel * p.layout.panel_bytes,
                     .shape = p.shape,
                     .x = p.x + row * p.x_stride_bytes,
                     .x_stride_bytes = p.x_stride_bytes,
                     .group_sums = p.group_sums == nullptr ? nullptr : p.group_sums + row * p.num_groups,
                     .group_sums_stride = p.num_groups,
                     .sums = sums,
                     .num_rows = static_cast<int>(row_end - row)});
    for (int64_t r = row; r < row_end; ++r) finish_row(p, panel, r, sums + (r - row) * kPanelOutputs);
  }
}

void Dispatch::finish_row(const Product& product, int64_t panel, int64_t row, const float* sums) const {
  const LinearCall& call = product.call;
  const int64_t first = panel * kPanelOutputs;
  finish_({.sums = sums,
           .bias = call.weight.bias == nullptr ? nullptr : call.weight.bias + first,
           .out = call.out.data + (row * call.out.row_stride + first) * dtype_bytes(call.out.dtype),
           .dtype = call.out.dtype,
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
  const std::span<LinearJob> jobs(cpu.workspace.take<LinearJob>(static_cast<int64_t>(calls.size())), calls.size());
  for (size_t i = 0; i < calls.size(); ++i) std::construct_at(&jobs[i], LinearJob{.call = calls[i]});
  linear_jobs(cpu, x, jobs);
}

}  // namespace tensorfold::cpu
