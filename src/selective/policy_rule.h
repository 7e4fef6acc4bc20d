// What stands behind an OperatorPolicy: a rule that answers for one call, or for all calls of an
// operator at once, which saves the asking.
#pragma once

#include <reprise/bytes.h>
#include <reprise/selective.h>

#include <memory>
#include <optional>
#include <utility>

namespace reprise::detail {

// Results that are kept under a limit common to all that name it.
struct ByteLimit {
  Bytes bytes;
};

struct Verdict {
  CheckpointPolicy policy = CheckpointPolicy::kPreferRecompute;
  // Kept only while the limit has room for it; owned by the rule.
  const ByteLimit* limit = nullptr;
};

struct PolicyRule {
  PolicyRule() = default;
  virtual ~PolicyRule() = default;
  PolicyRule(const PolicyRule&) = delete;
  PolicyRule& operator=(const PolicyRule&) = delete;

  virtual Verdict decide(const SelectiveCheckpointContext& context) const = 0;
  // The verdict on every call of this operator, where it is the same for all.
  virtual std::optional<Verdict> by_operator(const c10::FunctionSchema&) const { return {}; }
};

// The way from a policy to its rule and back.
struct PolicyRuleAccess {
  using Rule = std::shared_ptr<const PolicyRule>;
  static OperatorPolicy policy_of(Rule rule) { return OperatorPolicy(std::move(rule)); }
  static const Rule& rule_of(const OperatorPolicy& policy) { return policy.rule_; }
};

}  // namespace reprise::detail
