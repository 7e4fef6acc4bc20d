#include "libtorch/operators/draw_stream.h"

#include <ATen/Context.h>
#include <ATen/core/stack.h>
#include <reprise/random_state.h>

#include <algorithm>
#include <optional>

#include "libtorch/operators/operator_effects.h"
#include "libtorch/operators/operator_facts.h"
#include "libtorch/operators/operator_interceptor.h"

namespace reprise::libtorch {
namespace {

bool is_given(const OperatorFacts& facts, c10::ArrayRef<c10::IValue> arguments) {
  return facts.generator != OperatorFacts::kNone && arguments[facts.generator].isGenerator();
}

// Gives the draws inside a kernel the stream's generator.
class Inside final : public OperatorInterceptor {
 public:
  explicit Inside(DrawStream& stream) : stream_(stream) {}

  void intercept(OperatorCall& call) override {
    const OperatorFacts& facts = facts_of(call.handle());
    const bool takes_generator = facts.generator != OperatorFacts::kNone;
    if (facts.composite || (facts.draws_random && !takes_generator)) {
      const KernelInterceptorScope inside(
          std::shared_ptr<OperatorInterceptor>(std::shared_ptr<void>(), this));
      return call.proceed();
    }
    if (!facts.draws_random || is_given(facts, call.arguments())) return;
    if (const auto generator = generator_of_draw(facts, call.arguments())) {
      call.replace_argument(static_cast<std::size_t>(facts.generator),
                            stream_.generator_for(generator->device()));
    }
  }

 private:
  DrawStream& stream_;
};

// The default generator of an accelerator draws as the stream's own would, until destroyed.
class Swapped {
 public:
  Swapped(at::Generator usual, at::Generator own)
      : lock_(mutex()),
        usual_(std::move(usual)),
        own_(std::move(own)),
        before_(RandomState::of_generators({&usual_, 1})) {
    set(usual_, own_);
  }
  ~Swapped() {
    set(own_, usual_);
    before_.restore();
  }
  Swapped(const Swapped&) = delete;
  Swapped& operator=(const Swapped&) = delete;

 private:
  static std::mutex& mutex() {
    static auto* const mutex = new std::mutex;
    return *mutex;
  }
  static void set(at::Generator& to, const at::Generator& from) {
    const std::scoped_lock locks(to.mutex());
    to.set_state(from.get_state());
  }

  std::unique_lock<std::mutex> lock_;
  at::Generator usual_, own_;
  RandomState before_;
};

std::shared_ptr<ThreadState> state_with(std::shared_ptr<DrawStream> stream) {
  auto state = copy_of_current_state();
  state->draws = std::move(stream);
  return state;
}

}  // namespace

DrawStream::DrawStream() { operator_interceptor_variant(); }

void DrawStream::start(std::uint64_t seed) {
  const std::lock_guard<std::mutex> lock(mutex_);
  seed_ = seed;
  for (auto& [device, generator] : generators_) {
    const std::lock_guard<std::mutex> drawing(generator.mutex());
    generator.set_current_seed(seed);
  }
}

at::Generator DrawStream::generator_for(c10::Device device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [known, generator] : generators_) {
    if (known == device) return generator;
  }
  at::Generator usual = at::globalContext().defaultGenerator(device);
  at::Generator own = [&] {
    const std::lock_guard<std::mutex> drawing(usual.mutex());
    return usual.clone();
  }();
  own.set_current_seed(seed_);
  return generators_.emplace_back(device, std::move(own)).second;
}

bool DrawStream::owns(const at::Generator& generator) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(generators_.begin(), generators_.end(),
                     [&](const auto& known) { return known.second == generator; });
}

std::shared_ptr<DrawStream> current_draws() {
  const ThreadState* const state = current_state();
  return state != nullptr ? state->draws : nullptr;
}

DrawStreamScope::DrawStreamScope(std::shared_ptr<DrawStream> stream)
    : in_force_(state_with(std::move(stream))), included_(keys_of_effects()) {}

void draw_from(DrawStream& stream, const OperatorFacts& facts, std::vector<c10::IValue>& stack,
               std::size_t arguments, const std::function<void()>& call) {
  const auto given = torch::jit::last(stack, arguments);
  const auto generator = generator_of_draw(facts, given);
  if (!generator || is_given(facts, given)) return call();
  at::Generator own = stream.generator_for(generator->device());
  if (facts.generator != OperatorFacts::kNone) {
    stack[stack.size() - arguments + static_cast<std::size_t>(facts.generator)] = std::move(own);
    return call();
  }
  if (generator->device().is_cpu()) {
    const KernelInterceptorScope inside(std::make_shared<Inside>(stream));
    return call();
  }
  const Swapped swapped(*generator, std::move(own));
  call();
}

}  // namespace reprise::libtorch
