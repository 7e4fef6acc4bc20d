// Every operator whose calls the tests of the shape functions draw, and every composite operator of
// LibTorch that takes arguments drawn by its schema: bitwise the plain results and gradients where
// every argument was made by an operator of the step and every value is dropped after each.
//
// Composites are what a budget does not see itself. Some hold raw pointers into lengths and offsets
// over the operators that they call.
#include <ATen/core/dispatch/Dispatcher.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iostream>
#include <map>
#include <set>
#include <string_view>

#include "libtorch/operators/operator_facts.h"
#include "tests/libtorch/meta/shape_cases.h"
#include "tests/sweep/sweep.h"

namespace reprise {
namespace {

using at::Tensor;
using c10::IValue;
using c10::TypeKind;
using testing::Arguments;
using testing::Draw;
using testing::Swept;
using testing::Tensors;

void collect(const IValue& value, Tensors& into) {
  if (value.isTensor()) {
    into.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const Tensor& each : value.toTensorVector()) into.push_back(each);
  } else if (value.isList()) {
    for (const IValue& each : value.toListRef()) collect(each, into);
  } else if (value.isTuple()) {
    for (const IValue& each : value.toTupleRef().elements()) collect(each, into);
  }
}

// With the next of `made` wherever there is a tensor.
IValue rebuilt(const IValue& value, const Tensors& made, std::size_t& next) {
  if (value.isTensor()) return made[next++];
  if (value.isTensorList()) {
    Tensors list;
    for (std::size_t i = value.toTensorVector().size(); i > 0; --i) list.push_back(made[next++]);
    return list;
  }
  if (value.isList() && value.toList().elementType()->kind() == TypeKind::OptionalType) {
    c10::List<std::optional<Tensor>> list;
    for (const IValue& each : value.toListRef()) {
      list.push_back(each.isTensor() ? std::optional(made[next++]) : std::nullopt);
    }
    return list;
  }
  return value;
}

Swept call_of(const c10::OperatorHandle& op, const Arguments& arguments) {
  Swept swept;
  for (const IValue& value : arguments) collect(value, swept.leaves);
  swept.run = [op, arguments](const Tensors& made) {
    torch::jit::Stack stack;
    std::size_t next = 0;
    for (const IValue& value : arguments) stack.push_back(rebuilt(value, made, next));
    for (std::size_t i = stack.size(); i < op.schema().arguments().size(); ++i) {
      stack.push_back(*op.schema().arguments()[i].default_value());
    }
    op.callBoxed(&stack);
    Tensors results = made;
    for (const IValue& value : stack) collect(value, results);
    return results;
  };
  return swept;
}

// What runs plainly, and gives the same when it is run again over other memory.
std::optional<Tensors> steady_outcome(const std::function<Swept()>& make) {
  try {
    const Tensors plain = testing::swept_outcome(make, nullptr);
    Tensors junk;
    for (int size = 4; size < 18; ++size) junk.push_back(at::full({1 << size}, 3e33F));
    junk.clear();
    if (!testing::same_bits(testing::swept_outcome(make, nullptr), plain)) return std::nullopt;
    return plain;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

c10::OperatorHandle operator_of(const std::string& name) {
  const std::size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      name.substr(0, dot).c_str(), dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
}

TEST(OperatorSweep, KernelsHaveThePlainBits) {
  testing::SweepCounts counts;
  std::set<std::string> ran;
  for (const auto& cases : {testing::network_cases(), testing::image_cases(),
                            testing::element_cases(), testing::recurrent_cases()}) {
    for (const testing::ShapeCase& each : cases) {
      // Writes scratch to its workspace, which is no result here.
      if (each.op == "aten::mkldnn_rnn_layer_backward") continue;
      const c10::OperatorHandle op = operator_of(each.op);
      for (unsigned seed = 0; seed < (testing::is_long_sweep() ? 40U : 4U); ++seed) {
        const auto make = [&] {
          Draw draw(seed);
          return call_of(op, each.arguments(draw));
        };
        const auto plain = steady_outcome(make);
        if (!plain) continue;
        EXPECT_TRUE(testing::is_right_when_dropped(make, *plain, Bytes(1), counts))
            << each.op << " draw " << seed;
        ran.insert(each.op);
      }
    }
  }
  EXPECT_GE(ran.size(), 110U);
  std::cout << ran.size() << " operators, " << counts.cases << " calls, " << counts.dropped
            << " values dropped, " << counts.replayed << " operators replayed\n";
}

// Arguments by an operator's schema.
class Drawn {
 public:
  explicit Drawn(unsigned seed) : draw_(seed) {
    sizes_ = draw_.pick<std::vector<std::int64_t>>(
        {{4}, {4, 4}, {2, 4, 4}, {2, 3, 4, 4}, {4, 4}, {72, 72}, {5000}});
  }

  // None where it has none of this kind.
  std::optional<Arguments> of(const c10::FunctionSchema& schema) {
    Arguments arguments;
    for (const c10::Argument& argument : schema.arguments()) {
      auto value = of(*argument.type(), argument.name(), argument.default_value());
      if (!value) return std::nullopt;
      arguments.push_back(std::move(*value));
    }
    return arguments;
  }

 private:
  static bool names_any(std::string_view name, std::initializer_list<std::string_view> parts) {
    return std::ranges::any_of(
        parts, [&](std::string_view part) { return name.find(part) != std::string_view::npos; });
  }

  // Lengths and places: small, and increasing.
  Tensor numbers(std::string_view name) {
    const std::int64_t most = sizes_.size() == 1 ? 3 : sizes_.back();
    if (names_any(name, {"target", "label"})) return draw_.whole({sizes_.front()}, 4);
    const std::int64_t count = draw_.pick<std::int64_t>({most, 1, sizes_.front(), 3});
    return std::get<0>(draw_.whole({count}, 4).sort());
  }

  Tensor tensor(std::string_view name) {
    if (names_any(name, {"mask", "condition"})) return at::rand(sizes_) > 0.5;
    const bool counts = names_any(name, {"indices", "index", "length", "offset", "section", "size",
                                         "target", "label", "repeat", "count", "fweights"});
    if (counts || draw_.number(0, 9) == 0) return numbers(name);
    std::vector<std::int64_t> sizes = sizes_;
    const std::int64_t kind = draw_.number(0, 9);
    if (kind == 0) sizes.erase(sizes.begin());
    if (kind == 1) sizes.assign(1, sizes_.back());
    return at::rand(sizes).mul_(0.8).add_(0.1).requires_grad_(draw_.coin());
  }

  std::optional<IValue> list_of(const c10::Type& element, std::string_view name) {
    const std::int64_t count = draw_.number(1, 3);
    switch (element.kind()) {
      case TypeKind::TensorType: {
        Tensors list;
        for (std::int64_t i = 0; i < count; ++i) list.push_back(tensor(name));
        return IValue(list);
      }
      case TypeKind::OptionalType: {
        if (element.containedType(0)->kind() != TypeKind::TensorType) return std::nullopt;
        c10::List<std::optional<Tensor>> list;
        list.push_back(numbers(name));
        return IValue(list);
      }
      case TypeKind::SymIntType:
      case TypeKind::IntType: {
        std::vector<std::int64_t> list;
        for (std::int64_t i = 0; i < count; ++i) {
          list.push_back(names_any(name, {"dim"}) ? i : draw_.number(1, 3));
        }
        if (names_any(name, {"size", "shape"}) && draw_.coin()) list = sizes_;
        return IValue(list);
      }
      case TypeKind::FloatType:
        return IValue(std::vector<double>(static_cast<std::size_t>(count), 0.5));
      case TypeKind::BoolType:
        return IValue(c10::List<bool>({draw_.coin(), draw_.coin()}));
      default:
        return std::nullopt;
    }
  }

  std::optional<IValue> of(const c10::Type& type, std::string_view name,
                           const std::optional<IValue>& otherwise) {
    if (otherwise && draw_.number(0, 9) < 6) return *otherwise;
    switch (type.kind()) {
      case TypeKind::TensorType:
        return tensor(name);
      case TypeKind::OptionalType:
        if (otherwise || draw_.coin()) return IValue();
        return of(*type.containedType(0), name, std::nullopt);
      case TypeKind::ListType:
        return list_of(*type.containedType(0), name);
      case TypeKind::SymIntType:
      case TypeKind::IntType:
        return IValue(draw_.pick<std::int64_t>({0, 1, -1, 2, 3}));
      case TypeKind::FloatType:
        return IValue(draw_.pick<double>({0.5, 1, 0.25}));
      case TypeKind::NumberType:
        return IValue(draw_.pick<double>({2, 0.5, 1}));
      case TypeKind::BoolType:
        return IValue(draw_.coin());
      default:
        return otherwise ? otherwise : std::nullopt;
    }
  }

  Draw draw_;
  std::vector<std::int64_t> sizes_;
};

// max_pool1d without gradients and helpers of quantization read and write floats through a pointer:
// on a dropped tensor they say so.
bool is_left_out(std::string_view name) {
  constexpr std::string_view kLeftOut[] = {"aten::quantized_", "aten::fbgemm_",
                                           "aten::_saturate_weight_to_fp16",
                                           "aten::choose_qparams_optimized"};
  return name == "aten::max_pool1d" || std::ranges::any_of(kLeftOut, [&](std::string_view part) {
           return name.starts_with(part);
         });
}

std::vector<c10::OperatorHandle> composites() {
  std::map<std::string, c10::OperatorHandle> found;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || !name.name.starts_with("aten::") || is_left_out(name.name)) continue;
    const libtorch::OperatorFacts& facts = libtorch::facts_of(*op);
    // Composites resize an `out=` of another shape past the dispatcher: a dropped one throws.
    const bool has_out = std::ranges::any_of(op->schema().arguments(), &c10::Argument::is_out);
    if (facts.composite && !facts.metadata_only && !has_out)
      found.emplace(c10::toString(name), *op);
  }
  std::vector<c10::OperatorHandle> all;
  for (const auto& [name, op] : found) all.push_back(op);
  return all;
}

// What a process of its own tells of an operator: some trust their arguments, and end it.
struct Told {
  testing::SweepCounts counts;
  bool has_run = false;
  bool is_wrong = false;
  bool is_in_step = false;
};

void run_composite(const c10::OperatorHandle& op, Told& told) {
  const std::string name = c10::toString(op.operator_name());
  std::int64_t left = testing::is_long_sweep() ? 12 : 2;
  for (unsigned seed = 0; seed < (testing::is_long_sweep() ? 400U : 30U) && left > 0; ++seed) {
    const auto arguments = [&] {
      at::manual_seed(seed);
      return Drawn(seed).of(op.schema());
    };
    if (!arguments()) continue;
    const auto make = [&] { return call_of(op, *arguments()); };
    const auto plain = steady_outcome(make);
    if (!plain) continue;
    --left;
    told.has_run = true;
    told.is_in_step = true;
    for (const Bytes min_bytes : {Bytes(1), KiB(16)}) {
      const auto right = testing::is_right_when_dropped(make, *plain, min_bytes, told.counts);
      if (right) continue;
      told.is_wrong = true;
      std::cerr << name << " draw " << seed << " from " << to_string(min_bytes)
                << " on: " << right.message() << std::endl;
    }
    told.is_in_step = false;
  }
}

TEST(OperatorSweep, CompositesHaveThePlainBits) {
  if (!testing::is_long_sweep()) GTEST_SKIP() << "by hand: REPRISE_LONG_SWEEP=1";
  auto* const told = static_cast<Told*>(
      mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(told, MAP_FAILED);
  testing::SweepCounts counts;
  std::int64_t ran = 0;
  std::string ended;
  const std::vector<c10::OperatorHandle> all = composites();
  const char* const only = std::getenv("REPRISE_SWEEP_OPERATOR");
  for (const c10::OperatorHandle& op : all) {
    const std::string name = c10::toString(op.operator_name());
    if (only != nullptr && name != only) continue;
    *told = Told();
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      // By the time of the processor, which load on the machine does not change.
      const itimerval most{{}, {60, 0}};
      setitimer(ITIMER_VIRTUAL, &most, nullptr);
      run_composite(op, *told);
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) ended += " " + name;
    EXPECT_FALSE(told->is_wrong) << name;
    EXPECT_FALSE(WIFSIGNALED(status) && told->is_in_step) << name << " ends the process in a step";
    ran += told->has_run ? 1 : 0;
    counts.cases += told->counts.cases;
    counts.dropped += told->counts.dropped;
    counts.replayed += told->counts.replayed;
  }
  munmap(told, sizeof(Told));
  EXPECT_GE(ran, only != nullptr ? 1 : 300);
  std::cout << ran << " of " << all.size() << " composite operators, " << counts.cases << " calls, "
            << counts.dropped << " values dropped, " << counts.replayed
            << " operators replayed; ended their process outside of steps:" << ended << '\n';
}

}  // namespace
}  // namespace reprise
