#include "libtorch/base/state_apart.h"

namespace reprise::libtorch {

std::shared_ptr<ThreadState> state_without_regions() {
  auto state = copy_of_current_state();
  state->set_hooks(nullptr);
  state->effects.reset();
  state->group.reset();
  state->early_stop.reset();
  state->checkpointing = state->recomputing = false;
  state->may_be_repeated = state->replays_draws = false;
  return state;
}

std::shared_ptr<ThreadState> state_apart() {
  auto state = state_without_regions();
  state->interceptors.reset();
  state->path.reset();
  state->own_work = false;
  return state;
}

}  // namespace reprise::libtorch
