// stdio rather than fmt's own printing, which throws where a message cannot be written.
#include "apps/cli/io/streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <system_error>

#include "apps/cli/io/figures.h"

namespace reprise::app {

void prepare_streams() {
  std::signal(SIGPIPE, SIG_IGN);
  // open() takes the lowest free number. Opened for reading, stdout keeps failing to write.
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    const bool is_closed = ::fcntl(fd, F_GETFD) < 0 && errno == EBADF;
    if (is_closed && ::open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) != fd) return;
  }
}

void print_result(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void print_object(const nlohmann::json& object) {
  print_result(object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void print_error_line(std::string_view text) {
  const std::string line = escape(text) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

std::optional<std::string> lost_output() {
  errno = 0;
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout);
  if (!lost) return std::nullopt;
  return errno ? std::generic_category().message(errno) : "an earlier write failed";
}

}  // namespace reprise::app
