// A forked `reprise` whose streams are pipes or a pseudo-terminal.
#include "tests/cli/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "apps/cli/commands/commands.h"

namespace reprise::app {

namespace fs = std::filesystem;

Finished run_here(const Arguments& arguments) {
  std::vector<const char*> argv{"reprise"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int exit_code = run_command_line(static_cast<int>(argv.size()), argv.data());
  std::fflush(stdout);
  return {exit_code, testing::internal::GetCapturedStdout(),
          testing::internal::GetCapturedStderr()};
}

namespace {

[[noreturn]] void become_reprise(const Arguments& arguments) {
  std::vector<char*> argv{const_cast<char*>("reprise")};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(REPRISE_CLI, argv.data());
  _exit(127);
}

// Returns false at the end of the stream. A terminal ends with an error.
bool append_what_is_there(int fd, std::string& text) {
  char buffer[4096];
  const ssize_t count = read(fd, buffer, sizeof buffer);
  if (count > 0) text.append(buffer, static_cast<std::size_t>(count));
  return count > 0;
}

}  // namespace

Process::Process(const Arguments& arguments, Terminal terminal) {
  winsize size = {};
  size.ws_row = 24;
  size.ws_col = 80;
  if (terminal == Terminal::kOfAll) {
    pid_ = forkpty(&out_, nullptr, nullptr, &size);
    if (pid_ == 0) {
      setenv("TERM", "xterm", 1);
      become_reprise(arguments);
    }
    return;
  }
  int out[2], err[2];
  if (pipe(out) != 0) std::abort();
  if (terminal == Terminal::kOfErrors) {
    if (openpty(&err[0], &err[1], nullptr, nullptr, &size) != 0) std::abort();
  } else {
    if (pipe(err) != 0) std::abort();
  }
  pid_ = fork();
  if (pid_ == 0) {
    if (terminal == Terminal::kOfErrors) setenv("TERM", "xterm", 1);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    for (const int fd : {out[0], out[1], err[0], err[1]}) close(fd);
    become_reprise(arguments);
  }
  close(out[1]);
  close(err[1]);
  out_ = out[0];
  err_ = err[0];
}

Process::~Process() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (out_ >= 0) close(out_);
  if (err_ >= 0) close(err_);
}

void Process::send(int signal) const { kill(pid_, signal); }

// Waits for some; returns false at the end of both streams.
bool Process::read_more() {
  pollfd streams[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
  if (out_ < 0 && err_ < 0) return false;
  poll(streams, 2, -1);
  const auto read_from = [](const pollfd& stream, int& fd, std::string& text) {
    if (!stream.revents || append_what_is_there(fd, text)) return;
    close(fd);
    fd = -1;
  };
  read_from(streams[0], out_, so_far_.out);
  read_from(streams[1], err_, so_far_.err);
  return true;
}

bool Process::await(const std::function<bool(const Finished& so_far)>& is_enough) {
  while (!is_enough(so_far_)) {
    if (!read_more()) return false;
  }
  return true;
}

Finished Process::wait() {
  while (read_more()) {
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  so_far_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return so_far_;
}

// Nothing is timed in the first round, and the second one is over when the third is shown.
bool await_first_times(Process& process) {
  return process.await([](const Finished& so_far) {
    const auto last = so_far.err.rfind("round ");
    return last != std::string::npos && std::atoi(so_far.err.c_str() + last + 6) > 2;
  });
}

void expect_refusal(const Arguments& arguments, const std::string& text) {
  const Finished result = run_here(arguments);
  const std::string all = testing::PrintToString(arguments);
  EXPECT_EQ(result.exit_code, 2) << all << result.err;
  EXPECT_EQ(result.out, "") << all;
  EXPECT_THAT(result.err, testing::AllOf(testing::StartsWith("reprise"), testing::HasSubstr(text)))
      << all;
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
}

void expect_training_refusal(const std::string& more, const std::string& text) {
  expect_refusal(tiny_run("train", more), text);
}

Arguments words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

Arguments tiny_run(const std::string& command, const std::string& more) {
  return words(
      command +
      " --layers 3 --width 16 --heads 2 --context 16 --batch 2 --device cpu --threads 1 --data " +
      REPRISE_SOURCE_DIR + "/tests/cli " + more);
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (fs::temp_directory_path() / "reprise-test-XXXXXX").string();
  if (!mkdtemp(name.data())) std::abort();
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() { fs::remove_all(path_); }

bool is_begun(const TemporaryFolder& folder, const std::string& name) {
  return std::ranges::any_of(fs::directory_iterator(folder.path()), [&](const auto& entry) {
    const std::string found = entry.path().filename();
    return found.starts_with(".partial.") && found.ends_with("." + name);
  });
}

std::string contents(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::vector<nlohmann::json> lines_of(const std::string& file) {
  std::vector<nlohmann::json> objects;
  std::istringstream stream(contents(file));
  for (std::string line; std::getline(stream, line);) {
    objects.push_back(nlohmann::json::parse(line));
  }
  return objects;
}

void write_file(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

}  // namespace reprise::app
