// The fake model behind tests/support/fake_model.h.
#include "tests/support/fake_model.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/hash.h"
#include "formats/safetensors.h"
#include "tests/support/memory_file_system.h"

namespace tensorfold {

Result<Buffer> FaultyDevice::allocate(int64_t size_bytes, std::string_view what) {
  if (++num_allocations == refuse_allocation_at) {
    return make_error(StatusCode::kOutOfMemory, "{} needs {} bytes: refused on purpose", what, size_bytes);
  }
  const auto padded = static_cast<size_t>((size_bytes + 255) / 256 * 256);
  auto* data = static_cast<std::byte*>(std::aligned_alloc(256, std::max<size_t>(padded, 256)));
  forget_marks(data, size_bytes);
  std::memset(data, 0xa5, padded);  // content is undefined by contract: what is not cleared shows
  ++num_live;
  return Buffer(this, data, size_bytes);
}

void FaultyDevice::free(std::byte* data, int64_t) {
  std::free(data);
  --num_live;
}

Status FaultyDevice::copy_to_device(std::byte* device, const std::byte* host, int64_t size_bytes) {
  std::memcpy(device, host, static_cast<size_t>(size_bytes));
  return {};
}
Status FaultyDevice::copy_to_host(std::byte* host, const std::byte* device, int64_t size_bytes) {
  std::memcpy(host, device, static_cast<size_t>(size_bytes));
  return {};
}
Status FaultyDevice::zero(std::byte* device, int64_t size_bytes) {
  if (fail_zero) return make_error(StatusCode::kInternal, "clearing a page failed on purpose");
  std::memset(device, 0, static_cast<size_t>(size_bytes));
  forget_marks(device, size_bytes);
  return {};
}
Status FaultyDevice::copy(std::byte* to, const std::byte* from, int64_t size_bytes) {
  if (++num_copies == fail_copy_at)
    return make_error(StatusCode::kInternal, "copying a page failed on purpose");
  std::memcpy(to, from, static_cast<size_t>(size_bytes));
  forget_marks(to, size_bytes);
  auto* source = const_cast<std::byte*>(from);
  for (auto it = marks.lower_bound(source); it != marks.end() && *it < source + size_bytes; ++it)
    marks.insert(to + (*it - source));
  return {};
}

void FaultyDevice::forget_marks(std::byte* data, int64_t size_bytes) {
  marks.erase(marks.lower_bound(data), marks.lower_bound(data + size_bytes));
}

namespace {

constexpr uint64_t kStart = 0x243f6a8885a308d3ull;

uint64_t next_state(uint64_t state, int32_t token) {
  return mix64(state + 0x9e3779b97f4a7c15ull * static_cast<uint64_t>(token + 1)) |
         1;  // never the zero of a fresh page
}

/// Different words in each layer's keys and values, so that mixed-up layers show.
uint64_t stored_state(uint64_t state, size_t layer, bool is_value) {
  return state ^ (2 * layer + (is_value ? 3 : 2)) << 1;
}

float hidden_of(uint64_t state) { return static_cast<float>(state >> 40); }

void write_logits(uint64_t state, int32_t token, float* logits) {
  for (int64_t v = 0; v < kFakeVocabSize; ++v) {
    logits[v] = static_cast<float>(mix64(state + static_cast<uint64_t>(v)) >> 48) / 8192.0f;  // [0, 8)
  }
  // Replies must not run into the tokens that fail.
  logits[kFakeNanToken] = logits[kFakeInfiniteToken] = -100.0f;
  if (token == kFakeNanToken) logits[3] = std::numeric_limits<float>::quiet_NaN();
  if (token == kFakeInfiniteToken)
    std::fill_n(logits, kFakeVocabSize, -std::numeric_limits<float>::infinity());
}

int32_t draw(std::span<const float> logits, const SampleRow& row) {
  int32_t best = -1;
  float best_score = -std::numeric_limits<float>::infinity();
  for (int32_t v = 0; v < std::ssize(logits); ++v) {
    if (std::isnan(logits[v])) return -1;
    const uint64_t noise =
        mix64(row.seed ^ mix64(static_cast<uint64_t>(row.pos) * 64 + static_cast<uint64_t>(v)));
    const float score = logits[v] + row.temperature * static_cast<float>(noise >> 56) / 32.0f;
    if (score > best_score) {
      best_score = score;
      best = v;
    }
  }
  return best;
}

class FakeOps final : public Ops {
 public:
  explicit FakeOps(FakeModelControl& control) : control_(control) {}

  const BackendInfo& info() const override { return info_; }
  Device& device() const override { return control_.device; }
  int64_t kv_page_bytes(const KvShape&) const override { return kPageTokens * int64_t{sizeof(uint64_t)}; }

  void begin_pass(const RowBatch&) override {}
  Status end_pass() override {
    const int64_t pass_idx = control_.num_passes++;
    return control_.end_pass ? control_.end_pass(pass_idx) : Status();
  }
  void sample(std::span<int32_t> tokens, View logits, std::span<const SampleRow> rows,
              std::span<float> probabilities) override {
    TF_CHECK(probabilities.empty(), "the fake model has no drafter that asks");
    for (size_t i = 0; i < rows.size(); ++i)
      tokens[i] =
          draw({logits.row<float>(static_cast<int64_t>(i)), static_cast<size_t>(logits.dim(1))}, rows[i]);
  }

  Status check_linear(const LinearSpec&) const override { return {}; }
  int64_t packed_bytes(const LinearSpec&) const override { return 64; }
  void pack(const LinearSpec&, const LinearSource&, std::span<std::byte>) const override { unused(); }
  void embed(View, const LinearWeight&, std::span<const int32_t>, float) override { unused(); }
  void rms_norm(View, View, View, const RmsNormOptions&) override { unused(); }
  void linear(View, std::span<const LinearCall>) override { unused(); }
  void rope_table(View, View, std::span<const int32_t>, std::span<const double>, double) override {
    unused();
  }
  void qk_norm_rope(const QkNormRopeCall&) override { unused(); }
  void append_kv(const KvPages&, View, View, const RowBatch&) override { unused(); }
  void attention(const AttentionCall&) override { unused(); }
  void gated_rms_norm(const GatedRmsNormCall&) override { unused(); }
  void causal_conv(const CausalConvCall&) override { unused(); }
  void dynamic_conv(const DynamicConvCall&) override { unused(); }
  void gated_delta(const GatedDeltaCall&) override { unused(); }
  void mamba2(const Mamba2Call&) override { unused(); }
  void mlp_activation(View, View, View, const MlpActivation&) override { unused(); }
  void sigmoid_mul(View, View, View, int64_t, int64_t) override { unused(); }
  void add_gated(View, View, View) override { unused(); }
  void softcap(View, float) override { unused(); }
  void route(const RouteCall&) override { unused(); }
  void experts(const ExpertsCall&) override { unused(); }
  void gather_rows(View, View, std::span<const int32_t>) override { unused(); }
  void top_tokens(std::span<int32_t>, std::span<float>, View, int64_t) override { unused(); }

 private:
  [[noreturn]] static void unused() { check_failed(__FILE__, __LINE__, "the fake model calls no kernel"); }
  FakeModelControl& control_;
  BackendInfo info_{.name = "fake", .arithmetic_id = "fake/1", .isa = "none", .num_threads = 1};
};

class FakeModel final : public Model {
 public:
  explicit FakeModel(FakeModelControl& control) : control_(control) {
    spec_.model_type = "fake";
    spec_.num_layers = 2;
    spec_.hidden_size = 1;
    spec_.vocab_size = kFakeVocabSize;
    spec_.max_position_embeddings = kFakeMaxPositions;
    spec_.kv_layers.resize(2);
    spec_.recurrent_layers.push_back(
        {.conv_taps = 1, .num_heads = 1, .key_dim = 2, .value_dim = 1, .num_gates = 1});
  }
  const ModelSpec& spec() const override { return spec_; }
  int64_t scratch_bytes(int64_t num_rows) const override { return num_rows * 64; }

  void forward(const Pass& pass, Ops&, Weights&, const State& state, Arena& scratch,
               const Outputs& outputs) const override {
    if (control_.before_pass) control_.before_pass(pass);
    const int64_t num_rows = pass.rows.num_rows();
    control_.max_rows = std::max<int64_t>(control_.max_rows, num_rows);
    scratch.array(DType::kF32, {num_rows, 16});
    size_t next_logits = 0, next_drafted = 0;
    for (const SequenceRows& rows : pass.rows.sequences) {
      uint64_t running = *recurrent(state.recurrent_layers[0], rows);
      for (int64_t i = 0; i < rows.num_rows; ++i) {
        const int64_t row = rows.first_row + i, pos = rows.first_pos + i;
        const bool is_drafted = i >= rows.num_stored();
        if (pass.rows.positions[row] != pos) ++control_.num_faults;
        const uint64_t state_before = read(state, rows, pos - 1);
        // The slot holds the state after the row before, whatever it held before position 0.
        if (pos > 0 && running != state_before) ++control_.num_faults;
        running = next_state(state_before, pass.tokens[row]);
        write(state, rows, pos, running, is_drafted);
        if (is_drafted) {
          keep_drafted(pass, row, state.recurrent_layers[0], static_cast<int64_t>(next_drafted++));
        } else {
          *recurrent(state.recurrent_layers[0], rows) = running;
        }
        if (outputs.hidden.data != nullptr) *outputs.hidden.row<float>(row) = hidden_of(running);
        const uint64_t state_here = running;
        if (next_logits == pass.logit_rows.size() || pass.logit_rows[next_logits] != row) continue;
        write_logits(state_here, pass.tokens[row],
                     outputs.logits.row<float>(static_cast<int64_t>(next_logits)));
        if (pos == control_.nan_pos)
          *outputs.logits.row<float>(static_cast<int64_t>(next_logits)) =
              std::numeric_limits<float>::quiet_NaN();
        ++next_logits;
      }
    }
    if (next_logits != pass.logit_rows.size()) ++control_.num_faults;
    if (next_drafted != pass.drafted_rows.size()) ++control_.num_faults;
  }

  void commit(const RowBatch& accepted, Ops&, Weights&, const State& state, Arena&) const override {
    for (const SequenceRows& rows : accepted.sequences) {
      uint64_t& slot_state = *recurrent(state.recurrent_layers[0], rows);
      if (rows.first_pos == 0) slot_state = kStart;
      for (int64_t i = 0; i < rows.num_rows; ++i) {
        const int64_t pos = rows.first_pos + i;
        if (accepted.positions[rows.first_row + i] != pos) ++control_.num_faults;
        slot_state = next_state(slot_state, *drafted(state.recurrent_layers[0], rows.first_row + i));
        if (slot_state != read(state, rows, pos)) ++control_.num_faults;
        for (uint64_t* word : words(state, rows, pos)) provisional().erase(address(word));
      }
    }
  }

 private:
  static int32_t* drafted(const RecurrentStates& states, int64_t i) {
    TF_CHECK(i < states.drafted.num_rows());
    return states.drafted.row<int32_t>(i);
  }
  void keep_drafted(const Pass& pass, int64_t row, const RecurrentStates& states, int64_t i) const {
    if (i >= std::ssize(pass.drafted_rows) || pass.drafted_rows[i] != row) {
      ++control_.num_faults;
    } else {
      *drafted(states, i) = pass.tokens[row];
    }
  }
  static std::vector<uint64_t*> words(const State& state, const SequenceRows& rows, int64_t pos) {
    std::vector<uint64_t*> result;
    for (const KvPages& pages : state.kv_layers)
      for (const bool is_value : {false, true}) result.push_back(slot(pages, is_value, rows, pos));
    return result;
  }
  static uint64_t* slot(const KvPages& pages, bool is_value, const SequenceRows& rows, int64_t pos) {
    const int32_t page = rows.page_table[pos / kPageTokens];
    TF_CHECK(page >= 0 && page < pages.num_pages);
    std::byte* data = is_value ? pages.value_page(page) : pages.key_page(page);
    return reinterpret_cast<uint64_t*>(data) + pos % kPageTokens;
  }
  uint64_t read(const State& state, const SequenceRows& rows, int64_t pos) const {
    if (pos < 0) return kStart;
    const uint64_t found = *slot(state.kv_layers[0], false, rows, pos) ^ stored_state(0, 0, false);
    for (size_t layer = 0; layer < state.kv_layers.size(); ++layer) {
      for (const bool is_value : {false, true}) {
        const uint64_t stored = *slot(state.kv_layers[layer], is_value, rows, pos);
        if (stored != stored_state(found, layer, is_value)) ++control_.num_faults;
      }
    }
    return found;
  }
  static uint64_t* recurrent(const RecurrentStates& states, const SequenceRows& rows) {
    TF_CHECK(rows.state_slot >= 0 && rows.state_slot < states.num_slots);
    return reinterpret_cast<uint64_t*>(states.matrices(rows.state_slot));
  }
  void write(const State& state, const SequenceRows& rows, int64_t pos, uint64_t value,
             bool is_drafted) const {
    for (size_t layer = 0; layer < state.kv_layers.size(); ++layer) {
      for (const bool is_value : {false, true}) {
        uint64_t* word = slot(state.kv_layers[layer], is_value, rows, pos);
        // A page that was not cleared, or a position computed twice; what was drafted is written over.
        if (*word != 0 && !provisional().contains(address(word))) ++control_.num_faults;
        is_drafted ? void(provisional().insert(address(word))) : void(provisional().erase(address(word)));
        *word = stored_state(value, layer, is_value);
      }
    }
  }

  /// Words of rows that were drafted and not accepted yet.
  std::set<std::byte*>& provisional() const { return control_.device.marks; }
  static std::byte* address(uint64_t* word) { return reinterpret_cast<std::byte*>(word); }

  FakeModelControl& control_;
  ModelSpec spec_;
};

/// Weights of nothing.
std::unique_ptr<Weights> no_weights(const Ops& ops, Device& device) {
  MemoryFileSystem files;
  files.put("empty.safetensors", std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
  const Result<Checkpoint> checkpoint = Checkpoint::open_file("empty.safetensors", files);
  return Weights::load(checkpoint.value(), Manifest{}, ops, device, {}).value();
}

}  // namespace

std::unique_ptr<Ops> make_fake_ops(FakeModelControl& control) { return std::make_unique<FakeOps>(control); }

std::shared_ptr<LoadedModel> make_fake_model(FakeModelControl& control) {
  auto model = std::make_shared<LoadedModel>();
  model->name = "fake";
  model->ops = make_fake_ops(control);
  model->model = std::make_unique<FakeModel>(control);
  model->weights = no_weights(*model->ops, control.device);
  return model;
}

float fake_hidden(std::span<const int32_t> tokens) {
  uint64_t state = kStart;
  for (const int32_t token : tokens) state = next_state(state, token);
  return hidden_of(state);
}

std::vector<float> fake_logits(std::span<const int32_t> tokens) {
  uint64_t state = kStart;
  for (const int32_t token : tokens) state = next_state(state, token);
  std::vector<float> logits(static_cast<size_t>(kFakeVocabSize));
  write_logits(state, tokens.back(), logits.data());
  return logits;
}

std::vector<int32_t> fake_reply(std::vector<int32_t> prompt, int64_t num_tokens, const SampleRow& sampling) {
  std::vector<int32_t> reply;
  for (int64_t i = 0; i < num_tokens; ++i) {
    SampleRow row = sampling;
    row.pos = static_cast<int64_t>(prompt.size());
    const int32_t token = draw(fake_logits(prompt), row);
    prompt.push_back(token);
    reply.push_back(token);
  }
  return reply;
}

std::vector<int32_t> fake_prompt(int64_t num_tokens, uint64_t seed) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < num_tokens; ++i) {
    prompt.push_back(static_cast<int32_t>(mix64(seed * 1000003 + static_cast<uint64_t>(i)) % kFakeNanToken));
  }
  return prompt;
}

}  // namespace tensorfold
