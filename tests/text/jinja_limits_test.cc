// Hostile templates end with an error that names the limit: no deep stack, no runaway loop, no memory.
#include "text/jinja_limits.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <functional>

#include "text/chat_template.h"

namespace tensorfold {
namespace {

std::string repeat(std::string_view text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

/// The error of compiling or rendering `source`, or "rendered: text".
std::string outcome(const std::string& source, const jinja::Limits& limits = {}) {
  const auto compiled = ChatTemplate::parse(source, "t");
  if (!compiled.ok()) return compiled.status().message();
  ChatTemplate::Input input;
  input.messages = Json::array();
  const Result<std::string> text = (*compiled)->render(input, limits);
  return text.ok() ? "rendered: " + *text : text.status().message();
}

/// Runs `body` on a thread with a stack of that size.
void run_with_stack(size_t stack_bytes, const std::function<void()>& body) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, stack_bytes), 0);
  pthread_t thread;
  const auto start = [](void* argument) -> void* {
    (*static_cast<const std::function<void()>*>(argument))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, start, const_cast<std::function<void()>*>(&body)), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kStackBytes = size_t{16} << 20;  // Sanitizers grow every frame.
#else
constexpr size_t kStackBytes = size_t{2} << 20;
#endif

TEST(JinjaLimits, SourceThatNestsTooDeeplyIsRefused) {
  constexpr int kMany = 100'000;
  const std::string sources[] = {"{{ " + repeat("(", kMany),
                                 "{{ " + repeat("[", kMany),
                                 "{{ " + repeat("{1:", kMany),
                                 "{{ " + repeat("(", kMany) + "1" + repeat(")", kMany) + " }}",
                                 "{{ " + repeat("not ", kMany) + "1 }}",
                                 "{{ " + repeat("-", kMany) + "1 }}",
                                 "{{ 1" + repeat("+1", kMany) + " }}",
                                 "{{ a" + repeat(".b", kMany) + " }}",
                                 "{{ a" + repeat("[0]", kMany) + " }}",
                                 "{{ a" + repeat("()", kMany) + " }}",
                                 "{{ a" + repeat("|upper", kMany) + " }}",
                                 "{{ a" + repeat(" if a", kMany) + " }}",
                                 "{{ a" + repeat(" if a else a", kMany) + " }}",
                                 "{{ 1" + repeat(" and 1", kMany) + " }}",
                                 "{{ 1" + repeat(" ** 1", kMany) + " }}",
                                 "{{ f" + repeat("(f", kMany) + " }}",
                                 repeat("{% if 1 %}", kMany),
                                 repeat("{% for x in y %}", kMany),
                                 repeat("{% macro m() %}", kMany),
                                 repeat("{% filter upper %}", kMany),
                                 repeat("{% set x %}", kMany),
                                 repeat("{% with %}", kMany),
                                 "{% set " + repeat("(", kMany) + "a",
                                 "{% for " + repeat("(a,", kMany) + " in b %}"};
  run_with_stack(kStackBytes, [&] {
    for (const std::string& source : sources) {
      EXPECT_NE(outcome(source).find("levels deep"), std::string::npos)
          << source.substr(0, 30) << ": " << outcome(source).substr(0, 200);
    }
  });
}

TEST(JinjaLimits, LongSourceThatDoesNotNestIsFine) {
  constexpr int kMany = 20'000;
  EXPECT_EQ(outcome("{{ 1" + repeat(" ~ 1", 99) + " }}"), "rendered: " + repeat("1", 100));
  EXPECT_EQ(outcome("{% if 0 %}" + repeat("{% elif 0 %}", kMany) + "{% else %}e{% endif %}"), "rendered: e");
  EXPECT_EQ(outcome(repeat("{{ 1 }}", kMany)), "rendered: " + repeat("1", kMany));
  EXPECT_EQ(outcome("{{ [" + repeat("1,", kMany) + "]|length }}"), "rendered: " + std::to_string(kMany));
  EXPECT_EQ(outcome("{{ 1" + repeat(" < 2", 1) + repeat(" != 1 != 2", kMany) + " }}"), "rendered: True");
  EXPECT_EQ(outcome("{{ " + repeat("(", 60) + "1" + repeat(")", 60) + " }}"), "rendered: 1");
}

struct Hostile {
  const char* name;
  const char* source;
  const char* limit;  ///< In the message.
};

const Hostile kHostile[] = {
    {"macro recursion", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "depth limit"},
    {"mutual recursion",
     "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", "depth limit"},
    {"call recursion", "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}",
     "depth limit"},
    {"loop recursion", "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "depth limit"},
    {"three loops",
     "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor "
     "%}{% endfor %}",
     "step limit"},
    {"three loops that filter",
     "{% for a in range(9999) %}{{ range(9999)|select('odd')|list|length }}{% endfor %}{% for a in "
     "range(9999) %}{{ range(9999)|sum }}{% endfor %}",
     "step limit"},
    {"string times", "{{ 'ab' * 10 ** 12 }}", "memory limit"},
    {"string times huge", "{{ 'ab' * 10 ** 30 }}", "memory limit"},
    {"list times", "{{ [1, 2] * 10 ** 18 }}", "memory limit"},
    {"string doubles",
     "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
     "memory limit"},
    {"string doubles by tilde",
     "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
     "memory limit"},
    {"list doubles",
     "{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
     "memory limit"},
    {"replace grows",
     "{% set n = namespace(s='aa') %}{% for i in range(99) %}{% set n.s = n.s|replace('a', 'aa') %}{% endfor "
     "%}",
     "memory limit"},
    {"join grows",
     "{% set n = namespace(s='aa') %}{% for i in range(99) %}{% set n.s = n.s|join(n.s) %}{% endfor %}",
     "memory limit"},
    {"join method grows", "{% set s = 'a' * 10000000 %}{{ s.join(['b'] * 1000) }}", "memory limit"},
    {"printf width", "{{ '%999999999999d' % 1 }}", "memory limit"},
    {"printf star", "{{ '%*d' % (10 ** 12, 1) }}", "memory limit"},
    {"format width", "{{ '{:>999999999999}'.format(1) }}", "memory limit"},
    {"format many", "{% set s = '{0}' * 100000 %}{{ s.format('a' * 1000000) }}", "memory limit"},
    {"center", "{{ 'a'|center(10 ** 12) }}", "memory limit"},
    {"ljust", "{{ 'a'.ljust(10 ** 18, 'é') }}", "memory limit"},
    {"zfill", "{{ 'a'.zfill(10 ** 12) }}", "memory limit"},
    {"expandtabs", "{{ '\t'.expandtabs(10 ** 12) }}", "memory limit"},
    {"indent width", "{{ 'a\nb'|indent(10 ** 12) }}", "memory limit"},
    {"indent many", "{{ ('a\n' * 100000)|indent(100000) }}", "memory limit"},
    {"tojson indent", "{{ [1]|tojson(indent=10 ** 12) }}", "memory limit"},
    {"tojson indent deep",
     "{% set n = namespace(s=[]) %}{% for i in range(500) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ "
     "n.s|tojson(indent=99999) }}",
     "limit"},
    {"tojson deep",
     "{% set n = namespace(s=[]) %}{% for i in range(50000) %}{% set n.s = [n.s] %}{% endfor %}{{ n.s|tojson "
     "}}",
     "depth limit"},
    {"repr deep",
     "{% set n = namespace(s=[]) %}{% for i in range(50000) %}{% set n.s = {'a': n.s} %}{% endfor %}{{ n.s "
     "}}",
     "depth limit"},
    {"repr shared",
     "{% set n = namespace(s=[]) %}{% for i in range(99) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
     "limit"},
    {"equal deep",
     "{% set n = namespace(s=[], t=[]) %}{% for i in range(50000) %}{% set n.s = [n.s] %}{% set n.t = [n.t] "
     "%}{% endfor %}{{ n.s == n.t }}",
     "depth limit"},
    {"equal shared",
     "{% set n = namespace(s=[], t=[]) %}{% for i in range(99) %}{% set n.s = [n.s, n.s] %}{% set n.t = "
     "[n.t, n.t] %}{% endfor %}{{ n.s == n.t }}",
     "step limit"},
    {"compare shared",
     "{% set n = namespace(s=[], t=[]) %}{% for i in range(99) %}{% set n.s = [n.s, n.s] %}{% set n.t = "
     "[n.t, n.t] %}{% endfor %}{{ n.s < n.t }}",
     "step limit"},
    {"hash shared",
     "{% set n = namespace(s=(1,)) %}{% for i in range(99) %}{% set n.s = (n.s, n.s) %}{% endfor %}{{ {n.s: "
     "1} }}",
     "step limit"},
    {"iterator chain",
     "{% set n = namespace(s=[1]) %}{% for i in range(50000) %}{% set n.s = n.s|map('string') %}{% endfor "
     "%}{{ n.s|list }}",
     "depth limit"},
    {"iterator feeds itself",
     "{% set n = namespace() %}{% set n.g = [n]|map(attribute='g')|map('list') %}{{ n.g|list }}{% for i in "
     "range(10 ** 5) %}{% for j in range(10 ** 5) %}{% endfor %}{% endfor %}",
     "step limit"},
    {"batch fill", "{{ [1]|batch(10 ** 12, 0)|list }}", "memory limit"},
    {"slice many", "{{ [1]|slice(10 ** 12)|list|length }}", "limit"},
    {"search", "{% set a = 'a' * 30000000 %}{% set b = 'a' * 10000000 + 'b' %}{{ b in a }}", "step limit"},
    {"output", "{% set a = 'a' * 9999999 %}{% for i in range(99) %}{{ a }}{% endfor %}", "output limit"},
    {"captured output",
     "{% set a = 'a' * 9999999 %}{% set b %}{% for i in range(99) %}{{ a }}{% endfor %}{% endset %}",
     "output limit"},
    {"macro output",
     "{% set a = 'a' * 9999999 %}{% macro m() %}{% for i in range(99) %}{{ a }}{% endfor %}{% endmacro %}{{ "
     "m() }}",
     "output limit"},
    {"many activations",
     "{% macro m() %}{% macro k() %}{% endmacro %}{% endmacro %}{% for a in range(99999) %}{% for b in "
     "range(99999) %}{{ m() }}{% endfor %}{% endfor %}",
     "limit"},
    {"many keys",
     "{% set n = namespace(d={}) %}{% for i in range(99999) %}{% set n.d = dict(n.d, **{i|string: i}) %}{% "
     "endfor %}",
     "step limit"},
    {"range", "{{ range(10 ** 6) }}", "Range too big"},
    {"integers", "{{ 2 ** 2 ** 100 }}", "128 bits"},
    {"power tower", "{{ 9 ** 9 ** 9 }}", "128 bits"},
};

TEST(JinjaLimits, HostileTemplatesReachALimit) {
  jinja::Limits limits;  // The depth, and so the stack, is the default; the rest is smaller, to be quick.
  limits.max_steps = 5'000'000;
  limits.max_memory_bytes = size_t{64} << 20;
  limits.max_output_bytes = size_t{16} << 20;
  run_with_stack(kStackBytes, [&] {
    for (const Hostile& hostile : kHostile) {
      const std::string got = outcome(hostile.source, limits);
      EXPECT_NE(got.find(hostile.limit), std::string::npos) << hostile.name << ": " << got.substr(0, 200);
      EXPECT_EQ(got.find("chat template 't' line "), 0u) << hostile.name << ": " << got.substr(0, 200);
    }
  });
}

TEST(JinjaLimits, CyclesAndDeepValuesAreFreed) {
  // The heap checks at its end that nothing is left.
  run_with_stack(kStackBytes, [] {
    EXPECT_EQ(outcome("{% set n = namespace() %}{% set n.self = n %}{% set n.list = [n, {'n': n}] %}x"),
              "rendered: x");
    EXPECT_EQ(outcome("{% for i in [1] %}{{ loop.changed(loop) }}{% endfor %}"), "rendered: True");
    EXPECT_EQ(outcome("{% set n = namespace() %}{% set n.u = [n]|unique %}{% set n.m = "
                      "[n]|map(attribute='u') %}{{ n.m|list|length }}{{ n.u|list|length }}"),
              "rendered: 11");
    EXPECT_EQ(
        outcome("{% set n = namespace(s=[]) %}{% for i in range(90000) %}{% set n.s = [n.s] %}{% endfor %}x"),
        "rendered: x");
    EXPECT_EQ(outcome("{% set n = namespace(s=1) %}{% for i in range(90000) %}{% set n.s = joiner(n.s) %}{% "
                      "endfor %}x"),
              "rendered: x");
    EXPECT_EQ(outcome("{% set n = namespace(s=[1]) %}{% for i in range(90000) %}{% set n.s = "
                      "n.s|map('string') %}{% endfor %}x"),
              "rendered: x");
    EXPECT_EQ(outcome("{% set n = namespace(s=1) %}{% for i in range(90000) %}{% set n.s = cycler(n.s).next "
                      "%}{% endfor %}x"),
              "rendered: x");
    EXPECT_EQ(
        outcome(
            "{% set n = namespace(s=u) %}{% for i in range(90000) %}{% set n.s = [][n.s] %}{% endfor %}x"),
        "rendered: x");
    EXPECT_EQ(outcome("{% set n = namespace() %}{% for i in range(90000) %}{% set n.s = namespace(s=n.s) "
                      "%}{% endfor %}x"),
              "rendered: x");
    EXPECT_EQ(outcome("{% set n = namespace() %}{% macro m() %}{% endmacro %}{% set n.m = m %}{% set n.f = "
                      "'a'.upper %}{{ n.f() }}"),
              "rendered: A");
  });
}

TEST(JinjaLimits, SmallLimitsAreKept) {
  jinja::Limits limits;
  limits.max_steps = 1000;
  EXPECT_NE(outcome("{% for i in range(2000) %}{% endfor %}", limits).find("step limit"), std::string::npos);
  limits = {};
  limits.max_output_bytes = 10;
  EXPECT_EQ(outcome("0123456789", limits), "rendered: 0123456789");
  EXPECT_NE(outcome("0123456789a", limits).find("output limit"), std::string::npos);
  limits = {};
  limits.max_memory_bytes = 10'000;
  EXPECT_NE(outcome("{{ 'a' * 20000 }}", limits).find("memory limit"), std::string::npos);
  EXPECT_EQ(outcome("{% for i in range(99) %}{{ ('a' * 5000)|length }}{% endfor %}", limits),
            "rendered: " + repeat("5000", 99));
  limits = {};
  limits.max_depth = 10;
  EXPECT_NE(outcome("{{ [[[[[[[[[[[[1]]]]]]]]]]]] }}", limits).find("depth limit"), std::string::npos);
}

}  // namespace
}  // namespace tensorfold
