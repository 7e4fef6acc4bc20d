// Cuts layers into parts by dynamic programming over the number of parts and of layers. Two facts
// make each entry a binary search: more layers never have a smaller largest part, and a part that
// begins later is never larger.
#include <reprise/error.h>
#include <reprise/pipeline_schedule.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace reprise::plan {
namespace {

constexpr std::int64_t kMostSum = std::int64_t{1} << 52;

// The least index of [begin, end) for which a predicate holds that holds for all after it; `end` if
// there is none.
template <class Predicate>
std::size_t first_index(std::size_t begin, std::size_t end, Predicate holds) {
  while (begin < end) {
    const std::size_t middle = begin + (end - begin) / 2;
    if (holds(middle))
      end = middle;
    else
      begin = middle + 1;
  }
  return begin;
}

// Sums of consecutive layers.
template <class Value>
class Sums {
 public:
  explicit Sums(const std::vector<Value>& values) : before_{Value{}} {
    for (const Value& value : values) before_.push_back(before_.back() + value);
  }
  std::size_t layers() const { return before_.size() - 1; }
  Value of(std::size_t begin, std::size_t end) const { return before_[end] - before_[begin]; }

 private:
  std::vector<Value> before_;
};

// For each number of layers, the least begin that a part which ends there may have.
using Begins = std::vector<std::size_t>;

template <class Value>
Begins begins_within(const Sums<Value>& sums, Value most) {
  Begins begins;
  for (std::size_t end = 0; end <= sums.layers(); ++end) {
    begins.push_back(first_index(0, end, [&](std::size_t at) { return sums.of(at, end) <= most; }));
  }
  return begins;
}

// The least largest sum of `parts` parts; the greatest value if none of the cuts has allowed begins.
template <class Value>
Value least_largest(const Sums<Value>& sums, const Begins& begins, std::size_t parts) {
  constexpr Value kNone = std::numeric_limits<Value>::max();
  std::vector<Value> best(sums.layers() + 1, kNone);
  for (std::size_t end = 1; end <= sums.layers(); ++end) {
    if (begins[end] == 0) best[end] = sums.of(0, end);
  }
  for (std::size_t part = 2; part <= parts; ++part) {
    std::vector<Value> next(sums.layers() + 1, kNone);
    for (std::size_t end = part; end <= sums.layers(); ++end) {
      const std::size_t least = std::max(begins[end], part - 1);
      if (least >= end) continue;
      const auto largest = [&](std::size_t at) { return std::max(best[at], sums.of(at, end)); };
      const std::size_t crossing =
          first_index(least, end - 1, [&](std::size_t at) { return best[at] >= sums.of(at, end); });
      next[end] = largest(crossing);
      if (crossing > least) next[end] = std::min(next[end], largest(crossing - 1));
    }
    best = std::move(next);
  }
  return best.back();
}

// The sizes of parts that all have allowed begins. They are chosen from the last part on, each near
// an equal share of the layers that are left.
template <class Value>
std::vector<std::int64_t> cut(const Sums<Value>& sums, const Begins& begins, std::size_t parts) {
  std::vector<std::size_t> least_parts{0};  // that the first layers need
  for (std::size_t end = 1; end <= sums.layers(); ++end) {
    least_parts.push_back(least_parts[begins[end]] + 1);
  }
  std::vector<std::int64_t> sizes(parts);
  std::size_t end = sums.layers();
  for (std::size_t part = parts; part-- > 0;) {
    std::size_t begin = 0;
    if (part > 0) {
      const std::size_t least = std::max(begins[end], part);
      // The begins from here on leave more layers than the parts before can take.
      const std::size_t beyond =
          first_index(least, end, [&](std::size_t at) { return least_parts[at] > part; });
      const double share = static_cast<double>(sums.of(0, end)) / static_cast<double>(part + 1);
      const auto distance = [&](std::size_t at) {
        return std::abs(static_cast<double>(sums.of(at, end)) - share);
      };
      begin = first_index(least, beyond - 1, [&](std::size_t at) {
        return static_cast<double>(sums.of(at, end)) <= share;
      });
      if (begin > least && distance(begin - 1) < distance(begin)) --begin;
    }
    sizes[part] = static_cast<std::int64_t>(end - begin);
    end = begin;
  }
  return sizes;
}

void check_parts(const char* function, std::size_t layers, std::int64_t parts) {
  if (parts >= 1 && parts <= static_cast<std::int64_t>(layers)) return;
  throw UsageError(std::string(function) + ": parts is " + std::to_string(parts) +
                   "; it must be between 1 and the number of layers, " + std::to_string(layers));
}

void check_layer_costs(const char* function, const char* what, const std::vector<double>& costs) {
  double sum = 0;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    sum += costs[i];
    if (costs[i] >= 0 && std::isfinite(sum)) continue;
    throw UsageError(std::string(function) + ": " + what + "[" + std::to_string(i) + "] is " +
                     std::to_string(costs[i]) + "; costs must be at least 0, and their sum finite");
  }
}

std::vector<std::int64_t> counts_of_bytes(const std::vector<Bytes>& bytes) {
  std::vector<std::int64_t> counts;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const std::int64_t count = bytes[i].count;
    if (count < 0 || count > kMostSum - sum) {
      throw UsageError("balance: bytes[" + std::to_string(i) + "] is " + std::to_string(count) +
                       "; bytes must be at least 0 and add up to at most 2^52");
    }
    sum += count;
    counts.push_back(count);
  }
  return counts;
}

// The same cut, where all parts within the least largest sum are allowed.
template <class Value>
std::vector<std::int64_t> cut_within(const Sums<Value>& sums, Begins begins, Value most,
                                     std::size_t parts) {
  const Begins within = begins_within(sums, most);
  for (std::size_t i = 0; i < begins.size(); ++i) begins[i] = std::max(begins[i], within[i]);
  return cut(sums, begins, parts);
}

}  // namespace
}  // namespace reprise::plan

namespace reprise {

std::vector<std::int64_t> balance_by_cost(const std::vector<double>& costs, std::int64_t parts) {
  plan::check_parts("balance_by_cost", costs.size(), parts);
  plan::check_layer_costs("balance_by_cost", "costs", costs);
  const plan::Sums<double> sums(costs);
  const plan::Begins all(costs.size() + 1, 0);
  const auto count = static_cast<std::size_t>(parts);
  return plan::cut_within(sums, all, plan::least_largest(sums, all, count), count);
}

std::vector<std::int64_t> balance(const std::vector<Seconds>& seconds,
                                  const std::vector<Bytes>& bytes, std::int64_t parts,
                                  Bytes bytes_per_part) {
  if (seconds.size() != bytes.size()) {
    throw UsageError("balance: there are seconds of " + std::to_string(seconds.size()) +
                     " layers and bytes of " + std::to_string(bytes.size()) +
                     "; give both for each layer");
  }
  plan::check_parts("balance", seconds.size(), parts);
  std::vector<double> costs;
  for (const Seconds& each : seconds) costs.push_back(each.count());
  plan::check_layer_costs("balance", "seconds", costs);
  const plan::Sums<std::int64_t> byte_sums(plan::counts_of_bytes(bytes));
  const auto count = static_cast<std::size_t>(parts);
  const std::int64_t least_bytes =
      plan::least_largest(byte_sums, plan::Begins(bytes.size() + 1, 0), count);
  if (bytes_per_part.count < least_bytes) {
    throw BudgetError(
        "balance: " + std::to_string(parts) + " parts of " + std::to_string(bytes.size()) +
        " layers do not fit in " + to_string(bytes_per_part) + " each; they need at least " +
        std::to_string(least_bytes) + " bytes (" + to_string(Bytes(least_bytes)) + ") each");
  }
  const plan::Sums<double> sums(costs);
  const plan::Begins begins = plan::begins_within(byte_sums, bytes_per_part.count);
  return plan::cut_within(sums, begins, plan::least_largest(sums, begins, count), count);
}

}  // namespace reprise
