// Runs `reprise` for the tests: in this process, where only its output counts, or as a process of
// its own, where signals, terminals and sudden death do.
#pragma once

#include <reprise/error.h>
#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/refusal.h"

namespace reprise::app {

using Arguments = std::vector<std::string>;

struct Finished {
  int exit_code = 0;  // -N if signal N ended it
  std::string out;
  std::string err;
};

// Calls run_command_line().
Finished run_here(const Arguments& arguments);

// What of a process goes to a terminal, of 80 columns, and not into a pipe.
enum class Terminal {
  kOfNothing,
  kOfErrors,
  kOfAll,  // stdout and stderr are one stream, which is read as `out`
};

// A started `reprise`. The destructor kills what still runs.
class Process {
 public:
  explicit Process(const Arguments& arguments, Terminal terminal = Terminal::kOfNothing);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void send(int signal) const;
  // Reads until `is_enough` of what was written so far; false if the process ended before.
  bool await(const std::function<bool(const Finished& so_far)>& is_enough);
  Finished wait();

 private:
  bool read_more();

  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  Finished so_far_;
};

// Until a comparison has timed every strategy once: its stderr is a terminal. False if it ended
// before.
bool await_first_times(Process& process);

// Expects that a command line is refused: exit code 2, nothing printed, and one line of error that
// names the command and has `text` in it.
void expect_refusal(const Arguments& arguments, const std::string& text);
// The same of tiny_run("train", more).
void expect_training_refusal(const std::string& more, const std::string& text);

// Words of a command line, split at spaces.
Arguments words(const std::string& text);

// A tiny model on this folder's own text: a step takes about a millisecond.
Arguments tiny_run(const std::string& command, const std::string& more = "");
// Gives tiny_run() activations of some hundred kilobytes, far more than the weights.
inline constexpr const char* kDeep = "--layers 6 --context 64 --batch 8 --dropout 0.1 ";

// A folder that is removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// Whether some run has begun a file of results of that name, and neither put it in its place nor
// removed it.
bool is_begun(const TemporaryFolder& folder, const std::string& name);

std::string contents(const std::filesystem::path& file);
// A file of results with one JSON object a line.
std::vector<nlohmann::json> lines_of(const std::string& file);
void write_file(const std::filesystem::path& file, const std::string& text);

}  // namespace reprise::app
