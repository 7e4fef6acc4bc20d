#include "libtorch/operators/own_draws.h"

#include <ATen/CPUGeneratorImpl.h>
#include <reprise/error.h>

#include <mutex>
#include <string_view>

#include "libtorch/operators/operator_effects.h"
#include "libtorch/random/cpu_generator_state.h"

namespace reprise::libtorch {
namespace {

CpuGeneratorState state_of(const at::Generator& generator) {
  return CpuGeneratorState(*generator.get<at::CPUGeneratorImpl>());
}

// However the call ends, the generator is then where its copy was left.
class Copied {
 public:
  explicit Copied(at::Generator generator)
      : generator_(std::move(generator)),
        lock_(generator_.mutex()),
        before(generator_.clone()),
        own(before.clone()) {}
  ~Copied() {
    auto& to = *generator_.get<at::CPUGeneratorImpl>();
    auto& from = *own.get<at::CPUGeneratorImpl>();
    to.set_engine(from.engine());
    to.set_next_float_normal_sample(from.next_float_normal_sample());
    to.set_next_double_normal_sample(from.next_double_normal_sample());
  }
  Copied(const Copied&) = delete;
  Copied& operator=(const Copied&) = delete;

 private:
  at::Generator generator_;
  const std::lock_guard<std::mutex> lock_;

 public:
  const at::Generator before, own;
};

void give(OperatorCall& call, const OperatorFacts& facts, at::Generator generator) {
  call.replace_argument(static_cast<std::size_t>(facts.generator), std::move(generator));
}

// Whether it may draw through the operators that it calls.
bool draws_deeper(const OperatorFacts& facts) {
  return facts.composite || (facts.draws_random && facts.generator == OperatorFacts::kNone);
}

void proceed_inside(OperatorCall& call, OperatorInterceptor& interceptor) {
  const KernelInterceptorScope inside(
      std::shared_ptr<OperatorInterceptor>(std::shared_ptr<void>(), &interceptor));
  call.proceed();
}

// Gives the draws inside a kernel their copies.
class Given final : public OperatorInterceptor {
 public:
  explicit Given(const std::vector<at::Generator>& before) : before_(before) {}
  void intercept(OperatorCall& call) override {
    const OperatorFacts& facts = facts_of(call.handle());
    if (draws_deeper(facts)) return proceed_inside(call, *this);
    if (!facts.draws_random) return;
    if (next_ == before_.size()) {
      throw DeterminismError("memory budget: " + call.schema().name() +
                             " draws random numbers inside of an operator that was run again, and "
                             "did not do so at first");
    }
    give(call, facts, before_[next_++].clone());
  }

 private:
  const std::vector<at::Generator> before_;
  std::size_t next_ = 0;
};

}  // namespace

// Sees the operators that a kernel calls which takes no generator itself.
class OwnDraws::Inside final : public OperatorInterceptor {
 public:
  Inside(OwnDraws& draws, const at::Generator& generator)
      : draws_(draws), generator_(generator), now_(state_of(generator)) {}

  void intercept(OperatorCall& call) override {
    const OperatorFacts& facts = facts_of(call.handle());
    if (draws_deeper(facts)) return proceed_inside(call, *this);
    const auto generator = generator_of_draw(facts, call.arguments());
    if (!generator) return;
    is_seen_ = is_seen_ && is_plain_cpu_generator(*generator);
    if (!is_seen_) return;
    if (*generator == generator_) look();
    draws_.run_with_copy(call, *generator);
    if (*generator == generator_) now_ = state_of(generator_);
  }
  // Whether the generator is where the draws that were seen have left it.
  void look() {
    is_followed_ = is_followed_ && now_.is_current(*generator_.get<at::CPUGeneratorImpl>());
  }
  bool is_seen() const { return is_seen_; }
  bool is_followed() const { return is_followed_; }

 private:
  OwnDraws& draws_;
  const at::Generator generator_;
  CpuGeneratorState now_;
  bool is_seen_ = true;
  bool is_followed_ = true;
};

OwnDraws::OwnDraws(OperatorCall& call, const OperatorFacts& facts)
    : call_(call), facts_(facts), shared_(call.draws_ != nullptr ? *call.draws_ : *this) {
  call.draws_ = &shared_;
}

OwnDraws::~OwnDraws() {
  if (&shared_ == this) call_.draws_ = nullptr;
}

void OwnDraws::run(OperatorCall& call) {
  // It may be run again, where memory did not suffice.
  drawn_ = {};
  drawn_.is_known = true;
  const auto generator = generator_of_draw(facts_, call.arguments());
  if (!generator) return call.run_operator();
  if (!is_plain_cpu_generator(*generator)) {
    drawn_.unseen.emplace(*generator, RandomState::of_generators({&*generator, 1}));
    return call.run_operator();
  }
  if (facts_.generator != OperatorFacts::kNone) return run_with_copy(call, *generator);
  run_inside(call);
}

void OwnDraws::run_with_copy(OperatorCall& call, const at::Generator& generator) {
  const Copied copied(generator);
  give(call, facts_of(call.handle()), copied.own);
  drawn_.before.push_back(copied.before);
  call.run_operator();
}

void OwnDraws::run_inside(OperatorCall& call) {
  const at::Generator generator = *generator_of_draw(facts_, call.arguments());
  RandomState before = RandomState::of_generators({&generator, 1});
  const auto inside = std::make_shared<Inside>(*this, generator);
  {
    const KernelInterceptorScope scope(inside);
    call.run_operator();
  }
  inside->look();
  // LibTorch's own kernels draw in no other way. Another library's may: then the generator has
  // moved by more than what was seen, or another thread has drawn meanwhile.
  const bool is_own = std::string_view(call.schema().name()).starts_with("aten::");
  if (inside->is_seen() && (inside->is_followed() || (is_own && !drawn_.before.empty()))) return;
  drawn_.before.clear();
  drawn_.unseen.emplace(generator, std::move(before));
}

DrawsAgain::DrawsAgain(const std::vector<at::Generator>& before)
    : scope_(std::make_shared<Given>(before)) {}

}  // namespace reprise::libtorch
