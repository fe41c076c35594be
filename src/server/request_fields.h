// Reads the fields of a JSON request one by one, each with its range, and knows at the end which nobody asked
// for. Owns the sentences that a client reads about a wrong field; what the fields mean is openai_schema's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace tensorfold {

/// What is wrong with a request: `param` is the field's name, or "" where it is no single field's fault.
struct FieldError {
  std::string param;
  std::string message;
};

/// A view of one request object. Only the first error is kept; after it, reads go on and return defaults, so
/// that callers need not check in between. A field that is absent or null has its default. One thread;
/// `object` must be a JSON object and outlive the reader.
class RequestFields {
 public:
  explicit RequestFields(const Json& object) : object_(object) {}

  /// The field as it is, or nullptr when absent or null. Counts as read.
  const Json* take(std::string_view name);

  bool boolean(std::string_view name, bool fallback);
  std::string text(std::string_view name, std::string_view fallback);
  std::optional<int64_t> integer(std::string_view name, int64_t least, int64_t most);
  /// Least and most themselves are allowed.
  std::optional<double> number(std::string_view name, double least, double most);

  /// A field that this server does not apply: accepted where it has one of the `neutral` values (JSON texts;
  /// numbers are compared by value), otherwise an error that says so.
  void unsupported(std::string_view name, const std::vector<std::string>& neutral);

  /// Accepts a field and does nothing with it, because it cannot change a reply.
  void ignore(std::string_view name) { take(name); }

  void fail(std::string_view param, std::string message);

  /// Adds an error for the first field that was never read, with the nearest name that was.
  void refuse_unread();

  const std::optional<FieldError>& error() const { return error_; }

 private:
  const Json& object_;
  std::vector<std::string> known_;
  std::optional<FieldError> error_;
};

/// A value as a message shows it: its JSON, cut after some 60 bytes.
std::string shown(const Json& value);

}  // namespace tensorfold
