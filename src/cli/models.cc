// `tensorfold models`: the families that are computed, and the models in the caches.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "cli/command.h"
#include "cli/environment.h"
#include "engine/families.h"
#include "formats/hf_config.h"

namespace tensorfold {
namespace {

struct CachedModel {
  std::string name;        ///< As other commands take it.
  std::string model_type;  ///< "" when config.json cannot be read.
  std::string problem;     ///< Why not; "" when all is well.
};

CachedModel look_at(const std::string& name, const ModelSearch& search) {
  CachedModel model{.name = name, .model_type = {}, .problem = {}};
  const Result<ModelPath> path = resolve_model(name, search);
  if (!path.ok()) {
    model.problem = "not complete";
    return model;
  }
  const Result<HfConfig> config = read_hf_config(path->folder);
  if (!config.ok())
    model.problem = config.status().message();
  else
    model.model_type = config->model_type;
  if (config.ok() && !is_supported_family(config->model_type)) model.problem = "family not supported";
  return model;
}

/// Names in a folder; none when there is no such folder.
std::vector<std::string> list_folder(const std::string& folder) {
  if (folder.empty()) return {};
  Result<std::vector<std::string>> names = posix_file_system().list(folder);
  return names.ok() ? std::move(names).value() : std::vector<std::string>();
}

std::vector<CachedModel> cached_models() {
  const ModelSearch search = model_search();
  std::vector<CachedModel> models;
  for (const std::string& name : list_folder(search.tensorfold_cache))
    if (posix_file_system().is_file(join_path(join_path(search.tensorfold_cache, name), "config.json")))
      models.push_back(look_at(name, search));
  constexpr std::string_view kPrefix = "models--";
  for (const std::string& folder : list_folder(search.hugging_face_cache)) {
    if (!folder.starts_with(kPrefix)) continue;
    std::string name = folder.substr(kPrefix.size());
    if (const size_t at = name.find("--"); at != std::string::npos)
      name = fmt::format("{}/{}", name.substr(0, at), name.substr(at + 2));
    models.push_back(look_at(name, search));
  }
  return models;
}

void print_models(const std::vector<CachedModel>& models) {
  fmt::print("Families: {}\n", fmt::join(supported_families(), ", "));
  const ModelSearch search = model_search();
  if (models.empty())
    return fmt::print("No models in {} and {}.\n", search.tensorfold_cache, search.hugging_face_cache);
  fmt::print("Models in {} and {}:\n", search.tensorfold_cache, search.hugging_face_cache);
  for (const CachedModel& model : models)
    fmt::print("  {}  {}{}\n", model.name, model.model_type,
               model.problem.empty() ? "" : " (" + model.problem + ")");
}

Json to_json(const std::vector<CachedModel>& models) {
  Json families = Json::array();
  for (const std::string& family : supported_families()) families.push_back(family);
  Json list = Json::array();
  for (const CachedModel& model : models) {
    Json entry = Json::object();
    entry.set("name", model.name);
    entry.set("model_type", model.model_type);
    entry.set("supported", model.problem.empty());
    entry.set("problem", model.problem);
    list.push_back(std::move(entry));
  }
  Json json = Json::object();
  json.set("families", std::move(families));
  json.set("models", std::move(list));
  return json;
}

class ModelsCommand : public Command {
 public:
  CommandInfo info() const override {
    return {.name = "models",
            .summary = "List the supported families and the models in the caches.",
            .details = {}};
  }
  void add_flags(Flags& flags) override { flags.toggle("json", "Print one JSON object.", json_); }
  Status run() override {
    const std::vector<CachedModel> models = cached_models();
    json_ ? fmt::print("{}\n", dump_json(to_json(models), {.indent = 2})) : print_models(models);
    return {};
  }

 private:
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_models_command() { return std::make_unique<ModelsCommand>(); }

}  // namespace tensorfold
