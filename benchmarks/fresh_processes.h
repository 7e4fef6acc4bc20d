// Compares this program before and after something was put in place in it for good, such as the
// front before autograd's engine: each side in processes of its own, which run a chain of sin.
//
// Where a process happens to put its heap and its libraries moves such a figure more than what is
// looked for does, so several fresh processes of each side take part.
#pragma once

#include <string>

#include "session.h"

namespace reprise::bench {

// Reports the microseconds an operator, "<bench>" against "stock"; `runs` counts processes.
void compare_with_stock(Session& session, const std::string& side, const std::string& bench,
                        const std::string& name);

// The other end, in the fresh process. `side`: "stock", or what is put in place: "hooks" or
// "interceptor".
void serve_side(const std::string& side);

}  // namespace reprise::bench
