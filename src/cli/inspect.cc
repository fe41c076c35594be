// `tensorfold inspect PATH`: the tensors of a folder or file, from the headers alone.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include "cli/command.h"
#include "cli/model_flags.h"
#include "formats/safetensors.h"

namespace tensorfold {
namespace {

/// A line of the listing: one tensor, or all of one name and shape, the numbers of layers and experts apart.
struct Row {
  std::string name;  ///< Numbers as '*'.
  std::string dtype;
  std::string shape;
  int64_t count = 0;
  int64_t bytes = 0;
};

/// "model.layers.3.mlp.up_proj.weight" -> "model.layers.*.mlp.up_proj.weight"
std::string without_numbers(std::string_view name) {
  std::string out;
  for (size_t start = 0; start <= name.size();) {
    const size_t end = std::min(name.find('.', start), name.size());
    const std::string_view part = name.substr(start, end - start);
    const bool is_number = !part.empty() && std::all_of(part.begin(), part.end(),
                                                        [](unsigned char c) { return std::isdigit(c) != 0; });
    out += is_number ? "*" : part;
    if (end < name.size()) out += '.';
    start = end + 1;
  }
  return out;
}

std::vector<Row> rows_of(const Checkpoint& checkpoint, bool show_all) {
  std::map<std::string, Row> rows;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const std::string shown = show_all ? name : without_numbers(name);
    const std::string shape = fmt::format("[{}]", fmt::join(tensor.shape, ", "));
    const std::string dtype(dtype_name(tensor.dtype));
    Row& row = rows[fmt::format("{} {} {}", shown, dtype, shape)];
    row.name = shown;
    row.dtype = dtype;
    row.shape = shape;
    ++row.count;
    row.bytes += tensor.bytes;
  }
  std::vector<Row> list;
  for (auto& [key, row] : rows) list.push_back(std::move(row));
  return list;
}

void print_rows(const std::vector<Row>& rows) {
  size_t name_width = 4, shape_width = 5;
  for (const Row& row : rows) {
    name_width = std::max(name_width, row.name.size());
    shape_width = std::max(shape_width, row.shape.size());
  }
  fmt::print("{:>6}  {:<{}}  {:<5}  {:<{}}  {:>10}\n", "count", "name", name_width, "dtype", "shape",
             shape_width, "bytes");
  for (const Row& row : rows)
    fmt::print("{:>6}  {:<{}}  {:<5}  {:<{}}  {:>10}\n", row.count, row.name, name_width, row.dtype,
               row.shape, shape_width, shown_bytes(row.bytes));
}

void print_summary(const Checkpoint& checkpoint) {
  std::map<std::string, int64_t> bytes_of_dtype;
  for (const auto& [name, tensor] : checkpoint.tensors())
    bytes_of_dtype[std::string(dtype_name(tensor.dtype))] += tensor.bytes;
  std::vector<std::string> dtypes;
  for (const auto& [dtype, bytes] : bytes_of_dtype)
    dtypes.push_back(fmt::format("{} {}", dtype, shown_bytes(bytes)));
  fmt::print("{} tensors in {} file{}, {}: {}\n", checkpoint.tensors().size(), checkpoint.num_files(),
             checkpoint.num_files() == 1 ? "" : "s", shown_bytes(checkpoint.total_bytes()),
             fmt::join(dtypes, ", "));
}

Json to_json(const Checkpoint& checkpoint) {
  Json tensors = Json::array();
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    Json entry = Json::object();
    entry.set("name", name);
    entry.set("dtype", dtype_name(tensor.dtype));
    Json shape = Json::array();
    for (const int64_t dim : tensor.shape) shape.push_back(dim);
    entry.set("shape", std::move(shape));
    entry.set("bytes", tensor.bytes);
    entry.set("file", checkpoint.file_name_of(tensor));
    entry.set("offset", tensor.offset);
    tensors.push_back(std::move(entry));
  }
  Json json = Json::object();
  json.set("total_bytes", checkpoint.total_bytes());
  json.set("num_files", checkpoint.num_files());
  json.set("tensors", std::move(tensors));
  return json;
}

/// A file, a folder of safetensors, or a MODEL.
Result<Checkpoint> open_path(const std::string& path) {
  const FileSystem& files = posix_file_system();
  if (files.is_file(path)) return Checkpoint::open_file(path);
  if (files.is_folder(path)) return Checkpoint::open(path);
  TF_ASSIGN_OR_RETURN(const ModelPath model, find_model(path));
  return Checkpoint::open(model.folder);
}

class InspectCommand : public Command {
 public:
  CommandInfo info() const override {
    return {.name = "inspect",
            .summary = "List the tensors of a checkpoint: names, dtypes, shapes, sizes.",
            .details = "  tensorfold inspect demo\n  tensorfold inspect model.safetensors --all"};
  }
  void add_flags(Flags& flags) override {
    flags.argument("PATH", "A .safetensors file, a folder of them, or a MODEL as other commands take it.",
                   path_);
    flags.toggle("all", "One line for each tensor, instead of one for all layers and experts.", all_);
    flags.toggle("json", "Print one JSON object with every tensor.", json_);
  }
  Status run() override {
    TF_ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_path(path_));
    if (json_) return fmt::print("{}\n", dump_json(to_json(checkpoint), {.indent = 2})), Status();
    print_rows(rows_of(checkpoint, all_));
    print_summary(checkpoint);
    return {};
  }

 private:
  std::string path_;
  bool all_ = false;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_inspect_command() { return std::make_unique<InspectCommand>(); }

}  // namespace tensorfold
