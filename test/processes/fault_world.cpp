#include "fault_world.hpp"

#include <algorithm>
#include <csignal>
#include <sstream>
#include <thread>

namespace troupe::test {

namespace {

using std::chrono::milliseconds;

/// Starting a process and joining takes this long on a machine that does much else.
constexpr milliseconds start_limit = std::chrono::seconds{60};

void parse_failure(RankEnd& end) {
  const auto at = end.err.rfind("failed code=");
  if (at == std::string::npos) {
    return;
  }
  const std::string line = end.err.substr(at, end.err.find('\n', at) - at);
  const auto rank = line.find(" rank=");
  const auto ticket = line.find(" ticket=");
  const auto colon = line.find(": ");
  end.code = line.substr(12, rank - 12);
  end.culprit = std::stoi(line.substr(rank + 6));
  end.ticket = std::stol(line.substr(ticket + 8));
  end.text = line.substr(colon + 2);
}

}  // namespace

std::string to_text(const std::vector<RankEnd>& ends) {
  std::ostringstream text;
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    const RankEnd& end = ends[rank];
    text << "rank " << rank << ": "
         << (end.status ? "status " + std::to_string(*end.status) : "had to be killed") << ", "
         << end.after.count() << " ms after the fault\n"
         << end.out << end.err;
  }
  return text.str();
}

void FaultWorld::all(const std::function<void(RankOptions&)>& change) {
  std::ranges::for_each(options_, change);
}

void FaultWorld::set(int rank, const std::string& name, const std::string& value) {
  variables_[rank][name] = value;
}

void FaultWorld::start_by(int rank, std::vector<std::string> command) {
  starters_[rank] = std::move(command);
}

void FaultWorld::start() {
  started_ = Clock::now();
  const int size = static_cast<int>(options_.size());
  for (int rank = 0; rank < size; ++rank) {
    ChildOptions child{.command = starters_[rank],
                       .variables = {{"RANK", std::to_string(rank)},
                                     {"WORLD_SIZE", std::to_string(size)},
                                     {"LOCAL_RANK", std::to_string(rank)},
                                     {"MASTER_ADDR", "127.0.0.1"},
                                     {"MASTER_PORT", std::to_string(port_.number())},
                                     {"TROUPE_LAUNCHER", "test"},
                                     {"TROUPE_SECRET", "of a test"}}};
    for (const auto& [name, value] : variables_[rank]) {
      child.variables[name] = value;
    }
    child.command.push_back(FAULT_RANK);
    for (const std::string& word : of(rank).words()) {
      child.command.push_back(word);
    }
    processes_.push_back(std::make_unique<ChildProcess>(child));
  }
  ends_.resize(options_.size());
}

void FaultWorld::watch_for_fault() {
  for (std::size_t rank = 0; rank < processes_.size() && !fault_; ++rank) {
    if (options_[rank].fault != "none" &&
        processes_[rank]->out().find("point ") != std::string::npos) {
      fault_ = Clock::now();
    }
  }
}

void FaultWorld::wait_for(const std::vector<int>& ranks, milliseconds limit) {
  std::vector<int> left = ranks;
  const auto since = [this] { return fault_.value_or(started_); };
  while (!left.empty() &&
         Clock::now() < since() + limit + (fault_ ? milliseconds{0} : start_limit)) {
    watch_for_fault();
    std::erase_if(left, [&](int rank) {
      const auto status = process(rank).wait(milliseconds{0});
      if (!status) {
        return false;
      }
      RankEnd& end = ends_[static_cast<std::size_t>(rank)];
      end.status = status;
      end.after = std::chrono::duration_cast<milliseconds>(Clock::now() - since());
      return true;
    });
    std::this_thread::sleep_for(milliseconds{10});
  }
}

std::vector<RankEnd> FaultWorld::wait(milliseconds limit, const std::vector<int>& stopped) {
  std::vector<int> others;
  for (int rank = 0; rank < static_cast<int>(processes_.size()); ++rank) {
    if (std::ranges::find(stopped, rank) == stopped.end()) {
      others.push_back(rank);
    }
  }
  wait_for(others, limit);
  if (!stopped.empty()) {
    for (const int rank : stopped) {
      process(rank).signal(SIGCONT);
    }
    fault_now();
    wait_for(stopped, limit);
  }
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    ends_[rank].out = processes_[rank]->out();
    ends_[rank].err = processes_[rank]->err();
    parse_failure(ends_[rank]);
  }
  processes_.clear();
  return ends_;
}

}  // namespace troupe::test
