// Binding: from names and expected shapes to checked slices of a checkpoint (specs/mlx-quantization.md §1,
// §5, §8).
#include "memory/weight_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "formats/quant_mlx.h"

namespace tensorfold {
namespace {

bool is_float(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32; }

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// "layers.3.self_attn.k_proj" -> "layer 3 k_proj"; a name outside the layers stays as it is.
std::string display_name(std::string_view path) {
  std::string_view rest = path;
  std::string layer;
  if (rest.starts_with("layers.")) {
    rest.remove_prefix(7);
    const size_t dot = rest.find('.');
    layer = fmt::format("layer {} ", rest.substr(0, dot));
    rest.remove_prefix(dot == rest.npos ? rest.size() : dot + 1);
  }
  for (std::string_view block : {"self_attn.", "mlp."})
    if (rest.starts_with(block)) rest.remove_prefix(block.size());
  if (rest.ends_with(".weight")) rest.remove_suffix(7);
  return layer + std::string(rest);
}

TensorSlice whole(const TensorInfo* tensor) { return {tensor, 0, tensor->bytes}; }

/// `num_rows` rows from `first_row` on of a tensor that is total_rows equal rows.
TensorSlice row_slice(const TensorInfo* tensor, int64_t total_rows, int64_t first_row, int64_t num_rows) {
  if (tensor == nullptr) return {};
  const int64_t row_bytes = tensor->bytes / total_rows;
  return {tensor, first_row * row_bytes, num_rows * row_bytes};
}

}  // namespace

WeightTable::WeightTable(std::string family, const Checkpoint& checkpoint,
                         const QuantizationConfig& quantization)
    : checkpoint_(checkpoint), quantization_(quantization) {
  manifest_.family = std::move(family);
  for (const auto& [name, tensor] : checkpoint.tensors())
    by_name_.emplace(canonical_module_name(name), &tensor);
}

bool WeightTable::has_tensor(std::string_view name) const { return by_name_.find(name) != by_name_.end(); }

void WeightTable::note(Status status) {
  if (status_.ok() && !status.ok()) status_ = status.with_context(manifest_.family);
}

/// nullptr when there is no such tensor; an error when two have the name once their prefixes are dropped.
Result<const TensorInfo*> WeightTable::find(std::string_view name) const {
  const auto [first, last] = by_name_.equal_range(name);
  if (first == last) return static_cast<const TensorInfo*>(nullptr);
  if (std::next(first) != last)
    return corrupt("{}: both {} and {} are in the checkpoint", display_name(name), first->second->name,
                   std::next(first)->second->name);
  return first->second;
}

Result<const TensorInfo*> WeightTable::require(std::string_view name) const {
  TF_ASSIGN_OR_RETURN(const TensorInfo* tensor, find(name));
  if (tensor == nullptr) return corrupt("{}: the checkpoint has no tensor {}", display_name(name), name);
  return tensor;
}

Result<LinearSpec> WeightTable::describe_packed(const Stored& stored, const Expected& expected) const {
  const std::optional<ModuleQuantization> how = quantization_.module(expected.module);
  if (!how)
    return corrupt("{}: has scales ({}), but {}", display_name(expected.module),
                   checkpoint_.file_name_of(*stored.scales),
                   quantization_.is_present ? "the config's `quantization` says that it is not packed"
                                            : "the config has no `quantization`");
  TF_ASSIGN_OR_RETURN(const AffineTensor packed,
                      describe_affine({expected.module, stored.weight, stored.scales, stored.biases}, *how));
  std::vector<int64_t> shape = packed.batch_shape;
  shape.insert(shape.end(), {packed.out, packed.in});
  std::vector<int64_t> wanted = {expected.out, expected.in};
  if (expected.num_matrices > 0) wanted.insert(wanted.begin(), expected.num_matrices);
  if (shape != wanted)
    return corrupt("{}: shape {} packed, expected {} ({})", display_name(expected.module), shape_text(shape),
                   shape_text(wanted), checkpoint_.file_name_of(*stored.weight));
  return LinearSpec{expected.out,       expected.in, WeightFormat::kAffine,
                    packed.scale_dtype, packed.bits, packed.group_size};
}

/// Looks up `module`.weight, or, for stacked experts, `module` alone: transformers' fused experts are
/// parameters themselves, not modules with a weight.
Result<WeightTable::Stored> WeightTable::find_matrix(const Expected& expected) const {
  const bool is_bare = expected.num_matrices > 0 && has_tensor(expected.module);
  Stored stored;
  TF_ASSIGN_OR_RETURN(stored.weight, require(is_bare ? expected.module : expected.module + ".weight"));
  TF_ASSIGN_OR_RETURN(stored.scales, find(expected.module + ".scales"));
  TF_ASSIGN_OR_RETURN(stored.biases, find(expected.module + ".biases"));
  if (stored.scales != nullptr) {
    TF_ASSIGN_OR_RETURN(stored.spec, describe_packed(stored, expected));
    return stored;
  }
  const TensorInfo& weight = *stored.weight;
  if (!is_float(weight.dtype))
    return unsupported("{}: dtype {} without scales, expected BF16, F16 or F32 ({})",
                       display_name(expected.module), dtype_name(weight.dtype),
                       checkpoint_.file_name_of(weight));
  std::vector<int64_t> wanted = {expected.out, expected.in};
  if (expected.num_matrices > 0) wanted.insert(wanted.begin(), expected.num_matrices);
  if (weight.shape != wanted)
    return corrupt("{}: shape {}, expected {} ({})", display_name(expected.module), shape_text(weight.shape),
                   shape_text(wanted), checkpoint_.file_name_of(weight));
  stored.spec = {expected.out, expected.in, WeightFormat::kFloat, weight.dtype, dtype_bits(weight.dtype), 0};
  return stored;
}

Result<TensorSlice> WeightTable::find_vector(std::string_view name, int64_t size) const {
  TF_ASSIGN_OR_RETURN(const TensorInfo* tensor, require(name));
  if (!is_float(tensor->dtype))
    return unsupported("{}: dtype {}, expected BF16, F16 or F32 ({})", display_name(name),
                       dtype_name(tensor->dtype), checkpoint_.file_name_of(*tensor));
  if (tensor->shape != std::vector<int64_t>{size})
    return corrupt("{}: shape {}, expected [{}] ({})", display_name(name), shape_text(tensor->shape), size,
                   checkpoint_.file_name_of(*tensor));
  return whole(tensor);
}

LinearBinding WeightTable::rows_of(const Stored& stored, const RowRange& rows) {
  // Leading axes and rows are one axis of equal rows, of the scales and biases as of the weight.
  const int64_t total_rows = stored.weight->num_elements() / stored.weight->shape.back();
  const int64_t first_row = rows.matrix * stored.spec.out + rows.first_row;
  LinearBinding binding;
  binding.spec = stored.spec;
  binding.spec.out = rows.num_rows;
  binding.weight = row_slice(stored.weight, total_rows, first_row, rows.num_rows);
  binding.scales = row_slice(stored.scales, total_rows, first_row, rows.num_rows);
  binding.biases = row_slice(stored.biases, total_rows, first_row, rows.num_rows);
  return binding;
}

Result<LinearBinding> WeightTable::bind_linear(const LinearDeclaration& declaration) const {
  TF_ASSIGN_OR_RETURN(const Stored stored,
                      find_matrix({declaration.module, /*num_matrices=*/0, declaration.out, declaration.in}));
  LinearBinding binding = rows_of(stored, {0, 0, declaration.out});
  binding.name = display_name(declaration.module);
  const std::string bias = declaration.module + ".bias";
  if (declaration.has_bias) {
    TF_ASSIGN_OR_RETURN(binding.bias, find_vector(bias, declaration.out));
  } else if (has_tensor(bias)) {
    // A bias that the config denies would be dropped in silence: another function than the one that was
    // trained.
    return corrupt("{}: the checkpoint has a bias that the config does not announce",
                   display_name(declaration.module));
  }
  return binding;
}

LinearId WeightTable::linear(int layer, const LinearDeclaration& declaration) {
  Result<LinearBinding> binding = bind_linear(declaration);
  if (!binding.ok()) {
    note(binding.status());
    return {};
  }
  binding->layer = layer;
  manifest_.linears.push_back(std::move(*binding));
  return {static_cast<int32_t>(manifest_.linears.size() - 1)};
}

VectorId WeightTable::vector(int layer, const std::string& name, int64_t size) {
  const Result<TensorSlice> values = find_vector(name, size);
  if (!values.ok()) {
    note(values.status());
    return {};
  }
  manifest_.vectors.push_back({layer, display_name(name), *values, size});
  return {static_cast<int32_t>(manifest_.vectors.size() - 1)};
}

/// The same rows of each of the stacked matrices, as a run of linears.
Status WeightTable::add_stacked(int layer, const Expected& expected, RowRange rows, int32_t& first) {
  TF_ASSIGN_OR_RETURN(const Stored stored, find_matrix(expected));
  first = static_cast<int32_t>(manifest_.linears.size());
  for (rows.matrix = 0; rows.matrix < expected.num_matrices; ++rows.matrix) {
    LinearBinding binding = rows_of(stored, rows);
    binding.layer = layer;
    binding.name = fmt::format("{} of expert {}", display_name(expected.module), rows.matrix);
    manifest_.linears.push_back(std::move(binding));
  }
  return {};
}

/// expected.module is "...experts": its children 0, 1, ... hold the projection.
Status WeightTable::add_one_by_one(int layer, const Expected& expected, std::string_view projection,
                                   int32_t& first) {
  first = static_cast<int32_t>(manifest_.linears.size());
  for (int64_t expert = 0; expert < expected.num_matrices; ++expert) {
    TF_ASSIGN_OR_RETURN(LinearBinding binding,
                        bind_linear({fmt::format("{}.{}.{}", expected.module, expert, projection),
                                     expected.out, expected.in}));
    binding.layer = layer;
    // Kernels run a layer's experts as one operation, so they must have one format.
    if (expert > 0 && binding.spec != manifest_.linears[first].spec)
      return unsupported("{}: {}, but expert 0 has {}", binding.name, to_string(binding.spec),
                         to_string(manifest_.linears[first].spec));
    manifest_.linears.push_back(std::move(binding));
  }
  const std::string beyond =
      fmt::format("{}.{}.{}.weight", expected.module, expected.num_matrices, projection);
  if (has_tensor(beyond))
    return corrupt("{}: the checkpoint has more experts than the config's {}", display_name(beyond),
                   expected.num_matrices);
  return {};
}

Status WeightTable::bind_experts(int layer, const ExpertsDeclaration& declaration, ExpertsBinding& binding) {
  const auto [module, num_experts, hidden, intermediate] = declaration;
  binding.layer = layer;
  binding.num_experts = num_experts;
  const std::string stacked = module + ".switch_mlp.";
  const std::string fused = module + ".experts.gate_up_proj";
  if (has_tensor(stacked + "gate_proj.weight")) {
    const Expected up = {stacked + "up_proj", num_experts, intermediate, hidden};
    TF_RETURN_IF_ERROR(add_stacked(layer, {stacked + "gate_proj", num_experts, intermediate, hidden},
                                   {0, 0, intermediate}, binding.first_gate_proj));
    TF_RETURN_IF_ERROR(add_stacked(layer, up, {0, 0, intermediate}, binding.first_up_proj));
    return add_stacked(layer, {stacked + "down_proj", num_experts, hidden, intermediate}, {0, 0, hidden},
                       binding.first_down_proj);
  }
  if (has_tensor(fused) || has_tensor(fused + ".weight")) {
    const Expected gate_up = {fused, num_experts, 2 * intermediate, hidden};
    TF_RETURN_IF_ERROR(add_stacked(layer, gate_up, {0, 0, intermediate}, binding.first_gate_proj));
    TF_RETURN_IF_ERROR(add_stacked(layer, gate_up, {0, intermediate, intermediate}, binding.first_up_proj));
    return add_stacked(layer, {module + ".experts.down_proj", num_experts, hidden, intermediate},
                       {0, 0, hidden}, binding.first_down_proj);
  }
  const Expected into = {module + ".experts", num_experts, intermediate, hidden};
  const Expected out_of = {module + ".experts", num_experts, hidden, intermediate};
  TF_RETURN_IF_ERROR(add_one_by_one(layer, into, "gate_proj", binding.first_gate_proj));
  TF_RETURN_IF_ERROR(add_one_by_one(layer, into, "up_proj", binding.first_up_proj));
  return add_one_by_one(layer, out_of, "down_proj", binding.first_down_proj);
}

ExpertsId WeightTable::experts(int layer, const ExpertsDeclaration& declaration) {
  ExpertsBinding binding;
  if (Status status = bind_experts(layer, declaration, binding); !status.ok()) {
    note(std::move(status));
    return {};
  }
  manifest_.experts.push_back(binding);
  return {static_cast<int32_t>(manifest_.experts.size() - 1)};
}

void WeightTable::expect_absent(const std::string& name, std::string_view because) {
  if (has_tensor(name))
    note(corrupt("{}: the checkpoint has {}, but the config says {}", display_name(name), name, because));
}

}  // namespace tensorfold
