// The pair of contexts: opened around the function in forward and around each recomputation, and
// closed right after it, also when it throws.
#include "tests/region/testing.h"

#include <ATen/record_function.h>

namespace reprise {
namespace {

using namespace reprise::testing;

using Events = std::vector<std::string>;

// Notes its life in a list.
ContextScope noted(Events& events, const std::string& name) {
  events.push_back("open " + name);
  return ContextScope(nullptr, [&events, name](void*) { events.push_back("close " + name); });
}

CheckpointOptions with_contexts(Events& events) {
  CheckpointOptions options;
  options.context = [&events] {
    events.push_back("context");
    return RegionContexts{.forward = [&events] { return noted(events, "forward"); },
                          .recompute = [&events] { return noted(events, "recompute"); }};
  };
  return options;
}

// Lists the operators that run on this thread while it lives.
class OperatorLog {
 public:
  explicit OperatorLog(Events& names) {
    current = &names;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& f)
                                       -> std::unique_ptr<at::ObserverContext> {
          current->push_back(f.name());
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ~OperatorLog() { at::removeCallback(handle_); }
  OperatorLog(const OperatorLog&) = delete;
  OperatorLog& operator=(const OperatorLog&) = delete;

 private:
  static thread_local Events* current;
  at::CallbackHandle handle_;
};
thread_local Events* OperatorLog::current = nullptr;

TEST(CheckpointContext, IsAskedForOnceAndOpenedAroundEachRun) {
  Events events;
  const at::Tensor x = leaf();
  const at::Tensor loss = checkpoint(
                              with_contexts(events),
                              [&](const at::Tensor& t) {
                                events.push_back(is_recomputing() ? "run again" : "run");
                                return t.exp();
                              },
                              x)
                              .sum();
  EXPECT_EQ(events, (Events{"context", "open forward", "run", "close forward"}));
  events.clear();
  const Events recomputation = {"open recompute", "run again", "close recompute"};
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(events, recomputation);
  events.clear();
  loss.backward();
  EXPECT_EQ(events, recomputation);
}

TEST(CheckpointContext, CoversTheOperatorsOfItsRunAndOnlyThose) {
  const at::Tensor x = leaf({});
  const auto operators_in = [&](bool forward) {
    Events names;
    CheckpointOptions options = with_early_stop(EarlyStop::kNever);
    options.context = [&] {
      const auto log = [&] { return std::make_shared<OperatorLog>(names); };
      return forward ? RegionContexts{.forward = log, .recompute = {}}
                     : RegionContexts{.forward = {}, .recompute = log};
    };
    const at::Tensor y = checkpoint(
        options, [](const at::Tensor& t) { return t.exp(); }, x);
    const std::size_t after_forward = names.size();
    y.backward();
    EXPECT_EQ(after_forward, forward ? names.size() : 0u);
    // Autograd and the region may detach what they save.
    std::erase_if(names,
                  [](const std::string& name) { return name.find("detach") != std::string::npos; });
    return names;
  };
  EXPECT_EQ(operators_in(true), Events{"aten::exp"});
  EXPECT_EQ(operators_in(false), Events{"aten::exp"});
}

TEST(CheckpointContext, EitherFunctionMayBeMissing) {
  const at::Tensor x = leaf();
  // The outer recomputation ends when the inner region's argument is there.
  CheckpointOptions options = with_early_stop(EarlyStop::kAlways);
  options.context = [] { return RegionContexts(); };
  EXPECT_TRUE(same_bits(gradients_of(
                            [&] {
                              return checkpoint(
                                  options, [](const at::Tensor& t) { return t.exp(); }, x);
                            },
                            {x}),
                        gradients_of([&] { return x.exp(); }, {x})));
}

TEST(CheckpointContext, IsClosedWhenTheFunctionThrows) {
  const at::Tensor x = leaf();
  Events events;
  const auto fails = [](bool again) {
    return [again](const at::Tensor& t) {
      if (is_recomputing() == again) throw std::runtime_error("failed");
      return t.sin().exp();
    };
  };
  EXPECT_EQ(
      error_of<std::runtime_error>([&] { checkpoint(with_contexts(events), fails(false), x); }),
      "failed");
  EXPECT_EQ(events, (Events{"context", "open forward", "close forward"}));
  events.clear();
  const at::Tensor loss = checkpoint(with_contexts(events), fails(true), x).sum();
  events.clear();
  error_of<std::runtime_error>([&] { loss.backward(); });
  EXPECT_EQ(events, (Events{"open recompute", "close recompute"}));
}

TEST(CheckpointContext, IsClosedWhenTheRecomputationStopsEarly) {
  const at::Tensor x = leaf();
  Events events;
  CheckpointOptions options = with_contexts(events);
  options.early_stop = EarlyStop::kAlways;
  const at::Tensor loss = checkpoint(
                              options, [](const at::Tensor& t) { return t.sin().cos() * 1; }, x)
                              .sum();
  events.clear();
  loss.backward();
  EXPECT_EQ(events, (Events{"open recompute", "close recompute"}));
}

TEST(CheckpointContext, AScopeOfThisLibraryIsAContextForTheRegionsInside) {
  const at::Tensor x = leaf();
  // The outer recomputation ends when the inner region's argument is there.
  CheckpointOptions options = with_early_stop(EarlyStop::kAlways);
  options.context = [] {
    return RegionContexts{
        .forward = [] { return std::make_shared<EarlyStopScope>(EarlyStop::kNever); },
        .recompute = {}};
  };
  int inner_tails = 0;
  const auto inner = [&](const at::Tensor& t) {
    const at::Tensor y = t.exp();
    const at::Tensor z = y.sin();
    ++inner_tails;
    return z * 1;
  };
  const auto outer = [&](const at::Tensor& t) {
    return checkpoint(with_early_stop(EarlyStop::kAlways), inner, t);
  };
  checkpoint(options, outer, x).sum().backward();
  EXPECT_EQ(inner_tails, 2);
}

}  // namespace
}  // namespace reprise
