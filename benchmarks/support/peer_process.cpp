// Pipes and a child process; see peer_process.h.
#include "benchmarks/support/peer_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>
#include <sstream>
#include <stdexcept>

namespace reprise::bench {
namespace {

constexpr std::string_view kOk = "ok ";

void replace_descriptor(int from, int to) {
  ::dup2(from, to);
  ::close(from);
}

}  // namespace

PeerProcess::PeerProcess(const std::vector<std::string>& command) : program_(command.at(0)) {
  // A peer that has died must be an error text, not a signal that ends this program.
  std::signal(SIGPIPE, SIG_IGN);
  int requests[2];
  int answers[2];
  if (::pipe2(requests, O_CLOEXEC) != 0 || ::pipe2(answers, O_CLOEXEC) != 0) {
    throw std::runtime_error(fmt::format("no pipe to {}: {}", program_, std::strerror(errno)));
  }
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  process_ = ::fork();
  if (process_ == 0) {
    replace_descriptor(requests[0], STDIN_FILENO);
    replace_descriptor(answers[1], STDOUT_FILENO);
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::close(requests[0]);
  ::close(answers[1]);
  to_ = requests[1];
  from_ = answers[0];
  greeting_ = read_answer();
}

PeerProcess::~PeerProcess() {
  ::close(to_);  // the end of its input is the peer's sign to leave
  ::close(from_);
  if (process_ > 0) ::waitpid(process_, nullptr, 0);
}

bool PeerProcess::has(std::string_view name) { return ask(fmt::format("has {}\n", name)) == "1"; }

double PeerProcess::time(std::string_view name, int calls) {
  return std::stod(ask(fmt::format("time {} {}\n", name, calls)));
}

double PeerProcess::peak(std::string_view name) {
  return std::stod(ask(fmt::format("peak {}\n", name)));
}

std::string PeerProcess::ask(const std::string& request) {
  if (::write(to_, request.data(), request.size()) != static_cast<ssize_t>(request.size())) {
    throw std::runtime_error(fmt::format("{} does not listen any more", program_));
  }
  return read_answer();
}

std::string PeerProcess::read_answer() {
  std::string line;
  char letter = 0;
  while (::read(from_, &letter, 1) == 1) {
    if (letter != '\n') {
      line += letter;
    } else if (line.starts_with(kOk)) {
      return line.substr(kOk.size());
    } else {
      throw std::runtime_error(fmt::format("{}: {}", program_, line));
    }
  }
  throw std::runtime_error(fmt::format("{} could not be started, or has ended early", program_));
}

void serve(const std::string& greeting, const std::function<bool(const std::string&)>& has,
           const std::function<double(const std::string&, int)>& time) {
  std::cout << kOk << greeting << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string request;
    std::string name;
    int calls = 1;
    words >> request >> name >> calls;
    try {
      if (request == "has") {
        std::cout << kOk << (has(name) ? 1 : 0) << std::endl;
      } else if (request == "time") {
        std::cout << kOk << fmt::format("{:.9e}", time(name, calls)) << std::endl;
      } else {
        std::cout << "error no such request: " << request << std::endl;
      }
    } catch (const std::exception& error) {
      std::cout << "error " << error.what() << std::endl;
    }
  }
}

}  // namespace reprise::bench
