#include "troupe/comm/simulated/simulated_fabric.hpp"

#include "troupe/comm/call_check.hpp"
#include "troupe/comm/local_transfer.hpp"

#include <algorithm>

namespace troupe {

namespace {

/// What a rank's part in a collective reads and writes, in its own memory.
std::vector<Access> accesses_of(const CollectiveCall& call, int rank, int size) {
  const auto part = call.numel * static_cast<std::int64_t>(size_of(call.dtype));
  const bool gathers = call.op == Collective::all_gather;
  const bool scatters = call.op == Collective::reduce_scatter;
  std::vector<Access> accesses;
  if (call.input != nullptr && (call.op != Collective::broadcast || rank == call.root)) {
    accesses.push_back({call.input, scatters ? size * part : part, false});
  }
  if (call.output != nullptr && (call.op != Collective::reduce || rank == call.root)) {
    accesses.push_back({call.output, gathers ? size * part : part, true});
  }
  return accesses;
}

}  // namespace

// ---- where the ranks of a group meet ------------------------------------------------------------

class SimulatedFabric::Group {
 public:
  Group(SimulatedFabric& fabric, std::vector<int> ranks)
      : fabric_(fabric), ranks_(std::move(ranks)), members_(ranks_.size()), calls_(ranks_.size()) {}
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() = default;

  int size() const { return static_cast<int>(ranks_.size()); }
  int member_of(int rank) const {
    const auto found = std::ranges::find(ranks_, rank);
    return found == ranks_.end() ? -1 : static_cast<int>(found - ranks_.begin());
  }

  void arrive(std::size_t member, const CollectiveCall& call, SimulatedStream& stream) {
    fabric_.timeline_.touch(this);
    if (const auto failure = fabric_.first_failure_->get()) {
      stream.finish(failure);
      return;
    }
    Member& own = members_[member];
    own.stream = &stream;
    calls_[member] = call;
    own.access = fabric_.accesses_.begin({to_string(call.op), call.ticket, ranks_[member]},
                                         accesses_of(call, static_cast<int>(member), size()));
    own.deadline = fabric_.timeline_.after(fabric_.network_.timeout, this,
                                           [this, member] { time_out(member); });
    if (auto failure = somebody_gone()) {
      fabric_.abort(*failure);
    } else if (std::ranges::all_of(members_,
                                   [](const Member& each) { return each.stream != nullptr; })) {
      begin();
    }
  }

  /// Its stream has failed or was stopped.
  void drop(std::size_t member, const CollectiveCall& call, const SimulatedStream& stream) {
    fabric_.timeline_.touch(this);
    const std::optional<Failure> why = stream.failure();
    clear(member);
    fabric_.abort({.code = ErrorCode::peer_failed,
                   .text = "rank " + std::to_string(ranks_[member]) + " dropped " + describe(call) +
                           (why ? ": " + why->text : ""),
                   .rank = ranks_[member],
                   .ticket = call.ticket,
                   .bucket = call.bucket});
  }

  void fail(const Failure& failure) {
    fabric_.timeline_.touch(this);
    if (moving_) {
      fabric_.timeline_.cancel(std::exchange(transfer_, 0));
      stop_moving();
    }
    fabric_.release_link(*this);
    for (std::size_t member = 0; member < members_.size(); ++member) {
      const Member& own = members_[member];
      SimulatedStream* stream = own.ending != nullptr ? own.ending : own.stream;
      if (stream != nullptr) {
        clear(member);
        stream->finish(failure);
      }
    }
  }

  void leave(int rank) {
    fabric_.timeline_.touch(this);
    if (member_of(rank) >= 0) {
      if (auto failure = somebody_gone()) {
        fabric_.abort(*failure);
      }
    }
  }

  /// The link is free, or needs no sharing.
  void start_moving() {
    const SimulatedNetwork& network = fabric_.network_;
    fault_ = network.fault ? network.fault(calls_.front()) : SimulatedFault{};
    moving_ = true;
    fabric_.begin_moving();
    if (fault_.kind == SimulatedFault::Kind::hang) {
      return;  // until the deadline
    }
    const Duration time = network.time ? network.time(calls_.front(), size()) : Duration::zero();
    transfer_ = fabric_.timeline_.after(time, this, [this] { moved(); });
  }

 private:
  struct Member {
    SimulatedStream* stream = nullptr;  ///< set from its arrival until the payload has moved
    SimulatedStream* ending = nullptr;  ///< set from then until its own end
    AccessLog::Id access = 0;
    Timeline::Id deadline = 0;
    Timeline::Id end = 0;
  };

  void begin() {
    if (auto mismatch = compare_calls(calls_, ranks_)) {
      fabric_.abort(*mismatch);
    } else if (fabric_.network_.one_link) {
      fabric_.request_link(*this);
    } else {
      start_moving();
    }
  }

  void moved() {
    fabric_.timeline_.touch(this);
    transfer_ = 0;
    stop_moving();
    fabric_.release_link(*this);
    if (fault_.kind == SimulatedFault::Kind::error) {
      const CollectiveCall& call = calls_.front();
      fabric_.abort(
          {.code = ErrorCode::device,
           .text = "rank " + std::to_string(fault_.rank) + ": simulated error in " + describe(call),
           .rank = fault_.rank,
           .ticket = call.ticket,
           .bucket = call.bucket});
      return;
    }
    const std::vector<CollectiveCall> calls = calls_;
    for (const Member& member : members_) {
      fabric_.accesses_.moves(member.access);
    }
    for (int member = 0; member < size(); ++member) {
      transfer(calls, member, TransferRound::first);
    }
    for (int member = 0; member < size() && has_second_round(calls.front().op); ++member) {
      transfer(calls, member, TransferRound::second);
    }
    for (std::size_t member = 0; member < members_.size(); ++member) {
      Member& own = members_[member];
      fabric_.timeline_.cancel(std::exchange(own.deadline, 0));
      const Duration delay =
          fabric_.network_.delay ? fabric_.network_.delay(ranks_[member]) : Duration::zero();
      own.ending = std::exchange(own.stream, nullptr);
      own.end = fabric_.timeline_.after(delay, own.ending, [this, member] {
        fabric_.timeline_.touch(this);
        members_[member].end = 0;
        SimulatedStream* stream = members_[member].ending;
        clear(member);
        stream->finish();
      });
    }
  }

  void stop_moving() {
    moving_ = false;
    fabric_.end_moving();
  }

  void time_out(std::size_t member) {
    fabric_.timeline_.touch(this);
    members_[member].deadline = 0;
    std::vector<int> missing;
    for (std::size_t other = 0; other < members_.size(); ++other) {
      if (members_[other].stream == nullptr) {
        missing.push_back(ranks_[other]);
      }
    }
    const CollectiveCall& call = calls_[member];
    fabric_.abort({.code = ErrorCode::timeout,
                   .text = "rank " + std::to_string(ranks_[member]) + " waited too long for " +
                           (missing.empty() ? "the end" : describe_ranks(missing)) + " in " +
                           describe_exactly(call),
                   .rank = missing.empty() ? -1 : missing.front(),
                   .ticket = call.ticket,
                   .bucket = call.bucket});
  }

  /// A member that waits here, while another will never come.
  std::optional<Failure> somebody_gone() const {
    const auto waiting =
        std::ranges::find_if(members_, [](const Member& each) { return each.stream != nullptr; });
    if (waiting == members_.end()) {
      return std::nullopt;
    }
    for (std::size_t member = 0; member < members_.size(); ++member) {
      const auto gone = fabric_.gone_.find(ranks_[member]);
      if (members_[member].stream == nullptr && gone != fabric_.gone_.end()) {
        const CollectiveCall& call = calls_[static_cast<std::size_t>(waiting - members_.begin())];
        return Failure{.code = ErrorCode::peer_failed,
                       .text = describe(call) + " waits for rank " +
                               std::to_string(ranks_[member]) + ", which has left: " + gone->second,
                       .rank = ranks_[member],
                       .ticket = call.ticket,
                       .bucket = call.bucket};
      }
    }
    return std::nullopt;
  }

  void clear(std::size_t member) {
    Member& own = members_[member];
    fabric_.timeline_.cancel(std::exchange(own.deadline, 0));
    fabric_.timeline_.cancel(std::exchange(own.end, 0));
    fabric_.accesses_.end(std::exchange(own.access, 0));
    own.stream = nullptr;
    own.ending = nullptr;
  }

  SimulatedFabric& fabric_;
  const std::vector<int> ranks_;
  std::vector<Member> members_;
  std::vector<CollectiveCall> calls_;
  SimulatedFault fault_;
  Timeline::Id transfer_ = 0;
  bool moving_ = false;
};

// ---- one rank's communicator --------------------------------------------------------------------

class SimulatedFabric::Endpoint final : public Communicator {
 public:
  Endpoint(SimulatedFabric& fabric, Group& group, int member)
      : fabric_(fabric), group_(group), member_(member) {}

  int rank() const override { return member_; }
  int size() const override { return group_.size(); }

  Result<void> launch(const CollectiveCall& call, Stream& stream) override {
    if (auto failure = check_call(call, member_, group_.size())) {
      return *std::move(failure);
    }
    auto* own = dynamic_cast<SimulatedStream*>(&stream);
    if (own == nullptr) {
      return Failure{.code = ErrorCode::misuse,
                     .text = describe(call) + " cannot run on stream '" + stream.name() +
                             "', which is not simulated"};
    }
    if (auto failure = fabric_.first_failure_->get()) {
      return *std::move(failure);
    }
    const auto member = static_cast<std::size_t>(member_);
    own->enqueue([this, member, call, own] { group_.arrive(member, call, *own); },
                 [this, member, call, own] { group_.drop(member, call, *own); });
    return {};
  }

  void abort(const Failure& failure) override { fabric_.abort(failure); }

 private:
  SimulatedFabric& fabric_;
  Group& group_;
  const int member_;
};

// ---- the world ----------------------------------------------------------------------------------

SimulatedFabric::SimulatedFabric(int world_size,
                                 Timeline& timeline,
                                 AccessLog& accesses,
                                 SimulatedNetwork network)
    : world_size_(world_size),
      timeline_(timeline),
      accesses_(accesses),
      network_(std::move(network)),
      rendezvous_(world_size) {}

SimulatedFabric::~SimulatedFabric() = default;

std::optional<std::size_t> SimulatedFabric::group_index(const void* group) const {
  std::size_t index = 0;
  for (const auto& [key, each] : groups_) {
    if (each.get() == group) {
      return index;
    }
    ++index;
  }
  return std::nullopt;
}

std::unique_ptr<Communicator> SimulatedFabric::communicator(int rank,
                                                            std::vector<int> ranks,
                                                            int channel) {
  auto& group = groups_[{ranks, channel}];
  if (!group) {
    group = std::make_unique<Group>(*this, std::move(ranks));
  }
  const int member = group->member_of(rank);
  if (member < 0) {
    throw Error({.code = ErrorCode::bad_configuration,
                 .text = "rank " + std::to_string(rank) + " is not in the group it asks for"});
  }
  return std::make_unique<Endpoint>(*this, *group, member);
}

void SimulatedFabric::abort(const Failure& failure) {
  const Failure first = first_failure_->report(failure);
  for (const auto& [key, group] : groups_) {
    group->fail(first);
  }
}

void SimulatedFabric::renew(std::uint64_t epoch) {
  timeline_.touch(this);
  if (epoch_ < epoch) {
    epoch_ = epoch;
    groups_.clear();  // nothing of theirs is planned any more: all have failed
    first_failure_ = std::make_unique<FirstFailure>();
  }
}

void SimulatedFabric::leave(int rank, std::string text) {
  gone_.emplace(rank, std::move(text));
  for (const auto& [key, group] : groups_) {
    group->leave(rank);
  }
}

void SimulatedFabric::request_link(Group& group) {
  timeline_.touch(this);
  link_queue_.push_back(&group);
  if (link_queue_.size() == 1) {
    group.start_moving();
  }
}

void SimulatedFabric::release_link(Group& group) {
  const auto found = std::ranges::find(link_queue_, &group);
  if (found == link_queue_.end()) {
    return;
  }
  timeline_.touch(this);
  const bool had_it = found == link_queue_.begin();
  link_queue_.erase(found);
  if (had_it && !link_queue_.empty() && !first_failure_->get()) {
    link_queue_.front()->start_moving();
  }
}

void SimulatedFabric::begin_moving() {
  if (moving_++ == 0) {
    moving_since_ = timeline_.now();
  }
}

void SimulatedFabric::end_moving() {
  if (--moving_ == 0) {
    moving_time_ += timeline_.now() - moving_since_;
  }
}

Duration SimulatedFabric::moving_time() const {
  return moving_time_ + (moving_ > 0 ? timeline_.now() - moving_since_ : Duration::zero());
}

}  // namespace troupe
