// A child process that runs the other side of a comparison, a batch at a time when it is told to.
//
// The peer is run for real, in the same minutes as ours: figures written down on another day or
// machine compare weather. It is a process of its own because Python's torch and ours must not
// share an autograd engine, and because "without reprise" must mean that nothing of it was ever put
// in place. The protocol (one line a request, one line an answer) is described in peers/peer.py.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace reprise::bench {

class PeerProcess {
 public:
  // Starts the program and reads its greeting. Throws std::runtime_error with the greeting's error,
  // or the reason why the program did not start.
  explicit PeerProcess(const std::vector<std::string>& command);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // What the greeting said: the peer's version.
  const std::string& greeting() const { return greeting_; }

  bool has(std::string_view name);
  // Seconds a call as time_on() takes them, over `calls` calls.
  double time(std::string_view name, int calls);
  // The most bytes alive in one step above those before it.
  double peak(std::string_view name);

 private:
  std::string ask(const std::string& request);
  std::string read_answer();

  std::string program_;
  std::string greeting_;
  int process_ = -1;
  int to_ = -1;
  int from_ = -1;
};

// The peer's side of the protocol for a C++ program: answers `has` and `time` from standard input
// until it ends. `time` gets the name and the calls; it throws for a name it does not know.
void serve(const std::string& greeting, const std::function<bool(const std::string&)>& has,
           const std::function<double(const std::string&, int)>& time);

}  // namespace reprise::bench
