// at::Context's members are private. A template may be instantiated with the name of a private
// member, which is how their places are found: of the first, which is no setting, and of the table
// of precisions, which is the last setting. All that lies between is plain data. Two settings there
// are optional; the bytes of an optional that say nothing are noted as zeros.
#include "libtorch/base/process_settings.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace reprise::libtorch {
namespace {

struct Places {
  std::span<std::byte> flags;
  std::array<at::Float32Precision*, std::tuple_size_v<decltype(ProcessSettings::precisions)>>
      precisions{};
  std::size_t precision_count = 0;
  const std::optional<std::int32_t>* multiprocessors = nullptr;
  const std::optional<bool>* sparse_checks = nullptr;
};

// `before`: the member before the first setting.
template <class Before, class Precisions>
void note_places(Before& before, Precisions& precisions, Places& places) {
  places.flags = {reinterpret_cast<std::byte*>(&before) + sizeof(before),
                  reinterpret_cast<std::byte*>(&precisions)};
  TORCH_INTERNAL_ASSERT(places.flags.size() <= sizeof(ProcessSettings::flags) &&
                            precisions.size() <= places.precisions.size(),
                        "at::Context has more settings than there is room for");
  for (auto& entry : precisions) places.precisions[places.precision_count++] = &entry.second;
}

void find_places(at::Context& context, Places& places);

template <auto kBefore, auto kPrecisions, auto kMultiprocessors, auto kSparseChecks>
struct Members {
  friend void find_places(at::Context& context, Places& places) {
    note_places(context.*kBefore, context.*kPrecisions, places);
    places.multiprocessors = &(context.*kMultiprocessors);
    places.sparse_checks = &(context.*kSparseChecks);
  }
};
template struct Members<&at::Context::init_, &at::Context::fp32_precision,
                        &at::Context::sm_carveout,
                        &at::Context::enable_sparse_tensor_invariant_checks>;

const Places& places() {
  static const Places found = [] {
    Places places;
    find_places(at::globalContext(), places);
    return places;
  }();
  return found;
}

// Only the value, where there is one, and whether there is one.
template <class T>
void note_optional(const std::optional<T>& setting, const Places& now, ProcessSettings& settings) {
  std::array<std::byte, sizeof(setting)> bytes{};
  if (setting) {
    std::memcpy(bytes.data(), &*setting, sizeof(T));
    bytes[sizeof(T)] = std::byte{1};
  }
  const auto offset = reinterpret_cast<const std::byte*>(&setting) - now.flags.data();
  std::memcpy(settings.flags.data() + offset, bytes.data(), bytes.size());
}

ProcessSettings take() {
  const Places& now = places();
  ProcessSettings settings;
  std::memcpy(settings.flags.data(), now.flags.data(), now.flags.size());
  note_optional(*now.multiprocessors, now, settings);
  note_optional(*now.sparse_checks, now, settings);
  for (std::size_t i = 0; i < now.precision_count; ++i) {
    settings.precisions[i] = static_cast<std::byte>(*now.precisions[i]);
  }
  settings.default_dtype = c10::get_default_dtype_as_scalartype();
  return settings;
}

bool is_in_force(const ProcessSettings& settings) {
  const Places& now = places();
  // The bytes of an optional that says nothing may be any.
  if (std::memcmp(now.flags.data(), settings.flags.data(), now.flags.size()) != 0) {
    return take() == settings;
  }
  for (std::size_t i = 0; i < now.precision_count; ++i) {
    if (static_cast<std::byte>(*now.precisions[i]) != settings.precisions[i]) return false;
  }
  return settings.default_dtype == c10::get_default_dtype_as_scalartype();
}

const ProcessSettings& one_of_all(const ProcessSettings& settings) {
  static auto* mutex = new std::mutex;
  static auto* all = new std::deque<ProcessSettings>;
  const std::lock_guard<std::mutex> lock(*mutex);
  for (const ProcessSettings& known : *all) {
    if (known == settings) return known;
  }
  return all->emplace_back(settings);
}

// As a whole: in memory the bytes of an empty one may be any.
template <class T>
void change_optional(const std::optional<T>& setting, const ProcessSettings& from,
                     const ProcessSettings& to) {
  const std::span<std::byte> flags = places().flags;
  const auto offset = reinterpret_cast<const std::byte*>(&setting) - flags.data();
  if (std::memcmp(from.flags.data() + offset, to.flags.data() + offset, sizeof(setting)) != 0) {
    std::memcpy(flags.data() + offset, to.flags.data() + offset, sizeof(setting));
  }
}

}  // namespace

const ProcessSettings& ProcessSettings::current() {
  static std::atomic<const ProcessSettings*> last{nullptr};
  const ProcessSettings* settings = last.load(std::memory_order_acquire);
  if (settings == nullptr || !is_in_force(*settings)) {
    settings = &one_of_all(take());
    last.store(settings, std::memory_order_release);
  }
  return *settings;
}

namespace {

struct OpenScopes {
  std::mutex mutex;
  const ProcessSettings* before = nullptr;
  // In the order in which they began.
  std::vector<std::pair<const ProcessSettingsScope*, const ProcessSettings*>> scopes;
};

OpenScopes& open_scopes() {
  static auto* scopes = new OpenScopes;
  return *scopes;
}

std::atomic<int> open_count{0};

}  // namespace

bool ProcessSettingsScope::is_any_open() { return open_count.load(std::memory_order_acquire) != 0; }

ProcessSettingsScope::ProcessSettingsScope(const ProcessSettings& settings) : settings_(settings) {
  OpenScopes& open = open_scopes();
  const std::lock_guard<std::mutex> lock(open.mutex);
  const ProcessSettings& now = ProcessSettings::current();
  if (open.scopes.empty()) open.before = &now;
  open.scopes.emplace_back(this, &settings);
  ++open_count;
  ProcessSettings::change(now, settings);
}

ProcessSettingsScope::~ProcessSettingsScope() {
  OpenScopes& open = open_scopes();
  const std::lock_guard<std::mutex> lock(open.mutex);
  const bool is_last = open.scopes.back().first == this;
  std::erase_if(open.scopes, [this](const auto& each) { return each.first == this; });
  --open_count;
  if (!is_last) return;
  ProcessSettings::change(settings_,
                          open.scopes.empty() ? *open.before : *open.scopes.back().second);
}

void ProcessSettings::change(const ProcessSettings& from, const ProcessSettings& to) {
  const Places& now = places();
  for (std::size_t i = 0; i < now.flags.size(); ++i) {
    if (from.flags[i] != to.flags[i]) now.flags[i] = to.flags[i];
  }
  change_optional(*now.multiprocessors, from, to);
  change_optional(*now.sparse_checks, from, to);
  for (std::size_t i = 0; i < now.precision_count; ++i) {
    if (from.precisions[i] == to.precisions[i]) continue;
    *now.precisions[i] = static_cast<at::Float32Precision>(to.precisions[i]);
  }
  if (from.default_dtype != to.default_dtype) {
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(to.default_dtype));
  }
}

}  // namespace reprise::libtorch
