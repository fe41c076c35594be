// The filters (`x | name(args)`), tests (`x is name(args)`) and global functions of the environment in which
// transformers renders chat templates.
#pragma once

#include <string_view>

#include "text/jinja_value.h"

namespace tensorfold::jinja {

/// A filter or test: `self` is the value on the left. Tests return a value whose truth is the answer.
using Builtin = FunctionObject::Body;

/// nullptr when there is none of that name. Filters of Jinja that cannot be reproduced (random) or that no
/// chat template uses (urlize, ...) exist, and fail with "not supported" when applied.
Builtin find_filter(std::string_view name);
Builtin find_test(std::string_view name);

/// Filters and tests by name at run time, as map, select and reject use them.
Value apply_filter(Run& run, const Value& name, const Value& input, Arguments& arguments);
Value apply_test(Run& run, const Value& name, const Value& input, Arguments& arguments);

/// range, dict, namespace, cycler, joiner, raise_exception; missing for an unknown name.
Value find_global(Run& run, std::string_view name);

/// target.name = value for a namespace; names that begin with an underscore are refused, as transformers
/// does.
void set_namespace_attribute(Run& run, const Value& target, std::string_view name, Value value);

namespace filters {
// The filters, by file. sequence: jinja_filters_sequence.cc; the rest: jinja_filters.cc.
Value batch(Run& run, const Value& self, Arguments& arguments);
Value dictsort(Run& run, const Value& self, Arguments& arguments);
Value first(Run& run, const Value& self, Arguments& arguments);
Value groupby(Run& run, const Value& self, Arguments& arguments);
Value items(Run& run, const Value& self, Arguments& arguments);
Value join(Run& run, const Value& self, Arguments& arguments);
Value last(Run& run, const Value& self, Arguments& arguments);
Value list(Run& run, const Value& self, Arguments& arguments);
Value map(Run& run, const Value& self, Arguments& arguments);
Value max(Run& run, const Value& self, Arguments& arguments);
Value min(Run& run, const Value& self, Arguments& arguments);
Value reject(Run& run, const Value& self, Arguments& arguments);
Value rejectattr(Run& run, const Value& self, Arguments& arguments);
Value reverse(Run& run, const Value& self, Arguments& arguments);
Value select(Run& run, const Value& self, Arguments& arguments);
Value selectattr(Run& run, const Value& self, Arguments& arguments);
Value slice(Run& run, const Value& self, Arguments& arguments);
Value sort(Run& run, const Value& self, Arguments& arguments);
Value sum(Run& run, const Value& self, Arguments& arguments);
Value unique(Run& run, const Value& self, Arguments& arguments);
}  // namespace filters

}  // namespace tensorfold::jinja
