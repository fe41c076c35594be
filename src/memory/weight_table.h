// How a model family names the weights it needs: by the checkpoint's own names, with the shapes its config
// implies. Each is looked up and checked as it is declared; the result is the manifest.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "formats/quant_mlx.h"
#include "formats/quantization_config.h"
#include "formats/safetensors.h"
#include "memory/manifest.h"

namespace tensorfold {

/// A matrix to bind. `module` is its path without the prefix that Hugging Face and MLX write differently
/// (canonical_module_name): "layers.3.self_attn.k_proj"; its `.weight` (and `.scales`, `.biases`) are looked
/// up.
struct LinearDeclaration {
  std::string module;
  int64_t out = 0;
  int64_t in = 0;
  bool has_bias = false;     ///< `.bias` [out] must exist.
  bool allows_bare = false;  ///< The tensor may have the module's own name, without `.weight`.
};

/// Rows of a matrix, taken in pieces at equal distances and put one after the other.
struct RowPieces {
  int64_t first_row = 0;
  int64_t num_pieces = 1;
  int64_t piece_rows = 0;   ///< Consecutive rows.
  int64_t stride_rows = 0;  ///< From piece to piece; counts where there are several.

  int64_t num_rows() const { return num_pieces * piece_rows; }
};

/// The experts of a layer, in any of these spellings below `module` ("layers.3.mlp"), each plain or
/// quantized:
///   switch_mlp.{gate_proj,up_proj,down_proj}  stacked [X, out, in] (MLX)
///   switch_mlp.{fc1,fc2}                      the same without gates: up and down
///   experts.{gate_proj,up_proj,down_proj}     stacked [X, out, in], with or without `.weight`
///   experts.{gate_up_proj,down_proj}          stacked, gate rows before up rows, with or without `.weight`
///   experts.N.{gate_proj,up_proj,down_proj}   one by one (Hugging Face)
/// and where the family interleaves gate and up (GPT-OSS):
///   experts.{gate_up_proj,down_proj}          [X, in, out], columns gate, up, gate, ...
///   experts.{gate_up_proj,down_proj}_blocks   MXFP4 [X, out, in/32, 16], rows gate, up, gate, ...
///   experts.{gate_up_proj,down_proj}_scales   of those, [X, out, in/32]
/// Biases are `.bias` beside the `.weight`s, or `gate_up_proj_bias` and `down_proj_bias`.
struct ExpertsDeclaration {
  std::string module;
  int64_t num_experts = 0;
  int64_t hidden_size = 0;  ///< What the experts read and write: E, or a latent size.
  int64_t intermediate_size = 0;
  bool has_gate = true;
  bool has_bias = false;
  bool is_interleaved = false;
  int64_t num_experts_per_tok = 0;  ///< What the layer's router chooses: for the backend to check. Above 0.
  int64_t num_groups = 1;           ///< The same.
};

/// What a model wants to find, as it declared it to a table without a checkpoint.
struct DeclaredWeight {
  enum class Kind : uint8_t { kLinear, kExperts, kVector, kConvolution };
  Kind kind = Kind::kLinear;
  int layer = 0;
  std::string name = {};  ///< Module of a linear or of experts ("layers.3.mlp"); else the tensor. No prefix.
  std::string projection = {};  ///< Of experts: gate_proj, up_proj or down_proj.
  int64_t num_experts = 0;
  int64_t out = 0;  ///< Or the size of a vector, or the channels of a convolution.
  int64_t in = 0;   ///< Or the taps of a convolution.
  bool has_bias = false;
  bool is_interleaved = false;
  float added = 0;                  ///< Of a vector, when it is read.
  std::vector<int64_t> shape = {};  ///< Of an array (WeightTable::array); else empty.
};

/// Makes a manifest. Errors are collected, not returned: status() is the first of them, and after one the
/// handles mean nothing. Messages read "qwen3: layer 3 k_proj: shape [1024, 2048], expected [512, 2048]
/// (model-00002.safetensors)". One thread.
class WeightTable {
 public:
  /// Both must outlive the table, and the checkpoint the manifest.
  WeightTable(std::string family, const Checkpoint& checkpoint, const QuantizationConfig& quantization);

  /// A table without a checkpoint: every declaration succeeds, as bf16, and is noted. Says of optional
  /// tensors that they are absent, and of every shape [1, 1, 1].
  explicit WeightTable(std::string family);
  std::span<const DeclaredWeight> declared() const { return declared_; }

  /// Whether the checkpoint holds the tensor (prefix left out): for ties and optional tensors.
  bool has_tensor(std::string_view name) const;

  /// Its shape; empty where there is no such tensor.
  std::vector<int64_t> shape_of(std::string_view name) const;

  /// A matrix; packed iff its `.scales` exist.
  LinearId linear(int layer, const LinearDeclaration& declaration);

  /// Rows of a matrix without a bias, as a matrix of their own: where several projections are stored as one.
  LinearId linear_rows(int layer, const LinearDeclaration& whole, const RowPieces& rows);

  /// A vector [size], kept as f32, with `added` added to each element: norm weights, sinks.
  VectorId vector(int layer, const std::string& name, int64_t size, float added = 0.0f);

  /// An array of another shape, leased as f32 [number of elements].
  VectorId array(int layer, const std::string& name, const std::vector<int64_t>& shape);

  /// A depthwise convolution [channels, 1, taps] (Hugging Face) or [channels, taps, 1] (MLX), leased as
  /// [taps, channels] f32.
  VectorId convolution(int layer, const std::string& name, int64_t channels, int64_t taps);

  ExpertsId experts(int layer, const ExpertsDeclaration& declaration);

  /// Mean of a tensor of bf16, f16 or f32, for what only the values tell: these are read at once, so it is
  /// for small ones. 0 after an error, and without a checkpoint.
  double mean(const std::string& name);

  /// Refuses a checkpoint that holds `name`: the config says that it ends before ("num_hidden_layers = 3").
  void expect_absent(const std::string& name, std::string_view because);

  const Status& status() const { return status_; }
  const Manifest& manifest() const { return manifest_; }

 private:
  /// A matrix, or equal matrices stacked on a leading axis, as the checkpoint has it.
  struct Stored {
    const TensorInfo* weight = nullptr;
    const TensorInfo* scales = nullptr;
    const TensorInfo* biases = nullptr;
    LinearSpec spec;  ///< Of one matrix.
    int64_t num_matrices = 1;
    bool is_input_major = false;
  };
  /// What a lookup expects: num_matrices 0 is a plain matrix without a leading axis.
  struct Expected {
    std::string module;
    int64_t num_matrices = 0;
    int64_t out = 0;
    int64_t in = 0;
    bool is_interleaved = false;  ///< GPT-OSS: input-major floats, or MXFP4 blocks.
    bool allows_bare = false;     ///< As LinearDeclaration.
  };
  /// Which rows of which of the stacked matrices a binding takes.
  struct RowRange {
    int64_t matrix = 0;
    int64_t first_row = 0;
    int64_t num_rows = 0;
    int64_t step = 1;        ///< From piece to piece.
    int64_t piece_rows = 1;  ///< Consecutive rows.
  };
  /// Modules of stacked experts whose gate and up are apart.
  struct SeparateNames {
    std::string gate, up, down;
  };
  /// Where a stacked projection of the experts is.
  struct StackedProjection {
    Expected expected;
    RowRange rows;
    std::string bias;  ///< Name of the tensor [X, all rows]; empty: none.
  };

  LinearId declare_linear(int layer, const LinearDeclaration& declaration);
  ExpertsId declare_experts(int layer, const ExpertsDeclaration& declaration);
  VectorId declare_vector(DeclaredWeight declaration);
  Result<const TensorInfo*> find(std::string_view name) const;
  Result<const TensorInfo*> require(std::string_view name) const;
  Result<Stored> find_matrix(const Expected& expected) const;
  Result<LinearSpec> describe_packed(const Stored& stored, const Expected& expected) const;
  Result<TensorSlice> find_floats(std::string_view name, const std::vector<int64_t>& shape) const;
  Status expect_no_bias(const std::string& module) const;
  LinearId add(int layer, Result<LinearBinding> binding);
  Result<LinearBinding> bind_linear(const LinearDeclaration& declaration) const;
  Result<LinearBinding> bind_rows(const LinearDeclaration& whole, const RowPieces& rows) const;
  Result<double> read_mean(const std::string& name) const;
  static bool fits_mxfp4_words(const PackedModule& module, const Expected& expected);
  Status bind_experts(const ExpertsDeclaration& declaration, ExpertsBinding& binding);
  Status bind_separate_experts(const ExpertsDeclaration& declaration, const SeparateNames& names,
                               ExpertsBinding& binding);
  Status bind_fused_experts(const ExpertsDeclaration& declaration, ExpertsBinding& binding);
  Status add_stacked(int layer, const StackedProjection& projection, int32_t& first);
  Status add_one_by_one(int layer, const Expected& expected, std::string_view projection, int32_t& first,
                        bool has_bias);
  Result<Stored> find_blocks(const Expected& expected) const;
  Result<Stored> find_input_major(const Expected& expected) const;
  static TensorSlice row_slice(const TensorInfo* tensor, const Stored& stored, const RowRange& rows);
  static LinearBinding rows_of(const Stored& stored, const RowRange& rows);
  void note(Status status);

  const Checkpoint* checkpoint_ = nullptr;
  const QuantizationConfig* quantization_ = nullptr;
  std::vector<DeclaredWeight> declared_;  ///< Without a checkpoint.
  /// Canonical name -> tensors that have it: more than one is an error once it is asked for.
  std::multimap<std::string_view, const TensorInfo*, std::less<>> by_name_;
  Manifest manifest_;
  Status status_;
};

}  // namespace tensorfold
