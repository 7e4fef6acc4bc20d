// The table of facts is read by every operator that anybody intercepts, on any thread, while
// another thread may be adding to it. It only grows, by whole entries: a reader finds an entry or a
// free slot, and both answers are right at that moment. Entries and outgrown tables are never
// freed.
#include "libtorch/operators/operator_facts.h"

#include <ATen/core/enum_tag.h>
#include <ATen/core/function_schema.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "libtorch/operators/operator_tables.h"
#include "libtorch/operators/ordered_effects.h"

namespace reprise::libtorch {
namespace {

using c10::AliasInfo;
using c10::Argument;
using c10::DispatchKey;
using c10::FunctionSchema;
using c10::OperatorHandle;

bool any_of_alias(const AliasInfo& info, bool (*holds)(const AliasInfo&)) {
  if (holds(info)) return true;
  return std::any_of(info.containedTypes().begin(), info.containedTypes().end(),
                     [&](const AliasInfo& contained) { return any_of_alias(contained, holds); });
}

bool is_written(const Argument& argument) {
  const AliasInfo* info = argument.alias_info();
  return info != nullptr && any_of_alias(*info, [](const AliasInfo& i) { return i.isWrite(); });
}

bool is_view(const Argument& result) {
  const AliasInfo* info = result.alias_info();
  return info != nullptr && !is_written(result);
}

// A tensor, an optional one, or any nesting of lists of them.
bool holds_tensors(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::TensorType) return true;
  return std::any_of(type.containedTypes().begin(), type.containedTypes().end(),
                     [](const auto& contained) { return holds_tensors(*contained); });
}

bool holds_object(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::ClassType) return true;
  return std::any_of(type.containedTypes().begin(), type.containedTypes().end(),
                     [](const auto& contained) { return holds_object(*contained); });
}

bool is_generator(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::GeneratorType) return true;
  return type.kind() == c10::TypeKind::OptionalType &&
         type.containedType(0)->kind() == c10::TypeKind::GeneratorType;
}

std::int16_t position_of(const FunctionSchema& schema, std::string_view argument) {
  const auto index = argument.empty() ? std::nullopt : schema.argumentIndexWithName(argument);
  return index ? static_cast<std::int16_t>(*index) : OperatorFacts::kNone;
}

OperatorFacts work_out(const OperatorHandle& op) {
  const FunctionSchema& schema = op.schema();
  const std::string_view name = schema.name();
  OperatorFacts facts;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const Argument& argument = schema.arguments()[i];
    if (is_written(argument)) facts.writes.push_back({static_cast<std::uint16_t>(i)});
    if (is_generator(*argument.type())) facts.generator = static_cast<std::int16_t>(i);
  }
  if (const HiddenWrite* hidden = hidden_write_of(name)) {
    const std::int16_t only_if = position_of(schema, hidden->only_if);
    for (const std::string_view argument : hidden->arguments) {
      const std::int16_t position = position_of(schema, argument);
      if (position == OperatorFacts::kNone || is_written(schema.arguments()[position])) continue;
      facts.writes.push_back({static_cast<std::uint16_t>(position), only_if});
    }
  }
  facts.draws_random =
      facts.generator != OperatorFacts::kNone || op.hasTag(at::Tag::nondeterministic_seeded);
  facts.writes_no_data = writes_only_around_data(name);
  // By the tag where an operator has it; the table knows those that change memory as well.
  facts.changes_memory = facts.writes_no_data && (name.find("resize") != std::string_view::npos ||
                                                  name == "aten::set_" || name == "aten::set_data");
  facts.leaves_bytes_unset = leaves_bytes_unset(name);
  facts.unrepeatable = reads_bytes_unset(name);
  facts.changes_shape = op.hasTag(at::Tag::inplace_view) ||
                        (facts.writes_no_data && name.find("resize") != std::string_view::npos) ||
                        name == "aten::set_data";
  facts.aliases = has_hidden_alias(name) ||
                  std::any_of(schema.returns().begin(), schema.returns().end(), is_view);
  facts.copies_lazily = name == "aten::_lazy_clone";
  facts.metadata_only = reads_metadata_only(name);
  const auto takes_tensors = [](const Argument& argument) {
    return holds_tensors(*argument.type()) && !argument.is_out();
  };
  const auto is_alias = [](const Argument& result) { return result.alias_info() != nullptr; };
  facts.composite = op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
  // A composite may copy where its schema promises a view (reshape, contiguous, to), and so may
  // another library's operator.
  facts.only_views = !facts.composite && name.starts_with("aten::") && facts.writes.empty() &&
                     !schema.returns().empty() && std::ranges::all_of(schema.returns(), is_alias) &&
                     std::ranges::count_if(schema.arguments(), takes_tensors) == 1;
  facts.communicates = name.starts_with("c10d::") || name.starts_with("_c10d_functional") ||
                       name.starts_with("symm_mem::");
  const auto is_out = [&](const OperatorFacts::Write& write) {
    return schema.arguments()[write.argument].is_out();
  };
  facts.makes_new =
      std::ranges::all_of(facts.writes, is_out) && !facts.aliases && !facts.metadata_only &&
      (name.ends_with("_like") || name.starts_with("aten::new_") ||
       std::none_of(schema.arguments().begin(), schema.arguments().end(), takes_tensors));
  facts.ordered_effects = has_ordered_effects(op, facts);
  // A check may be made twice.
  if (facts.ordered_effects && name != kLinalgCheck) facts.unrepeatable = true;
  for (const DispatchKey key : c10::autocast_dispatch_keyset) {
    facts.casts = facts.casts || op.hasKernelForDispatchKey(key);
  }
  facts.chooses_backend = op.hasKernelForDispatchKey(DispatchKey::BackendSelect);
  return facts;
}

struct Entry {
  Entry(const OperatorHandle& handle, OperatorFacts known) : op(handle), facts(std::move(known)) {}

  // What a search reads, side by side.
  OperatorHandle op;
  // The operator was not deregistered since.
  std::atomic<bool> valid{true};
  OperatorFacts facts;
};

class FactsTable {
 public:
  explicit FactsTable(std::size_t slots) : slots_(slots) {}

  Entry* find(const OperatorHandle& op) const {
    for (std::size_t i = start(op);; ++i) {
      Entry* entry = slot(i).load(std::memory_order_acquire);
      if (entry == nullptr) return nullptr;
      if (entry->op == op && entry->valid.load(std::memory_order_relaxed)) return entry;
    }
  }
  void add(Entry* entry) {
    std::size_t i = start(entry->op);
    while (slot(i).load(std::memory_order_relaxed) != nullptr) ++i;
    slot(i).store(entry, std::memory_order_release);
    ++used_;
  }
  bool is_crowded() const { return 2 * used_ >= slots_.size(); }
  std::unique_ptr<FactsTable> grown() const {
    auto table = std::make_unique<FactsTable>(2 * slots_.size());
    for (const auto& slot : slots_) {
      Entry* entry = slot.load(std::memory_order_relaxed);
      if (entry != nullptr && entry->valid.load(std::memory_order_relaxed)) table->add(entry);
    }
    return table;
  }

 private:
  // Definitions lie some hundreds of bytes apart: the low bits of their addresses say little.
  static std::size_t start(const OperatorHandle& op) {
    return (std::hash<OperatorHandle>()(op) * 0x9E3779B97F4A7C15u) >> 20;
  }
  std::atomic<Entry*>& slot(std::size_t i) { return slots_[i & (slots_.size() - 1)]; }
  const std::atomic<Entry*>& slot(std::size_t i) const { return slots_[i & (slots_.size() - 1)]; }

  std::vector<std::atomic<Entry*>> slots_;
  std::size_t used_ = 0;
};

class Cache {
 public:
  Cache() : table_(new FactsTable(kFirstSlots)) {}

  const OperatorFacts& facts_of(const OperatorHandle& op) {
    if (const Entry* entry = table_.load(std::memory_order_acquire)->find(op)) return entry->facts;
    std::lock_guard<std::mutex> lock(mutex_);
    FactsTable* table = table_.load(std::memory_order_relaxed);
    if (const Entry* entry = table->find(op)) return entry->facts;
    if (table->is_crowded()) {
      table = table->grown().release();
      table_.store(table, std::memory_order_release);
    }
    Entry& entry = entries_.emplace_back(op, work_out(op));
    table->add(&entry);
    return entry.facts;
  }

  void forget(const OperatorHandle& op) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (Entry* entry = table_.load(std::memory_order_relaxed)->find(op)) entry->valid = false;
  }

  // What tells of operators that go, as long as the cache is there.
  void listen_by(c10::RegistrationHandleRAII listening) {
    listening_.emplace(std::move(listening));
  }

 private:
  // Room for what LibTorch brings, at half load.
  static constexpr std::size_t kFirstSlots = std::size_t{1} << 13;

  std::mutex mutex_;
  // In few blocks: thousands of them, scattered, would be felt by every later allocation.
  std::deque<Entry> entries_;
  std::atomic<FactsTable*> table_;
  std::optional<c10::RegistrationHandleRAII> listening_;
};

Cache& cache();

class Forgetter final : public c10::OpRegistrationListener {
 public:
  explicit Forgetter(Cache& cache) : cache_(cache) {}
  void onOperatorRegistered(const OperatorHandle&) override {}
  void onOperatorDeregistered(const OperatorHandle& op) override { cache_.forget(op); }

 private:
  Cache& cache_;
};

Cache& cache() {
  // Never destroyed: libraries deregister their operators when the process ends.
  static Cache* const cache = [] {
    auto* made = new Cache;
    made->listen_by(
        c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Forgetter>(*made)));
    return made;
  }();
  return *cache;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

// A name that stands for memory to be written to.
bool sounds_written(std::string_view argument) {
  constexpr std::array kStarts = {"running_", "reserve", "out_", "cache", "buffer"};
  constexpr std::array kEnds = {"_state", "_states", "_out", "_cache", "_buffer", "_buf", "accum"};
  constexpr std::array kWhole = {"out", "output", "dst", "result", "noise", "workspace", "state"};
  return std::any_of(kStarts.begin(), kStarts.end(),
                     [&](const char* start) { return starts_with(argument, start); }) ||
         std::any_of(kEnds.begin(), kEnds.end(),
                     [&](const char* end) { return ends_with(argument, end); }) ||
         std::find(kWhole.begin(), kWhole.end(), argument) != kWhole.end();
}

bool is_write_of(const OperatorFacts& facts, std::size_t argument) {
  return std::any_of(facts.writes.begin(), facts.writes.end(),
                     [&](const OperatorFacts::Write& write) { return write.argument == argument; });
}

// The alias sets of all arguments, to find where a result's comes from.
bool result_is_explained(const FunctionSchema& schema, const AliasInfo& result) {
  const auto names_set = [&](const Argument& argument) {
    const AliasInfo* info = argument.alias_info();
    if (info == nullptr) return false;
    std::vector<const AliasInfo*> open = {info};
    while (!open.empty()) {
      const AliasInfo* next = open.back();
      open.pop_back();
      for (const auto& set : result.beforeSets()) {
        if (next->beforeSets().count(set) != 0 || next->isWildcardAfter()) return true;
      }
      for (const AliasInfo& contained : next->containedTypes()) open.push_back(&contained);
    }
    return false;
  };
  if (!result.beforeSets().empty() && !result.isWildcardBefore() &&
      std::none_of(schema.arguments().begin(), schema.arguments().end(), names_set)) {
    return false;
  }
  return std::all_of(
      result.containedTypes().begin(), result.containedTypes().end(),
      [&](const AliasInfo& contained) { return result_is_explained(schema, contained); });
}

std::string doubt_about_arguments(const FunctionSchema& schema, const OperatorFacts& facts) {
  // What a backward operator is given under such names was saved by forward, to be read.
  const bool backward = schema.name().find("_backward") != std::string::npos;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const Argument& argument = schema.arguments()[i];
    if (holds_object(*argument.type())) {
      return "argument '" + argument.name() + "' is an object, which may be written to";
    }
    if (!backward && holds_tensors(*argument.type()) && sounds_written(argument.name()) &&
        !is_write_of(facts, i)) {
      return "argument '" + argument.name() + "' sounds as if it were written to";
    }
  }
  return {};
}

}  // namespace

const OperatorFacts& facts_of(const OperatorHandle& op) { return cache().facts_of(op); }
void forget_facts_of(const OperatorHandle& op) { cache().forget(op); }

std::string doubt_about(const OperatorHandle& op) {
  const FunctionSchema& schema = op.schema();
  const OperatorFacts& facts = facts_of(op);
  if (is_known_harmless(schema.name())) return {};
  if (schema.is_vararg() || schema.is_varret()) return "its schema does not list its arguments";
  for (const Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result_is_explained(schema, *result.alias_info())) {
      return "a result shares memory with something that is no argument";
    }
  }
  // A table that names an operator has the last word.
  if (hidden_write_of(schema.name()) != nullptr) return {};
  const std::string_view name = schema.name();
  if (ends_with(name, "_") && !ends_with(name, "__") && facts.writes.empty()) {
    return "its name ends like that of an operator that writes to its argument, and none is marked";
  }
  if (facts.writes.empty() && !facts.metadata_only && !facts.draws_random &&
      std::none_of(schema.returns().begin(), schema.returns().end(),
                   [](const Argument& result) { return holds_tensors(*result.type()); })) {
    return "it returns no tensor and is marked to write none, so that it is unknown what it does";
  }
  return doubt_about_arguments(schema, facts);
}

bool is_named(const c10::OperatorName& name, std::string_view text) {
  constexpr std::string_view kAten = "aten::";
  std::string_view packet = name.name;
  if (text.find("::") == std::string_view::npos) {
    if (!starts_with(packet, kAten)) return false;
    packet.remove_prefix(kAten.size());
  }
  if (!starts_with(text, packet)) return false;
  text.remove_prefix(packet.size());
  if (text.empty()) return true;
  if (text.front() != '.') return false;
  text.remove_prefix(1);
  return text == (name.overload_name.empty() ? "default" : std::string_view(name.overload_name));
}

bool names_operator(std::string_view text) {
  const auto names = c10::Dispatcher::singleton().getAllOpNames();
  return std::any_of(names.begin(), names.end(),
                     [&](const c10::OperatorName& name) { return is_named(name, text); });
}

}  // namespace reprise::libtorch
