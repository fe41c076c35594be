// From a MODEL argument to a folder of checkpoint files on this machine. Downloads are not done here.
// Layout of the Hugging Face cache: huggingface_hub, "Manage your cache" (models--ORG--NAME/refs, snapshots).
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "formats/file.h"

namespace tensorfold {

/// Where models are looked for. The CLI fills it from flags and environment.
struct ModelSearch {
  std::string
      tensorfold_cache;  ///< Folder of model folders; default ~/.cache/tensorfold. Empty: not looked at.
  std::string
      hugging_face_cache;  ///< The `hub` folder; default ~/.cache/huggingface/hub. Empty: not looked at.
};

/// A model folder: one with a config.json.
struct ModelPath {
  std::string folder;  ///< As the files are opened by.
  std::string name;    ///< What to call the model: "SmolLM2-135M-Instruct", "org/name".
};

/// `model` is, in this order: a folder; the name of a folder in the TensorFold cache; a Hugging Face repo id
/// (`org/name`) whose `main` snapshot is in the Hugging Face cache. kNotFound lists every place that was
/// looked at and what was wrong with it.
Result<ModelPath> resolve_model(std::string_view model, const ModelSearch& search,
                                const FileSystem& files = posix_file_system());

}  // namespace tensorfold
