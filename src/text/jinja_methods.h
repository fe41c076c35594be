// Attribute and item access of templates: what `a.b` and `a["b"]` find, methods of Python's types included.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace tensorfold::jinja {

/// object.name, `name` a string: attributes and methods first, then the item under that name. Missing ones
/// are undefined; the mutating methods of lists and mappings are undefined too, and calling them is a
/// failure.
Value get_attribute(Run& run, const Value& object, const Value& name);

/// object[key]: the item first, then, for a string key, the attribute.
Value get_item(Run& run, const Value& object, const Value& key);

/// The attribute proper, `name` a string: nullopt where Python's getattr raises AttributeError.
std::optional<Value> find_attribute(Run& run, const Value& object, const Value& name);

/// A function's parameters, to sort the arguments of a call into.
struct Signature {
  std::string_view function;  ///< Name in messages, with "()".
  std::vector<std::string_view> parameters;
  size_t num_required = 0;  ///< The first ones.
  bool takes_more = false;  ///< Further positional arguments are allowed.
};

/// One value per parameter, missing where not given, then further positional arguments. Fails, in Python's
/// words, on missing, surplus or unknown arguments.
std::vector<Value> bind(Run& run, const Signature& signature, Arguments& arguments);

/// The methods of a string, found by name, or nullptr.
FunctionObject::Body find_string_method(std::string_view name);

/// text.replace(from, to, limit), without a limit when that is negative.
std::string replace_text(Run& run, std::string_view text, std::string_view from, std::string_view to,
                         int64_t limit);

}  // namespace tensorfold::jinja
