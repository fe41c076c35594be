// The flags of one command: declared once, read from the command line, the environment and an optional TOML
// file. A flag --kv-memory is also TENSORFOLD_KV_MEMORY and `kv-memory = "2GB"`; the first of the three that
// is there counts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tensorfold {

/// One flag or argument, as help shows it and as its text becomes a value.
struct Flag {
  std::string name;          ///< "kv-memory"; of an argument what it stands for: "MODEL".
  std::string value_name;    ///< "SIZE"; "" for a switch.
  std::string help;          ///< One or two short sentences.
  std::string default_text;  ///< As help shows it; "" shows none.
  bool is_argument = false;  ///< Positional.
  bool is_required = false;
  /// Stores the value; an error says only what is wrong with the text.
  std::function<Status(std::string_view text)> apply;
};

/// Declares flags. Targets hold the defaults, and must live until the command has run.
class Flags {
 public:
  void argument(std::string name, std::string help, std::string& target, bool is_required = true);
  void text(std::string name, std::string value_name, std::string help, std::string& target);
  /// Where the target is 0 and there is a `zero_text`, that is shown as the default.
  void integer(std::string name, std::string help, int64_t& target, int64_t least, int64_t most,
               std::string zero_text = "");
  void integer(std::string name, std::string help, std::optional<int64_t>& target, int64_t least,
               int64_t most);
  /// "128,1024": at least one.
  void integers(std::string name, std::string help, std::vector<int64_t>& target, int64_t least,
                int64_t most);
  void number(std::string name, std::string help, std::optional<double>& target, double least, double most);
  /// A number of bytes: "512MB", "2GB", "1.5GiB". 0 is shown as `zero_text`.
  void bytes(std::string name, std::string help, int64_t& target, std::string zero_text);
  /// A count that may be written with K, M or B: "1.5B".
  void count(std::string name, std::string help, int64_t& target);
  void choice(std::string name, std::string help, std::string& target, std::vector<std::string> allowed);
  void toggle(std::string name, std::string help, bool& target);
  void toggle(std::string name, std::string help, std::optional<bool>& target);

  const std::vector<Flag>& all() const { return flags_; }

 private:
  std::vector<Flag> flags_;
};

/// "2GB" is 2 * 10^9, "2GiB" 2 * 2^30, "4096" itself. kInvalidArgument for anything else, or more than 2^62.
Result<int64_t> parse_bytes(std::string_view text);

/// "1.5B" is 1.5 * 10^9, "135M", "64K", "1000".
Result<int64_t> parse_count(std::string_view text);

/// "1.50 GB", "38.2 MB", "512 B": for people.
std::string shown_bytes(int64_t bytes);

}  // namespace tensorfold
