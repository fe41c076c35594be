// Encoding and decoding speed of published tokenizers on one core, in bytes of text per second of CPU time.
//   build/cpu/bench/text_tokenizer_bench [benchmark flags] [TEXT FILE...]      default: the Markdown of this
//   project
// `encode` meets words it has seen in the previous round; `encode_first` has a fresh tokenizer each round, so
// every word is merged once. Texts are encoded a megabyte at a time, as a long prompt would be. Each result
// is checked once: the decoded ids must be the text.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/support/test_paths.h"
#include "tests/support/zstd_file.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace tensorfold {
namespace {

constexpr size_t kChunkBytes = 1 << 20;

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

std::string default_text() {
  std::string text;
  for (const char* folder : {"", "/docs", "/../shared", "/../shared/specs"}) {
    const std::filesystem::path path = std::string(kSourceDir) + folder;
    if (!std::filesystem::is_directory(path)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.path().extension() == ".md") text += read_text(entry.path());
    }
  }
  return text;
}

std::shared_ptr<const Tokenizer> load(const std::string& name) {
  static std::map<std::string, std::string> files;
  std::string& json = files[name];
  if (json.empty()) {
    json = read_zstd_file(std::string(kSharedData) + "/tokenizers/" + name + "/tokenizer.json.zst").value();
  }
  return Tokenizer::parse(json).value();
}

size_t encode_all(const Tokenizer& tokenizer, std::string_view text) {
  size_t num_tokens = 0;
  for (size_t pos = 0; pos < text.size(); pos += kChunkBytes) {
    num_tokens += tokenizer.encode(text.substr(pos, kChunkBytes), false).size();
  }
  return num_tokens;
}

void report(benchmark::State& state, std::string_view text, size_t num_tokens) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(state.iterations() * num_tokens), benchmark::Counter::kIsRate);
  state.counters["bytes/token"] = static_cast<double>(text.size()) / static_cast<double>(num_tokens);
}

void encode(benchmark::State& state, const std::string& name, const std::string& text) {
  const auto tokenizer = load(name);
  size_t num_tokens = encode_all(*tokenizer, text);
  for (auto _ : state) num_tokens = encode_all(*tokenizer, text);
  report(state, text, num_tokens);
}

void encode_first(benchmark::State& state, const std::string& name, const std::string& text) {
  size_t num_tokens = 0;
  for (auto _ : state) {
    state.PauseTiming();
    const auto tokenizer = load(name);
    state.ResumeTiming();
    num_tokens = encode_all(*tokenizer, text);
  }
  report(state, text, num_tokens);
}

void detokenize(benchmark::State& state, const std::string& name, const std::string& text) {
  const auto tokenizer = load(name);
  const std::string_view chunk = std::string_view(text).substr(0, kChunkBytes);
  const std::vector<int32_t> ids = tokenizer->encode(chunk, false);
  size_t num_bytes = 0;
  for (auto _ : state) {
    Detokenizer detokenizer(tokenizer, false);
    num_bytes = 0;
    for (const int32_t id : ids) num_bytes += detokenizer.push(id).size();
    num_bytes += detokenizer.finish().size();
  }
  if (tokenizer->decode(ids, false).size() != num_bytes)
    state.SkipWithError("streamed and decoded text differ");
  report(state, chunk, ids.size());
}

void load_file(benchmark::State& state, const std::string& name) {
  load(name);
  for (auto _ : state) load(name);
}

void register_all(const std::string& text) {
  for (const char* name : {"qwen3", "llama3", "gptoss", "deepseek_v3", "gemma3"}) {
    const auto title = [name](const char* what) { return std::string("tokenizer/") + what + "/" + name; };
    benchmark::RegisterBenchmark(title("encode").c_str(), encode, name, text)->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(title("encode_first").c_str(), encode_first, name, text)
        ->Unit(benchmark::kMillisecond)
        ->Iterations(3);
    benchmark::RegisterBenchmark(title("detokenize").c_str(), detokenize, name, text)
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(title("load").c_str(), load_file, name)->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace tensorfold

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  std::string text;
  for (int i = 1; i < argc; ++i) text += tensorfold::read_text(argv[i]);
  if (text.empty()) text = tensorfold::default_text();
  if (text.empty()) {
    std::fputs("text_tokenizer_bench: no text\n", stderr);
    return 2;
  }
  std::fprintf(stderr, "text: %zu bytes\n", text.size());
  tensorfold::register_all(text);
  benchmark::RunSpecifiedBenchmarks();
}
