// OperatorPolicy and the named policies: each a small rule.

#include <reprise/error.h>
#include <reprise/selective.h>

#include <algorithm>
#include <utility>

#include "selective/operator_set.h"
#include "selective/policy_rule.h"

namespace reprise {
namespace {

using detail::ByteLimit;
using detail::PolicyRule;
using Access = detail::PolicyRuleAccess;
using detail::Verdict;
using selecting::OperatorSet;

constexpr Verdict kSave{CheckpointPolicy::kPreferSave};
constexpr Verdict kMustSave{CheckpointPolicy::kMustSave};
constexpr Verdict kRecompute{CheckpointPolicy::kPreferRecompute};

struct FunctionRule final : PolicyRule {
  explicit FunctionRule(OperatorPolicy::Function f) : function(std::move(f)) {}
  Verdict decide(const SelectiveCheckpointContext& context) const override {
    return {function(context)};
  }
  OperatorPolicy::Function function;
};

// One verdict for the operators of a set, another for the rest.
struct SetRule final : PolicyRule {
  SetRule(OperatorSet set, Verdict in, Verdict out)
      : operators(std::move(set)), inside(in), outside(out) {}
  Verdict decide(const SelectiveCheckpointContext& context) const override {
    return *by_operator(context.schema());
  }
  std::optional<Verdict> by_operator(const c10::FunctionSchema& schema) const override {
    return operators.contains(schema) ? inside : outside;
  }
  OperatorSet operators;
  Verdict inside;
  Verdict outside;
};

int strength(CheckpointPolicy policy) {
  switch (policy) {
    case CheckpointPolicy::kPreferRecompute:
      return 0;
    case CheckpointPolicy::kPreferCpuOffload:
      return 1;
    case CheckpointPolicy::kPreferSave:
      return 2;
    case CheckpointPolicy::kMustRecompute:
      return 3;
    case CheckpointPolicy::kMustCpuOffload:
      return 4;
    case CheckpointPolicy::kMustSave:
      return 5;
  }
  return 0;
}

struct EitherRule final : PolicyRule {
  using Rule = std::shared_ptr<const PolicyRule>;
  EitherRule(Rule first, Rule second) : a(std::move(first)), b(std::move(second)) {}

  // Of two equals the one without a limit keeps more surely.
  static Verdict stronger(Verdict one, Verdict other) {
    const int difference = strength(one.policy) - strength(other.policy);
    if (difference == 0) return one.limit == nullptr ? one : other;
    return difference > 0 ? one : other;
  }
  Verdict decide(const SelectiveCheckpointContext& context) const override {
    return stronger(a->decide(context), b->decide(context));
  }
  std::optional<Verdict> by_operator(const c10::FunctionSchema& schema) const override {
    const auto first = a->by_operator(schema);
    const auto second = b->by_operator(schema);
    if (!first || !second) return {};
    return stronger(*first, *second);
  }
  Rule a;
  Rule b;
};

struct EveryNthRule final : PolicyRule {
  EveryNthRule(OperatorSet set, std::int64_t every) : operators(std::move(set)), n(every) {}
  Verdict decide(const SelectiveCheckpointContext& context) const override {
    const bool nth = (context.call_index() + 1) % n == 0;
    return nth && operators.contains(context.schema()) ? kSave : kRecompute;
  }
  std::optional<Verdict> by_operator(const c10::FunctionSchema& schema) const override {
    if (!operators.contains(schema)) return kRecompute;
    return n == 1 ? std::optional(kSave) : std::nullopt;
  }
  OperatorSet operators;
  std::int64_t n;
};

struct LargestCostRule final : PolicyRule {
  explicit LargestCostRule(Bytes bytes) : limit{bytes} {}
  Verdict decide(const SelectiveCheckpointContext&) const override {
    return {CheckpointPolicy::kPreferSave, &limit};
  }
  std::optional<Verdict> by_operator(const c10::FunctionSchema&) const override {
    return Verdict{CheckpointPolicy::kPreferSave, &limit};
  }
  ByteLimit limit;
};

// Whether the dot-separated `part` is among the components of `path`, one after the other.
bool has_part(std::string_view path, std::string_view part) {
  for (std::size_t at = path.find(part); at != std::string_view::npos;
       at = path.find(part, at + 1)) {
    const std::size_t end = at + part.size();
    if ((at == 0 || path[at - 1] == '.') && (end == path.size() || path[end] == '.')) return true;
  }
  return false;
}

struct InsideRule final : PolicyRule {
  InsideRule(std::string part, std::shared_ptr<const PolicyRule> then)
      : path(std::move(part)), rule(std::move(then)) {}
  Verdict decide(const SelectiveCheckpointContext& context) const override {
    return has_part(context.path(), path) ? rule->decide(context) : kRecompute;
  }
  std::optional<Verdict> by_operator(const c10::FunctionSchema& schema) const override {
    const auto verdict = rule->by_operator(schema);
    if (verdict && verdict->policy == kRecompute.policy) return kRecompute;
    return {};
  }
  std::string path;
  std::shared_ptr<const PolicyRule> rule;
};

struct OffloadingRule final : PolicyRule {
  explicit OffloadingRule(std::shared_ptr<const PolicyRule> of) : rule(std::move(of)) {}
  static Verdict offloaded(Verdict verdict) {
    if (verdict.policy == CheckpointPolicy::kMustSave) {
      verdict.policy = CheckpointPolicy::kMustCpuOffload;
    } else if (verdict.policy == CheckpointPolicy::kPreferSave) {
      verdict.policy = CheckpointPolicy::kPreferCpuOffload;
    }
    return verdict;
  }
  Verdict decide(const SelectiveCheckpointContext& context) const override {
    return offloaded(rule->decide(context));
  }
  std::optional<Verdict> by_operator(const c10::FunctionSchema& schema) const override {
    const auto verdict = rule->by_operator(schema);
    return verdict ? std::optional(offloaded(*verdict)) : std::nullopt;
  }
  std::shared_ptr<const PolicyRule> rule;
};

// As save_all_but(), but for batched products: one whose result is larger than the matrices that it
// multiplies makes attention's scores, which belong to the core. The one that mixes the values
// makes a result that is smaller than the weights that it reads, and is kept.
struct AttentionRule final : PolicyRule {
  AttentionRule(OperatorSet batched_products, OperatorSet recomputed_operators)
      : products(std::move(batched_products)), recomputed(std::move(recomputed_operators)) {}
  Verdict decide(const SelectiveCheckpointContext& context) const override {
    if (const auto verdict = by_operator(context.schema())) return *verdict;
    const auto arguments = context.arguments();
    // The matrices of bmm, and of baddbmm after what it adds.
    const std::size_t first = arguments.size() > 2 && arguments[2].isTensor() ? 1 : 0;
    const std::int64_t result = context.results()[0].toTensor().numel();
    const bool is_of_scores = result > arguments[first].toTensor().numel() &&
                              result > arguments[first + 1].toTensor().numel();
    return is_of_scores ? kRecompute : kSave;
  }
  std::optional<Verdict> by_operator(const c10::FunctionSchema& schema) const override {
    if (products.contains(schema)) return {};
    return recomputed.contains(schema) ? kRecompute : kSave;
  }
  OperatorSet products, recomputed;
};

OperatorPolicy all_but(const std::vector<std::string>& operators, std::string_view caller) {
  return Access::policy_of(
      std::make_shared<SetRule>(OperatorSet(operators, caller), kRecompute, kSave));
}

}  // namespace

OperatorPolicy::OperatorPolicy(Function function) {
  if (!function) {
    throw UsageError("OperatorPolicy: the function is empty; give one that can be called");
  }
  rule_ = std::make_shared<FunctionRule>(std::move(function));
}

OperatorPolicy::OperatorPolicy(std::vector<std::string> operators)
    : rule_(std::make_shared<SetRule>(OperatorSet(operators, "OperatorPolicy"), kMustSave,
                                      kRecompute)) {}

OperatorPolicy operator|(const OperatorPolicy& a, const OperatorPolicy& b) {
  return OperatorPolicy(std::make_shared<EitherRule>(a.rule_, b.rule_));
}

OperatorPolicy save_matmuls() {
  // Not kMustSave: nn::Linear adds its bias to a product in place.
  static const OperatorPolicy policy = Access::policy_of(std::make_shared<SetRule>(
      OperatorSet(
          {"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_overrideable",
           "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
           "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
           "_scaled_dot_product_fused_attention_overrideable"},
          "save_matmuls()"),
      kSave, kRecompute));
  return policy;
}

OperatorPolicy save_all_but(std::vector<std::string> operators) {
  return all_but(operators, "save_all_but()");
}

OperatorPolicy save_all_but_cheap() {
  static const OperatorPolicy policy = all_but(
      {"abs",         "add",          "bitwise_and", "clamp",       "clone",          "copysign",
       "div",         "eq",           "exp",         "expand_copy", "fill",           "floor",
       "ge",          "gelu",         "gt",          "hardswish",   "hardtanh",       "le",
       "leaky_relu",  "log",          "logical_and", "logical_not", "logical_or",     "lt",
       "masked_fill", "maximum",      "minimum",     "mul",         "native_dropout", "ne",
       "neg",         "ones_like",    "pow",         "reciprocal",  "relu",           "rsqrt",
       "rsub",        "sigmoid",      "sign",        "silu",        "softplus",       "sqrt",
       "sub",         "tanh",         "threshold",   "where",       "zeros_like",     "_to_copy",
       "_softmax",    "_safe_softmax"},
      "save_all_but_cheap()");
  return policy;
}

OperatorPolicy save_largest_cost_per_byte(Bytes bytes) {
  if (bytes.count < 0) {
    throw UsageError("save_largest_cost_per_byte(): the limit is " + std::to_string(bytes.count) +
                     " bytes; it must be 0 or more");
  }
  return Access::policy_of(std::make_shared<LargestCostRule>(bytes));
}

OperatorPolicy recompute_attention() {
  constexpr std::string_view kCaller = "recompute_attention()";
  // Beside the core what lies around products and costs a pass over memory at most: what backward
  // needs of it can be made from what is kept, in no more bytes than it would take itself.
  static const OperatorPolicy policy = Access::policy_of(std::make_shared<AttentionRule>(
      OperatorSet({"bmm", "baddbmm"}, kCaller),
      OperatorSet(
          {"_softmax", "_safe_softmax", "native_dropout", "bernoulli", "masked_fill", "where",
           "add", "sub", "mul", "div", "clone", "_to_copy", "empty_like", "native_layer_norm"},
          kCaller)));
  return policy;
}

OperatorPolicy every_nth(std::string_view op, std::int64_t n) {
  if (n < 1) {
    throw UsageError("every_nth(): n is " + std::to_string(n) + "; it must be 1 or more");
  }
  return Access::policy_of(
      std::make_shared<EveryNthRule>(OperatorSet({std::string(op)}, "every_nth()"), n));
}

OperatorPolicy inside(std::string path, OperatorPolicy policy) {
  if (path.empty()) {
    throw UsageError("inside(): the path is empty; give a name that named() was given");
  }
  return Access::policy_of(std::make_shared<InsideRule>(std::move(path), Access::rule_of(policy)));
}

OperatorPolicy offloading(OperatorPolicy policy) {
  return Access::policy_of(std::make_shared<OffloadingRule>(Access::rule_of(policy)));
}

}  // namespace reprise
