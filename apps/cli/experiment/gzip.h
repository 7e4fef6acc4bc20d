// Data files that come compressed.
#pragma once

#include <string>
#include <string_view>

namespace reprise::app {

// What a gzip file, of one or several members, holds. Throws UsageError, naming `origin`, for bytes
// that are none, or that end too early.
std::string gunzip(std::string_view bytes, const std::string& origin);

}  // namespace reprise::app
