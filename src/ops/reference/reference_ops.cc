// What the reference backend is; its ops are the other files of this folder.
#include "ops/reference/reference_ops.h"

#include "ops/kv_layout.h"

namespace tensorfold {

ReferenceOps::ReferenceOps(int short_sum_partials) : short_sum_partials_(short_sum_partials) {
  info_.name = "reference";
  info_.arithmetic_id = "cpu/1";
  info_.isa = "scalar";
  info_.num_threads = 1;
}

int64_t ReferenceOps::kv_page_bytes(const KvShape& shape) const { return kv_layout_page_bytes(shape); }

void ReferenceOps::begin_pass(const RowBatch&) {}

Status ReferenceOps::end_pass() { return Status(); }

std::unique_ptr<Ops> make_reference_ops() { return std::make_unique<ReferenceOps>(); }

}  // namespace tensorfold
