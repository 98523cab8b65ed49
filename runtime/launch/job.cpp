#include "troupe/runtime/launch/job.hpp"

#include "troupe/runtime/launch/free_port.hpp"
#include "troupe/runtime/launch/line_prefixer.hpp"
#include "troupe/runtime/launch/rank_process.hpp"

#include <sys/random.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <optional>
#include <poll.h>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::launch {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int exit_not_runnable = 126;
constexpr int exit_not_found = 127;
constexpr int exit_signal = 128;

/// A standard stream that is closed leads nowhere: what is opened next would get its number, and
/// what the ranks write.
void open_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != stream) {
      throw_errno("/dev/null");
    }
  }
}

/// The signals that concern a job, kept from what they would do otherwise: to be read instead.
class Signals {
 public:
  Signals() {
    sigset_t ours{};
    sigemptyset(&ours);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction before{};
      if (::sigaction(number, nullptr, &before) != 0) {
        throw_errno("sigaction");
      }
      if (before.sa_handler != SIG_IGN) {  // of nohup, say
        sigaddset(&ours, number);
      }
    }
    sigaddset(&ours, SIGCHLD);
    // Were it ignored, nobody could learn how a rank has ended.
    struct sigaction action{};
    action.sa_handler = SIG_DFL;
    if (::sigaction(SIGCHLD, &action, nullptr) != 0 ||
        ::pthread_sigmask(SIG_BLOCK, &ours, &mask_before_) != 0) {
      throw_errno("pthread_sigmask");
    }
    action.sa_handler = SIG_IGN;
    if (::sigaction(SIGPIPE, &action, nullptr) != 0) {
      throw_errno("sigaction");
    }
    reader_ = Descriptor(::signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!reader_.is_open()) {
      throw_errno("signalfd");
    }
  }
  int descriptor() const { return reader_.number(); }
  const sigset_t& mask_before() const { return mask_before_; }
  /// The next one that has come, if any.
  std::optional<int> next() const {
    signalfd_siginfo info{};
    const ssize_t count = ::read(reader_.number(), &info, sizeof info);
    return count == sizeof info ? std::optional(static_cast<int>(info.ssi_signo)) : std::nullopt;
  }

 private:
  sigset_t mask_before_{};
  Descriptor reader_;
};

/// Of 256 bits, in hexadecimal digits.
std::string random_secret() {
  std::array<unsigned char, 32> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw_errno("getrandom");
  }
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += {digits[byte >> 4U], digits[byte & 15U]};
  }
  return text;
}

Variables variables_of_job(int ranks, std::uint16_t port) {
  Variables variables;
  for (char** each = environ; each != nullptr && *each != nullptr; ++each) {
    const std::string_view line(*each);
    const auto equals = line.find('=');
    variables.emplace(line.substr(0, equals), line.substr(std::min(equals, line.size() - 1) + 1));
  }
  // What another launcher, around this one, says of another job.
  for (const char* const name : {"TROUPE_RANK", "TROUPE_WORLD_SIZE", "TROUPE_LOCAL_RANK",
                                 "TROUPE_STORE", "TORCHELASTIC_USE_AGENT_STORE"}) {
    variables.erase(name);
  }
  variables["TROUPE_LAUNCHER"] = "troupe-run";
  variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = std::to_string(ranks);
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = std::to_string(port);
  if (variables["TROUPE_SECRET_FILE"].empty() && variables["TROUPE_SECRET"].empty()) {
    variables["TROUPE_SECRET"] = random_secret();
  }
  return variables;
}

class Job {
 public:
  explicit Job(const JobOptions& options) : options_(options) {}

  int run() {
    try {
      start();
    } catch (const std::system_error& error) {
      say("cannot run " + options_.command.front() + ": " + error.code().message());
      write(STDERR_FILENO, std::exchange(said_, {}));
      // The ranks that were started are killed with their objects.
      return error.code() == std::errc::no_such_file_or_directory ? exit_not_found
                                                                  : exit_not_runnable;
    }
    while (running() > 0) {
      pass_on_what_comes(std::nullopt);
    }
    // What the ranks have written last. Nobody is left to write more but what has left its group.
    const Clock::time_point end = Clock::now() + std::chrono::seconds{1};
    while (open_streams() > 0 && Clock::now() < end) {
      pass_on_what_comes(end);
    }
    for (Stream& stream : streams_) {
      close(stream);
    }
    write(STDERR_FILENO, std::exchange(said_, {}));
    return code_.value_or(0);
  }

 private:
  struct Stream {
    Descriptor* from;
    int to;  // standard output or standard error
    LinePrefixer lines;
  };

  void start() {
    Variables variables = variables_of_job(options_.ranks, port_.number());
    for (int rank = 0; rank < options_.ranks; ++rank) {
      variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
      processes_.push_back(std::make_unique<RankProcess>(
          ProcessOptions{options_.command, variables, signals_.mask_before()}));
      const std::string prefix = "[" + std::to_string(rank) + "] ";
      auto& [output, errors] = processes_.back()->outputs;
      streams_.push_back({&output, STDOUT_FILENO, LinePrefixer(prefix)});
      streams_.push_back({&errors, STDERR_FILENO, LinePrefixer(prefix)});
    }
  }

  std::ptrdiff_t running() const {
    return std::ranges::count_if(processes_, [](const auto& each) { return each->running(); });
  }
  std::ptrdiff_t open_streams() const {
    return std::ranges::count_if(streams_, [](const Stream& each) { return each.from->is_open(); });
  }

  /// Waits until something comes, from ranks or signals, or until `end`, and deals with it.
  void pass_on_what_comes(std::optional<Clock::time_point> end) {
    std::vector<pollfd> ready;
    std::vector<Stream*> of;
    for (Stream& stream : streams_) {
      if (stream.from->is_open()) {
        ready.push_back({stream.from->number(), POLLIN, 0});
        of.push_back(&stream);
      }
    }
    wait(ready, end);
    for (std::size_t i = 0; i < of.size(); ++i) {
      if (ready[i].revents != 0) {
        pass_on(*of[i]);
      }
    }
    write(STDERR_FILENO, std::exchange(said_, {}));
  }

  /// Waits for any of `ready`, and takes care of signals meanwhile. Writes nothing, since it waits
  /// for whoever reads what is written, too.
  void wait(std::vector<pollfd>& ready, std::optional<Clock::time_point> end = std::nullopt) {
    ready.push_back({signals_.descriptor(), POLLIN, 0});
    int wait_ms = -1;
    const auto until = end_at_ && end ? std::min(end_at_, end) : end_at_ ? end_at_ : end;
    if (until) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*until - Clock::now());
      wait_ms = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
    }
    if (::poll(ready.data(), ready.size(), wait_ms) < 0 && errno != EINTR) {
      throw_errno("poll");
    }
    ready.pop_back();
    while (const auto number = signals_.next()) {
      if (*number == SIGCHLD) {
        reap();
      } else {
        signal_all(*number);
      }
    }
    if (end_at_ && Clock::now() >= *end_at_) {
      signal_all(asked_ ? SIGKILL : SIGTERM);
      end_at_ = asked_ ? std::nullopt : std::optional(Clock::now() + options_.grace);
      asked_ = true;
    }
  }

  /// What can be read of the stream now, but not so much that others would have to wait for long.
  void pass_on(Stream& stream) {
    std::array<char, 65536> bytes{};
    const ssize_t count = ::read(stream.from->number(), bytes.data(), bytes.size());
    if (count > 0) {
      std::string text;
      stream.lines.take({bytes.data(), static_cast<std::size_t>(count)}, text);
      write(stream.to, text);
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
      close(stream);
    }
  }
  void close(Stream& stream) {
    std::string text;
    stream.lines.finish(text);
    write(stream.to, text);
    stream.from->close();
  }

  /// All of it, however long the reader takes; nothing any more once there is none.
  void write(int to, std::string_view text) {
    bool& broken = to == STDOUT_FILENO ? output_broken_ : errors_broken_;
    while (!text.empty() && !broken) {
      std::vector<pollfd> ready{{to, POLLOUT, 0}};
      wait(ready);
      if (ready[0].revents == 0) {
        continue;
      }
      // A pipe that is ready takes so much without blocking.
      const ssize_t count = ::write(to, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
      if (count >= 0) {
        text.remove_prefix(static_cast<std::size_t>(count));
      } else if (errno != EAGAIN && errno != EINTR) {
        broken = true;
        const int reason = errno;
        say(std::string("cannot write what the ranks write: ") +
            std::generic_category().message(reason));
        fail(reason == EPIPE ? exit_signal + SIGPIPE : 1, {});
      }
    }
  }

  void reap() {
    for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
      const std::optional<ProcessEnd> end = processes_[rank]->reap();
      if (!end) {
        continue;
      }
      if (end->code == 0) {
        ended_well_.push_back(static_cast<int>(rank));
      } else if (!code_) {
        say(text_of(static_cast<int>(rank), *end));
        fail(end->code, options_.settle);
      }
    }
  }

  /// A rank that has ended well while others go on may be what these fail for.
  std::string text_of(int rank, const ProcessEnd& end) const {
    std::string text =
        "rank " + std::to_string(rank) + " has ended with " + std::to_string(end.code);
    if (end.signal != 0) {
      const char* const meaning = ::sigdescr_np(end.signal);
      text += " (signal " + std::to_string(end.signal) +
              (meaning != nullptr ? std::string(", ") + meaning : "") + ")";
    }
    for (std::size_t i = 0; i < ended_well_.size(); ++i) {
      text += (i == 0 ? ", after rank " : ", ") + std::to_string(ended_well_[i]);
    }
    return text + (ended_well_.empty() ? "" : " had ended with 0");
  }

  /// The first failure ends all others, `settle` later.
  void fail(int code, std::chrono::milliseconds settle) {
    if (!code_) {
      code_ = code;
      end_at_ = Clock::now() + settle;
    }
  }
  void signal_all(int number) const {
    for (const auto& process : processes_) {
      process->signal(number);
    }
  }
  void say(const std::string& text) { said_ += "troupe-run: " + text + "\n"; }

  // Constant after construction.
  const JobOptions& options_;
  const Signals signals_;
  const FreePort port_;  // as long as the job runs
  // Owned.
  std::vector<std::unique_ptr<RankProcess>> processes_;
  std::vector<Stream> streams_;
  std::string said_;  // still to be written
  bool output_broken_ = false;
  bool errors_broken_ = false;
  std::optional<int> code_;  // of the first failure
  std::vector<int> ended_well_;
  std::optional<Clock::time_point> end_at_;  // what still runs then is asked to end, then killed
  bool asked_ = false;
};

}  // namespace

int run_job(const JobOptions& options) {
  open_closed_streams();
  return Job(options).run();
}

}  // namespace troupe::launch
