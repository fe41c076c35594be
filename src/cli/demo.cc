// `tensorfold demo`: a chat with the demo model.
#include <utility>

#include "cli/command.h"
#include "cli/run.h"

namespace tensorfold {
namespace {

class DemoCommand : public Command {
 public:
  DemoCommand() { flags_.model.model = "demo"; }

  CommandInfo info() const override {
    return {.name = "demo",
            .summary = "Chat with the demo model, SmolLM2-135M-Instruct.",
            .details =
                "The same as 'tensorfold run demo'. 'make demo' fetches the model (95 MB).\n"
                "'tensorfold demo create' makes toy models of any size instead."};
  }
  void add_flags(Flags& flags) override { add_run_flags(flags, flags_); }
  Status run() override { return run_by_flags(flags_); }

 private:
  RunFlags flags_;
};

}  // namespace

std::unique_ptr<Command> make_demo_command() { return std::make_unique<DemoCommand>(); }

}  // namespace tensorfold
