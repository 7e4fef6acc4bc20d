// Operators of other libraries: arguments that LibTorch's own operators seldom take, results that
// their schemas say little about, and collectives, which go on after they have returned.

#include <torch/library.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tests/tape/testing.h"

namespace reprise {
namespace {

using at::Tensor;
using testing::does_the_same_when_all_is_dropped;
using testing::paranoid;
using testing::same_bits;
using testing::Tensors;

Tensor sum_of_defined(at::TensorList list) {
  Tensor sum = at::zeros({4, 6});
  for (const Tensor& tensor : list) {
    if (tensor.defined()) sum = sum + tensor;
  }
  return sum;
}

void sum_of_lists(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  const c10::IValue lists = torch::jit::pop(*stack);
  Tensor sum = at::zeros({4, 6});
  for (const c10::IValue& list : lists.toListRef()) {
    for (const Tensor& tensor : list.toTensorVector()) sum = sum + tensor;
  }
  torch::jit::push(*stack, sum);
}

Tensor sum_of_dictionary(const c10::Dict<std::string, Tensor>& tensors) {
  Tensor sum = at::zeros({4, 6});
  for (const auto& entry : tensors) sum = sum + entry.value();
  return sum;
}

// Its schema does not say that the result is the argument.
Tensor same(const Tensor& tensor) { return tensor; }

// Holds on to its result.
Tensor& held() {
  static Tensor tensor;
  return tensor;
}
Tensor hold(const Tensor& tensor) { return held() = tensor.exp(); }

// Calls operators, and reads and writes their results through pointers.
Tensor square_by_pointer(const Tensor& tensor) {
  const Tensor from = tensor.contiguous().mul(2);
  Tensor to = at::empty_like(from);
  const float* const values = from.const_data_ptr<float>();
  float* const squares = to.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < from.numel(); ++i) squares[i] = values[i] * values[i];
  return to.add_(1);
}

// Takes another way where there is no workspace, as LibTorch's batched products by oneDNN do.
Tensor with_workspace(const Tensor& tensor) {
  try {
    at::empty({tensor.numel() * 4});
    return tensor.exp();
  } catch (const std::exception&) {
    at::globalContext().setUserEnabledMkldnn(false);
    return tensor.sin();
  }
}

TORCH_LIBRARY(reprise_tape_test, library) {
  library.def("with_workspace(Tensor tensor) -> Tensor");
  library.def("square_by_pointer(Tensor tensor) -> Tensor");
  library.def("sum_of_defined(Tensor[] list) -> Tensor");
  library.def("sum_of_lists(Tensor[][] lists) -> Tensor");
  library.def("sum_of_dictionary(Dict(str, Tensor) tensors) -> Tensor");
  library.def("same(Tensor tensor) -> Tensor");
  library.def("hold(Tensor tensor) -> Tensor");
}

TORCH_LIBRARY_IMPL(reprise_tape_test, CPU, library) {
  library.impl("square_by_pointer", square_by_pointer);
  library.impl("sum_of_defined", sum_of_defined);
  library.impl("same", same);
  library.impl("hold", hold);
  library.impl("with_workspace", with_workspace);
}
TORCH_LIBRARY_IMPL(reprise_tape_test, CompositeExplicitAutograd, library) {
  library.impl("sum_of_lists", torch::CppFunction::makeFromBoxedFunction<&sum_of_lists>());
  library.impl("sum_of_dictionary", sum_of_dictionary);
}

Tensor call(const char* name, c10::IValue argument) {
  torch::jit::Stack stack{std::move(argument)};
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
  return stack[0].toTensor();
}

TEST(CustomOperators, ThatComputeThroughPointersAreRunAgainAsAnyOther) {
  const at::NoGradGuard no_grad;
  const auto f = [] {
    Tensors all{at::linspace(0, 1, 64 * 1024)};
    for (int i = 0; i < 8; ++i) {
      all.push_back(call("reprise_tape_test::square_by_pointer", all.back()).sin());
    }
    return all;
  };
  EXPECT_TRUE(does_the_same_when_all_is_dropped(f));
  const Tensors plain = f();
  const Bytes limit = testing::limit_at(0.5, f);
  MemoryBudget budget(limit, {.plan_repeated_steps = false});
  auto step = budget.step();
  const Tensors mine = f();
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(mine[i].sum().item<float>(), plain[i].sum().item<float>());
  }
  EXPECT_GT(budget.report().replayed, 0);
  EXPECT_LE(budget.report().peak, limit);
}

// In forward and in replays.
TEST(CustomOperators, ThatCatchARefusalAndComputeInAnotherWayFailAllTheSame) {
  const at::NoGradGuard no_grad;
  const auto f = [] {
    Tensors all{at::linspace(0, 1, 64 * 1024)};
    for (int i = 0; i < 6; ++i) {
      all.push_back(call("reprise_tape_test::with_workspace", all.back().sin()));
    }
    return all;
  };
  const Tensors plain = f();
  int fitting = 0, refused = 0;
  for (double share = 0.2; share < 1; share += 0.02) {
    MemoryBudget budget(testing::limit_at(share, f), {.plan_repeated_steps = false});
    try {
      auto step = budget.step();
      const Tensors mine = f();
      for (std::size_t i = 0; i < plain.size(); ++i) {
        EXPECT_TRUE(at::equal(mine[i], plain[i])) << share;
      }
      ++fitting;
    } catch (const BudgetError&) {
      ++refused;
    }
    EXPECT_TRUE(at::globalContext().userEnabledMkldnn()) << share;
    at::globalContext().setUserEnabledMkldnn(true);
  }
  EXPECT_GT(fitting, 0);
  EXPECT_GT(refused, 0);
}

TEST(CustomOperators, UndefinedTensorsInLists) {
  EXPECT_TRUE(does_the_same_when_all_is_dropped([] {
    const Tensor x = at::randn({4, 6}).exp();
    const c10::List<Tensor> list({x.sin(), Tensor(), x.cos(), Tensor()});
    return Tensors{call("reprise_tape_test::sum_of_defined", list).exp()};
  }));
}

TEST(CustomOperators, TensorsDeepInsideOfArguments) {
  EXPECT_TRUE(does_the_same_when_all_is_dropped([] {
    const Tensor x = at::randn({4, 6}).exp();
    const c10::List<c10::List<Tensor>> lists(
        {c10::List<Tensor>({x.sin(), x}), c10::List<Tensor>({x.cos()})});
    c10::Dict<std::string, Tensor> dictionary;
    dictionary.insert("one", x.tan());
    dictionary.insert("two", x);
    return Tensors{call("reprise_tape_test::sum_of_lists", lists).exp(),
                   call("reprise_tape_test::sum_of_dictionary", dictionary).sin()};
  }));
}

TEST(CustomOperators, ResultsThatAreAnArgumentOrAreHeldElsewhere) {
  EXPECT_TRUE(does_the_same_when_all_is_dropped([] {
    const Tensor x = at::randn({4, 6}).exp();
    Tensor again = call("reprise_tape_test::same", x.sin());
    again.mul_(2);
    const Tensor kept = call("reprise_tape_test::hold", x);
    EXPECT_NO_THROW(held().data_ptr<float>());
    held().mul_(2);
    const Tensor result = kept.sin();
    held() = Tensor();
    return Tensors{again, kept, result};
  }));
}

// An all-reduce of one process that writes its sum long after it has returned.
class LateBackend final : public c10d::Backend {
 public:
  class Late final : public c10d::Work {
   public:
    explicit Late(Tensors tensors)
        : c10d::Work(0, c10d::OpType::ALLREDUCE), tensors_(std::move(tensors)) {
      for (const Tensor& tensor : tensors_) data_.push_back(tensor.mutable_data_ptr<float>());
    }
    bool wait(std::chrono::milliseconds) override {
      for (std::size_t i = 0; i < tensors_.size(); ++i) {
        for (std::int64_t k = 0; k < tensors_[i].numel(); ++k) data_[i][k] += 1;
      }
      return true;
    }

   private:
    Tensors tensors_;
    std::vector<float*> data_;
  };

  LateBackend() : c10d::Backend(0, 1) {}
  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& tensors,
                                           const c10d::AllreduceOptions&) override {
    ++calls;
    return c10::make_intrusive<Late>(tensors);
  }
  int calls = 0;
};

TEST(CustomOperators, WhatACollectiveWorksOnStaysWhereItIs) {
  const auto backend = c10::make_intrusive<LateBackend>();
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(0, 1);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  EXPECT_TRUE(does_the_same_when_all_is_dropped([&] {
    const Tensor x = at::randn({4, 6}).exp();
    Tensors mine{x.sin()};
    const Tensor before = mine[0].cos();
    const auto work = group->allreduce(mine);
    const Tensor meanwhile = x.exp().sin();
    work->wait();
    return Tensors{mine[0], before * 1, mine[0].cos(), meanwhile};
  }));
  EXPECT_EQ(backend->calls, 2);
}

}  // namespace
}  // namespace reprise
