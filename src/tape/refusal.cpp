// Errors of budgets: reprise/budget.h.
#include "tape/refusal.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "libtorch/memory/counting_allocator.h"
#include "tape/recorder.h"
#include "tape/tape.h"

namespace reprise::tape {
namespace {

// malloc may hand out more than it is asked for, and that is what counts: the rest of a chunk, or
// of a page where it maps memory of its own.
Bytes most_handed_out(Bytes wanted) {
  constexpr std::int64_t kMaps = 128 << 10, kRestOfChunk = 64, kRestOfPage = 4096 + 128;
  return wanted + Bytes(wanted.count < kMaps ? kRestOfChunk : kRestOfPage);
}

constexpr std::array kAll{
    &LiveParts::older,          &LiveParts::gradients,   &LiveParts::unrepeatable,
    &LiveParts::in_use,         &LiveParts::running,     &LiveParts::small,
    &LiveParts::dead_roots,     &LiveParts::packed_bits, &LiveParts::other_threads,
    &LiveParts::past_operators, &LiveParts::unseen};

// Those that there are, with commas between.
std::string list_of(const LiveParts& parts, bool is_operator) {
  const std::pair<std::int64_t, const char*> all[] = {
      {parts.older,
       "in tensors older than the step (parameters, optimizer state, inputs, buffers)"},
      {parts.gradients, "in gradients"},
      {parts.unrepeatable,
       "in other results of the step that cannot be recomputed (of factories, of custom functions "
       "called without reprise::apply, of operators that keep what they return)"},
      {parts.in_use, is_operator ? "in use by this operator or pinned" : "in use or pinned"},
      {parts.running, is_operator ? "taken by this operator so far for results and workspace"
                                  : "taken by a running operator for results and workspace"},
      {parts.small, "in tensors too small to drop, or of int64 and int32 along one dimension"},
      {parts.dead_roots, "in tensors that the program has released but replays read"},
      {parts.packed_bits, "in the bits of packed tensors"},
      {parts.other_threads, "held by threads outside the step"},
      {parts.past_operators,
       "allocated past operators, by compiled graphs (torch.compile), torch.tensor() or other libraries"},
      {parts.unseen, "in small results that nothing has read"}};
  std::string list;
  for (const auto& [bytes, text] : all) {
    if (bytes == 0) continue;
    if (!list.empty()) list += ", ";
    list += to_string(Bytes(bytes)) + " " + text;
  }
  return list;
}

thread_local const KernelRun* innermost = nullptr;

}  // namespace

std::int64_t LiveParts::sum() const {
  std::int64_t bytes = 0;
  for (const auto part : kAll) bytes += this->*part;
  return bytes;
}

LiveParts& LiveParts::operator+=(const LiveParts& more) {
  for (const auto part : kAll) this->*part += more.*part;
  return *this;
}

LiveParts completed(LiveParts seen, std::int64_t live, std::int64_t at_begin,
                    std::int64_t running) {
  std::int64_t rest = live - seen.sum();
  const auto take = [&rest](std::int64_t& part, std::int64_t most) {
    const std::int64_t bytes = std::clamp<std::int64_t>(most, 0, std::max<std::int64_t>(rest, 0));
    part += bytes;
    rest -= bytes;
  };
  take(seen.running, running);
  // What no operator of the step has read yet, as far as it was there.
  take(seen.older, at_begin - seen.older);
  seen.unseen += rest;
  return seen;
}

KernelRun::KernelRun(const Tape& tape, std::int64_t live)
    : tape_(tape),
      live_(live),
      given_up_(tape.bytes_given_up()),
      outer_(std::exchange(innermost, this)) {}

KernelRun::~KernelRun() { innermost = outer_; }

std::int64_t KernelRun::taken(std::int64_t live) {
  if (innermost == nullptr) return 0;
  return live - innermost->live_ + innermost->tape_.bytes_given_up() - innermost->given_up_;
}

std::string rounded_up(Bytes bytes) {
  const std::string text = to_string(bytes);
  if (parse_bytes(text) >= bytes) return text;
  const Bytes half_of_last_place = parse_bytes("0.05" + text.substr(text.find(' ')));
  return to_string(bytes + half_of_last_place);
}

std::string text_of(const Refusal& refusal) {
  const std::string who = Recorder::current_operator();
  // Schemas' names have a namespace.
  const bool is_operator = who.find("::") != std::string::npos;
  const Bytes needed = refusal.live + most_handed_out(refusal.wanted);
  std::string text = "memory budget of " + to_string(refusal.limit) + ": " + who + " asks for " +
                     to_string(refusal.wanted) + ", and " + to_string(refusal.live) +
                     " are live that cannot be dropped now";
  if (refusal.live.count > 0) text += ": " + list_of(refusal.parts, is_operator);
  text += ". With " + rounded_up(needed) + " (" + std::to_string(needed.count) +
          " bytes) this allocation would have fitted, and " +
          (is_operator ? "this operator or later ones" : "later ones") + " may need more; ";
  if (refusal.least) {
    text += "a recorded step of this budget needs at least " + rounded_up(*refusal.least) + " (" +
            std::to_string(refusal.least->count) + " bytes)" +
            (*refusal.least <= refusal.limit ? ", and this step needs more; " : "; ");
  }
  return text + "raise the budget, or make the batch smaller";
}

std::string Tape::gone_text() const {
  return "the bytes of this tensor were dropped by a reprise::MemoryBudget step, which is under "
         "way on thread " +
         std::to_string(thread_) +
         ". Operators inside the step, called on that thread, restore them. To read the tensor "
         "elsewhere (pointers, operators of other threads), hold a reprise::Pin on it meanwhile, "
         "or end the step with finish() first";
}

std::string text_of_finish(const FinishNeeds& needs, Bytes limit, Bytes live) {
  const Bytes needed = live + most_handed_out(Bytes(needs.most));
  return "memory budget of " + to_string(limit) + ": finish() restores the " +
         std::to_string(needs.tensors) +
         " tensors of the step that were dropped and are still held, " +
         to_string(Bytes(needs.bytes)) + " in all, and " + to_string(live) +
         " are live beside them. That takes " + rounded_up(needed) + " (" +
         std::to_string(needed.count) +
         " bytes), and the workspace of the operators that are replayed. Release tensors that are "
         "not needed before finish(), or leave the step's scope without finish() and lose the "
         "dropped tensors; or raise the budget";
}

LiveParts Tape::undroppable() {
  LiveParts parts;
  const auto bytes_of = [this](const Value& value, const c10::DataPtr& memory) {
    return side_ != nullptr ? value.size : libtorch::counted_bytes(memory);
  };
  for (const Cell* cell = cells_; cell != nullptr; cell = cell->next) {
    const Value& value = *cell->value;
    if (!value.has_bytes()) continue;
    const c10::DataPtr& memory = libtorch::ManagedMemory::memory_of(*cell);
    // Budget::refusal() has these.
    if (libtorch::is_past_operators(memory)) continue;
    const std::int64_t bytes = bytes_of(value, memory);
    if (libtorch::is_of_other_threads(memory)) parts.other_threads -= bytes;
    if (value.size < options_.min_bytes.count) {
      parts.small += bytes;
    } else if (!cell->is_of_step) {
      parts.older += bytes;
    } else if (cell->is_read_by_pointer) {
      parts.small += bytes;
    } else if (value.producer != nullptr && cell->own) {
      parts.in_use += bytes;
    } else {
      (cell->is_gradient ? parts.gradients : parts.unrepeatable) += bytes;
    }
  }
  visit_detached([&](const Value& value) {
    const c10::DataPtr& memory =
        value.detached.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
    if (libtorch::is_past_operators(memory)) return;
    const std::int64_t bytes = bytes_of(value, memory);
    if (libtorch::is_of_other_threads(memory)) parts.other_threads -= bytes;
    (value.producer == nullptr ? parts.dead_roots : parts.in_use) += bytes;
  });
  for (const Value* value : packed_)
    parts.packed_bits += libtorch::counted_bytes(value->packed->bits);
  return parts;
}

}  // namespace reprise::tape
