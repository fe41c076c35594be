// Errors as values: Status and Result<T>, the only way a recoverable failure leaves a function.
// A message names the object, what was expected and what was found; bugs use base/check.h instead.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace tensorfold {

/// Why an operation failed. The CLI maps these to its exit codes, the server to HTTP statuses.
enum class StatusCode {
  kOk = 0,
  kInvalidArgument,  ///< The caller's input is wrong (flag, request field, text).
  kCorrupt,          ///< A file's content contradicts its format or another file.
  kNotFound,         ///< A file, model or name does not exist.
  kUnsupported,      ///< Understood, but this program cannot do it exactly.
  kOutOfMemory,      ///< A budget or the machine has too little memory.
  kBusy,             ///< A limit is reached for now (queue full); trying later may succeed.
  kAddressInUse,     ///< The address to listen on is taken.
  kIo,               ///< The operating system refused a read, write or connection.
  kCancelled,        ///< The caller asked for it to stop.
  kInternal,         ///< A backend failed (device fault, NaN logits); the input was fine.
};

/// The word for a code, as used in logs and JSON: "invalid_argument", "corrupt", ...
const char* status_code_name(StatusCode code);

/// Success, or a code with one clear sentence. Cheap to move; copies the message when copied.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {
    TF_CHECK(code != StatusCode::kOk);
  }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  /// The same error with `context: ` put before its message. Ok stays ok.
  Status with_context(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

template <class... Args>
Status make_error(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
Status invalid_argument(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(StatusCode::kInvalidArgument, format, std::forward<Args>(args)...);
}
template <class... Args>
Status corrupt(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(StatusCode::kCorrupt, format, std::forward<Args>(args)...);
}
template <class... Args>
Status not_found(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(StatusCode::kNotFound, format, std::forward<Args>(args)...);
}
template <class... Args>
Status unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(StatusCode::kUnsupported, format, std::forward<Args>(args)...);
}

/// A value, or the Status that says why there is none. value() on an error is a bug (TF_CHECK).
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                                  // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) { TF_CHECK(!status_.ok()); }  // NOLINT

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & {
    TF_CHECK(ok(), status_.message());
    return *value_;
  }
  const T& value() const& {
    TF_CHECK(ok(), status_.message());
    return *value_;
  }
  T&& value() && {
    TF_CHECK(ok(), status_.message());
    return *std::move(value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace tensorfold

/// Returns the Status of `expr` from the enclosing function unless it is ok.
#define TF_RETURN_IF_ERROR(expr)                                    \
  do {                                                              \
    if (::tensorfold::Status tf_status_ = (expr); !tf_status_.ok()) \
      return tf_status_;                                            \
  } while (false)

#define TF_CONCAT_INNER(a, b) a##b
#define TF_CONCAT(a, b) TF_CONCAT_INNER(a, b)

/// TF_ASSIGN_OR_RETURN(auto x, f()): x = value of the Result, or return its Status.
#define TF_ASSIGN_OR_RETURN(lhs, expr)                               \
  auto TF_CONCAT(tf_result_, __LINE__) = (expr);                     \
  if (!TF_CONCAT(tf_result_, __LINE__).ok())                         \
    return TF_CONCAT(tf_result_, __LINE__).status();                 \
  lhs = std::move(TF_CONCAT(tf_result_, __LINE__)).value()
