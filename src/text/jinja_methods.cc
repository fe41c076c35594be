// Attribute access, argument binding, and the methods of mappings and lists.
#include "text/jinja_methods.h"

#include <algorithm>
#include <optional>

#include "text/jinja_interpreter.h"
#include "text/jinja_ops.h"
#include "text/jinja_text.h"

namespace tensorfold::jinja {
namespace {

struct Method {
  std::string_view name;
  FunctionObject::Body body;
};
template <size_t N>
FunctionObject::Body find_method(const Method (&methods)[N], std::string_view name) {
  const auto* at =
      std::find_if(std::begin(methods), std::end(methods), [&](const Method& m) { return m.name == name; });
  return at != std::end(methods) ? at->body : nullptr;
}

Value view(Run& run, const Value& self, Arguments& arguments, std::string_view name,
           DictViewObject::Part part) {
  bind(run, {name, {}}, arguments);
  return run.failed() ? Value() : run.make<DictViewObject>(self, part);
}
Value dict_keys(Run& run, const Value& self, Arguments& arguments) {
  return view(run, self, arguments, "keys", DictViewObject::Part::kKeys);
}
Value dict_values(Run& run, const Value& self, Arguments& arguments) {
  return view(run, self, arguments, "values", DictViewObject::Part::kValues);
}
Value dict_items(Run& run, const Value& self, Arguments& arguments) {
  return view(run, self, arguments, "items", DictViewObject::Part::kItems);
}

Value dict_get(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"get", {"", ""}, 1}, arguments);
  if (run.failed()) return Value();
  const Value* found = dict_find(run, self.as<DictObject>(), args[0]);
  if (found != nullptr) return *found;
  return args[1].is_missing() ? Value::none() : args[1];
}

/// copy() of a mapping, list or namespace value that nobody can change is the value.
Value copy(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"copy", {}}, arguments);
  return self;
}

/// dict.fromkeys(iterable, value=None)
Value dict_fromkeys(Run& run, const Value&, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"fromkeys", {"", ""}, 1}, arguments);
  if (run.failed()) return Value();
  DictBuilder builder(run);
  for (const Value& key : to_vector(run, args[0]))
    builder.set(key, args[1].is_missing() ? Value::none() : args[1]);
  return builder.finish();
}

Value sequence_index(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"index", {"", "", ""}, 1}, arguments);
  if (run.failed()) return Value();
  const auto& items = self.as_sequence();
  const Int size = static_cast<Int>(items.size());
  const auto place = [&](const Value& bound, Int otherwise) {
    if (bound.is_missing()) return otherwise;
    const Int at = need_index(run, bound, "index()");
    return std::clamp(at < 0 ? at + size : at, Int{0}, size);
  };
  const Int end = place(args[2], size);
  for (Int i = place(args[1], 0); i < end && !run.failed(); ++i) {
    if (equal(run, items[static_cast<size_t>(i)], args[0])) return Value::integer(i);
  }
  return run.fail(fmt::format("{} is not in {}", repr(run, args[0]), type_name(self)));
}

Value sequence_count(Run& run, const Value& self, Arguments& arguments) {
  const std::vector<Value> args = bind(run, {"count", {""}, 1}, arguments);
  if (run.failed()) return Value();
  Int count = 0;
  for (const Value& item : self.as_sequence()) count += equal(run, item, args[0]) ? 1 : 0;
  return Value::integer(count);
}

Value cycler_next(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"next", {}}, arguments);
  auto& cycler = self.as<CyclerObject>();
  const Value current = cycler.items[cycler.position];
  cycler.position = (cycler.position + 1) % cycler.items.size();
  return current;
}
Value cycler_reset(Run& run, const Value& self, Arguments& arguments) {
  bind(run, {"reset", {}}, arguments);
  self.as<CyclerObject>().position = 0;
  return Value::none();
}

constexpr Method kDictMethods[] = {{"items", dict_items}, {"keys", dict_keys}, {"values", dict_values},
                                   {"get", dict_get},     {"copy", copy},      {"fromkeys", dict_fromkeys}};
constexpr Method kListMethods[] = {{"index", sequence_index}, {"count", sequence_count}, {"copy", copy}};
constexpr Method kTupleMethods[] = {{"index", sequence_index}, {"count", sequence_count}};
constexpr Method kCyclerMethods[] = {{"next", cycler_next}, {"reset", cycler_reset}};

constexpr std::string_view kDictMutators[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kListMutators[] = {"append", "clear",  "pop",  "reverse",
                                              "insert", "extend", "sort", "remove"};

template <size_t N>
bool is_one_of(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

/// What Python's object model would show and the sandbox hides.
bool is_unsafe(const Value& object, std::string_view name) {
  switch (object.kind()) {
    case Kind::kNamespace:
      return name == "__class__";
    case Kind::kDict:
      if (is_one_of(kDictMutators, name)) return true;
      break;
    case Kind::kList:
      if (is_one_of(kListMutators, name)) return true;
      break;
    default:
      break;
  }
  constexpr std::string_view kInternals[] = {
      "__class__", "__doc__",          "__init__",          "__dir__",          "__eq__",    "__hash__",
      "__repr__",  "__str__",          "__new__",           "__reduce__",       "__len__",   "__iter__",
      "__dict__",  "__getattribute__", "__init_subclass__", "__subclasshook__", "__sizeof__"};
  return is_one_of(kInternals, name);
}

Value unsafe(Run& run, const Value& object, const Value& name) {
  return run.undefined(fmt::format("access to attribute {} of {} object is unsafe.",
                                   string_repr(name.as_string()), string_repr(type_name(object))));
}

std::optional<Value> method(Run& run, const Value& object, FunctionObject::Body body) {
  if (body == nullptr) return std::nullopt;
  return run.function("method", body, object);
}

}  // namespace

std::optional<Value> find_attribute(Run& run, const Value& object, const Value& key) {
  const std::string& name = key.as_string();
  if (is_unsafe(object, name)) return unsafe(run, object, key);
  switch (object.kind()) {
    case Kind::kString:
      return method(run, object, find_string_method(name));
    case Kind::kDict:
      return method(run, object, find_method(kDictMethods, name));
    case Kind::kList:
      return method(run, object, find_method(kListMethods, name));
    case Kind::kTuple:
      if (static_cast<SequenceObject&>(*object.object()).is_group && (name == "grouper" || name == "list")) {
        return object.as_sequence()[name == "list" ? 1 : 0];
      }
      return method(run, object, find_method(kTupleMethods, name));
    case Kind::kNamespace: {
      const auto& attributes = object.as<NamespaceObject>();
      const Value* value =
          run.step(static_cast<int64_t>(attributes.attributes.size() / 8)) ? attributes.find(name) : nullptr;
      return value != nullptr ? std::optional<Value>(*value) : std::nullopt;
    }
    case Kind::kFunction:
      // `dict.fromkeys` is the one attribute of a function that templates may use.
      if (object.as<FunctionObject>().name != "dict" || name != "fromkeys") return std::nullopt;
      return run.function("fromkeys", dict_fromkeys);
    case Kind::kRange: {
      const auto& range = object.as<RangeObject>();
      if (name == "start") return Value::integer(range.start);
      if (name == "stop") return Value::integer(range.stop);
      if (name == "step") return Value::integer(range.step);
      return std::nullopt;
    }
    case Kind::kCycler:
      if (name == "current") return object.as<CyclerObject>().items[object.as<CyclerObject>().position];
      return method(run, object, find_method(kCyclerMethods, name));
    case Kind::kLoop:
      return loop_attribute(run, object, name);
    case Kind::kMacro:
      return macro_attribute(run, object, name);
    default:
      return std::nullopt;
  }
}

namespace {

Value undefined_item(Run& run, const Value& object, const Value& key) {
  if (key.is_string() || key.is_number() || key.is_none()) return run.undefined_member(object, key);
  return run.undefined(fmt::format("{} object has no element {}", type_name(object), repr(run, key)));
}

}  // namespace

Value get_attribute(Run& run, const Value& object, const Value& name) {
  if (object.is_undefined()) return run.fail_undefined(object);
  if (const std::optional<Value> attribute = find_attribute(run, object, name)) return *attribute;
  if (object.is(Kind::kDict)) {
    if (const Value* value = object.as<DictObject>().find(name.as_string())) return *value;
  }
  return run.undefined_member(object, name);
}

Value get_item(Run& run, const Value& object, const Value& key) {
  if (object.is_undefined()) return run.fail_undefined(object);
  if (const std::optional<Value> item = try_item(run, object, key)) return *item;
  if (run.failed()) return Value();
  if (key.is_string()) {
    if (const std::optional<Value> attribute = find_attribute(run, object, key)) return *attribute;
  }
  return undefined_item(run, object, key);
}

std::vector<Value> bind(Run& run, const Signature& signature, Arguments& arguments) {
  const size_t count = signature.parameters.size();
  std::vector<Value> values = std::move(arguments.positional);
  if (values.size() > count && !signature.takes_more) {
    run.fail(fmt::format("{}() takes at most {} argument(s) ({} given)", signature.function, count,
                         values.size()));
  }
  const size_t num_positional = values.size();
  if (values.size() < count) values.resize(count);
  for (auto& [name, value] : arguments.keywords) {
    const auto at = name.empty() ? signature.parameters.end()
                                 : std::find(signature.parameters.begin(), signature.parameters.end(), name);
    if (at == signature.parameters.end()) {
      run.fail(fmt::format("{}() got an unexpected keyword argument '{}'", signature.function, name));
      break;
    }
    const size_t index = static_cast<size_t>(at - signature.parameters.begin());
    if (index < num_positional) {
      run.fail(fmt::format("{}() got multiple values for argument '{}'", signature.function, name));
      break;
    }
    values[index] = std::move(value);
  }
  for (size_t i = 0; i < signature.num_required; ++i) {
    if (!values[i].is_missing()) continue;
    run.fail(fmt::format("{}() missing required argument {}", signature.function, i + 1));
    break;
  }
  return values;
}

}  // namespace tensorfold::jinja
