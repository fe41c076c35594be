// A model folder in memory: family, weights on a backend, tokenizer, template and defaults. Immutable once
// loaded.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "formats/hf_config.h"
#include "memory/weights.h"
#include "models/block_drafter.h"
#include "models/model.h"
#include "ops/ops.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tensorfold {

struct LoadOptions {
  /// "cpu", "cuda" (the first device), "cuda:N", or "auto": a CUDA device where there is one that the build
  /// can use.
  std::string device = "cpu";
  CudaOptions cuda = {};       ///< How the cuda backend is made; its `device` is taken from `device` above.
  int num_threads = 0;         ///< 0: all usable CPUs.
  CpuIsa isa = CpuIsa::kBest;  ///< Tests and benchmarks hold the backend to a lesser set.
  bool use_reference_ops = false;  ///< Tests: the definition instead of the kernels.
  bool compute_f32 = false;        ///< No rounding to bf16 anywhere (`--compute f32`).
  bool need_tokenizer = true;      ///< false: a folder without tokenizer.json loads (eval --ids, toy models).
  /// Length that the angles of `dynamic` and `longrope` rope take for every row, whatever its own: give the
  /// engine's context. 0: max_position_embeddings. Beyond that only `dynamic` goes.
  int64_t context_tokens = 0;
  bool with_draft_head = false;  ///< The checkpoint's own head for drafts (MTP) is loaded too, if it has one.
  /// A smaller model with the same tokenizer, or a block drafter made for this model; empty: none.
  std::string draft_folder = {};
  LoadProgress progress = {};  ///< May be empty.
};

/// A model that drafts for another, on its ops: either of the two kinds.
struct LoadedDraftModel {
  std::string name;
  std::unique_ptr<Model> model;                 ///< A smaller one with the same tokenizer.
  std::unique_ptr<BlockDrafter> block_drafter;  ///< Made for the target (DFlash).
  std::unique_ptr<Weights> weights;
};

struct LoadedModel {
  std::string folder;
  std::string name;  ///< Last component of the folder: the model id of the endpoint.
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Model> model;
  std::unique_ptr<Weights> weights;
  std::unique_ptr<LoadedDraftModel> draft_model;  ///< Null without LoadOptions::draft_folder.
  std::shared_ptr<const Tokenizer> tokenizer;     ///< Null without tokenizer.json.
  std::shared_ptr<const ModelChat> chat;  ///< Templates and their special tokens; null where there are none.
  GenerationConfig generation;
};

/// Tokens that a reply may have: those that the tokenizer knows, ids from 0 on. Embeddings are padded beyond
/// them, and a padding row must not be drawn (specs/qwen.md §7). Without a tokenizer, all rows.
int64_t num_drawable_tokens(const LoadedModel& model);

/// Reads config, tokenizer, template and weights of a checkpoint folder, in this order, so that what is cheap
/// to find wrong is found before the weights are read. The message of an error names the file; kNotFound
/// where there is no such folder, kOutOfMemory where the weights do not fit.
Result<std::shared_ptr<LoadedModel>> load_model(const std::string& folder, const LoadOptions& options);

}  // namespace tensorfold
