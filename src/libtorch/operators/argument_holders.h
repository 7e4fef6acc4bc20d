// Whether somebody else holds a tensor that a call is given. Autograd adds gradients up in place
// where only its engine holds the first of them, and goes by the tensor's use count; by the time an
// interceptor sees the call, the diverted call's stacks hold its arguments too, as many as the
// interceptor's variant and LibTorch's way of boxing make.
#pragma once

#include <cstddef>

namespace reprise::libtorch {

// The use count that an interceptor finds at the first argument of an add, of a tensor that its
// caller alone holds. Found out by such a call, at the first question of the process; any number of
// threads may ask, in whatever state they are.
std::size_t holders_of_an_argument();

// The same, found out anew by each call.
std::size_t count_holders_of_an_argument();

}  // namespace reprise::libtorch
