// The order of the handlers matters: c10::Error is a std::exception too.
#include "apps/cli/io/failure.h"

#include <c10/util/Exception.h>

#include <new>

namespace reprise::app {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& thrown) {
    return first_line(thrown.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return "cannot allocate memory";
  } catch (const std::exception& thrown) {
    return first_line(thrown.what());
  }
}

}  // namespace reprise::app
