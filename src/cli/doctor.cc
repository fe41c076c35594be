// `tensorfold doctor`: what this machine is, and whether it can be trusted with exact replies.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "cli/command.h"
#include "engine/bench.h"
#include "engine/self_check.h"

namespace tensorfold {
namespace {

struct Diagnosis {
  MachineInfo machine;
  std::vector<CudaCheck> cuda;
  std::vector<IsaCheck> isas;
  double read_gb_per_s = 0;
};

bool is_healthy(const IsaCheck& check) { return check.status.ok() && check.num_different == 0; }

bool is_healthy(const CudaCheck& check) { return check.status.ok() && check.rows.num_different == 0; }

Diagnosis diagnose() {
  Diagnosis d;
  d.machine = describe_machine();
  d.isas = check_cpu_bits();
  d.cuda = check_cuda_devices();
  const Result<double> bytes_per_s = measure_read_bandwidth(d.machine.num_cpus);
  d.read_gb_per_s = bytes_per_s.ok() ? *bytes_per_s / 1e9 : 0;
  return d;
}

Json to_json(const Diagnosis& d) {
  Json isas = Json::array();
  for (const IsaCheck& check : d.isas) {
    Json entry = Json::object();
    entry.set("isa", check.isa);
    entry.set("arithmetic_id", check.arithmetic_id);
    entry.set("num_outputs", check.num_outputs);
    entry.set("num_different", check.num_different);
    entry.set("ok", is_healthy(check));
    isas.push_back(std::move(entry));
  }
  Json cuda = Json::array();
  for (const CudaCheck& check : d.cuda) {
    Json entry = Json::object();
    entry.set("name", check.name);
    entry.set("compute_capability", check.compute_capability);
    entry.set("total_bytes", check.total_bytes);
    entry.set("free_bytes", check.free_bytes);
    entry.set("arithmetic_id", check.arithmetic_id);
    entry.set("num_outputs", check.rows.num_outputs);
    entry.set("num_different", check.rows.num_different);
    entry.set("ok", is_healthy(check));
    if (!check.status.ok()) entry.set("refusal", check.status.message());
    cuda.push_back(std::move(entry));
  }
  Json json = Json::object();
  json.set("cpu", d.machine.cpu);
  json.set("num_cpus", d.machine.num_cpus);
  json.set("total_bytes", d.machine.total_bytes);
  json.set("free_bytes", d.machine.free_bytes);
  json.set("read_gb_per_s", d.read_gb_per_s);
  json.set("isas", std::move(isas));
  json.set("cuda", std::move(cuda));
  return json;
}

void print_diagnosis(const Diagnosis& d) {
  fmt::print("cpu      {}, {} usable\n", d.machine.cpu, d.machine.num_cpus);
  fmt::print("memory   {} free of {}, read at {:.1f} GB/s by all cores\n", shown_bytes(d.machine.free_bytes),
             shown_bytes(d.machine.total_bytes), d.read_gb_per_s);
  for (const IsaCheck& check : d.isas) {
    if (!check.status.ok())
      fmt::print("{:<14} cannot run: {}\n", check.isa, check.status.message());
    else if (check.num_different > 0)
      fmt::print("{:<14} WRONG: {} of {} results differ from the definition\n", check.isa,
                 check.num_different, check.num_outputs);
    else
      fmt::print("{:<14} ok: {} results equal the definition to the bit ({})\n", check.isa, check.num_outputs,
                 check.arithmetic_id);
  }
  for (size_t i = 0; i < d.cuda.size(); ++i) {
    const CudaCheck& check = d.cuda[i];
    fmt::print("cuda:{:<9} {}, {} free of {}\n", i, check.name, shown_bytes(check.free_bytes),
               shown_bytes(check.total_bytes));
    if (!check.status.ok())
      fmt::print("{:<14} cannot run: {}\n", "", check.status.message());
    else if (check.rows.num_different > 0)
      fmt::print("{:<14} WRONG: results depend on the rows of a pass: {}\n", "", check.rows.differing);
    else
      fmt::print("{:<14} ok: {} results do not depend on the rows of a pass ({})\n", "", check.rows.num_outputs,
                 check.arithmetic_id);
  }
}

class DoctorCommand : public Command {
 public:
  CommandInfo info() const override {
    return {.name = "doctor",
            .summary = "Check this machine: CPU, GPU, memory, and that each gives the bits it must.",
            .details = {}};
  }
  void add_flags(Flags& flags) override { flags.toggle("json", "Print one JSON object.", json_); }

  Status run() override {
    const Diagnosis d = diagnose();
    json_ ? fmt::print("{}\n", dump_json(to_json(d), {.indent = 2})) : print_diagnosis(d);
    if (d.isas.empty())
      return unsupported(
          "this CPU has none of the instruction sets that TensorFold needs (AVX2 with FMA, or NEON)");
    if (!std::ranges::all_of(d.isas, [](const IsaCheck& check) { return is_healthy(check); }) ||
        std::ranges::any_of(d.cuda, [](const CudaCheck& check) { return check.rows.num_different > 0; }))
      return make_error(StatusCode::kInternal,
                        "the check of bits failed; do not trust replies of this machine");
    return {};
  }

 private:
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_doctor_command() { return std::make_unique<DoctorCommand>(); }

}  // namespace tensorfold
