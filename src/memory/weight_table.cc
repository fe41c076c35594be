// Binding: from names and expected shapes to checked slices of a checkpoint (specs/mlx-quantization.md §1,
// §5, §8).
#include "memory/weight_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "base/bf16.h"
#include "base/check.h"
#include "base/mxfp4.h"
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

LinearSpec float_spec(int64_t out, int64_t in, DType dtype) {
  return {out, in, WeightFormat::kFloat, dtype, dtype_bits(dtype), 0};
}

/// The values are exact in bf16, which is what `dtype` says.
LinearSpec mxfp4_spec(int64_t out, int64_t in) {
  return {out, in, WeightFormat::kMxfp4, DType::kBF16, /*bits=*/4, kMxfp4BlockSize};
}

TensorSlice whole(const TensorInfo* tensor) { return {tensor, 0, tensor->bytes}; }

float float_at(DType dtype, const std::byte* values, int64_t i) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, values + 4 * i, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, values + 2 * i, 2);
  return dtype == DType::kF16 ? to_float(f16{bits}) : to_float(bf16{bits});
}

ExpertsBinding unbound_experts(int layer, const ExpertsDeclaration& d) {
  return {.layer = layer,
          .name = display_name(d.module),
          .num_experts = d.num_experts,
          .num_experts_per_tok = d.num_experts_per_tok,
          .num_groups = d.num_groups};
}

}  // namespace

WeightTable::WeightTable(std::string family, const Checkpoint& checkpoint,
                         const QuantizationConfig& quantization)
    : checkpoint_(&checkpoint), quantization_(&quantization) {
  manifest_.family = std::move(family);
  for (const auto& [name, tensor] : checkpoint.tensors())
    by_name_.emplace(canonical_module_name(name), &tensor);
}

WeightTable::WeightTable(std::string family) { manifest_.family = std::move(family); }

bool WeightTable::has_tensor(std::string_view name) const { return by_name_.find(name) != by_name_.end(); }

std::vector<int64_t> WeightTable::shape_of(std::string_view name) const {
  if (checkpoint_ == nullptr) return {1, 1, 1};
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? std::vector<int64_t>() : found->second->shape;
}

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
  std::optional<ModuleQuantization> how = quantization_->module(expected.module);
  // A side file was packed on its own; its shapes tell how.
  const int64_t num_groups = stored.scales->shape.empty() ? 0 : stored.scales->shape.back();
  if (checkpoint_->is_from_side_file(*stored.scales) && num_groups > 0 && expected.in % num_groups == 0)
    how = {.mode = QuantMode::kAffine, .group_size = static_cast<int>(expected.in / num_groups)};
  if (!how)
    return corrupt("{}: has scales ({}), but {}", display_name(expected.module),
                   checkpoint_->file_name_of(*stored.scales),
                   quantization_->is_present ? "the config's `quantization` says that it is not packed"
                                             : "the config has no `quantization`");
  const PackedModule module{expected.module, stored.weight, stored.scales, stored.biases};
  // The tensors say mxfp4 too, in case the module's entry is missing from the config.
  if (fits_mxfp4_words(module, expected)) return mxfp4_spec(expected.out, expected.in);
  if (how->mode == QuantMode::kMxfp4)
    return corrupt("{}: {} and {} are not mxfp4 of [{}, {}] ({})", display_name(expected.module),
                   to_string(*module.weight), to_string(*module.scales), expected.out, expected.in,
                   checkpoint_->file_name_of(*module.weight));
  TF_ASSIGN_OR_RETURN(const AffineTensor packed, describe_affine(module, *how));
  std::vector<int64_t> shape = packed.batch_shape;
  shape.insert(shape.end(), {packed.out, packed.in});
  std::vector<int64_t> wanted = {expected.out, expected.in};
  if (expected.num_matrices > 0) wanted.insert(wanted.begin(), expected.num_matrices);
  if (shape != wanted)
    return corrupt("{}: shape {} packed, expected {} ({})", display_name(expected.module), shape_text(shape),
                   shape_text(wanted), checkpoint_->file_name_of(*stored.weight));
  return LinearSpec{expected.out,       expected.in, WeightFormat::kAffine,
                    packed.scale_dtype, packed.bits, packed.group_size};
}

/// MLX's `mxfp4` mode: words of eight values, scales a byte a block, no biases (specs/gpt-oss.md §2.3, §3).
bool WeightTable::fits_mxfp4_words(const PackedModule& module, const Expected& expected) {
  std::vector<int64_t> weight = {expected.out, expected.in / 8},
                       scales = {expected.out, expected.in / kMxfp4BlockSize};
  if (expected.num_matrices > 0) {
    weight.insert(weight.begin(), expected.num_matrices);
    scales.insert(scales.begin(), expected.num_matrices);
  }
  return expected.in % kMxfp4BlockSize == 0 && module.biases == nullptr &&
         module.weight->dtype == DType::kU32 && module.scales->dtype == DType::kU8 &&
         module.weight->shape == weight && module.scales->shape == scales;
}

/// GPT-OSS as published: `module`_blocks and _scales (specs/gpt-oss.md §2.1, §3).
Result<WeightTable::Stored> WeightTable::find_blocks(const Expected& expected) const {
  Stored stored;
  stored.num_matrices = expected.num_matrices;
  TF_ASSIGN_OR_RETURN(stored.weight, require(expected.module + "_blocks"));
  TF_ASSIGN_OR_RETURN(stored.scales, require(expected.module + "_scales"));
  const int64_t num_blocks = expected.in / kMxfp4BlockSize;
  const std::vector<int64_t> blocks = {expected.num_matrices, expected.out, num_blocks, kMxfp4BlockSize / 2};
  const std::vector<int64_t> scales = {expected.num_matrices, expected.out, num_blocks};
  if (expected.in % kMxfp4BlockSize != 0 || stored.weight->dtype != DType::kU8 ||
      stored.scales->dtype != DType::kU8 || stored.weight->shape != blocks || stored.scales->shape != scales)
    return corrupt("{}: {} and {}, expected U8 {} and {} ({})", display_name(expected.module),
                   to_string(*stored.weight), to_string(*stored.scales), shape_text(blocks),
                   shape_text(scales), checkpoint_->file_name_of(*stored.weight));
  stored.spec = mxfp4_spec(expected.out, expected.in);
  return stored;
}

/// Floats [X, in, out] under the name of the module itself.
Result<WeightTable::Stored> WeightTable::find_input_major(const Expected& expected) const {
  Stored stored;
  stored.num_matrices = expected.num_matrices;
  TF_ASSIGN_OR_RETURN(stored.weight, require(expected.module));
  const std::vector<int64_t> wanted = {expected.num_matrices, expected.in, expected.out};
  if (!is_float(stored.weight->dtype) || stored.weight->shape != wanted)
    return corrupt("{}: {}, expected BF16, F16 or F32 {} ({})", display_name(expected.module),
                   to_string(*stored.weight), shape_text(wanted), checkpoint_->file_name_of(*stored.weight));
  stored.spec = float_spec(expected.out, expected.in, stored.weight->dtype);
  stored.is_input_major = true;
  return stored;
}

/// Looks up `module`.weight, or, for stacked experts, `module` alone: transformers' fused experts are
/// parameters themselves, not modules with a weight.
Result<WeightTable::Stored> WeightTable::find_matrix(const Expected& expected) const {
  if (expected.is_interleaved)
    return has_tensor(expected.module + "_blocks") ? find_blocks(expected) : find_input_major(expected);
  const bool may_be_bare = expected.num_matrices > 0 || expected.allows_bare;
  const bool is_bare = may_be_bare && has_tensor(expected.module);
  Stored stored;
  stored.num_matrices = std::max<int64_t>(expected.num_matrices, 1);
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
                       checkpoint_->file_name_of(weight));
  std::vector<int64_t> wanted = {expected.out, expected.in};
  if (expected.num_matrices > 0) wanted.insert(wanted.begin(), expected.num_matrices);
  if (weight.shape != wanted)
    return corrupt("{}: shape {}, expected {} ({})", display_name(expected.module), shape_text(weight.shape),
                   shape_text(wanted), checkpoint_->file_name_of(weight));
  stored.spec = float_spec(expected.out, expected.in, weight.dtype);
  return stored;
}

Result<TensorSlice> WeightTable::find_floats(std::string_view name, const std::vector<int64_t>& shape) const {
  TF_ASSIGN_OR_RETURN(const TensorInfo* tensor, require(name));
  if (!is_float(tensor->dtype))
    return unsupported("{}: dtype {}, expected BF16, F16 or F32 ({})", display_name(name),
                       dtype_name(tensor->dtype), checkpoint_->file_name_of(*tensor));
  if (tensor->shape != shape)
    return corrupt("{}: shape {}, expected {} ({})", display_name(name), shape_text(tensor->shape),
                   shape_text(shape), checkpoint_->file_name_of(*tensor));
  return whole(tensor);
}

/// Of the weight, the scales, the biases or the bias vectors of `stored`: leading axes and rows are one axis
/// of equal rows.
TensorSlice WeightTable::row_slice(const TensorInfo* tensor, const Stored& stored, const RowRange& rows) {
  if (tensor == nullptr) return {};
  const int64_t row_bytes = tensor->bytes / (stored.num_matrices * stored.spec.out);
  const int64_t first_row = rows.matrix * stored.spec.out + rows.first_row;
  TensorSlice slice{tensor, first_row * row_bytes, rows.num_rows * row_bytes};
  if (rows.step > rows.piece_rows) {
    slice.piece_bytes = rows.piece_rows * row_bytes;
    slice.stride_bytes = rows.step * row_bytes;
  }
  return slice;
}

LinearBinding WeightTable::rows_of(const Stored& stored, const RowRange& rows) {
  LinearBinding binding;
  binding.spec = stored.spec;
  binding.spec.out = rows.num_rows;
  if (stored.is_input_major) {
    // A piece is one input's outputs; those of the other projection lie between them.
    const int64_t element = dtype_bytes(stored.spec.dtype),
                  matrix = stored.spec.in * stored.spec.out * element;
    const int64_t piece = ((rows.num_rows - 1) * rows.step + 1) * element;
    binding.weight = {stored.weight, rows.matrix * matrix + rows.first_row * element, stored.spec.in * piece,
                      piece, stored.spec.out * element};
    binding.transposed_step = rows.step;
    return binding;
  }
  binding.weight = row_slice(stored.weight, stored, rows);
  binding.scales = row_slice(stored.scales, stored, rows);
  binding.biases = row_slice(stored.biases, stored, rows);
  return binding;
}

/// A bias that the config denies would be dropped in silence: another function than the one that was trained.
Status WeightTable::expect_no_bias(const std::string& module) const {
  for (const char* suffix : {".bias", "_bias"})
    if (has_tensor(module + suffix))
      return corrupt("{}: the checkpoint has {}{}, a bias that the config does not announce",
                     display_name(module), module, suffix);
  return {};
}

Result<LinearBinding> WeightTable::bind_linear(const LinearDeclaration& declaration) const {
  TF_ASSIGN_OR_RETURN(const Stored stored, find_matrix({.module = declaration.module,
                                                        .out = declaration.out,
                                                        .in = declaration.in,
                                                        .allows_bare = declaration.allows_bare}));
  LinearBinding binding = rows_of(stored, {0, 0, declaration.out});
  binding.name = display_name(declaration.module);
  if (declaration.has_bias) {
    TF_ASSIGN_OR_RETURN(binding.bias, find_floats(declaration.module + ".bias", {declaration.out}));
  } else {
    TF_RETURN_IF_ERROR(expect_no_bias(declaration.module));
  }
  return binding;
}

Result<LinearBinding> WeightTable::bind_rows(const LinearDeclaration& whole, const RowPieces& rows) const {
  TF_CHECK(!whole.has_bias &&
           rows.first_row + (rows.num_pieces - 1) * rows.stride_rows + rows.piece_rows <= whole.out);
  TF_ASSIGN_OR_RETURN(const Stored stored,
                      find_matrix({whole.module, /*num_matrices=*/0, whole.out, whole.in}));
  LinearBinding binding = rows_of(stored, {.first_row = rows.first_row,
                                           .num_rows = rows.num_rows(),
                                           .step = rows.num_pieces > 1 ? rows.stride_rows : rows.piece_rows,
                                           .piece_rows = rows.piece_rows});
  binding.name = fmt::format("{} rows {} on", display_name(whole.module), rows.first_row);
  TF_RETURN_IF_ERROR(expect_no_bias(whole.module));
  return binding;
}

LinearId WeightTable::linear_rows(int layer, const LinearDeclaration& whole, const RowPieces& rows) {
  if (checkpoint_ == nullptr) {
    const LinearId id = declare_linear(layer, whole);
    manifest_.linears[id.index].spec.out = rows.num_rows();
    return id;
  }
  return add(layer, bind_rows(whole, rows));
}

LinearId WeightTable::add(int layer, Result<LinearBinding> binding) {
  if (!binding.ok()) {
    note(binding.status());
    return {};
  }
  binding->layer = layer;
  manifest_.linears.push_back(std::move(*binding));
  return {static_cast<int32_t>(manifest_.linears.size() - 1)};
}

Result<double> WeightTable::read_mean(const std::string& name) const {
  TF_ASSIGN_OR_RETURN(const TensorInfo* tensor, require(name));
  if (!is_float(tensor->dtype) || tensor->bytes == 0)
    return corrupt("{}: {}, expected BF16, F16 or F32 ({})", display_name(name), to_string(*tensor),
                   checkpoint_->file_name_of(*tensor));
  std::vector<std::byte> bytes(tensor->bytes);
  TF_RETURN_IF_ERROR(checkpoint_->read(*tensor, 0, bytes));
  const int64_t count = tensor->num_elements();
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += float_at(tensor->dtype, bytes.data(), i);
  return sum / static_cast<double>(count);
}

double WeightTable::mean(const std::string& name) {
  if (checkpoint_ == nullptr) return 0;
  const Result<double> mean = read_mean(name);
  if (!mean.ok()) note(mean.status());
  return mean.ok() ? *mean : 0;
}

/// Notes a matrix of a checkpoint that is not there, as bf16.
LinearId WeightTable::declare_linear(int layer, const LinearDeclaration& d) {
  // A matrix of which rows are taken (linear_rows) is declared once for each taking.
  if (std::ranges::find(declared_, d.module, &DeclaredWeight::name) == declared_.end())
    declared_.push_back({.kind = DeclaredWeight::Kind::kLinear,
                         .layer = layer,
                         .name = d.module,
                         .out = d.out,
                         .in = d.in,
                         .has_bias = d.has_bias});
  LinearBinding binding;
  binding.layer = layer;
  binding.name = display_name(d.module);
  binding.spec = float_spec(d.out, d.in, DType::kBF16);
  manifest_.linears.push_back(std::move(binding));
  return {static_cast<int32_t>(manifest_.linears.size() - 1)};
}

ExpertsId WeightTable::declare_experts(int layer, const ExpertsDeclaration& d) {
  ExpertsBinding binding = unbound_experts(layer, d);
  const auto add = [&](const char* projection, int64_t out, int64_t in) {
    declared_.push_back({.kind = DeclaredWeight::Kind::kExperts,
                         .layer = layer,
                         .name = d.module,
                         .projection = projection,
                         .num_experts = d.num_experts,
                         .out = out,
                         .in = in,
                         .has_bias = d.has_bias,
                         .is_interleaved = d.is_interleaved});
    const auto first = static_cast<int32_t>(manifest_.linears.size());
    for (int64_t expert = 0; expert < d.num_experts; ++expert) {
      LinearBinding linear;
      linear.layer = layer;
      linear.name = fmt::format("{} {} of expert {}", display_name(d.module), projection, expert);
      linear.spec = float_spec(out, in, DType::kBF16);
      manifest_.linears.push_back(std::move(linear));
    }
    return first;
  };
  if (d.has_gate) binding.first_gate_proj = add("gate_proj", d.intermediate_size, d.hidden_size);
  binding.first_up_proj = add("up_proj", d.intermediate_size, d.hidden_size);
  binding.first_down_proj = add("down_proj", d.hidden_size, d.intermediate_size);
  manifest_.experts.push_back(binding);
  return {static_cast<int32_t>(manifest_.experts.size() - 1)};
}

VectorId WeightTable::declare_vector(DeclaredWeight declaration) {
  manifest_.vectors.push_back({.layer = declaration.layer,
                               .name = display_name(declaration.name),
                               .values = {},
                               .size = declaration.out * std::max<int64_t>(declaration.in, 1),
                               .num_rows = declaration.in});
  declared_.push_back(std::move(declaration));
  return {static_cast<int32_t>(manifest_.vectors.size() - 1)};
}

LinearId WeightTable::linear(int layer, const LinearDeclaration& declaration) {
  if (checkpoint_ == nullptr) return declare_linear(layer, declaration);
  return add(layer, bind_linear(declaration));
}

VectorId WeightTable::vector(int layer, const std::string& name, int64_t size, float added) {
  if (checkpoint_ == nullptr)
    return declare_vector(
        {.kind = DeclaredWeight::Kind::kVector, .layer = layer, .name = name, .out = size, .added = added});
  const Result<TensorSlice> values = find_floats(name, {size});
  if (!values.ok()) {
    note(values.status());
    return {};
  }
  manifest_.vectors.push_back(
      {.layer = layer, .name = display_name(name), .values = *values, .size = size, .added = added});
  return {static_cast<int32_t>(manifest_.vectors.size() - 1)};
}

VectorId WeightTable::array(int layer, const std::string& name, const std::vector<int64_t>& shape) {
  const int64_t size = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  if (checkpoint_ == nullptr)
    return declare_vector(
        {.kind = DeclaredWeight::Kind::kVector, .layer = layer, .name = name, .out = size, .shape = shape});
  const Result<TensorSlice> values = find_floats(name, shape);
  if (!values.ok()) {
    note(values.status());
    return {};
  }
  manifest_.vectors.push_back({.layer = layer, .name = display_name(name), .values = *values, .size = size});
  return {static_cast<int32_t>(manifest_.vectors.size() - 1)};
}

VectorId WeightTable::convolution(int layer, const std::string& name, int64_t channels, int64_t taps) {
  if (checkpoint_ == nullptr)
    return declare_vector({.kind = DeclaredWeight::Kind::kConvolution,
                           .layer = layer,
                           .name = name,
                           .out = channels,
                           .in = taps});
  const Result<const TensorInfo*> tensor = require(name);
  if (!tensor.ok()) {
    note(tensor.status());
    return {};
  }
  const std::vector<int64_t>& shape = (*tensor)->shape;
  const bool fits =
      shape == std::vector<int64_t>{channels, 1, taps} || shape == std::vector<int64_t>{channels, taps, 1};
  if (!fits || !is_float((*tensor)->dtype)) {
    note(corrupt("{}: {}, expected BF16, F16 or F32 [{}, 1, {}] ({})", display_name(name),
                 to_string(**tensor), channels, taps, checkpoint_->file_name_of(**tensor)));
    return {};
  }
  manifest_.vectors.push_back({.layer = layer,
                               .name = display_name(name),
                               .values = whole(*tensor),
                               .size = channels * taps,
                               .num_rows = taps});
  return {static_cast<int32_t>(manifest_.vectors.size() - 1)};
}

/// The same rows of each of the stacked matrices, as a run of linears.
Status WeightTable::add_stacked(int layer, const StackedProjection& projection, int32_t& first) {
  const Expected& expected = projection.expected;
  TF_ASSIGN_OR_RETURN(const Stored stored, find_matrix(expected));
  const TensorInfo* bias = nullptr;
  if (projection.bias.empty()) {
    TF_RETURN_IF_ERROR(expect_no_bias(expected.module));
  } else {
    TF_ASSIGN_OR_RETURN(bias, require(projection.bias));
    if (!is_float(bias->dtype) || bias->shape != std::vector<int64_t>{expected.num_matrices, expected.out})
      return corrupt("{}: {}, expected BF16, F16 or F32 [{}, {}] ({})", display_name(projection.bias),
                     to_string(*bias), expected.num_matrices, expected.out, checkpoint_->file_name_of(*bias));
  }
  first = static_cast<int32_t>(manifest_.linears.size());
  RowRange rows = projection.rows;
  for (rows.matrix = 0; rows.matrix < expected.num_matrices; ++rows.matrix) {
    LinearBinding binding = rows_of(stored, rows);
    binding.layer = layer;
    binding.name = fmt::format("{} of expert {}", display_name(expected.module), rows.matrix);
    binding.bias = row_slice(bias, stored, rows);
    manifest_.linears.push_back(std::move(binding));
  }
  return {};
}

/// expected.module is "...experts": its children 0, 1, ... hold the projection.
Status WeightTable::add_one_by_one(int layer, const Expected& expected, std::string_view projection,
                                   int32_t& first, bool has_bias) {
  first = static_cast<int32_t>(manifest_.linears.size());
  for (int64_t expert = 0; expert < expected.num_matrices; ++expert) {
    TF_ASSIGN_OR_RETURN(LinearBinding binding,
                        bind_linear({fmt::format("{}.{}.{}", expected.module, expert, projection),
                                     expected.out, expected.in, has_bias}));
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

/// gate_proj, up_proj and down_proj as tensors of their own, stacked.
Status WeightTable::bind_separate_experts(const ExpertsDeclaration& d, const SeparateNames& names,
                                          ExpertsBinding& binding) {
  const auto stacked = [&](const std::string& module, int64_t out, int64_t in) {
    return StackedProjection{
        {module, d.num_experts, out, in}, {0, 0, out}, d.has_bias ? module + ".bias" : ""};
  };
  const int64_t hidden = d.hidden_size, intermediate = d.intermediate_size;
  if (d.has_gate)
    TF_RETURN_IF_ERROR(
        add_stacked(binding.layer, stacked(names.gate, intermediate, hidden), binding.first_gate_proj));
  TF_RETURN_IF_ERROR(
      add_stacked(binding.layer, stacked(names.up, intermediate, hidden), binding.first_up_proj));
  return add_stacked(binding.layer, stacked(names.down, hidden, intermediate), binding.first_down_proj);
}

/// Gate and up in one stacked tensor: gate rows first, or taking turns.
Status WeightTable::bind_fused_experts(const ExpertsDeclaration& d, ExpertsBinding& binding) {
  const std::string gate_up = d.module + ".experts.gate_up_proj", down = d.module + ".experts.down_proj";
  const int64_t hidden = d.hidden_size, intermediate = d.intermediate_size, step = d.is_interleaved ? 2 : 1;
  const Expected both = {gate_up, d.num_experts, 2 * intermediate, hidden, d.is_interleaved};
  const Expected back = {down, d.num_experts, hidden, intermediate, d.is_interleaved};
  const auto bias = [&](const std::string& module) { return d.has_bias ? module + "_bias" : std::string(); };
  const int64_t first_up = d.is_interleaved ? 1 : intermediate;
  TF_RETURN_IF_ERROR(
      add_stacked(binding.layer, {both, {0, 0, intermediate, step}, bias(gate_up)}, binding.first_gate_proj));
  TF_RETURN_IF_ERROR(add_stacked(binding.layer, {both, {0, first_up, intermediate, step}, bias(gate_up)},
                                 binding.first_up_proj));
  return add_stacked(binding.layer, {back, {0, 0, hidden}, bias(down)}, binding.first_down_proj);
}

Status WeightTable::bind_experts(const ExpertsDeclaration& d, ExpertsBinding& binding) {
  const std::string experts = d.module + ".experts", stacked = d.module + ".switch_mlp.";
  const auto present = [&](const std::string& module) {
    return has_tensor(module) || has_tensor(module + ".weight");
  };
  if (present(stacked + "gate_proj") || present(stacked + "up_proj"))
    return bind_separate_experts(d, {stacked + "gate_proj", stacked + "up_proj", stacked + "down_proj"},
                                 binding);
  if (!d.has_gate && present(stacked + "fc1"))
    return bind_separate_experts(d, {"", stacked + "fc1", stacked + "fc2"}, binding);
  if (present(experts + ".gate_proj") || present(experts + ".up_proj"))
    return bind_separate_experts(d, {experts + ".gate_proj", experts + ".up_proj", experts + ".down_proj"},
                                 binding);
  if (d.has_gate && (present(experts + ".gate_up_proj") || has_tensor(experts + ".gate_up_proj_blocks")))
    return bind_fused_experts(d, binding);
  const Expected into = {experts, d.num_experts, d.intermediate_size, d.hidden_size};
  const Expected out_of = {experts, d.num_experts, d.hidden_size, d.intermediate_size};
  if (d.has_gate)
    TF_RETURN_IF_ERROR(add_one_by_one(binding.layer, into, "gate_proj", binding.first_gate_proj, d.has_bias));
  TF_RETURN_IF_ERROR(add_one_by_one(binding.layer, into, "up_proj", binding.first_up_proj, d.has_bias));
  return add_one_by_one(binding.layer, out_of, "down_proj", binding.first_down_proj, d.has_bias);
}

ExpertsId WeightTable::experts(int layer, const ExpertsDeclaration& declaration) {
  TF_CHECK(declaration.num_experts_per_tok > 0, declaration.module + ": a router that chooses no experts");
  if (checkpoint_ == nullptr) return declare_experts(layer, declaration);
  ExpertsBinding binding = unbound_experts(layer, declaration);
  if (Status status = bind_experts(declaration, binding); !status.ok()) {
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
