#include "troupe/runtime/launch/rank_process.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdlib>

namespace troupe::launch {

namespace {

/// Those of `execvpe`.
struct Arguments {
  std::vector<std::string> texts;
  std::vector<char*> pointers;

  explicit Arguments(std::vector<std::string> words) : texts(std::move(words)) {
    for (std::string& text : texts) {
      pointers.push_back(text.data());
    }
    pointers.push_back(nullptr);
  }
};

Arguments lines_of(const Variables& variables) {
  std::vector<std::string> lines;
  lines.reserve(variables.size());
  for (const auto& [name, value] : variables) {
    lines.push_back(name + "=" + value);
  }
  return Arguments(std::move(lines));
}

/// Runs in the child, between fork and exec; returns only if that fails, with errno.
void become(const Arguments& command,
            const Arguments& variables,
            const ProcessOptions& options,
            pid_t parent,
            const std::array<Pipe, 2>& outputs) {
  // Killed with the launcher, whatever ends that; unless it has ended already.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::setpgid(0, 0) != 0) {
    return;
  }
  if (::getppid() != parent) {
    ::_exit(EXIT_FAILURE);
  }
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing < 0 || ::dup2(nothing, STDIN_FILENO) < 0 ||
      ::dup2(outputs[0].writer.number(), STDOUT_FILENO) < 0 ||
      ::dup2(outputs[1].writer.number(), STDERR_FILENO) < 0) {
    return;
  }
  // The launcher ignores it; what a program ignores, its children would, too.
  struct sigaction ordinary{};
  ordinary.sa_handler = SIG_DFL;
  if (::sigaction(SIGPIPE, &ordinary, nullptr) != 0 ||
      ::pthread_sigmask(SIG_SETMASK, &options.signal_mask, nullptr) != 0) {
    return;
  }
  ::execvpe(command.pointers[0], command.pointers.data(), variables.pointers.data());
}

void do_not_block(const Descriptor& descriptor) {
  const int flags = ::fcntl(descriptor.number(), F_GETFL);
  if (flags < 0 || ::fcntl(descriptor.number(), F_SETFL, flags | O_NONBLOCK) != 0) {
    throw_errno("fcntl");
  }
}

}  // namespace

RankProcess::RankProcess(const ProcessOptions& options) {
  std::array<Pipe, 2> pipes;
  Pipe refusal;
  const Arguments command(options.command);
  const Arguments variables = lines_of(options.variables);
  for (const Pipe& pipe : pipes) {
    do_not_block(pipe.reader);
  }
  const pid_t parent = ::getpid();
  id_ = ::fork();
  if (id_ < 0) {
    throw_errno("fork");
  }
  if (id_ == 0) {
    become(command, variables, options, parent, pipes);
    const int reason = errno;
    static_cast<void>(!::write(refusal.writer.number(), &reason, sizeof reason));
    ::_exit(EXIT_FAILURE);
  }
  // Here as well as there: whoever comes first. It fails once the program runs, when it is done.
  static_cast<void>(::setpgid(id_, id_));
  refusal.writer.close();
  int reason = 0;
  ssize_t count = 0;
  do {
    count = ::read(refusal.reader.number(), &reason, sizeof reason);
  } while (count < 0 && errno == EINTR);
  if (count == sizeof reason) {
    while (::waitpid(id_, nullptr, 0) < 0 && errno == EINTR) {
    }
    id_ = -1;
    throw std::system_error(reason, std::generic_category(), options.command.front());
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    outputs[i] = std::move(pipes[i].reader);
  }
}

RankProcess::~RankProcess() {
  if (running()) {
    static_cast<void>(::kill(-id_, SIGKILL));
    while (::waitpid(id_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

void RankProcess::signal(int number) const {
  if (running()) {
    static_cast<void>(::kill(-id_, number));
  }
}

std::optional<ProcessEnd> RankProcess::reap() {
  siginfo_t info{};
  // It stays a zombie for now, so that nobody else can get its number.
  if (!running() ||
      ::waitid(P_PID, static_cast<id_t>(id_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    return std::nullopt;
  }
  static_cast<void>(::kill(-id_, SIGKILL));
  while (::waitpid(id_, nullptr, 0) < 0 && errno == EINTR) {
  }
  id_ = -1;
  return info.si_code == CLD_EXITED ? ProcessEnd{info.si_status, 0}
                                    : ProcessEnd{128 + info.si_status, info.si_status};
}

}  // namespace troupe::launch
